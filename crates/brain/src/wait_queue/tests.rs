use alloc::vec;
use alloc::vec::Vec;

use super::*;

const SOJOURN: Duration = Duration::from_millis(40);
const SECOND: Duration = Duration::from_secs(1);
const DRAIN_RATE: DrainRate = DrainRate { sojourn: SOJOURN, in_flight: 8, wait: SECOND };

fn at_millis(millis: u64) -> Time {
    Time(1) + Duration::from_millis(millis)
}

fn enter(queue: &mut WaitQueue<u32>, waiter: u32, millis: u64) -> Option<WaitTicket> {
    queue.enter(waiter, DRAIN_RATE, at_millis(millis), at_millis(millis))
}

/// Returns the requests that are dismissed now.
fn expired(queue: &mut WaitQueue<u32>, millis: u64) -> Vec<u32> {
    core::iter::from_fn(|| queue.expire_next(at_millis(millis))).collect()
}

/// Returns a queue in the standing state (it was never empty, and some gave up), the waiting request, and the
/// time.
fn standing_queue() -> (WaitQueue<u32>, WaitTicket, u64) {
    let mut queue = WaitQueue::default();
    let mut last = enter(&mut queue, 0, 0).expect("a place");
    for millis in (20..2000).step_by(20) {
        if queue.is_standing() {
            return (queue, last, millis);
        }
        let next = enter(&mut queue, 0, millis).expect("a place");
        queue.leave(last, false, at_millis(millis));
        last = next;
    }
    panic!("it never stands");
}

#[test]
fn the_first_to_come_is_the_first_to_be_served() {
    let mut queue = WaitQueue::default();
    let tickets: Vec<WaitTicket> =
        (0..3).map(|waiter| enter(&mut queue, waiter, 0).expect("a place")).collect();
    assert_eq!(queue.verdict(tickets[0]), WaitVerdict::Wait, "none was woken");
    assert_eq!(
        (queue.wake_next().copied(), queue.wake_next().copied()),
        (Some(0), Some(1)),
        "none is woken twice"
    );
    assert_eq!(
        (queue.verdict(tickets[0]), queue.verdict(tickets[0])),
        (WaitVerdict::TryAgain, WaitVerdict::Wait)
    );
    assert!(!queue.leave(tickets[0], true, at_millis(4)));
    assert!(queue.leave(tickets[1], false, at_millis(4)), "another is to be woken in its place");
    assert_eq!(queue.wake_next(), Some(&2));
    assert!(queue.verdict(tickets[1]) == WaitVerdict::GiveUp && queue.len() == 1);
}

#[test]
fn a_request_is_refused_after_its_wait_or_if_it_would_have_to_wait_for_longer() {
    let mut queue = WaitQueue::default();
    let first = enter(&mut queue, 1, 0).expect("a place");
    enter(&mut queue, 2, 40).expect("a place");
    assert_eq!((first.until, expired(&mut queue, 999)), (at_millis(1000), vec![]));
    assert_eq!((expired(&mut queue, 1000), queue.verdict(first)), (vec![1], WaitVerdict::GiveUp));
    // It has waited before: a member rejected it.
    assert_eq!(
        queue.enter(3, DRAIN_RATE, at_millis(100), at_millis(1050)).map(|ticket| ticket.until),
        Some(at_millis(1100))
    );
    assert_eq!(queue.enter(4, DRAIN_RATE, at_millis(40), at_millis(1050)), None);
    // 8 in flight, of which one ends each 5 ms: 200 in a second.
    let mut queue = WaitQueue::default();
    assert_eq!((0..1000).filter(|waiter| enter(&mut queue, *waiter, 0).is_some()).count(), 200);
    assert!(!queue.is_standing());
    let idle_rate = DrainRate { in_flight: 0, ..DRAIN_RATE };
    let mut queue = WaitQueue::default();
    let admitted = (0..1000)
        .filter(|waiter| queue.enter(*waiter, idle_rate, at_millis(0), at_millis(0)).is_some())
        .count();
    assert_eq!(admitted, 25, "that none is in flight is chance");
    let no_wait_rate = DrainRate { wait: Duration::ZERO, ..DRAIN_RATE };
    assert_eq!(WaitQueue::default().enter(0, no_wait_rate, at_millis(0), at_millis(0)), None);
}

#[test]
fn clients_wait_for_a_second_however_quick_requests_are() {
    let wait = |millis: u64, objective: Option<u64>| {
        DrainRate::new(Duration::from_millis(millis), 1, objective.map(Duration::from_millis))
            .wait
            .as_millis()
    };
    assert_eq!([0, 1, 100, 250, 2000].map(|millis| wait(millis, None)), [1000, 998, 800, 500, 4000]);
    assert_eq!((wait(100, Some(300)), wait(100, Some(50))), (200, 0));
    assert_eq!(DrainRate::new(Duration::ZERO, 1, None).sojourn, TARGET_WAIT, "none has been answered yet");
    let _ = DrainRate::new(Duration::MAX, u32::MAX, None);
}

#[test]
fn a_queue_that_serves_all_never_stands() {
    let mut queue = WaitQueue::default();
    let mut waiting = VecDeque::from([enter(&mut queue, 0, 0).expect("a place")]);
    for step in 1..2000 {
        waiting.push_back(enter(&mut queue, step, u64::from(step) * 20).expect("a place"));
        let first = waiting.pop_front().expect("one waits");
        queue.leave(first, true, at_millis(u64::from(step) * 20));
        assert!(!queue.is_standing() && !queue.is_empty());
    }
}

#[test]
fn where_some_are_always_refused_the_last_to_come_goes_first() {
    let (mut queue, first, now) = standing_queue();
    assert!((500..600).contains(&now), "after {now} ms");
    let second = enter(&mut queue, 1, now).expect("a place");
    assert_eq!(queue.wake_next(), Some(&1));
    assert!(queue.leave(second, true, at_millis(now)));
    assert_eq!((expired(&mut queue, now + 30), queue.verdict(first)), (vec![0], WaitVerdict::GiveUp));
    // Four places come free in 20 ms: newcomers push out the oldest.
    for waiter in 0..6 {
        enter(&mut queue, waiter, now + 40).expect("a place");
    }
    assert_eq!(expired(&mut queue, now + 40), [0, 1]);
    assert_eq!(expired(&mut queue, now + 60), [2, 3, 4, 5]);
    // Two seconds without a rejection.
    let ticket = enter(&mut queue, 9, now + 2059).expect("a place");
    queue.leave(ticket, true, at_millis(now + 2059));
    assert!(queue.is_standing());
    enter(&mut queue, 10, now + 2060).expect("a place");
    assert!(!queue.is_standing());
}

#[test]
fn if_none_is_served_one_is_to_insist() {
    let mut queue = WaitQueue::default();
    assert!(!queue.is_starved(at_millis(5000)), "none waits");
    let tickets: Vec<WaitTicket> =
        (0..3).map(|waiter| enter(&mut queue, waiter, 0).expect("a place")).collect();
    assert!(!queue.is_starved(at_millis(99)) && queue.is_starved(at_millis(100)));
    queue.leave(tickets[0], true, at_millis(100));
    assert!(!queue.is_starved(at_millis(199)) && queue.is_starved(at_millis(200)));
    queue.leave(tickets[1], false, at_millis(200));
    assert!(queue.is_starved(at_millis(200)), "that one gave up says nothing");
    queue.leave(tickets[2], true, at_millis(200));
    enter(&mut queue, 4, 900).expect("a place");
    assert!(!queue.is_starved(at_millis(950)), "it has just come");
}
