//! Admission: no member gets more than it can work on, by what is known of it (`member/room.rs`), and members that say nothing do
//! not get more together than was found to be too much for them (`analyzer/watch.rs`). What finds no room waits or is refused:
//! it would only slow down those that are there.
//!
//! `adaptive` looks for room as it chooses. For every other strategy it is held against what the strategy chose, and against
//! those that are left if that has no room, so that a strategy need not know of it. Where admission is off, which is usual for
//! them, that costs a request the look at one flag.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::{Choice, Plan};
use crate::hash::unit;
use crate::member::heard::View;
use crate::{Ask, Hand, Member, MemberId, Time, mix};

/// A reason why a member gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Full {
    /// Its `max_rate` is used up.
    Rate,
    /// It is back from an ejection, and the one request that it is tried with is in flight.
    Trial,
    /// It has as many requests at once as its limit allows.
    Limit,
    /// Its load is at the `reject` of the strategy.
    Reject,
    /// Its concurrency limit is reached.
    Member,
    /// The concurrency limit of all members without load reports together is reached.
    Group,
}

impl Full {
    /// Returns its name in status and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rate => "max_rate",
            Self::Trial => "trial",
            Self::Limit => "limit",
            Self::Reject => "reject",
            Self::Member => "member_full",
            Self::Group => "group_full",
        }
    }
}

impl Plan {
    /// Says whether members get no more than they can work on; without this it is as usual with the strategy.
    pub fn admitting(self, admission: bool) -> Self {
        Self { admission, guarded: admission && !self.strategy.limits, ..self }
    }

    /// Says within what time clients want their answers: a request that finds no room waits for as long as its answer can be
    /// expected in time ([`Pace::wait`](crate::Pace)). Members get no fewer requests for it, however little the time is: those
    /// that are too few to fill them make no request faster, and teach nothing of what they can do.
    pub fn aiming(self, objective: Option<Duration>) -> Self {
        Self { objective, ..self }
    }

    /// Do members get no more than they can work on?
    pub fn admission(&self) -> bool {
        self.admission
    }

    /// Has the member at this place as much to do as it can work on, by what is known of it? False where that is not asked.
    pub fn busy(&self, index: usize, now: Time) -> bool {
        self.admission && self.members.get(index).is_some_and(|member| member.busy(now))
    }

    /// Returns the reason why a member of the plan gets nothing more at the moment; `None` if it does.
    pub fn full(&self, member: &Member, now: Time) -> Option<Full> {
        if member.full() {
            return Some(match () {
                () if member.vitals.spent() => Full::Rate,
                () if member.tried() => Full::Trial,
                () => Full::Limit,
            });
        }
        if (self.strategy.refuses)(self, member).is_some() {
            return Some(Full::Reject);
        }
        if self.admission && member.busy(now) {
            return Some(Full::Member);
        }
        let limited = member.vitals.limited(now).is_some();
        (self.admission && !limited && self.crowded(now)).then_some(Full::Group)
    }

    /// Returns that reason in a sentence.
    pub fn refuses(&self, member: &Member, now: Time) -> Option<String> {
        Some(match self.full(member, now)? {
            Full::Rate => "has reached its max_rate".into(),
            Full::Trial => {
                "back from its ejection, with the one request in flight that it is tried with".into()
            }
            Full::Limit => format!("at its limit of {} at once", member.allowed()),
            Full::Reject => (self.strategy.refuses)(self, member)?,
            Full::Member => {
                let most = member.most(now).unwrap_or_default();
                match member.view(now) {
                    Some(view) if member.may_be_so_no_longer(&view, now) => format!(
                        "had {most} requests at its last load report, its concurrency limit; a request may be tried there if no other member has room and none waits"
                    ),
                    Some(_) => format!("has {most} requests, its concurrency limit by its load reports"),
                    None => format!("has {most} requests from this balancer, its learned concurrency limit"),
                }
            }
            Full::Group => {
                let most = self.most.load(Relaxed);
                format!("the group has {most} requests from this balancer, its learned concurrency limit")
            }
        })
    }

    /// Are members compared by what is seen of them? `adaptive` does so where more answer and say nothing than speak.
    fn silent(&self, now: Time) -> bool {
        let spoke = self.members.iter().filter(|member| member.view(now).is_some()).count();
        let mute = |member: &&Member| !member.vitals.heard.ever() && member.vitals.blended().is_some();
        spoke == 0 || self.members.iter().filter(mute).count() > spoke
    }

    /// What the strategy does not say of a member's room, for people.
    pub(super) fn figures_of_room(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        if self.guarded {
            let said = member.view(now);
            figures.extend(said.map(|said| ("knee", f64::from(said.reading.knee))));
            figures.extend(member.most(now).map(|most| ("limit", f64::from(most))));
            figures.extend(said.map(|said| ("queue", member.queue(&said, now))));
        }
        figures
    }

    /// Have all members that say nothing together as many requests from here as they may have? Never where a strategy gives members that have much to do
    /// as much as the others: the few that are too weak for that then have nearly all that the group may have, and the others idle.
    /// (In `tests/admission` round robin refused three requests in four for it.)
    pub(crate) fn crowded(&self, now: Time) -> bool {
        let most = self.most.load(Relaxed);
        let awaiting = |member: &Member| match member.vitals.limited(now) {
            Some(_) => 0,
            None => member.vitals.awaiting_here(),
        };
        most != 0 && self.strategy.heeds_load && self.sampled(awaiting) >= most
    }

    /// Has this balancer next to nothing with the members? Then hardly an answer tells it how they are, what it heard last fades into
    /// what is usual with them, and where that is much they look full for as long as nobody asks. So it may ask: two requests
    /// too many from each balancer are nothing to the members, which can refuse them. (Of 200 balancers before 20 members those that
    /// lost touch refused half of all requests at nine tenths of the capacity, `tests/adaptive`.)
    pub fn blind(&self) -> bool {
        let mut seen = 0;
        self.members.iter().all(|member| {
            seen += member.vitals.awaiting_here();
            seen < FEW
        })
    }

    /// Is a member to get nothing more, where the plan sees to that?
    pub(super) fn barred(&self, member: &Member, ask: &Ask) -> bool {
        let speaks = member.view(ask.now).is_some();
        self.bars(member, self.crowded(ask.now), ask) && !(speaks && self.blind())
    }

    /// The same, however little this balancer knows. `crowded`: those that say nothing have as many together as they may have.
    fn bars(&self, member: &Member, crowded: bool, ask: &Ask) -> bool {
        match member.vitals.limited(ask.now) {
            Some(_) => member.busy(ask.now),
            None => !ask.insist && (crowded || member.busy(ask.now)),
        }
    }

    /// What the strategy prefers among those left, when its first choice cannot be had.
    #[cold]
    pub(super) fn second_best(&self, hand: &mut Hand, ask: &Ask, tried: &[MemberId]) -> Choice {
        let below = |member: &Member| !member.full() && !tried.contains(&member.id);
        let (crowded, blind) = (self.guarded && self.crowded(ask.now), self.guarded && self.blind());
        let bars =
            |member: &Member| self.bars(member, crowded, ask) && !(blind && member.view(ask.now).is_some());
        let left = |member: &Member| below(member) && !(self.guarded && bars(member));
        let seasoned = |member: &Member| left(member) && !member.on_trial(ask.now);
        let found = match ask.once {
            true => (self.strategy.second)(self, hand, ask, &seasoned)
                .or_else(|| (self.strategy.second)(self, hand, ask, &left)),
            false => (self.strategy.second)(self, hand, ask, &left),
        };
        match found {
            Some(index) => Choice::Member(index),
            None if self.members.iter().all(|member| tried.contains(&member.id)) => Choice::Nobody,
            None if self.members.iter().any(below) => self.venture(ask, below),
            None => Choice::Full,
        }
    }

    /// Where none has room: one of those whose word is so old, in requests of its own, that they may have room by now. Of many balancers
    /// before few members each hears seldom of a member, and what it heard fades into what is usual there, which near the capacity is
    /// as many as it can work on: all look full, and who waits is told of nothing. (At nine tenths of the capacity of 20 members, 60 balancers
    /// refused 0.7 % of all requests for that and 200 balancers 1.2 %, `tests/adaptive`.) By chance, as balancers that tell one another
    /// may know the same of all.
    fn venture(&self, ask: &Ask, below: impl Fn(&Member) -> bool) -> Choice {
        // Where most say nothing those that speak are under the group's limit, too.
        let limited = !self.guarded && self.crowded(ask.now) && self.silent(ask.now);
        if !ask.venture || limited {
            return Choice::Shed;
        }
        let speaks = |member: &Member, may: &dyn Fn(&Member, &View) -> bool| {
            below(member)
                && member.view(ask.now).is_some_and(|view| may(member, &view))
                && !(ask.once && member.on_trial(ask.now))
        };
        // Where there are many the strategy has not looked at all.
        let has_room = |member: &Member, _: &View| !member.busy(ask.now);
        let may_have = |member: &Member, view: &View| member.may_be_so_no_longer(view, ask.now);
        for may in [&has_room as &dyn Fn(&Member, &View) -> bool, &may_have] {
            let those = || self.members.iter().enumerate().filter(|(_, member)| speaks(member, may));
            let drawn = unit(mix(ask.chance)) * those().count() as f64;
            if let Some((index, _)) = those().nth(drawn as usize) {
                return Choice::Member(index);
            }
        }
        Choice::Shed
    }
}

/// Requests from here up to which what members said is not held against them.
const FEW: u32 = 2;

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::sync::atomic::AtomicU32;

    use super::*;
    use crate::meter::Reading;
    use crate::plan::tests::members;
    use crate::{Knobs, Strategy, strategy};

    fn plan(strategy: &'static Strategy, count: usize) -> Plan {
        let members = members(&[1.0; 8][..count]);
        Plan::new(strategy, Knobs::defaults(strategy), members).admitting(true)
    }

    /// Chooses until nobody has room; how many each got, and what the last one was told.
    fn fill(plan: &Plan) -> (Vec<u32>, Choice) {
        let mut hand = Hand::default();
        for turn in 0..100 {
            let ask = Ask { turn, chance: mix(turn), key: mix(!turn), now: Time(1), ..Ask::default() };
            match plan.choose(&mut hand, &ask, &[]) {
                Choice::Member(index) => plan.members()[index].vitals.begin(),
                none => return (plan.members().iter().map(Member::in_flight).collect(), none),
            };
        }
        panic!("{}: there is no end", plan.strategy().name)
    }

    #[test]
    fn who_says_nothing_gets_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| !strategy.limits) {
            let plan = plan(strategy, 3);
            for (member, ceiling) in plan.members().iter().zip([2, 5, 3]) {
                member.vitals.allow(ceiling);
            }
            let (got, told) = fill(&plan);
            assert_eq!((&got[..], told), (&[2, 5, 3][..], Choice::Shed), "{}", strategy.name);
            assert_eq!(plan.full(&plan.members()[0], Time(1)), Some(Full::Member));
            let why = plan.refuses(&plan.members()[0], Time(1)).expect("it is at its ceiling");
            assert_eq!(why, "has 2 requests from this balancer, its learned concurrency limit");
        }
    }

    #[test]
    fn all_together_get_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| strategy.heeds_load) {
            let plan = plan(strategy, 4).limited(Arc::new(AtomicU32::new(7)));
            let (got, told) = fill(&plan);
            assert_eq!((got.iter().sum(), told), (7_u32, Choice::Shed), "{}", strategy.name);
            let why = plan.refuses(&plan.members()[0], Time(1)).expect("there are enough");
            assert!(why.starts_with("the group has 7 requests from this balancer"), "{why}");
        }
        // And where one of them speaks.
        let some =
            plan(strategy::find("adaptive").expect("it is there"), 4).limited(Arc::new(AtomicU32::new(7)));
        let (mut hand, now) = (Hand::default(), Time(1));
        some.members().iter().for_each(|member| {
            _ = some.observe(&mut hand, &member.vitals, Duration::from_millis(9), false, now)
        });
        let reading = Reading { knee: 9.0, work: 0.1, sojourn: 0.1, ..Default::default() };
        some.hear(&mut hand, 0, &reading, now);
        (0..7).for_each(|_| _ = some.members()[1].vitals.begin());
        for venture in [false, true] {
            let ask = Ask { now, venture, ..Ask::default() };
            assert_eq!(some.choose(&mut hand, &ask, &[]), Choice::Shed, "{venture}");
        }
        for member in &some.members()[1..] {
            assert_eq!(some.full(member, now), Some(Full::Group));
            assert!(some.refuses(member, now).is_some_and(|why| why.starts_with("the group has 7 requests")));
        }
        let even = plan(strategy::find("round_robin").expect("it is there"), 4);
        let even = even.limited(Arc::new(AtomicU32::new(7)));
        even.members().iter().for_each(|member| member.vitals.allow(5));
        assert_eq!(fill(&even).0, [5; 4], "a weak member would have it all");
    }

    #[test]
    fn who_was_full_a_while_ago_is_asked_again_where_no_other_has_room() {
        let reading = |in_flight: u32| Reading {
            in_flight,
            knee: 4.0,
            work: 0.1,
            mean_in_flight: 9.0,
            sojourn: 0.1,
            slot: false,
            open: false,
        };
        let (then, soon, late) = (Time(1), Time(100_000_000), Time(300_000_000));
        for strategy in strategy::ALL {
            let plan = plan(strategy, 2);
            let mut hand = Hand::default();
            // More than the few that a balancer may always ask for.
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            plan.hear(&mut hand, 0, &reading(9), then);
            plan.hear(&mut hand, 1, &reading(9), Time(2));
            let mut told = |now, venture, chance| {
                plan.choose(&mut hand, &Ask { now, venture, chance, ..Ask::default() }, &[])
            };
            let name = strategy.name;
            let now = [told(soon, true, 0), told(soon, false, 0), told(late, false, 0)];
            assert_eq!(now, [Choice::Shed; 3], "{name}");
            // Balancers that tell one another may know the same of all.
            let first = (0..100).filter(|chance| told(late, true, *chance) == Choice::Member(0)).count();
            let second = (0..100).filter(|chance| told(late, true, *chance) == Choice::Member(1)).count();
            assert!(first + second == 100 && (30..70).contains(&first), "{name}: {first} and {second}");
            let says = plan.refuses(&plan.members()[0], late).unwrap_or_default();
            assert!(says.contains("last load report"), "{name}: {says}");
            // It says at once that it still is.
            plan.hear(&mut hand, 0, &reading(9), late);
            let ask = Ask { now: late, venture: true, ..Ask::default() };
            assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Member(1), "{name}");
            assert_eq!(plan.choose(&mut hand, &ask, &[MemberId(1)]), Choice::Shed, "{name}");
            plan.members()[1].vitals.begin();
            assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Shed, "{name}: it is being asked");
            (0..4).for_each(|_| _ = plan.members()[1].vitals.begin());
            plan.hear(&mut hand, 1, &reading(9), late);
            let ask = Ask { now: Time(900_000_000), ..ask };
            let told = plan.choose(&mut hand, &ask, &[MemberId(0)]);
            assert_eq!(told, Choice::Shed, "{name}: as many are there from here");
        }
    }

    #[test]
    fn one_with_room_is_found_among_many_before_one_that_may_have_some() {
        let full = Reading {
            in_flight: 9,
            knee: 4.0,
            work: 0.1,
            mean_in_flight: 9.0,
            sojourn: 0.1,
            slot: false,
            open: false,
        };
        let now = Time(300_000_000);
        for strategy in strategy::ALL {
            let members = members(&[1.0; 200]);
            let plan = Plan::new(strategy, Knobs::defaults(strategy), members).admitting(true);
            let mut hand = Hand::default();
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            (0..200).for_each(|member| plan.hear(&mut hand, member, &full, Time(1)));
            plan.hear(&mut hand, 77, &Reading { in_flight: 3, mean_in_flight: 3.0, ..full }, now);
            for turn in 0..50 {
                let ask =
                    Ask { turn, chance: mix(turn), key: mix(!turn), now, venture: true, ..Ask::default() };
                assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Member(77), "{}", strategy.name);
            }
        }
    }

    #[test]
    fn a_limit_of_connections_is_told_from_that() {
        for strategy in strategy::ALL {
            let mut members = members(&[1.0; 3]);
            members.iter_mut().for_each(|member| member.limit = 2);
            let plan = Plan::new(strategy, Knobs::defaults(strategy), members).admitting(true);
            assert_eq!(fill(&plan), (Vec::from([2, 2, 2]), Choice::Full), "{}", strategy.name);
            plan.members().iter().for_each(|member| member.vitals.allow(2));
            assert_eq!(fill(&plan).1, Choice::Full, "{}", strategy.name);
        }
    }

    #[test]
    fn what_limits_are_found_by_is_kept() {
        let millisecond = Duration::from_millis(1);
        for strategy in strategy::ALL {
            for admission in [false, true] {
                let plan = plan(strategy, 1).admitting(admission);
                let vitals = &plan.members()[0].vitals;
                plan.observe(&mut Hand::default(), vitals, millisecond, false, Time(1));
                let kept = vitals.blended().is_some();
                assert_eq!(kept, admission || strategy.reads_latency, "{}", strategy.name);
                let mut hand = Hand::default();
                let reading = Reading { knee: 3.0, work: 0.1, sojourn: 0.1, ..Default::default() };
                plan.hear(&mut hand, 0, &reading, Time(1));
                plan.observe(&mut hand, vitals, millisecond, false, Time(1));
                let heard = vitals.heard.view().is_some();
                assert!(heard || !admission, "{}", strategy.name);
                let waits = !plan.pace(&hand).sojourn.is_zero();
                assert!(waits || !admission, "{}: nobody would wait for room", strategy.name);
            }
        }
    }
}
