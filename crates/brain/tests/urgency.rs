//! What lines of unequal urgency promise, whatever comes: the most urgent wait as if they were alone, until they hurry, and then for longer if
//! others are served; nobody is told of a place before one that is more urgent, no more wait than may be served, and where all are alike it is
//! one line.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_brain::{Line, Lines, Pace, Ticket, Time, Turn, Urgency};
use proptest::prelude::*;

const SOJOURN: Duration = Duration::from_millis(40);

const PACE: Pace = Pace { sojourn: SOJOURN, in_flight: 8, wait: None, silent: false };

/// What may happen. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// One of this urgency finds no room; it came so many hundredths of a sojourn ago.
    Enter(u8, u32),
    Call,
    Look(usize),
    /// One leaves, served or not.
    Leave(usize, bool),
    /// All whose wait is over are told.
    Dismiss,
    /// So many hundredths of a sojourn pass.
    Pass(u32),
}

fn step(urgencies: &'static [u8]) -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (prop::sample::select(urgencies), 0..30_u32).prop_map(|(urgency, late)| Step::Enter(urgency, late)),
        3 => Just(Step::Call),
        2 => any::<usize>().prop_map(Step::Look),
        3 => any::<(usize, bool)>().prop_map(|(who, served)| Step::Leave(who, served)),
        2 => Just(Step::Dismiss),
        3 => (0..100_u32).prop_map(Step::Pass),
    ]
}

fn urgency(value: u8) -> Urgency {
    Urgency::new(value).expect("0 to 7")
}

/// Somebody who waits in the lines, and in the line beside them.
#[derive(Clone, Copy)]
struct Waiter {
    urgency: Urgency,
    ticket: Ticket,
    beside: Option<Ticket>,
    called: bool,
}

/// Lines, and beside them a line of its own for those of the urgency `alone`, to which the same happens.
struct World {
    lines: Lines<u32>,
    beside: Option<Line<u32>>,
    alone: Urgency,
    /// Are there others than those `alone`? Then the line beside is given up once it hurries.
    told_apart: bool,
    waiters: BTreeMap<u32, Waiter>,
    next: u32,
    now: Time,
    pace: Pace,
}

impl World {
    fn new(alone: u8, told_apart: bool, in_flight: u32) -> Self {
        Self {
            lines: Lines::default(),
            beside: Some(Line::default()),
            alone: urgency(alone),
            told_apart,
            waiters: BTreeMap::new(),
            next: 0,
            now: Time(0) + SOJOURN,
            pace: Pace { in_flight, ..PACE },
        }
    }

    fn nth(&self, place: usize) -> Option<u32> {
        let keys: Vec<u32> = self.waiters.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[place % keys.len()])
    }

    fn enter(&mut self, urgency: Urgency, late: u32) {
        let (who, since) = (self.next, self.now - SOJOURN * late / 100);
        self.next += 1;
        let ticket = self.lines.enter(urgency, who, self.pace, since, self.now);
        let mut beside = None;
        if let (true, Some(line)) = (urgency == self.alone, &mut self.beside) {
            beside = line.enter(who, self.pace, since, self.now);
        }
        self.compare_no_more_in_haste();
        if urgency == self.alone && self.beside.is_some() {
            assert_eq!(ticket.map(|ticket| ticket.until), beside.map(|ticket| ticket.until));
        }
        if let Some(ticket) = ticket {
            self.waiters.insert(who, Waiter { urgency, ticket, beside, called: false });
        }
        self.dismiss();
    }

    fn call(&mut self) {
        let expected = self.beside.as_mut().map(|line| line.call().copied());
        let called = self.lines.call().copied();
        let Some(who) = called else {
            assert!(self.waiters.values().all(|waiter| waiter.called), "somebody waits and nobody is told");
            assert_eq!(expected.flatten(), None);
            return;
        };
        let waiter = self.waiters.get_mut(&who).expect("it waits");
        assert!(!std::mem::replace(&mut waiter.called, true), "nobody is told twice");
        let urgency = waiter.urgency;
        if let Some(expected) = expected
            && (urgency == self.alone || expected.is_some())
        {
            assert_eq!(expected, Some(who));
        }
        let before = |other: &Waiter| other.urgency < urgency && !other.called;
        assert!(!self.waiters.values().any(before), "one that is more urgent was not told");
    }

    fn look(&mut self, who: u32) {
        let waiter = self.waiters.get_mut(&who).expect("it waits");
        let turn = self.lines.turn(waiter.ticket);
        let expected = if std::mem::take(&mut waiter.called) { Turn::Look } else { Turn::Wait };
        assert_eq!(turn, expected);
        if let (Some(ticket), Some(line)) = (waiter.beside, &mut self.beside) {
            assert_eq!(turn, line.turn(ticket));
        }
    }

    fn leave(&mut self, who: u32, served: bool) {
        let waiter = self.waiters.remove(&who).expect("it waits");
        assert_eq!(self.lines.leave(waiter.ticket, served, self.now), waiter.called);
        if let (Some(ticket), Some(line)) = (waiter.beside, &mut self.beside) {
            line.leave(ticket, served, self.now);
        }
        assert_eq!(self.lines.turn(waiter.ticket), Turn::Go);
    }

    fn dismiss(&mut self) {
        while let Some(who) = self.lines.dismiss(self.now) {
            let waiter = self.waiters.remove(&who).expect("it waits");
            if let (true, Some(line)) = (waiter.urgency == self.alone, &mut self.beside) {
                assert_eq!(line.dismiss(self.now), Some(who));
            }
        }
        assert_eq!(self.beside.as_mut().and_then(|line| line.dismiss(self.now)), None);
        // No more than places come free while one may wait.
        let most = 16 * (self.pace.in_flight as usize).max(1);
        assert!(self.lines.len() <= most, "{} wait for {most} places", self.lines.len());
    }

    fn compare_no_more_in_haste(&mut self) {
        self.beside.take_if(|line| line.hurried() && self.told_apart);
    }

    fn go(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Enter(value, late) => self.enter(urgency(value), late),
                Step::Call => self.call(),
                Step::Look(place) => self.nth(place).into_iter().for_each(|who| self.look(who)),
                Step::Leave(place, served) => {
                    self.nth(place).into_iter().for_each(|who| self.leave(who, served));
                }
                Step::Dismiss => self.dismiss(),
                Step::Pass(hundredths) => self.now = self.now + SOJOURN * hundredths / 100,
            }
            assert_eq!(self.lines.len(), self.waiters.len());
            assert_eq!(self.lines.is_empty(), self.waiters.is_empty());
            self.compare_no_more_in_haste();
            if let Some(line) = &self.beside {
                let alone = self.waiters.values().filter(|waiter| waiter.urgency == self.alone).count();
                assert_eq!((line.len(), line.hurried()), (alone, self.lines.hurried(self.alone)));
            }
            let first = self.waiters.values().map(|waiter| waiter.urgency).min();
            let least = urgency(7);
            assert_eq!(self.lines.outranked(least), first.is_some_and(|first| first < least));
            assert!(!first.is_some_and(|first| self.lines.outranked(first)));
        }
    }
}

proptest! {
    #[test]
    fn the_most_urgent_wait_as_if_others_were_not_there(
        steps in prop::collection::vec(step(&[1, 3, 6]), 0..400),
        in_flight in 0..12_u32,
    ) {
        World::new(1, true, in_flight).go(&steps);
    }

    #[test]
    fn where_all_are_alike_it_is_one_line(
        steps in prop::collection::vec(step(&[3]), 0..400),
        in_flight in 0..12_u32,
    ) {
        let mut world = World::new(3, false, in_flight);
        world.go(&steps);
        prop_assert_eq!(world.lines.first(), None, "nobody was ever told apart");
    }
}

/// Lines of which that of this urgency has just come to hurry, with one that waits in it.
fn in_haste(urgency: Urgency) -> (Lines<u32>, Time) {
    let (mut lines, mut now) = (Lines::default(), Time(0) + SOJOURN);
    // There is always somebody who waits, and nobody is served, until that lasts for too long.
    let mut last = lines.enter(urgency, 0, PACE, now, now).expect("a place");
    while !lines.hurried(urgency) {
        now = now + SOJOURN / 2;
        let next = lines.enter(urgency, 0, PACE, now, now).expect("a place");
        lines.leave(last, false, now);
        last = next;
    }
    (lines, now)
}

#[test]
fn the_urgent_take_their_time_while_others_hurry() {
    let (usual, urgent, pace) = (Urgency::default(), urgency(0), PACE);
    let (mut lines, now) = in_haste(usual);
    let ticket = lines.enter(urgent, 1, pace, now, now).expect("a place");
    assert_eq!((ticket.until, lines.first()), (now + 16 * SOJOURN, Some(urgent)));
    assert!(lines.outranked(usual) && !lines.outranked(urgent));
    assert_eq!(lines.call(), Some(&1), "whoever came first");
    // One place comes free while one of the others may wait, and it is for the urgent one.
    assert_eq!((lines.dismiss(now), lines.dismiss(now)), (Some(0), None));
    assert_eq!(lines.enter(usual, 2, pace, now, now), None, "it would wait in vain");
    lines.leave(ticket, true, now);
    assert!(lines.enter(usual, 3, pace, now, now).is_some_and(|ticket| ticket.until == now + SOJOURN / 8));
    assert_eq!(lines.call(), Some(&3));
}

#[test]
fn in_haste_the_urgent_wait_longer_while_others_are_served() {
    let (usual, urgent, pace) = (Urgency::default(), urgency(0), PACE);
    let (mut lines, mut now) = in_haste(urgent);
    let mut wait = |served: bool, later: u32| {
        let other = lines.enter(usual, 1, pace, now, now).expect("a place");
        lines.leave(other, served, now);
        now = now + SOJOURN * later;
        while lines.dismiss(now).is_some() {}
        let ticket = lines.enter(urgent, 2, pace, now, now).expect("a place");
        assert!(lines.hurried(urgent));
        let came = core::mem::replace(&mut now, ticket.until);
        lines.leave(ticket, false, now);
        now.since(came)
    };
    assert_eq!(wait(false, 1), SOJOURN / 8);
    assert_eq!(wait(true, 1), 2 * SOJOURN);
    assert_eq!(wait(false, 4), 2 * SOJOURN, "it was served less than eight sojourns ago");
    assert_eq!(wait(false, 1), SOJOURN / 8, "it was served longer ago");
}

#[test]
fn where_members_say_nothing_the_least_urgent_do_not_wait() {
    let pace = Pace { silent: true, ..PACE };
    let (usual, urgent, one, now) = (Urgency::default(), urgency(0), urgency(1), Time(0) + SOJOURN);
    let mut lines = Lines::default();
    // From a listener that does not ask.
    let unknown = Pace { sojourn: Duration::ZERO, ..PACE };
    let mut waits = |urgency: Urgency, pace: Pace, now: Time| {
        let ticket = lines.enter(urgency, 0, pace, now, now);
        ticket.inspect(|ticket| assert!(!lines.leave(*ticket, true, now))).is_some()
    };
    assert!(!waits(urgent, pace, now), "all are alike so far");
    assert!(!waits(usual, pace, now));
    assert!(waits(urgent, pace, now) && !waits(usual, pace, now));
    assert!(waits(usual, Pace { wait: Some(SOJOURN), ..pace }, now), "it is known for how long it may");
    let (later, long_after) = (now + 63 * SOJOURN, now + 64 * SOJOURN);
    assert!(waits(urgent, pace, later) && !waits(urgent, pace, long_after), "nobody else came for long");
    assert!(!waits(one, pace, long_after) && waits(urgent, pace, long_after));
    assert!(waits(usual, Pace { silent: false, ..pace }, long_after));
    let now = long_after + 64 * SOJOURN;
    assert!(!waits(urgent, pace, now) && !waits(usual, unknown, now) && waits(urgent, pace, now));
}

#[test]
fn there_are_eight() {
    assert_eq!((0..=255).filter_map(Urgency::new).count(), Urgency::COUNT);
    assert_eq!(Urgency::default().value(), 3);
}
