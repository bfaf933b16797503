use alloc::vec;
use alloc::vec::Vec;

use super::*;

const SOJOURN: Duration = Duration::from_millis(40);
const SECOND: Duration = Duration::from_secs(1);
const PACE: DrainRate = DrainRate { sojourn: SOJOURN, in_flight: 8, wait: SECOND };

fn at(millis: u64) -> Time {
    Time(1) + Duration::from_millis(millis)
}

fn enter(queue: &mut WaitQueue<u32>, who: u32, millis: u64) -> Option<WaitTicket> {
    queue.enter(who, PACE, at(millis), at(millis))
}

/// Returns the requests that are dismissed now.
fn dismissed(queue: &mut WaitQueue<u32>, millis: u64) -> Vec<u32> {
    core::iter::from_fn(|| queue.expire_next(at(millis))).collect()
}

/// Returns a queue in the standing state (it was never empty, and some gave up), the waiting request, and the
/// time.
fn standing() -> (WaitQueue<u32>, WaitTicket, u64) {
    let mut queue = WaitQueue::default();
    let mut last = enter(&mut queue, 0, 0).expect("a place");
    for millis in (20..2000).step_by(20) {
        if queue.is_standing() {
            return (queue, last, millis);
        }
        let next = enter(&mut queue, 0, millis).expect("a place");
        queue.leave(last, false, at(millis));
        last = next;
    }
    panic!("it never stands");
}

#[test]
fn the_first_to_come_is_the_first_to_be_served() {
    let mut queue = WaitQueue::default();
    let tickets: Vec<WaitTicket> = (0..3).map(|who| enter(&mut queue, who, 0).expect("a place")).collect();
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
    assert!(!queue.leave(tickets[0], true, at(4)));
    assert!(queue.leave(tickets[1], false, at(4)), "another is to be woken in its place");
    assert_eq!(queue.wake_next(), Some(&2));
    assert!(queue.verdict(tickets[1]) == WaitVerdict::GiveUp && queue.len() == 1);
}

#[test]
fn a_request_is_refused_after_its_wait_or_if_it_would_have_to_wait_for_longer() {
    let mut queue = WaitQueue::default();
    let first = enter(&mut queue, 1, 0).expect("a place");
    enter(&mut queue, 2, 40).expect("a place");
    assert_eq!((first.until, dismissed(&mut queue, 999)), (at(1000), vec![]));
    assert_eq!((dismissed(&mut queue, 1000), queue.verdict(first)), (vec![1], WaitVerdict::GiveUp));
    // It has waited before: a member rejected it.
    assert_eq!(queue.enter(3, PACE, at(100), at(1050)).map(|ticket| ticket.until), Some(at(1100)));
    assert_eq!(queue.enter(4, PACE, at(40), at(1050)), None);
    // 8 in flight, of which one ends each 5 ms: 200 in a second.
    let mut queue = WaitQueue::default();
    assert_eq!((0..1000).filter(|who| enter(&mut queue, *who, 0).is_some()).count(), 200);
    assert!(!queue.is_standing());
    let idle = DrainRate { in_flight: 0, ..PACE };
    let mut queue = WaitQueue::default();
    let found = (0..1000).filter(|who| queue.enter(*who, idle, at(0), at(0)).is_some()).count();
    assert_eq!(found, 25, "that none is in flight is chance");
    let hopeless = DrainRate { wait: Duration::ZERO, ..PACE };
    assert_eq!(WaitQueue::default().enter(0, hopeless, at(0), at(0)), None);
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
    for turn in 1..2000 {
        waiting.push_back(enter(&mut queue, turn, u64::from(turn) * 20).expect("a place"));
        let first = waiting.pop_front().expect("one waits");
        queue.leave(first, true, at(u64::from(turn) * 20));
        assert!(!queue.is_standing() && !queue.is_empty());
    }
}

#[test]
fn where_some_are_always_refused_the_last_to_come_goes_first() {
    let (mut queue, first, now) = standing();
    assert!((500..600).contains(&now), "after {now} ms");
    let second = enter(&mut queue, 1, now).expect("a place");
    assert_eq!(queue.wake_next(), Some(&1));
    assert!(queue.leave(second, true, at(now)));
    assert_eq!((dismissed(&mut queue, now + 30), queue.verdict(first)), (vec![0], WaitVerdict::GiveUp));
    // Four places come free in 20 ms: newcomers push out the oldest.
    for who in 0..6 {
        enter(&mut queue, who, now + 40).expect("a place");
    }
    assert_eq!(dismissed(&mut queue, now + 40), [0, 1]);
    assert_eq!(dismissed(&mut queue, now + 60), [2, 3, 4, 5]);
    // Two seconds without a rejection.
    let ticket = enter(&mut queue, 9, now + 2059).expect("a place");
    queue.leave(ticket, true, at(now + 2059));
    assert!(queue.is_standing());
    enter(&mut queue, 10, now + 2060).expect("a place");
    assert!(!queue.is_standing());
}

#[test]
fn if_none_is_served_one_is_to_insist() {
    let mut queue = WaitQueue::default();
    assert!(!queue.is_starved(at(5000)), "none waits");
    let tickets: Vec<WaitTicket> = (0..3).map(|who| enter(&mut queue, who, 0).expect("a place")).collect();
    assert!(!queue.is_starved(at(99)) && queue.is_starved(at(100)));
    queue.leave(tickets[0], true, at(100));
    assert!(!queue.is_starved(at(199)) && queue.is_starved(at(200)));
    queue.leave(tickets[1], false, at(200));
    assert!(queue.is_starved(at(200)), "that one gave up says nothing");
    queue.leave(tickets[2], true, at(200));
    enter(&mut queue, 4, 900).expect("a place");
    assert!(!queue.is_starved(at(950)), "it has just come");
}
