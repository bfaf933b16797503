//! The slow path, as scenarios.

mod ejections;

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, Choice, DrainInitiator, Event, EventKind, GroupSpec, HealthSpec, MemberId, MemberSpec,
    MemberState, MemberTraffic, OutlierSpec, PickRequest, PickerState, Plan, ReportedLoad, StrategyParams,
    Time, WhenAllDown, strategy,
};

const OUTLIER: OutlierSpec = OutlierSpec {
    false_alarm: 0.0,
    consecutive: 5,
    interval: Duration::from_secs(10),
    deviations: 1.9,
    min_requests: 50,
    ejection: Duration::from_secs(30),
    max_ejection: Duration::from_secs(300),
    max_ejected: 0.5,
};

const HEALTH: HealthSpec = HealthSpec { rise: 2, fall: 3 };

fn at(seconds: f64) -> Time {
    Time(0) + Duration::from_secs_f64(seconds)
}

fn spec(names: &str) -> GroupSpec {
    let strategy = strategy::find("weighted_round_robin").expect("a strategy of this name");
    let member = |name: &str| MemberSpec {
        name: Arc::from(name),
        address: "10.0.0.1:80".parse().expect("an address"),
        capacity: 1.0,
        limit: u32::MAX,
        leaving: false,
        checked: false,
    };
    GroupSpec {
        name: Arc::from("web"),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: names.split_whitespace().map(member).collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: None,
        aperture: None,
    }
}

/// An analyzer with the state that a shell keeps beside it.
struct Group {
    analyzer: Analyzer,
    plan: Plan,
    events: Vec<Event>,
}

impl Group {
    fn new(spec: GroupSpec) -> Self {
        let mut analyzer = Analyzer::new(spec, at(0.0));
        let plan = analyzer.plan(at(0.0)).expect("the first call gives a plan");
        Self { analyzer, plan, events: Vec::new() }
    }

    fn id(&self, name: &str) -> MemberId {
        self.analyzer.members().find(|(_, spec, _)| &*spec.name == name).expect("a member of that name").0
    }

    /// Calls the analyzer and takes its results; returns the kinds of the events as one line.
    fn then(&mut self, seconds: f64, call: impl FnOnce(&mut Analyzer, Time)) -> String {
        call(&mut self.analyzer, at(seconds));
        if let Some(plan) = self.analyzer.plan(at(seconds)) {
            self.plan = plan;
        }
        self.events = std::iter::from_fn(|| self.analyzer.poll_event()).collect();
        let line = |event: &Event| match &event.member {
            Some(member) => format!("{:?} {member}", event.kind),
            None => format!("{:?}", event.kind),
        };
        self.events.iter().map(line).collect::<Vec<_>>().join(", ")
    }

    fn probe(&mut self, seconds: f64, name: &str, outcome: Result<(), &str>) -> String {
        let id = self.id(name);
        self.then(seconds, |analyzer, now| analyzer.handle_probe(id, outcome, now))
    }

    fn streak(&mut self, seconds: f64, name: &str) -> String {
        let id = self.id(name);
        self.then(seconds, |analyzer, now| analyzer.handle_streak(id, now))
    }

    fn totals(&mut self, seconds: f64, totals: &[(&str, u64, u64)]) -> String {
        let totals: Vec<(MemberId, MemberTraffic)> = totals
            .iter()
            .map(|(name, requests, failures)| {
                (self.id(name), MemberTraffic { requests: *requests, failures: *failures })
            })
            .collect();
        self.then(seconds, |analyzer, now| analyzer.handle_totals(&totals, now))
    }

    fn tick(&mut self, seconds: f64) -> String {
        self.then(seconds, Analyzer::handle_timeout)
    }

    /// Returns the names and weights in the plan.
    fn planned(&self) -> String {
        let part = |member: &plimsoll_brain::Member| match member.weight == member.capacity {
            true => member.name.to_string(),
            false => format!("{}*{:.2}", member.name, member.weight / member.capacity),
        };
        self.plan.members().iter().map(part).collect::<Vec<_>>().join(" ")
    }

    fn state(&self, name: &str) -> (MemberState, String) {
        let status = self.analyzer.status(at(0.0));
        let (_, member) =
            status.into_iter().find(|(_, member)| member.name == name).expect("a member of that name");
        (member.state, member.why)
    }
}

#[test]
fn without_checks_all_are_up_at_once() {
    let mut group = Group::new(spec("a b"));
    assert_eq!(group.planned(), "a b");
    assert_eq!(group.then(0.0, |_, _| ()), "");
    assert!(group.analyzer.plan(at(1.0)).is_none(), "nothing changed");
    assert_eq!(group.analyzer.poll_timeout(), None);
    assert_eq!(group.analyzer.verdict(), "2/2 members up");
}

#[test]
fn a_member_not_checked_is_not_used() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), ..spec("a b") });
    assert_eq!(group.planned(), "");
    assert_eq!(
        group.plan.choose(&mut PickerState::default(), &PickRequest::default(), &[]),
        Choice::NoMember
    );
    assert_eq!(group.then(0.0, |_, _| ()), "", "a group that starts is not down");
    assert_eq!(group.analyzer.verdict(), "0/2 members up, 2 not checked yet");
    assert_eq!(group.probe(0.1, "a", Ok(())), "Up a");
    assert_eq!(group.planned(), "a");
    assert_eq!(group.probe(0.2, "b", Err("connection refused")), "Down b");
    assert_eq!(group.state("b"), (MemberState::Down, "its health check fails: connection refused".into()));
    assert_eq!(group.probe(2.0, "b", Ok(())), "Up b", "the first pass of its life is enough");
    assert_eq!(group.planned(), "a b");
}

#[test]
fn a_group_that_never_came_up_is_down() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), ..spec("a b") });
    assert_eq!(group.probe(0.1, "a", Err("timeout")), "Down a");
    assert_eq!(group.probe(0.2, "b", Err("timeout")), "Down b, AllDown");
    assert_eq!(group.events[1].why, "no member can be used (0/2 members up, 2 down); requests are refused");
    assert_eq!(group.probe(0.3, "b", Ok(())), "Up b, Recovered");
}

#[test]
fn checks_count_in_a_row() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), ..spec("a b") });
    group.probe(0.0, "b", Ok(()));
    let steps = [
        (Ok(()), "Up a"),
        (Err("timeout"), ""),
        (Err("timeout"), ""),
        (Ok(()), ""),
        (Err("timeout"), ""),
        (Err("timeout"), ""),
        (Err("refused"), "Down a"),
        (Ok(()), ""),
        (Err("timeout"), ""),
        (Ok(()), ""),
        (Ok(()), "Up a"),
    ];
    for (second, (outcome, events)) in steps.into_iter().enumerate() {
        assert_eq!(group.probe(second as f64, "a", outcome), events, "check {second}");
        assert_eq!(group.planned().contains('a'), !(6..10).contains(&second));
    }
    assert_eq!(group.events[0].inputs, [("checks_in_a_row".to_string(), 2.0)]);
}

#[test]
fn all_down_is_told_once_and_handled_as_configured() {
    for (when_all_down, planned) in [(WhenAllDown::Reject, ""), (WhenAllDown::FailOpen, "b c")] {
        let mut group = Group::new(GroupSpec {
            health: Some(HealthSpec { rise: 2, fall: 1 }),
            when_all_down,
            ..spec("a b c")
        });
        for name in ["a", "b", "c"] {
            group.probe(0.0, name, Ok(()));
        }
        assert_eq!(group.then(1.0, |analyzer, now| analyzer.drain("a", now).unwrap()), "Draining a");
        assert_eq!(group.probe(2.0, "b", Err("refused")), "Down b");
        assert_eq!(group.planned(), "c");
        assert_eq!(group.probe(3.0, "c", Err("refused")), "Down c, AllDown");
        assert_eq!(group.planned(), planned);
        assert_eq!(group.probe(4.0, "c", Err("refused")), "");
        assert_eq!(group.probe(5.0, "c", Ok(())), "");
        assert_eq!(group.probe(6.0, "c", Ok(())), "Up c, Recovered");
        assert_eq!(group.planned(), "c");
        assert_eq!(group.analyzer.verdict(), "1/3 members up, 1 down, 1 draining");
    }
}

#[test]
fn who_comes_back_starts_slowly() {
    let slow_start = Duration::from_secs(10);
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), slow_start, ..spec("a b") });
    group.probe(0.0, "a", Ok(()));
    assert_eq!(group.probe(0.0, "b", Ok(())), "Up b", "there from the start: whole share at once");
    assert_eq!(group.planned(), "a b");
    for _ in 0..3 {
        group.probe(1.0, "b", Err("timeout"));
    }
    assert_eq!(group.planned(), "a");
    group.probe(2.0, "b", Ok(()));
    assert_eq!(group.probe(3.0, "b", Ok(())), "Up b, SlowStart b");
    assert_eq!(group.planned(), "a b*0.10");
    assert_eq!(group.analyzer.poll_timeout(), Some(at(3.1)));
    assert_eq!(group.tick(3.05), "");
    assert!(group.analyzer.plan(at(3.05)).is_none(), "not before its time");
    let mut plans = 0;
    while let Some(next) = group.analyzer.poll_timeout().filter(|next| *next < at(13.0)) {
        group.analyzer.handle_timeout(next);
        plans += usize::from(group.analyzer.plan(next).is_some());
    }
    assert!((98..=100).contains(&plans), "{plans} plans in ten seconds");
    assert_eq!(group.state("b").0, MemberState::SlowStart);
    assert_eq!(group.tick(13.0), "FullShare b");
    assert_eq!(group.planned(), "a b");
    assert_eq!(group.analyzer.poll_timeout(), None);
}

#[test]
fn whoever_was_out_or_joins_starts_slowly() {
    let slow_start = Duration::from_secs(10);
    let outlier = Some(OUTLIER);
    let mut group = Group::new(GroupSpec { slow_start, outlier: outlier.clone(), ..spec("a b c") });
    group.streak(0.0, "a");
    assert_eq!(group.tick(30.0), "Readmitted a, SlowStart a");
    group.then(30.0, |analyzer, now| analyzer.drain("b", now).unwrap());
    assert_eq!(
        group.then(35.0, |analyzer, now| analyzer.undrain("b", now).unwrap()),
        "Undrained b, SlowStart b"
    );
    assert_eq!(group.planned(), "a*0.55 b*0.10 c");
    let more = GroupSpec { slow_start, outlier, ..spec("a b c d") };
    assert_eq!(group.then(37.5, |analyzer, now| analyzer.update(more, now)), "Joined d, SlowStart d");
    assert_eq!(group.planned(), "a*0.77 b*0.32 c d*0.10");
    assert_eq!(
        group.then(38.0, |analyzer, now| analyzer.update(spec("a b c d"), now)),
        "FullShare a, FullShare b, FullShare d"
    );
    assert_eq!(group.planned(), "a b c d");
}

#[test]
fn a_member_that_is_late_at_the_start_starts_slowly() {
    let slow_start = Duration::from_secs(10);
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), slow_start, ..spec("a b") });
    group.probe(0.0, "a", Ok(()));
    group.probe(0.0, "b", Err("refused"));
    assert_eq!(group.probe(600.0, "b", Ok(())), "Up b, SlowStart b");
}

#[test]
fn a_drained_member_that_is_well_may_keep_its_sessions() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), ..spec("a b") });
    let kept = |group: &Group| {
        group.analyzer.reserve_members(true).iter().map(|member| member.name.to_string()).collect::<Vec<_>>()
    };
    let [a, b] = [group.id("a"), group.id("b")];
    group.then(1.0, |analyzer, now| {
        for member in [a, b, a, b] {
            analyzer.handle_probe(member, Ok(()), now);
        }
    });
    assert!(kept(&group).is_empty());
    group.then(2.0, |analyzer, now| analyzer.drain("a", now).unwrap());
    assert_eq!(kept(&group), ["a"]);
    // Its state changes, which makes a new plan, though it is in none.
    let fail = |analyzer: &mut Analyzer, now| (0..3).for_each(|_| analyzer.handle_probe(a, Err("no"), now));
    fail(&mut group.analyzer, at(3.0));
    assert!(group.analyzer.plan(at(3.0)).is_some() && kept(&group).is_empty());
    (0..2).for_each(|_| group.analyzer.handle_probe(a, Ok(()), at(4.0)));
    assert!(group.analyzer.plan(at(4.0)).is_some() && kept(&group) == ["a"]);
    // A disabled member is not kept.
    group.then(5.0, |analyzer, now| analyzer.disable("a", now).unwrap());
    assert!(kept(&group).is_empty());
    group.then(6.0, |analyzer, now| analyzer.enable("a", now).unwrap());
    group.then(7.0, |analyzer, now| analyzer.undrain("a", now).unwrap());
    assert!(kept(&group).is_empty() && group.plan.members().len() == 2);
}

#[test]
fn operators_drain_and_take_back() {
    let mut group = Group::new(spec("a b"));
    let (_, _, vitals) = group.analyzer.members().next().unwrap();
    vitals.begin();
    assert_eq!(group.then(1.0, |analyzer, now| analyzer.drain("a", now).unwrap()), "Draining a");
    assert_eq!(group.events[0].inputs, [("in_flight".to_string(), 1.0)]);
    assert_eq!(group.planned(), "b");
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.drain("a", now).unwrap()), "");
    assert_eq!(group.then(3.0, |analyzer, now| analyzer.undrain("a", now).unwrap()), "Undrained a");
    assert_eq!(group.planned(), "a b");
    assert_eq!(group.events[0].why, "taken back by an operator");
    // The event names the actor, which stays with the drain.
    let by_scaler =
        |analyzer: &mut Analyzer, now| analyzer.drain_by("b", DrainInitiator::Scaler, now).unwrap();
    assert_eq!(group.then(3.5, by_scaler), "Draining b");
    assert_eq!(group.events[0].why, "drained by the scaler");
    let why = group.analyzer.status(at(3.6)).into_iter().map(|(_, status)| status.why).nth(1);
    assert_eq!(why.as_deref(), Some("drained by the scaler"));
    let error = group.analyzer.drain("c", at(4.0)).unwrap_err();
    assert_eq!(error, "group `web` has no member `c`; it has a, b");
}

#[test]
fn one_that_is_about_to_leave_is_drained_by_nobody() {
    let mut group = Group::new(spec("a b"));
    let with = |names: &str, leaving: &str| {
        let mut spec = spec(names);
        spec.members.iter_mut().for_each(|member| member.leaving = leaving.contains(&*member.name));
        spec
    };
    assert_eq!(group.then(1.0, |analyzer, now| analyzer.update(with("a b", "a"), now)), "Draining a");
    assert_eq!(group.planned(), "b");
    assert!(group.state("a").1.contains("about to end") && group.analyzer.is_draining(group.id("a")));
    // It is healthy, and may keep its sessions.
    assert_eq!(group.analyzer.reserve_members(true).len(), 1);
    // A repeated configuration is no event, and no operator can end this drain.
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.update(with("a b", "a"), now)), "");
    group.then(3.0, |analyzer, now| analyzer.undrain("a", now).unwrap());
    assert_eq!(group.state("a").0, MemberState::Draining);
    // Another process continues it by the configuration, not by the handed-off state.
    let past: Vec<_> = group.analyzer.handoff().map(|(name, past)| (name.to_string(), Some(past))).collect();
    let recalled = |spec: GroupSpec| {
        let (mut past, mut after) = (past.clone(), Analyzer::new(spec, at(4.0)));
        after.restore(|name| past.iter_mut().find(|(one, _)| one == name)?.1.take(), at(4.0));
        after.plan(at(4.0)).expect("the first call gives a plan").members().len()
    };
    assert_eq!((recalled(with("a b", "a")), recalled(with("a b", ""))), (1, 2));
    assert_eq!(group.then(5.0, |analyzer, now| analyzer.update(with("a b", ""), now)), "Undrained a");
    assert_eq!(group.planned(), "a b");
    // A leaving member that joins has an event, too; and an operator's drain outlasts the configuration's.
    let joined = group.then(6.0, |analyzer, now| analyzer.update(with("a b c", "c"), now));
    assert_eq!(joined, "Joined c, Draining c");
    group.then(7.0, |analyzer, now| analyzer.drain("c", now).unwrap());
    group.then(8.0, |analyzer, now| analyzer.update(with("a b c", ""), now));
    assert_eq!(group.state("c"), (MemberState::Draining, "drained by an operator".to_owned()));
}

#[test]
fn a_reload_keeps_what_is_known() {
    let old = GroupSpec { health: Some(HEALTH), outlier: Some(OUTLIER), ..spec("a b c d e") };
    let mut group = Group::new(old.clone());
    for name in ["a", "b", "c", "d"] {
        group.probe(0.0, name, Ok(()));
    }
    group.streak(1.0, "b");
    group.then(1.0, |analyzer, now| analyzer.drain("c", now).unwrap());
    let (before, _, vitals) = group.analyzer.members().nth(1).unwrap();
    let vitals = vitals.clone();
    vitals.begin();

    let mut new = GroupSpec { members: spec("f d c b").members, ..old };
    new.members[3].capacity = 3.0;
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.update(new, now)), "Joined f, Left a, Left e");
    let states: Vec<MemberState> =
        group.analyzer.status(at(2.0)).into_iter().map(|(_, member)| member.state).collect();
    assert_eq!(
        states,
        [MemberState::Unchecked, MemberState::Up, MemberState::Draining, MemberState::Ejected]
    );
    let (after, member, kept) = group.analyzer.members().nth(3).unwrap();
    assert_eq!((before, member.capacity), (after, 3.0));
    assert!(Arc::ptr_eq(&vitals, kept));
    assert_eq!(group.planned(), "d");
    assert_eq!(group.probe(3.0, "f", Ok(())), "Up f");
    assert_eq!(group.tick(31.0), "Readmitted b");
    assert_eq!(group.planned(), "f d b");
}

#[test]
fn another_server_by_the_same_name_is_another_member() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), ..spec("a b") });
    group.probe(0.0, "a", Ok(()));
    group.probe(0.0, "b", Ok(()));
    group.then(1.0, |analyzer, now| analyzer.drain("b", now).unwrap());
    let before = group.id("a");
    let mut new = group.analyzer.spec().clone();
    new.members[0].address = "10.0.0.2:80".parse().unwrap();
    new.members[1].address = "10.0.0.3:80".parse().unwrap();
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.update(new, now)), "Joined a, Joined b, AllDown");
    assert_eq!(group.events[0].why, "a is at another address now");
    assert_ne!(group.id("a"), before);
    assert_eq!(group.state("a").0, MemberState::Unchecked);
    group.probe(3.0, "b", Ok(()));
    assert_eq!(group.state("b").0, MemberState::Draining, "that was said of the name");
}

#[test]
fn a_member_goes_to_an_address_that_was_checked_without_a_break() {
    let old = GroupSpec { health: Some(HEALTH), slow_start: Duration::from_secs(10), ..spec("a b") };
    let mut group = Group::new(old.clone());
    group.probe(0.0, "a", Ok(()));
    group.probe(0.0, "b", Err("refused"));
    let mut new = old;
    for member in &mut new.members {
        (member.address, member.checked) = ("10.0.0.2:80".parse().unwrap(), true);
    }
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.update(new, now)), "Joined a, Joined b");
    assert_eq!(group.state("a").0, MemberState::Up, "it has its whole share at once");
    assert_eq!(group.state("b").0, MemberState::Unchecked, "it was not up before");
}

#[test]
fn a_member_whose_name_has_no_address_is_down() {
    let nowhere = |health| {
        let mut spec = GroupSpec { health, ..spec("a b") };
        spec.members[0].address = "0.0.0.0:0".parse().unwrap();
        spec
    };
    for health in [None, Some(HEALTH)] {
        let mut group = Group::new(nowhere(health.clone()));
        group.probe(0.0, "a", Ok(()));
        assert_eq!(group.state("a").0, MemberState::Down, "what a check says is of another place");
        // Switching checks off does not bring it up.
        group.then(1.0, |analyzer, now| analyzer.update(nowhere(None), now));
        assert_eq!(group.state("a").0, MemberState::Down);
        group.then(2.0, |analyzer, now| analyzer.update(spec("a b"), now));
        assert_eq!(group.state("a").0, MemberState::Up);
    }
}

#[test]
fn a_reload_without_rules_sets_everyone_free() {
    let old = GroupSpec { health: Some(HEALTH), outlier: Some(OUTLIER), ..spec("a b c d") };
    let mut group = Group::new(old.clone());
    for name in ["a", "b", "c"] {
        group.probe(0.0, name, Ok(()));
    }
    group.streak(1.0, "a");
    assert_eq!(group.then(2.0, |analyzer, now| analyzer.update(spec("a b c d"), now)), "Up d, Readmitted a");
    assert_eq!(group.planned(), "a b c d");
    assert_eq!(
        group.then(3.0, |analyzer, now| analyzer.update(old, now)),
        "",
        "who is up stays up until a check fails"
    );
    assert_eq!(group.planned(), "a b c d");
}

#[test]
fn a_smaller_group_may_have_fewer_out() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    group.streak(1.0, "a");
    group.streak(2.0, "b");
    let fewer = GroupSpec { outlier: Some(OUTLIER), ..spec("a b c") };
    assert_eq!(group.then(3.0, |analyzer, now| analyzer.update(fewer, now)), "Left d, Readmitted a");
    assert_eq!(group.planned(), "a c");
}

#[test]
fn only_loads_that_are_loads_are_taken() {
    let mut group = Group::new(spec("a"));
    let id = group.id("a");
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(!group.analyzer.handle_load(id, ReportedLoad { value, at: at(1.0), of_host: false }));
    }
    assert!(
        !group.analyzer.handle_load(MemberId(9), ReportedLoad { value: 1.0, at: at(1.0), of_host: false })
    );
    assert!(group.analyzer.handle_load(id, ReportedLoad { value: 0.5, at: at(1.0), of_host: false }));
    group.then(2.0, |analyzer, now| analyzer.update(spec("a"), now));
    assert_eq!(group.plan.members()[0].load, Some(ReportedLoad { value: 0.5, at: at(1.0), of_host: false }));
}

#[test]
fn what_concerns_nobody_is_ignored() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), outlier: Some(OUTLIER), ..spec("a") });
    let nobody = MemberId(77);
    group.then(1.0, |analyzer, now| {
        analyzer.handle_probe(nobody, Ok(()), now);
        analyzer.handle_streak(nobody, now);
        analyzer.handle_totals(&[(nobody, MemberTraffic { requests: 9, failures: 9 })], now);
    });
    assert!(group.events.is_empty());
    // Without a reader, events stay bounded.
    let id = group.id("a");
    for step in 0..100_000 {
        group.analyzer.handle_probe(
            id,
            if step % 5 < 2 { Ok(()) } else { Err("timeout") },
            at(f64::from(step)),
        );
    }
    let kept = std::iter::from_fn(|| group.analyzer.poll_event()).count();
    assert!((1_000..10_000).contains(&kept), "{kept} events");
}

#[test]
fn the_end_of_time_is_harmless() {
    let end = Time(u64::MAX);
    let outlier = OutlierSpec { ejection: Duration::MAX, max_ejection: Duration::MAX, ..OUTLIER };
    let slow_start = Duration::MAX;
    let mut group =
        Group::new(GroupSpec { health: Some(HEALTH), outlier: Some(outlier), slow_start, ..spec("a b c") });
    let ids: Vec<MemberId> = group.analyzer.members().map(|(id, _, _)| id).collect();
    for now in [Time(1), end, Time(0)] {
        group.then(0.0, |analyzer, _| {
            for id in &ids {
                analyzer.handle_probe(*id, Ok(()), now);
                analyzer.handle_streak(*id, now);
                analyzer
                    .handle_totals(&[(*id, MemberTraffic { requests: u64::MAX, failures: u64::MAX })], now);
            }
            analyzer.drain("c", now).unwrap();
            analyzer.undrain("c", now).unwrap();
            analyzer.handle_timeout(now);
        });
    }
    assert_eq!(group.analyzer.status(end).len(), 3);
}

#[test]
fn an_event_is_json_a_program_can_read() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b") });
    group.streak(1.0, "a");
    let json = serde_json::to_value(&group.events[0]).unwrap();
    assert_eq!(json["kind"], "ejected");
    assert_eq!(json["group"], "web");
    assert_eq!(json["member"], "a");
    assert_eq!(json["inputs"][0], serde_json::json!(["failures_in_a_row", 5.0]));
    assert_eq!(group.events[0].kind, EventKind::Ejected);
}
