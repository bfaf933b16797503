//! The balancer relays calls of clients on real ORBs itself, each to a member of its choice.

use std::collections::BTreeSet;

use crate::stage::{Call, Folder, Orb, OrbClient, OrbGroup, OrbMember, notes};

const ALL: &str = "who call 20 echo 5 wide half 3.5 blob 0 blob 200000 fail user fail system is_a locate";

#[track_caller]
fn right(calls: &[Call]) {
    let exceptions: Vec<&str> = calls.iter().filter_map(Call::exception).collect();
    assert_eq!(exceptions, ["Oops", "NO_PERMISSION"], "{calls:?}");
    let fails: Vec<&Call> = calls.iter().filter(|call| call.command == "fail").collect();
    assert!(!fails[0].field("why").unwrap().is_empty(), "{calls:?}");
    assert_eq!((fails[1].field("minor"), fails[1].field("completed")), (Some("0x7"), Some("NO")));
}

#[test]
fn each_call_goes_to_a_member_of_its_own() {
    let members = OrbMember::several(3, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    let calls = Orb::Omni.calls(&group.ior, "who who who who who who");
    let seen: BTreeSet<&str> = calls.iter().map(Call::who).collect();
    assert_eq!(seen, BTreeSet::from(["m0", "m1", "m2"]), "{calls:?}");
}

#[test]
fn every_orb_is_carried_to_every_other() {
    let members: Vec<OrbMember> =
        Orb::here().into_iter().map(|orb| OrbMember::start(orb, "any", &[])).collect();
    let group = OrbGroup::start("per_request", &members, "");
    for orb in Orb::here() {
        for _ in 0..members.len() {
            right(&orb.calls(&group.ior, ALL));
        }
    }
}

#[test]
fn wide_strings_go_to_members_that_have_not_heard_of_their_code_set() {
    let members = OrbMember::several(3, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    for orb in Orb::here() {
        // The client names its code set once on its connection; the balancer must name it to each member.
        orb.calls(&group.ior, "wide wide wide wide who wide wide wide wide");
    }
}

#[test]
fn large_bodies_go_both_ways() {
    let members: Vec<OrbMember> =
        Orb::here().into_iter().map(|orb| OrbMember::start(orb, "any", &[])).collect();
    let group = OrbGroup::start("per_request", &members, "");
    for orb in Orb::here() {
        let each = "blob 5000000 ".repeat(members.len());
        orb.calls(&group.ior, &each);
    }
}

#[test]
fn large_bodies_of_old_clients_do_too() {
    // GIOP 1.1 has fragments without a number, which JacORB does not support.
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    for version in ["1.0", "1.1"] {
        let each = "blob 5000000 blob 8300 blob 8192 ".repeat(members.len() + 1);
        Orb::Omni.calls(&group.ior, &format!("{each} -ORBmaxGIOPVersion {version}"));
    }
}

#[test]
fn a_double_of_an_old_client_keeps_its_place() {
    let members: Vec<OrbMember> = (0..4)
        .map(|extra| OrbMember::start(Orb::Omni, "any", &["--key", &"key-of-a-length"[..8 + extra]]))
        .collect();
    let group = OrbGroup::start("per_request", &members, "");
    for version in ["1.0", "1.1", "1.2"] {
        let each = "half 3.5 call 1 7 echo 1 fail user fail system blob 100 ".repeat(members.len());
        Orb::Omni.calls(&group.ior, &format!("{each} -ORBmaxGIOPVersion {version}"));
    }
    for orb in Orb::here() {
        orb.calls(&group.corbaloc(), &"half 3.5 ".repeat(members.len()));
    }
}

#[test]
fn many_clients_are_not_mixed_up() {
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    let mut clients: Vec<OrbClient> = (0..8)
        .map(|_| OrbClient::start(Orb::Omni, &group.ior, "call 200 echo 300 blob 9000 --threads 4"))
        .collect();
    clients.extend(
        Orb::java().iter().map(|orb| OrbClient::start(*orb, &group.ior, "call 200 echo 300 --threads 4")),
    );
    for client in &mut clients {
        assert_eq!(client.end(), Some(0), "{}", client.process);
    }
}

#[test]
fn a_oneway_comes_once() {
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    let mut sent = 0;
    for orb in Orb::here() {
        orb.calls(&group.ior, "note 20 who");
        sent += 20;
        assert_eq!(notes(&members, sent), sent, "{orb:?}");
    }
}

#[test]
fn a_call_is_not_made_twice() {
    let mut members = OrbMember::several(2, &["--sleep", "300000"]);
    let group = OrbGroup::start("per_request", &members[..1], "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 1");
    let seen = client.until("an answer", 0, |call| call.who() == "m0");
    // sleeps: the member dies in the next call, nearly always; the other test covers a death between two
    // calls
    std::thread::sleep(std::time::Duration::from_millis(100));
    members[0].process.kill();
    let seen = client.until("an exception", seen, |call| call.exception().is_some());
    let call = &client.calls()[seen - 1];
    assert!(
        matches!(
            (call.exception().unwrap(), call.field("completed").unwrap()),
            ("COMM_FAILURE", "MAYBE") | ("TRANSIENT", "NO")
        ),
        "{}",
        client.process
    );
}

#[test]
fn a_member_that_is_killed_between_calls_is_not_missed() {
    let mut members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 200");
    client.until("an answer of each", 2, |_| true);
    members[0].process.kill();
    let seen = client.calls().len();
    client.until("many more calls", seen + 10, |_| true);
    let calls = client.calls();
    assert!(calls[seen + 1..].iter().all(|call| call.who() == "m1"), "{}", client.process);
    let exceptions = calls.iter().filter(|call| call.exception().is_some()).count();
    // A call that was in flight at the member when it died cannot be made again.
    assert!(exceptions <= 1, "{}", client.process);
}

#[test]
fn members_that_close_idle_connections_are_not_missed() {
    let members = OrbMember::several(2, &["-ORBscanGranularity", "1", "-ORBinConScanPeriod", "1"]);
    let group = OrbGroup::start("per_request", &members, "");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 1500");
    client.until("eight calls", 7, |_| true);
    assert!(client.calls().iter().all(|call| call.exception().is_none()), "{}", client.process);
}

#[test]
fn what_there_is_not_is_said_so() {
    let mut members = OrbMember::several(1, &[]);
    let group = OrbGroup::start("per_request", &members, "");
    let said = |reference: &str, options: &str| {
        let mut client = OrbClient::start(Orb::Omni, reference, &format!("who {options}"));
        assert_eq!(client.end(), Some(1), "{}", client.process);
        let call = client.calls().remove(0);
        (call.exception().unwrap().to_owned(), call.field("completed").unwrap().to_owned())
    };
    let unknown = format!("corbaloc:iiop:1.2@{}/Nothing", group.address);
    assert_eq!(said(&unknown, ""), ("OBJECT_NOT_EXIST".to_owned(), "NO".to_owned()));
    members[0].process.kill();
    assert_eq!(said(&group.ior, ""), ("TRANSIENT".to_owned(), "NO".to_owned()));
}

#[test]
fn a_forward_for_good_is_one_for_now() {
    let folder = Folder::new();
    let away = folder.join("away");
    let members = OrbMember::several(2, &["--away", &away.display().to_string()]);
    let mut elsewhere = OrbMember::start(Orb::Omni, "elsewhere", &[]);
    let group = OrbGroup::start("per_request", &members, "");
    std::fs::write(&away, &elsewhere.ior).unwrap();
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 50");
    let seen = client.until("an answer from where it was sent", 0, |call| call.who() == "elsewhere");
    // A client that took the forward as permanent would have nowhere to go back to.
    std::fs::remove_file(&away).unwrap();
    elsewhere.process.kill();
    client.until("an answer of the group", seen, |call| call.who() == "m0");
    client.until("and of its other member", seen, |call| call.who() == "m1");
}
