//! The common part of all kinds' encoders: the header, padding, the trailer, and the limits.

use super::header::LENGTH_AT;
use super::option::{self, PAD};
use super::{Keys, Kind, MAGIC, TRAILER, Unwritable, VERSION};

/// A datagram to encode.
pub(super) struct Frame {
    kind: Kind,
    id: u64,
    /// The minimum length, reached by padding.
    least: usize,
    /// The maximum length.
    most: usize,
}

impl Frame {
    pub(super) fn new(kind: Kind, id: u64) -> Self {
        Self { kind, id, least: 0, most: kind.longest() }
    }

    /// Pads the datagram to at least `least` bytes. A padding has at least four, so the result may be up to
    /// three longer.
    pub(super) fn padded(self, least: usize) -> Self {
        Self { least: least.min(self.most), ..self }
    }

    /// Limits the datagram to the length of its request.
    pub(super) fn within(self, room: usize) -> Self {
        Self { most: self.most.min(room), ..self }
    }

    /// Appends the sealed datagram. After an error nothing was appended.
    pub(super) fn write(
        self,
        keys: &Keys,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), Unwritable>,
    ) -> Result<(), Unwritable> {
        let start = out.len();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&[VERSION, self.kind as u8, 0, 0, 0, 0]);
        out.extend_from_slice(&self.id.to_be_bytes());
        let written = body(out).and_then(|()| self.close(start, out));
        match written {
            Ok(()) => keys.seal(start, out),
            Err(_) => out.truncate(start),
        }
        written
    }

    /// Adds padding, and writes the length into the header at `start`.
    fn close(&self, start: usize, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let len = out.len() - start + TRAILER;
        if len < self.least {
            let fill = (self.least - len).saturating_sub(option::HEAD);
            // A datagram that padding would make too long is long enough without it.
            if len + option::HEAD + fill <= self.most {
                option::write(PAD, out, |out| out.resize(out.len() + fill, 0));
            }
        }
        let len = out.len() - start + TRAILER;
        let told = u16::try_from(len).ok().filter(|_| len <= self.most);
        let told = told.ok_or(Unwritable::TooLong { kind: self.kind, len, most: self.most })?;
        out[start + LENGTH_AT..start + LENGTH_AT + 2].copy_from_slice(&told.to_be_bytes());
        Ok(())
    }
}
