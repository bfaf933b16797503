//! Datagrams as received: only a holder of the key can create one that opens, and its contents are those that
//! were sealed.

use plimsoll_wire::rfs::{
    DatagramDecodeError, DatagramKey, HEADER_LEN, KeyRing, MAX_REPORT_LEN, TRAILER_LEN,
};

use super::fields::show;
use super::rfs::keys;
use super::{Verdict, rfs};

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let opened = keys().open(input);
    let sized = (HEADER_LEN + TRAILER_LEN..=MAX_REPORT_LEN).contains(&input.len());
    assert_eq!(
        matches!(opened, Err(DatagramDecodeError::Size(len)) if len == input.len()),
        !sized,
        "{}",
        show(input)
    );
    match opened {
        Ok(opened) => {
            assert_eq!(opened.bytes(), &input[..input.len() - TRAILER_LEN]);
            guarded(input);
            rfs::check(opened.bytes());
            if opened.message().is_ok() { Verdict::Accepted } else { Verdict::Refused }
        }
        Err(_) => {
            // Any bytes can be sealed; the other law covers the contents.
            let mut sealed = b"before".to_vec();
            sealed.extend_from_slice(&input[..input.len().min(MAX_REPORT_LEN - TRAILER_LEN)]);
            keys().seal(6, &mut sealed);
            let sealed = &sealed[6..];
            if sealed.len() >= HEADER_LEN + TRAILER_LEN {
                let opened = keys().open(sealed).map(|opened| opened.bytes());
                assert_eq!(opened, Ok(&sealed[..sealed.len() - TRAILER_LEN]), "{}", show(input));
                guarded(sealed);
            }
            Verdict::Refused
        }
    }
}

/// Checks that any change to a datagram, and any other key, prevents it from opening.
fn guarded(datagram: &[u8]) {
    let shut = |datagram: &[u8]| keys().open(datagram).map(|opened| opened.bytes().len()).err();
    let len = datagram.len();
    // A sample that differs for each datagram, and both ends of the trailer's parts.
    let spread = usize::from(datagram[len - 1]);
    for at in [0, spread % len, spread * 7 % len, len / 2, len - 21, len - 20, len - 17, len - 16, len - 1] {
        let mut changed = datagram.to_vec();
        changed[at] ^= 1 << (spread % 8);
        assert!(
            matches!(shut(&changed), Some(DatagramDecodeError::Forged | DatagramDecodeError::UnknownKey(_))),
            "{}",
            show(datagram)
        );
    }
    assert!(shut(&datagram[1..]).is_some() && shut(&datagram[..len - 1]).is_some(), "{}", show(datagram));
    assert!(shut(&[datagram, &[0]].concat()).is_some(), "{}", show(datagram));
    let other = KeyRing::new(DatagramKey::new(7, &[7; 32]));
    assert_eq!(other.open(datagram).err(), Some(DatagramDecodeError::Forged), "{}", show(datagram));
    let rotated = KeyRing::new(DatagramKey::new(8, &[8; 32]));
    assert_eq!(rotated.open(datagram).err(), Some(DatagramDecodeError::UnknownKey(7)), "{}", show(datagram));
}
