//! What is common to writing all kinds: the header before, padding and the trailer after, and the limits.

use super::header::LENGTH_AT;
use super::option::{self, PAD};
use super::{Keys, Kind, MAGIC, TRAILER, Unwritable, VERSION};

/// A datagram that is to be written.
pub(super) struct Frame {
    kind: Kind,
    id: u64,
    /// Padded to so many bytes.
    least: usize,
    /// Not longer than that.
    most: usize,
}

impl Frame {
    pub(super) fn new(kind: Kind, id: u64) -> Self {
        Self { kind, id, least: 0, most: kind.longest() }
    }

    /// Padded until it has `least` bytes. A padding has at least four, so it may become up to three longer.
    pub(super) fn padded(self, least: usize) -> Self {
        Self { least: least.min(self.most), ..self }
    }

    /// Not longer than what it answers.
    pub(super) fn within(self, room: usize) -> Self {
        Self { most: self.most.min(room), ..self }
    }

    /// Appends the datagram, sealed; after an error nothing was appended.
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

    /// Pads, and writes the length into the header that begins at `start`.
    fn close(&self, start: usize, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let len = out.len() - start + TRAILER;
        if len < self.least {
            let fill = (self.least - len).saturating_sub(option::HEAD);
            // A datagram that a padding would make too long is long enough without.
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
