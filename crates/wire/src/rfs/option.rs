//! Options: the part between the fixed fields of a datagram and its trailer, each with type, length and
//! value.
//!
//! The lower 15 bits of the type are the option's number. The highest bit determines whether a receiver that
//! does not know the option skips it or rejects the datagram.

use super::DatagramDecodeError;
use super::byte_reader::ByteReader;

/// The bit of an option's type that marks it as critical: a receiver that does not know it must reject the
/// datagram.
pub const CRITICAL: u16 = 0x8000;

/// Padding, whose value has no meaning.
pub(super) const PAD: u16 = 0;
/// An option of an ANSWER: the next members, best first.
pub(super) const FALLBACKS: u16 = 1;

/// An option of a REPORT: relayed states of other daemons.
pub(super) const RELAYED: u16 = 2;

/// The length of an option's type and length, in bytes.
pub(super) const OPTION_HEADER_LEN: usize = 4;

/// Passes each option to `known`, which returns whether it accepted the option.
pub(super) fn read<'b>(
    mut reader: ByteReader<'b>,
    mut on_option: impl FnMut(u16, ByteReader<'b>) -> Result<bool, DatagramDecodeError>,
) -> Result<(), DatagramDecodeError> {
    while !reader.is_empty() {
        let (kind, len) = (reader.u16()?, reader.u16()?);
        let value = ByteReader::new(reader.take(len.into())?);
        let number = kind & !CRITICAL;
        if number != PAD && !on_option(number, value)? && kind & CRITICAL != 0 {
            return Err(DatagramDecodeError::Malformed("a critical option is unknown"));
        }
    }
    Ok(())
}

/// Skips the options of a kind that defines none.
pub(super) fn skip(reader: ByteReader<'_>) -> Result<(), DatagramDecodeError> {
    read(reader, |_, _| Ok(false))
}

/// Appends an option; `write` appends its value.
pub(super) fn write(number: u16, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&number.to_be_bytes());
    let length_offset = out.len();
    out.extend_from_slice(&[0; 2]);
    write(out);
    // No value approaches the 65,535 bytes that a length can represent: a datagram has 1400, four endpoints
    // 84.
    let len = (out.len() - length_offset - 2) as u16;
    out[length_offset..length_offset + 2].copy_from_slice(&len.to_be_bytes());
}
