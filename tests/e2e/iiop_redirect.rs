//! Clients on real ORBs are bound by the balancer's forward. Each is bound for a session, its first call
//! included, whatever the call and the version of the protocol.

use std::collections::BTreeMap;

use crate::stage::{Call, Folder, Orb, OrbClient, OrbGroup, OrbMember, notes, shown};

const ALL: &str = "who call 20 echo 5 wide half 3.5 blob 200000 fail user fail system is_a locate";

#[track_caller]
fn right(calls: &[Call]) {
    let exceptions: Vec<&str> = calls.iter().filter_map(Call::exception).collect();
    assert_eq!(exceptions, ["Oops", "NO_PERMISSION"], "{calls:?}");
}

#[test]
fn clients_are_shared_and_stay() {
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..6 {
        let calls = Orb::Omni.calls(&group.ior, "who who who who");
        assert!(calls.iter().all(|call| call.who() == calls[0].who()), "{calls:?}");
        *shares.entry(calls[0].who().to_owned()).or_default() += 1;
    }
    assert_eq!(shares, BTreeMap::from([("m0".to_owned(), 3), ("m1".to_owned(), 3)]));
}

#[test]
fn every_orb_is_forwarded_to_every_other() {
    let members: Vec<OrbMember> =
        Orb::here().into_iter().map(|orb| OrbMember::start(orb, "any", &[])).collect();
    let group = OrbGroup::start("per_session", &members, "");
    for orb in Orb::here() {
        // The group takes turns: each ORB gets to each member.
        for _ in 0..members.len() {
            right(&orb.calls(&group.ior, ALL));
        }
    }
}

#[test]
fn old_clients_are_forwarded() {
    let members = OrbMember::several(2, &["--key", "Another/key"]);
    let group = OrbGroup::start("per_session", &members, "");
    const OLD: &str = "who call 20 echo 5 half 3.5 blob 9000 fail user fail system";
    for version in ["1.0", "1.1", "1.2"] {
        for verify in ["0", "1"] {
            let options = format!("-ORBmaxGIOPVersion {version} -ORBverifyObjectExistsAndType {verify}");
            right(&Orb::Omni.calls(&group.ior, &format!("{OLD} {options}")));
        }
    }
    for orb in Orb::here() {
        right(&orb.calls(&group.corbaloc(), OLD));
        assert_eq!(orb.calls(&group.corbaloc(), "is_a")[0].exception(), None);
    }
}

#[test]
fn a_oneway_first_is_not_lost() {
    let members = OrbMember::several(2, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let mut sent = 0;
    for orb in Orb::here() {
        let verify = if orb == Orb::Omni { "-ORBverifyObjectExistsAndType 0" } else { "" };
        // The oneway is not the last command: an ORB that ends at once may never have sent it.
        orb.calls(&group.ior, &format!("note 5 who {verify}"));
        sent += 5;
        assert_eq!(notes(&members, sent), sent, "{orb:?}");
    }
}

#[test]
fn what_there_is_not_is_said_so() {
    let mut members = OrbMember::several(1, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    let said = |reference: &str, options: &str| {
        let mut client = OrbClient::start(Orb::Omni, reference, &format!("who {options}"));
        assert_eq!(client.end(), Some(1), "{}", client.process);
        let call = client.calls().remove(0);
        (call.exception().unwrap().to_owned(), call.field("completed").unwrap().to_owned())
    };
    for options in ["", "-ORBverifyObjectExistsAndType 0", "-ORBmaxGIOPVersion 1.0"] {
        let unknown = format!("corbaloc:iiop:1.2@{}/Nothing", group.address);
        assert_eq!(said(&unknown, options), ("OBJECT_NOT_EXIST".to_owned(), "NO".to_owned()));
    }
    members[0].process.kill();
    for options in ["", "-ORBverifyObjectExistsAndType 0", "-ORBmaxGIOPVersion 1.0"] {
        assert_eq!(said(&group.ior, options), ("TRANSIENT".to_owned(), "NO".to_owned()));
    }
}

#[test]
fn the_reference_is_shown_written_and_kept() {
    let members = OrbMember::several(1, &[]);
    let group = OrbGroup::start("per_session", &members, "");
    assert_eq!(group.folder().read("group.ior").trim(), group.ior);
    assert!(group.ior.starts_with("IOR:"), "{}", group.ior);
    let corbaloc = shown(&group, "corbaloc");
    assert!(corbaloc.starts_with("corbaloc:") && corbaloc.ends_with("/web"), "{corbaloc}");
    assert_eq!(Orb::Omni.calls(&corbaloc, "who")[0].who(), "m0");
    let json: serde_json::Value = serde_json::from_str(&shown(&group, "json")).unwrap();
    assert!(json.to_string().contains("IDL:Test/Latency:1.0"), "the type is its first member's: {json}");
    let before = group.ior.clone();
    let group = group.restart();
    assert_eq!(group.ior, before);
    assert_eq!(Orb::Omni.calls(&before, "who")[0].who(), "m0");
}

#[test]
fn members_are_given_in_four_ways() {
    let members = OrbMember::several(4, &["--key", "Prime"]);
    let folder = Folder::new();
    let file = folder.write("m2.ior", format!("{}\n", members[2].ior));
    let entries = [
        format!("{{ ior = \"{}\" }}", members[0].ior),
        format!("{{ ior = \"corbaloc:iiop:1.2@{}/Prime\" }}", members[1].address),
        format!("{{ ior = \"file:{}\" }}", file.display()),
        format!("{{ address = \"{}\", key = \"Prime\" }}", members[3].address),
    ];
    let group = OrbGroup::in_folder(folder, "per_session", &entries, "");
    let mut seen: Vec<String> =
        (0..4).map(|_| Orb::Omni.calls(&group.ior, "who")[0].who().to_owned()).collect();
    seen.sort();
    assert_eq!(seen, ["m0", "m1", "m2", "m3"]);
}
