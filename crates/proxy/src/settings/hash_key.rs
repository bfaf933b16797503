//! The key of a client, for strategies that assign keys to members.

use std::net::IpAddr;

/// Returns the key of a client address: the same for IPv4 and for IPv4 mapped into IPv6.
pub(crate) fn client_key(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(address) => plimsoll_brain::hash(&address.octets()),
        IpAddr::V6(address) => plimsoll_brain::hash(&address.octets()),
    }
}
