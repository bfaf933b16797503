//! The law of lists of members in JSON, for any bytes of a server, a file or a key of etcd. A list is
//! accepted as a whole or refused on one line. An accepted list is within its bounds, names no member twice
//! and is the same list after it is written and read again.
//!
//! The fuzz target `members` tries it on invented bytes, the test below on the committed corpus and on
//! mutations of it.

use plimsoll_cluster::discover::UnresolvedMember;

use super::json::{answer, json, value};
use crate::MemberAddress;

/// Panics if the law does not hold. Returns whether the input is a list, or a value of a key.
pub(crate) fn check(input: &[u8]) -> bool {
    let (strict_result, loose_result, single_result) =
        (json("web", input), answer("web", input), value("web", input));
    if let Ok(members) = &strict_result {
        assert_eq!(loose_result.as_ref(), Ok(members), "what is taken strictly is taken otherwise");
    }
    if let Ok(members) = &single_result {
        assert_eq!(members.len(), 1, "a key has one member");
    }
    for result in [&strict_result, &loose_result, &single_result] {
        match result {
            Ok(members) => assert_valid_members(members),
            Err(error) => {
                assert!(error.starts_with("web:") && !error.contains(char::is_control), "{error:?}")
            }
        }
    }
    strict_result.is_ok() || loose_result.is_ok() || single_result.is_ok()
}

fn assert_valid_members(members: &[UnresolvedMember]) {
    let mut json_members = Vec::new();
    for (index, member) in members.iter().enumerate() {
        assert!(member.port != 0 && (0.001..=1e6).contains(&member.capacity), "{member:?}");
        assert!(member.limit.is_none_or(|most| (1..=1_000_000).contains(&most)), "{member:?}");
        let is_duplicate =
            members[..index].iter().any(|other| (&other.host, other.port) == (&member.host, member.port));
        assert!(!is_duplicate, "{member:?} is there twice");
        let address = MemberAddress { host: member.host.clone(), port: member.port }.to_string();
        json_members.push(serde_json::json!({
            "address": address, "capacity": member.capacity, "max_connections": member.limit,
        }));
    }
    let json_text = serde_json::Value::from(json_members).to_string();
    let reparsed = json("again", json_text.as_bytes()).unwrap_or_else(|error| panic!("{json_text}: {error}"));
    assert_eq!(reparsed.len(), members.len(), "{json_text}");
    for (member, original) in reparsed.iter().zip(members) {
        let is_same =
            (&member.host, member.port, member.limit) == (&original.host, original.port, original.limit);
        // serde_json reads numbers to within a few units of the last place.
        let is_near = (member.capacity - original.capacity).abs() <= original.capacity * 1e-12;
        assert!(is_same && is_near, "{member:?} {original:?}");
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/near.rs"]
mod near;

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    near::holds("members", b"\n\"{}[],:.0123456789-eE", 10_000, check);
}
