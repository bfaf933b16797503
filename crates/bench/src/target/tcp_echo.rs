//! TCP echo: sent bytes must return unchanged and in order, in pieces of any size.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use super::echo::{EchoError, Payloads};
use super::place::reachable;
use super::{Answer, Ask, Step, Target};

/// The maximum length of a payload: each one in flight is in memory.
const MAX_BYTES: usize = 1 << 30;

/// Payloads of a fixed size for one address.
#[derive(Debug)]
pub struct TcpEcho(Payloads);

impl TcpEcho {
    /// Creates payloads of `bytes` bytes (1 to 1 GiB) for `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// Fails if the address is malformed or the size is out of range.
    pub fn new(address: &str, bytes: usize) -> Result<Self, EchoError> {
        Payloads::new(address, bytes, MAX_BYTES, reachable).map(Self)
    }
}

/// The expected bytes, and the number received.
#[derive(Debug)]
pub struct Expected {
    bytes: Arc<[u8]>,
    seen: usize,
}

impl Target for TcpEcho {
    type State = Expected;

    fn addresses(&self) -> &[SocketAddr] {
        slice::from_ref(&self.0.address)
    }

    fn request(&mut self) -> Ask<Expected> {
        let bytes = self.0.next();
        Ask { route: 0, bytes: bytes.clone(), state: Expected { bytes, seen: 0 } }
    }

    fn answer(&mut self, state: &mut Expected, bytes: &[u8]) -> Step {
        // Bytes beyond the payload are as wrong as different ones.
        let end = state.seen + bytes.len();
        if state.bytes.get(state.seen..end) != Some(bytes) {
            return Step::Malformed;
        }
        state.seen = end;
        if end < state.bytes.len() {
            return Step::More;
        }
        Step::Done(Answer { member: None, fault: None, reason: None, reusable: true })
    }

    fn end(&mut self, _: &mut Expected) -> Option<Answer> {
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
        assert!(TcpEcho::new("127.0.0.1:9", MAX_BYTES + 1).is_err());
        assert!(TcpEcho::new("127.0.0.1", 9).is_err());
        assert!(TcpEcho::new("[::1]:9", 9).is_ok());
    }

    #[test]
    fn no_two_payloads_are_the_same() {
        for size in [1, 3, 8, 100] {
            let mut target = TcpEcho::new("127.0.0.1:9", size).unwrap();
            let (first, second) = (target.request(), target.request());
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
                let Ask { bytes, mut state, .. } = target.request();
                let mut bytes = bytes.to_vec();
                if change {
                    bytes[wrong.index(size)] ^= flip;
                }
                let mut step = Step::More;
                for piece in bytes.chunks(piece) {
                    if step != Step::More {
                        break;
                    }
                    step = target.answer(&mut state, piece);
                }
                step
            };
            let whole = Answer { member: None, fault: None, reason: None, reusable: true };
            prop_assert_eq!(feed(&mut target, false), Step::Done(whole));
            prop_assert_eq!(feed(&mut target, true), Step::Malformed);
        }
    }
}
