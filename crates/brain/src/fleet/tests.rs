use alloc::format;
use alloc::vec;

use super::*;
use crate::meter::Reading;

const SECOND: u64 = 1_000_000_000;

fn at(millis: u64) -> Time {
    Time(SECOND + millis * 1_000_000)
}

/// A balancer of a group of two members, with a view from the others.
struct TestBalancer {
    fleet: Fleet,
    vitals: Vec<Arc<Vitals>>,
    presence: Arc<PeerPresence>,
    seq: u32,
    own: u64,
}

impl TestBalancer {
    fn new(own: u64, limit: u32) -> Self {
        let settings = FleetSettings {
            own_id: own,
            interval: Duration::from_millis(20),
            bytes_per_second: 1e6,
            probers: 1,
            share_retention: Duration::from_secs(60),
        };
        let mut fleet = Fleet::new(settings);
        let vitals: Vec<Arc<Vitals>> = (0..2).map(|_| Arc::default()).collect();
        let presence = Arc::<PeerPresence>::default();
        let members = vitals.iter().enumerate().map(|(place, vitals)| FleetMember {
            name: format!("10.0.0.{place}:80").into(),
            vitals: vitals.clone(),
            limit,
            health_checked: true,
        });
        let listed =
            FleetGroup { name: "web".into(), presence: presence.clone(), members: members.collect() };
        fleet.set_groups(vec![listed], at(0));
        Self { fleet, vitals, presence, seq: 0, own }
    }

    /// Sends its reports to `other` and returns their number.
    fn send_reports(&mut self, other: &mut Self, now: Time) -> usize {
        let reports = self.fleet.poll_reports(now);
        for report in &reports {
            assert!(report.size() <= MAX_REPORT_BYTES);
            self.seq += 1;
            other.fleet.receive_report(self.own, self.seq, report, now);
        }
        reports.len()
    }

    fn load(&self, member: usize, requests: u32) {
        for _ in 0..requests {
            self.vitals[member].begin();
        }
    }

    fn drain_updates(&mut self) -> Vec<FleetUpdateKind> {
        core::iter::from_fn(|| self.fleet.poll_update()).map(|news| news.kind).collect()
    }
}

/// Returns two balancers that know of each other.
fn pair(limit: u32) -> (TestBalancer, TestBalancer) {
    let (mut one, mut other) = (TestBalancer::new(1, limit), TestBalancer::new(2, limit));
    one.fleet.peer_joined(2, at(0));
    other.fleet.peer_joined(1, at(0));
    one.send_reports(&mut other, at(0));
    other.send_reports(&mut one, at(0));
    (one, other)
}

#[test]
fn what_one_has_counts_at_the_other_and_goes_with_it() {
    let (mut one, mut other) = pair(u32::MAX);
    assert_eq!(one.vitals[0].peer_in_flight(), 0.0);
    other.load(0, 8);
    other.send_reports(&mut one, at(20));
    let fresh = one.vitals[0].peer_in_flight();
    assert!((7.9..=8.0).contains(&fresh), "{fresh}");
    assert_eq!((one.vitals[1].peer_in_flight(), one.presence.own_request_weight()), (0.0, 2.0));
    // The requests may have ended: the mean counts more and more.
    one.fleet.age_reports(at(60));
    let aged = one.vitals[0].peer_in_flight();
    assert!(aged < 2.0, "{aged}");
    one.fleet.peer_left(2, false, at(70));
    assert_eq!((one.vitals[0].peer_in_flight(), one.presence.own_request_weight()), (0.0, 1.0));
}

#[test]
fn what_stays_is_told_as_usual_and_one_that_is_silent_loses_its_say() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(1, 10);
    for step in 1..150 {
        other.send_reports(&mut one, at(20 * step));
        one.fleet.age_reports(at(20 * step));
    }
    let now = at(20 * 149);
    assert!((one.vitals[1].peer_in_flight() - 10.0).abs() < 0.8, "{}", one.vitals[1].peer_in_flight());
    one.fleet.age_reports(now + Duration::from_millis(300));
    assert!((one.vitals[1].peer_in_flight() - 10.0).abs() < 0.8);
    one.fleet.age_reports(now + Duration::from_millis(1300));
    let faded = one.vitals[1].peer_in_flight();
    assert!(faded > 0.5 && faded < 5.0, "{faded}");
    one.fleet.age_reports(now + Duration::from_millis(2100));
    assert_eq!(one.vitals[1].peer_in_flight(), 0.0);
}

#[test]
fn nothing_that_has_not_changed_is_told_but_in_the_sweep() {
    let (mut one, mut other) = pair(u32::MAX);
    let mut told = 0;
    for step in 1..1000 {
        one.fleet.poll_reports(at(20 * step)).iter().for_each(|report| {
            told += report.sections.iter().map(|section| section.entries.len()).sum::<usize>();
        });
    }
    // Twenty seconds with a sweep in each, and one more for the new balancer.
    assert!((36..=44).contains(&told), "{told}");
    one.load(0, 1);
    assert_eq!(one.send_reports(&mut other, at(20_000)), 1);
}

#[test]
fn reports_stay_within_their_bytes_and_tell_everything_in_time() {
    let settings = FleetSettings {
        own_id: 1,
        interval: Duration::from_millis(20),
        bytes_per_second: 50_000.0,
        probers: 1,
        share_retention: Duration::from_secs(60),
    };
    let mut fleet = Fleet::new(settings);
    let vitals: Vec<Arc<Vitals>> = (0..3000).map(|_| Arc::default()).collect();
    let members = vitals.iter().enumerate().map(|(place, vitals)| FleetMember {
        name: format!("m{place}").into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        health_checked: false,
    });
    let listed = FleetGroup { name: "web".into(), presence: Arc::default(), members: members.collect() };
    fleet.set_groups(vec![listed], at(0));
    fleet.peer_joined(2, at(0));
    fleet.peer_joined(3, at(0));
    let (mut bytes, mut told) = (0.0, BTreeMap::new());
    let mut word = 0;
    for step in 0..500 {
        // Everything changes all the time.
        for vitals in &vitals {
            for _ in 0..1 + step % 3 {
                vitals.begin();
            }
        }
        for report in fleet.poll_reports(at(20 * step)) {
            assert!(!report.is_empty() && report.size() <= MAX_REPORT_BYTES, "{}", report.size());
            bytes += 2.0 * (report.size() as f64 + broadcast::MAX_DATAGRAM_BYTES - MAX_REPORT_BYTES as f64);
            for one in report.sections.iter().flat_map(|section| &section.entries) {
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
    let mut peer = FleetPeer::new(at(0));
    let said = |now| {
        peer::PeerMemberReport::from_entry(&MemberEntry { in_flight: 6, ..MemberEntry::default() }, 7, now)
    };
    assert!(peer.record_sequence(7, at(0)) && peer.record_sequence(8, at(500)));
    assert_eq!(peer.valid_until(&said(at(0))), at(500), "it would have said if it had changed");
    assert!(peer.record_sequence(10, at(1000)));
    assert_eq!((peer.valid_until(&said(at(0))), peer.valid_until(&said(at(1000)))), (at(0), at(1000)));
    assert_eq!(peer.stats(2, at(1000)).missed, 1);
    // It was only late.
    assert!(peer.record_sequence(9, at(1001)));
    assert_eq!((peer.stats(2, at(1001)).missed, peer.stats(2, at(1001)).received), (0, 4));
}

#[test]
fn reports_that_overtake_one_another_leave_the_latest() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(0, 2);
    let early = other.fleet.poll_reports(at(20));
    other.load(0, 5);
    let late = other.fleet.poll_reports(at(40));
    one.fleet.receive_report(2, 12, &late[0], at(40));
    one.fleet.receive_report(2, 11, &early[0], at(41));
    assert!(one.vitals[0].peer_in_flight() > 6.0, "{}", one.vitals[0].peer_in_flight());
}

#[test]
fn each_has_its_part_of_a_limit_and_keeps_it_when_it_is_cut_off() {
    let (mut one, mut other) = pair(10);
    assert_eq!((one.vitals[0].part(), other.vitals[0].part()), (Some(5), Some(5)));
    for step in 1..200 {
        if step < 100 && one.vitals[0].in_flight() < 8 {
            one.load(0, 1);
        }
        one.send_reports(&mut other, at(20 * step));
        other.send_reports(&mut one, at(20 * step));
        one.fleet.age_reports(at(20 * step));
        other.fleet.age_reports(at(20 * step));
    }
    let (busy, idle) = (one.vitals[0].part().unwrap(), other.vitals[0].part().unwrap());
    assert!(busy >= 8 && busy + idle <= 10, "{busy} and {idle}");
    one.fleet.peer_left(2, false, at(4100));
    assert_eq!(one.vitals[0].part(), Some(5), "the other may be there, and only not be heard");
    one.fleet.age_reports(at(65_000));
    assert_eq!(one.vitals[0].part(), None, "it is forgotten");
    // A balancer that announces its end leaves at once.
    other.fleet.peer_left(1, true, at(4100));
    assert_eq!(other.vitals[0].part(), None);
}

#[test]
fn ejections_are_believed_unless_what_is_seen_here_contradicts() {
    let (mut one, mut other) = pair(u32::MAX);
    one.drain_updates();
    other.fleet.record_ejection("web", "10.0.0.0:80", Duration::from_secs(10), at(20));
    other.send_reports(&mut one, at(20));
    other.send_reports(&mut one, at(40));
    let ejected = FleetUpdateKind::Ejected { remaining: Duration::from_secs(10), by: 2 };
    assert_eq!(one.drain_updates(), [ejected]);
    assert!(one.fleet.poll_reports(at(60)).iter().all(|report| {
        report.sections.iter().flat_map(|section| &section.entries).all(|word| word.ejected.is_none())
    }));
    // This one serves twenty requests a second with the other member, without failures.
    for step in 0..100 {
        one.load(1, 1);
        one.vitals[1].end();
        one.fleet.poll_reports(at(100 + 50 * step));
    }
    other.fleet.record_ejection("web", "10.0.0.1:80", Duration::from_secs(10), at(5100));
    other.send_reports(&mut one, at(5100));
    assert_eq!(one.drain_updates(), []);
}

#[test]
fn checks_are_shared_and_told_once() {
    let (mut one, mut other) = pair(u32::MAX);
    let duties = |stage: &mut TestBalancer| {
        stage.drain_updates().into_iter().filter(|what| *what == FleetUpdateKind::ProbeDuty(false)).count()
    };
    assert_eq!(duties(&mut one) + duties(&mut other), 2, "each member is checked by one of both");
    other.fleet.record_check("web", "10.0.0.0:80", false, at(20));
    other.send_reports(&mut one, at(30));
    other.load(0, 1);
    other.send_reports(&mut one, at(50));
    let age = Duration::from_millis(10);
    assert_eq!(one.drain_updates(), [FleetUpdateKind::HealthChecked { passed: false, age, by: 2 }]);
    // Without the other balancer, this one checks all members.
    one.fleet.peer_left(2, true, at(100));
    assert!(one.fleet.groups[0].members.iter().all(|own| own.is_prober));
    assert!(one.drain_updates().iter().all(|what| *what == FleetUpdateKind::ProbeDuty(true)));
}

#[test]
fn readings_and_loads_are_passed_on_once() {
    let (mut one, mut other) = pair(u32::MAX);
    one.drain_updates();
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        slot: true,
        open: false,
    };
    other.vitals[0].last_report.record(&reading, 0, at(90));
    other.fleet.record_load("web", "10.0.0.1:80", ReportedLoad { value: 0.75, at: at(80), of_host: true });
    other.send_reports(&mut one, at(100));
    let view = one.vitals[0].last_report.view().unwrap();
    assert_eq!((view.reading.in_flight, view.at, view.reading.slot), (3, at(90), false));
    assert!(one.presence.has_relayed_reports());
    assert_eq!(
        one.drain_updates(),
        [FleetUpdateKind::LoadReceived { value: 0.75, of_host: true, age: Duration::from_millis(20) }]
    );
    let told = one.fleet.poll_reports(at(120));
    let mut words = told.iter().flat_map(|report| &report.sections).flat_map(|section| &section.entries);
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
    mine.last_report.record(&reading, mine.begun(), at(50));
    for _ in 0..3 {
        mine.begin();
        mine.end();
    }
    let under_way = |one: &TestBalancer| mine.begun() - one.vitals[0].last_report.view().unwrap().begun;
    let mut told = |one: &mut TestBalancer, then| {
        other.vitals[0].last_report.record(&reading, 0, at(then));
        other.send_reports(one, at(then + 10));
        assert_eq!(one.vitals[0].last_report.view().unwrap().at, at(then));
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
    one.vitals[0].last_report.record(&reading, 0, at(50));
    let mut heard_after = |then| {
        other.vitals[0].last_report.record(&Reading { in_flight: 0, ..reading }, 0, at(then));
        other.send_reports(&mut one, at(then + 10));
        let view = one.vitals[0].last_report.view().unwrap();
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
    mine.last_report.record(&reading, mine.begun(), at(12_000));
    let mut heard_after = |then| {
        other.vitals[0].last_report.record(&Reading { in_flight: 0, ..reading }, 0, at(then));
        other.send_reports(&mut one, at(then + 10));
        mine.last_report.view().unwrap().at
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
    while other.vitals[0].failure_detector.sum() <= crate::member::failure_detector::NOTIFY_THRESHOLD {
        other.vitals[0].failure_detector.record(true, 1e-4);
    }
    other.send_reports(&mut one, at(20));
    let sum = one.vitals[0].failure_detector.sum();
    assert!(sum > 6.0 && sum <= crate::MAX_WARNING, "{sum}");
    one.vitals[1].begin();
    let told = one.fleet.poll_reports(at(40));
    let words = told.iter().flat_map(|report| &report.sections).flat_map(|section| &section.entries);
    assert!(words.into_iter().all(|word| word.suspicion == 0), "it is the other's to tell");
}

#[test]
fn members_that_stay_keep_what_was_said_of_them() {
    let (mut one, mut other) = pair(u32::MAX);
    other.load(1, 9);
    for step in 1..100 {
        other.send_reports(&mut one, at(20 * step));
    }
    let before = one.vitals[1].peer_in_flight();
    assert!(before > 7.5, "{before}");
    let member = |name: &str, vitals: &Arc<Vitals>| FleetMember {
        name: name.into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        health_checked: false,
    };
    let (stays, goes) = (one.vitals[1].clone(), one.vitals[0].clone());
    let members = vec![member("10.0.0.9:80", &Arc::default()), member("10.0.0.1:80", &stays)];
    one.fleet.set_groups(
        vec![FleetGroup { name: "web".into(), presence: one.presence.clone(), members }],
        at(2000),
    );
    assert!((stays.peer_in_flight() - before).abs() < 1.0, "{} after {before}", stays.peer_in_flight());
    assert_eq!(goes.peer_in_flight(), 0.0);
    one.fleet.set_groups(Vec::new(), at(2010));
    assert_eq!((stays.peer_in_flight(), one.presence.own_request_weight()), (0.0, 1.0));
    other.send_reports(&mut one, at(2020));
    assert_eq!(stays.peer_in_flight(), 0.0, "it is not served here any more");
}
