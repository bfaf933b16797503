//! Reports in, explanations out: curl's one line, monitors that are asked, weights by expression, a strategy
//! changed while requests flow.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::stage::{Balancer, Load, Member, Script, Wire, curl, curl_status, deaf, found, get, until, web};

fn explained(balancer: &Balancer) -> Value {
    balancer.run(&["explain", "group", "web", "-o", "json"]).json()
}

/// Returns the explanation of a member.
fn member(balancer: &Balancer, address: SocketAddr) -> Value {
    let explained = explained(balancer);
    let members = explained["members"].as_array().unwrap();
    members.iter().find(|member| member["name"] == address.to_string()).unwrap().clone()
}

/// Starts a monitor that answers each question with `body`.
fn monitor(body: &str) -> Script {
    Script::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

#[test]
fn one_line_of_curl_tells_a_load() {
    let one = Member::start(&[]);
    let rest = "[group.monitor]\nmetric = \"cpu * 100\"\n";
    let balancer = Balancer::start(&web(&[one.address], rest));
    let url = format!("http://{}/v1/report", balancer.reports());
    let line = format!("member={}&name=cpu&value=0.4", one.address);
    assert_eq!(curl_status(&["-d", &line, &url], b""), 204);
    let known = member(&balancer, one.address);
    assert_eq!((&known["facts"][0]["name"], &known["facts"][0]["value"]), (&"cpu".into(), &0.4.into()));
    assert_eq!((&known["load"]["value"], &known["facts"][0]["source"]), (&40.0.into(), &"push".into()));

    let json = format!(
        r#"{{"group":"web","member":"{}","values":{{"cpu":0.5,"disk":7}},"age_seconds":5}}"#,
        one.address
    );
    let socket = balancer.folder().join("control.sock");
    let over_control = ["-d", &*json, "--unix-socket", socket.to_str().unwrap(), "http://plimsoll/v1/report"];
    // The report is older than the known one: the newer counts for cpu.
    assert_eq!(curl_status(&over_control, b""), 204);
    let known = member(&balancer, one.address);
    assert_eq!((&known["load"]["value"], known["facts"].as_array().unwrap().len()), (&40.0.into(), 2));

    let said = |data: &str| {
        let curled = curl(&["-w", "%{http_code}", "-d", data, &url], b"");
        String::from_utf8(curled.body).unwrap()
    };
    let unknown = said("member=10.9.9.9:1&name=cpu&value=1");
    assert!(unknown.ends_with("404") && unknown.contains(&one.address.to_string()), "{unknown}");
    assert!(said(&line.replace("0.4", "NaN")).ends_with("422"));
    assert!(said("cpu").ends_with("400"));
    // The address for reports takes reports and nothing else; the listener shows and takes none.
    assert_eq!(curl_status(&[&url.replace("/v1/report", "/status")], b""), 404);
}

#[test]
fn a_host_is_told_of_once_and_counts_for_all_its_members() {
    let (one, two) = (Member::start(&[]), Member::start(&[]));
    let rest = "[group.monitor]\n";
    let balancer = Balancer::start(&web(&[one.address, two.address], rest));
    let url = format!("http://{}/v1/report", balancer.reports());
    assert_eq!(curl_status(&["-d", "member=127.0.0.1&cpu=0.4", &url], b""), 204);
    for address in [one.address, two.address] {
        assert_eq!(member(&balancer, address)["load"]["value"], 0.4);
    }
    assert_eq!(curl_status(&["-d", "member=127.0.0.9&cpu=0.4", &url], b""), 404);
}

#[test]
fn a_flood_is_dropped_and_told_once() {
    let one = Member::start(&[]);
    let balancer = Balancer::start(&web(&[one.address], "[group.monitor]\n"));
    let line = format!("member={}&cpu=0.4", one.address);
    // One connection carries them all; the address for reports does not keep connections.
    let mut stream = UnixStream::connect(balancer.folder().join("control.sock")).unwrap();
    let length = line.len();
    let request =
        format!("POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{line}").repeat(300);
    stream.write_all(request.as_bytes()).unwrap();
    until("most reports are dropped", || member(&balancer, one.address)["dropped"].as_u64() > Some(100));
    let known = member(&balancer, one.address);
    let floods = known["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "flooded");
    assert_eq!(floods.count(), 1, "{known}");
    assert_eq!(get(balancer.address(), "/").status, 200);
}

#[test]
fn monitors_are_asked_and_one_that_hangs_delays_no_other() {
    let agent = monitor(r#"{"values": {"cpu": {"value": 0.25, "age_seconds": 0.5}}}"#);
    let (_socket, _waiting, hung) = deaf();
    let good = agent.address;
    // The members are their own monitors.
    let rest = "[group.monitor]\nsource = \"pull\"\ninterval = \"100ms\"\ntimeout = \"20s\"\n";
    let balancer = Balancer::start(&web(&[hung, good], rest));
    until("the good one is asked again and again", || agent.accepted() >= 10);
    let known = member(&balancer, good);
    assert_eq!((&known["load"]["value"], &known["facts"][0]["source"]), (&0.25.into(), &"pull".into()));
    assert!(known["load"]["age_seconds"].as_f64().unwrap() >= 0.5);
    assert_eq!(member(&balancer, hung)["load"], Value::Null);

    // A monitor with a timeout of its own has its error shown.
    let said = balancer.reload(&web(&[hung, good], &rest.replace("20s", "50ms")));
    assert_eq!(said, "~ group web: monitor\n");
    let trouble = found("the trouble of the one that hangs", || {
        member(&balancer, hung)["trouble"].as_str().filter(|why| why.contains("no answer")).map(str::to_owned)
    });
    assert!(trouble.contains("no answer within 0.05 s") && trouble.contains("/load"), "{trouble}");
}

#[test]
fn a_page_of_metrics_gives_loads_and_rates() {
    let page = "# TYPE busy gauge\nbusy{cpu=\"0\"} 0.5\nbusy{cpu=\"1\"} 0.25\nother 9\ndone_total 12\n";
    let metrics = monitor(page);
    let address = metrics.address;
    let rest = "[group.monitor]\nsource = \"prometheus\"\ninterval = \"100ms\"\nmetric = \"busy + \
        done_total_per_second\"\n";
    let balancer = Balancer::start(&web(&[address], rest));
    until("a few pages are read", || metrics.accepted() >= 4);
    let known = found("a load", || {
        let known = member(&balancer, address);
        known["load"].is_object().then_some(known)
    });
    assert_eq!(known["load"]["value"], 0.75, "{known}");
    let facts: Vec<&str> =
        known["facts"].as_array().unwrap().iter().filter_map(|fact| fact["name"].as_str()).collect();
    assert_eq!(facts, ["busy", "done_total"]);
}

#[test]
fn one_monitor_may_answer_for_all_members() {
    let central = Script::start(|wire| {
        while let Some(head) = wire.head()? {
            wire.body(&head, false)?;
            // The member's port is its load.
            let port = head.split([' ', ':']).nth(2).unwrap_or_default();
            let body = format!("{{\"values\": {{\"cpu\": {port}}}}}");
            wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))?;
        }
        std::io::Result::Ok(())
    });
    let members = Member::several(2, &[]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let url = format!("http://localhost:{}/of/{{member}}", central.address.port());
    let rest = format!("[group.monitor]\nsource = \"pull\"\ninterval = \"100ms\"\nurl = \"{url}\"\n");
    let balancer = Balancer::start(&web(&all, &rest));
    for address in all {
        let known = found("a load", || {
            let known = member(&balancer, address);
            known["load"].is_object().then_some(known)
        });
        assert_eq!(known["load"]["value"], f64::from(address.port()), "{known}");
    }
}

#[test]
fn weights_follow_what_is_reported() {
    let (one, two) = (Member::start(&[]), Member::start(&[]));
    let rest = "strategy = { expression = { weight = \"1 / cpu\" } }\n";
    let balancer = Balancer::start(&("threads = 1\n".to_owned() + &web(&[one.address, two.address], rest)));
    let url = format!("http://{}/v1/report", balancer.reports());
    let told = |address: SocketAddr, cpu: f64| {
        assert_eq!(curl_status(&["-d", &format!("member={address}&cpu={cpu}"), &url], b""), 204);
    };
    told(one.address, 0.1);
    told(two.address, 0.9);
    until("the weights are in force", || {
        let share = |address| member(&balancer, address)["weight"].as_f64().unwrap();
        (share(one.address) / share(two.address) - 9.0).abs() < 0.1
    });
    for _ in 0..50 {
        assert_eq!(get(balancer.address(), "/").status, 200);
    }
    // A client may have its answer before it is counted.
    let requests =
        || [&one, &two].map(|member| balancer.member(member.address)["requests"].as_u64().unwrap());
    until("all are counted", || requests().iter().sum::<u64>() == 50);
    assert_eq!(requests(), [45, 5]);
    let text = balancer.run(&["explain", "group", "web"]).out;
    assert!(text.contains("weight    1 / cpu") && text.contains("share=0.9"), "{text}");
}

#[test]
fn a_strategy_is_changed_under_load_and_no_request_fails() {
    let members = Member::several(3, &["--service", "exp:2ms", "--workers", "32"]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let text = web(&all, "strategy = \"round_robin\"\ntimeouts = { connect = \"20s\" }\n");
    let balancer = Balancer::start(&text);
    // POST: no request is retried.
    let mut load = Load::start(balancer.address(), "POST", 300.0);
    let mut client = Wire::connect(balancer.address());
    let wanted = [
        "least_connections",
        "{ least_request = { choices = 3 } }",
        "{ expression = { weight = 'capacity / (1 + in_flight)' } }",
        "peak_ewma",
        "random",
    ];
    for value in wanted.iter().cycle().take(20) {
        load.more(10);
        let run = balancer.run(&["set", "group", &format!("web.strategy={value}")]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        // One connection outlives all changes.
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200);
    }
    load.more(50);
    load.stop_unharmed();
    assert_eq!(explained(&balancer)["strategy"], "random");
    let wrong = balancer.run(&["set", "group", "web.strategy=least_conn"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("did you mean `least_connections`?"), "{}", wrong.err);
    let wrong = balancer.run(&["set", "group", "wbe.strategy=random"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("there are: web"), "{}", wrong.err);
    // A weight set as an expression is reset, too.
    let weighed = |weight: &str| {
        format!(
            "strategy = {{ expression = {{ weight = \"{weight}\" }} }}\ntimeouts = {{ connect = \"20s\" }}\n"
        )
    };
    balancer.reload(&web(&all, &weighed("capacity")));
    let run = balancer.run(&["set", "group", "web.strategy={ expression = { weight = '2' } }"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_eq!(explained(&balancer)["weight"], "2");
    assert_eq!(balancer.reload(&web(&all, &weighed("capacity"))), "~ group web: weight 2 -> capacity\n");
    balancer.run(&["set", "group", "web.strategy=random"]);
    // The change is an event, and the next reload resets it and reports that.
    let events = balancer.run(&["events"]).out;
    assert!(events.contains("strategy peak_ewma") && events.contains("by an operator"), "{events}");
    let said = balancer.reload(&text);
    assert_eq!(said, "~ group web: strategy random -> round_robin\n");
}

#[test]
fn an_expression_of_the_balancers_own_figures_needs_no_report() {
    let one = Member::start(&[]);
    let rest =
        "[group.monitor]\nsource = \"passive\"\nmetric = \"requests_per_second + 1\"\ninterval = \"100ms\"\n";
    let balancer = Balancer::start(&web(&[one.address], rest));
    let done = Arc::new(AtomicBool::new(false));
    let (stop, address) = (Arc::clone(&done), balancer.address());
    let client = thread::spawn(move || {
        while !stop.load(SeqCst) {
            get(address, "/");
            // sleeps: paces the client
            thread::sleep(Duration::from_millis(2));
        }
    });
    // The load is 1 while no requests come.
    until("the load rises with the requests", || {
        member(&balancer, one.address)["load"]["value"].as_f64() > Some(1.0)
    });
    done.store(true, SeqCst);
    client.join().unwrap();
}

#[test]
fn an_explanation_says_who_is_chosen_and_why() {
    let members = Member::several(2, &["--service", "const:1h", "--workers", "2"]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(&all, "strategy = \"first_available\"\nmax_connections = 1\n"));
    assert_eq!(balancer.run(&["drain", &all[1].to_string()]).code, Some(0));
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("the first is at its limit", || member(&balancer, all[0])["in_flight"] == 1);
    let full = member(&balancer, all[0]);
    assert_eq!((&full["eligible"], &full["limit"], &full["state"]), (&false.into(), &1.into(), &"up".into()));
    assert!(full["why"].as_str().unwrap().starts_with("at its limit of 1 at once; "), "{full}");
    let drained = member(&balancer, all[1]);
    assert_eq!((&drained["eligible"], &drained["why"]), (&false.into(), &"drained by an operator".into()));
    assert_eq!(drained["events"][0]["kind"], "draining", "{drained}");
    let text = balancer.run(&["explain", "group", "web"]).out;
    assert!(
        text.contains("1/1") && text.contains("\u{25cc} draining") && text.contains("no monitor"),
        "{text}"
    );
}
