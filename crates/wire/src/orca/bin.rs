//! The binary form: base64 (RFC 4648) around a protobuf message.
//!
//! The message consists of doubles, one integer, and maps from strings to doubles, whose entries are messages
//! with key 1 and value 2. As in protobuf, a missing value is 0 and the last of repeated fields counts.

use super::{MAX_LEN, MetricKind, MetricList, OrcaError, OrcaMetric, name};

/// The maximum length of a message that fits into a header, in bytes.
pub(super) const MAX_DECODED: usize = MAX_LEN / 4 * 3;

const TRUNCATED: OrcaError = OrcaError("the message is cut short");

/// Decodes `value`, padded or not, into `room`.
pub(super) fn decode<'r>(value: &[u8], buffer: &'r mut [u8; MAX_DECODED]) -> Result<&'r [u8], OrcaError> {
    let unpadded = match value {
        [rest @ .., b'=', b'='] | [rest @ .., b'='] if value.len().is_multiple_of(4) => rest,
        rest => rest,
    };
    let mut len = 0;
    for quad in unpadded.chunks(4) {
        let mut bits = 0_u32;
        for byte in quad {
            bits = bits << 6 | sextet(*byte).ok_or(OrcaError("it is not base64"))?;
        }
        bits <<= 6 * (4 - quad.len());
        // Two characters encode one byte, three two, four three. Unused bits must be 0.
        let byte_count = quad.len() - 1;
        let bytes = bits.to_be_bytes();
        if byte_count == 0 || bytes[1 + byte_count..].iter().any(|byte| *byte != 0) {
            return Err(OrcaError("it is not base64"));
        }
        buffer
            .get_mut(len..len + byte_count)
            .ok_or(OrcaError("it is too long"))?
            .copy_from_slice(&bytes[1..1 + byte_count]);
        len += byte_count;
    }
    Ok(&buffer[..len])
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
pub(super) fn read<'a>(message: &'a [u8], metrics: &mut MetricList<'a>) -> Result<(), OrcaError> {
    let mut reader = ProtobufReader { rest: message };
    while let Some((number, value)) = reader.field()? {
        match (number, value) {
            (1, ProtobufValue::Fixed64(bits)) => {
                put_metric(metrics, MetricKind::Field, "cpu_utilization", bits)?
            }
            (2, ProtobufValue::Fixed64(bits)) => {
                put_metric(metrics, MetricKind::Field, "mem_utilization", bits)?
            }
            (3, ProtobufValue::Varint(rps)) => {
                metrics.upsert(OrcaMetric { kind: MetricKind::Field, name: "rps", value: rps as f64 })?;
            }
            (4, ProtobufValue::Bytes(entry)) => read_map_entry(metrics, MetricKind::RequestCost, entry)?,
            (5, ProtobufValue::Bytes(entry)) => read_map_entry(metrics, MetricKind::Utilization, entry)?,
            (6, ProtobufValue::Fixed64(bits)) => {
                put_metric(metrics, MetricKind::Field, "rps_fractional", bits)?
            }
            (7, ProtobufValue::Fixed64(bits)) => put_metric(metrics, MetricKind::Field, "eps", bits)?,
            (8, ProtobufValue::Bytes(entry)) => read_map_entry(metrics, MetricKind::Named, entry)?,
            (9, ProtobufValue::Fixed64(bits)) => {
                put_metric(metrics, MetricKind::Field, "application_utilization", bits)?
            }
            (1..=9, _) => return Err(OrcaError("a field is of another type")),
            _ => {}
        }
    }
    Ok(())
}

fn put_metric<'a>(
    metrics: &mut MetricList<'a>,
    kind: MetricKind,
    name: &'a str,
    bits: u64,
) -> Result<(), OrcaError> {
    metrics.upsert(OrcaMetric { kind, name, value: f64::from_bits(bits) })
}

/// Reads an entry of a map.
fn read_map_entry<'a>(
    metrics: &mut MetricList<'a>,
    kind: MetricKind,
    entry: &'a [u8],
) -> Result<(), OrcaError> {
    let (mut key, mut bits) = (&entry[..0], 0);
    let mut reader = ProtobufReader { rest: entry };
    while let Some((number, value)) = reader.field()? {
        match (number, value) {
            (1, ProtobufValue::Bytes(bytes)) => key = bytes,
            (2, ProtobufValue::Fixed64(value)) => bits = value,
            (1 | 2, _) => return Err(OrcaError("a field is of another type")),
            _ => {}
        }
    }
    put_metric(metrics, kind, name(key)?, bits)
}

/// The unread rest of a message.
struct ProtobufReader<'a> {
    rest: &'a [u8],
}

enum ProtobufValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl<'a> ProtobufReader<'a> {
    /// Returns the next field and its number; `None` at the end.
    fn field(&mut self) -> Result<Option<(u64, ProtobufValue<'a>)>, OrcaError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => ProtobufValue::Varint(self.varint()?),
            1 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(self.take_bytes(8)?);
                ProtobufValue::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| TRUNCATED)?;
                ProtobufValue::Bytes(self.take_bytes(len)?)
            }
            5 => self.take_bytes(4).map(|_| ProtobufValue::Fixed32)?,
            _ => return Err(OrcaError("a field is of a type that there is not")),
        };
        if tag >> 3 == 0 { Err(OrcaError("a field has number 0")) } else { Ok(Some((tag >> 3, value))) }
    }

    fn take_bytes(&mut self, len: usize) -> Result<&'a [u8], OrcaError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, OrcaError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take_bytes(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(OrcaError("an integer is too long"))
    }
}
