//! Laws of wait queues of unequal urgency, for any input. The most urgent wait as if they were alone, until
//! their queue stands; none is woken before a more urgent one; no more wait than may be served; and with
//! equal urgencies it is one queue.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_brain::{DrainRate, Time, Urgency, WaitQueues, WaitTicket, WaitVerdict};
use proptest::prelude::*;

const SOJOURN: Duration = Duration::from_millis(40);

const WAIT: Duration = Duration::from_secs(1);

const PACE: DrainRate = DrainRate { sojourn: SOJOURN, in_flight: 8, wait: WAIT };

/// A step of a test. Numbers are taken modulo the present count.
#[derive(Clone, Debug)]
enum Step {
    /// A request of this urgency finds no room; it came this many hundredths of a sojourn ago.
    Enter(u8, u32),
    Call,
    Look(usize),
    /// A request leaves, served or not.
    Leave(usize, bool),
    /// All whose wait is over are dismissed.
    Dismiss,
    /// This many hundredths of a sojourn pass.
    Pass(u32),
}

fn step(urgencies: &'static [u8]) -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (prop::sample::select(urgencies), 0..30_u32)
            .prop_map(|(urgency, late)| Step::Enter(urgency, late)),
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

/// A request that waits in the queues, and in the queue beside them.
#[derive(Clone, Copy)]
struct Waiter {
    urgency: Urgency,
    ticket: WaitTicket,
    beside: Option<WaitTicket>,
    called: bool,
}

/// Queues, and beside them one only for the urgency `alone`, with the same input.
struct World {
    queues: WaitQueues<u32>,
    beside: Option<WaitQueues<u32>>,
    alone: Urgency,
    /// Whether there are others than those `alone`. Then the queue beside is dropped once it stands.
    told_apart: bool,
    waiters: BTreeMap<u32, Waiter>,
    next: u32,
    now: Time,
    pace: DrainRate,
}

impl World {
    fn new(alone: u8, told_apart: bool, in_flight: u32) -> Self {
        Self {
            queues: WaitQueues::default(),
            beside: Some(WaitQueues::default()),
            alone: urgency(alone),
            told_apart,
            waiters: BTreeMap::new(),
            next: 0,
            now: Time(0) + SOJOURN,
            pace: DrainRate { in_flight, ..PACE },
        }
    }

    fn nth(&self, place: usize) -> Option<u32> {
        let keys: Vec<u32> = self.waiters.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[place % keys.len()])
    }

    fn enter(&mut self, urgency: Urgency, late: u32) {
        let (who, since) = (self.next, self.now - SOJOURN * late / 100);
        self.next += 1;
        let ticket = self.queues.enter(urgency, who, self.pace, since, self.now);
        let mut beside = None;
        if let (true, Some(queue)) = (urgency == self.alone, &mut self.beside) {
            beside = queue.enter(urgency, who, self.pace, since, self.now);
        }
        self.give_up_beside();
        if urgency == self.alone && self.beside.is_some() {
            assert_eq!(ticket.map(|ticket| ticket.until), beside.map(|ticket| ticket.until));
        }
        if let Some(ticket) = ticket {
            self.waiters.insert(who, Waiter { urgency, ticket, beside, called: false });
        }
        self.dismiss();
    }

    fn call(&mut self) {
        let expected = self.beside.as_mut().map(|queue| queue.call().copied());
        let called = self.queues.call().copied();
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
        let turn = self.queues.turn(waiter.ticket);
        let expected =
            if std::mem::take(&mut waiter.called) { WaitVerdict::TryAgain } else { WaitVerdict::Wait };
        assert_eq!(turn, expected);
        if let (Some(ticket), Some(queue)) = (waiter.beside, &mut self.beside) {
            assert_eq!(turn, queue.turn(ticket));
        }
    }

    fn leave(&mut self, who: u32, served: bool) {
        let waiter = self.waiters.remove(&who).expect("it waits");
        assert_eq!(self.queues.leave(waiter.ticket, served, self.now), waiter.called);
        if let (Some(ticket), Some(queue)) = (waiter.beside, &mut self.beside) {
            queue.leave(ticket, served, self.now);
        }
        assert_eq!(self.queues.turn(waiter.ticket), WaitVerdict::GiveUp);
    }

    fn dismiss(&mut self) {
        while let Some(who) = self.queues.expire_next(self.now) {
            let waiter = self.waiters.remove(&who).expect("it waits");
            if let (true, Some(queue)) = (waiter.urgency == self.alone, &mut self.beside) {
                assert_eq!(queue.expire_next(self.now), Some(who));
            }
        }
        assert_eq!(self.beside.as_mut().and_then(|queue| queue.expire_next(self.now)), None);
        // No more than places come free while one may wait.
        let most = 25 * (self.pace.in_flight as usize).max(1);
        assert!(self.queues.len() <= most, "{} wait for {most} places", self.queues.len());
    }

    fn give_up_beside(&mut self) {
        self.beside.take_if(|queue| queue.is_standing(self.alone) && self.told_apart);
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
            assert_eq!(self.queues.len(), self.waiters.len());
            assert_eq!(self.queues.is_empty(), self.waiters.is_empty());
            self.give_up_beside();
            if let Some(queue) = &self.beside {
                let alone = self.waiters.values().filter(|waiter| waiter.urgency == self.alone).count();
                assert_eq!(
                    (queue.len(), queue.is_standing(self.alone)),
                    (alone, self.queues.is_standing(self.alone))
                );
            }
            let first = self.waiters.values().map(|waiter| waiter.urgency).min();
            let least = urgency(7);
            assert_eq!(self.queues.has_more_urgent(least), first.is_some_and(|first| first < least));
            assert!(!first.is_some_and(|first| self.queues.has_more_urgent(first)));
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
    fn where_all_are_alike_it_is_one_queue(
        steps in prop::collection::vec(step(&[3]), 0..400),
        in_flight in 0..12_u32,
    ) {
        let mut world = World::new(3, false, in_flight);
        world.go(&steps);
        prop_assert_eq!(world.queues.first(), None, "nobody was ever told apart");
    }
}

/// Returns queues of which that of this urgency has just come to stand, with one request in it.
fn standing(urgency: Urgency) -> (WaitQueues<u32>, Time) {
    let (mut queues, mut now) = (WaitQueues::default(), Time(0) + SOJOURN);
    // One always waits, and none is served, until the queue stands.
    let mut last = queues.enter(urgency, 0, PACE, now, now).expect("a place");
    while !queues.is_standing(urgency) {
        now = now + SOJOURN / 2;
        let next = queues.enter(urgency, 0, PACE, now, now).expect("a place");
        queues.leave(last, false, now);
        last = next;
    }
    (queues, now)
}

#[test]
fn the_urgent_take_their_time_while_others_are_refused() {
    let (usual, urgent, one) = (Urgency::default(), urgency(0), DrainRate { in_flight: 1, ..PACE });
    let (mut queues, now) = standing(usual);
    let ticket = queues.enter(urgent, 1, one, now, now).expect("a place");
    assert_eq!((ticket.until, queues.first()), (now + WAIT, Some(urgent)));
    assert!(queues.has_more_urgent(usual) && !queues.has_more_urgent(urgent));
    assert_eq!(queues.call(), Some(&1), "whichever came first");
    // One place comes free while one of the others may wait, and it is for the urgent one.
    assert_eq!((queues.expire_next(now), queues.expire_next(now)), (Some(0), None));
    assert!(!queues.is_starved(now) && queues.is_starved(now + WAIT / 10));
    queues.leave(ticket, true, now);
    assert!(queues.enter(usual, 3, one, now, now).is_some());
    assert_eq!(queues.call(), Some(&3));
}

#[test]
fn there_are_eight() {
    assert_eq!((0..=255).filter_map(Urgency::new).count(), Urgency::COUNT);
    assert_eq!(Urgency::default().value(), 3);
}
