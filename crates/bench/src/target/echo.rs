//! Payloads of the echo targets, which must return unchanged.
//!
//! Each begins with its number (as much of it as fits into eight bytes), so that an answer to another request
//! is detected; the rest is noise, the same in all.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::rng::SplitMix64;

/// The bytes of a payload that hold its number.
pub(super) const NUMBER_BYTES: usize = 8;

/// The reason why an echo target is invalid.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    /// The payload is empty, or too long.
    #[error("a payload of {size} bytes cannot be sent: expected 1 to {most}")]
    Size {
        /// The requested size.
        size: usize,
        /// The maximum size of one request.
        most: usize,
    },
    /// The host of `HOST:PORT` has no address.
    #[error("`{address}`: {why}; expected HOST:PORT")]
    Resolve {
        /// The given address.
        address: String,
        /// The resolver's message.
        why: String,
    },
}

/// The destination of payloads, and the next one.
#[derive(Debug)]
pub(super) struct EchoPayloads {
    pub(super) address: SocketAddr,
    next_number: u64,
    noise: Vec<u8>,
}

impl EchoPayloads {
    /// Creates payloads of `size` bytes each for `address` (`HOST:PORT`); `choose` selects one of its
    /// addresses.
    pub(super) fn new(
        address: &str,
        size: usize,
        max_size: usize,
        choose_address: impl FnOnce(std::vec::IntoIter<SocketAddr>) -> Option<SocketAddr>,
    ) -> Result<Self, EchoError> {
        if !(1..=max_size).contains(&size) {
            return Err(EchoError::Size { size, most: max_size });
        }
        let resolve_error = |reason: String| EchoError::Resolve { address: address.to_owned(), why: reason };
        let candidates = address.to_socket_addrs().map_err(|error| resolve_error(error.to_string()))?;
        let resolved_address =
            choose_address(candidates).ok_or_else(|| resolve_error("the host has no address".to_owned()))?;
        let mut rng = SplitMix64::new(size as u64);
        let noise = std::iter::repeat_with(|| rng.bits() as u8).take(size).collect();
        Ok(Self { address: resolved_address, next_number: 0, noise })
    }

    pub(super) fn next_payload(&mut self) -> Arc<[u8]> {
        let number = self.next_number.to_be_bytes();
        self.next_number += 1;
        let size = self.noise.len();
        // The low bytes, so that short payloads differ from their neighbours, too.
        let suffix = &number[NUMBER_BYTES - size.min(NUMBER_BYTES)..];
        self.noise[..suffix.len()].copy_from_slice(suffix);
        self.noise.as_slice().into()
    }
}
