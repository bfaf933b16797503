use alloc::vec;
use alloc::vec::Vec;

use super::*;

const SOJOURN: Duration = Duration::from_millis(40);
const PACE: Pace = Pace { sojourn: SOJOURN, in_flight: 8, wait: None, silent: false };

fn at(sojourns: f64) -> Time {
    Time(1) + SOJOURN.mul_f64(sojourns)
}

fn enter(line: &mut Line<u32>, who: u32, sojourns: f64) -> Option<Ticket> {
    line.enter(who, PACE, at(sojourns), at(sojourns))
}

/// Those that are sent away now.
fn gone(line: &mut Line<u32>, sojourns: f64) -> Vec<u32> {
    core::iter::from_fn(|| line.dismiss(at(sojourns))).collect()
}

/// A line that was never empty for as long as it takes, of which every other one goes unserved, with one that came last.
fn hurried() -> (Line<u32>, Ticket, f64) {
    let mut line = Line::default();
    let mut last = enter(&mut line, 0, 0.0).unwrap();
    let mut sojourns = 0.0;
    for who in 1.. {
        if line.hurried() {
            return (line, last, sojourns);
        }
        sojourns += 0.5;
        let next = enter(&mut line, who, sojourns).unwrap();
        line.leave(last, who % 2 == 0, at(sojourns));
        last = next;
        assert!(who < 1000, "it never hurries");
    }
    unreachable!()
}

/// A line that is never empty, as each leaves in vain when the next has come, half a sojourn later; and when it has enough of that.
fn until_it_hurries(pace: Pace) -> (Line<u32>, Time) {
    let mut line = Line::default();
    let mut last = line.enter(0, pace, at(0.0), at(0.0)).unwrap();
    for turn in 1..1000 {
        let now = at(0.0) + pace.sojourn / 2 * turn;
        let next = line.enter(turn, pace, now, now).unwrap();
        line.leave(last, false, now);
        last = next;
        if line.hurried() {
            return (line, now);
        }
    }
    panic!("it never hurries");
}

#[test]
fn at_first_the_first_to_come_goes_first() {
    let mut line = Line::default();
    let tickets: Vec<Ticket> = (0..3).map(|who| enter(&mut line, who, 0.0).unwrap()).collect();
    assert_eq!(line.turn(tickets[0]), Turn::Wait, "nobody was told anything");
    assert_eq!((line.call().copied(), line.call().copied()), (Some(0), Some(1)), "nobody is told twice");
    assert_eq!((line.turn(tickets[0]), line.turn(tickets[0])), (Turn::Look, Turn::Wait));
    assert!(!line.leave(tickets[0], true, at(0.1)));
    assert!(line.leave(tickets[1], false, at(0.1)), "what it was told is for the next");
    assert_eq!(line.call(), Some(&2));
    assert!(line.turn(tickets[1]) == Turn::Go && line.len() == 1);
}

#[test]
fn nobody_waits_longer_than_may_help() {
    let mut line = Line::default();
    let early = enter(&mut line, 1, 0.0).unwrap();
    enter(&mut line, 2, 1.0).unwrap();
    assert_eq!((early.until, gone(&mut line, 15.99)), (at(16.0), vec![]));
    assert_eq!((gone(&mut line, 16.01), line.turn(early)), (vec![1], Turn::Go));
    // Who was sent away by a member waits no longer in all.
    let mut line = Line::default();
    assert_eq!(line.enter(3, PACE, at(1.5), at(16.5)).unwrap().until, at(17.5));
    assert_eq!(line.enter(4, PACE, at(0.4), at(16.5)), None);
    assert_eq!(gone(&mut line, 18.0), [3]);
}

#[test]
fn there_are_no_more_than_will_be_served() {
    let mut line = Line::default();
    let found = (0..1000).filter(|who| enter(&mut line, *who, 0.0).is_some()).count();
    assert_eq!((found, line.len()), (128, 128), "sixteen times what is in flight");
    let idle = Pace { in_flight: 0, ..PACE };
    let mut line = Line::default();
    let found = (0..1000).filter(|who| line.enter(*who, idle, at(0.0), at(0.0)).is_some()).count();
    assert_eq!(found, 16, "others may have sent what the members have");
    let unknown = Pace { sojourn: Duration::ZERO, ..PACE };
    assert!(Line::default().enter(0, unknown, at(0.0), at(0.0)).is_none(), "nobody knows for how long");
    let endless = Pace { sojourn: Duration::MAX, in_flight: u32::MAX, wait: None, silent: false };
    let until = Line::default().enter(0, endless, Time(0), Time(0)).unwrap().until;
    assert_eq!(until, Time(2_000_000_000));
}

#[test]
fn quick_and_slow_requests_have_bounds_in_seconds() {
    let of = |milliseconds: u64| Pace { sojourn: Duration::from_millis(milliseconds), ..PACE };
    // Milliseconds that a request takes, that one may wait, that are more than a burst.
    for (sojourn, patience, burst) in [
        (1, 100, 400),
        (10, 160, 400),
        (40, 640, 640),
        (200, 1000, 2000),
        (300, 1000, 2400),
        (600, 1200, 4800),
        (1000, 2000, 8000),
    ] {
        let pace = of(sojourn);
        let ticket = Line::default().enter(0, pace, at(0.0), at(0.0)).unwrap();
        assert_eq!(ticket.until, at(0.0) + Duration::from_millis(patience), "{sojourn} ms");
        let (_, hurries) = until_it_hurries(pace);
        let burst = at(0.0) + Duration::from_millis(burst);
        assert!((burst..burst + pace.sojourn).contains(&hurries), "{sojourn} ms: {hurries:?}");
    }
    // Where they take ten seconds, one place comes free in two for five that are in flight.
    let slow = Pace { in_flight: 20, ..of(10_000) };
    let mut line = Line::default();
    let found = (0..1000).filter(|who| line.enter(*who, slow, at(0.0), at(0.0)).is_some()).count();
    assert_eq!((found, line.patience()), (4, Duration::from_secs(2)));
}

#[test]
fn a_burst_that_ends_hurries_nobody() {
    let mut line = Line::default();
    for burst in 0..100 {
        let begun = f64::from(burst) * 16.0;
        let tickets: Vec<Ticket> = (0..128).map(|who| enter(&mut line, who, begun).unwrap()).collect();
        assert!(enter(&mut line, 128, begun).is_none(), "one too many");
        for (ticket, turn) in tickets.iter().zip(1..) {
            line.leave(*ticket, true, at(begun + f64::from(turn) * 0.1));
        }
        assert!(!line.hurried() && line.is_empty(), "{burst}");
    }
}

#[test]
fn where_it_never_ends_the_last_to_come_goes_first_and_the_others_soon() {
    let (mut line, last, now) = hurried();
    assert!((16.0..17.0).contains(&now), "after {now} sojourns");
    let next = enter(&mut line, 777, now).unwrap();
    assert_eq!(line.call(), Some(&777));
    assert_eq!(next.until, at(now + HASTE));
    // Eight are in flight: one place comes free while one may wait.
    assert_eq!((gone(&mut line, now).len(), line.len()), (1, 1));
    assert_eq!((line.turn(last), line.turn(next)), (Turn::Go, Turn::Look));
    for who in 0..1000 {
        assert!(enter(&mut line, who, now + 0.01).is_some(), "the oldest makes room");
        assert_eq!(gone(&mut line, now + 0.01).len(), 1);
    }
    assert_eq!(gone(&mut line, now + 0.2), [999]);
}

#[test]
fn where_requests_are_quick_a_moment_is_neither_overload_nor_its_end() {
    let millisecond = Duration::from_millis(1);
    let pace = Pace { sojourn: millisecond, in_flight: 8, wait: None, silent: false };
    let at = |millis: u32| Time(1) + millisecond * millis;
    let mut line = Line::default();
    let mut last = line.enter(0, pace, at(0), at(0)).unwrap();
    assert_eq!(last.until, at(100));
    let mut millis = 0;
    while !line.hurried() {
        millis += 50;
        let next = line.enter(millis, pace, at(millis), at(millis)).unwrap();
        line.leave(last, false, at(millis));
        last = next;
    }
    assert_eq!(millis, 400);
    line.leave(last, true, at(400));
    // Nobody is turned away for a while, and then for longer.
    let next = line.enter(1, pace, at(460), at(460)).unwrap();
    line.leave(next, true, at(460));
    assert!(line.hurried());
    line.enter(2, pace, at(501), at(501)).unwrap();
    assert!(!line.hurried());
}

#[test]
fn that_somebody_always_waits_hurries_nobody_as_long_as_all_are_served() {
    let mut line = Line::default();
    let mut last = enter(&mut line, 0, 0.0).unwrap();
    let mut wait = |served: bool, turn: u32| {
        let now = at(f64::from(turn) * 1.5);
        let next = line.enter(turn, PACE, now, now).unwrap();
        line.leave(last, served, now);
        last = next;
        line.hurried()
    };
    for turn in 1..100 {
        assert!(!wait(true, turn), "{turn}");
    }
    // One that was not, and it was no burst that kept it from it. One is not the last for long.
    assert!(wait(false, 100));
    let mut line = Line::default();
    let first = enter(&mut line, 0, 0.0).unwrap();
    line.leave(first, false, at(1.0));
    let mut last = enter(&mut line, 0, 1.0).unwrap();
    for turn in 1..100 {
        let now = 1.0 + f64::from(turn) * 1.5;
        let next = enter(&mut line, turn, now).unwrap();
        line.leave(last, true, at(now));
        last = next;
        assert!(!line.hurried(), "{turn}");
    }
}

#[test]
fn who_cannot_wait_for_as_long_as_others_and_leaves_counts_as_well() {
    let mut line = Line::default();
    let mut last = enter(&mut line, 0, 0.0).unwrap();
    for turn in 1..100 {
        let now = f64::from(turn) * 0.2;
        let next = enter(&mut line, turn, now).unwrap();
        line.leave(last, turn % 3 > 0, at(now));
        last = next;
    }
    assert!(line.hurried(), "nobody has waited for long, and many in vain");
}

#[test]
fn where_there_is_time_it_is_taken() {
    let aim = |sojourns: f64| Pace::new(SOJOURN, 8, Some(SOJOURN.mul_f64(sojourns)));
    let mut line = Line::default();
    let found = (0..1000).filter(|who| line.enter(*who, aim(11.0), at(0.0), at(0.0)).is_some()).count();
    assert_eq!(found, 80, "ten sojourns with eight places in each");
    assert_eq!((gone(&mut line, 9.99).len(), gone(&mut line, 10.01).len()), (0, 80));
    // Where there is less than a burst takes it is a burst all the same, and where there is more all of that.
    for (sojourns, hurries) in [(11.0, 16.0), (31.0, 30.0)] {
        let (line, waited) = until_it_hurries(aim(sojourns));
        assert!((at(hurries)..at(hurries + 1.0)).contains(&waited), "{sojourns} sojourns: {waited:?}");
        assert!(line.patience() <= SOJOURN.mul_f64(HASTE));
    }
    // Where the answer would come too late anyway nobody waits, and where nobody knows how long it takes.
    assert_eq!(Line::default().enter(0, aim(0.9), at(0.0), at(0.0)), None);
    let unknown = Pace::new(Duration::ZERO, 8, Some(SOJOURN));
    assert_eq!(Line::default().enter(0, unknown, at(0.0), at(0.0)), None);
}

#[test]
fn it_takes_its_time_again_when_all_were_served_for_a_while() {
    let (mut line, last, begun) = hurried();
    let mut now = begun;
    line.leave(last, true, at(now));
    while line.hurried() {
        let ticket = enter(&mut line, 1, now).unwrap();
        now += 0.1;
        line.leave(ticket, true, at(now));
        assert!(now < 1000.0, "it stays in haste");
    }
    let calm = now - begun;
    assert!((CALM..CALM + 1.0).contains(&calm), "{calm} sojourns without anybody turned away");
    let (mut line, _, mut now) = hurried();
    for turn in 0..100 {
        // One in five is sent away.
        let ticket = enter(&mut line, turn, now).unwrap();
        now += 0.2;
        line.leave(ticket, turn % 5 > 0, at(now));
        assert!(line.hurried(), "{turn}");
    }
    now += 100.0;
    enter(&mut line, 0, now).unwrap();
    assert!(!line.hurried(), "nobody has been here for long");
}

/// Somebody is turned away who came then, seventeen sojourns ago: how long the next one may wait.
fn refuse(line: &mut Line<u32>, pace: Pace, sojourns: f64) -> Duration {
    let [since, now] = [0.0, 17.0].map(|later| Time(1) + pace.sojourn.mul_f64(sojourns + later));
    assert!(line.enter(0, pace, since, now).is_none());
    line.patience()
}

#[test]
fn where_some_are_refused_all_the_time_the_wait_is_halved_though_nobody_waits() {
    let pace = Pace { sojourn: Duration::from_millis(60), ..PACE };
    let then = |sojourns: f64| Time(1) + pace.sojourn.mul_f64(sojourns + 17.0);
    let mut line = Line::default();
    let waits: Vec<u128> =
        (0..20).map(|turn| refuse(&mut line, pace, f64::from(turn) * 6.0).as_millis()).collect();
    assert_eq!(waits[..10], [960, 960, 960, 480, 480, 480, 240, 240, 240, 120]);
    assert_eq!(waits[10..], [120; 10], "to two sojourns, and no less");
    assert!(!line.hurried(), "nobody waited");
    let mut comes = |sojourns: f64| {
        let ticket = line.enter(0, pace, then(sojourns), then(sojourns)).unwrap();
        line.leave(ticket, true, then(sojourns));
        line.patience().as_millis()
    };
    // The last one was refused at 114.
    assert_eq!([177.9, 178.1, 241.9, 242.1, 305.9, 306.1].map(&mut comes), [120, 240, 240, 480, 480, 960]);
    let last = (0..20).map(|turn| refuse(&mut line, pace, 400.0 + f64::from(turn) * 6.0).as_millis()).last();
    assert_eq!(last, Some(120));
    line.enter(0, pace, then(900.0), then(900.0)).unwrap();
    assert_eq!(line.patience().as_millis(), 960, "nobody came for long");
}

#[test]
fn those_that_wait_are_not_told_to_go_because_it_was_halved() {
    let mut line = Line::default();
    let refused = |line: &mut Line<u32>, turn: u32| refuse(line, PACE, f64::from(turn) * 6.0);
    (0..2).for_each(|turn| assert_eq!(refused(&mut line, turn), SOJOURN * 16));
    enter(&mut line, 7, 27.0).unwrap();
    assert_eq!((2..4).map(|turn| refused(&mut line, turn)).last(), Some(SOJOURN * 8));
    assert_eq!((gone(&mut line, 42.9), gone(&mut line, 43.1)), (vec![], vec![7]));
}

#[test]
fn a_burst_in_which_some_are_refused_makes_nobody_wait_less_and_neither_do_those_that_leave() {
    let (mut bursts, mut leavers) = (Line::default(), Line::default());
    for burst in 0..20 {
        for turn in 0..8 {
            let now = f64::from(burst) * 24.0 + f64::from(turn);
            assert_eq!(refuse(&mut bursts, PACE, now), SOJOURN * 16, "{burst}");
            let ticket = enter(&mut leavers, 0, now).unwrap();
            leavers.leave(ticket, false, at(now));
            assert_eq!(leavers.patience(), SOJOURN * 16, "{burst}");
        }
    }
}

#[test]
fn what_clients_want_is_not_halved() {
    let mut line = Line::default();
    let pace = Pace { wait: Some(SOJOURN * 10), ..PACE };
    (0..20).for_each(|turn| assert_eq!(refuse(&mut line, pace, f64::from(turn) * 6.0), SOJOURN * 10));
}
