use alloc::format;
use alloc::vec;

use super::*;
use crate::meter::Reading;

const SECOND: u64 = 1_000_000_000;

fn at(millis: u64) -> Time {
    Time(SECOND + millis * 1_000_000)
}

/// A balancer of a group of two members, with a view from the others.
struct Stage {
    fleet: Fleet,
    vitals: Vec<Arc<Vitals>>,
    company: Arc<Company>,
    seq: u32,
    own: u64,
}

impl Stage {
    fn new(own: u64, limit: u32) -> Self {
        let settings = Settings {
            own,
            interval: Duration::from_millis(20),
            bytes_per_second: 1e6,
            probers: 1,
            forget: Duration::from_secs(60),
        };
        let mut fleet = Fleet::new(settings);
        let vitals: Vec<Arc<Vitals>> = (0..2).map(|_| Arc::default()).collect();
        let company = Arc::<Company>::default();
        let members = vitals.iter().enumerate().map(|(place, vitals)| ListedMember {
            name: format!("10.0.0.{place}:80").into(),
            vitals: vitals.clone(),
            limit,
            checked: true,
        });
        let listed = Listed { name: "web".into(), company: company.clone(), members: members.collect() };
        fleet.list(vec![listed], at(0));
        Self { fleet, vitals, company, seq: 0, own }
    }

    /// Sends its reports to `other` and returns their number.
    fn tell(&mut self, other: &mut Self, now: Time) -> usize {
        let reports = self.fleet.round(now);
        for report in &reports {
            assert!(report.size() <= MOST);
            self.seq += 1;
            other.fleet.hear(self.own, self.seq, report, now);
        }
        reports.len()
    }

    fn load(&self, member: usize, requests: u32) {
        for _ in 0..requests {
            self.vitals[member].begin();
        }
    }

    fn news(&mut self) -> Vec<What> {
        core::iter::from_fn(|| self.fleet.poll_news()).map(|news| news.what).collect()
    }
}

/// Returns two balancers that know of each other.
fn pair(limit: u32) -> (Stage, Stage) {
    let (mut one, mut other) = (Stage::new(1, limit), Stage::new(2, limit));
    one.fleet.up(2, at(0));
    other.fleet.up(1, at(0));
    one.tell(&mut other, at(0));
    other.tell(&mut one, at(0));
    (one, other)
}

#[test]
fn what_one_has_counts_at_the_other_and_goes_with_it() {
    let (mut one, mut other) = pair(u32::MAX);
    assert_eq!(one.vitals[0].others(), 0.0);
    other.load(0, 8);
    other.tell(&mut one, at(20));
    let fresh = one.vitals[0].others();
    assert!((7.9..=8.0).contains(&fresh), "{fresh}");
    assert_eq!((one.vitals[1].others(), one.company.scale()), (0.0, 2.0));
    // The requests may have ended: the mean counts more and more.
    one.fleet.tend(at(60));
    let aged = one.vitals[0].others();
    assert!(aged < 2.0, "{aged}");
    one.fleet.down(2, false, at(70));
    assert_eq!((one.vitals[0].others(), one.company.scale()), (0.0, 1.0));
}

#[test]
fn what_stays_is_told_as_usual_and_one_that_is_silent_loses_its_say() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(1, 10);
    for step in 1..150 {
        other.tell(&mut one, at(20 * step));
        one.fleet.tend(at(20 * step));
    }
    let now = at(20 * 149);
    assert!((one.vitals[1].others() - 10.0).abs() < 0.8, "{}", one.vitals[1].others());
    one.fleet.tend(now + Duration::from_millis(300));
    assert!((one.vitals[1].others() - 10.0).abs() < 0.8);
    one.fleet.tend(now + Duration::from_millis(1300));
    let faded = one.vitals[1].others();
    assert!(faded > 0.5 && faded < 5.0, "{faded}");
    one.fleet.tend(now + Duration::from_millis(2100));
    assert_eq!(one.vitals[1].others(), 0.0);
}

#[test]
fn nothing_that_has_not_changed_is_told_but_in_the_sweep() {
    let (mut one, mut other) = pair(u32::MAX);
    let mut told = 0;
    for step in 1..1000 {
        one.fleet.round(at(20 * step)).iter().for_each(|report| {
            told += report.sections.iter().map(|section| section.words.len()).sum::<usize>();
        });
    }
    // Twenty seconds with a sweep in each, and one more for the new balancer.
    assert!((36..=44).contains(&told), "{told}");
    one.load(0, 1);
    assert_eq!(one.tell(&mut other, at(20_000)), 1);
}

#[test]
fn reports_stay_within_their_bytes_and_tell_everything_in_time() {
    let settings = Settings {
        own: 1,
        interval: Duration::from_millis(20),
        bytes_per_second: 50_000.0,
        probers: 1,
        forget: Duration::from_secs(60),
    };
    let mut fleet = Fleet::new(settings);
    let vitals: Vec<Arc<Vitals>> = (0..3000).map(|_| Arc::default()).collect();
    let members = vitals.iter().enumerate().map(|(place, vitals)| ListedMember {
        name: format!("m{place}").into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        checked: false,
    });
    let listed = Listed { name: "web".into(), company: Arc::default(), members: members.collect() };
    fleet.list(vec![listed], at(0));
    fleet.up(2, at(0));
    fleet.up(3, at(0));
    let (mut bytes, mut told) = (0.0, BTreeMap::new());
    let mut word = 0;
    for step in 0..500 {
        // Everything changes all the time.
        for vitals in &vitals {
            for _ in 0..1 + step % 3 {
                vitals.begin();
            }
        }
        for report in fleet.round(at(20 * step)) {
            assert!(!report.is_empty() && report.size() <= MOST, "{}", report.size());
            bytes += 2.0 * (report.size() as f64 + tell::DATAGRAM - MOST as f64);
            for one in report.sections.iter().flat_map(|section| &section.words) {
                *told.entry(one.member).or_insert(0) += 1;
                word = word.max(one.size());
            }
        }
    }
    assert!(bytes <= 50_000.0 * 10.5, "{bytes} in ten seconds");
    assert!(bytes >= 50_000.0 * 9.0, "{bytes} in ten seconds");
    assert_eq!(told.len(), 3000, "each has its turn");
    let (least, most) = (told.values().min().unwrap(), told.values().max().unwrap());
    assert!(most - least <= 1, "{least} to {most}: turns are fair");
}

#[test]
fn a_report_that_is_missed_makes_what_was_said_before_less_sure() {
    let mut peer = Peer::new(at(0));
    let said = |now| peer::Heard::of(&Word { in_flight: 6, ..Word::default() }, 7, now);
    assert!(peer.came(7, at(0)) && peer.came(8, at(500)));
    assert_eq!(peer.stamp(&said(at(0))), at(500), "it would have said if it had changed");
    assert!(peer.came(10, at(1000)));
    assert_eq!((peer.stamp(&said(at(0))), peer.stamp(&said(at(1000)))), (at(0), at(1000)));
    assert_eq!(peer.known(2, at(1000)).missed, 1);
    // It was only late.
    assert!(peer.came(9, at(1001)));
    assert_eq!((peer.known(2, at(1001)).missed, peer.known(2, at(1001)).received), (0, 4));
}

#[test]
fn reports_that_overtake_one_another_leave_the_latest() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(0, 2);
    let early = other.fleet.round(at(20));
    other.load(0, 5);
    let late = other.fleet.round(at(40));
    one.fleet.hear(2, 12, &late[0], at(40));
    one.fleet.hear(2, 11, &early[0], at(41));
    assert!(one.vitals[0].others() > 6.0, "{}", one.vitals[0].others());
}

#[test]
fn each_has_its_part_of_a_limit_and_keeps_it_when_it_is_cut_off() {
    let (mut one, mut other) = pair(10);
    assert_eq!((one.vitals[0].part(), other.vitals[0].part()), (Some(5), Some(5)));
    for step in 1..200 {
        if step < 100 && one.vitals[0].in_flight() < 8 {
            one.load(0, 1);
        }
        one.tell(&mut other, at(20 * step));
        other.tell(&mut one, at(20 * step));
        one.fleet.tend(at(20 * step));
        other.fleet.tend(at(20 * step));
    }
    let (busy, idle) = (one.vitals[0].part().unwrap(), other.vitals[0].part().unwrap());
    assert!(busy >= 8 && busy + idle <= 10, "{busy} and {idle}");
    one.fleet.down(2, false, at(4100));
    assert_eq!(one.vitals[0].part(), Some(5), "the other may be there, and only not be heard");
    one.fleet.tend(at(65_000));
    assert_eq!(one.vitals[0].part(), None, "it is forgotten");
    // A balancer that announces its end leaves at once.
    other.fleet.down(1, true, at(4100));
    assert_eq!(other.vitals[0].part(), None);
}

#[test]
fn ejections_are_believed_unless_what_is_seen_here_contradicts() {
    let (mut one, mut other) = pair(u32::MAX);
    one.news();
    other.fleet.ejected("web", "10.0.0.0:80", Duration::from_secs(10), at(20));
    other.tell(&mut one, at(20));
    other.tell(&mut one, at(40));
    let ejected = What::Ejected { left: Duration::from_secs(10), by: 2 };
    assert_eq!(one.news(), [ejected]);
    assert!(one.fleet.round(at(60)).iter().all(|report| {
        report.sections.iter().flat_map(|section| &section.words).all(|word| word.ejected.is_none())
    }));
    // This one serves twenty requests a second with the other member, without failures.
    for step in 0..100 {
        one.load(1, 1);
        one.vitals[1].end();
        one.fleet.round(at(100 + 50 * step));
    }
    other.fleet.ejected("web", "10.0.0.1:80", Duration::from_secs(10), at(5100));
    other.tell(&mut one, at(5100));
    assert_eq!(one.news(), []);
}

#[test]
fn checks_are_shared_and_told_once() {
    let (mut one, mut other) = pair(u32::MAX);
    let duties =
        |stage: &mut Stage| stage.news().into_iter().filter(|what| *what == What::Duty(false)).count();
    assert_eq!(duties(&mut one) + duties(&mut other), 2, "each member is checked by one of both");
    other.fleet.checked("web", "10.0.0.0:80", false, at(20));
    other.tell(&mut one, at(30));
    other.load(0, 1);
    other.tell(&mut one, at(50));
    let age = Duration::from_millis(10);
    assert_eq!(one.news(), [What::Checked { passed: false, age, by: 2 }]);
    // Without the other balancer, this one checks all members.
    one.fleet.down(2, true, at(100));
    assert!(one.fleet.groups[0].members.iter().all(|own| own.mine));
    assert!(one.news().iter().all(|what| *what == What::Duty(true)));
}

#[test]
fn readings_and_loads_are_passed_on_once() {
    let (mut one, mut other) = pair(u32::MAX);
    one.news();
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        slot: true,
        open: false,
    };
    other.vitals[0].heard.take(&reading, 0, at(90));
    other.fleet.loaded("web", "10.0.0.1:80", Load { value: 0.75, at: at(80), of_host: true });
    other.tell(&mut one, at(100));
    let view = one.vitals[0].heard.view().unwrap();
    assert_eq!((view.reading.in_flight, view.at, view.reading.slot), (3, at(90), false));
    assert!(one.company.speaks());
    assert_eq!(one.news(), [What::Loaded { value: 0.75, of_host: true, age: Duration::from_millis(20) }]);
    let told = one.fleet.round(at(120));
    let mut words = told.iter().flat_map(|report| &report.sections).flat_map(|section| &section.words);
    assert!(words.all(|word| word.reading.is_none() && word.load.is_none()), "it is the other's to tell");
}

#[test]
fn what_another_heard_does_not_hide_what_is_under_way_from_here() {
    let (mut one, mut other) = pair(u32::MAX);
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        ..Reading::default()
    };
    let mine = one.vitals[0].clone();
    // A tunnel of indefinite length, and requests that were answered without a load report.
    mine.begin();
    mine.heard.take(&reading, mine.begun(), at(50));
    for _ in 0..3 {
        mine.begin();
        mine.end();
    }
    let under_way = |one: &Stage| mine.begun() - one.vitals[0].heard.view().unwrap().begun;
    let mut told = |one: &mut Stage, then| {
        other.vitals[0].heard.take(&reading, 0, at(then));
        other.tell(one, at(then + 10));
        assert_eq!(one.vitals[0].heard.view().unwrap().at, at(then));
    };
    told(&mut one, 20_000);
    assert_eq!(under_way(&one), 1, "no more than are there");
    mine.end();
    told(&mut one, 40_000);
    assert_eq!(under_way(&one), 0);
    mine.begin();
    told(&mut one, 60_000);
    told(&mut one, 80_000);
    assert_eq!(under_way(&one), 1);
}

#[test]
fn what_one_was_told_oneself_stays_while_it_means_something() {
    let (mut one, mut other) = pair(u32::MAX);
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        ..Reading::default()
    };
    one.vitals[0].heard.take(&reading, 0, at(50));
    let mut heard_after = |then| {
        other.vitals[0].heard.take(&Reading { in_flight: 0, ..reading }, 0, at(then));
        other.tell(&mut one, at(then + 10));
        let view = one.vitals[0].heard.view().unwrap();
        (view.at, view.reading.in_flight)
    };
    assert_eq!(heard_after(2000), (at(50), 3), "all who know that it is empty would meet there");
    assert_eq!(heard_after(9000), (at(50), 3));
    assert_eq!(heard_after(11_000), (at(11_000), 0), "it was silent for too long");
    assert_eq!(
        heard_after(11_100),
        (at(11_100), 0),
        "what others heard later is better than what they heard before"
    );
    let mine = one.vitals[0].clone();
    mine.heard.take(&reading, mine.begun(), at(12_000));
    let mut heard_after = |then| {
        other.vitals[0].heard.take(&Reading { in_flight: 0, ..reading }, 0, at(then));
        other.tell(&mut one, at(then + 10));
        mine.heard.view().unwrap().at
    };
    assert_eq!(heard_after(12_100), at(12_000));
    for _ in 0..17 {
        mine.begin();
        mine.end();
    }
    assert_eq!(heard_after(12_200), at(12_200), "its answers to this balancer say nothing any more");
    assert_eq!(heard_after(12_300), at(12_300));
}

#[test]
fn suspicion_is_shared_and_never_ejects_by_itself() {
    let (mut one, mut other) = pair(u32::MAX);
    while other.vitals[0].suspicion.sum() <= crate::member::suspicion::DOUBTFUL {
        other.vitals[0].suspicion.record(true, 1e-4);
    }
    other.tell(&mut one, at(20));
    let sum = one.vitals[0].suspicion.sum();
    assert!(sum > 6.0 && sum <= crate::MOST_WARNED, "{sum}");
    one.vitals[1].begin();
    let told = one.fleet.round(at(40));
    let words = told.iter().flat_map(|report| &report.sections).flat_map(|section| &section.words);
    assert!(words.into_iter().all(|word| word.suspicion == 0), "it is the other's to tell");
}

#[test]
fn members_that_stay_keep_what_was_said_of_them() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(1, 9);
    for step in 1..100 {
        other.tell(&mut one, at(20 * step));
    }
    let before = one.vitals[1].others();
    assert!(before > 7.5, "{before}");
    let member = |name: &str, vitals: &Arc<Vitals>| ListedMember {
        name: name.into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        checked: false,
    };
    let (stays, goes) = (one.vitals[1].clone(), one.vitals[0].clone());
    let members = vec![member("10.0.0.9:80", &Arc::default()), member("10.0.0.1:80", &stays)];
    one.fleet.list(vec![Listed { name: "web".into(), company: one.company.clone(), members }], at(2000));
    assert!((stays.others() - before).abs() < 1.0, "{} after {before}", stays.others());
    assert_eq!(goes.others(), 0.0);
    one.fleet.list(Vec::new(), at(2010));
    assert_eq!((stays.others(), one.company.scale()), (0.0, 1.0));
    other.tell(&mut one, at(2020));
    assert_eq!(stays.others(), 0.0, "it is not served here any more");
}
