//! Monitors, alerts and applications that were written against the interface of TAO's load balancing service.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Balancer, Folder, Manager, Orb, OrbMember, Wire, found, free_port, until};

/// Returns the configuration of a group of two members whose loads are those of the monitors of `host1` and
/// `host2.lab`.
fn text(listener: SocketAddr, members: &[SocketAddr], interval: &str) -> String {
    format!(
        "[[listener]]\naddress = \"{listener}\"\nprotocol = \"iiop\"\nbinding = \"on_demand\"\ngroup = \
         \"web\"\n\
         [[group]]\nname = \"web\"\nslow_start = \"0s\"\nstrategy = \
         {{ least_loaded = {{ critical = 50 }} }}\n\
         members = [{{ address = \"{}\", location = \"host1\" }}, \
         {{ address = \"{}\", location = \"host2.lab\" }}]\n\
         monitor = {{ source = \"push\", metric = \"load_average\" }}\n\
         [admin]\nload_manager = \"127.0.0.1:0\"\nload_interval = \"{interval}\"\n",
        members[0], members[1]
    )
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Starts a balancer in front of two members that are not there: no request goes to them.
fn balancer(interval: &str) -> (Balancer, [SocketAddr; 2]) {
    let members = [address(1), address(2)];
    (Balancer::start(&text(address(0), &members, interval)), members)
}

/// Returns the load that the strategy reads for a member; null for none.
fn load(balancer: &Balancer, group: &str, member: SocketAddr) -> Value {
    let explained = balancer.run(&["explain", "group", group, "-o", "json"]).json();
    let members = explained["members"].as_array().unwrap();
    let member = members.iter().find(|one| one["name"] == member.to_string()).unwrap();
    member["load"]["value"].clone()
}

#[test]
fn loads_that_are_pushed_are_reports() {
    let (balancer, members) = balancer("5s");
    let said = Manager::run(
        &balancer,
        &[
            "push",
            "host1",
            "0=2.5,3=7,9=1",
            "loads",
            "host1",
            "loads",
            "elsewhere",
            "push",
            "host2.lab",
            "4=3,0=8",
        ],
    );
    assert_eq!(said, ["push ok", "loads 0=2.5,3=7,9=1", "loads exception=LocationNotFound", "push ok"]);
    assert_eq!(load(&balancer, "web", members[0]), 2.5);
    assert_eq!(load(&balancer, "web", members[1]), 8.0);
    let explained = balancer.run(&["explain", "group", "web"]).out;
    for fact in ["network", "load_9", "requests_per_second"] {
        assert!(explained.contains(fact), "{explained}");
    }
    for version in ["1.0", "1.1"] {
        let options = ["-ORBmaxGIOPVersion", version];
        let said =
            Manager::run(&balancer, &[&["push", "host1", "0=3", "loads", "host1"], &options[..]].concat());
        assert_eq!(said, ["push ok", "loads 0=3"], "GIOP {version}");
    }
    // A load of no member yet is kept until a member has that location.
    assert_eq!(
        Manager::run(&balancer, &["push", "later", "0=1", "loads", "later"]),
        ["push ok", "loads 0=1"]
    );
}

#[test]
fn one_dead_and_one_hung_monitor_delay_no_other() {
    let (other, _) = balancer("200ms");
    let alone = Manager::serve(&other, &["monitor", "host1", "4.5"]);
    let (balancer, members) = balancer("200ms");
    let mut dead = Manager::serve(&balancer, &["monitor", "dead", "1"]);
    let hung = Manager::serve(&balancer, &["monitor", "hung", "1"]);
    let well = Manager::serve(&balancer, &["monitor", "host1", "4.5"]);
    until("its load is known", || load(&balancer, "web", members[0]) == 4.5);
    let again = Manager::run(&balancer, &["monitor", "host1", "9"]);
    assert_eq!(again, ["monitor exception=MonitorAlreadyPresent"]);
    dead.process.kill();
    hung.process.signal(Signal::STOP);
    balancer.process.line("the load monitor of dead gives no loads");
    balancer.process.line("the load monitor of hung gives no loads");
    // If monitors were asked one after the other, each round would wait for two seconds for the one that
    // hangs. That is ten times as long as a round of a balancer whose monitors are all well. The balancer has
    // at least half as many rounds in the same time, whatever else the machine does.
    let before = (well.count("asked"), alone.count("asked"));
    until("the other balancer's is asked twenty times more", || alone.count("asked") >= before.1 + 20);
    let (own, reference) = (well.count("asked") - before.0, alone.count("asked") - before.1);
    assert!(2 * own >= reference, "{own} times, where the other one's was asked {reference} times");
    // A monitor that hung is asked again when it goes on.
    let asked = hung.count("asked");
    hung.process.signal(Signal::CONT);
    until("asked again", || hung.count("asked") > asked);
    // The place of a dead monitor can be taken; a live one keeps its place.
    let next = Manager::serve(&balancer, &["monitor", "dead", "2"]);
    until("asked in its place", || next.count("asked") > 1);
    let gone = Manager::run(&balancer, &["no-monitor", "host1", "no-monitor", "host1"]);
    assert_eq!(gone, ["no-monitor ok", "no-monitor exception=LocationNotFound"]);
}

#[test]
fn a_load_alert_is_told_what_the_strategy_decides() {
    let (balancer, _) = balancer("200ms");
    let mut alert = Manager::serve(&balancer, &["alerted", "host1"]);
    Manager::run(&balancer, &["push", "host2.lab", "0=1", "push", "host1", "0=80"]);
    alert.process.line("enable_alert");
    Manager::run(&balancer, &["push", "host1", "0=2"]);
    alert.process.line("disable_alert");
    // The alert can be set by hand, too.
    let said =
        Manager::run(&balancer, &["alert", "host1", "on", "alert", "nowhere", "on", "alerted", "host1"]);
    let refused = ["alert exception=LoadAlertNotFound", "alerted exception=LoadAlertAlreadyPresent"];
    assert_eq!(said[0], "alert ok");
    assert_eq!(said[1..], refused);
    until("told by hand", || alert.count("enable_alert") >= 2);
    // An alert object that hangs gets the call when it goes on: a call that was not taken is repeated.
    Manager::run(&balancer, &["alert", "host1", "off"]);
    until("told by hand", || alert.count("disable_alert") >= 2);
    alert.process.signal(Signal::STOP);
    Manager::run(&balancer, &["alert", "host1", "on"]);
    balancer.process.line("the load alert of host1 cannot be told");
    let told = alert.count("enable_alert");
    alert.process.signal(Signal::CONT);
    until("told again", || alert.count("enable_alert") > told);
    balancer.process.line("the load alert of host1 was told: enable_alert");
    // A dead alert object gives way to the next, which is notified at once that the member is under alert.
    alert.process.kill();
    Manager::run(&balancer, &["push", "host1", "0=80"]);
    until("it is lost", || {
        let said = Manager::run(&balancer, &["alert", "host1", "on", "alerted", "host1"]);
        said[1] == "alerted ok"
    });
    let gone = Manager::run(&balancer, &["no-alert", "host1", "no-alert", "host1"]);
    assert_eq!(gone, ["no-alert ok", "no-alert exception=LoadAlertNotFound"]);
    Manager::run(&balancer, &["push", "host1", "0=90"]);
    let next = Manager::serve(&balancer, &["alerted", "host1"]);
    next.process.line("enable_alert");
}

#[test]
fn members_come_and_go_in_a_group_of_the_file() {
    let members = OrbMember::several(3, &["--key", "web"]);
    let group = address(free_port());
    let text = text(group, &[members[0].address, members[1].address], "5s");
    let balancer = Balancer::start(&text);
    let web = format!("corbaloc:iiop:1.2@{group}/web");
    let said = Manager::run(
        &balancer,
        &[
            "locations",
            &web,
            "add",
            &web,
            "host3",
            &members[2].ior,
            "locations",
            &web,
            "groups",
            "host3",
            "id",
            &web,
        ],
    );
    assert_eq!(said[0], "locations [host1,host2.lab]");
    assert_eq!(said[2..], ["locations [host1,host2.lab,host3]", "groups 1", "id 1 same"]);
    let said = Manager::run(
        &balancer,
        &[
            "add",
            &web,
            "host3",
            &members[2].ior,
            "member",
            &web,
            "host3",
            "remove",
            &web,
            "host1",
            "remove",
            &web,
            "host1",
        ],
    );
    assert_eq!(said[0], "add exception=MemberAlreadyPresent");
    assert_eq!(said[1], format!("member ior={}", members[2].ior));
    assert_eq!(said[3], "remove exception=MemberNotFound");
    // The members of the file after a reload are changed in the same way.
    balancer.reload(&text.replace("critical = 50", "critical = 60"));
    let other = format!("corbaloc:iiop:1.2@{group}/other");
    let said = Manager::run(
        &balancer,
        &[
            "locations",
            &web,
            "locations",
            &other,
            "properties",
            &web,
            "dynamic",
            &web,
            "remove",
            &web,
            "host2.lab",
        ],
    );
    assert_eq!(said[0], "locations [host2.lab,host3]");
    assert_eq!(said[1], "locations exception=ObjectGroupNotFound");
    assert_eq!(said[2..4], ["properties 0", "dynamic exception=NO_IMPLEMENT"]);
    assert_eq!(Orb::Omni.calls(&web, "who")[0].who(), "m2");
    // Several objects of one server are members like others.
    let said = Manager::run(&balancer, &["add", &web, "again", &members[2].ior, "locations", &web]);
    assert_eq!(said[1], "locations [host3,again]");
    assert!(balancer.run(&["explain", "group", "web"]).out.contains("again"));
    Manager::run(&balancer, &["remove", &web, "host3"]);
    assert_eq!(Orb::Omni.calls(&web, "who")[0].who(), "m2");
}

#[test]
fn an_application_makes_a_group() {
    let members = OrbMember::several(2, &[]);
    let balancer = Balancer::start(&text(address(free_port()), &[address(1), address(2)], "5s"));
    let create = |words: &[&str]| {
        let all: Vec<&str> = ["create", "IDL:Test/Latency:1.0"].iter().chain(words).copied().collect();
        Manager::run(&balancer, &all).remove(0)
    };
    let said = create(&["style=0", "strategy=LeastLoaded:CriticalThreshold=5:RejectThreshold=3"]);
    let (number, group) = said.strip_prefix("create number=").unwrap().split_once(" ior=").unwrap();
    let added =
        Manager::run(&balancer, &["add", group, "a", &members[0].ior, "add", group, "b", &members[1].ior]);
    assert!(added.iter().all(|line| line.starts_with("add ior=IOR:")), "{added:?}");
    let said = Manager::run(&balancer, &["locations", group, "groups", "b", "properties", group]);
    assert_eq!(said, ["locations [a,b]", "groups 1", "properties 2"]);
    // The strategy is the one that was asked for; it reads the loads that are pushed.
    Manager::run(&balancer, &["push", "a", "0=1", "push", "b", "0=2"]);
    assert_eq!(load(&balancer, "corba-2", members[1].address), 2.0);
    assert_eq!(balancer.group("corba-2")["strategy"], "least_loaded");
    found("an answer of the one with less load", || {
        let calls = Orb::Omni.calls(group, "is_a who");
        (calls[1].who() == "m0").then_some(())
    });
    Manager::run(&balancer, &["remove", group, "a"]);
    assert_eq!(Orb::Omni.calls(group, "who")[0].who(), "m1");
    let said =
        Manager::run(&balancer, &["delete", number, "delete", number, "delete", "1", "locations", group]);
    let gone = "delete exception=ObjectNotFound";
    assert_eq!(said, ["delete ok", gone, gone, "locations exception=ObjectGroupNotFound"]);
    // The exception names what cannot be had.
    assert_eq!(create(&["style=1"]), "create exception=CannotMeetCriteria");
    assert_eq!(create(&["style=7"]), "create exception=InvalidProperty");
    assert_eq!(create(&["unknown=1"]), "create exception=InvalidCriteria");
    assert_eq!(create(&["strategy=Nobody"]), "create exception=InvalidProperty");
    assert_eq!(create(&["strategy=LeastLoaded:Tolerance=0"]), "create exception=InvalidProperty");
    assert_eq!(Manager::run(&balancer, &["defaults", "strategy=RoundRobin"]), ["defaults 1"]);
    assert!(create(&[]).starts_with("create number=3 "));
    assert_eq!(balancer.group("corba-3")["strategy"], "round_robin");
}

#[test]
fn noise_at_the_load_managers_door_is_refused() {
    let (balancer, _) = balancer("5s");
    for noise in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"GIOP\x01\x02\x01\x00\xff\xff\xff\xff", &[0; 64]] {
        let mut wire = Wire::connect(balancer.load_manager());
        wire.send(noise);
        let said = wire.exactly(12).unwrap();
        assert!(said.starts_with(b"GIOP\x01\x00") && said[7] == 6, "{said:?}");
    }
    assert_eq!(Manager::run(&balancer, &["push", "host1", "0=1"]), ["push ok"]);
}

#[test]
fn what_clients_change_is_in_the_audit_log() {
    let folder = Folder::new();
    let audit = format!("audit = \"{}\"\n", folder.join("audit.log").display());
    let text = text(address(0), &[address(1), address(2)], "5s") + &audit;
    let balancer = Balancer::start_in(folder, &text);
    let said = Manager::run(&balancer, &["push", "host1", "0=2", "alert", "host1", "on"]);
    assert_eq!(said, ["push ok", "alert exception=LoadAlertNotFound"]);
    let lines = balancer.folder().read("audit.log");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told =
        |line: &Value| format!("{} {} {}", line["verb"], line["target"], line["result"]).replace('"', "");
    assert_eq!(
        lines.iter().map(told).collect::<Vec<_>>(),
        ["enable_alert host1 begun", "enable_alert host1 failed"],
        "loads are many, and no change"
    );
    assert_eq!((&lines[1]["kind"], &lines[1]["why"]), (&"none".into(), &"LoadAlertNotFound".into()));
    let from: SocketAddr = lines[1]["from"].as_str().unwrap().parse().unwrap();
    assert!(from.ip().is_loopback() && from.port() != 0);
}
