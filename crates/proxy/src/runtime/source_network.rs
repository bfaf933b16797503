//! The network of an address, which counts as one source.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns an address with all but its first bits cleared: `four` bits of IPv4, also if that is mapped into
/// IPv6, and `six` bits of IPv6.
pub(crate) fn network(address: IpAddr, ipv4_prefix: u32, ipv6_prefix: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let host_mask = u32::MAX.checked_shr(ipv4_prefix).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & !host_mask).into()
        }
        IpAddr::V6(address) => {
            let host_mask = u128::MAX.checked_shr(ipv6_prefix).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & !host_mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bits_stay() {
        for (address, ipv4_prefix, ipv6_prefix, expected) in [
            ("192.0.2.77", 32, 64, "192.0.2.77"),
            ("192.0.2.77", 24, 56, "192.0.2.0"),
            ("192.0.2.77", 0, 0, "0.0.0.0"),
            ("::ffff:192.0.2.77", 24, 56, "192.0.2.0"),
            ("2001:db8:1:2345:6::7", 32, 64, "2001:db8:1:2345::"),
            ("2001:db8:1:2345:6::7", 24, 56, "2001:db8:1:2300::"),
            ("2001:db8::7", 24, 128, "2001:db8::7"),
        ] {
            assert_eq!(
                network(address.parse().unwrap(), ipv4_prefix, ipv6_prefix),
                expected.parse::<IpAddr>().unwrap()
            );
        }
    }
}
