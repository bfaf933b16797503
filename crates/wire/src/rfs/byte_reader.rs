//! A reader for big-endian numbers that checks bounds.

use super::{DatagramDecodeError, DatagramEncodeError};

/// Reads values from borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteReader<'b>(&'b [u8]);

macro_rules! number {
    ($name:ident: $type:ty) => {
        pub(super) fn $name(&mut self) -> Result<$type, DatagramDecodeError> {
            Ok(<$type>::from_be_bytes(self.array()?))
        }
    };
}

impl<'b> ByteReader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    number!(u8: u8);
    number!(u16: u16);
    number!(u32: u32);
    number!(u64: u64);

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DatagramDecodeError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'b [u8], DatagramDecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads `count` values, where `count` came from one byte. An empty list allocates nothing, and each
    /// entry consumes at least one available byte.
    pub(super) fn list<T>(
        &mut self,
        count: u8,
        mut read: impl FnMut(&mut Self) -> Result<T, DatagramDecodeError>,
    ) -> Result<Vec<T>, DatagramDecodeError> {
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const TRUNCATED: DatagramDecodeError = DatagramDecodeError::Malformed("it ends in the middle of a value");

/// Converts the length of a list to the one byte of its encoding.
pub(super) fn list_count(what: &'static str, count: usize) -> Result<u8, DatagramEncodeError> {
    u8::try_from(count).map_err(|_| DatagramEncodeError::TooMany { what, count, most: u8::MAX.into() })
}
