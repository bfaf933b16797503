//! The PROXY protocol, versions 1 and 2: the first bytes of a connection carry the client's address through a
//! load balancer (HAProxy's `proxy-protocol.txt` of 2020).
//!
//! Version 1 is a line of text, version 2 a binary block. Other input is rejected at its first byte that
//! differs. Both versions have a maximum length, so a reader never waits for more of what cannot become a
//! header. A header may also describe a connection of the sender's own (a health check), or one without IP
//! addresses. Then the addresses of the connection itself apply.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum length of a header of version 1, with its CRLF.
pub const MAX_V1: usize = 107;
/// The maximum accepted length of a header of version 2. The addresses take at most 232 bytes. The rest is
/// for extensions (the client's TLS version, the name in its certificate), which are skipped.
pub const MAX_V2: usize = 4096;

/// The first bytes of every header of version 2; no protocol in which the client speaks first begins so.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const V1_PREFIX: &[u8] = b"PROXY ";
/// The length of the fixed part: signature, version and command, family, length.
const V2_HEADER_LEN: usize = 16;

/// The version to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// A binary block.
    V2,
}

/// The two addresses of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The header's length in bytes; the connection's own data follows.
    pub len: usize,
    /// The addresses; `None` if the header has no IP addresses and those of the connection apply.
    pub addresses: Option<ProxyAddresses>,
}

/// The error of input that is not, and cannot become, a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad PROXY protocol header: {0}")]
pub struct ProxyHeaderError(pub &'static str);

/// Parses a header of either version at the beginning of `input`; `None` if it is incomplete.
///
/// # Errors
/// The input begins with something else, or with a header that is malformed or too long.
pub fn parse(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let matches_prefix = |prefix: &[u8]| input.iter().zip(prefix).all(|(byte, wanted)| byte == wanted);
    if matches_prefix(&SIGNATURE) {
        return if input.len() < V2_HEADER_LEN { check_prefix_v2(input) } else { parse_v2(input) };
    }
    if matches_prefix(V1_PREFIX) {
        return parse_v1(input);
    }
    Err(ProxyHeaderError("the connection does not begin with one"))
}

/// Appends a header. `None`, and addresses that the version cannot represent, produce a header without
/// addresses. If the addresses are of two families, IPv4 is mapped into IPv6.
pub fn write(version: ProxyVersion, addresses: Option<&ProxyAddresses>, out: &mut Vec<u8>) {
    let pair = addresses.map(|addresses| {
        let (source, destination) =
            (addresses.source.ip().to_canonical(), addresses.destination.ip().to_canonical());
        let ports = (addresses.source.port(), addresses.destination.port());
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => AddressPair::V4(source, destination, ports),
            _ => AddressPair::V6(to_ipv6(source), to_ipv6(destination), ports),
        }
    });
    match version {
        ProxyVersion::V1 => write_v1(pair, out),
        ProxyVersion::V2 => write_v2(pair, out),
    }
}

/// Addresses of one family, and ports.
enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr, (u16, u16)),
    V6(Ipv6Addr, Ipv6Addr, (u16, u16)),
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn parse_v1(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let window = &input[..input.len().min(MAX_V1)];
    let Some(line_end) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if window.len() < MAX_V1 { Ok(None) } else { Err(ProxyHeaderError("the line is too long")) };
    };
    match (window[line_end], window.get(line_end + 1)) {
        (b'\r', Some(b'\n')) => {}
        (b'\r', None) if window.len() < MAX_V1 => return Ok(None),
        _ => return Err(ProxyHeaderError("the line does not end in CRLF")),
    }
    let line = window.get(V1_PREFIX.len()..line_end).and_then(|line| std::str::from_utf8(line).ok());
    let line = line.ok_or(ProxyHeaderError("the line is not text"))?;
    let header = |addresses| ProxyHeader { len: line_end + 2, addresses };
    // A receiver ignores all that follows UNKNOWN.
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Ok(Some(header(None)));
    }
    let mut words = line.split(' ');
    let (family, source, destination) = (words.next(), words.next(), words.next());
    let ip = |text: Option<&str>| -> Option<IpAddr> {
        match family {
            Some("TCP4") => text?.parse().ok().map(IpAddr::V4),
            Some("TCP6") => text?.parse().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let mut endpoint = |text: Option<&str>| Some(SocketAddr::new(ip(text)?, port(words.next()?)?));
    match (endpoint(source), endpoint(destination), words.next()) {
        (Some(source), Some(destination), None) => {
            Ok(Some(header(Some(ProxyAddresses { source, destination }))))
        }
        _ => Err(ProxyHeaderError("the line is malformed")),
    }
}

/// Parses a port in decimal digits without sign or leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// Checks an incomplete fixed part with a valid signature: an error means that it cannot become a header.
fn check_prefix_v2(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    if let Some(command_byte) = input.get(12) {
        let local = is_local(*command_byte)?;
        if let Some(family) = input.get(13) {
            AddressFamily::from_byte(*family, local)?;
        }
    }
    Ok(None)
}

fn parse_v2(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let local = is_local(input[12])?;
    let family = AddressFamily::from_byte(input[13], local)?;
    let len = V2_HEADER_LEN + usize::from(u16::from_be_bytes([input[14], input[15]]));
    if len > MAX_V2 {
        return Err(ProxyHeaderError("the header is too long"));
    }
    if len < V2_HEADER_LEN + family.len() {
        return Err(ProxyHeaderError("the header has no room for its addresses"));
    }
    if input.len() < len {
        return Ok(None);
    }
    let block = &input[V2_HEADER_LEN..];
    let endpoint = |ip: IpAddr, port: &[u8]| SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]]));
    let addresses = match family {
        AddressFamily::None | AddressFamily::Unix => None,
        AddressFamily::V4 => {
            let ip = |offset: usize| {
                Ipv4Addr::new(block[offset], block[offset + 1], block[offset + 2], block[offset + 3]).into()
            };
            Some(ProxyAddresses {
                source: endpoint(ip(0), &block[8..10]),
                destination: endpoint(ip(4), &block[10..12]),
            })
        }
        AddressFamily::V6 => {
            let ip = |offset: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&block[offset..offset + 16]);
                IpAddr::from(octets)
            };
            Some(ProxyAddresses {
                source: endpoint(ip(0), &block[32..34]),
                destination: endpoint(ip(16), &block[34..36]),
            })
        }
    };
    Ok(Some(ProxyHeader { len, addresses }))
}

/// Returns `true` if the connection is the sender's own.
fn is_local(version_and_command: u8) -> Result<bool, ProxyHeaderError> {
    match version_and_command {
        0x20 => Ok(true),
        0x21 => Ok(false),
        byte if byte >> 4 == 2 => Err(ProxyHeaderError("the command is unknown")),
        _ => Err(ProxyHeaderError("the version is unknown")),
    }
}

/// The kinds of addresses in a header of version 2.
enum AddressFamily {
    None,
    V4,
    V6,
    Unix,
}

impl AddressFamily {
    /// Parses the family. Streams and datagrams have the same addresses.
    fn from_byte(byte: u8, local: bool) -> Result<Self, ProxyHeaderError> {
        match byte {
            // The rest of a header for the sender's own connection is ignored.
            _ if local => Ok(Self::None),
            0x00 => Ok(Self::None),
            0x11 | 0x12 => Ok(Self::V4),
            0x21 | 0x22 => Ok(Self::V6),
            0x31 | 0x32 => Ok(Self::Unix),
            _ => Err(ProxyHeaderError("the address family is unknown")),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::V4 => 12,
            Self::V6 => 36,
            Self::Unix => 216,
        }
    }
}

fn write_v1(pair: Option<AddressPair>, out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = match pair {
        Some(AddressPair::V4(source, destination, (source_port, destination_port))) => {
            write!(out, "PROXY TCP4 {source} {destination} {source_port} {destination_port}\r\n")
        }
        Some(AddressPair::V6(source, destination, (source_port, destination_port))) => {
            write!(out, "PROXY TCP6 {source} {destination} {source_port} {destination_port}\r\n")
        }
        None => write!(out, "PROXY UNKNOWN\r\n"),
    };
}

fn write_v2(pair: Option<AddressPair>, out: &mut Vec<u8>) {
    out.extend_from_slice(&SIGNATURE);
    let (source_port, destination_port) = match pair {
        Some(AddressPair::V4(source, destination, ports)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
            ports
        }
        Some(AddressPair::V6(source, destination, ports)) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
            ports
        }
        None => return out.extend_from_slice(&[0x20, 0x00, 0, 0]),
    };
    out.extend_from_slice(&source_port.to_be_bytes());
    out.extend_from_slice(&destination_port.to_be_bytes());
}

#[cfg(test)]
mod tests;
