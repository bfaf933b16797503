//! The object reference of a group, which its clients hold.
//!
//! It derives from the configuration only, so that it survives restarts. It contains a type, because some
//! clients take a reference without one for nil when they are forwarded to it. It contains code sets, because
//! without them a client does not even try to send a wide string.

use std::net::SocketAddr;

use plimsoll_wire::giop::{ByteOrder, CodeSet, CodeSets, GiopVersion, IiopProfile, Ior};

use crate::{IiopSettings, ListenerSettings};

/// Returns the reference by which clients reach the group through these listeners, each with its bound
/// address.
pub(crate) fn reference<'l>(
    iiop: &IiopSettings,
    listeners: impl Iterator<Item = (&'l ListenerSettings, SocketAddr)>,
) -> Ior {
    let components = vec![code_sets(iiop).component(ByteOrder::NATIVE)];
    let profile = |(listener, address): (&ListenerSettings, SocketAddr)| {
        let (host, port) = match &listener.public {
            Some((host, port)) => (host.to_string(), *port),
            None if address.ip().is_unspecified() => (host_name(), address.port()),
            None => (address.ip().to_string(), address.port()),
        };
        let key = iiop.key.clone().unwrap_or_default();
        IiopProfile { version: GiopVersion::V1_2, host, port, key, components: components.clone() }
            .to_tagged(ByteOrder::NATIVE)
    };
    Ior { type_id: iiop.type_id.clone(), profiles: listeners.map(profile).collect() }
}

/// Returns this machine's name.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the code sets that are common to all members that state some.
fn code_sets(iiop: &IiopSettings) -> CodeSets {
    let advertised = iiop.objects.values().filter_map(|object| object.ior().first_iiop_profile());
    let advertised: Vec<CodeSets> = advertised
        .filter_map(|profile| profile.components.iter().find_map(|component| component.code_sets()))
        .collect();
    let common = CodeSets::common_sets();
    CodeSets {
        char: shared_code_set(advertised.iter().map(|sets| &sets.char), common.char),
        wchar: shared_code_set(advertised.iter().map(|sets| &sets.wchar), common.wchar),
    }
}

/// Returns the first server's native code set if all support it, and all others that all support. Returns
/// `otherwise` if none states any, or they have nothing in common.
fn shared_code_set<'s>(mut sets: impl Iterator<Item = &'s CodeSet>, fallback: CodeSet) -> CodeSet {
    let Some(first) = sets.next() else { return fallback };
    let mut common: Vec<u32> =
        std::iter::once(first.native).chain(first.conversions.iter().copied()).collect();
    for set in sets {
        common.retain(|id| set.native == *id || set.conversions.contains(id));
    }
    // 0 means none: such a server accepts no wide strings.
    common.retain(|id| *id != 0);
    let mut common = common.into_iter();
    match common.next() {
        Some(native) => CodeSet { native, conversions: common.collect() },
        None => fallback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_sets_are_those_that_all_members_know() {
        let set = |native, conversions: &[u32]| CodeSet { native, conversions: conversions.to_vec() };
        let (omni, jac) = (set(1, &[2]), set(2, &[1, 3]));
        assert_eq!(shared_code_set([&omni, &jac].into_iter(), set(9, &[])), set(1, &[2]));
        assert_eq!(shared_code_set([&jac, &omni].into_iter(), set(9, &[])), set(2, &[1]));
        assert_eq!(shared_code_set([&omni, &set(7, &[])].into_iter(), set(9, &[])), set(9, &[]));
        assert_eq!(shared_code_set([&set(0, &[]), &omni].into_iter(), set(9, &[])), set(9, &[]));
        assert_eq!(shared_code_set(std::iter::empty(), set(9, &[])), set(9, &[]));
    }
}
