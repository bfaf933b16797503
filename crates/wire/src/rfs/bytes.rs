//! A reader for big-endian numbers that checks bounds.

use super::{Refused, Unwritable};

/// Reads values from borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'b>(&'b [u8]);

macro_rules! number {
    ($name:ident: $type:ty) => {
        pub(super) fn $name(&mut self) -> Result<$type, Refused> {
            Ok(<$type>::from_be_bytes(self.array()?))
        }
    };
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    number!(u8: u8);
    number!(u16: u16);
    number!(u32: u32);
    number!(u64: u64);

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'b [u8], Refused> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads `count` values, where `count` came from one byte. An empty list allocates nothing, and each
    /// entry consumes at least one available byte.
    pub(super) fn list<T>(
        &mut self,
        count: u8,
        mut read: impl FnMut(&mut Self) -> Result<T, Refused>,
    ) -> Result<Vec<T>, Refused> {
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const SHORT: Refused = Refused::Malformed("it ends in the middle of a value");

/// Converts the length of a list to the one byte of its encoding.
pub(super) fn count(what: &'static str, count: usize) -> Result<u8, Unwritable> {
    u8::try_from(count).map_err(|_| Unwritable::TooMany { what, count, most: u8::MAX.into() })
}
