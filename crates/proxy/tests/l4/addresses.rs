//! Members with a host name: several addresses, another one, and none.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::{HealthSpec, MemberState};
use plimsoll_proxy::{GroupSettings, MemberAddresses, NO_ADDRESS, ProbeKind, ProbeSettings, Protocol};
use tokio::net::TcpStream;

use crate::rig::{
    Echo, MILLI, MINUTE, echoes, group, listener, nobody, settings, start, status, until, within,
};

/// Returns a group with one member, which has these addresses.
fn named(addresses: Option<MemberAddresses>) -> (GroupSettings, Option<Arc<MemberAddresses>>) {
    let addresses = addresses.map(Arc::new);
    let mut group = group(&[addresses.as_ref().map_or(NO_ADDRESS, |addresses| addresses.best())]);
    group.spec.members[0].name = "web.example:80".into();
    let several = addresses.iter().map(|addresses| ("web.example:80".into(), Arc::clone(addresses)));
    group.addresses = several.collect();
    (group, addresses)
}

fn checked(group: GroupSettings) -> GroupSettings {
    let mut group = group;
    group.spec.health = Some(HealthSpec { rise: 1, fall: 1 });
    group.probe = Some(ProbeSettings { kind: ProbeKind::Tcp, interval: 20 * MILLI, timeout: MINUTE });
    group
}

#[tokio::test]
async fn the_next_address_of_a_name_is_tried() {
    within(async {
        let ((_refuses, first), second) = (nobody(), Echo::start().await);
        let addresses = MemberAddresses::new(&[first, second.address], None);
        let (group, addresses) = named(addresses);
        let (engine, address) = start(listener(Protocol::Tcp), group);
        echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await;
        assert_eq!(addresses.unwrap().best(), second.address, "it is the first to be tried now");
        assert_eq!(status(&engine).members[0].state, MemberState::Up);
    })
    .await;
}

#[tokio::test]
async fn a_check_finds_the_address_that_works() {
    within(async {
        let ((_refuses, first), second) = (nobody(), Echo::start().await);
        let (group, addresses) = named(MemberAddresses::new(&[first, second.address], None));
        let (engine, _) = start(listener(Protocol::Tcp), checked(group));
        until("the member is up", || status(&engine).members[0].state == MemberState::Up).await;
        assert_eq!(addresses.unwrap().best(), second.address);
    })
    .await;
}

#[tokio::test]
async fn an_address_that_was_checked_stays_until_another_one_passes() {
    within(async {
        let ((refuses, fresh), old) = (nobody(), Echo::start().await);
        let (group, addresses) = named(MemberAddresses::new(&[fresh], Some(old.address)));
        let addresses = addresses.unwrap();
        let (engine, address) = start(listener(Protocol::Tcp), checked(group));
        until("the member is up", || status(&engine).members[0].state == MemberState::Up).await;
        echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await;
        assert_eq!(addresses.best(), old.address);
        // A server listens there from now on.
        let _listening = refuses.listen(8).unwrap();
        until("the new address is used", || addresses.best() == fresh).await;
    })
    .await;
}

#[tokio::test]
async fn a_member_whose_name_has_no_address_is_down_and_comes_with_one() {
    within(async {
        let echo = Echo::start().await;
        for check in [false, true] {
            let with = |group: GroupSettings| if check { checked(group) } else { group };
            let (group, _) = named(None);
            let (engine, _) = start(listener(Protocol::Tcp), with(group));
            let member = status(&engine).members.remove(0);
            assert_eq!((member.state, &*member.why), (MemberState::Down, "its name has no address"));
            let mut after = settings(listener(Protocol::Tcp), with(placed(echo.address)));
            after.listeners.clear();
            engine.apply_discovered(after).unwrap();
            until("the member is up", || status(&engine).members[0].state == MemberState::Up).await;
        }
    })
    .await;
}

/// Returns the same member at an address.
fn placed(address: SocketAddr) -> GroupSettings {
    let (mut group, _) = named(None);
    group.spec.members[0].address = address;
    group
}
