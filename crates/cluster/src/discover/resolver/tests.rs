use hickory_proto::rr::rdata::{A, CNAME, SOA};
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question() -> DnsQuery {
    DnsQuery { id: 7, name: name("web.example."), kind: RecordType::A }
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

fn reply(message: &Message) -> DnsReply {
    match question().parse(message).unwrap() {
        ParsedReply::Reply(reply) => reply,
        ParsedReply::Alias(other, _) => panic!("{other}"),
    }
}

#[test]
fn servers_of_the_system() {
    let text = "# by hand\nsearch example\nnameserver 10.0.0.1\n nameserver fd00::1 # two\nnameserver \
                fe80::1%eth0\n\
                nameserver 10.0.0.3\nnameserver 10.0.0.4\noptions ndots:5\n";
    let shown: Vec<String> = parse_nameservers(text).iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.3:53"]);
    assert_eq!(parse_nameservers(""), [SocketAddr::from(([127, 0, 0, 1], 53))]);
}

#[test]
fn the_question_is_one_that_servers_know() {
    let message = Message::from_vec(&question().encode().unwrap()).unwrap();
    assert!(message.metadata.recursion_desired && message.queries.len() == 1);
    assert_eq!(message.edns.as_ref().unwrap().max_payload(), MAX_UDP_LENGTH);
    // The next ID is unpredictable.
    let ids: std::collections::BTreeSet<u16> =
        (0..64).map(|_| DnsQuery::new(name("a."), RecordType::A).id).collect();
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
    match question().parse(&away).unwrap() {
        ParsedReply::Alias(other, 60) => assert_eq!(other.to_string(), "b.example."),
        _ => panic!("an alias leads elsewhere"),
    }
    // A circle of aliases yields no records.
    let records = vec![alias("web.example.", 6, "b.example."), alias("b.example.", 6, "web.example.")];
    let _ = question().parse(&answer(ResponseCode::NoError, records)).unwrap();
}

#[test]
fn that_there_is_nothing_is_an_answer_and_a_failure_is_none() {
    let mut nothing = answer(ResponseCode::NXDomain, Vec::new());
    let soa = SOA::new(name("example."), name("h.example."), 1, 60, 60, 60, 11);
    nothing.authorities.push(Record::from_rdata(name("example."), 3600, RData::SOA(soa)));
    let said = reply(&nothing);
    assert_eq!((said.data.len(), said.ttl, said.name_missing), (0, 11, true));
    let said = reply(&answer(ResponseCode::NoError, Vec::new()));
    assert_eq!((said.data.len(), said.ttl, said.name_missing), (0, 0, false));
    for (code, why) in [
        (ResponseCode::ServFail, "SERVFAIL"),
        (ResponseCode::Refused, "REFUSED"),
        (ResponseCode::FormErr, "it says: "),
    ] {
        assert!(question().parse(&answer(code, Vec::new())).is_err_and(|said| said.contains(why)));
    }
}

#[test]
fn only_an_answer_to_the_question_is_looked_at() {
    let good = answer(ResponseCode::NoError, vec![a("web.example.", 1, 1)]);
    assert!(question().is_answered_by(&good));
    let mut other = good.clone();
    other.metadata.id = 8;
    assert!(!question().is_answered_by(&other));
    let mut other = good.clone();
    other.metadata.message_type = MessageType::Query;
    assert!(!question().is_answered_by(&other));
    for query in
        [Query::query(name("web.example."), RecordType::AAAA), Query::query(name("x."), RecordType::A)]
    {
        let mut other = good.clone();
        other.queries = vec![query];
        assert!(!question().is_answered_by(&other));
    }
    let mut other = good;
    other.queries.clear();
    assert!(!question().is_answered_by(&other));
}

proptest! {
    /// Random bytes from a server are never accepted as a response, and parsing ends.
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), like in any::<bool>()) {
        if like {
            let records = vec![alias("web.example.", 6, "b."), a("b.", 1, 1)];
            let good = answer(ResponseCode::NoError, records).to_vec().unwrap();
            for (at, byte) in good.iter().enumerate().filter(|(at, _)| at % 7 != 3) {
                if let Some(place) = bytes.get_mut(at) {
                    *place = *byte;
                }
            }
        }
        if let Ok(message) = Message::from_vec(&bytes) && question().is_answered_by(&message) {
            let _ = question().parse(&message);
        }
    }
}

/// Starts a server that responds to each query with these messages.
async fn server(says: impl Fn(&Message) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            for bytes in says(&Message::from_vec(&buffer[..len]).unwrap()) {
                socket.send_to(&bytes, from).await.unwrap();
            }
        }
    });
    address
}

/// Builds the response to a query with these records.
fn to(asked: &Message, code: ResponseCode, records: Vec<Record>) -> Message {
    let mut message = Message::response(asked.metadata.id, OpCode::Query);
    message.add_queries(asked.queries.iter().cloned());
    message.metadata.response_code = code;
    message.answers = records;
    message
}

async fn ask(servers: Vec<SocketAddr>, millis: u64) -> Result<DnsReply, String> {
    let settings = ResolverSettings { servers, timeout: Duration::from_millis(millis) };
    Resolver::new(&settings, 1).await.query(&name("web.example."), RecordType::A).await
}

#[tokio::test]
async fn what_is_no_answer_is_passed_over() {
    let says = |asked: &Message| {
        let good = to(asked, ResponseCode::NoError, vec![a("web.example.", 9, 1)]);
        let mut other = to(asked, ResponseCode::NoError, vec![a("web.example.", 9, 2)]);
        other.metadata.id = asked.metadata.id.wrapping_add(1);
        let mut about = to(asked, ResponseCode::NoError, vec![a("web.example.", 9, 3)]);
        about.queries = vec![Query::query(name("mail.example."), RecordType::A)];
        vec![b"junk".to_vec(), other.to_vec().unwrap(), about.to_vec().unwrap(), good.to_vec().unwrap()]
    };
    let reply = ask(vec![server(says).await], 60_000).await.unwrap();
    assert_eq!((reply.data, reply.ttl), (vec![RData::A(A([10, 0, 0, 1].into()))], 9));
}

#[tokio::test]
async fn another_server_is_asked_when_one_fails_or_is_silent() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let failing = server(|asked| vec![to(asked, ResponseCode::ServFail, Vec::new()).to_vec().unwrap()]).await;
    let good = server(|asked| {
        vec![to(asked, ResponseCode::NoError, vec![a("web.example.", 9, 1)]).to_vec().unwrap()]
    })
    .await;
    let silent_at = silent.local_addr().unwrap();
    // A sixth of that for each query, with two rounds.
    assert!(ask(vec![failing, silent_at, good], 12_000).await.is_ok());
    let last = format!("{failing} about web.example. A: ");
    let why = ask(vec![failing], 60_000).await.unwrap_err();
    assert!(why.starts_with(&last) && why.ends_with("(SERVFAIL)"), "{why}");
    let why = ask(vec![silent_at, failing], 400).await.unwrap_err();
    assert!(why.starts_with(&last), "{why}");
    let why = ask(vec![silent_at], 100).await.unwrap_err();
    assert!(why.contains("no answer in "), "{why}");
}

#[tokio::test]
async fn aliases_are_asked_about() {
    let asked_for = |asked: &Message| asked.queries[0].name().to_string();
    let there = server(move |asked| {
        let records = match asked_for(asked).as_str() {
            "web.example." => vec![alias("web.example.", 5, "b.example.")],
            _ => vec![a("b.example.", 60, 1)],
        };
        vec![to(asked, ResponseCode::NoError, records).to_vec().unwrap()]
    })
    .await;
    let reply = ask(vec![there], 60_000).await.unwrap();
    assert_eq!(
        (reply.data.len(), reply.ttl),
        (1, 5),
        "an alias is good for as long as the shorter of the two"
    );
    // A circle that no single response shows.
    let circle = server(move |asked| {
        let name = asked_for(asked);
        let other = if name == "web.example." { "b.example." } else { "web.example." };
        vec![to(asked, ResponseCode::NoError, vec![alias(&name, 5, other)]).to_vec().unwrap()]
    })
    .await;
    let why = ask(vec![circle], 120_000).await.unwrap_err();
    assert!(why.ends_with("more than 8 aliases"), "{why}");
}

#[tokio::test]
async fn an_answer_that_was_cut_is_asked_for_over_tcp() {
    // A port that is free for both.
    let (listener, socket) = loop {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
            break (listener, socket);
        }
    };
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
        let asked = Message::from_vec(&buffer[..len]).unwrap();
        let mut cut = to(&asked, ResponseCode::NoError, Vec::new());
        cut.metadata.truncation = true;
        socket.send_to(&cut.to_vec().unwrap(), from).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut question = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut question).await.unwrap();
        let asked = Message::from_vec(&question).unwrap();
        let records = (0..250).map(|last| a("web.example.", 9, last)).collect();
        let bytes = to(&asked, ResponseCode::NoError, records).to_vec().unwrap();
        stream.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
    });
    assert_eq!(ask(vec![address], 60_000).await.unwrap().data.len(), 250);
}
