//! Members of a CORBA group die, hang, come back with another key or die in the middle of a call. Clients on
//! real ORBs are bound to them by a forward. How fast a client comes back is its ORB's doing. That it finds
//! another member then, at once, is the balancer's: the balancer counts the clients that it forwards to each
//! member.

use std::thread;

use rustix::process::Signal;

use crate::stage::{
    Call, Folder, Member, Orb, OrbClient, OrbGroup, OrbMember, Process, binary, listens, until,
};

/// The options of a load on a machine that may stand still.
const PATIENT: [&str; 4] = ["--timeout", "60s", "--connect-timeout", "60s"];

/// Returns the number of the member that answers.
fn number(who: &str) -> usize {
    who[1..].parse().unwrap()
}

/// Returns the number of the member that answers the call after the first `seen`.
#[track_caller]
fn next(client: &OrbClient, seen: usize) -> usize {
    let seen = client.until("an answer", seen, |call| !call.who().is_empty());
    number(client.calls()[seen - 1].who())
}

/// Asserts that the only calls that failed for a client were in flight at servers that died, and at most
/// `deaths` of them.
#[track_caller]
fn missed_at_most(client: &OrbClient, deaths: usize) {
    let calls = client.calls();
    let failed: Vec<_> = calls.iter().filter(|call| call.exception().is_some()).collect();
    assert!(failed.len() <= deaths && failed.iter().all(|call| call.was_in_flight()), "{}", client.process);
}

/// Returns the number of clients that the balancer forwarded to these members.
#[track_caller]
fn sent<'m>(group: &OrbGroup, members: impl Iterator<Item = &'m OrbMember>) -> u64 {
    members.map(|member| group.member(member.address)["requests"].as_u64().unwrap()).sum()
}

#[test]
fn a_member_is_killed_between_calls() {
    let mut members = OrbMember::several(4, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 100");
    let mut bound = next(&client, 0);
    let mut killed = Vec::new();
    for _ in 0..3 {
        killed.push(bound);
        let before = sent(&group, killed.iter().map(|at| &members[*at]));
        members[bound].process.kill();
        let dead = format!("m{bound}");
        let seen = client.calls().len();
        let other = |call: &Call| call.exception().is_none() && call.who() != dead;
        let seen = client.until("another member", seen, other);
        missed_at_most(&client, killed.len());
        bound = number(client.calls()[seen - 1].who());
        // No client was forwarded to a member that died: it would have waited for a second, and then for two.
        assert_eq!(sent(&group, killed.iter().map(|at| &members[*at])), before, "{}", client.process);
    }
}

#[test]
fn java_clients_find_another_member_too() {
    for orb in Orb::java() {
        let mut members = OrbMember::several(2, &[]);
        let group = OrbGroup::start("per_session", &members, "");
        let client = OrbClient::start(*orb, &group.ior, "loop 600 --interval 100");
        let bound = next(&client, 0);
        members[bound].process.kill();
        let seen = client.calls().len();
        let other = format!("m{}", 1 - bound);
        client.until("the other member", seen, |call| call.who() == other);
        missed_at_most(&client, 1);
    }
}

#[test]
fn two_of_three_members_die_at_once() {
    let mut members = OrbMember::several(3, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 100");
    let bound = next(&client, 0);
    let left = (bound + 1) % 3;
    let to_dead = |members: &[OrbMember]| {
        sent(&group, members.iter().enumerate().filter(|(at, _)| *at != left).map(|(_, member)| member))
    };
    let before = to_dead(&members);
    for (at, member) in members.iter_mut().enumerate() {
        if at != left {
            member.process.kill();
        }
    }
    let seen = client.calls().len();
    let alive = format!("m{left}");
    client.until("the one that is left", seen, |call| call.who() == alive);
    missed_at_most(&client, 1);
    // No client was forwarded to a dead member: it would have waited for a second, and then for two.
    assert_eq!(to_dead(&members), before, "{}", client.process);
    // New clients are not forwarded there either.
    for _ in 0..6 {
        let calls = Orb::Omni.calls(&group.ior, "who");
        assert_eq!(calls[0].who(), alive, "{calls:?}");
    }
    assert_eq!(to_dead(&members), before, "{}", client.process);
}

#[test]
fn all_members_die_and_one_comes_back() {
    let mut members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 50");
    client.until("an answer", 0, |call| !call.who().is_empty());
    members.iter_mut().for_each(|member| member.process.kill());
    let seen = client.calls().len();
    let seen = client.until("an exception", seen, |call| call.exception().is_some());
    let call = &client.calls()[seen - 1];
    // The call may have been in flight when its member died.
    assert!(["TRANSIENT", "COMM_FAILURE"].contains(&call.exception().unwrap()), "{}", client.process);
    until("their ports are closed", || members.iter().all(|member| !listens(member.address)));
    members[1].restart("back", &[]);
    client.until("an answer of the one that is back", seen, |call| call.who() == "back");
}

#[test]
fn a_member_comes_back_with_another_key() {
    for orb in Orb::here() {
        if orb == Orb::Glassfish {
            // The ORB takes OBJECT_NOT_EXIST as final and never asks the group again.
            continue;
        }
        let mut members = OrbMember::several(2, &["--key", "first"]);
        let group = OrbGroup::start("per_session", &members, "");
        let client = OrbClient::start(orb, &group.ior, "loop 600 --interval 400");
        let bound = next(&client, 0);
        let seen = client.calls().len();
        // The member is replaced between two calls: the client is to meet the new one.
        members[bound].process.kill();
        members[bound].restart("another", &["--key", "second"]);
        let other = format!("m{}", 1 - bound);
        client.until("the other member", seen, |call| call.who() == other);
        missed_at_most(&client, 1);
    }
}

#[test]
fn a_member_is_stopped() {
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let client =
        OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 50 -ORBclientCallTimeOutPeriod 2000");
    let bound = next(&client, 0);
    members[bound].process.signal(Signal::STOP);
    let seen = client.calls().len();
    let other = format!("m{}", 1 - bound);
    client.until("the other member", seen, |call| call.who() == other);
    let calls = client.calls();
    let timeouts = calls.iter().filter(|call| call.exception() == Some("TIMEOUT")).count();
    let others = calls.iter().filter(|call| call.exception().is_some_and(|name| name != "TIMEOUT"));
    assert!((1..=3).contains(&timeouts) && others.count() == 0, "{}", client.process);
    members[bound].process.signal(Signal::CONT);
}

/// Servers that serve one request after another answer when the turn of a request has come. All of them are
/// busy here, and no client may be told that they are not there.
#[test]
fn members_that_are_busy_are_there() {
    let members = Member::several(2, &["--iiop", "--workers", "1", "--service", "const:100ms"]);
    let entry = |member: &Member| format!("{{ address = \"{}\", key = \"Latency\" }}", member.address);
    let folder = Folder::new();
    let group =
        OrbGroup::in_folder(Folder::new(), "per_session", &members.iter().map(entry).collect::<Vec<_>>(), "");
    let forwards = |rate: &str, span: &str| {
        let args =
            ["load", &group.corbaloc(), "--no-follow", "--rate", rate, "--duration", span, "-o", "json"];
        group.run(&[&args[..], &PATIENT].concat()).json()
    };
    // The members have answered once.
    assert_eq!(forwards("20", "500ms")["failed"], serde_json::json!({}));
    // Ten calls are before each new call, for a second.
    let busy: Vec<Process> = members
        .iter()
        .map(|member| {
            let target = format!("corbaloc::{}/Latency", member.address);
            let args = ["load", &target, "--concurrency", "10", "--duration", "1h"];
            Process::start(&binary(), &[&args[..], &PATIENT].concat(), folder.path())
        })
        .collect();
    let requests = |member: &Member| group.member(member.address)["requests"].as_u64().unwrap();
    let before: Vec<u64> = members.iter().map(requests).collect();
    // The time that their own answers take is measured beside that.
    let direct = format!("corbaloc::{}/Latency", members[0].address);
    let answers = || {
        let args = ["load", &direct, "--concurrency", "1", "--duration", "4s", "-o", "json"];
        group.run(&[&args[..], &PATIENT].concat()).json()
    };
    let (record, answers) = thread::scope(|scope| {
        let answers = scope.spawn(answers);
        (forwards("50", "4s"), answers.join().unwrap())
    });
    assert_eq!(record["failed"], serde_json::json!({}), "{record:#}");
    assert!(record["ok"].as_u64().unwrap() >= 100, "{record:#}");
    // A client that waited for an answer of the members would have waited for that time.
    let (forward, answer) = (&record["service_seconds"]["p90"], &answers["service_seconds"]["p50"]);
    // bound: a third of what their answers took in the same time
    assert!(forward.as_f64().unwrap() < answer.as_f64().unwrap() / 3.0, "{record:#} {answers:#}");
    let turns: Vec<u64> =
        members.iter().zip(before).map(|(member, before)| requests(member) - before).collect();
    assert!(turns[0].abs_diff(turns[1]) <= (turns[0] + turns[1]) / 5, "{turns:?}");
    for member in &members {
        assert_eq!(group.member(member.address)["failures"], 0, "{}", group.process);
    }
    drop(busy);
}

#[test]
fn a_member_is_killed_in_a_call() {
    let members = || OrbMember::several(2, &["--sleep", "400000"]);
    let group = |members: &[OrbMember]| OrbGroup::start("per_session", members, "");
    for orb in Orb::here() {
        let mut members = members();
        let group = group(&members);
        let client = OrbClient::start(orb, &group.ior, "loop 600 --interval 1");
        let bound = next(&client, 0);
        // sleeps: nearly all of the time is within calls, so that the member is killed in one
        thread::sleep(std::time::Duration::from_millis(100));
        members[bound].process.kill();
        let seen = client.calls().len();
        let other = format!("m{}", 1 - bound);
        client.until("the other member", seen, |call| call.who() == other);
        let exceptions: Vec<_> =
            client.calls().iter().filter_map(|call| call.exception().map(str::to_owned)).collect();
        if orb == Orb::Omni {
            // The ORB sends the call again by itself.
            assert!(exceptions.is_empty(), "{}", client.process);
        } else {
            assert!(
                exceptions.len() <= 1 && exceptions.iter().all(|name| name == "COMM_FAILURE"),
                "{}",
                client.process
            );
        }
    }
}

#[test]
fn the_balancer_is_killed_and_its_clients_do_not_notice() {
    let mut members = OrbMember::several(2, &[]);
    let mut group = OrbGroup::start("per_session", &members, "");
    let clients: Vec<OrbClient> = Orb::here()
        .into_iter()
        .map(|orb| OrbClient::start(orb, &group.ior, "loop 600 --interval 50"))
        .collect();
    let bound: Vec<usize> = clients.iter().map(|client| next(client, 0)).collect();
    group.kill();
    for (client, bound) in clients.iter().zip(&bound) {
        let seen = client.calls().len();
        client.until("ten more calls", seen + 10, |_| true);
        let calls = client.calls();
        assert!(calls.iter().all(|call| call.who() == format!("m{bound}")), "{}", client.process);
    }
    let ior = group.ior.clone();
    let group = group.restart();
    assert_eq!(group.ior, ior);
    assert!(Orb::Omni.calls(&ior, "who")[0].who().starts_with('m'));
    // A client that was bound before finds the new balancer when it must.
    members[bound[0]].process.kill();
    let seen = clients[0].calls().len();
    let other = format!("m{}", 1 - bound[0]);
    clients[0].until("the other member", seen, |call| call.who() == other);
    // Its connection is to the old balancer, which the client learns from a call that fails.
    let exceptions = clients[0].calls().iter().filter(|call| call.exception().is_some()).count();
    assert!(exceptions <= 1, "{}", clients[0].process);
}

#[test]
fn a_member_sends_its_clients_back_for_good() {
    let folder = Folder::new();
    let away = folder.join("away");
    let mut members = [
        OrbMember::start(Orb::Omni, "m0", &["--away", &away.display().to_string()]),
        OrbMember::start(Orb::Omni, "m1", &[]),
    ];
    let group = OrbGroup::start("per_session", &members, "");
    // The clients take turns, so that one of two comes to the member that refuses it.
    let clients: Vec<OrbClient> =
        (0..2).map(|_| OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 30")).collect();
    for client in &clients {
        client.until("an answer", 0, |call| !call.who().is_empty());
    }
    std::fs::write(&away, &group.ior).unwrap();
    for client in &clients {
        let seen = client.calls().len() + 1;
        client.until("the other member", seen, |call| call.who() == "m1");
    }
    // The target of the permanent forward was the group: from there on all is as before.
    std::fs::remove_file(&away).unwrap();
    members[1].process.kill();
    for client in &clients {
        client.until("the member that is left", client.calls().len(), |call| call.who() == "m0");
        missed_at_most(client, 1);
    }
}
