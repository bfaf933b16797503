//! The IIOP profile: an object's address and key for GIOP over TCP.

use std::fmt;

use super::component::encapsulation;
use super::{ByteOrder, CdrReader, GiopError, GiopVersion, TaggedComponent, TaggedProfile};

/// The tag of an IIOP profile.
pub const IIOP_TAG: u32 = 0;

/// The contents of an IIOP profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IiopProfile {
    /// The newest version of GIOP that both the server and this crate support.
    pub version: GiopVersion,
    /// A name or an address; an IPv6 address with or without brackets, as received.
    pub host: String,
    /// The TCP port; 0 if plain TCP is not available.
    pub port: u16,
    /// The object's key on the server.
    pub key: Vec<u8>,
    /// The other components; always empty in version 1.0.
    pub components: Vec<TaggedComponent>,
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IiopAddress {
    /// The newest version of GIOP to use there.
    pub version: GiopVersion,
    /// A name or an address; an IPv6 address with or without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl IiopProfile {
    /// Reads the contents of a profile with the tag [`IIOP_TAG`].
    ///
    /// # Errors
    /// It is malformed, of a version that is not 1.x, or its host is not text.
    pub fn parse(data: &[u8]) -> Result<Self, GiopError> {
        let mut reader = CdrReader::encapsulation(data)?;
        let (version, host, port) = read_address(&mut reader)?;
        let key = reader.octets()?.to_vec();
        let mut components = Vec::new();
        if version >= GiopVersion::V1_1 {
            for _ in 0..reader.count(8)? {
                components.push(TaggedComponent { tag: reader.u32()?, data: reader.octets()?.to_vec() });
            }
        }
        let host =
            std::str::from_utf8(host).map_err(|_| GiopError::Malformed("a profile's host is not text"))?;
        Ok(Self { version, host: host.to_string(), port, key, components })
    }

    /// Returns the key within the bytes of a profile without validating the rest.
    pub(super) fn key_of(data: &[u8]) -> Result<&[u8], GiopError> {
        let mut reader = CdrReader::encapsulation(data)?;
        read_address(&mut reader)?;
        reader.octets()
    }

    /// Encodes the profile.
    pub fn to_tagged(&self, order: ByteOrder) -> TaggedProfile {
        let data = encapsulation(order, |writer| {
            writer.u8(1);
            writer.u8(self.version.minor());
            writer.string(self.host.as_bytes());
            writer.u16(self.port);
            writer.octets(&self.key);
            if self.version >= GiopVersion::V1_1 {
                writer.count(self.components.len());
                for component in &self.components {
                    writer.u32(component.tag);
                    writer.octets(&component.data);
                }
            }
        });
        TaggedProfile { tag: IIOP_TAG, data }
    }

    /// Returns the profile's address, then the others from its components, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IiopAddress> {
        let primary = IiopAddress { version: self.version, host: self.host.clone(), port: self.port };
        let alternates = self.components.iter().filter_map(TaggedComponent::address);
        std::iter::once(primary)
            .chain(alternates.map(|address| IiopAddress { version: self.version, ..address }))
    }
}

impl fmt::Display for IiopAddress {
    /// Formats `HOST:PORT`, with an IPv6 address in brackets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') && !host.starts_with('[') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

fn read_address<'b>(reader: &mut CdrReader<'b>) -> Result<(GiopVersion, &'b [u8], u16), GiopError> {
    let (major, minor) = (reader.u8()?, reader.u8()?);
    if major != 1 {
        return Err(GiopError::Malformed("a profile is of a version of IIOP that is not 1.x"));
    }
    Ok((GiopVersion::up_to(minor), reader.string()?, reader.u16()?))
}
