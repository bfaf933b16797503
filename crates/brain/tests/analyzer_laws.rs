//! The invariants of the slow path after any sequence of calls.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, Event, EventKind, GroupSpec, HealthSpec, MemberId, MemberSpec, MemberState, MemberTraffic,
    OutlierSpec, Plan, ReportedLoad, StrategyParams, Time, UsageReport, WhenAllDown, strategy,
};
use proptest::prelude::*;
use proptest::sample::Index;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

#[derive(Clone, Debug)]
enum Call {
    Probe(Index, bool),
    Streak(Index),
    Totals(Vec<(u8, u8)>),
    Load(Index, f64),
    /// The loads of all members, this many milliseconds apart.
    Loads(Vec<f64>, u64),
    Usage(Index, [f64; 3]),
    OnDemand(bool),
    Drain(Index),
    Undrain(Index),
    Disable(Index),
    Enable(Index),
    Update(GroupSpec),
    Timeout,
    /// To the requested time.
    Sleep,
}

fn any_spec() -> impl Strategy<Value = GroupSpec> {
    let health = (0_u32..4, 0_u32..4).prop_map(|(rise, fall)| HealthSpec { rise, fall });
    let outlier = (0_u32..4, 0_u64..20, 0.0_f64..3.0, 0_u64..30, 0_u64..30, 0.0_f64..=1.0).prop_map(
        |(consecutive, interval, deviations, min_requests, ejection, max_ejected)| OutlierSpec {
            false_alarm: 1e-6,
            consecutive,
            interval: Duration::from_secs(interval),
            deviations,
            min_requests,
            ejection: Duration::from_secs(ejection),
            max_ejection: Duration::from_secs(60),
            max_ejected,
        },
    );
    let parts = (
        prop::sample::select(strategy::ALL),
        prop::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len()).prop_shuffle(),
        prop::option::weighted(0.7, health),
        prop::option::weighted(0.8, outlier),
        prop_oneof![Just(0_u64), 0_u64..30_000],
        any::<bool>(),
        prop::option::of(prop_oneof![0.0_f64..3.0, any::<f64>()]),
    );
    parts.prop_map(|(strategy, names, health, outlier, slow_start, open, knob)| GroupSpec {
        name: Arc::from("web"),
        strategy,
        params: knob.map_or_else(|| StrategyParams::defaults(strategy), |knob| StrategyParams(vec![knob; 5])),
        members: names
            .into_iter()
            .map(|name| MemberSpec {
                name: Arc::from(name),
                address: "10.0.0.1:80".parse().expect("an address"),
                capacity: 1.0,
                limit: u32::MAX,
                leaving: false,
                checked: false,
            })
            .collect(),
        health,
        outlier,
        slow_start: Duration::from_millis(slow_start),
        when_all_down: if open { WhenAllDown::FailOpen } else { WhenAllDown::Reject },
        admission: None,
        objective: None,
        aperture: None,
    })
}

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (any::<Index>(), prop::bool::weighted(0.7))
            .prop_map(|(which, passed)| Call::Probe(which, passed)),
        4 => any::<Index>().prop_map(Call::Streak),
        3 => prop::collection::vec(any::<(u8, u8)>(), NAMES.len()).prop_map(Call::Totals),
        4 => (any::<Index>(), any_number()).prop_map(|(which, value)| Call::Load(which, value)),
        4 => (prop::collection::vec(any_number(), NAMES.len()), 0_u64..5_000)
            .prop_map(|(loads, apart)| Call::Loads(loads, apart)),
        2 => (any::<Index>(), [any_number(), any_number(), any_number()])
            .prop_map(|(which, numbers)| Call::Usage(which, numbers)),
        1 => prop::bool::weighted(0.8).prop_map(Call::OnDemand),
        1 => any::<Index>().prop_map(Call::Drain),
        2 => any::<Index>().prop_map(Call::Undrain),
        1 => any::<Index>().prop_map(Call::Disable),
        2 => any::<Index>().prop_map(Call::Enable),
        1 => any_spec().prop_map(Call::Update),
        2 => Just(Call::Timeout),
        3 => Just(Call::Sleep),
    ]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0_f64..2.0, 1 => any::<f64>(), 1 => Just(f64::MAX), 1 => Just(0.0)]
}

/// Returns the name, id and state of each member.
fn states(analyzer: &Analyzer) -> Vec<(String, MemberId, MemberState)> {
    let status = analyzer.status(Time(0)).into_iter();
    status.map(|(id, member)| (member.name, id, member.state)).collect()
}

/// Performs a call; ids may be those of members that have left.
fn call(analyzer: &mut Analyzer, call: &Call, counts: &mut [MemberTraffic; 7], now: &mut Time) {
    let id = |which: &Index| MemberId(which.index(9) as u32);
    let name = |which: &Index| NAMES[which.index(NAMES.len())];
    match call {
        Call::Probe(which, true) => analyzer.handle_probe(id(which), Ok(()), *now),
        Call::Probe(which, false) => analyzer.handle_probe(id(which), Err("refused"), *now),
        Call::Streak(which) => analyzer.handle_streak(id(which), *now),
        Call::Totals(traffic) => {
            for (total, (requests, failures)) in counts.iter_mut().zip(traffic) {
                total.requests += u64::from(*requests);
                total.failures += u64::from(*failures);
            }
            let totals: Vec<(MemberId, MemberTraffic)> = (0..).map(MemberId).zip(*counts).collect();
            analyzer.handle_totals(&totals, *now);
        }
        Call::Load(which, value) => {
            _ = analyzer.handle_load(id(which), ReportedLoad { value: *value, at: *now, of_host: false })
        }
        Call::Loads(loads, apart) => {
            for (member, value) in (0..).map(MemberId).zip(loads) {
                *now = *now + Duration::from_millis(*apart / NAMES.len() as u64);
                analyzer.handle_load(member, ReportedLoad { value: *value, at: *now, of_host: false });
            }
        }
        Call::Usage(which, [rps, utilization, eps]) => {
            let usage = UsageReport { rps: *rps, utilization: *utilization, eps: *eps, at: *now };
            analyzer.handle_usage(id(which), usage, *now);
        }
        Call::OnDemand(on) => analyzer.set_on_demand(*on, *now),
        Call::Drain(which) => _ = analyzer.drain(name(which), *now),
        Call::Undrain(which) => _ = analyzer.undrain(name(which), *now),
        Call::Disable(which) => _ = analyzer.disable(name(which), *now),
        Call::Enable(which) => _ = analyzer.enable(name(which), *now),
        Call::Update(spec) => analyzer.update(spec.clone(), *now),
        Call::Timeout => analyzer.handle_timeout(*now),
        Call::Sleep => {
            *now = analyzer.poll_timeout().unwrap_or(*now).max(*now);
            analyzer.handle_timeout(*now);
            assert!(analyzer.poll_timeout().is_none_or(|next| next > *now), "it would be called forever");
        }
    }
}

fn check(analyzer: &Analyzer, plan: &Plan, before: &[(String, MemberId, MemberState)], events: &[Event]) {
    let after = states(analyzer);
    let spec = analyzer.spec();
    let usable = after.iter().filter(|(_, _, state)| state.is_eligible()).count();
    let ejected = after.iter().filter(|(_, _, state)| *state == MemberState::Ejected).count();

    let open = usable == 0 && spec.when_all_down == WhenAllDown::FailOpen;
    let planned: Vec<MemberId> = plan.members().iter().map(|member| member.id).collect();
    let expected = after.iter().filter(|(_, _, state)| match open {
        true => ![MemberState::Draining, MemberState::Disabled].contains(state),
        false => state.is_eligible(),
    });
    assert_eq!(planned, expected.map(|(_, id, _)| *id).collect::<Vec<_>>(), "{after:?}");
    for member in plan.members() {
        let ramping = member.state == MemberState::SlowStart;
        assert!(member.weight <= member.capacity && member.weight >= 0.1 * member.capacity);
        assert!(ramping || member.weight == member.capacity, "{member:?}");
        assert!((0.0..=1.0).contains(&member.shed.share), "{member:?}");
        assert!(member.deficit.is_finite() && member.deficit >= 0.0, "{member:?}");
        assert!(
            member.effective.is_none_or(|load| load.value.is_finite() && load.value >= 0.0),
            "{member:?}"
        );
    }
    for alert in analyzer.alerts() {
        let (_, _, state) =
            after.iter().find(|(_, id, _)| *id == alert.member).expect("a member of the group");
        assert!(
            state.is_eligible() && alert.shed.share > 0.0 && alert.shed.epoch > 0,
            "{state:?}: {alert:?}"
        );
    }

    match &spec.outlier {
        None => assert_eq!(ejected, 0),
        Some(outlier) => {
            let share = (outlier.max_ejected * after.len() as f64) as usize;
            assert!(ejected <= share.max(1), "{ejected} of {} ejected: {outlier:?}", after.len());
        }
    }
    assert!(ejected == 0 || usable > 0, "an ejected member is better than none");
    assert!(
        spec.health.is_some()
            || after.iter().all(|(_, _, state)| !matches!(state, MemberState::Down | MemberState::Unchecked))
    );
    assert!(
        spec.slow_start > Duration::ZERO
            || after.iter().all(|(_, _, state)| *state != MemberState::SlowStart)
    );

    for (name, id, state) in &after {
        let known = before.iter().find(|(known, _, _)| known == name);
        if let Some((_, old_id, old)) = known {
            assert_eq!(id, old_id);
            assert!(old == state || told(events, name), "{name}: {old:?} to {state:?}, {events:?}");
        } else {
            assert!(told(events, name), "{name} joined");
            assert!(before.iter().all(|(_, used, _)| used != id), "an id names one member");
        }
    }
    for (name, _, _) in before.iter().filter(|(name, _, _)| after.iter().all(|(known, _, _)| known != name)) {
        assert!(
            events.iter().any(|event| event.kind == EventKind::Left && event.member.as_deref() == Some(name))
        );
    }
    for event in events {
        assert!(
            !event.why.is_empty() && event.inputs.iter().all(|(_, value)| value.is_finite()),
            "{event:?}"
        );
    }
    for (_, member) in analyzer.status(Time(0)) {
        assert!(!member.why.is_empty());
    }
    assert!(analyzer.verdict().starts_with(&format!("{usable}/{} ", after.len())) || after.is_empty());
}

fn told(events: &[Event], name: &str) -> bool {
    events.iter().any(|event| event.member.as_deref() == Some(name))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn after_any_calls(
        spec in any_spec(),
        calls in prop::collection::vec((any_call(), 0_u64..20_000), 1..80),
    ) {
        let mut now = Time(0);
        let mut counts = [MemberTraffic::default(); 7];
        let mut analyzer = Analyzer::new(spec, now);
        let mut plan = analyzer.plan(now).expect("the first call gives a plan");
        // A group without members is down from the start, any other is starting.
        let mut all_down = analyzer.poll_event().is_some();
        prop_assert_eq!(all_down, analyzer.members().count() == 0);
        for (next, wait) in &calls {
            let before = states(&analyzer);
            now = now + Duration::from_millis(*wait);
            call(&mut analyzer, next, &mut counts, &mut now);
            if let Some(new) = analyzer.plan(now) {
                plan = new;
            }
            let events: Vec<Event> = std::iter::from_fn(|| analyzer.poll_event()).collect();
            check(&analyzer, &plan, &before, &events);
            for event in &events {
                match event.kind {
                    EventKind::AllDown => {
                        prop_assert!(!all_down);
                        all_down = true;
                    }
                    EventKind::Recovered => {
                        prop_assert!(all_down);
                        all_down = false;
                    }
                    _ => {}
                }
            }
            let usable = analyzer.status(now).iter().any(|(_, member)| member.state.is_eligible());
            prop_assert!(!(all_down && usable), "down, with a member that can be used");
        }
        // With passing checks and no further calls, every member that is not drained or disabled returns to
        // its whole share.
        let all: Vec<_> = analyzer.members().map(|(id, spec, _)| (id, spec.name.clone())).collect();
        for (id, spec) in all {
            analyzer.undrain(&spec, now).unwrap();
            analyzer.enable(&spec, now).unwrap();
            for _ in 0..4 {
                analyzer.handle_probe(id, Ok(()), now);
            }
        }
        for _ in 0..10_000 {
            let Some(next) = analyzer.poll_timeout() else { break };
            analyzer.handle_timeout(next);
        }
        prop_assert_eq!(analyzer.poll_timeout(), None);
        prop_assert!(analyzer.status(now).iter().all(|(_, member)| member.state == MemberState::Up));
    }
}
