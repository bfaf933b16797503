//! The invariants that hold after every step.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    AnswerStatus, CandidateEntry, LotteryAnswer, LotteryMessage, LotteryNode, MAX_CANDIDATE_BYTES,
    MAX_FALLBACKS, MAX_IDS, MAX_TABLE_PART_BYTES, MessageTarget, NodeDescription, RelayedReport,
};

/// The messages so far.
#[derive(Default)]
pub(crate) struct Checks {
    /// The member named, by daemon, life and request.
    said: HashMap<(usize, u64, u64), u16>,
    /// The last report, by daemon and life.
    seq: HashMap<(usize, u64), (u32, u32)>,
    /// The members that answers named, by request, as sent and as received.
    pub(crate) named: HashMap<u64, HashSet<u16>>,
    pub(crate) got: HashMap<u64, HashSet<u16>>,
    /// The members that a request avoided when it was sent last.
    pub(crate) avoided: HashMap<u64, Vec<u16>>,
}

impl Checks {
    /// Checks a daemon at rest after a call.
    pub(crate) fn rest(&self, daemon: &LotteryNode, now: Time, timed: bool) {
        let statistics = daemon.statistics(now);
        assert!(statistics.waiting <= 8192 && statistics.dropped == 0, "{statistics:?}");
        assert!(
            statistics.members_reporting <= statistics.members
                && statistics.members_differ <= statistics.members_reporting
        );
        // Commits go within two milliseconds: the waiting ones are far fewer than the queues may hold.
        assert!(statistics.queued <= 2 * 8192, "{statistics:?}");
        if timed {
            let next = daemon.poll_timeout().expect("it always has something to do");
            assert!(next > now, "it was called at {now:?} and wants to be called at {next:?}");
        }
    }

    /// Checks a message that a daemon sends.
    pub(crate) fn sent(
        &mut self,
        who: usize,
        life: u64,
        daemon: &LotteryNode,
        to: &MessageTarget,
        message: &LotteryMessage,
    ) {
        match message {
            LotteryMessage::Answer(answer) => {
                assert!(matches!(to, MessageTarget::Address(_)));
                self.answer(who, life, daemon, answer);
            }
            LotteryMessage::Report(report) => {
                assert!(report.ids.len() <= MAX_IDS && report.member == who as u16 + 1);
                let heard: usize = report.heard.iter().map(RelayedReport::encoded_size).sum();
                assert!(
                    heard <= report.relay_capacity()
                        && report.heard.iter().all(|said| said.member != report.member)
                );
                let last = self.seq.insert((who, life), (report.incarnation, report.seq));
                // The same one goes to several.
                assert!(last.is_none_or(|last| last <= (report.incarnation, report.seq)), "reports count up");
            }
            LotteryMessage::Commit(commit) => {
                assert!(
                    !commit.ids.is_empty() && commit.ids.len() <= MAX_IDS && commit.member == who as u16 + 1
                );
            }
            LotteryMessage::Table(table) => {
                let bytes: usize = table.members.iter().map(NodeDescription::encoded_size).sum();
                assert!(bytes <= MAX_TABLE_PART_BYTES && table.part < table.parts);
            }
            LotteryMessage::Fetch(_) => {}
            LotteryMessage::CandidateSet(drum) => {
                let bytes: usize = drum.candidates.iter().map(CandidateEntry::encoded_size).sum();
                assert!(bytes <= MAX_CANDIDATE_BYTES && drum.part < drum.parts);
            }
            LotteryMessage::Request(_) | LotteryMessage::CandidateQuery(_) => {
                panic!("a daemon asks for nothing")
            }
        }
    }

    fn answer(&mut self, who: usize, life: u64, daemon: &LotteryNode, answer: &LotteryAnswer) {
        assert!(answer.fallbacks.len() <= MAX_FALLBACKS);
        if answer.status != AnswerStatus::Ok {
            return assert_eq!(answer.endpoint, None);
        }
        assert!(
            daemon.can_draw(answer.member, answer.service),
            "it names {}, which it does not draw",
            answer.member
        );
        assert_eq!(answer.endpoint, Some(endpoint(usize::from(answer.member) - 1)));
        for further in &answer.fallbacks {
            assert!(further.member != answer.member && daemon.can_draw(further.member, answer.service));
            assert_eq!(further.endpoint, endpoint(usize::from(further.member) - 1));
        }
        let before = self.said.insert((who, life, answer.id), answer.member);
        if let Some(before) = before.filter(|before| *before != answer.member) {
            let avoided = self.avoided.get(&answer.id).is_some_and(|avoided| avoided.contains(&before));
            assert!(
                avoided || !daemon.can_draw(before, answer.service),
                "the same request, {before} and {}",
                answer.member
            );
        }
        self.named.entry(answer.id).or_default().insert(answer.member);
    }
}

pub(crate) fn address(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (who / 250) as u8, (who % 250) as u8], 7447))
}

pub(crate) fn endpoint(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, (who / 250) as u8, (who % 250) as u8], 80))
}

pub(crate) fn client(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 2, (who / 250) as u8, (who % 250) as u8], 9))
}

/// Returns the network (0 daemons, 1 servers, 2 clients) and the host.
pub(crate) fn host(address: SocketAddr) -> (u8, usize) {
    let std::net::IpAddr::V4(ip) = address.ip() else { panic!("{address}") };
    let [_, kind, high, low] = ip.octets();
    (kind, usize::from(high) * 250 + usize::from(low))
}
