//! The load line of a running balancer: its predictions while members have spare capacity, and when they are
//! driven to their limit.

use std::net::SocketAddr;

use serde_json::Value;

use crate::stage::{
    Balancer, Folder, Load, Member, Process, binary, curl, curl_status, found, free_port, until, web,
};

/// A member of two emulated processors, which a timer shares among its requests. An agent beside it gets the
/// processors' load from it.
struct Watched {
    member: Member,
    agent: u16,
    /// The agent, kept until a test ends.
    _agent: Option<Process>,
    folder: Folder,
}

/// The capacity is 100 requests a second for each member.
const SERVICE: [&str; 4] = ["--cores", "2", "--service", "exp:20ms"];

impl Watched {
    fn start(seed: &str) -> Self {
        let agent = free_port();
        let tell = format!("127.0.0.1:{agent}");
        let args = [&SERVICE[..], &["--seed", seed, "--tell", &tell, "--tell-busy"]].concat();
        Self { member: Member::start(&args), agent, _agent: None, folder: Folder::new() }
    }

    /// Lets the agent report to a balancer.
    fn report(&mut self, to: SocketAddr) {
        let (name, to) = (self.member.address.to_string(), format!("http://{to}"));
        let listen = format!("127.0.0.1:{}", self.agent);
        let args =
            ["agent", "--member", &name, "--report-to", &to, "--listen", &listen, "--interval", "500ms"];
        self._agent = Some(Process::start(&binary(), &args, self.folder.path()));
    }
}

/// Returns the load line of the group.
fn line(balancer: &Balancer) -> Value {
    balancer.group("web")["load_line"].take()
}

/// Tests what the load line reports, and not how near the capacity is to what is carried in the end:
/// `crates/brain/tests/load_line.rs` tests that in simulated time. The values learnt here depend on the
/// machine's other work.
#[test]
fn a_capacity_is_predicted_held_against_what_comes_and_told_everywhere() {
    let mut members = [Watched::start("1"), Watched::start("2")];
    let addresses: Vec<_> = members.iter().map(|one| one.member.address).collect();
    // Nothing is rejected, so that the members are full for as long as the test takes.
    let rest = "strategy = \"least_connections\"\n[group.timeouts]\nper_try = \"1h\"\n";
    let balancer = Balancer::start(&web(&addresses, rest));
    members.iter_mut().for_each(|one| one.report(balancer.reports()));

    let mut load = Load::start(balancer.address(), "GET", 80.0);
    let early = found("a prediction", || {
        load.more(80);
        Some(line(&balancer)).filter(|line| line["capacity"].is_f64())
    });
    load.stop_unharmed();
    assert_eq!((&early["verdict"], &early["error"]), (&"unproven".into(), &Value::Null), "{early}");
    assert_eq!(early["limited_by"], "members", "{early}");
    let share = early["requests_per_second"].as_f64().unwrap() / early["capacity"].as_f64().unwrap();
    assert!((early["headroom"].as_f64().unwrap() - (1.0 - share)).abs() < 0.02, "{early}");

    // The load exceeds the capacity.
    let over = Load::closed(balancer.address(), 100);
    until("both are full", || {
        let members = balancer.group("web")["members"].as_array().unwrap().clone();
        members.iter().all(|member| member["in_flight"].as_u64() > Some(30))
    });
    // The balancer checks its prediction, finds that twice as much is too much, and reports both everywhere.
    // For a window nothing may be known, while the machine does other things.
    let checked = found("a prediction that was checked", || {
        let checked = |line: &Value| line["predictions_checked"].as_u64() > Some(0) && line["error"].is_f64();
        Some(line(&balancer)).filter(checked)
    });
    until("twice as much is too much", || {
        let double = &line(&balancer)["what_if"][2];
        double["change"] == "double" && double["over"] == true
    });
    let verdicts = ["unproven", "good", "fair", "poor"];
    assert!(verdicts.iter().any(|verdict| checked["verdict"] == *verdict), "{checked}");
    until("the status says so", || {
        let page = balancer.run(&["status"]).out;
        page.contains("load line ") && verdicts.iter().any(|verdict| page.contains(&format!("{verdict}: ")))
    });
    until("the table of members says so", || {
        let page = balancer.run(&["members"]).out;
        page.contains("CAN DO") && page.contains("without the member that can do most")
    });
    until("what a member can do", || {
        balancer.member(addresses[0])["load_line"]["capacity"].as_f64() > Some(0.0)
    });
    for series in [
        "plimsoll_group_capacity_requests_per_second{group=\"web\"}",
        "plimsoll_group_headroom_ratio{group=\"web\"}",
        "plimsoll_group_prediction_error_ratio{group=\"web\"}",
        "plimsoll_group_predicted_latency_seconds{group=\"web\",load=\"0.8\",percentile=\"99\"}",
        "plimsoll_group_what_if_headroom_ratio{group=\"web\",change=\"minus_one\"}",
    ] {
        until(series, || balancer.metrics().contains(&format!("\n{series} ")));
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

/// The sensors of an agent measure a host on which something else is busy; that is not the cost of its
/// requests.
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
    // The same figure for the server alone is the cost of its requests: it is nearly full. The number of
    // requests in a window varies by chance.
    until("a number that is right", || {
        report("cpu=0.95&cpu_host=0.5&cpus=2");
        load.more(10);
        line(&balancer)["capacity"].as_f64().is_some_and(|capacity| (capacity / 21.0 - 1.0).abs() < 0.3)
    });
    load.stop_unharmed();
}
