//! The load line of a running balancer: what it says at a third to a half of what its members can carry, held against what they
//! carry when they are driven to their end.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;

use crate::stage::{
    Balancer, Folder, Load, Member, Process, binary, curl, curl_status, found, free_port, patiently, until,
    web,
};

/// A member of two emulated processors, which a timer shares among its requests, with an agent beside it that it tells how busy
/// they are.
struct Watched {
    member: Member,
    agent: u16,
    /// Until a test ends.
    _agent: Option<Process>,
    folder: Folder,
}

/// 100 requests a second each.
const SERVICE: [&str; 4] = ["--cores", "2", "--service", "exp:20ms"];

impl Watched {
    fn start(seed: &str) -> Self {
        let agent = free_port();
        let tell = format!("127.0.0.1:{agent}");
        let args = [&SERVICE[..], &["--seed", seed, "--tell", &tell, "--tell-busy"]].concat();
        Self { member: Member::start(&args), agent, _agent: None, folder: Folder::new() }
    }

    /// Its agent reports to a balancer.
    fn report(&mut self, to: SocketAddr) {
        let (name, to) = (self.member.address.to_string(), format!("http://{to}"));
        let listen = format!("127.0.0.1:{}", self.agent);
        let args =
            ["agent", "--member", &name, "--report-to", &to, "--listen", &listen, "--interval", "500ms"];
        self._agent = Some(Process::start(&binary(), &args, self.folder.path()));
    }
}

/// The load line of the group.
fn line(balancer: &Balancer) -> Value {
    balancer.group("web")["load_line"].take()
}

/// Requests that ended so far, and when.
fn ended(balancer: &Balancer) -> (f64, Instant) {
    (balancer.group("web")["latency"]["count"].as_f64().unwrap(), Instant::now())
}

#[test]
fn what_is_predicted_at_a_third_to_a_half_is_what_is_carried_at_the_end() {
    let mut members = [Watched::start("1"), Watched::start("2")];
    let addresses: Vec<_> = members.iter().map(|one| one.member.address).collect();
    // Nothing is refused, so that the members are full for as long as it takes.
    let rest = "strategy = \"least_connections\"\n[group.timeouts]\nper_try = \"60s\"\n";
    let balancer = Balancer::start(&web(&addresses, rest));
    members.iter_mut().for_each(|one| one.report(balancer.reports()));

    let mut load = Load::start(balancer.address(), "GET", 80.0);
    let early = found("a prediction", || {
        load.more(80);
        Some(line(&balancer)).filter(|line| line["capacity"].is_f64())
    });
    assert_eq!((&early["verdict"], &early["error"]), (&"unproven".into(), &Value::Null), "{early}");
    // Some windows more, and it is of one load. While the machine does other things nothing may be known for a window.
    for _ in 0..2 {
        load.more(900);
    }
    let share = |line: &Value| Some(line["requests_per_second"].as_f64()? / line["capacity"].as_f64()?);
    let predicted = found("a prediction still, at a third to a half", || {
        load.more(80);
        Some(line(&balancer)).filter(|line| share(line).is_some_and(|share| (0.3..=0.5).contains(&share)))
    });
    let (capacity, share) = (predicted["capacity"].as_f64().unwrap(), share(&predicted).unwrap());
    assert!((predicted["headroom"].as_f64().unwrap() - (1.0 - share)).abs() < 0.02, "{predicted}");
    assert_eq!(predicted["limited_by"], "members", "{predicted}");
    load.stop_unharmed();

    // More comes than can be served: what ends is what there is.
    let over = Load::start(balancer.address(), "GET", 300.0);
    until("both are full", || {
        let members = balancer.group("web")["members"].as_array().unwrap().clone();
        members.iter().all(|member| member["in_flight"].as_u64() > Some(30))
    });
    // What ends in a second, of some windows of four hundred requests: where the machine stands still less does, which changes little of
    // the middle one.
    let mut carried: Vec<f64> = Vec::new();
    let agree = patiently(|| {
        let (before, from) = ended(&balancer);
        until("four hundred requests", || ended(&balancer).0 >= before + 400.0);
        let (after, to) = ended(&balancer);
        carried.push((after - before) / to.duration_since(from).as_secs_f64());
        carried.sort_by(f64::total_cmp);
        carried.len() >= 4 && (capacity / carried[carried.len() / 2] - 1.0).abs() <= 0.1
    });
    assert!(agree, "predicted {capacity:.1}, carried {carried:.1?} a second: {predicted}");

    // It finds out how good it was, and says so everywhere; of one window by chance less than of some.
    let checked = found("a prediction that was checked and is good", || {
        let full = |line: &Value| line["headroom"].as_f64().is_some_and(|free| free < 0.15);
        let good = |line: &Value| line["error"].as_f64().is_some_and(|error| error <= 0.1);
        let checked = |line: &Value| line["predictions_checked"].as_u64() > Some(0);
        Some(line(&balancer)).filter(|line| checked(line) && full(line) && good(line))
    });
    assert_eq!(checked["verdict"], "good", "{checked}");
    let double = &checked["what_if"][2];
    assert_eq!((&double["change"], &double["over"]), (&"double".into(), &true.into()), "{checked}");
    let page = balancer.run(&["status"]).out;
    assert!(page.contains("load line ") && page.contains("good: "), "{page}");
    let page = balancer.run(&["members"]).out;
    assert!(page.contains("CAN DO") && page.contains("without the member that can do most"), "{page}");
    // As above: for a window nothing may be known.
    until("what a member can do", || {
        let can_do = balancer.member(addresses[0])["load_line"]["capacity"].as_f64();
        can_do.is_some_and(|can_do| (can_do / 100.0 - 1.0).abs() < 0.15)
    });
    for series in [
        "plimsoll_group_capacity_requests_per_second{group=\"web\"}",
        "plimsoll_group_headroom_ratio{group=\"web\"}",
        "plimsoll_group_prediction_error_ratio{group=\"web\"}",
        "plimsoll_group_predicted_latency_seconds{group=\"web\",load=\"0.8\",percentile=\"99\"}",
        "plimsoll_group_what_if_headroom_ratio{group=\"web\",change=\"minus_one\"}",
    ] {
        assert!(balancer.metric(series).is_finite(), "{series}");
    }
    over.stop();
}

#[test]
fn a_group_of_which_nothing_is_known_says_so() {
    let member = Member::start(&["--service", "const:1ms", "--workers", "64"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut load = Load::start(balancer.address(), "GET", 40.0);
    let line = found("a load line", || {
        load.more(40);
        Some(line(&balancer)).filter(Value::is_object)
    });
    load.stop_unharmed();
    assert_eq!((&line["verdict"], &line["capacity"]), (&"unknown".into(), &Value::Null), "{line}");
    assert!(line["why"].as_str().unwrap().contains("no agent tells"), "{line}");
    assert!(balancer.run(&["status"]).out.contains("load line not known"));
    let socket = balancer.folder().join("control.sock");
    let url = "http://plimsoll/v1/groups/web/capacity";
    let said = curl(&["--unix-socket", socket.to_str().unwrap(), url], b"");
    let said: Value = serde_json::from_slice(&said.body).unwrap();
    assert_eq!(said["verdict"], "unknown");
}

/// What an agent's sensors say of a host on which something else is busy is not what its requests cost.
#[test]
fn other_work_at_a_host_is_not_charged_to_requests() {
    let member = Member::start(&SERVICE);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let url = format!("http://{}/v1/report", balancer.reports());
    let report = |values: &str| {
        let body = format!("group=web&member={}&{values}", member.address);
        assert_eq!(curl_status(&["-d", &body, &url], b""), 204, "{body}");
    };
    // 20 requests a second of 20 ms keep two processors busy for 20 %, and not for 95.
    let mut load = Load::start(balancer.address(), "GET", 20.0);
    let said = found("what it makes of that", || {
        report("cpu=0.95&cpu_host=0.95&cpus=2");
        load.more(10);
        Some(line(&balancer))
            .filter(|line| line["why"].as_str().is_some_and(|why| why.contains("other work")))
    });
    assert_eq!((&said["verdict"], &said["capacity"]), (&"unknown".into(), &Value::Null), "{said}");
    // The same of the server alone is what its requests cost: it is nearly full. How many came in a window is by chance.
    until("a number that is right", || {
        report("cpu=0.95&cpu_host=0.5&cpus=2");
        load.more(10);
        line(&balancer)["capacity"].as_f64().is_some_and(|capacity| (capacity / 21.0 - 1.0).abs() < 0.3)
    });
    load.stop_unharmed();
}
