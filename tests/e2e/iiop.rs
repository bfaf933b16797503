//! The rig of the CORBA tests without a balancer: real ORBs, all with one another, directly. Failures here
//! are not the balancer's.

use rustix::process::Signal;

use crate::stage::{Orb, OrbClient, OrbMember, listens, until};

const ALL: &str =
    "who call 50 echo 20 wide half 3.5 blob 0 blob 5000000 fail user fail system is_a locate note 7";

#[test]
fn every_orb_calls_every_other() {
    let members: Vec<OrbMember> =
        Orb::here().into_iter().map(|orb| OrbMember::start(orb, "direct", &[])).collect();
    for member in &members {
        for (at, orb) in Orb::here().into_iter().enumerate() {
            // Oneways of this client and the earlier ones.
            let notes = (7 * (at + 1)).to_string();
            let calls = orb.calls(&member.ior, &format!("{ALL} noted {notes}"));
            let said = |command: &str, field: &str| -> Vec<String> {
                let of_it = calls.iter().filter(|call| call.command == command);
                of_it.map(|call| call.field(field).unwrap_or_default().to_owned()).collect()
            };
            assert_eq!(calls.len(), 13, "{calls:?}");
            assert_eq!(said("who", "who"), ["direct"]);
            assert_eq!(said("half", "value"), ["1.75"]);
            assert_eq!(said("blob", "bytes"), ["0", "5000000"]);
            assert_eq!(said("fail", "exception"), ["Oops", "NO_PERMISSION"]);
            assert_eq!(said("fail", "why"), ["direct", ""]);
            assert_eq!(said("fail", "completed"), ["", "NO"]);
            assert_eq!(said("noted", "noted"), [notes]);
        }
    }
}

#[test]
fn a_server_is_back_where_it_was() {
    let mut member = OrbMember::start(Orb::Omni, "before", &["--key", "Prime/1"]);
    let ior = member.ior.clone();
    let named = format!("corbaloc::{}/Prime/1", member.address);
    assert_eq!(Orb::Omni.calls(&named, "who")[0].who(), "before");
    let client = OrbClient::start(Orb::Omni, &ior, "loop 600 --interval 20");
    let seen = client.until("an answer", 0, |call| call.who() == "before");
    member.process.kill();
    until("its port is closed", || !listens(member.address));
    member.restart("after", &["--key", "Prime/1"]);
    assert_eq!(member.ior, ior);
    client.until("an answer of the new one", seen, |call| call.who() == "after");
    assert_eq!(Orb::Omni.calls(&named, "who")[0].who(), "after");
}

#[test]
fn a_server_on_omniorb_sheds() {
    let group = OrbMember::start(Orb::Omni, "group", &[]);
    let member = OrbMember::start(Orb::Omni, "member", &["--group", &group.ior]);
    member.process.line("group known");
    for (at, orb) in Orb::here().into_iter().enumerate() {
        let client = OrbClient::start(orb, &member.ior, "loop 600 --interval 20");
        let seen = client.until("an answer", 0, |call| call.who() == "member");
        member.process.signal(Signal::USR1);
        client.until("an answer of the group", seen, |call| call.who() == "group");
        assert!(client.calls().iter().all(|call| call.exception().is_none()), "{}", client.process);
        // A oneway cannot be redirected: it is performed here.
        Orb::Omni.calls(&member.ior, "note 2 -ORBverifyObjectExistsAndType 0");
        member.process.signal(Signal::USR2);
        until("the alert is over", || Orb::Omni.calls(&member.ior, "who")[0].who() == "member");
        let notes = (2 * (at + 1)).to_string();
        let noted = Orb::Omni.calls(&member.ior, &format!("noted {notes}"));
        assert_eq!(noted[0].field("noted"), Some(notes.as_str()));
    }
}

#[test]
fn the_alert_of_a_server_on_omniorb_is_an_object() {
    let group = OrbMember::start(Orb::Omni, "group", &[]);
    let member = OrbMember::start(Orb::Omni, "member", &["--group", &group.ior]);
    member.process.line("group known");
    let alert = format!("corbaloc:iiop:1.2@{}/Alert", member.address);
    let who = || Orb::Omni.calls(&member.ior, "who")[0].who().to_owned();
    assert_eq!(who(), "member");
    Orb::Omni.calls(&alert, "alert on");
    assert_eq!(who(), "group");
    Orb::Omni.calls(&alert, "alert off");
    assert_eq!(who(), "member");
}

#[test]
fn a_share_of_the_clients_goes_once() {
    let group = OrbMember::start(Orb::Omni, "group", &[]);
    let member = OrbMember::start(Orb::Omni, "member", &["--group", &group.ior, "--share", "0.5"]);
    member.process.line("group known");
    // By chance none, or all, go away once in two million times.
    const CLIENTS: usize = 22;
    let clients: Vec<OrbClient> =
        (0..CLIENTS).map(|_| OrbClient::start(Orb::Omni, &member.ior, "loop 600 --interval 20")).collect();
    let stayed = |seen: &[usize]| {
        let more = clients.iter().zip(seen);
        // One call may have been in transit.
        more.filter(|(client, seen)| {
            client.until("two more calls", **seen + 1, |_| true);
            client.calls()[**seen + 1].who() == "member"
        })
        .count()
    };
    let calls = || clients.iter().map(|client| client.calls().len()).collect::<Vec<_>>();
    assert_eq!(stayed(&[0; CLIENTS]), CLIENTS);
    member.process.signal(Signal::USR1);
    member.process.line("alert");
    let first = stayed(&calls());
    assert!((1..CLIENTS).contains(&first), "{first} of {CLIENTS} stayed");
    assert_eq!(stayed(&calls()), first, "each was asked once");
    // A client that arrives during the alert was sent here in spite of it.
    let late = OrbClient::start(Orb::Omni, &member.ior, "loop 600 --interval 20");
    late.until("many calls", 10, |_| true);
    assert!(late.calls().iter().all(|call| call.who() == "member"), "{}", late.process);
}
