//! A member's limit holds for all balancers of a fleet together, in virtual time. Demand moves from one
//! balancer to another, and reports are delayed or lost. At every moment the member has at most a tenth more
//! than the limit, and hardly less while the demand is higher.

use std::sync::Arc;
use std::time::Duration;

use dice::Dice;
use plimsoll_brain::fleet::{Fleet, FleetGroup, FleetMember, FleetReport, FleetSettings, PeerPresence};
use plimsoll_brain::{Time, Vitals};

#[expect(dead_code, reason = "other tests use the rest of it")]
mod dice;

/// The default interval of reports, and the mean time of requests, milliseconds.
const INTERVAL: u64 = 10;
const TAKES: f64 = 100.0;

/// The interval in which demand moves, milliseconds, and the demand as a multiple of the rate that the limit
/// allows.
const MOVES: u64 = 3_000;
const TOO_MUCH: f64 = 1.5;

struct Balancer {
    fleet: Fleet,
    vitals: Arc<Vitals>,
    waiting: u32,
    seq: u32,
}

/// A report on its way: the time of arrival, the sender, the receiver, the number.
type Letter = (u64, usize, usize, u32, FleetReport);

fn at(millis: u64) -> Time {
    Time(1_000_000_000 + millis * 1_000_000)
}

fn balancer(own: u64, limit: u32) -> Balancer {
    let settings = FleetSettings {
        own_id: own,
        interval: Duration::from_millis(INTERVAL),
        bytes_per_second: 1e6,
        probers: 1,
        share_retention: Duration::from_secs(60),
    };
    let (mut fleet, vitals) = (Fleet::new(settings), Arc::<Vitals>::default());
    let member =
        FleetMember { name: "10.0.0.1:80".into(), vitals: vitals.clone(), limit, health_checked: false };
    let company = Arc::<PeerPresence>::default();
    fleet
        .set_groups(vec![FleetGroup { name: "web".into(), presence: company, members: vec![member] }], at(0));
    Balancer { fleet, vitals, waiting: 0, seq: 0 }
}

/// The results: the maximum at once, the mean, and the maximum sum of the parts; as parts of the limit, after
/// the first second.
#[derive(Debug)]
struct Outcome {
    most: f64,
    mean: f64,
    parts: f64,
}

fn run(count: usize, limit: u32, lost: f64, seconds: u64, seed: u64) -> Outcome {
    let mut dice = Dice::new(seed, 1);
    let mut all: Vec<Balancer> = (1..=count as u64).map(|own| balancer(own, limit)).collect();
    for (place, one) in all.iter_mut().enumerate() {
        (1..=count as u64)
            .filter(|other| *other != place as u64 + 1)
            .for_each(|other| one.fleet.peer_joined(other, at(0)));
    }
    let mut letters: Vec<Letter> = Vec::new();
    let mut shares = vec![1.0 / count as f64; count];
    let (mut most, mut sum, mut looks, mut parts) = (0, 0.0, 0.0, 0);
    for now in 0..seconds * 1000 {
        if now % MOVES == 0 {
            let drawn: Vec<f64> = (0..count).map(|_| dice.exp(1.0)).collect();
            let whole: f64 = drawn.iter().sum();
            shares = drawn.iter().map(|one| one / whole).collect();
        }
        letters.retain(|(due, from, to, seq, report)| {
            if *due <= now {
                all[*to].fleet.receive_report(*from as u64 + 1, *seq, report, at(now));
            }
            *due > now
        });
        for place in 0..count {
            // Each balancer has its own phase.
            if (now + 3 * place as u64).is_multiple_of(INTERVAL) {
                let waiting = all[place].waiting;
                all[place].fleet.set_waiting("web", waiting);
                all[place].fleet.age_reports(at(now));
                for report in all[place].fleet.poll_reports(at(now)) {
                    all[place].seq += 1;
                    for other in (0..count).filter(|other| *other != place) {
                        if dice.unit() >= lost {
                            let due = now + 1 + (dice.exp(1.0) as u64).min(9);
                            letters.push((due, place, other, all[place].seq, report.clone()));
                        }
                    }
                }
            }
            let one = &mut all[place];
            let ended = (0..one.vitals.in_flight()).filter(|_| dice.unit() < 1.0 / TAKES).count();
            (0..ended).for_each(|_| one.vitals.end());
            let rate = TOO_MUCH * f64::from(limit) / TAKES * shares[place];
            let came = rate as u32 + u32::from(dice.unit() < rate.fract());
            // Clients give up after a while.
            one.waiting = (one.waiting + came).min(limit);
            while one.waiting > 0 && one.vitals.in_flight() < one.vitals.part().unwrap_or(limit) {
                one.vitals.begin();
                one.waiting -= 1;
            }
        }
        if now >= 1000 {
            let there: u32 = all.iter().map(|one| one.vitals.in_flight()).sum();
            most = most.max(there);
            sum += f64::from(there);
            looks += 1.0;
            parts = parts.max(all.iter().map(|one| one.vitals.part().unwrap_or(limit)).sum());
        }
    }
    let limit = f64::from(limit);
    Outcome { most: f64::from(most) / limit, mean: sum / looks / limit, parts: f64::from(parts) / limit }
}

#[test]
fn a_limit_holds_within_a_tenth_whoever_wants_how_much() {
    for (count, limit) in [(2, 20), (3, 20), (3, 100), (8, 100)] {
        for lost in [0.0, 0.1] {
            for seed in 1..=3 {
                let seen = run(count, limit, lost, 30, seed);
                eprintln!("{count} balancers, limit {limit}, {lost} lost: {seen:.3?}");
                assert!(seen.most <= 1.1, "{count} balancers, limit {limit}, {lost} lost: {seen:?}");
                assert!(seen.parts <= 1.1, "{count} balancers, limit {limit}, {lost} lost: {seen:?}");
                assert!(seen.mean >= 0.9, "{count} balancers, limit {limit}, {lost} lost: {seen:?}");
            }
        }
    }
}
