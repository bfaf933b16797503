//! The cost of a choice and of a plan, by strategy and size of the group.
//!
//! `choose/<strategy>` is the most frequent case of a strategy: half of the members busy, no limit reached.
//! `choose/<strategy>/busy` has every member busy, so that nothing ends early. `plan/<strategy>` is the slow
//! path: odd capacities, so that nothing is exact by luck. Run with `cargo bench -p plimsoll-brain`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use plimsoll_brain::{
    EffectiveLoad, Member, MemberId, MemberState, PickRequest, PickerState, Plan, ShedDecision, Strategy,
    StrategyParams, Time, Vitals, hash, mix, strategy,
};

const SIZES: [u32; 3] = [10, 1_000, 10_000];

fn members(count: u32, capacity: impl Fn(u32) -> f64, busy: impl Fn(u32) -> u32) -> Vec<Member> {
    let member = |index: u32| {
        let name = format!("10.0.{}.{}:80", index / 256, index % 256);
        let vitals = Arc::new(Vitals::with_in_flight(busy(index)));
        let latency = Duration::from_micros(1_000 + mix(u64::from(index)) % 1_000);
        vitals.record_latency(latency, Time(0), Duration::from_secs(10));
        Member {
            id: MemberId(index),
            seed: hash(name.as_bytes()),
            address: name.parse().expect("an address"),
            name: Arc::from(name),
            capacity: capacity(index),
            weight: capacity(index),
            limit: u32::MAX,
            state: MemberState::Up,
            load: None,
            effective: Some(EffectiveLoad { value: (mix(u64::from(index)) % 1_000) as f64, begun: 0 }),
            usage: None,
            shed: ShedDecision::default(),
            deficit: 0.0,
            vitals,
        }
    };
    (0..count).map(member).collect()
}

fn plan(strategy: &'static Strategy, members: Vec<Member>) -> Plan {
    Plan::new(strategy, StrategyParams::defaults(strategy), members)
}

fn choose(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choose");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let capacity = |index: u32| f64::from(1 + index % 3);
    for strategy in strategy::ALL {
        for count in SIZES {
            let half = plan(strategy, members(count, capacity, |index| mix(u64::from(index)) as u32 & 1));
            let full = plan(strategy, members(count, capacity, |index| 1 + mix(u64::from(index)) as u32 % 7));
            for (plan, case) in [(half, ""), (full, "/busy")] {
                let name = format!("{}{case}", strategy.name);
                group.bench_function(BenchmarkId::new(name, count), |bencher| {
                    let mut hand = PickerState::default();
                    let mut ask = PickRequest {
                        turn: 0,
                        random_bits: 1,
                        key: 2,
                        now: Time(5_000_000_000),
                        ..PickRequest::default()
                    };
                    bencher.iter(|| {
                        ask.turn += 1;
                        ask.random_bits = mix(ask.random_bits);
                        ask.key = ask.key.wrapping_add(ask.random_bits);
                        black_box(plan.choose(&mut hand, &ask, &[]))
                    });
                });
            }
        }
    }
    group.finish();
}

fn prepare(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for strategy in strategy::ALL {
        for count in SIZES {
            let odd = members(count, |index| f64::from(index + 1).sqrt(), |_| 0);
            group.bench_function(BenchmarkId::new(strategy.name, count), |bencher| {
                bencher.iter(|| plan(strategy, black_box(odd.clone())));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, choose, prepare);
criterion_main!(benches);
