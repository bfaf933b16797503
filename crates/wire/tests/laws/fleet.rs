//! Datagrams between the balancers of a fleet, with a valid tag: decoding does not panic, has a single
//! result, and is bounded.

use plimsoll_brain::fleet::{MOST, WORDS};
use plimsoll_wire::fleet::{Datagram, LONGEST_NAME, MOST_SAID, Says};
use plimsoll_wire::rfs::{LONGEST_REPORT, Refused, TRAILER};

use super::Verdict;
use super::fields::show;
use super::rfs::keys;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let mut sealed = input.to_vec();
    keys().seal(0, &mut sealed);
    let datagram = match Datagram::decode(&keys(), &sealed) {
        Ok(datagram) => datagram,
        Err(refused) => {
            let sized = input.len() + TRAILER <= LONGEST_REPORT;
            assert!(!matches!(refused, Refused::Forged | Refused::UnknownKey(_)), "{}", show(input));
            assert!(sized || matches!(refused, Refused::Size(_)), "{}", show(input));
            return Verdict::Refused;
        }
    };
    let mut again = b"before".to_vec();
    let written = datagram.encode(&keys(), &mut again);
    // Reports that are longer than the encoder permits can still be decoded.
    let writable = match &datagram.says {
        Says::Membership(said) => said.len() <= MOST_SAID,
        Says::Report { name, report } => {
            assert!(name.len() <= LONGEST_NAME && !name.chars().any(char::is_control), "{}", show(input));
            let sections = &report.sections;
            report.size() <= MOST && sections.iter().all(|section| section.words.len() <= WORDS)
        }
        Says::Farewell => true,
    };
    assert_eq!(written.is_ok(), writable, "{}", show(input));
    let expected = if writable { &sealed[..] } else { &[] };
    assert_eq!(&again[6..], expected, "{}", show(input));
    Verdict::Accepted
}
