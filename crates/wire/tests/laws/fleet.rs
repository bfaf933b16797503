//! Datagrams between the balancers of a fleet, with a valid tag: decoding does not panic, has a single
//! result, and is bounded.

use plimsoll_brain::fleet::{MAX_REPORT_BYTES, MAX_SECTION_ENTRIES};
use plimsoll_wire::fleet::{FleetDatagram, FleetPayload, MAX_MEMBERSHIP_LEN, MAX_NAME_LEN};
use plimsoll_wire::rfs::{DatagramDecodeError, MAX_REPORT_LEN, TRAILER_LEN};

use super::Verdict;
use super::fields::show;
use super::rfs::keys;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let mut sealed = input.to_vec();
    keys().seal(0, &mut sealed);
    let datagram = match FleetDatagram::decode(&keys(), &sealed) {
        Ok(datagram) => datagram,
        Err(refused) => {
            let sized = input.len() + TRAILER_LEN <= MAX_REPORT_LEN;
            assert!(
                !matches!(refused, DatagramDecodeError::Forged | DatagramDecodeError::UnknownKey(_)),
                "{}",
                show(input)
            );
            assert!(sized || matches!(refused, DatagramDecodeError::Size(_)), "{}", show(input));
            return Verdict::Refused;
        }
    };
    let mut again = b"before".to_vec();
    let written = datagram.encode(&keys(), &mut again);
    // Reports that are longer than the encoder permits can still be decoded.
    let writable = match &datagram.payload {
        FleetPayload::Membership(said) => said.len() <= MAX_MEMBERSHIP_LEN,
        FleetPayload::Report { name, report } => {
            assert!(name.len() <= MAX_NAME_LEN && !name.chars().any(char::is_control), "{}", show(input));
            let sections = &report.sections;
            report.size() <= MAX_REPORT_BYTES
                && sections.iter().all(|section| section.entries.len() <= MAX_SECTION_ENTRIES)
        }
        FleetPayload::Leave => true,
    };
    assert_eq!(written.is_ok(), writable, "{}", show(input));
    let expected = if writable { &sealed[..] } else { &[] };
    assert_eq!(&again[6..], expected, "{}", show(input));
    Verdict::Accepted
}
