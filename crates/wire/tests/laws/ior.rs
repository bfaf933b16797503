//! References to objects, as text or as the bytes of an encapsulation. A valid reference survives writing and
//! parsing; one that consists of bytes stays the same byte for byte.

use plimsoll_wire::giop::{ByteOrder, CdrReader, Corbaloc, Corbaname, Ior};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    if let Ok(text) = std::str::from_utf8(input) {
        if let Ok(ior) = text.parse::<Ior>() {
            return reference(&ior, input);
        }
        if let Ok(place) = text.parse::<Corbaloc>() {
            return location(&place, input);
        }
        if let Ok(name) = text.parse::<Corbaname>() {
            return location(&name.service, input);
        }
    }
    match CdrReader::encapsulation(input).and_then(|mut reader| Ior::read(&mut reader)) {
        Ok(ior) => reference(&ior, input),
        Err(_) => Verdict::Refused,
    }
}

fn reference(ior: &Ior, input: &[u8]) -> Verdict {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let again = ior.text(order).parse::<Ior>();
        assert_eq!(again.as_ref(), Ok(ior), "{}", show(input));
    }
    for profile in ior.iiop_profiles() {
        assert!(profile.addresses().count() > 0);
        for component in &profile.components {
            if let Some(sets) = component.code_sets() {
                assert_eq!(sets.component(ByteOrder::Big).code_sets(), Some(sets), "{}", show(input));
            }
        }
        for order in [ByteOrder::Big, ByteOrder::Little] {
            let written = Ior { profiles: vec![profile.to_tagged(order)], ..Ior::default() };
            assert_eq!(written.first_iiop_profile().as_ref(), Some(&profile), "{}", show(input));
        }
    }
    if let Some(place) = Corbaloc::from_ior(ior) {
        assert!(!place.to_string().is_empty());
    }
    Verdict::Accepted
}

fn location(place: &Corbaloc, input: &[u8]) -> Verdict {
    let again = place.to_string().parse::<Corbaloc>();
    assert_eq!(again.as_ref(), Ok(place), "{}", show(input));
    let ior = place.ior();
    assert_eq!(Corbaloc::from_ior(&ior).as_ref(), Some(place), "{}", show(input));
    reference(&ior, input);
    Verdict::Accepted
}
