//! The binary form: base64 (RFC 4648) around a protobuf message.
//!
//! The message consists of doubles, one integer, and maps from strings to doubles, whose entries are messages
//! with key 1 and value 2. As in protobuf, a missing value is 0 and the last of repeated fields counts.

use super::{Bad, Found, Kind, MAX_LEN, Metric, name};

/// The maximum length of a message that fits into a header, in bytes.
pub(super) const ROOM: usize = MAX_LEN / 4 * 3;

const CUT: Bad = Bad("the message is cut short");

/// Decodes `value`, padded or not, into `room`.
pub(super) fn decode<'r>(value: &[u8], room: &'r mut [u8; ROOM]) -> Result<&'r [u8], Bad> {
    let unpadded = match value {
        [rest @ .., b'=', b'='] | [rest @ .., b'='] if value.len().is_multiple_of(4) => rest,
        rest => rest,
    };
    let mut len = 0;
    for four in unpadded.chunks(4) {
        let mut bits = 0_u32;
        for byte in four {
            bits = bits << 6 | sextet(*byte).ok_or(Bad("it is not base64"))?;
        }
        bits <<= 6 * (4 - four.len());
        // Two characters encode one byte, three two, four three. Unused bits must be 0.
        let whole = four.len() - 1;
        let bytes = bits.to_be_bytes();
        if whole == 0 || bytes[1 + whole..].iter().any(|byte| *byte != 0) {
            return Err(Bad("it is not base64"));
        }
        room.get_mut(len..len + whole).ok_or(Bad("it is too long"))?.copy_from_slice(&bytes[1..1 + whole]);
        len += whole;
    }
    Ok(&room[..len])
}

fn sextet(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

/// Reads a message.
pub(super) fn read<'a>(message: &'a [u8], found: &mut Found<'a>) -> Result<(), Bad> {
    let mut wire = Wire { rest: message };
    while let Some((number, value)) = wire.field()? {
        match (number, value) {
            (1, Value::Fixed64(bits)) => put(found, Kind::Field, "cpu_utilization", bits)?,
            (2, Value::Fixed64(bits)) => put(found, Kind::Field, "mem_utilization", bits)?,
            (3, Value::Varint(rps)) => {
                found.put(Metric { kind: Kind::Field, name: "rps", value: rps as f64 })?;
            }
            (4, Value::Bytes(entry)) => pair(found, Kind::RequestCost, entry)?,
            (5, Value::Bytes(entry)) => pair(found, Kind::Utilization, entry)?,
            (6, Value::Fixed64(bits)) => put(found, Kind::Field, "rps_fractional", bits)?,
            (7, Value::Fixed64(bits)) => put(found, Kind::Field, "eps", bits)?,
            (8, Value::Bytes(entry)) => pair(found, Kind::Named, entry)?,
            (9, Value::Fixed64(bits)) => put(found, Kind::Field, "application_utilization", bits)?,
            (1..=9, _) => return Err(Bad("a field is of another type")),
            _ => {}
        }
    }
    Ok(())
}

fn put<'a>(found: &mut Found<'a>, kind: Kind, name: &'a str, bits: u64) -> Result<(), Bad> {
    found.put(Metric { kind, name, value: f64::from_bits(bits) })
}

/// Reads an entry of a map.
fn pair<'a>(found: &mut Found<'a>, kind: Kind, entry: &'a [u8]) -> Result<(), Bad> {
    let (mut key, mut bits) = (&entry[..0], 0);
    let mut wire = Wire { rest: entry };
    while let Some((number, value)) = wire.field()? {
        match (number, value) {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Fixed64(value)) => bits = value,
            (1 | 2, _) => return Err(Bad("a field is of another type")),
            _ => {}
        }
    }
    put(found, kind, name(key)?, bits)
}

/// The unread rest of a message.
struct Wire<'a> {
    rest: &'a [u8],
}

enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> Wire<'a> {
    /// Returns the next field and its number; `None` at the end.
    fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, Bad> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(self.take(8)?);
                Value::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| CUT)?;
                Value::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Fixed32)?,
            _ => return Err(Bad("a field is of a type that there is not")),
        };
        if tag >> 3 == 0 { Err(Bad("a field has number 0")) } else { Ok(Some((tag >> 3, value))) }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Bad("an integer is too long"))
    }
}
