//! A balancer for tests of pages: three members, one of them down, one shedding; ten minutes of traffic.

use std::collections::BTreeMap;

use plimsoll_brain::status::{
    AlertExplanation, BindingStatus, CertificateStatus, FactExplanation, FleetStatus, GroupExplanation,
    GroupRecent, GroupStatus, LatencySummary, ListenerStatus, LoadExplanation, LoadLine, MemberExplanation,
    MemberLoadLine, MemberRecent, MemberSecond, MemberStatus, MonitorExplanation, PredictedLatency,
    RecentSecond, SourceStatus, StatusReport, StrategyFigure, WhatIf,
};
use plimsoll_brain::{EventKind, MemberState, ShedDecision};

use crate::{
    BalancerBackend, ChangeFuture, CompletedUpgrade, EventEntry, Lease, LeaseError, LeaseHolder,
    LeaseRequest, LoadReport, ObjectReference, RegisteredMember, Registration, RegistrationError,
    ReportRejection, SwitchTarget, UpgradeRequest, WhatIfInput, WhatIfResult,
};

/// A hostile name.
pub(super) const XSS: &str = "<script>alert('x')</script>\"onload=\"alert(1)&amp;";

pub(super) fn status() -> StatusReport {
    let member = |name: &str, state, used: Option<f64>| MemberStatus {
        name: name.into(),
        address: name.into(),
        state,
        why: match state {
            MemberState::Down => "its health check fails: connection refused".into(),
            _ => "2 checks in a row passed".into(),
        },
        since_seconds: 75.0,
        capacity: 1.0,
        weight: 1.0,
        in_flight: if state == MemberState::Up { 2 } else { 0 },
        host: None,
        in_flight_elsewhere: 0.0,
        part: None,
        max_rate: None,
        limit: Some(3),
        knee: None,
        said_age_seconds: None,
        load: None,
        load_effective: None,
        refused: BTreeMap::new(),
        slow_seconds: None,
        alert_share: 0.0,
        idle_connections: 4,
        requests: 7000,
        failures: 12,
        clients_left: 3,
        answers: BTreeMap::from([("2xx".to_owned(), 6988), ("5xx".to_owned(), 12), ("1xx".to_owned(), 0)]),
        connects: 5,
        bytes_out: 1 << 20,
        bytes_in: 1 << 30,
        moved: 0,
        leases: 2,
        latency: LatencySummary { count: 7000, sum: 70.0, p50: 0.0082, p90: 0.019, p99: 0.038, p999: 0.071 },
        load_line: used.map(|used| MemberLoadLine {
            requests_per_second: 100.0 * used,
            capacity: Some(100.0),
            capacity_low: Some(95.0),
            capacity_high: Some(108.0),
            used: Some(used),
            source: Some("processors, told by an agent".into()),
        }),
    };
    let mut members = vec![
        member("10.0.0.1:80", MemberState::Up, Some(0.59)),
        member("10.0.0.2:80", MemberState::Up, Some(0.63)),
        member("10.0.0.3:80", MemberState::Down, None),
    ];
    (members[1].alert_share, members[1].moved) = (0.25, 40);
    let what_if = |change: &str, about: &str, capacity: f64, over| WhatIf {
        change: change.into(),
        about: about.into(),
        capacity: Some(capacity),
        headroom: Some(1.0 - 118.0 / capacity),
        over: Some(over),
        p99: (!over).then_some(0.09),
    };
    let line = LoadLine {
        requests_per_second: 118.0,
        capacity: Some(200.0),
        capacity_low: Some(187.0),
        capacity_high: Some(218.0),
        headroom: Some(0.41),
        limited_by: "members".into(),
        verdict: "good".into(),
        why: "processors, told by an agent".into(),
        error: Some(0.04),
        predictions_checked: 2,
        predicted: vec![PredictedLatency {
            load: 0.8,
            requests_per_second: 160.0,
            p50: Some(0.02),
            p99: Some(0.31),
        }],
        what_if: vec![
            what_if("minus_one", "without the member that can do most", 100.0, true),
            what_if("plus_one", "with one more like the median member", 300.0, false),
        ],
        ..LoadLine::default()
    };
    StatusReport {
        schema: 1,
        version: "0.1.0".into(),
        pid: 42,
        uptime_seconds: 600.0,
        threads: 2,
        last_reload_successful: true,
        listeners: vec![ListenerStatus {
            address: "127.0.0.1:8080".into(),
            protocol: "http".into(),
            group: "web".into(),
            binding: "on_demand".into(),
            bindings: vec![BindingStatus { member: "10.0.0.1:80".into(), bound: 61, moved: 3 }],
            connections: 13,
            accepted: 240,
            ..ListenerStatus::default()
        }],
        groups: vec![GroupStatus {
            name: "web".into(),
            strategy: "adaptive".into(),
            verdict: "2/3 members up, 1 down".into(),
            healthy: true,
            members,
            rejected: BTreeMap::from([("no_member".to_owned(), 2), ("timeout".to_owned(), 0)]),
            latency: LatencySummary {
                count: 14_000,
                sum: 140.0,
                p50: 0.0082,
                p90: 0.019,
                p99: 0.038,
                p999: 0.071,
            },
            load_line: Some(line),
            discovery: vec![SourceStatus {
                kind: "dns".into(),
                what: "web.internal".into(),
                members: 3,
                age_seconds: Some(4.0),
                ..SourceStatus::default()
            }],
            ..GroupStatus::default()
        }],
        certificates: vec![CertificateStatus {
            name: "example.org".into(),
            names: vec!["example.org".into()],
            source: "/etc/plimsoll/one.pem".into(),
            expires_seconds: Some(86_400.0 * 80.0),
            ..CertificateStatus::default()
        }],
        ..StatusReport::default()
    }
}

pub(super) fn recent() -> GroupRecent {
    let seconds = 600;
    let second = |place: usize| RecentSecond {
        age_seconds: (seconds - place) as f64,
        offered: 118.0,
        completed: if place < 300 { 118.0 } else { 110.0 },
        failed: if (100..200).contains(&place) { 8.0 } else { 0.0 },
        refused: if (100..200).contains(&place) { 6.0 } else { 0.0 },
        p50: Some(0.008),
        p99: (place % 100 > 10).then_some(0.04),
    };
    let member = |name: &str, rate: f64, there: bool| MemberRecent {
        name: name.into(),
        requests_per_second: rate,
        failures_per_second: 0.0,
        moved: 4,
        in_flight: 2.0,
        p50: there.then_some(0.0082),
        p99: there.then_some(0.038),
        alert_above: None,
        reject_above: None,
        seconds: vec![
            MemberSecond {
                requests_per_second: there.then_some(rate as f32),
                load: None,
                in_flight: Some(2.0)
            };
            seconds
        ],
    };
    GroupRecent {
        seconds: (0..seconds).map(second).collect(),
        members: vec![
            member("10.0.0.1:80", 59.0, true),
            member("10.0.0.2:80", 63.0, true),
            member("10.0.0.3:80", 0.0, false),
        ],
    }
}

pub(super) fn entries() -> Vec<EventEntry> {
    let entry = |seq, kind, member: Option<&str>, why: &str, inputs: &[(&str, f64)]| EventEntry {
        seq,
        unix_ms: 1_763_866_366_500,
        kind,
        group: if member.is_some() { "web".into() } else { String::new() },
        member: member.map(str::to_owned),
        why: why.into(),
        inputs: inputs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    };
    vec![
        entry(1, EventKind::Reloaded, None, "2 differences", &[]),
        entry(
            2,
            EventKind::Down,
            Some("10.0.0.3:80"),
            "its health check fails: connection refused",
            &[("in_a_row", 2.0)],
        ),
        entry(
            3,
            EventKind::AlertRaised,
            Some("10.0.0.2:80"),
            "its load of 0.9 is too much; 25 % of its sessions are to go",
            &[("fair", 0.6), ("load", 0.9), ("noise", 0.0123), ("share", 0.25)],
        ),
    ]
}

/// A balancer with fixed data, and with variable names of its first member and its group.
pub(super) struct SampleBalancer {
    pub(super) status: StatusReport,
    pub(super) recent: GroupRecent,
    pub(super) entries: Vec<EventEntry>,
    pub(super) explained: Option<GroupExplanation>,
}

impl SampleBalancer {
    pub(super) fn new() -> Self {
        Self { status: status(), recent: recent(), entries: entries(), explained: Some(explanation()) }
    }

    /// Returns a balancer whose external texts are all hostile.
    pub(super) fn hostile() -> Self {
        let mut told = Self::new();
        let group = &mut told.status.groups[0];
        for text in [&mut group.name, &mut group.strategy, &mut group.verdict] {
            *text = XSS.into();
        }
        for member in &mut group.members {
            for text in [&mut member.name, &mut member.address, &mut member.why] {
                *text = XSS.into();
            }
            member.answers = BTreeMap::from([(XSS.to_owned(), 1)]);
            if let Some(line) = &mut member.load_line {
                line.source = Some(XSS.into());
            }
        }
        group.rejected = BTreeMap::from([(XSS.to_owned(), 1)]);
        if let Some(line) = &mut group.load_line {
            line.why = XSS.into();
            line.verdict = XSS.into();
            line.what_if.iter_mut().for_each(|change| change.about = XSS.into());
        }
        let source = &mut group.discovery[0];
        (source.what, source.error) = (XSS.into(), Some(XSS.into()));
        let listener = &mut told.status.listeners[0];
        for text in
            [&mut listener.address, &mut listener.protocol, &mut listener.group, &mut listener.binding]
        {
            *text = XSS.into();
        }
        listener.bindings[0].member = XSS.into();
        let certificate = &mut told.status.certificates[0];
        (certificate.name, certificate.names, certificate.source) =
            (XSS.into(), vec![XSS.into()], XSS.into());
        certificate.failure = Some(XSS.into());
        told.status.last_reload_error = Some(XSS.into());
        told.status.version = XSS.into();
        told.status.fleet =
            Some(FleetStatus { name: XSS.into(), address: XSS.into(), ..FleetStatus::default() });
        for member in &mut told.recent.members {
            member.name = XSS.into();
        }
        for entry in &mut told.entries {
            (entry.why, entry.group) = (XSS.into(), XSS.into());
            entry.member = Some(XSS.into());
            entry.inputs = BTreeMap::from([(XSS.to_owned(), 1.0)]);
        }
        let explained = told.explained.as_mut().map(|explained| {
            explained.knobs = BTreeMap::from([(XSS.to_owned(), 1.0)]);
            explained.weight = Some(XSS.into());
            if let Some(monitor) = &mut explained.monitor {
                (monitor.metric, monitor.source) = (XSS.into(), XSS.into());
            }
            for member in &mut explained.members {
                member.name = XSS.into();
                member.facts[0].name = XSS.into();
                member.facts[0].source = XSS.into();
                member.figures[0].name = XSS.into();
                if let Some(alert) = &mut member.alert {
                    alert.inputs = BTreeMap::from([(XSS.to_owned(), 1.0)]);
                }
            }
        });
        assert!(explained.is_some());
        told
    }
}

fn explanation() -> GroupExplanation {
    let member = MemberExplanation {
        name: "10.0.0.2:80".into(),
        address: "10.0.0.2:80".into(),
        state: MemberState::Up,
        eligible: true,
        why: "2 checks in a row passed".into(),
        since_seconds: 75.0,
        capacity: 1.0,
        weight: 1.0,
        in_flight: 2,
        moved: 40,
        alert: Some(AlertExplanation {
            share: 0.25,
            epoch: 7,
            held: true,
            since_seconds: 3.0,
            inputs: BTreeMap::from([("fair".to_owned(), 0.6), ("load".to_owned(), 0.9)]),
        }),
        limit: Some(3),
        load: Some(LoadExplanation { value: 0.9, age_seconds: 0.5 }),
        trouble: None,
        facts: vec![FactExplanation {
            name: "cpu".into(),
            value: 0.63,
            age_seconds: 0.4,
            source: "push".into(),
        }],
        dropped: 0,
        figures: vec![StrategyFigure { name: "slots".into(), value: 3.0 }],
        events: Vec::new(),
    };
    GroupExplanation {
        name: "web".into(),
        strategy: "adaptive".into(),
        knobs: BTreeMap::from([("tolerance".to_owned(), 1.5)]),
        monitor: Some(MonitorExplanation {
            source: "push".into(),
            metric: "cpu".into(),
            interval_seconds: 1.0,
        }),
        members: vec![member],
        ..GroupExplanation::default()
    }
}

impl BalancerBackend for SampleBalancer {
    fn status(&self) -> StatusReport {
        self.status.clone()
    }

    fn buckets(&self, _group: &str) -> Vec<(f64, u64)> {
        Vec::new()
    }

    fn events(&self, since: u64) -> Vec<EventEntry> {
        self.entries.iter().filter(|entry| entry.seq > since).cloned().collect()
    }

    fn next_change(&self) -> ChangeFuture {
        Box::pin(std::future::pending())
    }

    fn drain(&self, _group: Option<&str>, _member: &str) -> Result<(), String> {
        Ok(())
    }

    fn undrain(&self, _group: Option<&str>, _member: &str) -> Result<(), String> {
        Ok(())
    }

    fn set_enabled(&self, _what: &SwitchTarget, _on: bool) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn upgrade(&self, _wish: &UpgradeRequest) -> Result<CompletedUpgrade, String> {
        Err(String::new())
    }

    fn stop(&self) -> Result<(), String> {
        Ok(())
    }

    fn explain(&self, _group: &str) -> Option<GroupExplanation> {
        self.explained.clone()
    }

    fn recent(&self, _group: &str) -> Option<GroupRecent> {
        Some(self.recent.clone())
    }

    fn what_if(&self, ask: &WhatIfInput) -> Result<WhatIfResult, String> {
        let saturation = f64::from(ask.members * ask.cores) / ask.demand;
        Ok(WhatIfResult {
            response: (ask.rate < saturation).then_some(0.0148),
            utilization: (ask.rate / saturation).min(1.0),
            balancer: 0.03,
            saturation,
            bottleneck: "the members".into(),
            policy: "least_loaded".into(),
            curve: vec![(0.1 * saturation, 0.01), (0.5 * saturation, 0.015), (0.95 * saturation, 0.08)],
        })
    }

    fn reference(&self, _group: &str) -> Option<ObjectReference> {
        None
    }

    fn set(&self, _group: &str, _key: &str, _value: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn report(&self, _report: LoadReport) -> Result<Option<ShedDecision>, ReportRejection> {
        Ok(None)
    }

    fn grant_lease(&self, _group: &str, _wish: &LeaseRequest) -> Result<Lease, LeaseError> {
        Err(LeaseError::NoMember(String::new()))
    }

    fn renew_lease(&self, _group: &str, _lease: &str, _wish: &LeaseRequest) -> Result<Lease, LeaseError> {
        Err(LeaseError::NoMember(String::new()))
    }

    fn release_lease(&self, _group: &str, _lease: &str) -> Result<(), LeaseError> {
        Ok(())
    }

    fn leases(&self, _group: &str) -> Option<Vec<LeaseHolder>> {
        let member = self.status.groups[0].members[0].name.clone();
        Some(vec![LeaseHolder { member: Some(member), from: None, leases: 2, left_seconds: 30.0 }])
    }

    fn renew_registration(
        &self,
        _group: &str,
        _member: &str,
        _asked: &Registration,
    ) -> Option<Result<RegisteredMember, RegistrationError>> {
        None
    }

    fn register(
        &self,
        _group: &str,
        member: &str,
        _asked: &Registration,
    ) -> Result<RegisteredMember, RegistrationError> {
        Err(RegistrationError::Unknown(member.to_owned()))
    }

    fn deregister(&self, _group: &str, member: &str) -> Result<(), RegistrationError> {
        Err(RegistrationError::Unknown(member.to_owned()))
    }

    fn end_leases(
        &self,
        _group: &str,
        _member: Option<&str>,
        _from: Option<std::net::IpAddr>,
    ) -> Result<usize, String> {
        Ok(0)
    }
}
