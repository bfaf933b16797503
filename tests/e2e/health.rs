//! Health checks end to end: unchecked members are not used, failing ones are removed, passing ones return.

use crate::stage::{Balancer, Load, Member, Nginx, get, refusing, until, web};

/// Starts a server with a configurable health that serves in any case.
fn patient() -> Nginx {
    let nginx =
        Nginx::http("location = /healthz { try_files /well =503; } location / { return 200 served; }");
    nginx.file("well", b"yes");
    nginx
}

/// A machine that stands still must neither cause overload nor remove a member: nothing is rejected for it.
const CHECKS: &str = "admission = false\n[group.health]\nhttp = \"/healthz\"\ninterval = \"100ms\"\ntimeout \
    = \"30s\"\nrise = 2\nfall = 3\n";

#[test]
fn a_member_that_says_it_is_unwell_goes_without_a_failed_request() {
    let nginxes = [patient(), patient()];
    let addresses = nginxes.each_ref().map(|nginx| nginx.address);
    let balancer = Balancer::start(&web(&addresses, CHECKS));
    let state = |number: usize| balancer.member(addresses[number])["state"].clone();
    until("both up", || state(0) == "up" && state(1) == "up");
    // POST: no request is retried.
    let mut load = Load::start(balancer.address(), "POST", 100.0);
    load.more(50);
    std::fs::remove_file(nginxes[1].folder.join("files/well")).unwrap();
    until("it is down", || state(1) == "down");
    let event = balancer.events(addresses[1], "down").remove(0);
    assert!(event["why"].as_str().unwrap().contains("503"), "{event}");
    // Requests in flight at the change end, and no new ones arrive.
    until("nothing is in flight there", || balancer.member(addresses[1])["in_flight"] == 0);
    let before = balancer.member(addresses[1])["requests"].as_u64();
    load.more(50);
    assert_eq!(balancer.member(addresses[1])["requests"].as_u64(), before);
    nginxes[1].file("well", b"yes");
    until("it is up", || state(1) == "up");
    let before = balancer.member(addresses[1])["requests"].as_u64();
    until("it serves again", || balancer.member(addresses[1])["requests"].as_u64() > before);
    load.stop_unharmed();
}

#[test]
fn who_was_never_well_is_never_used() {
    let well = patient();
    let (_held, dead) = refusing();
    let balancer = Balancer::start(&web(&[dead, well.address], CHECKS));
    until("the good one up", || balancer.member(well.address)["state"] == "up");
    for _ in 0..50 {
        assert_eq!(get(balancer.address(), "/").text(), "served");
    }
    let dead = balancer.member(dead);
    assert!(dead["requests"] == 0 && dead["state"] != "up", "{dead}");
}

#[test]
fn tcp_checks_notice_a_member_that_is_gone() {
    let mut members = Member::several(2, &[]);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(
        &addresses,
        "[group.health]\ntcp = true\ninterval = \"100ms\"\ntimeout = \"30s\"\nfall = 2\n",
    ));
    let state = |number: usize| balancer.member(addresses[number])["state"].clone();
    until("both up", || state(0) == "up" && state(1) == "up");
    // Without any request.
    members[0].process.kill();
    until("it is down", || state(0) == "down");
    assert_eq!(get(balancer.address(), "/").field("x-member"), Some(&*addresses[1].to_string()));
    members[0].restart();
    until("it is up", || state(0) == "up");
}

#[test]
fn when_all_are_down_it_does_as_it_was_told_and_says_so() {
    let nginx = patient();
    let balancer = Balancer::start(&web(&[nginx.address], CHECKS));
    until("it serves", || get(balancer.address(), "/").status == 200);
    assert_eq!(balancer.run(&["status"]).code, Some(0));
    std::fs::remove_file(nginx.folder.join("files/well")).unwrap();
    until("it refuses", || get(balancer.address(), "/").reason() == Some("no_member"));
    assert_eq!(balancer.run(&["status"]).code, Some(1));
    assert_eq!(balancer.metric("plimsoll_group_healthy{group=\"web\"}"), 0.0);
    balancer.reload(&web(&[nginx.address], &format!("when_all_down = \"fail_open\"\n{CHECKS}")));
    until("it serves as if it were up", || get(balancer.address(), "/").text() == "served");
}
