//! A status with an example of everything, for the tests of its views.

use std::collections::BTreeMap;

use plimsoll_brain::MemberState;
use plimsoll_brain::status::{GroupStatus, LatencySummary, ListenerStatus, MemberStatus, StatusReport};

pub(crate) fn sample_status() -> StatusReport {
    let web = vec![
        member("10.0.0.1:80", MemberState::Up, "2 checks in a row passed", 812_345, 12, 0.0124),
        member("10.0.0.2:80", MemberState::SlowStart, "came up, 40 % of its share", 1_200, 3, 0.000_85),
        member("10.0.0.3:80", MemberState::Ejected, "5 failures in a row", 90_001, 4_711, 2.5),
        member("10.0.0.4:80", MemberState::Draining, "by an operator", 400_000, 0, 0.013),
        member("[fd00::5]:80", MemberState::Down, "connection refused", 0, 0, 0.0),
    ];
    let games =
        vec![member("games.internal:27015", MemberState::Unchecked, "no check has passed yet", 0, 0, 0.0)];
    StatusReport {
        schema: 1,
        version: "0.1.0".into(),
        pid: 4242,
        uptime_seconds: 273_900.0,
        threads: 2,
        last_reload_successful: true,
        listeners: vec![
            listener("0.0.0.0:8080", "http", "web", [128, 1_303_546, 0]),
            listener("[::]:27015", "udp", "game servers", [0, 9, 3]),
        ],
        groups: vec![
            group("web", "least_connections", "3/5 members up, 1 ejected, 1 down", web),
            group("game servers", "rendezvous", "0/1 members up, 1 unchecked", games),
        ],
        ..StatusReport::default()
    }
}

fn listener(address: &str, protocol: &str, group: &str, counts: [u64; 3]) -> ListenerStatus {
    let [connections, accepted, refused] = counts;
    ListenerStatus {
        address: address.into(),
        protocol: protocol.into(),
        group: group.into(),
        others: Vec::new(),
        binding: if protocol == "http" { "on_demand" } else { "per_session" }.into(),
        bindings: Vec::new(),
        connections,
        accepted,
        refused,
        disabled: false,
    }
}

fn group(name: &str, strategy: &str, verdict: &str, members: Vec<MemberStatus>) -> GroupStatus {
    let latency = members.first().map(|member| member.latency).unwrap_or_default();
    GroupStatus {
        name: name.into(),
        strategy: strategy.into(),
        verdict: verdict.into(),
        healthy: true,
        members,
        latency,
        ..GroupStatus::default()
    }
}

fn member(
    name: &str,
    state: MemberState,
    reason: &str,
    requests: u64,
    failures: u64,
    p50: f64,
) -> MemberStatus {
    MemberStatus {
        name: name.into(),
        address: "10.0.0.1:80".into(),
        state,
        why: reason.into(),
        since_seconds: 200.0 + requests as f64,
        capacity: if state == MemberState::SlowStart { 2.5 } else { 1.0 },
        weight: 1.0,
        in_flight: if state.is_eligible() || state == MemberState::Draining { 7 } else { 0 },
        in_flight_elsewhere: 0.0,
        part: None,
        max_rate: None,
        limit: None,
        knee: None,
        said_age_seconds: None,
        load: None,
        load_effective: None,
        refused: BTreeMap::new(),
        slow_seconds: None,
        alert_share: 0.0,
        idle_connections: 0,
        requests,
        failures,
        clients_left: 0,
        answers: BTreeMap::new(),
        connects: 0,
        bytes_out: 0,
        bytes_in: 0,
        moved: 0,
        leases: 0,
        host: None,
        latency: LatencySummary { count: requests, p50, p99: p50 * 3.0, ..LatencySummary::default() },
        load_line: None,
    }
}
