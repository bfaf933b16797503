//! A member as the brain knows it: what was configured, what was reported, what is counted live.

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load_line::Said;
use crate::time::nanos;
use crate::{Flow, Shed, Time};
use heard::Heard;
use suspicion::Suspicion;

mod company;
pub(crate) mod concurrency;
pub(crate) mod heard;
pub(crate) mod past;
pub(crate) mod rate;
mod room;
pub(crate) mod suspicion;

/// Names a member of one group for as long as it lives; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// Why a member may or may not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Takes its share.
    Up,
    /// Came up lately: takes a growing part of its share.
    SlowStart,
    /// Health checks are configured and none has passed yet: not used.
    Unchecked,
    /// Its health checks fail.
    Down,
    /// Taken out because its traffic fails (outlier detection); comes back by itself.
    Ejected,
    /// An operator lets its work end; gets nothing new.
    Draining,
    /// An operator took it out; gets nothing new.
    Disabled,
}

impl State {
    /// May this member be chosen?
    pub fn eligible(self) -> bool {
        matches!(self, Self::Up | Self::SlowStart)
    }

    /// Glyph and word for people, the same in a terminal and on a page: no two states share a glyph.
    pub fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Up => ("●", "up"),
            Self::SlowStart => ("◐", "slow start"),
            Self::Unchecked => ("○", "unchecked"),
            Self::Down => ("✘", "down"),
            Self::Ejected => ("⊘", "ejected"),
            Self::Draining => ("◌", "draining"),
            Self::Disabled => ("⊖", "disabled"),
        }
    }
}

/// A load that a monitor reported, in the unit of the group's metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Finite and not negative.
    pub value: f64,
    /// When it was measured: by the clock of this process, never later than now.
    pub at: Time,
    /// It is of all that goes on at the member's host, whichever group brought it: see [`Apart`](crate::neighbours::Apart).
    #[serde(default)]
    pub of_host: bool,
}

/// What a member's reports come to: the load that strategies go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effective {
    /// Averaged over reports as the strategy asks and, where the last one is old, mixed with the group's mean; in
    /// the unit of the group's metric.
    pub value: f64,
    /// [`Vitals::begun`] when the last report came: what was begun since is not in it.
    pub begun: u32,
}

/// What a member says of its work as a whole, for weights by report (gRPC A58).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Requests it ends a second; finite and not negative.
    pub rps: f64,
    /// How busy it is, 1 for fully; may exceed 1; finite and not negative.
    pub utilization: f64,
    /// Requests it fails a second; finite and not negative.
    pub eps: f64,
    /// When it was measured: by the clock of this process, never later than now.
    pub at: Time,
}

/// One member in a [`Plan`](crate::Plan) or a view of the group.
#[derive(Clone, Debug)]
pub struct Member {
    /// Stable name within the group's life.
    pub id: MemberId,
    /// As configured: `host:port`.
    pub name: Arc<str>,
    /// Where to connect.
    pub address: SocketAddr,
    /// Hash of `name`: the same in every process and on every machine.
    pub seed: u64,
    /// Configured capacity relative to the other members; finite, above 0.
    pub capacity: f64,
    /// `capacity` times the part of its share that slow start allows now; finite, above 0.
    pub weight: f64,
    /// Most requests at once; `u32::MAX` for no limit.
    pub limit: u32,
    /// Why it may or may not be chosen.
    pub state: State,
    /// What its monitor last reported, if it has one.
    pub load: Option<Load>,
    /// What its reports come to; `None` without one that still counts.
    pub effective: Option<Effective>,
    /// What it last said of its work, if that gives a weight: not in its first seconds, not when it is old.
    pub usage: Option<Usage>,
    /// Which part of its sessions is to go elsewhere; none without an alert.
    pub shed: Shed,
    /// How much of the others' surplus it can take, in units of capacity times load; 0 for none.
    pub deficit: f64,
    /// What is counted live.
    pub vitals: Arc<Vitals>,
}

impl Member {
    /// Requests (or sessions, or flows) it works on now, seen from this process.
    pub fn in_flight(&self) -> u32 {
        self.vitals.in_flight()
    }

    /// The same with what other balancers have there, as far as that is known: what choices compare.
    #[inline]
    pub fn everywhere(&self) -> f64 {
        f64::from(self.vitals.in_flight()) + self.vitals.others()
    }

    /// Requests that await an answer's head, with what other balancers have there, as far as that is known.
    #[inline]
    pub(crate) fn awaiting_everywhere(&self) -> f64 {
        f64::from(self.vitals.awaiting()) + self.vitals.others()
    }

    /// Most requests at once from here: its limit, or this balancer's part of it.
    #[inline]
    pub fn allowed(&self) -> u32 {
        self.limit.min(self.vitals.part().unwrap_or(u32::MAX))
    }

    /// Has it as many requests as it may have, or was it given as many a second as it may be given? One that is back from an ejection
    /// may have one, until one succeeds.
    pub fn full(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight >= self.allowed() || self.vitals.suspicion.tried(in_flight) || self.vitals.spent()
    }

    /// Is it back from an ejection, and is the one request that it is tried with under way?
    pub fn tried(&self) -> bool {
        self.vitals.suspicion.tried(self.in_flight())
    }
}

/// Live counts of one member, shared by all cores, on cache lines of their own.
///
/// Shared rather than per core because an exact `least_connections` and a limit on connections need the
/// sum at the moment of the choice.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Vitals {
    /// Requests in flight below, requests begun above: 32 bits each, so that one addition counts both.
    work: AtomicU64,
    /// The same of work among that which clients have with the member themselves: how much each of it is nobody here sees.
    afar: AtomicU64,
    /// Requests in flight from here that do not await an answer's head: their own bodies are still being sent, or answers, streams and
    /// tunnels follow the head.
    streaming: AtomicU32,
    /// Tick in which the oldest awaited answer was asked for, if no answer has come since.
    asked: AtomicU32,
    streak: AtomicU32,
    /// Requests in flight from here at which it gets no more, where admission is on; 0 for none (see `concurrency`).
    ceiling: AtomicU32,
    /// Requests that were not served.
    lost: AtomicU32,
    /// Requests in flight from other balancers, f32 bits; written by the slow path (see [`fleet`](crate::fleet)).
    others: AtomicU32,
    /// Requests a second that other balancers begin with it, and of theirs that wait, f32 bits each, the latter above; written likewise.
    coming: AtomicU64,
    /// One more than this balancer's part of the member's limit; 0 for all of it.
    part: AtomicU32,
    /// This balancer's part of the requests that the member is given in a second, f32 bits; 0 for all of them.
    portion: AtomicU32,
    /// [`RATED`] and how many requests may have begun (see `rate`); 0 for no limit.
    until: AtomicU64,
    /// What the outcomes of its requests say against it.
    pub(crate) suspicion: Suspicion,
    /// Latency estimate, nanoseconds as f32 bits, above the tick it was updated in; 0 for none.
    latency: AtomicU64,
    /// What the member last said of itself with an answer.
    pub(crate) heard: Heard,
    /// How far decisions about its sessions were carried out.
    pub flow: Flow,
    /// Is it down by its health checks?
    down: AtomicBool,
}

impl Vitals {
    /// Counts as they are with `in_flight` requests begun; for tests and simulations.
    pub fn with_in_flight(in_flight: u32) -> Self {
        Self { work: AtomicU64::new(u64::from(in_flight)), ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn begun_before(begun: u32) -> Self {
        Self { work: AtomicU64::new(u64::from(begun) << 32), ..Self::default() }
    }

    /// The same counts at this moment, apart from these.
    pub(crate) fn copy(&self) -> Self {
        let (four, eight) =
            (|cell: &AtomicU32| cell.load(Relaxed).into(), |cell: &AtomicU64| cell.load(Relaxed).into());
        Self {
            work: eight(&self.work),
            afar: eight(&self.afar),
            streaming: four(&self.streaming),
            asked: four(&self.asked),
            streak: four(&self.streak),
            ceiling: four(&self.ceiling),
            lost: four(&self.lost),
            others: four(&self.others),
            coming: eight(&self.coming),
            part: four(&self.part),
            portion: four(&self.portion),
            until: eight(&self.until),
            suspicion: self.suspicion.copy(),
            latency: eight(&self.latency),
            heard: self.heard.copy(),
            flow: Flow::default(),
            down: self.is_down().into(),
        }
    }

    /// Returns whether health checks have declared the member down.
    pub fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    /// Records whether health checks have declared the member down.
    pub(crate) fn declare_down(&self, down: bool) {
        self.down.store(down, Relaxed);
    }

    /// Requests that clients have with the member themselves, by what they say: so many now, where it was so many before.
    /// More than a thousand million together are not believed: then nothing is changed, and false is returned.
    pub fn tell(&self, before: u32, now: u32) -> bool {
        if now > before {
            let more = now - before;
            if self.in_flight().saturating_add(more) > MOST_TOLD {
                return false;
            }
            self.work.fetch_add(u64::from(more), Relaxed);
            self.afar.fetch_add(u64::from(more), Relaxed);
        } else {
            self.afar.fetch_sub(u64::from(before - now), Relaxed);
            self.work.fetch_sub(u64::from(before - now), Relaxed);
        }
        true
    }

    /// What was counted in last is a member lent to a client, who goes there without being seen here.
    pub fn lend(&self) {
        self.afar.fetch_add(BEGUN | 1, Relaxed);
    }

    /// Counts that out: once for each [`lend`](Self::lend), in place of [`end`](Self::end).
    pub fn give_back(&self) {
        self.afar.fetch_sub(1, Relaxed);
        self.end();
    }

    /// Counts a request in; returns how many are in flight with it.
    pub fn begin(&self) -> u32 {
        (self.work.fetch_add(BEGUN | 1, Relaxed) as u32).wrapping_add(1)
    }

    /// Counts a request in, as [`begin`](Self::begin) does, and records when the first awaited answer was asked for.
    pub fn begin_at(&self, now: Time) -> u32 {
        let level = self.begin();
        if level == self.streaming.load(Relaxed).wrapping_add(1) {
            self.asked.store(tick(now), Relaxed);
        }
        level
    }

    /// Counts a request in flight out of those that await an answer's head: its body is still being sent, or the head has come and more
    /// follows it.
    pub fn begin_streaming(&self) {
        self.streaming.fetch_add(1, Relaxed);
    }

    /// Counts a request back in among those that await an answer's head, or out with its [`end`](Self::end): once for each
    /// [`begin_streaming`](Self::begin_streaming).
    pub fn end_streaming(&self) {
        self.streaming.fetch_sub(1, Relaxed);
    }

    /// Requests in flight that do not await an answer's head.
    pub fn streaming(&self) -> u32 {
        self.streaming.load(Relaxed)
    }

    /// Requests that await an answer's head: the load of the member, as far as it is known here.
    pub fn awaiting(&self) -> u32 {
        // What others count at the same moment may make it negative by a few.
        self.in_flight().saturating_sub(self.streaming())
    }

    /// The same without those that clients have with the member themselves.
    pub fn awaiting_here(&self) -> u32 {
        self.in_flight_here().saturating_sub(self.streaming())
    }

    /// Returns for how long answers have been awaited and none has come, in nanoseconds: at most the age of the oldest request that
    /// awaits one. 0 if none is awaited.
    pub(crate) fn silence(&self, now: Time) -> u64 {
        if self.awaiting() == 0 {
            return 0;
        }
        let age = tick(now).wrapping_sub(self.asked.load(Relaxed));
        let age = if age > u32::MAX - FUTURE { 0 } else { u64::from(age) << 20 };
        self.blended_at(now).map_or(age, |(_, since)| since.min(age))
    }

    /// Returns the [`silence`](Self::silence) as far as it says that the member has become slow: one unanswered request may be a long one,
    /// so each lets four times as much of it count, from four times what is `usual`. In nanoseconds.
    pub(crate) fn unanswered(&self, usual: f64, now: Time) -> f64 {
        let silence = self.silence(now) as i64 as f64;
        silence.min(usual * (1_u64 << (2 * self.awaiting().min(16))) as i64 as f64)
    }

    /// Counts a request out: once for each [`begin`](Self::begin).
    pub fn end(&self) {
        self.work.fetch_sub(1, Relaxed);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.work.load(Relaxed) as u32
    }

    /// Requests begun so far, and those in flight, at one moment.
    pub(crate) fn work(&self) -> (u32, u32) {
        let work = self.work.load(Relaxed);
        ((work >> 32) as u32, work as u32)
    }

    /// Was the member given as many requests a second as it may be given?
    #[inline]
    pub fn spent(&self) -> bool {
        let until = self.until.load(Relaxed);
        until != 0 && self.begun().wrapping_sub(until as u32) < u32::MAX / 2
    }

    /// Is there a limit on how many it is given a second?
    pub(crate) fn rated(&self) -> bool {
        self.until.load(Relaxed) != 0
    }

    /// Sets how many requests may have begun, after which it is spent.
    pub(crate) fn allow_until(&self, begun: u32) {
        self.until.store(RATED | u64::from(begun), Relaxed);
    }

    /// It may be given as many as come.
    pub(crate) fn unlimited(&self) {
        if self.rated() {
            self.until.store(0, Relaxed);
        }
    }

    /// Requests in flight that went through this process: without those that clients have with the member themselves.
    pub fn in_flight_here(&self) -> u32 {
        // What others count at the same moment may make it negative by a few.
        self.in_flight().saturating_sub(self.afar.load(Relaxed) as u32)
    }

    /// Requests of this process begun so far; after 2^32 of them it starts again at 0.
    pub fn begun_here(&self) -> u32 {
        self.begun().wrapping_sub((self.afar.load(Relaxed) >> 32) as u32)
    }

    /// Has it as many requests from here as were found to be too many for a member that says nothing of itself?
    pub(crate) fn crowded(&self) -> bool {
        let ceiling = self.ceiling.load(Relaxed);
        ceiling != 0 && self.awaiting_here() >= ceiling
    }

    /// Returns whether a request took longer than the latest ones.
    pub(crate) fn is_longer(&self, latency: Duration) -> bool {
        nanos(latency) > self.blended().unwrap_or(f32::INFINITY)
    }

    /// A request was not served, which [`end`](Self::end) cannot tell: it failed, or its client gave up.
    pub fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// What the member says of itself with its answers, if it did so in the last ten seconds.
    pub fn said(&self, now: Time) -> Option<Said> {
        let said = self.heard.view().filter(|said| now.since(said.at) <= SAID)?;
        Some(Said { knee: f64::from(said.reading.knee), work: f64::from(said.reading.work) })
    }

    /// How many so far; after 2^32 of them it starts again at 0.
    pub(crate) fn lost(&self) -> u32 {
        self.lost.load(Relaxed)
    }

    /// Sets how many those are; 0 for none.
    pub(crate) fn allow(&self, ceiling: u32) {
        if self.ceiling.load(Relaxed) != ceiling {
            self.ceiling.store(ceiling, Relaxed);
        }
    }

    /// How many those are, if that is known.
    pub(crate) fn ceiling(&self) -> Option<u32> {
        Some(self.ceiling.load(Relaxed)).filter(|ceiling| *ceiling != 0)
    }

    /// Requests begun so far; after 2^32 of them it starts again at 0.
    pub fn begun(&self) -> u32 {
        (self.work.load(Relaxed) >> 32) as u32
    }

    /// Failures since the last success.
    pub fn streak(&self) -> u32 {
        self.streak.load(Relaxed)
    }

    /// A request failed; returns the length of the streak of failures with it.
    pub fn failed(&self) -> u32 {
        self.streak.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// A request succeeded, or begins well. Writes only if there was something to end.
    pub fn succeeded(&self) {
        self.suspicion.trust();
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    /// Folds one latency into the peak-sensitive moving average: a higher one counts at once, a lower one
    /// with weight 1 - e^(-dt/decay) (Finagle's PeakEwma). Of several within one tick (about a millisecond)
    /// the highest and the first count. Concurrent updates may lose one another: an estimate tolerates that,
    /// a lock on the request path is not worth it.
    pub fn observe(&self, latency: Duration, now: Time, decay: Duration) {
        // At least a nanosecond, so that a stored estimate is never mistaken for none.
        let fresh = nanos(latency).max(1.0);
        let kept = match self.decayed(now, decay) {
            Some((value, share)) if fresh < value => value * share + fresh * (1.0 - share),
            _ => fresh,
        };
        self.latency.store(u64::from(kept.to_bits()) << 32 | u64::from(tick(now)), Relaxed);
    }

    /// Folds one latency into a plain moving average of about `over` of them.
    pub(crate) fn blend(&self, latency: f32, over: f32, now: Time) {
        self.blend_from(self.blended().unwrap_or(latency), latency, over, now);
    }

    /// The same where what is known so far is taken to be this `mean`.
    pub(crate) fn blend_from(&self, mean: f32, latency: f32, over: f32, now: Time) {
        debug_assert!(latency.is_finite());
        let kept = mean + (latency - mean) * (2.0 / (over + 1.0));
        // What is told late, as the beginning of a tunnel is at its end, is not newer than what was told before.
        let (before, now) = (self.latency.load(Relaxed) as u32, tick(now));
        let at = if before.wrapping_sub(now) < u32::MAX / 2 && before != 0 { before } else { now };
        self.latency.store(u64::from(kept.max(1.0).to_bits()) << 32 | u64::from(at), Relaxed);
    }

    /// The estimate as it was stored, nanoseconds, however old; `None` before the first.
    pub(crate) fn blended(&self) -> Option<f32> {
        let packed = self.latency.load(Relaxed);
        (packed != 0).then(|| f32::from_bits((packed >> 32) as u32))
    }

    /// The same with its age in nanoseconds.
    pub(crate) fn blended_at(&self, now: Time) -> Option<(f32, u64)> {
        let packed = self.latency.load(Relaxed);
        if packed == 0 {
            return None;
        }
        let age = tick(now).wrapping_sub(packed as u32);
        let age = if age > u32::MAX - FUTURE { 0 } else { age };
        Some((f32::from_bits((packed >> 32) as u32), u64::from(age) << 20))
    }

    /// The latency estimate in nanoseconds. Without traffic it decays towards zero, so that a member once slow
    /// is tried again. `None` before the first observation and when the last one is older than ten times
    /// `decay`: what is left of it says nothing.
    pub fn latency(&self, now: Time, decay: Duration) -> Option<f32> {
        self.decayed(now, decay).map(|(value, share)| value * share)
    }

    /// The past says nothing any more: the member was out of use and comes back.
    pub(crate) fn forget(&self) {
        self.streak.store(0, Relaxed);
        self.latency.store(0, Relaxed);
        self.heard.forget();
    }

    /// The stored estimate and the share of it that is left after the time since it was stored.
    fn decayed(&self, now: Time, decay: Duration) -> Option<(f32, f32)> {
        let packed = self.latency.load(Relaxed);
        if packed == 0 {
            return None;
        }
        let mut age = tick(now).wrapping_sub(packed as u32);
        if age > u32::MAX - FUTURE {
            // Cores may disagree on now by a batch of events: what was stored ahead of now has age 0.
            age = 0;
        }
        let ages = age as f32 * TICK_SECONDS / decay.as_secs_f32().max(TICK_SECONDS);
        (ages <= 10.0).then(|| (f32::from_bits((packed >> 32) as u32), libm::expf(-ages)))
    }
}

/// 2^20 ns, 1.05 ms: 32 bits of them last for 52 days. A member that nobody used for so long has, for a few
/// seconds, an estimate that looks fresh.
fn tick(now: Time) -> u32 {
    (now.0 >> 20) as u32
}

/// One request begun, as it is counted in [`Vitals::work`].
const BEGUN: u64 = 1 << 32;

/// Marks that there is a limit on requests a second, in [`Vitals::until`].
const RATED: u64 = 1 << 32;

/// Requests in flight up to which clients are believed.
const MOST_TOLD: u32 = 1_000_000_000;

/// Time after which what a member said of itself is forgotten.
const SAID: Duration = Duration::from_secs(10);

const TICK_SECONDS: f32 = 1.048_576e-3;

/// How far ahead of now a time may lie and still be taken for one, in ticks: a minute.
const FUTURE: u32 = 60_000;

#[cfg(test)]
mod tests;
