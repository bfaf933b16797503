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
    let (strict, loose, single) = (json("web", input), answer("web", input), value("web", input));
    if let Ok(list) = &strict {
        assert_eq!(loose.as_ref(), Ok(list), "what is taken strictly is taken otherwise");
    }
    if let Ok(list) = &single {
        assert_eq!(list.len(), 1, "a key has one member");
    }
    for said in [&strict, &loose, &single] {
        match said {
            Ok(list) => list_obeys(list),
            Err(why) => assert!(why.starts_with("web:") && !why.contains(char::is_control), "{why:?}"),
        }
    }
    strict.is_ok() || loose.is_ok() || single.is_ok()
}

fn list_obeys(list: &[UnresolvedMember]) {
    let mut written = Vec::new();
    for (index, one) in list.iter().enumerate() {
        assert!(one.port != 0 && (0.001..=1e6).contains(&one.capacity), "{one:?}");
        assert!(one.limit.is_none_or(|most| (1..=1_000_000).contains(&most)), "{one:?}");
        let twice = list[..index].iter().any(|other| (&other.host, other.port) == (&one.host, one.port));
        assert!(!twice, "{one:?} is there twice");
        let address = MemberAddress { host: one.host.clone(), port: one.port }.to_string();
        written.push(serde_json::json!({
            "address": address, "capacity": one.capacity, "max_connections": one.limit,
        }));
    }
    let written = serde_json::Value::from(written).to_string();
    let again = json("again", written.as_bytes()).unwrap_or_else(|why| panic!("{written}: {why}"));
    assert_eq!(again.len(), list.len(), "{written}");
    for (one, other) in again.iter().zip(list) {
        let same = (&one.host, one.port, one.limit) == (&other.host, other.port, other.limit);
        // serde_json reads numbers to within a few units of the last place.
        let near = (one.capacity - other.capacity).abs() <= other.capacity * 1e-12;
        assert!(same && near, "{one:?} {other:?}");
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/near.rs"]
mod near;

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    near::holds("members", b"\n\"{}[],:.0123456789-eE", 10_000, check);
}
