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
        reply_to: MessageTarget,
        request: &LotteryRequest,
    ) {
        if !self.source_limits.admit(now, from.ip(), 1) {
            self.statistics.rate_limited += 1;
            return;
        }
        if self.state == NodeState::Leaving {
            return;
        }
        let LotteryRequest { id, service, attempt, mode, client_time, max_answer_bytes: max_bytes, .. } =
            *request;
        let context = RequestContext { reply_to, id, service, attempt, mode, client_time, max_bytes };
        self.fanout.record_answer();
        if mode == AnswerMode::Lottery && attempt == 0 {
            self.fanout.record_ask_all(now);
        }
        if self.repeat_answer(now, &context, &request.avoid) {
            return;
        }
        match mode {
            AnswerMode::Referral if self.is_stale(now) => self.statistics.deferred_by_lag += 1,
            AnswerMode::Referral => {
                // It may wait on the ladder from an earlier attempt.
                self.remove_pending(id);
                self.answer_by_referral(now, &context, &request.avoid);
            }
            AnswerMode::Lottery if self.pending.contains_key(&id) => {}
            AnswerMode::Lottery => self.answer_by_lottery(now, &context, &request.avoid),
        }
    }

    /// Returns `true` if the present message is so old that the client has asked another daemon, if there is
    /// one.
    fn is_stale(&self, now: Time) -> bool {
        let (noted_at, lag) = self.last_lag;
        let read_until = self.read_until(now);
        noted_at == now
            && lag >= STALE_AFTER
            && self.table.peer_ids().any(|member| !self.table.is_suspect(member, read_until))
    }

    /// Repeats its earlier answer, if there is one and it still holds.
    fn repeat_answer(&mut self, now: Time, context: &RequestContext, avoid: &[u16]) -> bool {
        let Some(record) = self.dedup.find(now, context.id) else { return false };
        let Some(content) = record.answer else { return false };
        let is_retry = context.attempt > record.attempt;
        let still_valid = content.status == AnswerStatus::Ok
            && !avoid.contains(&content.member)
            && self.table.is_candidate(content.member, context.service);
        if !still_valid {
            record.answer = None;
            return false;
        }
        record.attempt = record.attempt.max(context.attempt);
        self.statistics.repeated += 1;
        self.send_answer(context, &content);
        if is_retry && context.mode == AnswerMode::Lottery {
            // Otherwise the others would consider it gone.
            let ranking = self.draw_candidates(now, context, avoid).ranking;
            self.commit_answer(now, context.id, ranking);
        }
        true
    }

    fn answer_by_referral(&mut self, now: Time, context: &RequestContext, avoid: &[u16]) {
        let draw = self.draw_candidates(now, context, avoid);
        if self.state == NodeState::Joining && draw.status != AnswerStatus::Ok {
            // It does not know the members yet. The client asks another daemon, and comes back if that is
            // silent, too.
            return;
        }
        let own_member = self.config.member;
        let read_until = self.read_until(now);
        let first_alive = draw
            .ranking
            .candidates()
            .iter()
            .position(|candidate| !self.table.is_suspect(candidate.member, read_until));
        let mut position = first_alive.unwrap_or(0);
        // A member that has answered it already keeps it, whatever has changed since.
        let committed_by = self.dedup.find(now, context.id).and_then(|record| record.committed_by());
        if let Some(rank) = committed_by.and_then(|(committer, _)| {
            draw.ranking.rank(committer).filter(|_| !self.table.is_suspect(committer, read_until))
        }) {
            position = rank;
        }
        // Without a member the answer is this daemon's own.
        let member = match draw.status {
            AnswerStatus::Ok => {
                draw.ranking.candidates().get(position).map_or(own_member, |candidate| candidate.member)
            }
            _ => own_member,
        };
        let content = answer_content(&draw, member, position);
        let record = self.dedup.find_or_insert(now, context.id);
        record.attempt = record.attempt.max(context.attempt);
        record.answer = Some(content);
        let counter = if content.status == AnswerStatus::Ok {
            &mut self.statistics.referred
        } else {
            &mut self.statistics.turned_away
        };
        *counter += 1;
        self.send_answer(context, &content);
    }

    /// Handles a request on the ladder: answers at once, later, or not.
    fn answer_by_lottery(&mut self, now: Time, context: &RequestContext, avoid: &[u16]) {
        if self.state == NodeState::Joining {
            return;
        }
        let draw = self.draw_candidates(now, context, avoid);
        let own_member = self.config.member;
        let Some(rank) = draw.ranking.rank(own_member) else { return };
        let candidates = draw.ranking.candidates();
        let step = self.commit_delays.step();
        let is_new = self.dedup.find(now, context.id).is_none();
        let record = self.dedup.find_or_insert(now, context.id);
        let committed_by = record.committed_by();
        if let Some((_, committed_at)) = committed_by
            && (context.attempt <= record.attempt || now.since(committed_at) < 2 * step)
        {
            return;
        }
        record.attempt = record.attempt.max(context.attempt);
        if is_new {
            record.set_expected(candidates.first().map(|candidate| candidate.member));
        }
        let responders =
            if context.attempt >= WIDE_ATTEMPT { candidates.len() } else { self.config.responders };
        if rank >= responders {
            return;
        }
        let read_until = self.read_until(now);
        let is_awaited = |member: u16| member != own_member && !self.table.is_suspect(member, read_until);
        let mut awaited_before =
            candidates[..rank].iter().filter(|candidate| is_awaited(candidate.member)).count() as u32;
        // A daemon that answered before does so again.
        if let Some((committer, _)) = committed_by
            && self.table.is_candidate(committer, context.service)
            && draw.ranking.rank(committer).is_none_or(|committer_rank| committer_rank > rank)
            && is_awaited(committer)
        {
            awaited_before += 1;
        }
        let mut wait = step * awaited_before;
        let awaited_responders =
            candidates.iter().take(responders).filter(|candidate| is_awaited(candidate.member)).count();
        if awaited_responders > 0 && now < self.away_until && context.attempt == 0 {
            // Those that consider it dead have answered, and send it no commits.
            self.statistics.deferred_by_lag += 1;
            return;
        }
        if awaited_responders > 0 && self.lag.exceeds_step(now, step) {
            self.statistics.deferred_by_lag += 1;
            wait = step * (responders as u32 + 1);
            if self.lag.current(now) >= wait {
                // Each of them has had its turn. Those that consider this daemon dead send it no commits.
                return;
            }
        }
        if wait.is_zero() {
            self.answer_as_self(now, context, &draw);
        } else {
            self.defer(now + wait, context, &draw);
        }
    }

    fn defer(&mut self, due: Time, context: &RequestContext, draw: &DrawResult) {
        if self.pending.len() >= MAX_QUEUE {
            self.statistics.dropped += 1;
            return;
        }
        self.due.insert((due, context.id));
        self.pending
            .insert(context.id, PendingRequest { due, request: *context, draw: *draw, was_late: false });
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
            let PendingRequest { request: context, draw, .. } = *pending;
            self.pending.remove(&id);
            self.answer_as_self(now, &context, &draw);
        }
    }

    /// Removes an answered request from those that wait.
    pub(super) fn remove_pending(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.due.remove(&(pending.due, id));
        }
    }

    /// Answers for this member.
    fn answer_as_self(&mut self, now: Time, context: &RequestContext, draw: &DrawResult) {
        let own_member = self.config.member;
        let Some(rank) = draw.ranking.rank(own_member) else { return };
        // It may have begun to drain while it waited.
        if draw.status == AnswerStatus::Ok && !self.table.is_candidate(own_member, context.service) {
            return;
        }
        let content = answer_content(draw, own_member, rank);
        self.dedup.find_or_insert(now, context.id).answer = Some(content);
        if content.status == AnswerStatus::Ok {
            self.statistics.won += 1;
            self.statistics.stood_in += u64::from(rank > 0);
        } else {
            self.statistics.turned_away += 1;
        }
        self.send_answer(context, &content);
        self.commit_answer(now, context.id, draw.ranking);
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

    fn draw_candidates(&self, now: Time, context: &RequestContext, avoid: &[u16]) -> DrawResult {
        let RequestContext { id, service, .. } = *context;
        let key = &self.config.key;
        let candidates = self.table.candidates(service).iter().copied();
        let mut k = self.config.candidates;
        let mut ranking = match avoid {
            [] if context.attempt < WIDE_ATTEMPT => rank(key, id, service, candidates.clone(), k),
            _ if context.attempt < WIDE_ATTEMPT => rank(
                key,
                id,
                service,
                candidates.clone().filter(|candidate| !avoid.contains(&candidate.member)),
                k,
            ),
            // Twice without an answer: perhaps those few are all dead. More take part, and no suspects.
            _ => {
                k = CANDIDATES;
                let is_usable = |candidate: &DrawCandidate| {
                    !avoid.contains(&candidate.member)
                        && !self.table.is_suspect(candidate.member, self.read_until(now))
                };
                rank(key, id, service, candidates.clone().filter(is_usable), k)
            }
        };
        if ranking.candidates().is_empty() {
            // An avoided member is better than none.
            ranking = rank(key, id, service, candidates, k);
        }
        if !ranking.candidates().is_empty() {
            return DrawResult { status: AnswerStatus::Ok, ranking };
        }
        let is_leaving =
            |state: &Option<NodeState>| matches!(state, Some(NodeState::Draining | NodeState::Leaving));
        let states: Vec<_> = self.table.states(service).collect();
        let status = match states.as_slice() {
            [] => AnswerStatus::UnknownService,
            states if states.iter().all(is_leaving) => AnswerStatus::Draining,
            _ => AnswerStatus::Busy,
        };
        DrawResult { status, ranking: rank(key, id, service, self.table.fallback_responders(), k) }
    }

    fn send_answer(&mut self, context: &RequestContext, content: &AnswerContent) {
        let offer =
            self.table.offer(content.member, context.service).filter(|_| content.status == AnswerStatus::Ok);
        let no_info: &[u8] = &[];
        let (endpoint, info) = offer
            .map_or_else(|| (None, Arc::from(no_info)), |offer| (Some(offer.endpoint), offer.info.clone()));
        // A member that the table does not describe any more is not drawn any more either.
        if content.status == AnswerStatus::Ok && endpoint.is_none() {
            return;
        }
        let fallback_members = content.fallbacks.iter().take(usize::from(content.count));
        let fallback_members =
            fallback_members.filter(|member| self.table.is_candidate(**member, context.service));
        let fallback = |member: &u16| {
            let endpoint = self.table.offer(*member, context.service)?.endpoint;
            Some(FallbackMember { member: *member, endpoint })
        };
        let answer = LotteryAnswer {
            id: context.id,
            service: context.service,
            status: content.status,
            rank: content.rank,
            ttl: if content.status == AnswerStatus::Ok { self.config.ttl } else { 0 },
            member: content.member,
            endpoint,
            client_time: context.client_time,
            generation: self.table.generation,
            info,
            fallbacks: fallback_members.filter_map(fallback).collect(),
            max_bytes: context.max_bytes,
        };
        self.send(context.reply_to, LotteryMessage::Answer(answer));
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

fn answer_content(draw: &DrawResult, member: u16, position: usize) -> AnswerContent {
    let mut fallbacks = [0; MAX_FALLBACKS];
    let mut count = 0;
    if draw.status == AnswerStatus::Ok {
        let other_candidates = draw.ranking.candidates().iter().filter(|other| other.member != member);
        for (slot, other) in fallbacks.iter_mut().zip(other_candidates) {
            *slot = other.member;
            count += 1;
        }
    }
    AnswerContent { status: draw.status, rank: position as u8, member, fallbacks, count }
}
