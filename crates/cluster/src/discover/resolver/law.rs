//! The law of what name servers answer: only an answer to the question is believed, of it only records of the
//! type that was asked for, and what comes of it is a bounded list of addresses that somebody can have. The
//! fuzz target `resolver` tries it on invented bytes, the test below on the committed corpus and on what is
//! nearly in it.
//!
//! The bytes are messages as they are sent over TCP, each behind its length.

use std::collections::BTreeMap;

use super::*;
use crate::discover::dns::{Families, Family, together};
use crate::discover::srv::{beside, chosen, members};
use crate::discover::{Listed, MOST};

/// Messages that are looked at.
const MESSAGES: usize = 4;

/// Panics if the law does not hold. Returns whether it is the address of a member, or of a server of a
/// service.
pub(crate) fn check(input: &[u8]) -> bool {
    let (mut found, mut rest) = (false, input);
    let mut asked: [Option<Reply>; 2] = [None, None];
    let mut services = Vec::new();
    for _ in 0..MESSAGES {
        let Some((length, after)) = rest.split_first_chunk::<2>() else { break };
        let (bytes, after) = after.split_at(after.len().min(u16::from_be_bytes(*length).into()));
        rest = after;
        let Ok(message) = Message::from_vec(bytes) else { continue };
        for (place, kind) in [RecordType::A, RecordType::AAAA].into_iter().enumerate() {
            asked[place] = said(&message, "web.example.", kind).or_else(|| asked[place].take());
        }
        services.extend(said(&message, "_http._tcp.example.", RecordType::SRV));
    }
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(300));
    let [four, six] = asked.clone();
    if let Ok(addresses) = together([Ok(four), Ok(six)], &mut Families::default()) {
        assert!((min..=max).contains(&addresses.good_for(min, max)));
        let all = &addresses.addresses;
        assert!(all.is_sorted_by(|one, other| one < other), "{all:?}");
        assert!(all.iter().all(|ip| !ip.is_unspecified() && !ip.is_multicast()), "{all:?}");
        found |= !all.is_empty();
    }
    for service in services {
        let servers = chosen(&service.data);
        assert!(servers.iter().all(|server| server.port != 0 && !server.target.is_root()));
        assert!(servers.iter().all(|server| server.priority == servers[0].priority));
        let mut ttl = service.ttl;
        let mut known = beside(&service.beside, Family::Any, &mut ttl);
        assert!(ttl <= service.ttl);
        // What the other answers say of each target.
        let more: Vec<IpAddr> = asked
            .iter()
            .flatten()
            .flat_map(|reply| &reply.data)
            .filter_map(crate::discover::dns::ip)
            .collect();
        for server in &servers {
            known.entry(server.target.to_lowercase()).or_insert_with(|| more.clone());
        }
        found |= listed(&servers, &known);
    }
    found
}

/// Reads an answer to a question that has its number.
fn said(message: &Message, name: &str, kind: RecordType) -> Option<Reply> {
    let name = Name::from_ascii(name).expect("a name");
    let question = Question { id: message.metadata.id, name: name.clone(), kind };
    let late = Question { id: message.metadata.id ^ 1, name, kind };
    assert!(!late.answered(message), "the number of another question");
    if !question.answered(message) {
        return None;
    }
    assert_eq!(message.metadata.message_type, MessageType::Response);
    match question.read(message) {
        Ok(Read::Reply(reply)) => {
            assert!(reply.data.iter().all(|data| data.record_type() == kind), "{:?}", reply.data);
            assert!(reply.data.len() <= message.answers.len());
            assert!(!reply.no_name || reply.data.is_empty(), "a name that is not there has no record");
            Some(reply)
        }
        Ok(Read::Elsewhere(other, _)) => {
            assert!(!other.eq_ignore_root(&question.name), "an alias of itself leads nowhere");
            None
        }
        Err(why) => {
            assert!(!why.contains(char::is_control), "{why}");
            None
        }
    }
}

fn listed(servers: &[hickory_proto::rr::rdata::SRV], known: &BTreeMap<Name, Vec<IpAddr>>) -> bool {
    let all = match members(servers, known) {
        Ok(all) => all,
        Err(why) => {
            assert!(why.contains(&MOST.to_string()), "{why}");
            return false;
        }
    };
    assert!(all.len() <= MOST);
    assert!(all.is_sorted_by(|one, other| one.address < other.address), "{all:?}");
    let good = |one: &Listed| one.capacity.is_finite() && one.capacity > 0.0 && one.address.port() != 0;
    assert!(all.iter().all(good), "{all:?}");
    !all.is_empty()
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("resolver", &[0, 1, 5, 6, 0x1c, 0x21, 0x81, 0xc0, 0x0c, 0xff], 5_000, check);
}
