use hickory_proto::rr::rdata::{A, CNAME, SOA};
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question() -> Question {
    Question { id: 7, name: name("web.example."), kind: RecordType::A }
}

fn answer(code: ResponseCode, records: Vec<Record>) -> Message {
    let mut message = Message::response(7, OpCode::Query);
    message.add_query(Query::query(name("Web.Example."), RecordType::A));
    message.metadata.response_code = code;
    message.answers = records;
    message
}

fn a(of: &str, ttl: u32, last: u8) -> Record {
    Record::from_rdata(name(of), ttl, RData::A(A([10, 0, 0, last].into())))
}

fn alias(of: &str, ttl: u32, other: &str) -> Record {
    Record::from_rdata(name(of), ttl, RData::CNAME(CNAME(name(other))))
}

fn reply(message: &Message) -> Reply {
    match question().read(message).unwrap() {
        Read::Reply(reply) => reply,
        Read::Elsewhere(other, _) => panic!("{other}"),
    }
}

#[test]
fn servers_of_the_system() {
    let text = "# by hand\nsearch example\nnameserver 10.0.0.1\n nameserver fd00::1 # two\nnameserver fe80::1%eth0\n\
                nameserver 10.0.0.3\nnameserver 10.0.0.4\noptions ndots:5\n";
    let shown: Vec<String> = listed(text).iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.3:53"]);
    assert_eq!(listed(""), [SocketAddr::from(([127, 0, 0, 1], 53))]);
}

#[test]
fn the_question_is_one_that_servers_know() {
    let message = Message::from_vec(&question().bytes().unwrap()).unwrap();
    assert!(message.metadata.recursion_desired && message.queries.len() == 1);
    assert_eq!(message.edns.as_ref().unwrap().max_payload(), LARGEST);
    // Nobody guesses the number of the next.
    let ids: std::collections::BTreeSet<u16> =
        (0..64).map(|_| Question::new(name("a."), RecordType::A).id).collect();
    assert!(ids.len() > 32);
}

#[test]
fn answers_are_those_of_the_name_and_its_aliases() {
    let records = vec![
        a("other.example.", 1, 9),
        a("C.example.", 30, 1),
        alias("WEB.example.", 60, "b.example."),
        alias("b.example.", 20, "c.example."),
        a("c.example.", 40, 2),
    ];
    let said = reply(&answer(ResponseCode::NoError, records));
    assert_eq!((said.data.len(), said.ttl), (2, 20));
    let away = answer(ResponseCode::NoError, vec![alias("web.example.", 60, "b.example.")]);
    match question().read(&away).unwrap() {
        Read::Elsewhere(other, 60) => assert_eq!(other.to_string(), "b.example."),
        _ => panic!("an alias leads elsewhere"),
    }
    // In a circle there is nothing to be found.
    let records = vec![alias("web.example.", 6, "b.example."), alias("b.example.", 6, "web.example.")];
    let _ = question().read(&answer(ResponseCode::NoError, records)).unwrap();
}

#[test]
fn that_there_is_nothing_is_an_answer_and_a_failure_is_none() {
    let mut nothing = answer(ResponseCode::NXDomain, Vec::new());
    let soa = SOA::new(name("example."), name("h.example."), 1, 60, 60, 60, 11);
    nothing.authorities.push(Record::from_rdata(name("example."), 3600, RData::SOA(soa)));
    let said = reply(&nothing);
    assert_eq!((said.data.len(), said.ttl, said.no_name), (0, 11, true));
    let said = reply(&answer(ResponseCode::NoError, Vec::new()));
    assert_eq!((said.data.len(), said.ttl, said.no_name), (0, 0, false));
    for (code, why) in [
        (ResponseCode::ServFail, "SERVFAIL"),
        (ResponseCode::Refused, "REFUSED"),
        (ResponseCode::FormErr, "it says: "),
    ] {
        assert!(question().read(&answer(code, Vec::new())).is_err_and(|said| said.contains(why)));
    }
}

#[test]
fn only_an_answer_to_the_question_is_looked_at() {
    let good = answer(ResponseCode::NoError, vec![a("web.example.", 1, 1)]);
    assert!(question().answered(&good));
    let mut other = good.clone();
    other.metadata.id = 8;
    assert!(!question().answered(&other));
    let mut other = good.clone();
    other.metadata.message_type = MessageType::Query;
    assert!(!question().answered(&other));
    for query in
        [Query::query(name("web.example."), RecordType::AAAA), Query::query(name("x."), RecordType::A)]
    {
        let mut other = good.clone();
        other.queries = vec![query];
        assert!(!question().answered(&other));
    }
    let mut other = good;
    other.queries.clear();
    assert!(!question().answered(&other));
}

proptest! {
    /// Whatever a server sends: nothing is read that is no answer, and reading ends.
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), like in any::<bool>()) {
        if like {
            let good = answer(ResponseCode::NoError, vec![alias("web.example.", 6, "b."), a("b.", 1, 1)]).to_vec().unwrap();
            for (at, byte) in good.iter().enumerate().filter(|(at, _)| at % 7 != 3) {
                if let Some(place) = bytes.get_mut(at) {
                    *place = *byte;
                }
            }
        }
        if let Ok(message) = Message::from_vec(&bytes) && question().answered(&message) {
            let _ = question().read(&message);
        }
    }
}
