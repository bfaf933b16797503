//! Payloads that must come back as they were, for the echo targets.
//!
//! Each begins with its number (as much of it as fits into eight bytes), so that an answer that belongs to
//! another request is found out; the rest is noise, the same in all.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::chance::Chance;

/// Bytes of a payload that hold its number.
pub(super) const NUMBER: usize = 8;

/// Why there can be no such echo.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    /// Nothing to come back, or more than fits.
    #[error("a payload of {size} bytes cannot be sent: expected 1 to {most}")]
    Size {
        /// As asked.
        size: usize,
        /// What one request can hold.
        most: usize,
    },
    /// `HOST:PORT` has no address.
    #[error("`{address}`: {why}; expected HOST:PORT")]
    Resolve {
        /// As given.
        address: String,
        /// What the resolver said.
        why: String,
    },
}

/// Where payloads go, and the next one.
#[derive(Debug)]
pub(super) struct Payloads {
    pub(super) address: SocketAddr,
    next: u64,
    noise: Vec<u8>,
}

impl Payloads {
    /// Of `size` bytes each, to `address` (`HOST:PORT`), or that of its addresses which is chosen.
    pub(super) fn new(
        address: &str,
        size: usize,
        most: usize,
        choose: impl FnOnce(std::vec::IntoIter<SocketAddr>) -> Option<SocketAddr>,
    ) -> Result<Self, EchoError> {
        if !(1..=most).contains(&size) {
            return Err(EchoError::Size { size, most });
        }
        let fail = |why: String| EchoError::Resolve { address: address.to_owned(), why };
        let resolved = address.to_socket_addrs().map_err(|error| fail(error.to_string()))?;
        let resolved = choose(resolved).ok_or_else(|| fail("the host has no address".to_owned()))?;
        let mut chance = Chance::new(size as u64);
        let noise = std::iter::repeat_with(|| chance.bits() as u8).take(size).collect();
        Ok(Self { address: resolved, next: 0, noise })
    }

    pub(super) fn next(&mut self) -> Arc<[u8]> {
        let number = self.next.to_be_bytes();
        self.next += 1;
        let size = self.noise.len();
        // The low bytes: a payload shorter than the number differs from its neighbours, too.
        let kept = &number[NUMBER - size.min(NUMBER)..];
        self.noise[..kept.len()].copy_from_slice(kept);
        self.noise.as_slice().into()
    }
}
