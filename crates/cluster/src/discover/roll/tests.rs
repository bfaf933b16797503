use plimsoll_brain::status::SourceStatus;
use proptest::prelude::*;

use super::*;
use crate::discover::{DnsSettings, Family, Kind, ResolverSettings};

fn source(host: &str, allow_empty: bool, hold: u64) -> Arc<SourceSettings> {
    let resolver = ResolverSettings { servers: Vec::new(), timeout: Duration::from_secs(1) };
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(60));
    let dns = DnsSettings { host: host.into(), port: 80, family: Family::Any, resolver, min, max };
    Arc::new(SourceSettings { kind: Kind::Dns(dns), allow_empty, hold: Duration::from_secs(hold) })
}

fn listed(last: u8, capacity: f64) -> Listed {
    let address = ([10, 0, 0, last], 80).into();
    Listed { name: format!("10.0.0.{last}:80").into(), address, capacity, limit: None, leaving: false }
}

fn told(lasts: &[u8]) -> Result<Told, String> {
    let members = lasts.iter().map(|last| listed(*last, 1.0)).collect();
    Ok(Told { members: Some(members), note: None })
}

fn fixed(lasts: &[u8]) -> BTreeSet<Arc<str>> {
    lasts.iter().map(|last| listed(*last, 1.0).name).collect()
}

/// Puts the proposed members in force. Returns the last byte of each address.
fn settled(roll: &mut Roll, now: Instant) -> Vec<u8> {
    if let Some(change) = roll.propose(now) {
        roll.accept(change);
    }
    assert_eq!(roll.propose(now), None, "what is in force is nothing new");
    lasts(&roll.accepted)
}

fn lasts(members: &[Listed]) -> Vec<u8> {
    members
        .iter()
        .map(|one| one.address.to_string().split(['.', ':']).nth(3).unwrap().parse().unwrap())
        .collect()
}

#[test]
fn sources_merge_in_their_order() {
    let now = Instant::now();
    let sources = [source("a", false, 0), source("b", false, 0)];
    let mut roll = Roll::default().follow(fixed(&[1]), &sources, now);
    assert!(!roll.all_asked());
    assert_eq!(roll.hear(&sources[1], told(&[4, 1, 3]), now), None);
    assert_eq!(settled(&mut roll, now), [4, 3]);
    assert_eq!(roll.hear(&sources[0], told(&[2, 3, 2]), now), None);
    assert!(roll.all_asked());
    let change = roll.propose(now).unwrap();
    assert_eq!(change.said(), "3 members are found: +10.0.0.2:80");
    assert_eq!(settled(&mut roll, now), [2, 3, 4]);
    roll.hear(&sources[0], told(&[3]), now);
    let change = roll.propose(now).unwrap();
    assert_eq!((change.said(), change.came.len()), ("2 members are found: -10.0.0.2:80".into(), 0));
    // Other settings of a member are a change, too.
    settled(&mut roll, now);
    let heavier = Told { members: Some(vec![listed(3, 2.0)]), note: None };
    roll.hear(&sources[0], Ok(heavier), now);
    assert_eq!(
        roll.propose(now).unwrap().said(),
        "2 members are found, with other settings or in another order"
    );
    let many: Vec<u8> = (10..30).collect();
    roll.hear(&sources[0], told(&many), now);
    assert!(roll.propose(now).unwrap().said().ends_with("+10.0.0.17:80 +12 more"));
}

#[test]
fn what_fails_or_is_empty_takes_nobody_out() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let sources = [source("a", false, 0)];
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, begun);
    let failed = roll.hear(&sources[0], Err("no answer".into()), begun);
    assert_eq!(failed, Some(News::Failed("dns a:80: no answer; it has no members yet".into(), 0)));
    assert!(roll.all_asked());
    let back = Some(News::Recovered("dns a:80 answers again, after 2.0 s".into(), Duration::from_secs(2)));
    assert_eq!(roll.hear(&sources[0], told(&[1, 2]), at(2)), back);
    assert_eq!(settled(&mut roll, at(2)), [1, 2]);
    let gone = Ok(Told { members: Some(Vec::new()), note: Some("there is no such name (NXDOMAIN)") });
    let failed = roll.hear(&sources[0], gone, at(3));
    let why = "dns a:80: there is no such name (NXDOMAIN), which is not believed; if it may be so, set allow_empty = true; \
               its 2 members stay";
    assert_eq!(failed, Some(News::Failed(why.into(), 2)));
    // A repeated list causes no event, and an unchanged one repeats the previous list.
    assert_eq!(roll.hear(&sources[0], Ok(Told::default()), at(4)), None);
    assert_eq!(roll.hear(&sources[0], Err("SERVFAIL".into()), at(5)), None);
    assert_eq!(settled(&mut roll, at(9)), [1, 2]);
    let [status] = <[SourceStatus; 1]>::try_from(roll.status(at(9))).unwrap();
    let known = (status.members, status.age_seconds, status.failures, status.failing_seconds);
    assert_eq!(known, (2, Some(7.0), 4, Some(6.0)));
    assert_eq!((&*status.kind, &*status.what, status.error.as_deref()), ("dns", "a:80", Some("SERVFAIL")));
    assert!(matches!(roll.hear(&sources[0], told(&[2]), at(10)), Some(News::Recovered(..))));
    assert_eq!(settled(&mut roll, at(10)), [2]);
    assert_eq!(roll.status(at(11))[0].error, None);
}

#[test]
fn one_that_may_be_empty_is() {
    let now = Instant::now();
    let sources = [source("a", true, 0)];
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, now);
    roll.hear(&sources[0], told(&[1]), now);
    assert_eq!(settled(&mut roll, now), [1]);
    assert_eq!(roll.hear(&sources[0], told(&[]), now), None);
    assert_eq!(settled(&mut roll, now), Vec::<u8>::new());
}

#[test]
fn too_many_are_not_taken() {
    let now = Instant::now();
    let sources = [source("a", false, 0)];
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, now);
    roll.hear(&sources[0], told(&[1]), now);
    let name = |port: usize| Arc::<str>::from(format!("10.0.0.1:{port}"));
    let many = (1..=MOST + 1).map(|port| Listed { name: name(port), ..listed(1, 1.0) }).collect();
    let news = roll.hear(&sources[0], Ok(Told { members: Some(many), note: None }), now);
    let Some(News::Failed(why, 1)) = news else { panic!("{news:?}") };
    assert!(why.contains("it lists 4097 members, and 4096 is the most"), "{why}");
    assert_eq!(settled(&mut roll, now), [1]);
}

#[test]
fn those_that_are_left_out_are_held() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let sources = [source("a", false, 5)];
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, begun);
    for (second, member) in [(0, 2), (1, 1), (2, 3), (3, 2)] {
        roll.hear(&sources[0], told(&[member]), at(second));
    }
    assert_eq!(settled(&mut roll, at(3)), [1, 2, 3]);
    // It was left out at 2 s, and another at 3 s.
    assert_eq!(roll.due(), Some(at(7)));
    assert_eq!(settled(&mut roll, at(6)), [1, 2, 3]);
    assert_eq!(settled(&mut roll, at(7)), [2, 3]);
    assert_eq!(settled(&mut roll, at(8)), [2]);
    assert_eq!(roll.due(), None);
}

#[test]
fn a_member_that_has_passed_stays_until_one_that_came_for_it_has() {
    let now = Instant::now();
    let sources = [source("a", false, 0)];
    let passed = |lasts: &[u8]| -> BTreeSet<String> {
        lasts.iter().map(|last| listed(*last, 1.0).name.to_string()).collect()
    };
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, now).check(true);
    roll.hear(&sources[0], told(&[1, 2]), now);
    assert_eq!(settled(&mut roll, now), [1, 2]);
    let mut after = |answer: &[u8], up: &[u8]| {
        roll.hear(&sources[0], told(answer), now);
        roll.replace(&passed(up), now);
        let shown = settled(&mut roll, now);
        assert_eq!(roll.due().is_some(), roll.replacing(), "it is looked at again");
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
    let mut roll = Roll::default().follow(BTreeSet::new(), &sources, now);
    roll.hear(&sources[0], told(&[1]), now);
    roll.hear(&sources[0], told(&[2]), now);
    assert_eq!(settled(&mut roll, now), [2]);
}

#[test]
fn another_configuration_keeps_those_of_sources_that_stay() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let [a, b, c] = ["a", "b", "c"].map(|host| source(host, false, 0));
    let mut roll = Roll::default().follow(BTreeSet::new(), &[a.clone(), b.clone()], begun);
    roll.hear(&a, told(&[1]), begun);
    roll.hear(&b, told(&[2]), begun);
    assert_eq!(settled(&mut roll, begun), [1, 2]);
    // A source that is removed without a replacement goes at once.
    let mut less = roll.clone().follow(BTreeSet::new(), std::slice::from_ref(&b), at(1));
    assert_eq!(settled(&mut less, at(1)), [2]);
    // A replaced source keeps its members until the new one has responded.
    let mut roll = roll.follow(BTreeSet::new(), &[c.clone(), b.clone()], at(1));
    assert_eq!(settled(&mut roll, at(1)), [2, 1]);
    assert!(roll.status(at(1))[2].error.as_deref().unwrap().contains("not in the configuration any more"));
    assert_eq!(roll.hear(&a, told(&[9]), at(2)), None, "what went is not heard");
    let mut answered = roll.clone();
    answered.hear(&c, told(&[3]), at(2));
    assert_eq!(settled(&mut answered, at(2)), [3, 2]);
    assert_eq!(answered.status(at(2)).len(), 2);
    // While the new one fails they stay for a limited time, as there are other members.
    roll.hear(&c, Err("no".into()), at(2));
    assert_eq!(roll.due(), Some(at(11)));
    assert_eq!(settled(&mut roll, at(10)), [2, 1]);
    assert_eq!(settled(&mut roll, at(11)), [2]);
    // A returning source still has its members.
    let again = roll.follow(BTreeSet::new(), std::slice::from_ref(&a), at(12));
    // Without other members they stay forever.
    let mut only = again.follow(BTreeSet::new(), std::slice::from_ref(&c), at(13));
    only.hear(&c, Err("no".into()), at(14));
    assert_eq!(settled(&mut only, at(9999)), [2]);
}

#[test]
fn another_process_goes_on_with_what_was_said_last_until_it_is_said_anew() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let [a, b, c] = [source("a", false, 0), source("b", false, 10), source("c", false, 0)];
    let mut elder = Roll::default().follow(fixed(&[1]), &[a.clone(), b.clone()], begun);
    elder.hear(&a, told(&[1, 2]), begun);
    elder.hear(&b, told(&[3, 4]), begun);
    // 3 is left out, and held; then both sources fail.
    elder.hear(&b, told(&[4]), at(1));
    elder.hear(&a, Err("no".into()), at(2));
    elder.hear(&b, Err("no".into()), at(2));
    assert_eq!(settled(&mut elder, at(2)), [2, 3, 4]);
    let written = serde_json::to_string(&elder.last(at(3))).unwrap();
    let lasts: Vec<Last> = serde_json::from_str(&written).unwrap();
    // One source has other settings, and one is added.
    let b = source("b", true, 20);
    let mut heir = Roll::default().follow(fixed(&[1]), &[b.clone(), c.clone(), a.clone()], at(4));
    heir.recall(lasts.clone(), at(4));
    assert!(!heir.all_asked(), "nobody was heard");
    assert_eq!(heir.status(at(4))[0].age_seconds, None);
    assert_eq!(settled(&mut heir, at(4)), [3, 4, 2]);
    // A held member is held for the rest of its time.
    let why = "dns a:80: no; its 2 members stay".to_owned();
    assert_eq!(heir.hear(&a, Err("no".into()), at(5)), Some(News::Failed(why, 2)));
    assert_eq!(settled(&mut heir, at(11)), [3, 4, 2]);
    assert_eq!(settled(&mut heir, at(12)), [4, 2]);
    assert_eq!(settled(&mut heir, at(9999)), [4, 2]);
    // The next process receives them, too.
    assert_eq!(heir.last(at(12)).len(), 2);
    heir.hear(&a, told(&[5]), at(9999));
    assert_eq!(settled(&mut heir, at(9999)), [4, 5]);
    // A source that has responded ignores members from another process.
    heir.recall(lasts, at(9999));
    assert_eq!(settled(&mut heir, at(9999)), [4, 5]);
}

#[test]
fn what_is_no_member_is_not_taken_over() {
    let now = Instant::now();
    let a = source("a", false, 0);
    let lasts = serde_json::json!([
        {"kind": "srv", "what": "a:80", "members": [{"name": "10.0.0.9:80", "address": "10.0.0.9:80", "capacity": 1.0}]},
        {"kind": "dns", "what": "a:80", "colour": 1, "members": [
            {"name": "10.0.0.1:80", "address": "10.0.0.1:80", "capacity": 1.0, "shape": "round"},
            {"name": "10.0.0.2:80", "address": "10.0.0.2:80", "capacity": 0.0},
            {"name": "10.0.0.3:0", "address": "10.0.0.3:0", "capacity": 1.0},
            {"name": "10.0.0.4:80", "address": "10.0.0.4:80", "capacity": 1.0, "left_seconds": -1.0},
        ]},
    ]);
    let mut roll = Roll::default().follow(BTreeSet::new(), std::slice::from_ref(&a), now);
    roll.recall(serde_json::from_value(lasts).unwrap(), now);
    assert_eq!(settled(&mut roll, now), [1]);
}

/// An event for a roll of two sources.
#[derive(Clone, Debug)]
enum Step {
    Say(usize, Vec<u8>),
    Same(usize),
    Fail(usize),
    Wait(u64),
    /// The configuration is reloaded without changes.
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_usize, proptest::collection::vec(0..6_u8, 0..5)).prop_map(|(of, said)| Step::Say(of, said)),
        (0..2_usize).prop_map(Step::Same),
        (0..2_usize).prop_map(Step::Fail),
        (0..9_u64).prop_map(Step::Wait),
        Just(Step::Reload),
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
        let mut roll = Roll::default().follow(fixed.clone(), &sources, now);
        let mut said: [Vec<u8>; 2] = Default::default();
        for step in steps {
            let before = settled(&mut roll, now);
            let quiet = !matches!(step, Step::Say(..) | Step::Wait(_));
            match step {
                Step::Say(of, lasts) => {
                    roll.hear(&sources[of], told(&lasts), now);
                    if !lasts.is_empty() {
                        said[of] = lasts;
                    }
                }
                Step::Same(of) => drop(roll.hear(&sources[of], Ok(Told::default()), now)),
                Step::Fail(of) => drop(roll.hear(&sources[of], Err("no".into()), now)),
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Reload => roll = roll.follow(fixed.clone(), &sources, now),
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
