//! What must hold whatever a daemon that has the key says of who is there: no panic, nothing that is too long to be sent, nothing that
//! does not begin with who says it, and a life of one's own that only grows. The fuzz target `gossip` tries it on invented bytes, the
//! test below on the committed corpus and on what is nearly in it.

use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_wire::rfs::Gossip as Datagram;

use super::gossip::{self, Gossip, Node};

/// Panics if the law does not hold. Was anything of it understood?
pub(crate) fn check(input: &[u8]) -> bool {
    let own = Node { member: 1, life: 5, address: ([10, 0, 0, 1], 7447).into() };
    let mut gossip = Gossip::new(own, 7, Time(0));
    let known = [SocketAddr::from(([10, 0, 0, 2], 7447))];
    let (mut now, mut life, mut latest, mut understood) = (1_u64, own.life, own.life, false);
    // All of it, and what is left of it when it is cut in two: whoever says one thing says another.
    let (first, second) = input.split_at(input.len() / 2);
    for said in [input, first, second, input] {
        // What is looked at before it is believed is all that is believed.
        let about = gossip::about(said);
        latest = latest.max(about.map_or(0, |about| about.latest));
        gossip.take(Time(now), said);
        while let Some((_, datagram)) = gossip.poll_transmit() {
            assert!(about.is_some(), "answered, and not understood");
            understood |= said == input;
            assert!(datagram.said.len() <= Datagram::MOST, "{} bytes", datagram.said.len());
            // Its number, then (behind its life) its address.
            let speaker = (datagram.said.get(..2), datagram.said.get(6..13));
            let own = (Some(&[0, 1][..]), Some(&[4, 0x1d, 0x17, 10, 0, 0, 1][..]));
            assert_eq!(speaker, own, "{}", datagram.said.escape_ascii());
        }
        while gossip.poll_news().is_some() {
            understood = true;
        }
        assert!(gossip.life() >= life, "from life {life} to {}", gossip.life());
        assert!(gossip.others().all(|other| other.address != own.address), "it is not its own other");
        assert!(gossip.others().all(|other| other.life <= latest), "a life that nobody has seen");
        life = gossip.life();
        now += 300_000_000;
        gossip.wake(Time(now), known.into_iter());
        while gossip.poll_transmit().is_some() {}
    }
    understood
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("gossip", &[0, 1, 2, 4, 6, 7, 10, 0xff], 5_000, check);
}
