//! The knee learnt by a member's meter, for servers of several kinds in virtual time: shared processors, a
//! thread pool with a queue, a lock, a batch. Work is constant, exponential or lognormal. Loads are from half
//! of the capacity to twice of it, and closed with clients that wait for their answers. Each run begins with
//! an empty meter at that load.

#![expect(clippy::print_stdout, reason = "the table")]

mod solo;

use solo::{Arrivals, Kind, Member, Work, learn};

const LOADS: [f64; 5] = [0.5, 0.9, 1.05, 1.3, 2.0];

const WORKS: [Work; 3] = [Work::Constant, Work::Exponential, Work::Lognormal];

/// Runs a member at all loads. `bounds` are those of the mean knee, as multiples of its processors; half a
/// request more or less is no error.
#[track_caller]
fn check(member: &Member, bounds: (f64, f64), goodput: f64) {
    let cores = member.cores as f64;
    let closed = [1, 2, 5].map(|times| Arrivals::Closed(times * member.cores));
    let all = LOADS.map(Arrivals::Open).into_iter().chain(closed);
    print!("{:?} {:?} {cores:2}:", member.kind, member.work);
    for arrivals in all {
        let learned = learn(member, arrivals, 1);
        print!("  {:4.1} ({:.2})", learned.knee, learned.goodput);
        let (least, most) = (bounds.0 * cores - 0.5, bounds.1 * cores + 0.5);
        assert!((least..=most).contains(&learned.knee), "{member:?} {arrivals:?}: {:.1}", learned.knee);
        // Below, a single member rejects some requests at any knee: there is no other with room.
        let over = matches!(arrivals, Arrivals::Open(load) if load >= 1.3);
        assert!(
            !over || learned.goodput >= goodput,
            "{member:?} {arrivals:?}: {:.2} served",
            learned.goodput
        );
    }
    println!();
}

#[test]
fn shared_processors() {
    for work in WORKS {
        for cores in [2, 6, 16] {
            check(&Member { kind: Kind::Sharing, work, cores }, (0.66, 1.5), 0.85);
        }
    }
}

/// Checks the range from half of the threads and one to twice as many.
#[test]
fn threads_and_a_queue() {
    for work in WORKS {
        for cores in [2, 6, 16] {
            check(&Member { kind: Kind::Fifo, work, cores }, (0.5, 1.3), 0.75);
        }
    }
}

#[test]
fn a_lock() {
    for work in WORKS {
        for cores in [6, 16] {
            check(&Member { kind: Kind::Lock, work, cores }, (0.5, 2.0), 0.75);
        }
    }
}

/// Checks batches: one is full as long as another waits, so twice its size fits.
#[test]
fn batches() {
    for cores in [6, 16] {
        check(&Member { kind: Kind::Batch, work: Work::Constant, cores }, (0.9, 2.6), 0.85);
    }
}
