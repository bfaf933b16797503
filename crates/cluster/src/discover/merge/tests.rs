use plimsoll_brain::status::SourceStatus;
use proptest::prelude::*;

use super::*;
use crate::discover::{AddressFamily, DnsSettings, ResolverSettings, SourceKind};

fn source(host: &str, allow_empty: bool, hold: u64) -> Arc<SourceSettings> {
    let resolver = ResolverSettings { servers: Vec::new(), timeout: Duration::from_secs(1) };
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(60));
    let dns = DnsSettings { host: host.into(), port: 80, family: AddressFamily::Any, resolver, min, max };
    Arc::new(SourceSettings { kind: SourceKind::Dns(dns), allow_empty, hold_time: Duration::from_secs(hold) })
}

fn listed(last: u8, capacity: f64) -> DiscoveredMember {
    let address = ([10, 0, 0, last], 80).into();
    DiscoveredMember {
        name: format!("10.0.0.{last}:80").into(),
        address,
        capacity,
        limit: None,
        leaving: false,
    }
}

fn told(lasts: &[u8]) -> Result<MemberList, String> {
    let members = lasts.iter().map(|last| listed(*last, 1.0)).collect();
    Ok(MemberList { members: Some(members), note: None })
}

fn fixed(lasts: &[u8]) -> BTreeSet<Arc<str>> {
    lasts.iter().map(|last| listed(*last, 1.0).name).collect()
}

/// Puts the proposed members in force. Returns the last byte of each address.
fn settled(roll: &mut MemberSet, now: Instant) -> Vec<u8> {
    if let Some(change) = roll.propose(now) {
        roll.accept(change);
    }
    assert_eq!(roll.propose(now), None, "what is in force is nothing new");
    lasts(&roll.accepted)
}

fn lasts(members: &[DiscoveredMember]) -> Vec<u8> {
    members
        .iter()
        .map(|one| one.address.to_string().split(['.', ':']).nth(3).unwrap().parse().unwrap())
        .collect()
}

#[test]
fn sources_merge_in_their_order() {
    let now = Instant::now();
    let sources = [source("a", false, 0), source("b", false, 0)];
    let mut roll = MemberSet::default().set_sources(fixed(&[1]), &sources, now);
    assert!(!roll.have_all_responded());
    assert_eq!(roll.record_update(&sources[1], told(&[4, 1, 3]), now), None);
    assert_eq!(settled(&mut roll, now), [4, 3]);
    assert_eq!(roll.record_update(&sources[0], told(&[2, 3, 2]), now), None);
    assert!(roll.have_all_responded());
    let change = roll.propose(now).unwrap();
    assert_eq!(change.summary(), "3 members are found: +10.0.0.2:80");
    assert_eq!(settled(&mut roll, now), [2, 3, 4]);
    roll.record_update(&sources[0], told(&[3]), now);
    let change = roll.propose(now).unwrap();
    assert_eq!((change.summary(), change.added.len()), ("2 members are found: -10.0.0.2:80".into(), 0));
    // Other settings of a member are a change, too.
    settled(&mut roll, now);
    let heavier = MemberList { members: Some(vec![listed(3, 2.0)]), note: None };
    roll.record_update(&sources[0], Ok(heavier), now);
    assert_eq!(
        roll.propose(now).unwrap().summary(),
        "2 members are found, with other settings or in another order"
    );
    let many: Vec<u8> = (10..30).collect();
    roll.record_update(&sources[0], told(&many), now);
    assert!(roll.propose(now).unwrap().summary().ends_with("+10.0.0.17:80 +12 more"));
}

#[test]
fn what_fails_or_is_empty_takes_nobody_out() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let sources = [source("a", false, 0)];
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, begun);
    let failed = roll.record_update(&sources[0], Err("no answer".into()), begun);
    assert_eq!(failed, Some(SourceEvent::Failed("dns a:80: no answer; it has no members yet".into(), 0)));
    assert!(roll.have_all_responded());
    let back =
        Some(SourceEvent::Recovered("dns a:80 answers again, after 2.0 s".into(), Duration::from_secs(2)));
    assert_eq!(roll.record_update(&sources[0], told(&[1, 2]), at(2)), back);
    assert_eq!(settled(&mut roll, at(2)), [1, 2]);
    let gone = Ok(MemberList { members: Some(Vec::new()), note: Some("there is no such name (NXDOMAIN)") });
    let failed = roll.record_update(&sources[0], gone, at(3));
    let why = "dns a:80: there is no such name (NXDOMAIN), which is not believed; if it may be so, set \
               allow_empty = true; \
               its 2 members stay";
    assert_eq!(failed, Some(SourceEvent::Failed(why.into(), 2)));
    // A repeated list causes no event, and an unchanged one repeats the previous list.
    assert_eq!(roll.record_update(&sources[0], Ok(MemberList::default()), at(4)), None);
    assert_eq!(roll.record_update(&sources[0], Err("SERVFAIL".into()), at(5)), None);
    assert_eq!(settled(&mut roll, at(9)), [1, 2]);
    let [status] = <[SourceStatus; 1]>::try_from(roll.status(at(9))).unwrap();
    let known = (status.members, status.age_seconds, status.failures, status.failing_seconds);
    assert_eq!(known, (2, Some(7.0), 4, Some(6.0)));
    assert_eq!((&*status.kind, &*status.what, status.error.as_deref()), ("dns", "a:80", Some("SERVFAIL")));
    assert!(matches!(roll.record_update(&sources[0], told(&[2]), at(10)), Some(SourceEvent::Recovered(..))));
    assert_eq!(settled(&mut roll, at(10)), [2]);
    assert_eq!(roll.status(at(11))[0].error, None);
}

#[test]
fn one_that_may_be_empty_is() {
    let now = Instant::now();
    let sources = [source("a", true, 0)];
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, now);
    roll.record_update(&sources[0], told(&[1]), now);
    assert_eq!(settled(&mut roll, now), [1]);
    assert_eq!(roll.record_update(&sources[0], told(&[]), now), None);
    assert_eq!(settled(&mut roll, now), Vec::<u8>::new());
}

#[test]
fn too_many_are_not_taken() {
    let now = Instant::now();
    let sources = [source("a", false, 0)];
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, now);
    roll.record_update(&sources[0], told(&[1]), now);
    let name = |port: usize| Arc::<str>::from(format!("10.0.0.1:{port}"));
    let many =
        (1..=MAX_MEMBERS + 1).map(|port| DiscoveredMember { name: name(port), ..listed(1, 1.0) }).collect();
    let news = roll.record_update(&sources[0], Ok(MemberList { members: Some(many), note: None }), now);
    let Some(SourceEvent::Failed(why, 1)) = news else { panic!("{news:?}") };
    assert!(why.contains("it lists 4097 members, and 4096 is the most"), "{why}");
    assert_eq!(settled(&mut roll, now), [1]);
}

#[test]
fn those_that_are_left_out_are_held() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let sources = [source("a", false, 5)];
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, begun);
    for (second, member) in [(0, 2), (1, 1), (2, 3), (3, 2)] {
        roll.record_update(&sources[0], told(&[member]), at(second));
    }
    assert_eq!(settled(&mut roll, at(3)), [1, 2, 3]);
    // It was left out at 2 s, and another at 3 s.
    assert_eq!(roll.next_due(), Some(at(7)));
    assert_eq!(settled(&mut roll, at(6)), [1, 2, 3]);
    assert_eq!(settled(&mut roll, at(7)), [2, 3]);
    assert_eq!(settled(&mut roll, at(8)), [2]);
    assert_eq!(roll.next_due(), None);
}

#[test]
fn a_member_that_has_passed_stays_until_one_that_came_for_it_has() {
    let now = Instant::now();
    let sources = [source("a", false, 0)];
    let passed = |lasts: &[u8]| -> BTreeSet<String> {
        lasts.iter().map(|last| listed(*last, 1.0).name.to_string()).collect()
    };
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, now).check(true);
    roll.record_update(&sources[0], told(&[1, 2]), now);
    assert_eq!(settled(&mut roll, now), [1, 2]);
    let mut after = |answer: &[u8], up: &[u8]| {
        roll.record_update(&sources[0], told(answer), now);
        roll.retire_replaced(&passed(up), now);
        let shown = settled(&mut roll, now);
        assert_eq!(roll.next_due().is_some(), roll.is_replacing(), "it is looked at again");
        shown
    };
    assert_eq!(after(&[3, 2], &[1, 2]), [3, 2, 1], "3 has not passed");
    assert_eq!(after(&[3, 2], &[1, 2, 3]), [3, 2]);
    assert_eq!(after(&[4, 5], &[2, 3]), [4, 5, 3, 2]);
    assert_eq!(after(&[4, 5], &[2, 3, 4]), [4, 5, 3], "one has passed, for one of them");
    assert_eq!(after(&[4, 5], &[4]), [4, 5], "3 does not pass itself any more");
    assert_eq!(after(&[4], &[4, 5]), [4], "nobody came for 5");
    assert_eq!(after(&[6], &[4]), [6, 4]);
    assert_eq!(after(&[4, 6], &[4]), [4, 6], "it is listed again");
    // Without health checks DNS is trusted.
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &sources, now);
    roll.record_update(&sources[0], told(&[1]), now);
    roll.record_update(&sources[0], told(&[2]), now);
    assert_eq!(settled(&mut roll, now), [2]);
}

#[test]
fn another_configuration_keeps_those_of_sources_that_stay() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let [a, b, c] = ["a", "b", "c"].map(|host| source(host, false, 0));
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), &[a.clone(), b.clone()], begun);
    roll.record_update(&a, told(&[1]), begun);
    roll.record_update(&b, told(&[2]), begun);
    assert_eq!(settled(&mut roll, begun), [1, 2]);
    // A source that is removed without a replacement goes at once.
    let mut less = roll.clone().set_sources(BTreeSet::new(), std::slice::from_ref(&b), at(1));
    assert_eq!(settled(&mut less, at(1)), [2]);
    // A replaced source keeps its members until the new one has responded.
    let mut roll = roll.set_sources(BTreeSet::new(), &[c.clone(), b.clone()], at(1));
    assert_eq!(settled(&mut roll, at(1)), [2, 1]);
    assert!(roll.status(at(1))[2].error.as_deref().unwrap().contains("not in the configuration any more"));
    assert_eq!(roll.record_update(&a, told(&[9]), at(2)), None, "what went is not heard");
    let mut answered = roll.clone();
    answered.record_update(&c, told(&[3]), at(2));
    assert_eq!(settled(&mut answered, at(2)), [3, 2]);
    assert_eq!(answered.status(at(2)).len(), 2);
    // While the new one fails they stay for a limited time, as there are other members.
    roll.record_update(&c, Err("no".into()), at(2));
    assert_eq!(roll.next_due(), Some(at(11)));
    assert_eq!(settled(&mut roll, at(10)), [2, 1]);
    assert_eq!(settled(&mut roll, at(11)), [2]);
    // A returning source still has its members.
    let again = roll.set_sources(BTreeSet::new(), std::slice::from_ref(&a), at(12));
    // Without other members they stay forever.
    let mut only = again.set_sources(BTreeSet::new(), std::slice::from_ref(&c), at(13));
    only.record_update(&c, Err("no".into()), at(14));
    assert_eq!(settled(&mut only, at(9999)), [2]);
}

#[test]
fn another_process_goes_on_with_what_was_said_last_until_it_is_said_anew() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let [a, b, c] = [source("a", false, 0), source("b", false, 10), source("c", false, 0)];
    let mut elder = MemberSet::default().set_sources(fixed(&[1]), &[a.clone(), b.clone()], begun);
    elder.record_update(&a, told(&[1, 2]), begun);
    elder.record_update(&b, told(&[3, 4]), begun);
    // 3 is left out, and held; then both sources fail.
    elder.record_update(&b, told(&[4]), at(1));
    elder.record_update(&a, Err("no".into()), at(2));
    elder.record_update(&b, Err("no".into()), at(2));
    assert_eq!(settled(&mut elder, at(2)), [2, 3, 4]);
    let written = serde_json::to_string(&elder.handoff(at(3))).unwrap();
    let lasts: Vec<SourceHandoff> = serde_json::from_str(&written).unwrap();
    // One source has other settings, and one is added.
    let b = source("b", true, 20);
    let mut heir = MemberSet::default().set_sources(fixed(&[1]), &[b.clone(), c.clone(), a.clone()], at(4));
    heir.restore(lasts.clone(), at(4));
    assert!(!heir.have_all_responded(), "nobody was heard");
    assert_eq!(heir.status(at(4))[0].age_seconds, None);
    assert_eq!(settled(&mut heir, at(4)), [3, 4, 2]);
    // A held member is held for the rest of its time.
    let why = "dns a:80: no; its 2 members stay".to_owned();
    assert_eq!(heir.record_update(&a, Err("no".into()), at(5)), Some(SourceEvent::Failed(why, 2)));
    assert_eq!(settled(&mut heir, at(11)), [3, 4, 2]);
    assert_eq!(settled(&mut heir, at(12)), [4, 2]);
    assert_eq!(settled(&mut heir, at(9999)), [4, 2]);
    // The next process receives them, too.
    assert_eq!(heir.handoff(at(12)).len(), 2);
    heir.record_update(&a, told(&[5]), at(9999));
    assert_eq!(settled(&mut heir, at(9999)), [4, 5]);
    // A source that has responded ignores members from another process.
    heir.restore(lasts, at(9999));
    assert_eq!(settled(&mut heir, at(9999)), [4, 5]);
}

#[test]
fn what_is_no_member_is_not_taken_over() {
    let now = Instant::now();
    let a = source("a", false, 0);
    let lasts = serde_json::json!([
        {"kind": "srv", "what": "a:80", "members": [
            {"name": "10.0.0.9:80", "address": "10.0.0.9:80", "capacity": 1.0},
        ]},
        {"kind": "dns", "what": "a:80", "colour": 1, "members": [
            {"name": "10.0.0.1:80", "address": "10.0.0.1:80", "capacity": 1.0, "shape": "round"},
            {"name": "10.0.0.2:80", "address": "10.0.0.2:80", "capacity": 0.0},
            {"name": "10.0.0.3:0", "address": "10.0.0.3:0", "capacity": 1.0},
            {"name": "10.0.0.4:80", "address": "10.0.0.4:80", "capacity": 1.0, "left_seconds": -1.0},
        ]},
    ]);
    let mut roll = MemberSet::default().set_sources(BTreeSet::new(), std::slice::from_ref(&a), now);
    roll.restore(serde_json::from_value(lasts).unwrap(), now);
    assert_eq!(settled(&mut roll, now), [1]);
}

/// An event for a member set of two sources.
#[derive(Clone, Debug)]
enum UpdateStep {
    Say(usize, Vec<u8>),
    Same(usize),
    Fail(usize),
    Wait(u64),
    /// The configuration is reloaded without changes.
    Reload,
}

fn step() -> impl Strategy<Value = UpdateStep> {
    prop_oneof![
        (0..2_usize, proptest::collection::vec(0..6_u8, 0..5))
            .prop_map(|(of, said)| UpdateStep::Say(of, said)),
        (0..2_usize).prop_map(UpdateStep::Same),
        (0..2_usize).prop_map(UpdateStep::Fail),
        (0..9_u64).prop_map(UpdateStep::Wait),
        Just(UpdateStep::Reload),
    ]
}

proptest! {
    /// For any updates names are unique and differ from the configured ones. A source's members are those of
    /// its last accepted list (and held ones), and a group with members never becomes empty.
    #[test]
    fn no_answer_does_harm(steps in proptest::collection::vec(step(), 0..40), held in 0..2_u64) {
        let mut now = Instant::now();
        let sources = [source("a", false, held * 4), source("b", false, 0)];
        let fixed = fixed(&[5]);
        let mut roll = MemberSet::default().set_sources(fixed.clone(), &sources, now);
        let mut said: [Vec<u8>; 2] = Default::default();
        for step in steps {
            let before = settled(&mut roll, now);
            let quiet = !matches!(step, UpdateStep::Say(..) | UpdateStep::Wait(_));
            match step {
                UpdateStep::Say(of, lasts) => {
                    roll.record_update(&sources[of], told(&lasts), now);
                    if !lasts.is_empty() {
                        said[of] = lasts;
                    }
                }
                UpdateStep::Same(of) => {
                    drop(roll.record_update(&sources[of], Ok(MemberList::default()), now));
                }
                UpdateStep::Fail(of) => drop(roll.record_update(&sources[of], Err("no".into()), now)),
                UpdateStep::Wait(seconds) => now += Duration::from_secs(seconds),
                UpdateStep::Reload => roll = roll.set_sources(fixed.clone(), &sources, now),
            }
            let after = settled(&mut roll, now);
            prop_assert!(!quiet || before == after, "{before:?} {after:?}");
            let mut names: Vec<u8> = after.clone();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), after.len());
            prop_assert!(!after.contains(&5));
            prop_assert!(!after.is_empty() || said.iter().flatten().all(|last| *last == 5));
            let known: BTreeSet<u8> = said.iter().flatten().copied().filter(|last| *last != 5).collect();
            prop_assert!(known.iter().all(|last| after.contains(last)));
            prop_assert!(held > 0 || known.len() == after.len());
        }
    }
}
