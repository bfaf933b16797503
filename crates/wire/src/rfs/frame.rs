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
    pub(super) fn with_min_len(self, min_len: usize) -> Self {
        Self { min_len: min_len.min(self.max_len), ..self }
    }

    /// Limits the datagram to the length of its request.
    pub(super) fn with_max_len(self, max_len: usize) -> Self {
        Self { max_len: self.max_len.min(max_len), ..self }
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
        let result = body(out).and_then(|()| self.finish(start, out));
        match result {
            Ok(()) => keys.seal(start, out),
            Err(_) => out.truncate(start),
        }
        result
    }

    /// Adds padding, and writes the length into the header at `start`.
    fn finish(&self, start: usize, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let len = out.len() - start + TRAILER_LEN;
        if len < self.min_len {
            let padding_len = (self.min_len - len).saturating_sub(option::OPTION_HEADER_LEN);
            // A datagram that padding would make too long is long enough without it.
            if len + option::OPTION_HEADER_LEN + padding_len <= self.max_len {
                option::write(PAD, out, |out| out.resize(out.len() + padding_len, 0));
            }
        }
        let len = out.len() - start + TRAILER_LEN;
        let length = u16::try_from(len).ok().filter(|_| len <= self.max_len);
        let length =
            length.ok_or(DatagramEncodeError::TooLong { kind: self.kind, len, most: self.max_len })?;
        out[start + LENGTH_OFFSET..start + LENGTH_OFFSET + 2].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}
