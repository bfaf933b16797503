//! Leases of members: their number, and their end.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use plimsoll_brain::EventKind;
use plimsoll_proxy::{Engine, GroupSettings, LeaseError, LeaseRequest, Protocol, Settings};

use crate::rig::{HOUR, MINUTE, group, listener, settings, start_with};

fn at(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], u16::from(last)))
}

fn named(name: &str, member: SocketAddr) -> GroupSettings {
    let mut group = group(&[member]);
    group.spec.name = name.into();
    group
}

fn with(groups: Vec<GroupSettings>) -> Settings {
    let groups = groups.into_iter().map(Into::into).collect();
    Settings { groups, ..settings(listener(Protocol::Http), group(&[at(1)])) }
}

/// Returns a request with a duration so long that the lease does not expire.
fn wish(from: [u8; 4]) -> LeaseRequest {
    LeaseRequest { span: Some(HOUR), ..usual(from) }
}

fn usual(from: [u8; 4]) -> LeaseRequest {
    LeaseRequest { from: Some(IpAddr::from(from)), ..LeaseRequest::default() }
}

/// Returns the number of leases of a group that clients at an address get, at most `most`.
fn taken(engine: &Engine, group: &str, from: [u8; 4], most: usize) -> usize {
    (0..most).take_while(|_| engine.bind(group, &wish(from)).is_ok()).count()
}

#[test]
fn one_source_leaves_room_for_others_and_one_group_too() {
    let begun = Instant::now();
    let (engine, _) = start_with(with(vec![named("g", at(1)), named("h", at(2))]));
    assert_eq!(taken(&engine, "g", [10, 0, 0, 1], 5000), 4096);
    let refused = engine.bind("g", &wish([10, 0, 0, 1])).unwrap_err();
    let LeaseError::Refused(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("clients at 10.0.0.1 have 4096 leases"), "{why}");
    assert!(engine.bind("h", &wish([10, 0, 0, 1])).is_err(), "wherever they are");
    // Others get as many, up to the group's limit.
    for source in 2..=8 {
        assert_eq!(taken(&engine, "g", [10, 0, 0, source], 5000), 4096);
    }
    assert_eq!(taken(&engine, "g", [10, 0, 0, 9], 1), 0);
    assert_eq!(taken(&engine, "h", [10, 0, 0, 9], 1), 1);
    assert_eq!(engine.bind("h", &usual([10, 0, 0, 9])).unwrap().span, MINUTE);
    let floods = engine.events().into_iter().filter(|told| told.event.kind == EventKind::Flooded);
    let floods: Vec<String> = floods.map(|told| told.event.why).collect();
    assert_eq!(floods[0], "a lease was refused: clients at 10.0.0.1 have 4096 leases");
    // bound: one in ten seconds, for the elapsed time
    assert!(floods.len() <= 1 + begun.elapsed().as_secs() as usize / 10, "not one each: {floods:?}");
    // Ended leases make room.
    let lessees = engine.leases("g").unwrap();
    assert_eq!(lessees.iter().map(|one| one.leases).sum::<usize>(), 8 * 4096);
    // bound: the elapsed time
    assert!(lessees.iter().all(|one| one.remaining <= HOUR && one.remaining + begun.elapsed() >= HOUR));
    assert_eq!(engine.end_leases("g", None, Some([10, 0, 0, 1].into())), Ok(4096));
    assert_eq!(taken(&engine, "g", [10, 0, 0, 1], 10), 10);
    assert!(matches!(engine.leases("x"), Err(LeaseError::Unknown(_))));
}

#[test]
fn leases_of_a_group_that_is_gone_end() {
    let both = || vec![named("g", at(1)), named("h", at(2))];
    let (engine, _) = start_with(with(both()));
    assert_eq!(taken(&engine, "h", [10, 0, 0, 1], 5000), 4096);
    assert_eq!(taken(&engine, "g", [10, 0, 0, 1], 1), 0);
    let kept = engine.bind("g", &wish([10, 0, 0, 2])).unwrap();
    engine.reload(with(vec![named("g", at(1))]), Vec::new()).unwrap();
    assert_eq!(taken(&engine, "g", [10, 0, 0, 1], 5000), 4096, "they count no more");
    // Neither are those of a group that has its name afterwards.
    engine.reload(with(both()), Vec::new()).unwrap();
    assert_eq!(engine.leases("h").unwrap(), []);
    let again = LeaseRequest { span: Some(Duration::from_secs(9)), ..LeaseRequest::default() };
    assert_eq!(engine.renew_lease("g", &kept.id, &again).unwrap().address, at(1));
}
