use proptest::prelude::*;

use super::*;

const V2: &str = "\r\n\r\n\0\r\nQUIT\n";

fn pair(source: &str, destination: &str) -> ProxyAddresses {
    ProxyAddresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

fn written(version: ProxyVersion, addresses: Option<&ProxyAddresses>) -> Vec<u8> {
    let mut out = Vec::new();
    write(version, addresses, &mut out);
    out
}

fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let mut bytes = V2.as_bytes().to_vec();
    bytes.extend_from_slice(&[command, family]);
    bytes.extend_from_slice(&(block.len() as u16).to_be_bytes());
    bytes.extend_from_slice(block);
    bytes
}

/// Parses the whole header with any bytes after it, and checks that each prefix is incomplete.
fn read_at_every_cut(bytes: &[u8]) -> Option<ProxyAddresses> {
    for cut in 0..bytes.len() {
        assert_eq!(parse(&bytes[..cut]), Ok(None), "the first {cut} bytes of {bytes:?}");
    }
    let header = parse(bytes).unwrap().unwrap();
    assert_eq!(header.len, bytes.len());
    for suffix in [&b"G"[..], b"\r\n", b"PROXY "] {
        assert_eq!(parse(&[bytes, suffix].concat()), Ok(Some(header)));
    }
    header.addresses
}

#[test]
fn golden_bytes() {
    let v4 = pair("192.0.2.1:4660", "198.51.100.7:443");
    let v6 = pair("[2001:db8::1]:65535", "[2001:db8::2]:1");
    let mixed = pair("192.0.2.1:1", "[2001:db8::2]:2");
    let disguised = pair("[::ffff:192.0.2.1]:4660", "198.51.100.7:443");
    let line = |addresses| String::from_utf8(written(ProxyVersion::V1, addresses)).unwrap();
    assert_eq!(line(Some(&v4)), "PROXY TCP4 192.0.2.1 198.51.100.7 4660 443\r\n");
    assert_eq!(line(Some(&disguised)), "PROXY TCP4 192.0.2.1 198.51.100.7 4660 443\r\n");
    assert_eq!(line(Some(&v6)), "PROXY TCP6 2001:db8::1 2001:db8::2 65535 1\r\n");
    assert_eq!(line(Some(&mixed)), "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n");
    assert_eq!(line(None), "PROXY UNKNOWN\r\n");
    let block = [192, 0, 2, 1, 198, 51, 100, 7, 0x12, 0x34, 0x01, 0xbb];
    assert_eq!(written(ProxyVersion::V2, Some(&v4)), v2(0x21, 0x11, &block));
    let mut block = Vec::new();
    block.extend_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    block.extend_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    block.extend_from_slice(&[0xff, 0xff, 0, 1]);
    assert_eq!(written(ProxyVersion::V2, Some(&v6)), v2(0x21, 0x21, &block));
    assert_eq!(written(ProxyVersion::V2, None), v2(0x20, 0, &[]));
}

#[test]
fn headers_without_addresses() {
    for bytes in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff:f...f:ffff whatever else\r\n".to_vec(),
        v2(0x20, 0x00, &[]),
        // A health check of the sender's own: family and addresses have no meaning.
        v2(0x20, 0x11, &[1; 12]),
        v2(0x20, 0x77, &[1; 3]),
        v2(0x21, 0x00, &[]),
        v2(0x21, 0x00, &[9; 40]),
        v2(0x21, 0x31, &[0; 216]),
        v2(0x21, 0x32, &[0; 220]),
    ] {
        assert_eq!(read_at_every_cut(&bytes), None, "{bytes:?}");
    }
}

#[test]
fn extensions_are_skipped() {
    let mut block = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 1, 187];
    block.extend_from_slice(&[0x04, 0, 4, 0, 0, 0, 0, 0x03, 0, 4, 1, 2, 3, 4]);
    assert_eq!(read_at_every_cut(&v2(0x21, 0x11, &block)), Some(pair("10.0.0.1:80", "10.0.0.2:443")));
    block.resize(MAX_V2 - V2_HEADER_LEN, 0);
    assert!(read_at_every_cut(&v2(0x21, 0x12, &block)).is_some());
}

#[test]
fn the_longest_line_is_accepted_and_no_longer_one() {
    let line = |len: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(len - 16));
    assert_eq!(read_at_every_cut(line(MAX_V1).as_bytes()), None);
    assert_eq!(parse(line(MAX_V1 + 1).as_bytes()), Err(ProxyHeaderError("the line does not end in CRLF")));
    assert_eq!(parse(&line(MAX_V1 + 9).as_bytes()[..MAX_V1]), Err(ProxyHeaderError("the line is too long")));
}

#[test]
fn bad_input_is_refused() {
    for line in [
        "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n",
        "PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 \r\n",
        "PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.04 5.6.7.8 1 2\r\n",
        "PROXY TCP4 ::1 ::2 1 2\r\n",
        "PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP6 fe80::1%eth0 ::2 1 2\r\n",
        "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY \r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rx",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 \u{661}\r\n",
        "proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY\t",
        "GET / HTTP/1.1\r\n",
        "\r\n\r\n\0\r\nQUIX",
        " ",
    ] {
        assert!(parse(line.as_bytes()).is_err(), "{line:?}");
    }
    assert!(parse(b"PROXY \xff\xff\r\n").is_err());
    for bytes in [
        v2(0x11, 0x11, &[0; 12]),
        v2(0x31, 0x11, &[0; 12]),
        v2(0x22, 0x11, &[0; 12]),
        v2(0x21, 0x10, &[0; 12]),
        v2(0x21, 0x13, &[0; 12]),
        v2(0x21, 0x41, &[0; 12]),
        v2(0x21, 0x11, &[0; 11]),
        v2(0x21, 0x21, &[0; 35]),
        v2(0x21, 0x31, &[0; 215]),
        v2(0x21, 0x11, &[0; MAX_V2 - V2_HEADER_LEN + 1]),
    ] {
        assert!(parse(&bytes).is_err(), "{bytes:?}");
        // Rejected at the wrong byte, not later.
        assert!(parse(&bytes[..V2_HEADER_LEN]).is_err(), "{bytes:?}");
    }
    assert!(parse(&v2(0x22, 0, &[])[..13]).is_err());
    assert!(parse(&v2(0x21, 0x13, &[])[..14]).is_err());
}

/// Generates an address, and its form after a round trip: IPv4 mapped into IPv6 becomes IPv4.
fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<(Ipv4Addr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
    let v6 = any::<(Ipv6Addr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
    let mapped =
        any::<(Ipv4Addr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.to_ipv6_mapped().into(), port));
    prop_oneof![v4, v6, mapped]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(source in address(), destination in address(), second in any::<bool>()) {
        let version = if second { ProxyVersion::V2 } else { ProxyVersion::V1 };
        let bytes = written(version, Some(&ProxyAddresses { source, destination }));
        prop_assert!(version == ProxyVersion::V2 || bytes.len() <= MAX_V1);
        let read = read_at_every_cut(&bytes).expect("addresses");
        let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        prop_assert_eq!(canonical(read.source), canonical(source));
        prop_assert_eq!(canonical(read.destination), canonical(destination));
        prop_assert_eq!(read.source.is_ipv4(), read.destination.is_ipv4());
    }

    #[test]
    fn no_input_does_harm_and_more_input_changes_no_verdict(
        start in prop_oneof![
            Just(&b""[..]),
            Just(V1_PREFIX),
            Just(&b"PROXY TCP4 1.2.3.4 "[..]),
            Just(&SIGNATURE[..]),
        ],
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let input = [start, &rest].concat();
        let mut verdict = Ok(None);
        for cut in 0..=input.len() {
            let now = parse(&input[..cut]);
            if verdict != Ok(None) {
                prop_assert_eq!(now, verdict, "at {}", cut);
            }
            verdict = now;
        }
    }
}
