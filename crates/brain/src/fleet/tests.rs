use alloc::format;
use alloc::vec;

use super::*;
use crate::meter::Reading;

const SECOND: u64 = 1_000_000_000;

fn at_millis(millis: u64) -> Time {
    Time(SECOND + millis * 1_000_000)
}

/// A balancer of a group of two members, with a view from the others.
struct TestBalancer {
    fleet: Fleet,
    vitals: Vec<Arc<Vitals>>,
    presence: Arc<PeerPresence>,
    seq: u32,
    own_id: u64,
}

impl TestBalancer {
    fn new(own_id: u64, limit: u32) -> Self {
        let settings = FleetSettings {
            own_id,
            interval: Duration::from_millis(20),
            bytes_per_second: 1e6,
            probers: 1,
            share_retention: Duration::from_secs(60),
        };
        let mut fleet = Fleet::new(settings);
        let vitals: Vec<Arc<Vitals>> = (0..2).map(|_| Arc::default()).collect();
        let presence = Arc::<PeerPresence>::default();
        let members = vitals.iter().enumerate().map(|(index, vitals)| FleetMember {
            name: format!("10.0.0.{index}:80").into(),
            vitals: vitals.clone(),
            limit,
            health_checked: true,
        });
        let group = FleetGroup { name: "web".into(), presence: presence.clone(), members: members.collect() };
        fleet.set_groups(vec![group], at_millis(0));
        Self { fleet, vitals, presence, seq: 0, own_id }
    }

    /// Sends its reports to `other` and returns their number.
    fn send_reports(&mut self, other: &mut Self, now: Time) -> usize {
        let reports = self.fleet.poll_reports(now);
        for report in &reports {
            assert!(report.size() <= MAX_REPORT_BYTES);
            self.seq += 1;
            other.fleet.receive_report(self.own_id, self.seq, report, now);
        }
        reports.len()
    }

    fn load(&self, member: usize, requests: u32) {
        for _ in 0..requests {
            self.vitals[member].begin();
        }
    }

    fn drain_updates(&mut self) -> Vec<FleetUpdateKind> {
        core::iter::from_fn(|| self.fleet.poll_update()).map(|update| update.kind).collect()
    }
}

/// Returns two balancers that know of each other.
fn pair(limit: u32) -> (TestBalancer, TestBalancer) {
    let (mut first, mut second) = (TestBalancer::new(1, limit), TestBalancer::new(2, limit));
    first.fleet.peer_joined(2, at_millis(0));
    second.fleet.peer_joined(1, at_millis(0));
    first.send_reports(&mut second, at_millis(0));
    second.send_reports(&mut first, at_millis(0));
    (first, second)
}

#[test]
fn what_one_has_counts_at_the_other_and_goes_with_it() {
    let (mut first, mut second) = pair(u32::MAX);
    assert_eq!(first.vitals[0].peer_in_flight(), 0.0);
    second.load(0, 8);
    second.send_reports(&mut first, at_millis(20));
    let fresh_in_flight = first.vitals[0].peer_in_flight();
    assert!((7.9..=8.0).contains(&fresh_in_flight), "{fresh_in_flight}");
    assert_eq!((first.vitals[1].peer_in_flight(), first.presence.own_request_weight()), (0.0, 2.0));
    // The requests may have ended: the mean counts more and more.
    first.fleet.age_reports(at_millis(60));
    let aged_in_flight = first.vitals[0].peer_in_flight();
    assert!(aged_in_flight < 2.0, "{aged_in_flight}");
    first.fleet.peer_left(2, false, at_millis(70));
    assert_eq!((first.vitals[0].peer_in_flight(), first.presence.own_request_weight()), (0.0, 1.0));
}

#[test]
fn what_stays_is_told_as_usual_and_one_that_is_silent_loses_its_say() {
    let (mut first, mut second) = pair(u32::MAX);
    second.load(1, 10);
    for step in 1..150 {
        second.send_reports(&mut first, at_millis(20 * step));
        first.fleet.age_reports(at_millis(20 * step));
    }
    let now = at_millis(20 * 149);
    assert!((first.vitals[1].peer_in_flight() - 10.0).abs() < 0.8, "{}", first.vitals[1].peer_in_flight());
    first.fleet.age_reports(now + Duration::from_millis(300));
    assert!((first.vitals[1].peer_in_flight() - 10.0).abs() < 0.8);
    first.fleet.age_reports(now + Duration::from_millis(1300));
    let faded_in_flight = first.vitals[1].peer_in_flight();
    assert!(faded_in_flight > 0.5 && faded_in_flight < 5.0, "{faded_in_flight}");
    first.fleet.age_reports(now + Duration::from_millis(2100));
    assert_eq!(first.vitals[1].peer_in_flight(), 0.0);
}

#[test]
fn nothing_that_has_not_changed_is_told_but_in_the_sweep() {
    let (mut first, mut second) = pair(u32::MAX);
    let mut entry_count = 0;
    for step in 1..1000 {
        first.fleet.poll_reports(at_millis(20 * step)).iter().for_each(|report| {
            entry_count += report.sections.iter().map(|section| section.entries.len()).sum::<usize>();
        });
    }
    // Twenty seconds with a sweep in each, and one more for the new balancer.
    assert!((36..=44).contains(&entry_count), "{entry_count}");
    first.load(0, 1);
    assert_eq!(first.send_reports(&mut second, at_millis(20_000)), 1);
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
    let members = vitals.iter().enumerate().map(|(index, vitals)| FleetMember {
        name: format!("m{index}").into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        health_checked: false,
    });
    let group = FleetGroup { name: "web".into(), presence: Arc::default(), members: members.collect() };
    fleet.set_groups(vec![group], at_millis(0));
    fleet.peer_joined(2, at_millis(0));
    fleet.peer_joined(3, at_millis(0));
    let (mut bytes, mut entry_counts) = (0.0, BTreeMap::new());
    let mut max_entry_size = 0;
    for step in 0..500 {
        // Everything changes all the time.
        for vitals in &vitals {
            for _ in 0..1 + step % 3 {
                vitals.begin();
            }
        }
        for report in fleet.poll_reports(at_millis(20 * step)) {
            assert!(!report.is_empty() && report.size() <= MAX_REPORT_BYTES, "{}", report.size());
            bytes += 2.0 * (report.size() as f64 + broadcast::MAX_DATAGRAM_BYTES - MAX_REPORT_BYTES as f64);
            for entry in report.sections.iter().flat_map(|section| &section.entries) {
                *entry_counts.entry(entry.member).or_insert(0) += 1;
                max_entry_size = max_entry_size.max(entry.size());
            }
        }
    }
    assert!(bytes <= 50_000.0 * 10.5, "{bytes} in ten seconds");
    assert!(bytes >= 50_000.0 * 9.0, "{bytes} in ten seconds");
    assert_eq!(entry_counts.len(), 3000, "each has its turn");
    let (min_count, max_count) = (entry_counts.values().min().unwrap(), entry_counts.values().max().unwrap());
    assert!(max_count - min_count <= 1, "{min_count} to {max_count}: turns are fair");
}

#[test]
fn a_report_that_is_missed_makes_what_was_said_before_less_sure() {
    let mut peer = FleetPeer::new(at_millis(0));
    let report_at = |now| {
        peer::PeerMemberReport::from_entry(&MemberEntry { in_flight: 6, ..MemberEntry::default() }, 7, now)
    };
    assert!(peer.record_sequence(7, at_millis(0)) && peer.record_sequence(8, at_millis(500)));
    assert_eq!(
        peer.valid_until(&report_at(at_millis(0))),
        at_millis(500),
        "it would have said if it had changed"
    );
    assert!(peer.record_sequence(10, at_millis(1000)));
    assert_eq!(
        (peer.valid_until(&report_at(at_millis(0))), peer.valid_until(&report_at(at_millis(1000)))),
        (at_millis(0), at_millis(1000))
    );
    assert_eq!(peer.stats(2, at_millis(1000)).missed, 1);
    // It was only late.
    assert!(peer.record_sequence(9, at_millis(1001)));
    assert_eq!((peer.stats(2, at_millis(1001)).missed, peer.stats(2, at_millis(1001)).received), (0, 4));
}

#[test]
fn reports_that_overtake_one_another_leave_the_latest() {
    let (mut first, mut second) = pair(u32::MAX);
    second.load(0, 2);
    let earlier_reports = second.fleet.poll_reports(at_millis(20));
    second.load(0, 5);
    let later_reports = second.fleet.poll_reports(at_millis(40));
    first.fleet.receive_report(2, 12, &later_reports[0], at_millis(40));
    first.fleet.receive_report(2, 11, &earlier_reports[0], at_millis(41));
    assert!(first.vitals[0].peer_in_flight() > 6.0, "{}", first.vitals[0].peer_in_flight());
}

#[test]
fn each_has_its_part_of_a_limit_and_keeps_it_when_it_is_cut_off() {
    let (mut first, mut second) = pair(10);
    assert_eq!((first.vitals[0].part(), second.vitals[0].part()), (Some(5), Some(5)));
    for step in 1..200 {
        if step < 100 && first.vitals[0].in_flight() < 8 {
            first.load(0, 1);
        }
        first.send_reports(&mut second, at_millis(20 * step));
        second.send_reports(&mut first, at_millis(20 * step));
        first.fleet.age_reports(at_millis(20 * step));
        second.fleet.age_reports(at_millis(20 * step));
    }
    let (busy_part, idle_part) = (first.vitals[0].part().unwrap(), second.vitals[0].part().unwrap());
    assert!(busy_part >= 8 && busy_part + idle_part <= 10, "{busy_part} and {idle_part}");
    first.fleet.peer_left(2, false, at_millis(4100));
    assert_eq!(first.vitals[0].part(), Some(5), "the other may be there, and only not be heard");
    first.fleet.age_reports(at_millis(65_000));
    assert_eq!(first.vitals[0].part(), None, "it is forgotten");
    // A balancer that announces its end leaves at once.
    second.fleet.peer_left(1, true, at_millis(4100));
    assert_eq!(second.vitals[0].part(), None);
}

#[test]
fn ejections_are_believed_unless_what_is_seen_here_contradicts() {
    let (mut first, mut second) = pair(u32::MAX);
    first.drain_updates();
    second.fleet.record_ejection("web", "10.0.0.0:80", Duration::from_secs(10), at_millis(20));
    second.send_reports(&mut first, at_millis(20));
    second.send_reports(&mut first, at_millis(40));
    let ejected = FleetUpdateKind::Ejected { remaining: Duration::from_secs(10), by: 2 };
    assert_eq!(first.drain_updates(), [ejected]);
    assert!(first.fleet.poll_reports(at_millis(60)).iter().all(|report| {
        report.sections.iter().flat_map(|section| &section.entries).all(|entry| entry.ejected.is_none())
    }));
    // This one serves twenty requests a second with the other member, without failures.
    for step in 0..100 {
        first.load(1, 1);
        first.vitals[1].end();
        first.fleet.poll_reports(at_millis(100 + 50 * step));
    }
    second.fleet.record_ejection("web", "10.0.0.1:80", Duration::from_secs(10), at_millis(5100));
    second.send_reports(&mut first, at_millis(5100));
    assert_eq!(first.drain_updates(), []);
}

#[test]
fn checks_are_shared_and_told_once() {
    let (mut first, mut second) = pair(u32::MAX);
    let removed_duties = |balancer: &mut TestBalancer| {
        balancer.drain_updates().into_iter().filter(|kind| *kind == FleetUpdateKind::ProbeDuty(false)).count()
    };
    assert_eq!(
        removed_duties(&mut first) + removed_duties(&mut second),
        2,
        "each member is checked by one of both"
    );
    second.fleet.record_check("web", "10.0.0.0:80", false, at_millis(20));
    second.send_reports(&mut first, at_millis(30));
    second.load(0, 1);
    second.send_reports(&mut first, at_millis(50));
    let age = Duration::from_millis(10);
    assert_eq!(first.drain_updates(), [FleetUpdateKind::HealthChecked { passed: false, age, by: 2 }]);
    // Without the other balancer, this one checks all members.
    first.fleet.peer_left(2, true, at_millis(100));
    assert!(first.fleet.groups[0].members.iter().all(|local_member| local_member.is_prober));
    assert!(first.drain_updates().iter().all(|kind| *kind == FleetUpdateKind::ProbeDuty(true)));
}

#[test]
fn readings_and_loads_are_passed_on_once() {
    let (mut first, mut second) = pair(u32::MAX);
    first.drain_updates();
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        slot: true,
        open: false,
    };
    second.vitals[0].last_report.record(&reading, 0, at_millis(90));
    second.fleet.record_load(
        "web",
        "10.0.0.1:80",
        ReportedLoad { value: 0.75, at: at_millis(80), of_host: true },
    );
    second.send_reports(&mut first, at_millis(100));
    let view = first.vitals[0].last_report.view().unwrap();
    assert_eq!((view.reading.in_flight, view.at, view.reading.slot), (3, at_millis(90), false));
    assert!(first.presence.has_relayed_reports());
    assert_eq!(
        first.drain_updates(),
        [FleetUpdateKind::LoadReceived { value: 0.75, of_host: true, age: Duration::from_millis(20) }]
    );
    let reports = first.fleet.poll_reports(at_millis(120));
    let mut entries = reports.iter().flat_map(|report| &report.sections).flat_map(|section| &section.entries);
    assert!(
        entries.all(|entry| entry.reading.is_none() && entry.load.is_none()),
        "it is the other's to tell"
    );
}

#[test]
fn what_another_heard_does_not_hide_what_is_under_way_from_here() {
    let (mut first, mut second) = pair(u32::MAX);
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        ..Reading::default()
    };
    let own_vitals = first.vitals[0].clone();
    // A tunnel of indefinite length, and requests that were answered without a load report.
    own_vitals.begin();
    own_vitals.last_report.record(&reading, own_vitals.begun(), at_millis(50));
    for _ in 0..3 {
        own_vitals.begin();
        own_vitals.end();
    }
    let unreported_begun =
        |balancer: &TestBalancer| own_vitals.begun() - balancer.vitals[0].last_report.view().unwrap().begun;
    let mut relay_report = |balancer: &mut TestBalancer, millis| {
        second.vitals[0].last_report.record(&reading, 0, at_millis(millis));
        second.send_reports(balancer, at_millis(millis + 10));
        assert_eq!(balancer.vitals[0].last_report.view().unwrap().at, at_millis(millis));
    };
    relay_report(&mut first, 20_000);
    assert_eq!(unreported_begun(&first), 1, "no more than are there");
    own_vitals.end();
    relay_report(&mut first, 40_000);
    assert_eq!(unreported_begun(&first), 0);
    own_vitals.begin();
    relay_report(&mut first, 60_000);
    relay_report(&mut first, 80_000);
    assert_eq!(unreported_begun(&first), 1);
}

#[test]
fn what_one_was_told_oneself_stays_while_it_means_something() {
    let (mut first, mut second) = pair(u32::MAX);
    let reading = Reading {
        in_flight: 3,
        knee: 4.0,
        work: 0.01,
        mean_in_flight: 2.0,
        sojourn: 0.02,
        ..Reading::default()
    };
    first.vitals[0].last_report.record(&reading, 0, at_millis(50));
    let mut relayed_after = |millis| {
        second.vitals[0].last_report.record(&Reading { in_flight: 0, ..reading }, 0, at_millis(millis));
        second.send_reports(&mut first, at_millis(millis + 10));
        let view = first.vitals[0].last_report.view().unwrap();
        (view.at, view.reading.in_flight)
    };
    assert_eq!(relayed_after(2000), (at_millis(50), 3), "all who know that it is empty would meet there");
    assert_eq!(relayed_after(9000), (at_millis(50), 3));
    assert_eq!(relayed_after(11_000), (at_millis(11_000), 0), "it was silent for too long");
    assert_eq!(
        relayed_after(11_100),
        (at_millis(11_100), 0),
        "what others heard later is better than what they heard before"
    );
    let own_vitals = first.vitals[0].clone();
    own_vitals.last_report.record(&reading, own_vitals.begun(), at_millis(12_000));
    let mut relayed_after = |millis| {
        second.vitals[0].last_report.record(&Reading { in_flight: 0, ..reading }, 0, at_millis(millis));
        second.send_reports(&mut first, at_millis(millis + 10));
        own_vitals.last_report.view().unwrap().at
    };
    assert_eq!(relayed_after(12_100), at_millis(12_000));
    for _ in 0..17 {
        own_vitals.begin();
        own_vitals.end();
    }
    assert_eq!(relayed_after(12_200), at_millis(12_200), "its answers to this balancer say nothing any more");
    assert_eq!(relayed_after(12_300), at_millis(12_300));
}

#[test]
fn suspicion_is_shared_and_never_ejects_by_itself() {
    let (mut first, mut second) = pair(u32::MAX);
    while second.vitals[0].failure_detector.sum() <= crate::member::failure_detector::NOTIFY_THRESHOLD {
        second.vitals[0].failure_detector.record(true, 1e-4);
    }
    second.send_reports(&mut first, at_millis(20));
    let sum = first.vitals[0].failure_detector.sum();
    assert!(sum > 6.0 && sum <= crate::MAX_WARNING, "{sum}");
    first.vitals[1].begin();
    let reports = first.fleet.poll_reports(at_millis(40));
    let entries = reports.iter().flat_map(|report| &report.sections).flat_map(|section| &section.entries);
    assert!(entries.into_iter().all(|entry| entry.suspicion == 0), "it is the other's to tell");
}

#[test]
fn members_that_stay_keep_what_was_said_of_them() {
    let (mut first, mut second) = pair(u32::MAX);
    second.load(1, 9);
    for step in 1..100 {
        second.send_reports(&mut first, at_millis(20 * step));
    }
    let previous_in_flight = first.vitals[1].peer_in_flight();
    assert!(previous_in_flight > 7.5, "{previous_in_flight}");
    let member = |name: &str, vitals: &Arc<Vitals>| FleetMember {
        name: name.into(),
        vitals: vitals.clone(),
        limit: u32::MAX,
        health_checked: false,
    };
    let (staying, leaving) = (first.vitals[1].clone(), first.vitals[0].clone());
    let members = vec![member("10.0.0.9:80", &Arc::default()), member("10.0.0.1:80", &staying)];
    first.fleet.set_groups(
        vec![FleetGroup { name: "web".into(), presence: first.presence.clone(), members }],
        at_millis(2000),
    );
    assert!(
        (staying.peer_in_flight() - previous_in_flight).abs() < 1.0,
        "{} after {previous_in_flight}",
        staying.peer_in_flight()
    );
    assert_eq!(leaving.peer_in_flight(), 0.0);
    first.fleet.set_groups(Vec::new(), at_millis(2010));
    assert_eq!((staying.peer_in_flight(), first.presence.own_request_weight()), (0.0, 1.0));
    second.send_reports(&mut first, at_millis(2020));
    assert_eq!(staying.peer_in_flight(), 0.0, "it is not served here any more");
}
