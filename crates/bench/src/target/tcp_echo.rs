//! TCP echo: sent bytes must return unchanged and in order, in pieces of any size.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use super::address_choice::first_reachable;
use super::echo::{EchoError, EchoPayloads};
use super::{AnswerProgress, RequestTarget, TargetAnswer, TargetRequest};

/// The maximum length of a payload: each one in flight is in memory.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// Payloads of a fixed size for one address.
#[derive(Debug)]
pub struct TcpEcho(EchoPayloads);

impl TcpEcho {
    /// Creates payloads of `bytes` bytes (1 to 1 GiB) for `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// Fails if the address is malformed or the size is out of range.
    pub fn new(address: &str, bytes: usize) -> Result<Self, EchoError> {
        EchoPayloads::new(address, bytes, MAX_PAYLOAD_BYTES, first_reachable).map(Self)
    }
}

/// The expected bytes, and the number received.
#[derive(Debug)]
pub struct ExpectedBytes {
    bytes: Arc<[u8]>,
    received: usize,
}

impl RequestTarget for TcpEcho {
    type State = ExpectedBytes;

    fn addresses(&self) -> &[SocketAddr] {
        slice::from_ref(&self.0.address)
    }

    fn next_request(&mut self) -> TargetRequest<ExpectedBytes> {
        let bytes = self.0.next_payload();
        TargetRequest { route: 0, bytes: bytes.clone(), state: ExpectedBytes { bytes, received: 0 } }
    }

    fn consume_answer(&mut self, state: &mut ExpectedBytes, bytes: &[u8]) -> AnswerProgress {
        // Bytes beyond the payload are as wrong as different ones.
        let end = state.received + bytes.len();
        if state.bytes.get(state.received..end) != Some(bytes) {
            return AnswerProgress::Malformed;
        }
        state.received = end;
        if end < state.bytes.len() {
            return AnswerProgress::Incomplete;
        }
        AnswerProgress::Complete(TargetAnswer { member: None, failure: None, reason: None, reusable: true })
    }

    fn connection_ended(&mut self, _: &mut ExpectedBytes) -> Option<TargetAnswer> {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_and_addresses_that_cannot_be_are_refused() {
        assert!(TcpEcho::new("127.0.0.1:9", 0).is_err());
        assert!(TcpEcho::new("127.0.0.1:9", MAX_PAYLOAD_BYTES + 1).is_err());
        assert!(TcpEcho::new("127.0.0.1", 9).is_err());
        assert!(TcpEcho::new("[::1]:9", 9).is_ok());
    }

    #[test]
    fn no_two_payloads_are_the_same() {
        for size in [1, 3, 8, 100] {
            let mut target = TcpEcho::new("127.0.0.1:9", size).unwrap();
            let (first, second) = (target.next_request(), target.next_request());
            assert_eq!((first.bytes.len(), second.bytes.len()), (size, size));
            assert_ne!(first.bytes, second.bytes);
        }
    }

    proptest! {
        #[test]
        fn whole_in_any_pieces_and_wrong_with_any_byte_changed(
            size in 1usize..300, piece in 1usize..50, wrong in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut target = TcpEcho::new("127.0.0.1:9", size).unwrap();
            let feed = |target: &mut TcpEcho, change: bool| {
                let TargetRequest { bytes, mut state, .. } = target.next_request();
                let mut bytes = bytes.to_vec();
                if change {
                    bytes[wrong.index(size)] ^= flip;
                }
                let mut progress = AnswerProgress::Incomplete;
                for piece in bytes.chunks(piece) {
                    if progress != AnswerProgress::Incomplete {
                        break;
                    }
                    progress = target.consume_answer(&mut state, piece);
                }
                progress
            };
            let answer = TargetAnswer { member: None, failure: None, reason: None, reusable: true };
            prop_assert_eq!(feed(&mut target, false), AnswerProgress::Complete(answer));
            prop_assert_eq!(feed(&mut target, true), AnswerProgress::Malformed);
        }
    }
}
