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

use super::{Daemon, Pending, QUEUE, Repeat};
use crate::Time;
use crate::lottery::draw::{CANDIDATES, Entrant, Ranking, rank};
use crate::lottery::memory::Said;
use crate::lottery::message::{Answer, FURTHER, Further, Message, Mode, Request, Standing, Status, To};

/// The parts of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The destination of the answer.
    back: To,
    id: u64,
    service: u32,
    attempt: u8,
    mode: Mode,
    client_time: u32,
    room: u16,
}

/// The result of the draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    status: Status,
    ranking: Ranking,
}

impl Daemon {
    pub(super) fn requested(&mut self, now: Time, from: SocketAddr, back: To, request: &Request) {
        if !self.sources.admit(now, from.ip(), 1) {
            self.statistics.limited += 1;
            return;
        }
        if self.state == Standing::Leaving {
            return;
        }
        let Request { id, service, attempt, mode, client_time, room, .. } = *request;
        let asked = Asked { back, id, service, attempt, mode, client_time, room };
        self.spread.answered();
        if mode == Mode::Lottery && attempt == 0 {
            self.spread.climbed(now);
        }
        if self.repeat(now, &asked, &request.avoid) {
            return;
        }
        match mode {
            Mode::Referral if self.stale(now) => self.statistics.doubted += 1,
            Mode::Referral => {
                // It may wait on the ladder from an earlier attempt.
                self.settle(id);
                self.refer(now, &asked, &request.avoid);
            }
            Mode::Lottery if self.pending.contains_key(&id) => {}
            Mode::Lottery => self.climb(now, &asked, &request.avoid),
        }
    }

    /// Returns `true` if the present message is so old that the client has asked another daemon, if there is
    /// one.
    fn stale(&self, now: Time) -> bool {
        let (at, waited) = self.waited;
        let read = self.read(now);
        at == now && waited >= LATE && self.table.others().any(|member| !self.table.suspect(member, read))
    }

    /// Repeats its earlier answer, if there is one and it still holds.
    fn repeat(&mut self, now: Time, asked: &Asked, avoid: &[u16]) -> bool {
        let Some(record) = self.memory.find(now, asked.id) else { return false };
        let Some(said) = record.said else { return false };
        let again = asked.attempt > record.attempt;
        let holds = said.status == Status::Ok
            && !avoid.contains(&said.member)
            && self.table.draws(said.member, asked.service);
        if !holds {
            record.said = None;
            return false;
        }
        record.attempt = record.attempt.max(asked.attempt);
        self.statistics.repeated += 1;
        self.answer(asked, &said);
        if again && asked.mode == Mode::Lottery {
            // Otherwise the others would consider it gone.
            let ranking = self.draw(now, asked, avoid).ranking;
            self.promise(now, asked.id, ranking);
        }
        true
    }

    fn refer(&mut self, now: Time, asked: &Asked, avoid: &[u16]) {
        let drawn = self.draw(now, asked, avoid);
        if self.state == Standing::Joining && drawn.status != Status::Ok {
            // It does not know the members yet. The client asks another daemon, and comes back if that is
            // silent, too.
            return;
        }
        let me = self.config.member;
        let read = self.read(now);
        let place = drawn.ranking.places().iter().position(|place| !self.table.suspect(place.member, read));
        let mut place = place.unwrap_or(0);
        // A member that has answered it already keeps it, whatever has changed since.
        let by = self.memory.find(now, asked.id).and_then(|record| record.by());
        if let Some(rank) =
            by.and_then(|(by, _)| drawn.ranking.rank(by).filter(|_| !self.table.suspect(by, read)))
        {
            place = rank;
        }
        // Without a member the answer is this daemon's own.
        let member = match drawn.status {
            Status::Ok => drawn.ranking.places().get(place).map_or(me, |place| place.member),
            _ => me,
        };
        let said = said(&drawn, member, place);
        let record = self.memory.enter(now, asked.id);
        record.attempt = record.attempt.max(asked.attempt);
        record.said = Some(said);
        let count = if said.status == Status::Ok {
            &mut self.statistics.referred
        } else {
            &mut self.statistics.turned_away
        };
        *count += 1;
        self.answer(asked, &said);
    }

    /// Handles a request on the ladder: answers at once, later, or not.
    fn climb(&mut self, now: Time, asked: &Asked, avoid: &[u16]) {
        if self.state == Standing::Joining {
            return;
        }
        let drawn = self.draw(now, asked, avoid);
        let me = self.config.member;
        let Some(rank) = drawn.ranking.rank(me) else { return };
        let places = drawn.ranking.places();
        let step = self.delays.step();
        let fresh = self.memory.find(now, asked.id).is_none();
        let record = self.memory.enter(now, asked.id);
        let by = record.by();
        if let Some((_, when)) = by
            && (asked.attempt <= record.attempt || now.since(when) < 2 * step)
        {
            return;
        }
        record.attempt = record.attempt.max(asked.attempt);
        if fresh {
            record.expect(places.first().map(|place| place.member));
        }
        let responders = if asked.attempt >= WIDER { places.len() } else { self.config.responders };
        if rank >= responders {
            return;
        }
        let read = self.read(now);
        let waited_for = |member: u16| member != me && !self.table.suspect(member, read);
        let mut before = places[..rank].iter().filter(|place| waited_for(place.member)).count() as u32;
        // A daemon that answered before does so again.
        if let Some((by, _)) = by
            && self.table.draws(by, asked.service)
            && drawn.ranking.rank(by).is_none_or(|other| other > rank)
            && waited_for(by)
        {
            before += 1;
        }
        let mut wait = step * before;
        let others = places.iter().take(responders).filter(|place| waited_for(place.member)).count();
        if others > 0 && now < self.away && asked.attempt == 0 {
            // Those that consider it dead have answered, and send it no commits.
            self.statistics.doubted += 1;
            return;
        }
        if others > 0 && self.lag.doubtful(now, step) {
            self.statistics.doubted += 1;
            wait = step * (responders as u32 + 1);
            if self.lag.now(now) >= wait {
                // Each of them has had its turn. Those that consider this daemon dead send it no commits.
                return;
            }
        }
        if wait.is_zero() {
            self.win(now, asked, &drawn);
        } else {
            self.wait(now + wait, asked, &drawn);
        }
    }

    fn wait(&mut self, due: Time, asked: &Asked, drawn: &Drawn) {
        if self.pending.len() >= QUEUE {
            self.statistics.dropped += 1;
            return;
        }
        self.due.insert((due, asked.id));
        self.pending.insert(asked.id, Pending { due, asked: *asked, drawn: *drawn, late: false });
    }

    /// Answers the requests whose time has come.
    pub(super) fn climbed(&mut self, now: Time) {
        let step = self.delays.step();
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.pop_first();
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            if !pending.late && now.since(due) >= step * 3 / 4 {
                // This daemon was stopped. The commit may be among its unread messages.
                *pending = Pending { due: now + step, late: true, ..*pending };
                self.due.insert((pending.due, id));
                continue;
            }
            let Pending { asked, drawn, .. } = *pending;
            self.pending.remove(&id);
            self.win(now, &asked, &drawn);
        }
    }

    /// Removes an answered request from those that wait.
    pub(super) fn settle(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.due.remove(&(pending.due, id));
        }
    }

    /// Answers for this member.
    fn win(&mut self, now: Time, asked: &Asked, drawn: &Drawn) {
        let me = self.config.member;
        let Some(rank) = drawn.ranking.rank(me) else { return };
        // It may have begun to drain while it waited.
        if drawn.status == Status::Ok && !self.table.draws(me, asked.service) {
            return;
        }
        let said = said(drawn, me, rank);
        self.memory.enter(now, asked.id).said = Some(said);
        if said.status == Status::Ok {
            self.statistics.won += 1;
            self.statistics.stood_in += u64::from(rank > 0);
        } else {
            self.statistics.turned_away += 1;
        }
        self.answer(asked, &said);
        self.promise(now, asked.id, drawn.ranking);
    }

    /// Commits: now, again before the next in rank would answer, and in the next reports.
    fn promise(&mut self, now: Time, id: u64, others: Ranking) {
        self.commit(id, &others);
        if self.repeats.len() < QUEUE {
            self.repeats.push_back(Repeat { due: now + AGAIN, id, others });
        } else {
            self.statistics.dropped += 1;
        }
        self.remember(id);
    }

    fn draw(&self, now: Time, asked: &Asked, avoid: &[u16]) -> Drawn {
        let Asked { id, service, .. } = *asked;
        let key = &self.config.key;
        let drum = self.table.drum(service).iter().copied();
        let mut k = self.config.candidates;
        let mut ranking = match avoid {
            [] if asked.attempt < WIDER => rank(key, id, service, drum.clone(), k),
            _ if asked.attempt < WIDER => {
                rank(key, id, service, drum.clone().filter(|entrant| !avoid.contains(&entrant.member)), k)
            }
            // Twice without an answer: perhaps those few are all dead. More take part, and no suspects.
            _ => {
                k = CANDIDATES;
                let may = |entrant: &Entrant| {
                    !avoid.contains(&entrant.member) && !self.table.suspect(entrant.member, self.read(now))
                };
                rank(key, id, service, drum.clone().filter(may), k)
            }
        };
        if ranking.places().is_empty() {
            // An avoided member is better than none.
            ranking = rank(key, id, service, drum, k);
        }
        if !ranking.places().is_empty() {
            return Drawn { status: Status::Ok, ranking };
        }
        let going = |state: &Option<Standing>| matches!(state, Some(Standing::Draining | Standing::Leaving));
        let states: Vec<_> = self.table.states(service).collect();
        let status = match states.as_slice() {
            [] => Status::UnknownService,
            states if states.iter().all(going) => Status::Draining,
            _ => Status::Busy,
        };
        Drawn { status, ranking: rank(key, id, service, self.table.speakers(), k) }
    }

    fn answer(&mut self, asked: &Asked, said: &Said) {
        let offer = self.table.offer(said.member, asked.service).filter(|_| said.status == Status::Ok);
        let none: &[u8] = &[];
        let (endpoint, info) =
            offer.map_or_else(|| (None, Arc::from(none)), |offer| (Some(offer.endpoint), offer.info.clone()));
        // A member that the table does not describe any more is not drawn any more either.
        if said.status == Status::Ok && endpoint.is_none() {
            return;
        }
        let further = said.further.iter().take(usize::from(said.count));
        let further = further.filter(|member| self.table.draws(**member, asked.service));
        let endpoint_of = |member: &u16| {
            let endpoint = self.table.offer(*member, asked.service)?.endpoint;
            Some(Further { member: *member, endpoint })
        };
        let answer = Answer {
            id: asked.id,
            service: asked.service,
            status: said.status,
            rank: said.rank,
            ttl: if said.status == Status::Ok { self.config.ttl } else { 0 },
            member: said.member,
            endpoint,
            client_time: asked.client_time,
            generation: self.table.generation,
            info,
            further: further.filter_map(endpoint_of).collect(),
            room: asked.room,
        };
        self.send(asked.back, Message::Answer(answer));
    }

    /// Records the delay of a commit, from which the step follows.
    pub(super) fn measure(&mut self, delay: Duration) {
        self.delays.note(delay);
    }
}

/// The time from a commit to its repetition: two fifths of the least step, as the next in rank may know of
/// smaller delays than this daemon. (At two fifths of this daemon's own step, a third of the duplicates among
/// 100 daemons came from that.)
const AGAIN: Duration = Duration::from_micros(1600);

/// The wait after which a request is stale. Near clients ask another after 40 ms without an answer, so a
/// later answer would be a second one.
const LATE: Duration = Duration::from_millis(100);

/// The attempt from which more members take part.
const WIDER: u8 = 2;

fn said(drawn: &Drawn, member: u16, place: usize) -> Said {
    let mut further = [0; FURTHER];
    let mut count = 0;
    if drawn.status == Status::Ok {
        let after = drawn.ranking.places().iter().filter(|other| other.member != member);
        for (slot, other) in further.iter_mut().zip(after) {
            *slot = other.member;
            count += 1;
        }
    }
    Said { status: drawn.status, rank: place as u8, member, further, count }
}
