//! Requests: the winner, the daemon that answers, and the time.
//!
//! *Referral*: the daemon asked runs the lottery over its own information and answers for the winner,
//! skipping suspects. *Lottery*: all were asked. The winner answers at once and commits; rank r answers after
//! r steps unless it has got a commit.
//!
//! A daemon that lags by most of a step assumes that the others have taken its place: it answers last
//! (Lifeguard's idea: a slow node distrusts itself first; Dadgar, Phillips, Currey, 2017). Without this, one
//! of ten that stalls for 0.3 s in each second causes 1.8 % duplicates, with it 0.1 %.
//!
//! A daemon whose stop was long enough that others may consider it dead leaves first attempts to them for a
//! while. They send it no commits, and each of its answers would be a second one. It answers later attempts,
//! as all may have been stopped.
//!
//! It does not consider others silent while their messages wait to be read: a daemon that was stopped for two
//! seconds would otherwise find itself alone, and take everything.
//!
//! Winners by a small margin answer at once, too. A wait, in case another daemon with a later report sees the
//! opposite order, is not worth its delay: 0.12 % duplicates without, 0.10 % with it.
//!
//! A repeated request gets the same answer from the daemon that answered, as long as the named member is
//! present.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::{CommitRepeat, LotteryNode, MAX_QUEUE, PendingRequest};
use crate::Time;
use crate::lottery::dedup::AnswerContent;
use crate::lottery::draw::{CANDIDATES, CandidateRanking, DrawCandidate, rank};
use crate::lottery::message::{
    AnswerMode, AnswerStatus, FallbackMember, LotteryAnswer, LotteryMessage, LotteryRequest, MAX_FALLBACKS,
    MessageTarget, NodeState,
};

/// The parts of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext {
    /// The destination of the answer.
    reply_to: MessageTarget,
    id: u64,
    service: u32,
    attempt: u8,
    mode: AnswerMode,
    client_time: u32,
    max_bytes: u16,
}

/// The result of the draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawResult {
    status: AnswerStatus,
    ranking: CandidateRanking,
}

impl LotteryNode {
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        from: SocketAddr,
        back: MessageTarget,
        request: &LotteryRequest,
    ) {
        if !self.source_limits.admit(now, from.ip(), 1) {
            self.statistics.rate_limited += 1;
            return;
        }
        if self.state == NodeState::Leaving {
            return;
        }
        let LotteryRequest { id, service, attempt, mode, client_time, max_answer_bytes: room, .. } = *request;
        let asked =
            RequestContext { reply_to: back, id, service, attempt, mode, client_time, max_bytes: room };
        self.fanout.record_answer();
        if mode == AnswerMode::Lottery && attempt == 0 {
            self.fanout.record_ask_all(now);
        }
        if self.repeat_answer(now, &asked, &request.avoid) {
            return;
        }
        match mode {
            AnswerMode::Referral if self.is_stale(now) => self.statistics.deferred_by_lag += 1,
            AnswerMode::Referral => {
                // It may wait on the ladder from an earlier attempt.
                self.remove_pending(id);
                self.answer_by_referral(now, &asked, &request.avoid);
            }
            AnswerMode::Lottery if self.pending.contains_key(&id) => {}
            AnswerMode::Lottery => self.answer_by_lottery(now, &asked, &request.avoid),
        }
    }

    /// Returns `true` if the present message is so old that the client has asked another daemon, if there is
    /// one.
    fn is_stale(&self, now: Time) -> bool {
        let (at, waited) = self.last_lag;
        let read = self.read_until(now);
        at == now
            && waited >= STALE_AFTER
            && self.table.peer_ids().any(|member| !self.table.is_suspect(member, read))
    }

    /// Repeats its earlier answer, if there is one and it still holds.
    fn repeat_answer(&mut self, now: Time, asked: &RequestContext, avoid: &[u16]) -> bool {
        let Some(record) = self.dedup.find(now, asked.id) else { return false };
        let Some(said) = record.answer else { return false };
        let again = asked.attempt > record.attempt;
        let holds = said.status == AnswerStatus::Ok
            && !avoid.contains(&said.member)
            && self.table.is_candidate(said.member, asked.service);
        if !holds {
            record.answer = None;
            return false;
        }
        record.attempt = record.attempt.max(asked.attempt);
        self.statistics.repeated += 1;
        self.send_answer(asked, &said);
        if again && asked.mode == AnswerMode::Lottery {
            // Otherwise the others would consider it gone.
            let ranking = self.draw_candidates(now, asked, avoid).ranking;
            self.commit_answer(now, asked.id, ranking);
        }
        true
    }

    fn answer_by_referral(&mut self, now: Time, asked: &RequestContext, avoid: &[u16]) {
        let drawn = self.draw_candidates(now, asked, avoid);
        if self.state == NodeState::Joining && drawn.status != AnswerStatus::Ok {
            // It does not know the members yet. The client asks another daemon, and comes back if that is
            // silent, too.
            return;
        }
        let me = self.config.member;
        let read = self.read_until(now);
        let place =
            drawn.ranking.candidates().iter().position(|place| !self.table.is_suspect(place.member, read));
        let mut place = place.unwrap_or(0);
        // A member that has answered it already keeps it, whatever has changed since.
        let by = self.dedup.find(now, asked.id).and_then(|record| record.committed_by());
        if let Some(rank) =
            by.and_then(|(by, _)| drawn.ranking.rank(by).filter(|_| !self.table.is_suspect(by, read)))
        {
            place = rank;
        }
        // Without a member the answer is this daemon's own.
        let member = match drawn.status {
            AnswerStatus::Ok => drawn.ranking.candidates().get(place).map_or(me, |place| place.member),
            _ => me,
        };
        let said = answer_content(&drawn, member, place);
        let record = self.dedup.find_or_insert(now, asked.id);
        record.attempt = record.attempt.max(asked.attempt);
        record.answer = Some(said);
        let count = if said.status == AnswerStatus::Ok {
            &mut self.statistics.referred
        } else {
            &mut self.statistics.turned_away
        };
        *count += 1;
        self.send_answer(asked, &said);
    }

    /// Handles a request on the ladder: answers at once, later, or not.
    fn answer_by_lottery(&mut self, now: Time, asked: &RequestContext, avoid: &[u16]) {
        if self.state == NodeState::Joining {
            return;
        }
        let drawn = self.draw_candidates(now, asked, avoid);
        let me = self.config.member;
        let Some(rank) = drawn.ranking.rank(me) else { return };
        let places = drawn.ranking.candidates();
        let step = self.commit_delays.step();
        let fresh = self.dedup.find(now, asked.id).is_none();
        let record = self.dedup.find_or_insert(now, asked.id);
        let by = record.committed_by();
        if let Some((_, when)) = by
            && (asked.attempt <= record.attempt || now.since(when) < 2 * step)
        {
            return;
        }
        record.attempt = record.attempt.max(asked.attempt);
        if fresh {
            record.set_expected(places.first().map(|place| place.member));
        }
        let responders = if asked.attempt >= WIDE_ATTEMPT { places.len() } else { self.config.responders };
        if rank >= responders {
            return;
        }
        let read = self.read_until(now);
        let waited_for = |member: u16| member != me && !self.table.is_suspect(member, read);
        let mut before = places[..rank].iter().filter(|place| waited_for(place.member)).count() as u32;
        // A daemon that answered before does so again.
        if let Some((by, _)) = by
            && self.table.is_candidate(by, asked.service)
            && drawn.ranking.rank(by).is_none_or(|other| other > rank)
            && waited_for(by)
        {
            before += 1;
        }
        let mut wait = step * before;
        let others = places.iter().take(responders).filter(|place| waited_for(place.member)).count();
        if others > 0 && now < self.away_until && asked.attempt == 0 {
            // Those that consider it dead have answered, and send it no commits.
            self.statistics.deferred_by_lag += 1;
            return;
        }
        if others > 0 && self.lag.exceeds_step(now, step) {
            self.statistics.deferred_by_lag += 1;
            wait = step * (responders as u32 + 1);
            if self.lag.current(now) >= wait {
                // Each of them has had its turn. Those that consider this daemon dead send it no commits.
                return;
            }
        }
        if wait.is_zero() {
            self.answer_as_self(now, asked, &drawn);
        } else {
            self.defer(now + wait, asked, &drawn);
        }
    }

    fn defer(&mut self, due: Time, asked: &RequestContext, drawn: &DrawResult) {
        if self.pending.len() >= MAX_QUEUE {
            self.statistics.dropped += 1;
            return;
        }
        self.due.insert((due, asked.id));
        self.pending.insert(asked.id, PendingRequest { due, request: *asked, draw: *drawn, was_late: false });
    }

    /// Answers the requests whose time has come.
    pub(super) fn answer_deferred(&mut self, now: Time) {
        let step = self.commit_delays.step();
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.pop_first();
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            if !pending.was_late && now.since(due) >= step * 3 / 4 {
                // This daemon was stopped. The commit may be among its unread messages.
                *pending = PendingRequest { due: now + step, was_late: true, ..*pending };
                self.due.insert((pending.due, id));
                continue;
            }
            let PendingRequest { request: asked, draw: drawn, .. } = *pending;
            self.pending.remove(&id);
            self.answer_as_self(now, &asked, &drawn);
        }
    }

    /// Removes an answered request from those that wait.
    pub(super) fn remove_pending(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.due.remove(&(pending.due, id));
        }
    }

    /// Answers for this member.
    fn answer_as_self(&mut self, now: Time, asked: &RequestContext, drawn: &DrawResult) {
        let me = self.config.member;
        let Some(rank) = drawn.ranking.rank(me) else { return };
        // It may have begun to drain while it waited.
        if drawn.status == AnswerStatus::Ok && !self.table.is_candidate(me, asked.service) {
            return;
        }
        let said = answer_content(drawn, me, rank);
        self.dedup.find_or_insert(now, asked.id).answer = Some(said);
        if said.status == AnswerStatus::Ok {
            self.statistics.won += 1;
            self.statistics.stood_in += u64::from(rank > 0);
        } else {
            self.statistics.turned_away += 1;
        }
        self.send_answer(asked, &said);
        self.commit_answer(now, asked.id, drawn.ranking);
    }

    /// Commits: now, again before the next in rank would answer, and in the next reports.
    fn commit_answer(&mut self, now: Time, id: u64, others: CandidateRanking) {
        self.queue_commits(id, &others);
        if self.repeats.len() < MAX_QUEUE {
            self.repeats.push_back(CommitRepeat { due: now + COMMIT_REPEAT_DELAY, id, others });
        } else {
            self.statistics.dropped += 1;
        }
        self.list_answered(id);
    }

    fn draw_candidates(&self, now: Time, asked: &RequestContext, avoid: &[u16]) -> DrawResult {
        let RequestContext { id, service, .. } = *asked;
        let key = &self.config.key;
        let drum = self.table.candidates(service).iter().copied();
        let mut k = self.config.candidates;
        let mut ranking = match avoid {
            [] if asked.attempt < WIDE_ATTEMPT => rank(key, id, service, drum.clone(), k),
            _ if asked.attempt < WIDE_ATTEMPT => {
                rank(key, id, service, drum.clone().filter(|entrant| !avoid.contains(&entrant.member)), k)
            }
            // Twice without an answer: perhaps those few are all dead. More take part, and no suspects.
            _ => {
                k = CANDIDATES;
                let may = |entrant: &DrawCandidate| {
                    !avoid.contains(&entrant.member)
                        && !self.table.is_suspect(entrant.member, self.read_until(now))
                };
                rank(key, id, service, drum.clone().filter(may), k)
            }
        };
        if ranking.candidates().is_empty() {
            // An avoided member is better than none.
            ranking = rank(key, id, service, drum, k);
        }
        if !ranking.candidates().is_empty() {
            return DrawResult { status: AnswerStatus::Ok, ranking };
        }
        let going =
            |state: &Option<NodeState>| matches!(state, Some(NodeState::Draining | NodeState::Leaving));
        let states: Vec<_> = self.table.states(service).collect();
        let status = match states.as_slice() {
            [] => AnswerStatus::UnknownService,
            states if states.iter().all(going) => AnswerStatus::Draining,
            _ => AnswerStatus::Busy,
        };
        DrawResult { status, ranking: rank(key, id, service, self.table.fallback_responders(), k) }
    }

    fn send_answer(&mut self, asked: &RequestContext, said: &AnswerContent) {
        let offer = self.table.offer(said.member, asked.service).filter(|_| said.status == AnswerStatus::Ok);
        let none: &[u8] = &[];
        let (endpoint, info) =
            offer.map_or_else(|| (None, Arc::from(none)), |offer| (Some(offer.endpoint), offer.info.clone()));
        // A member that the table does not describe any more is not drawn any more either.
        if said.status == AnswerStatus::Ok && endpoint.is_none() {
            return;
        }
        let further = said.further.iter().take(usize::from(said.count));
        let further = further.filter(|member| self.table.is_candidate(**member, asked.service));
        let endpoint_of = |member: &u16| {
            let endpoint = self.table.offer(*member, asked.service)?.endpoint;
            Some(FallbackMember { member: *member, endpoint })
        };
        let answer = LotteryAnswer {
            id: asked.id,
            service: asked.service,
            status: said.status,
            rank: said.rank,
            ttl: if said.status == AnswerStatus::Ok { self.config.ttl } else { 0 },
            member: said.member,
            endpoint,
            client_time: asked.client_time,
            generation: self.table.generation,
            info,
            fallbacks: further.filter_map(endpoint_of).collect(),
            max_bytes: asked.max_bytes,
        };
        self.send(asked.reply_to, LotteryMessage::Answer(answer));
    }

    /// Records the delay of a commit, from which the step follows.
    pub(super) fn record_commit_delay(&mut self, delay: Duration) {
        self.commit_delays.record(delay);
    }
}

/// The time from a commit to its repetition: two fifths of the least step, as the next in rank may know of
/// smaller delays than this daemon. (At two fifths of this daemon's own step, a third of the duplicates among
/// 100 daemons came from that.)
const COMMIT_REPEAT_DELAY: Duration = Duration::from_micros(1600);

/// The wait after which a request is stale. Near clients ask another after 40 ms without an answer, so a
/// later answer would be a second one.
const STALE_AFTER: Duration = Duration::from_millis(100);

/// The attempt from which more members take part.
const WIDE_ATTEMPT: u8 = 2;

fn answer_content(drawn: &DrawResult, member: u16, place: usize) -> AnswerContent {
    let mut further = [0; MAX_FALLBACKS];
    let mut count = 0;
    if drawn.status == AnswerStatus::Ok {
        let after = drawn.ranking.candidates().iter().filter(|other| other.member != member);
        for (slot, other) in further.iter_mut().zip(after) {
            *slot = other.member;
            count += 1;
        }
    }
    AnswerContent { status: drawn.status, rank: place as u8, member, further, count }
}
