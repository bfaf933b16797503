//! What must hold for whatever is sent to a DNS listener: no panic, no answer to an answer, no more bytes than there may be. The
//! fuzz target `dns` tries it on invented bytes, the test below on the committed corpus and on what is nearly in it.

use std::net::SocketAddr;

use hickory_proto::op::Message;

use super::cookie::ServerCookie;
use super::zone::{AnswerRoom, Asker, Chosen, Family, Members, Transport, Zone};

/// Members of both families, more than an answer has room for; whether they can be used.
struct All(Vec<SocketAddr>, bool);

impl All {
    fn new(count: u8, usable: bool) -> Self {
        let four = (0..count).map(|at| SocketAddr::from(([10, 0, 0, at], 80)));
        let six = (0..count).map(|at| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, at.into()], 81)));
        Self(four.chain(six).collect(), usable)
    }
}

impl Members for All {
    fn choose(&mut self, family: Option<Family>) -> Chosen {
        let fits = |member: &&SocketAddr| family.is_none_or(|family| Family::of(**member) == family);
        match self.0.iter().find(fits) {
            Some(_) if !self.1 => Chosen::Failed,
            found => found.map_or(Chosen::None, |member| Chosen::Member(*member)),
        }
    }

    fn all(&self) -> Vec<SocketAddr> {
        self.0.clone()
    }
}

/// A client that may have this.
pub(super) struct Anybody(pub(super) AnswerRoom);

impl Asker for Anybody {
    /// Those whose own part is all zeros are good.
    fn cookie(&self, client: &[u8; 8], shown: &[u8]) -> Option<(ServerCookie, bool)> {
        Some(([7; 16], *client == [0; 8] && !shown.is_empty()))
    }

    fn room(&mut self) -> AnswerRoom {
        self.0
    }
}

/// Panics if the law does not hold. Is it answered with what was asked for?
pub(crate) fn check(input: &[u8]) -> bool {
    let zone = Zone::new("web.example", 1, 7).expect("a domain");
    let asked = Message::from_vec(input).ok();
    let mut answered = false;
    for room in [AnswerRoom::Notice, AnswerRoom::None] {
        let answer = zone.answer(input, Transport::Udp, &mut Anybody(room), &mut All::new(60, true));
        // A good cookie lifts the limit. A name may be written anew in a few bytes more.
        let good = asked.as_ref().is_some_and(|asked| asked.edns.is_some());
        assert!(
            good || answer
                .is_none_or(|answer| room == AnswerRoom::Notice && answer.len() <= input.len() + 16)
        );
    }
    for (mut members, usable) in
        [(All::new(60, true), true), (All::new(1, false), false), (All::new(0, true), false)]
    {
        for transport in [Transport::Udp, Transport::Tcp] {
            let Some(answer) = zone.answer(input, transport, &mut Anybody(AnswerRoom::Whole), &mut members)
            else {
                let answers = input.get(2).is_some_and(|flags| flags & 0x80 != 0);
                assert!(input.len() < 12 || answers, "a question is answered");
                continue;
            };
            assert!(input.len() >= 12 && input[2] & 0x80 == 0, "no answer is answered");
            assert_eq!((&answer[..2], answer[2] & 0x80), (&input[..2], 0x80));
            let edns = asked.as_ref().is_some_and(|asked| asked.edns.is_some());
            let most = if edns { 1232 } else { 512 };
            assert!(transport == Transport::Tcp || answer.len() <= most, "{} bytes over UDP", answer.len());
            let read = Message::from_vec(&answer).expect("an answer can be read");
            assert!(read.queries.len() <= 1);
            assert!(
                usable
                    || read.answers.is_empty()
                    || read.answers.iter().all(|one| one.data.to_string().contains("hostmaster"))
            );
            assert_eq!(
                zone.answer(input, transport, &mut Anybody(AnswerRoom::Whole), &mut members).as_ref(),
                Some(&answer),
                "it is a function"
            );
            answered |= !read.answers.is_empty();
        }
    }
    answered
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("dns", &[0, 1, 0xc0, 0x0c, 0xff, 0x3f, 0x40, 0x29], 2_000, check);
}
