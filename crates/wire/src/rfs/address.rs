//! Addresses in three encodings: of fixed length, which can also represent a missing address; of the length
//! of the family; and shorter still where the host is already known.
//!
//! Scope and flow of an IPv6 address are local to a host, and are not sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::DatagramDecodeError;
use super::byte_reader::ByteReader;

const NONE: u8 = 0;
const V4: u8 = 4;
const V6: u8 = 6;
const NO_FAMILY: DatagramDecodeError = DatagramDecodeError::Malformed("an address is of no known family");

/// Writes family, port, and 16 bytes. IPv4 uses the first four; the others are zeros.
pub(super) fn write_fixed(address: Option<SocketAddr>, out: &mut Vec<u8>) {
    let mut octets = [0; 16];
    let (family, port) = match address {
        None => (NONE, 0),
        Some(SocketAddr::V4(address)) => {
            octets[..4].copy_from_slice(&address.ip().octets());
            (V4, address.port())
        }
        Some(SocketAddr::V6(address)) => {
            octets = address.ip().octets();
            (V6, address.port())
        }
    };
    out.push(family);
    out.extend_from_slice(&port.to_be_bytes());
    out.extend_from_slice(&octets);
}

pub(super) fn read_fixed(reader: &mut ByteReader<'_>) -> Result<Option<SocketAddr>, DatagramDecodeError> {
    let (family, port) = (reader.u8()?, reader.u16()?);
    let octets: [u8; 16] = reader.array()?;
    let [a, b, c, d, rest @ ..] = octets;
    let ip = match family {
        NONE if octets == [0; 16] && port == 0 => return Ok(None),
        V4 if rest == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        V6 => IpAddr::V6(Ipv6Addr::from(octets)),
        NONE | V4 => return Err(DatagramDecodeError::Malformed("an address is longer than its family")),
        _ => return Err(NO_FAMILY),
    };
    Ok(Some(SocketAddr::new(ip, port)))
}

/// Writes family, port, and four or 16 bytes.
pub(super) fn write(address: SocketAddr, out: &mut Vec<u8>) {
    match address {
        SocketAddr::V4(address) => {
            out.push(V4);
            out.extend_from_slice(&address.port().to_be_bytes());
            out.extend_from_slice(&address.ip().octets());
        }
        SocketAddr::V6(address) => {
            out.push(V6);
            out.extend_from_slice(&address.port().to_be_bytes());
            out.extend_from_slice(&address.ip().octets());
        }
    }
}

pub(super) fn read(reader: &mut ByteReader<'_>) -> Result<SocketAddr, DatagramDecodeError> {
    let (family, port) = (reader.u8()?, reader.u16()?);
    let ip = match family {
        V4 => IpAddr::from(reader.array::<4>()?),
        V6 => IpAddr::from(reader.array::<16>()?),
        _ => return Err(NO_FAMILY),
    };
    Ok(SocketAddr::new(ip, port))
}

/// Returns the number of bytes that [`fn@write`] appends.
pub(super) fn len(address: &SocketAddr) -> usize {
    if address.is_ipv4() { 7 } else { 19 }
}

/// Writes family 0 and the port if the address is on `host`; else the same as [`fn@write`].
pub(super) fn write_near(address: SocketAddr, host: IpAddr, out: &mut Vec<u8>) {
    if address.ip() == host {
        out.push(NONE);
        out.extend_from_slice(&address.port().to_be_bytes());
    } else {
        write(address, out);
    }
}

pub(super) fn read_near(
    reader: &mut ByteReader<'_>,
    host: IpAddr,
) -> Result<SocketAddr, DatagramDecodeError> {
    let mut ahead = *reader;
    if ahead.u8()? != NONE {
        return read(reader);
    }
    let port = ahead.u16()?;
    *reader = ahead;
    Ok(SocketAddr::new(host, port))
}
