//! Interoperable object references: the type of an object and the ways to reach it, each a profile. The text
//! form is `IOR:` and an encapsulation in hexadecimal digits.
//!
//! Profiles are kept as received: they are encapsulations, which mean the same at every offset.

use std::fmt;
use std::str::FromStr;

use super::profile::IiopProfile;
use super::{ByteOrder, CdrReader, CdrWriter, GiopError};

/// The maximum length of a reference's text, in bytes. Typical ones have some hundred, those with many
/// addresses a few thousand.
pub const MAX_TEXT: usize = 256 * 1024;

const PREFIX: &str = "IOR:";

/// A reference to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ior {
    /// The object's type, as `IDL:Test/Latency:1.0`; empty if it is unknown.
    pub type_id: Vec<u8>,
    /// The ways to reach the object; empty for the nil reference.
    pub profiles: Vec<TaggedProfile>,
}

/// One way to reach an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaggedProfile {
    /// The protocol; [`super::IIOP_TAG`] is the supported one.
    pub tag: u32,
    /// The contents, an encapsulation.
    pub data: Vec<u8>,
}

impl Ior {
    /// Returns `true` if the reference is nil.
    pub fn is_nil(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Returns the first valid IIOP profile.
    pub fn first_iiop_profile(&self) -> Option<IiopProfile> {
        self.iiop_profiles().next()
    }

    /// Returns the valid IIOP profiles, in order; invalid ones are skipped.
    pub fn iiop_profiles(&self) -> impl Iterator<Item = IiopProfile> {
        let iiop = self.profiles.iter().filter(|profile| profile.tag == super::IIOP_TAG);
        iiop.filter_map(|profile| IiopProfile::parse(&profile.data).ok())
    }

    /// Reads a reference from a message or an encapsulation.
    ///
    /// # Errors
    /// It is incomplete, or its type is not a string.
    pub fn read(reader: &mut CdrReader<'_>) -> Result<Self, GiopError> {
        let type_id = reader.string()?.to_vec();
        let count = reader.count(8)?;
        let mut profiles = Vec::with_capacity(count);
        for _ in 0..count {
            profiles.push(TaggedProfile { tag: reader.u32()?, data: reader.octets()?.to_vec() });
        }
        Ok(Self { type_id, profiles })
    }

    /// Appends the reference in the writer's byte order; type and profiles stay unchanged.
    pub fn write(&self, writer: &mut CdrWriter<'_>) {
        self.write_as(&self.type_id, writer);
    }

    /// Appends the reference with another type.
    pub fn write_as(&self, type_id: &[u8], writer: &mut CdrWriter<'_>) {
        writer.string(type_id);
        writer.count(self.profiles.len());
        for profile in &self.profiles {
            writer.u32(profile.tag);
            writer.octets(&profile.data);
        }
    }

    /// Returns the encapsulation of the reference in a byte order. The text form contains it as hexadecimal
    /// digits.
    pub fn encapsulated(&self, order: ByteOrder) -> Vec<u8> {
        let mut out = Vec::with_capacity(
            64 + self.profiles.iter().map(|profile| profile.data.len() + 8).sum::<usize>(),
        );
        let mut writer = CdrWriter::new(&mut out, order);
        writer.u8(order.flag());
        self.write(&mut writer);
        out
    }

    /// Returns the text form in a byte order. [`fmt::Display`] writes it in this machine's.
    pub fn text(&self, order: ByteOrder) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let bytes = self.encapsulated(order);
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        PREFIX.chars().chain(digits.map(|digit| char::from(DIGITS[usize::from(digit)]))).collect()
    }
}

impl fmt::Display for Ior {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text(ByteOrder::NATIVE))
    }
}

impl FromStr for Ior {
    type Err = GiopError;

    /// Parses the text form; surrounding white space is ignored.
    fn from_str(text: &str) -> Result<Self, GiopError> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(GiopError::Malformed("the text of a reference is longer than 256 KiB"));
        }
        let digits = match text.split_at_checked(PREFIX.len()) {
            Some((prefix, digits)) if prefix.eq_ignore_ascii_case(PREFIX) => digits.as_bytes(),
            _ => return Err(GiopError::Malformed("the text of a reference does not begin with IOR:")),
        };
        let (pairs, odd) = digits.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(GiopError::Malformed("the text of a reference has an odd number of digits"));
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.ok_or(GiopError::Malformed("the text of a reference is not hexadecimal"))?;
        Self::read(&mut CdrReader::encapsulation(&bytes)?)
    }
}

/// A reference within a message: known to be well-formed, not copied.
#[derive(Clone, Copy, Debug)]
pub struct IorBytes<'m> {
    /// The bytes from the length of its type (which is aligned to 4) to its end.
    bytes: &'m [u8],
    order: ByteOrder,
}

impl<'m> IorBytes<'m> {
    /// Returns an owned copy.
    pub fn to_ior(&self) -> Ior {
        Ior::read(&mut self.reader()).unwrap_or_default() // it was validated by `read`
    }

    /// Returns the object's type.
    pub fn type_id(&self) -> &'m [u8] {
        self.reader().string().unwrap_or_default()
    }

    /// Returns the tag and contents of each profile.
    pub fn profiles(&self) -> impl Iterator<Item = (u32, &'m [u8])> + use<'m> {
        let mut reader = self.reader();
        let count = reader.string().and_then(|_| reader.count(8)).unwrap_or(0);
        (0..count).map_while(move |_| Some((reader.u32().ok()?, reader.octets().ok()?)))
    }

    pub(super) fn read(reader: &mut CdrReader<'m>) -> Result<Self, GiopError> {
        reader.align(4)?;
        let (bytes, start) = (reader.rest(), reader.position());
        reader.string()?;
        for _ in 0..reader.count(8)? {
            reader.u32()?;
            reader.octets()?;
        }
        Ok(Self { bytes: &bytes[..reader.position() - start], order: reader.order() })
    }

    /// Appends the reference: its bytes if the byte order is the same, else value by value.
    pub(super) fn write(&self, writer: &mut CdrWriter<'_>) {
        if self.order != writer.order() {
            return self.to_ior().write(writer);
        }
        writer.align(4);
        writer.bytes(self.bytes);
    }

    fn reader(&self) -> CdrReader<'m> {
        CdrReader::new(self.bytes, self.order)
    }
}

impl PartialEq for IorBytes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.type_id() == other.type_id() && self.profiles().eq(other.profiles())
    }
}
