//! Options: what stands between the fixed fields of a datagram and its trailer, as type, length and value.
//!
//! The lower 15 bits of the type are the option's number. The highest says what a receiver does that does not know it:
//! skip it, or refuse the datagram.

use super::Refused;
use super::bytes::Reader;

/// In an option's type: who does not know the option must not act on the rest.
pub const CRITICAL: u16 = 0x8000;

/// Fills a datagram up; its value says nothing.
pub(super) const PAD: u16 = 0;
/// In an ANSWER: who comes next, best first.
pub(super) const FURTHER: u16 = 1;

/// In a REPORT: what others said of themselves.
pub(super) const HEARD: u16 = 2;

/// Bytes of an option's type and length.
pub(super) const HEAD: usize = 4;

/// Shows all options up to the end to `known`, which says whether it took this one.
pub(super) fn read<'b>(
    mut reader: Reader<'b>,
    mut known: impl FnMut(u16, Reader<'b>) -> Result<bool, Refused>,
) -> Result<(), Refused> {
    while !reader.is_empty() {
        let (kind, len) = (reader.u16()?, reader.u16()?);
        let value = Reader::new(reader.take(len.into())?);
        let number = kind & !CRITICAL;
        if number != PAD && !known(number, value)? && kind & CRITICAL != 0 {
            return Err(Refused::Malformed("a critical option is unknown"));
        }
    }
    Ok(())
}

/// Options of a kind that knows none.
pub(super) fn skip(reader: Reader<'_>) -> Result<(), Refused> {
    read(reader, |_, _| Ok(false))
}

/// Appends an option; its value is what `write` appends.
pub(super) fn write(number: u16, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&number.to_be_bytes());
    let at = out.len();
    out.extend_from_slice(&[0; 2]);
    write(out);
    // No value comes near to the 65 535 bytes that a length can say: a datagram has 1400, four endpoints 84.
    let len = (out.len() - at - 2) as u16;
    out[at..at + 2].copy_from_slice(&len.to_be_bytes());
}
