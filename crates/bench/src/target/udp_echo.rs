//! UDP echo: each datagram must return unchanged. A lost one is a time-out.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use super::echo::{EchoError, EchoPayloads, NUMBER_BYTES};
use super::{AnswerProgress, RequestTarget, TargetAnswer, TargetRequest, Transport};

/// The maximum length of a datagram's payload over IPv4.
const MAX_DATAGRAM_BYTES: usize = 65_507;

/// Datagrams of a fixed size for one address.
#[derive(Debug)]
pub struct UdpEcho(EchoPayloads);

impl UdpEcho {
    /// Creates datagrams of `bytes` bytes (1 to 65,507) for `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// Fails if the address is malformed or the size is out of range.
    pub fn new(address: &str, bytes: usize) -> Result<Self, EchoError> {
        EchoPayloads::new(address, bytes, MAX_DATAGRAM_BYTES, |mut addresses| addresses.next()).map(Self)
    }
}

impl RequestTarget for UdpEcho {
    /// The expected bytes.
    type State = Arc<[u8]>;

    fn addresses(&self) -> &[SocketAddr] {
        slice::from_ref(&self.0.address)
    }

    fn transport(&self) -> Transport {
        Transport::Udp
    }

    fn next_request(&mut self) -> TargetRequest<Arc<[u8]>> {
        let bytes = self.0.next_payload();
        TargetRequest { route: 0, bytes: bytes.clone(), state: bytes }
    }

    fn consume_answer(&mut self, expected: &mut Arc<[u8]>, bytes: &[u8]) -> AnswerProgress {
        if bytes == &**expected {
            return AnswerProgress::Complete(TargetAnswer {
                member: None,
                failure: None,
                reason: None,
                reusable: true,
            });
        }
        // A network may deliver a datagram twice: the second copy of an earlier echo answers nothing.
        let payload_number =
            |bytes: &[u8]| bytes.first_chunk::<NUMBER_BYTES>().map(|number| u64::from_be_bytes(*number));
        let is_earlier = bytes.len() == expected.len() && payload_number(bytes) < payload_number(expected);
        if is_earlier { AnswerProgress::Incomplete } else { AnswerProgress::Malformed }
    }

    fn connection_ended(&mut self, _: &mut Arc<[u8]>) -> Option<TargetAnswer> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_datagram_or_a_late_copy_of_an_earlier_one() {
        let mut target = UdpEcho::new("127.0.0.1:9", 32).unwrap();
        let first = target.next_request();
        let mut second = target.next_request();
        assert_eq!(target.consume_answer(&mut second.state, &first.bytes), AnswerProgress::Incomplete);
        assert!(matches!(
            target.consume_answer(&mut second.state, &second.bytes),
            AnswerProgress::Complete(_)
        ));
        let third = target.next_request();
        assert_eq!(target.consume_answer(&mut second.state, &third.bytes), AnswerProgress::Malformed);
        for datagram in [&second.bytes[..31], b"", &[0xff; 33]] {
            assert_eq!(target.consume_answer(&mut second.state, datagram), AnswerProgress::Malformed);
        }
        let mut changed = second.bytes.to_vec();
        changed[20] ^= 1;
        assert_eq!(target.consume_answer(&mut second.state, &changed), AnswerProgress::Malformed);
    }

    #[test]
    fn datagrams_that_cannot_be_are_refused() {
        assert!(UdpEcho::new("127.0.0.1:9", 0).is_err());
        assert!(UdpEcho::new("127.0.0.1:9", MAX_DATAGRAM_BYTES + 1).is_err());
        assert!(UdpEcho::new("127.0.0.1:9", MAX_DATAGRAM_BYTES).is_ok());
    }
}
