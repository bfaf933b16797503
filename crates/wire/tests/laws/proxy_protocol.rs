//! A PROXY protocol header: the same in whatever pieces it arrives, never longer than its limit. Its
//! addresses survive both versions.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use plimsoll_wire::proxy_protocol::{
    MAX_V1, MAX_V2, ProxyAddresses, ProxyHeader, ProxyHeaderError, ProxyVersion, parse, write,
};

use super::fields::show;
use super::{Verdict, cuts};

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(MAX_V2 + 64)];
    let whole = parse(input);
    for cut in cuts(input) {
        match parse(&input[..cut]) {
            Ok(None) => {}
            early => assert_eq!(early, whole, "said after {cut} bytes of {}", show(input)),
        }
    }
    // All addresses can be written, and the bytes after a header have no influence.
    survives(&invented(input), input);
    match whole {
        Ok(None) => {
            let most = if input.starts_with(b"PROXY ") { MAX_V1 } else { MAX_V2 };
            assert!(input.len() < most, "waits for more of {}", show(input));
            Verdict::Partial
        }
        Err(ProxyHeaderError(_)) => Verdict::Refused,
        Ok(Some(ProxyHeader { len, addresses })) => {
            assert!(len <= input.len(), "{}", show(input));
            assert_eq!(parse(&input[..len]), whole, "what follows matters: {}", show(input));
            if input.starts_with(b"P") {
                assert!(len <= MAX_V1 && input[..len].ends_with(b"\r\n"), "{}", show(input));
            }
            if let Some(addresses) = addresses {
                survives(&addresses, b"");
            }
            Verdict::Accepted
        }
    }
}

/// The addresses survive writing and parsing.
fn survives(addresses: &ProxyAddresses, after: &[u8]) {
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let mut out = Vec::new();
        write(version, Some(addresses), &mut out);
        let len = out.len();
        out.extend_from_slice(after);
        let read = parse(&out);
        let Ok(Some(ProxyHeader { len: found, addresses: Some(again) })) = read else {
            panic!("{addresses:?} was written as {} and read as {read:?}", show(&out[..len]));
        };
        assert_eq!(found, len);
        for (again, first) in [(again.source, addresses.source), (again.destination, addresses.destination)] {
            let same = (again.ip().to_canonical(), again.port()) == (first.ip().to_canonical(), first.port());
            assert!(same, "{first} became {again}");
        }
    }
}

/// Builds addresses from any bytes.
fn invented(input: &[u8]) -> ProxyAddresses {
    let mut bytes = [0; 37];
    let len = input.len().min(bytes.len());
    bytes[..len].copy_from_slice(&input[..len]);
    let address = |bytes: &[u8], v4: bool| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[..16]);
        let ip = match v4 {
            true => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
            false => IpAddr::V6(Ipv6Addr::from(octets)),
        };
        SocketAddr::new(ip, u16::from_be_bytes([bytes[16], bytes[17]]))
    };
    let kind = bytes[36];
    ProxyAddresses {
        source: address(&bytes[..18], kind & 1 == 0),
        destination: address(&bytes[18..], kind & 2 == 0),
    }
}
