//! `plimsoll disable` and `enable`: members, listeners, and the balancing of a group.

use std::net::SocketAddr;

use crate::stage::{Balancer, Load, Member, Run, Wire, free_port, get, listening, listens, until, web};

fn addresses(members: &[Member]) -> Vec<SocketAddr> {
    members.iter().map(|member| member.address).collect()
}

#[track_caller]
fn well(run: Run) -> String {
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    run.err
}

#[test]
fn a_disabled_member_gets_nothing_new_and_keeps_what_it_has() {
    let members = Member::several(2, &["--echo", "tcp"]);
    let all = addresses(&members);
    let text = listening("protocol = \"tcp\"", &all, "strategy = \"first_available\"\n");
    let balancer = Balancer::start(&text);
    let name = all[0].to_string();
    let mut session = Wire::connect(balancer.address());
    session.send("one");
    assert_eq!(session.exactly(3).unwrap(), b"one");
    well(balancer.run(&["disable", "member", &name]));
    assert_eq!(
        well(balancer.run(&["disable", "member", &name, "--group", "web"])),
        "~ member x: disabled\n".replace('x', &name)
    );
    assert_eq!(balancer.member(all[0])["state"], "disabled");
    let mut second = Wire::connect(balancer.address());
    second.send("two");
    assert_eq!(second.exactly(3).unwrap(), b"two");
    session.send("still here");
    assert_eq!(session.exactly(10).unwrap(), b"still here");
    assert_eq!(
        (&balancer.member(all[0])["in_flight"], &balancer.member(all[1])["in_flight"]),
        (&1.into(), &1.into())
    );
    // The state is not a drain, and a reload does not end it.
    well(balancer.run(&["undrain", &name]));
    balancer.reload(&text);
    assert_eq!(balancer.member(all[0])["state"], "disabled");
    well(balancer.run(&["enable", "member", &name]));
    assert_eq!(balancer.member(all[0])["state"], "up");
    let (off, on) = (balancer.events(all[0], "disabled"), balancer.events(all[0], "enabled"));
    assert_eq!((off.len(), on.len()), (1, 1), "told once, however often it is said");
    assert_eq!(
        (&off[0]["why"], &off[0]["inputs"]["in_flight"]),
        (&"disabled by an operator".into(), &1.0.into())
    );
    let run = balancer.run(&["disable", "member", "127.0.0.1:1"]);
    assert!(run.code == Some(2) && run.err.contains("no group has a member"), "{}", run.err);
}

#[test]
fn a_disabled_listener_refuses_and_is_open_again() {
    let member = Member::start(&[]);
    // The listener is closed meanwhile, and no other process may take the port then.
    let own = format!("127.0.0.1:{}", free_port());
    let text = "threads = 2\n".to_owned() + &web(&[member.address], "").replace("127.0.0.1:0", &own);
    let balancer = Balancer::start(&text);
    let address = balancer.address();
    let name = address.to_string();
    assert_eq!(get(address, "/").status, 200);
    for round in 1..=3 {
        well(balancer.run(&["disable", "listener", &name]));
        until("it is closed", || !listens(address));
        assert_eq!(balancer.status()["listeners"][0]["disabled"], true);
        if round == 2 {
            balancer.reload(&text);
            assert!(!listens(address), "a reload does not open it");
        }
        assert_eq!(well(balancer.run(&["disable", "listener", &name])), "it was so already\n");
        // The listener opens at once, though the old sockets may still be closing.
        well(balancer.run(&["enable", "listener", &("http:".to_owned() + &name)]));
        assert_eq!(get(address, "/").status, 200);
    }
    let status = balancer.run(&["status"]);
    assert!(status.code == Some(0) && !status.out.contains("disabled"), "{}", status.out);
    assert!(balancer.status()["listeners"][0]["accepted"].as_u64() >= Some(4), "it goes on counting");
    for wrong in ["127.0.0.1:1", &("tcp:".to_owned() + &name)] {
        let run = balancer.run(&["disable", "listener", wrong]);
        assert!(run.code == Some(2) && run.err.contains(&format!("there are: http:{name}")), "{}", run.err);
    }
    let events = balancer.run(&["events", "-o", "json"]).out;
    let why = format!("listener http {name}: disabled by an operator: nothing new is accepted");
    assert_eq!(events.matches(&why).count(), 3, "{events}");
    // Another process has its address meanwhile.
    well(balancer.run(&["disable", "listener", &name]));
    until("it is closed", || !listens(address));
    let other = std::net::TcpListener::bind(address).unwrap();
    let run = balancer.run(&["enable", "listener", &name]);
    assert!(run.code == Some(2) && run.err.contains("the port is in use"), "{}", run.err);
    drop(other);
    well(balancer.run(&["enable", "listener", &name]));
    assert_eq!(get(address, "/").status, 200);
}

#[test]
fn balancing_that_is_off_gives_equal_turns() {
    let members = Member::several(2, &[]);
    let all = addresses(&members);
    let text =
        web(&all, "strategy = { least_request = { choices = 3 } }\ntimeouts = { connect = \"20s\" }\n");
    let balancer = Balancer::start(&text);
    let mut load = Load::start(balancer.address(), "POST", 400.0);
    load.more(20);
    well(balancer.run(&["disable", "balancing", "web"]));
    let group = balancer.group("web");
    assert_eq!((&group["strategy"], &group["balancing_disabled"]), (&"round_robin".into(), &true.into()));
    assert!(balancer.run(&["status"]).out.contains("round_robin (balancing disabled)"));
    load.more(100);
    assert_eq!(well(balancer.run(&["disable", "balancing", "web"])), "it was so already\n");
    let run = balancer.run(&["enable", "balancing", "web"]);
    assert_eq!(well(run), "~ group web: balancing enabled: strategy round_robin -> least_request\n");
    assert_eq!(balancer.group("web")["balancing_disabled"], false);
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    assert_eq!(explained["knobs"]["choices"], 3.0, "with the settings it had: {explained}");
    load.stop_unharmed();
    // A reload restores the file's strategy, an operator's choice takes its place.
    for end in [&["reload"][..], &["set", "group", "web.strategy=random"]] {
        well(balancer.run(&["disable", "balancing", "web"]));
        well(balancer.run(end));
        let group = balancer.group("web");
        assert_eq!(group["balancing_disabled"], false);
        assert_ne!(group["strategy"], "round_robin");
        assert_eq!(well(balancer.run(&["enable", "balancing", "web"])), "it was so already\n");
    }
    let run = balancer.run(&["disable", "balancing", "mail"]);
    assert!(run.code == Some(2) && run.err.contains("there are: web"), "{}", run.err);
    let events = balancer.run(&["events", "-o", "json"]).out;
    assert!(
        events.contains("\"kind\":\"disabled\"") && events.contains("members take equal turns"),
        "{events}"
    );
}

#[test]
fn an_operators_choice_is_told_with_what_it_replaces() {
    let members = Member::several(2, &[]);
    let balancer = Balancer::start(&web(&addresses(&members), "strategy = \"round_robin\"\n"));
    let changed = || {
        let events = balancer.run(&["events", "-o", "json"]).out;
        events
            .lines()
            .filter(|line| line.contains("\"kind\":\"changed\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // Members take turns before and after: that is no change of strategy.
    well(balancer.run(&["disable", "balancing", "web"]));
    let run = balancer.run(&["enable", "balancing", "web"]);
    assert_eq!(well(run), "~ group web: balancing enabled: strategy round_robin, as before\n");
    assert_eq!(changed(), [""; 0]);
    well(balancer.run(&["set", "group", "web.strategy={ expression = { weight = \"capacity * 2\" } }"]));
    well(balancer.run(&["set", "group", "web.strategy=random"]));
    let told = changed();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].contains("strategy expression -> random (the weight was `capacity * 2`) by"), "{told:?}");
    let run = balancer.run(&["drain", "127.0.0.1:1"]);
    let all = addresses(&members);
    assert!(run.code == Some(2) && all.iter().all(|one| run.err.contains(&one.to_string())), "{}", run.err);
}
