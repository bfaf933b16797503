//! The common part of all kinds' encoders: the header, padding, the trailer, and the limits.

use super::header::LENGTH_OFFSET;
use super::option::{self, PAD};
use super::{DatagramEncodeError, DatagramKind, KeyRing, MAGIC, TRAILER_LEN, VERSION};

/// A datagram to encode.
pub(super) struct DatagramFrame {
    kind: DatagramKind,
    id: u64,
    /// The minimum length, reached by padding.
    min_len: usize,
    /// The maximum length.
    max_len: usize,
}

impl DatagramFrame {
    pub(super) fn new(kind: DatagramKind, id: u64) -> Self {
        Self { kind, id, min_len: 0, max_len: kind.max_len() }
    }

    /// Pads the datagram to at least `least` bytes. A padding has at least four, so the result may be up to
    /// three longer.
    pub(super) fn with_min_len(self, least: usize) -> Self {
        Self { min_len: least.min(self.max_len), ..self }
    }

    /// Limits the datagram to the length of its request.
    pub(super) fn with_max_len(self, room: usize) -> Self {
        Self { max_len: self.max_len.min(room), ..self }
    }

    /// Appends the sealed datagram. After an error nothing was appended.
    pub(super) fn write(
        self,
        keys: &KeyRing,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), DatagramEncodeError>,
    ) -> Result<(), DatagramEncodeError> {
        let start = out.len();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&[VERSION, self.kind as u8, 0, 0, 0, 0]);
        out.extend_from_slice(&self.id.to_be_bytes());
        let written = body(out).and_then(|()| self.finish(start, out));
        match written {
            Ok(()) => keys.seal(start, out),
            Err(_) => out.truncate(start),
        }
        written
    }

    /// Adds padding, and writes the length into the header at `start`.
    fn finish(&self, start: usize, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let len = out.len() - start + TRAILER_LEN;
        if len < self.min_len {
            let fill = (self.min_len - len).saturating_sub(option::OPTION_HEADER_LEN);
            // A datagram that padding would make too long is long enough without it.
            if len + option::OPTION_HEADER_LEN + fill <= self.max_len {
                option::write(PAD, out, |out| out.resize(out.len() + fill, 0));
            }
        }
        let len = out.len() - start + TRAILER_LEN;
        let told = u16::try_from(len).ok().filter(|_| len <= self.max_len);
        let told = told.ok_or(DatagramEncodeError::TooLong { kind: self.kind, len, most: self.max_len })?;
        out[start + LENGTH_OFFSET..start + LENGTH_OFFSET + 2].copy_from_slice(&told.to_be_bytes());
        Ok(())
    }
}
