//! The default: no threshold, no weight and no probe to set; what can be known of each member decides how it
//! is used, from one request to the next.
//!
//! 1. **A slot is held.** Members that know themselves (see [`Meter`](crate::meter::Meter)) promise with an
//!    answer room for one more request. The promise is exclusive, so spending it meets nobody else's request.
//!    Of several the cheapest is spent.
//! 2. **No slot, but members have spoken.** Each member's queue is estimated from what it last said of itself
//!    and what was sent there since, and the request is drawn in proportion to what one more request would add to each
//!    if the fleet were filled up to one common level of cost (`level`). Between members that are known to differ this is nearly
//!    the best one; what is old counts as what is usual there, or as what its answers take here where that is more, and
//!    between members that cost the same it is a draw in proportion to capacity.
//! 3. **Members say nothing.** Least requests in flight from here, squared, times the latency that the
//!    member has lately (`quiet`). Where requests pile up, each member gets a limit from what is seen of it
//!    (`member::concurrency`). Where most say nothing, those that speak are compared with them by what is
//!    seen of both.
//!
//! A member that fails more than the fleet does looks as much more expensive. When every member has as many
//! requests as it can work on and twice the square root of that on top, the next one is refused: it would only
//! slow down those that are there.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Left, PLAIN, Strategy, recent};
use crate::meter::Reading;
use crate::{Ask, Hand, Member, Plan, Time};

mod level;
mod quiet;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "adaptive",
    about: "by what members say of themselves with their answers, else by what is seen of them; nothing to set",
    knobs: &[],
    reads_latency: true,
    heeds_load: true,
    shares: false,
    limits: true,
    choose,
    second,
    observe: recent,
    hear,
    explain,
    ..PLAIN
};

fn choose(plan: &Plan, hand: &mut Hand, ask: &Ask) -> usize {
    pick(plan, hand, ask, &|member| !member.full()).unwrap_or(usize::MAX)
}

fn second(plan: &Plan, hand: &mut Hand, ask: &Ask, left: Left<'_>) -> Option<usize> {
    pick(plan, hand, ask, left)
}

/// For each way of asking who is `left` made anew: it is asked of every member.
fn pick<L>(plan: &Plan, hand: &mut Hand, ask: &Ask, left: &L) -> Option<usize>
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let members = plan.members();
    // What a member said to another balancer, or to the process before this one, will do where it said nothing to this one.
    if !hand.heard && !plan.spoken() {
        return quiet::choose(plan, hand, ask, left);
    }
    if hand.held() > 0 {
        if let Some(index) = unheard(members, hand, ask).filter(|index| left(&members[*index])) {
            return Some(index);
        }
        if let Some(index) = hand.spend(ask.now, |index| left(&members[index])) {
            return Some(index);
        }
    }
    match level::draw(plan, hand, ask, left) {
        level::Draw::Member(index) => Some(index),
        level::Draw::Full => None,
        level::Draw::Unknown => {
            let full =
                |member: &Member| plan.admission() && member.view(ask.now).is_some() && member.busy(ask.now);
            let left: Left<'_> = &|member| left(member) && !full(member);
            quiet::choose(plan, hand, ask, left)
        }
    }
}

/// A member that promises nothing has its turns too, where others do: as often as it is drawn, while nothing is
/// in flight there from here and it has not been slower than the others lately.
fn unheard(members: &[Member], hand: &Hand, ask: &Ask) -> Option<usize> {
    let index = (((ask.chance >> 32) * members.len() as u64) >> 32) as usize;
    let member = &members[index];
    if member.vitals.awaiting() > 0 || member.view(ask.now).is_some() {
        return None;
    }
    let worth = match member.vitals.blended_at(ask.now) {
        Some((latency, age)) => latency <= hand.latency || age > RETRY,
        None => true,
    };
    worth.then_some(index)
}

fn hear(hand: &mut Hand, member: &Member, reading: &Reading, now: Time) {
    hand.heard = true;
    if !member.vitals.heard.take(reading, member.vitals.begun(), now) {
        return;
    }
    if reading.in_flight > 0 {
        // The request that is being answered counts here until its end, and with the member no more.
        let here = f64::from(member.vitals.awaiting().saturating_sub(1));
        let elsewhere = (1.0 - here / f64::from(reading.in_flight)).max(0.0);
        hand.elsewhere += (elsewhere - hand.elsewhere) / WORDS;
    }
    if !reading.slot {
        return;
    }
    let queue = f64::from(reading.in_flight) + 1.0;
    let cost = cost(reading, queue, scorn(member, hand.failing()));
    let cost = cost + unsaid(member, cost, || 0.0, now);
    // Not by way of u128, which no processor converts.
    let until = now + Duration::from_nanos((f64::from(reading.sojourn) * 1e9) as u64);
    hand.keep(member.id, cost as f32, until, now);
}

fn explain(plan: &Plan, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    if let Some((latency, _)) = member.vitals.blended_at(now) {
        figures.push(("latency_ms", f64::from(latency) / 1e6));
    }
    let suspicion = &member.vitals.suspicion;
    figures.extend([("suspicion", suspicion.sum()), ("failing_at_least", suspicion.failing())]);
    let limit = member.most(now).filter(|_| plan.admission()).map(f64::from);
    let Some(said) = member.view(now) else {
        figures.extend(limit.map(|limit| ("limit", limit)));
        // What decides where members say nothing is how many requests they have from here and how long those take: both are shown anyway.
        let heard = plan.members().iter().filter(|member| member.view(now).is_some()).count();
        figures.push(("members_that_speak", heard as f64));
        return figures;
    };
    let reading = &said.reading;
    let queue = member.queue(&said, now);
    figures.push(("knee", f64::from(reading.knee)));
    figures.extend(limit.map(|limit| ("limit", limit)));
    figures.extend([
        ("work_ms", f64::from(reading.work) * 1e3),
        ("sojourn_ms", f64::from(reading.sojourn) * 1e3),
        ("mean_in_flight", f64::from(reading.mean_in_flight)),
        ("queue", queue),
        ("cost_ms", cost(reading, queue, scorn(member, 0.0)) * 1e3),
        ("heard_ms_ago", now.since(said.at).as_secs_f64() * 1e3),
    ]);
    figures
}

/// What a request is expected to take at a member that has `queue` of them, seconds.
fn cost(reading: &Reading, queue: f64, scorn: f64) -> f64 {
    bend(f64::from(reading.work) * scorn, f64::from(reading.knee), queue)
}

/// The work alone (`floor`, seconds) below the knee, in proportion to the queue above, and a smooth bend between.
fn bend(floor: f64, knee: f64, queue: f64) -> f64 {
    let crowd = queue / knee;
    floor * libm::sqrt(1.0 + crowd * crowd)
}

/// What a request takes beyond what the member says, seconds: it is far away, does not tell the truth, or has got more to do since. What is
/// seen varies, so beside a fresh word only what is several times as much counts. As much as has `faded` of the word, 0 to 1, what is
/// seen counts in place of that, where it is more (less it may be by chance, or as the member was not asked while it had much to do).
/// Failures are part of what is seen. For as long as it has answered none of several requests, that counts as well.
fn unsaid(member: &Member, said: f64, faded: impl FnOnce() -> f64, now: Time) -> f64 {
    let (seen, age) = member.vitals.blended_at(now).unwrap_or_default();
    let seen = f64::from(seen) * 1e-9;
    let more = seen - said;
    let slower = if more > 0.0 { (faded() * more).max(seen - BELIEF * said) } else { 0.0 };
    if age < SILENT {
        return slower;
    }
    slower.max(member.vitals.unanswered(said * 1e9, now) * 1e-9 - BELIEF * said)
}

/// By how much a member's failures make it look slower: the inverse square of the share of its requests that it
/// does not fail beyond what all fail.
fn scorn(member: &Member, fleet: f64) -> f64 {
    let failing = member.vitals.suspicion.failing();
    if failing <= fleet {
        return 1.0;
    }
    let good = (1.0 - (failing - fleet)).max(0.01);
    1.0 / (good * good)
}

/// How many times the cost that a member says may be seen before it is not believed.
const BELIEF: f64 = 4.0;

/// Words over which the part of the requests that comes from elsewhere is averaged.
const WORDS: f64 = 64.0;

/// Nanoseconds without an answer that every server has now and then.
const SILENT: u64 = 200_000_000;

/// Nanoseconds after which a member that was slow and says nothing is tried again.
const RETRY: u64 = 1_000_000_000;
