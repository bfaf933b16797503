//! Several services on overlapping hosts: `web` on the first two of three, `mail` on the last two, `news` on
//! the last alone, with unequal capacities. Each client gets a host with its service, as often as the host's
//! share of the capacity.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_brain::lottery::{
    AnswerMode, AnswerStatus, LotteryAnswer, LotteryMessage, LotteryNode, LotteryRequest, MessageTarget,
    NodeConfig, NodeConfigChange, NodeDescription, NodeState, ServiceOffer, SipHashKey,
};
use plimsoll_brain::{Time, mix};

use super::checks::{address, client, endpoint};
use super::rules::{millis, request, sent};

const RAMP: Duration = Duration::from_secs(10);
const WEB: u32 = 1;
const MAIL: u32 = 2;
const NEWS: u32 = 3;

/// The services of each host, and their capacities.
const HOSTS: [&[(u32, u16)]; 3] = [&[(WEB, 100)], &[(WEB, 300), (MAIL, 50)], &[(MAIL, 150), (NEWS, 7)]];

fn listed(who: usize) -> NodeDescription {
    let none: &[u8] = b"";
    let offer = |(service, capacity): &(u32, u16)| ServiceOffer {
        service: *service,
        capacity: *capacity,
        endpoint: endpoint(who),
        info: none.into(),
    };
    let offers = HOSTS[who].iter().map(offer).collect();
    NodeDescription { member: who as u16 + 1, incarnation: 1, address: address(who), offers }
}

/// Three daemons, and their messages.
struct Cluster {
    daemons: Vec<LotteryNode>,
}

impl Cluster {
    /// Returns a cluster in which all are up and have reported.
    fn up() -> Self {
        let daemons = (0..HOSTS.len()).map(|who| {
            let NodeDescription { member, incarnation, address, offers } = listed(who);
            let config = NodeConfig::new(member, incarnation, address, offers, SipHashKey::new([3; 16]));
            let mut daemon = LotteryNode::new(NodeConfig { rate: 0, ..config }, Time(0));
            for other in (0..HOSTS.len()).filter(|other| *other != who) {
                assert!(daemon.member_up(listed(other)));
            }
            daemon
        });
        let mut cluster = Self { daemons: daemons.collect() };
        cluster.until(Time(0), millis(20_000));
        assert!(cluster.daemons.iter().all(|daemon| daemon.state() == NodeState::Up));
        cluster
    }

    /// Exchanges reports of idle servers.
    fn until(&mut self, from: Time, end: Time) {
        for now in (from.0..=end.0).step_by(50_000_000).map(Time) {
            for (who, services) in HOSTS.iter().enumerate() {
                for (service, _) in *services {
                    self.daemons[who].set_load(now, *service, 750, 0);
                }
                // On time: a late one lets others answer first.
                while let Some(due) = self.daemons[who].poll_timeout().filter(|due| *due <= now) {
                    self.daemons[who].handle_timeout(due);
                }
                for (_, message) in sent(&mut self.daemons[who]) {
                    for other in (0..self.daemons.len()).filter(|other| *other != who) {
                        self.daemons[other].handle(now, address(who), message.clone());
                    }
                }
            }
        }
    }

    /// Returns the answers of the daemons asked: all at once, or one.
    fn ask(&mut self, now: Time, asked: &[usize], request: &LotteryRequest) -> Vec<LotteryAnswer> {
        let from = client((request.id % 200) as usize);
        let mut answers = Vec::new();
        for who in asked {
            self.daemons[*who].handle(now, from, LotteryMessage::Request(request.clone()));
            for (to, message) in sent(&mut self.daemons[*who]) {
                match message {
                    LotteryMessage::Answer(answer) if to == MessageTarget::Address(from) => {
                        answers.push(answer)
                    }
                    other => assert!(matches!(other, LotteryMessage::Commit(_)), "{other:?}"),
                }
            }
        }
        answers
    }
}

/// Returns how often each member is named for a service.
fn named(cluster: &mut Cluster, service: u32, mode: AnswerMode) -> BTreeMap<u16, usize> {
    let mut named = BTreeMap::new();
    for turn in 0..6000_u64 {
        let id = mix(turn ^ u64::from(service) << 40);
        // A referral by each of them in turn, whether it has the service or not.
        let asked = if mode == AnswerMode::Referral { vec![(turn % 3) as usize] } else { vec![0, 1, 2] };
        let answers = cluster.ask(millis(20_050), &asked, &LotteryRequest { service, ..request(id, mode) });
        assert_eq!(answers.len(), 1, "{mode:?} {service}: one answers");
        let answer = &answers[0];
        let who = usize::from(answer.member) - 1;
        assert_eq!((answer.status, answer.endpoint), (AnswerStatus::Ok, Some(endpoint(who))));
        assert!(
            answer.fallbacks.iter().all(|further| further.member != answer.member
                && HOSTS[usize::from(further.member) - 1].iter().any(|(has, _)| *has == service)),
            "whoever comes next has it, too: {:?}",
            answer.fallbacks
        );
        *named.entry(answer.member).or_default() += 1;
    }
    named
}

#[test]
fn each_service_goes_to_hosts_that_have_it_by_their_capacities() {
    for mode in [AnswerMode::Referral, AnswerMode::Lottery] {
        for service in [WEB, MAIL, NEWS] {
            let named = named(&mut Cluster::up(), service, mode);
            let capacity =
                |who: usize| HOSTS[who].iter().find(|(has, _)| *has == service).map(|(_, all)| *all);
            let whole: u16 = (0..HOSTS.len()).filter_map(capacity).sum();
            for who in 0..HOSTS.len() {
                let share = named.get(&(who as u16 + 1)).copied().unwrap_or_default() as f64 / 6000.0;
                let fair = capacity(who).map_or(0.0, |own| f64::from(own) / f64::from(whole));
                // Three standard deviations of a share of 6000.
                let most = 3.0 * (fair * (1.0 - fair) / 6000.0).sqrt();
                assert!((share - fair).abs() <= most, "{mode:?} {service}: {share} of {fair} to {who}");
            }
        }
    }
}

#[test]
fn of_a_host_one_service_may_be_held() {
    let mut cluster = Cluster::up();
    // The second host's web gets no client any more, and its mail goes on.
    assert!(cluster.daemons[1].hold(millis(20_050), WEB, true));
    assert!(!cluster.daemons[1].hold(millis(20_050), NEWS, true), "it has none");
    cluster.until(millis(20_050), millis(20_400));
    let who = |cluster: &mut Cluster, service, id| {
        let answers = cluster.ask(
            millis(20_401),
            &[(id % 3) as usize],
            &LotteryRequest { service, ..request(mix(id), AnswerMode::Referral) },
        );
        answers[0].member
    };
    assert!((0..300).all(|id| who(&mut cluster, WEB, id) == 1));
    assert!((300..600).any(|id| who(&mut cluster, MAIL, id) == 2));
    // Another capacity does not change that.
    let mut changed = cluster.daemons[1].clone();
    let mut offers = listed(1).offers;
    offers[0].capacity = 400;
    let key = SipHashKey::new([3; 16]);
    let change = NodeConfigChange { offers, key, ttl: 0, slow_start: RAMP, rate: 0, burst: 0 };
    assert!(changed.apply_change(millis(20_402), change, 2));
    let view = changed.view(millis(20_402));
    assert_eq!(
        (view.services[0].held, view.services[0].share.capacity, view.services[0].share.weight),
        (true, 400, 0)
    );
    // It comes back slowly.
    cluster.daemons[1].hold(millis(20_402), WEB, false);
    cluster.until(millis(20_402), millis(20_700));
    let back = (1000..2000).filter(|id| who(&mut cluster, WEB, *id) == 2).count();
    assert!((1..400).contains(&back), "{back} of 750 that are its share");
    let view = cluster.daemons[1].view(millis(20_700));
    assert!(view.services.iter().all(|own| own.ready && !own.held));
}
