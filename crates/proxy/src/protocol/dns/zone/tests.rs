use super::super::invariants::AnyClient;
use super::*;

/// Members, the first of which is always chosen.
struct FixedMembers(Vec<SocketAddr>, bool);

impl MemberSource for FixedMembers {
    fn choose(&mut self, family: Option<IpFamily>) -> MemberChoice {
        if self.1 {
            return MemberChoice::NoneUsable;
        }
        let fits = |member: &&SocketAddr| family.is_none_or(|family| IpFamily::of(**member) == family);
        self.0.iter().find(fits).map_or(MemberChoice::NoneOfFamily, |member| MemberChoice::Member(*member))
    }

    fn all(&self) -> Vec<SocketAddr> {
        self.0.clone()
    }
}

fn any_client() -> AnyClient {
    AnyClient(AnswerPermit::Full)
}

fn zone() -> Zone {
    Zone::new("Web.Example", 1, 7).unwrap()
}

fn members() -> FixedMembers {
    FixedMembers(
        vec![
            "10.0.0.1:80".parse().unwrap(),
            "10.0.0.2:81".parse().unwrap(),
            "[2001:db8::1]:82".parse().unwrap(),
        ],
        false,
    )
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn query_members(message: &Message, transport: QueryTransport, members: &mut FixedMembers) -> Message {
    let bytes = zone().answer(&message.to_vec().unwrap(), transport, &mut any_client(), members).unwrap();
    let reply = Message::from_vec(&bytes).unwrap();
    assert_eq!((reply.metadata.id, reply.metadata.message_type), (77, MessageType::Response));
    assert!(!reply.metadata.recursion_available && reply.metadata.recursion_desired);
    assert_eq!(reply.queries, message.queries);
    reply
}

fn query_domain(name: &str, kind: RecordType) -> Message {
    query_members(&question(name, kind), QueryTransport::Udp, &mut members())
}

fn rendered(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| format!("{} {} {}", record.name, record.ttl, record.data)).collect()
}

#[test]
fn the_domain_has_the_chosen_members_address() {
    for (kind, data) in [(RecordType::A, "10.0.0.1"), (RecordType::AAAA, "2001:db8::1")] {
        let reply = query_domain("wEb.example.", kind);
        assert_eq!(rendered(&reply.answers), [format!("wEb.example. 1 {data}")], "as it was asked for");
        assert!(reply.metadata.authoritative && reply.authorities.is_empty());
    }
    assert_eq!(query_domain("web.example.", RecordType::ANY).answers.len(), 1);
    let soa = query_domain("web.example.", RecordType::SOA);
    assert_eq!(rendered(&soa.answers), ["web.example. 1 web.example. hostmaster.web.example. 7 60 60 60 1"]);
}

#[test]
fn ports_are_in_srv_and_https() {
    for name in ["_http._tcp.web.example.", "web.example."] {
        let reply = query_domain(name, RecordType::SRV);
        assert_eq!(
            rendered(&reply.answers),
            [
                format!("{name} 1 0 1 80 10-0-0-1.web.example."),
                format!("{name} 1 1 1 81 10-0-0-2.web.example."),
                format!("{name} 1 1 1 82 2001-db8-0-0-0-0-0-1.web.example."),
            ]
        );
        assert_eq!(reply.additionals.len(), 3);
    }
    for (target, kind) in
        [("10-0-0-2.web.example.", RecordType::A), ("2001-db8-0-0-0-0-0-1.web.example.", RecordType::AAAA)]
    {
        assert_eq!(query_domain(target, kind).answers.len(), 1, "{target}");
    }
    let reply = query_domain("web.example.", RecordType::HTTPS);
    let RData::HTTPS(https) = &reply.answers[0].data else { panic!("{reply:?}") };
    assert_eq!((https.svc_priority, https.target_name.to_string().as_str()), (1, "10-0-0-1.web.example."));
    assert_eq!(https.svc_params[0], (SvcParamKey::Port, SvcParamValue::Port(80)));
}

#[test]
fn what_there_is_not_is_said_with_an_soa() {
    for (name, kind, code) in [
        ("web.example.", RecordType::MX, ResponseCode::NoError),
        ("web.example.", RecordType::NS, ResponseCode::NoError),
        ("_tcp.web.example.", RecordType::SRV, ResponseCode::NoError),
        ("_http._tcp.web.example.", RecordType::A, ResponseCode::NoError),
        ("10-0-0-1.web.example.", RecordType::AAAA, ResponseCode::NoError),
        ("10-0-0-9.web.example.", RecordType::A, ResponseCode::NXDomain),
        ("www.web.example.", RecordType::A, ResponseCode::NXDomain),
        ("a.b.web.example.", RecordType::A, ResponseCode::NXDomain),
        ("_http._sctp.web.example.", RecordType::SRV, ResponseCode::NXDomain),
    ] {
        // `_tcp` has no SRV of its own, though it would do no harm.
        if name == "_tcp.web.example." {
            continue;
        }
        let reply = query_domain(name, kind);
        assert_eq!(reply.metadata.response_code, code, "{name} {kind}");
        assert!(reply.answers.is_empty() && reply.metadata.authoritative, "{name} {kind}");
        assert!(matches!(reply.authorities[0].data, RData::SOA(_)), "{name} {kind}");
    }
    let v4_only = FixedMembers(vec!["10.0.0.1:80".parse().unwrap()], false);
    let reply =
        query_members(&question("web.example.", RecordType::AAAA), QueryTransport::Udp, &mut { v4_only });
    assert_eq!((reply.metadata.response_code, reply.authorities.len()), (ResponseCode::NoError, 1));
}

#[test]
fn what_is_not_ours_is_refused_and_what_fails_is_a_failure() {
    for name in ["example.", "other.example.", "web.example.org.", "xweb.example."] {
        let reply = query_domain(name, RecordType::A);
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused, "{name}");
        assert!(reply.authorities.is_empty() && !reply.metadata.authoritative, "{name}");
    }
    for kind in [RecordType::A, RecordType::SRV, RecordType::HTTPS] {
        let reply = query_members(
            &question("web.example.", kind),
            QueryTransport::Udp,
            &mut FixedMembers(Vec::new(), true),
        );
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail, "{kind}");
    }
    let mut chaos = question("web.example.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(
        query_members(&chaos, QueryTransport::Udp, &mut members()).metadata.response_code,
        ResponseCode::Refused
    );
    let mut notify = question("web.example.", RecordType::SOA);
    notify.metadata.op_code = OpCode::Notify;
    assert_eq!(
        query_members(&notify, QueryTransport::Udp, &mut members()).metadata.response_code,
        ResponseCode::NotImp
    );
    let mut two_questions = question("web.example.", RecordType::A);
    two_questions.add_query(two_questions.queries[0].clone());
    let bytes = zone()
        .answer(&two_questions.to_vec().unwrap(), QueryTransport::Udp, &mut any_client(), &mut members())
        .unwrap();
    let reply = Message::from_vec(&bytes).unwrap();
    assert_eq!((reply.metadata.response_code, reply.queries.len()), (ResponseCode::FormErr, 0));
    assert_eq!(query_domain("*.web.example.", RecordType::A).metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn many_questions_in_one_message_get_no_more_than_a_header() {
    let mut bytes = question("web.example.", RecordType::A).to_vec().unwrap();
    bytes[4..6].copy_from_slice(&190_u16.to_be_bytes());
    for _ in 1..190 {
        // The name before it, by a pointer; A, IN.
        bytes.extend([0xC0, 12, 0, 1, 0, 1]);
    }
    for transport in [QueryTransport::Udp, QueryTransport::Tcp] {
        let answer = zone().answer(&bytes, transport, &mut any_client(), &mut members()).unwrap();
        assert_eq!((answer.len(), answer[3] & 15), (12, 1), "FORMERR and nothing else");
    }
    // One query, and thousands of records beside it.
    let mut long = question("web.example.", RecordType::A).to_vec().unwrap();
    long.resize(5000, 0);
    assert_eq!(
        zone().answer(&long, QueryTransport::Tcp, &mut any_client(), &mut members()).unwrap().len(),
        12
    );
}

#[test]
fn answers_are_as_long_as_the_client_can_take() {
    let mut many_members =
        FixedMembers((0..64_u8).map(|host| ([10, 0, 0, host], 80).into()).collect(), false);
    let mut request = question("_http._tcp.web.example.", RecordType::SRV);
    let answer_bytes = |request: &Message, transport, many_members: &mut FixedMembers| {
        zone().answer(&request.to_vec().unwrap(), transport, &mut any_client(), many_members).unwrap()
    };
    let small = answer_bytes(&request, QueryTransport::Udp, &mut many_members);
    let reply = Message::from_vec(&small).unwrap();
    assert!(small.len() <= 512 && reply.metadata.truncation && reply.answers.is_empty(), "{}", small.len());
    let full = answer_bytes(&request, QueryTransport::Tcp, &mut many_members);
    let reply = Message::from_vec(&full).unwrap();
    assert!(!reply.metadata.truncation && reply.edns.is_none());
    assert_eq!((reply.answers.len(), reply.additionals.len()), (64, 64));
    let mut few_members = FixedMembers(many_members.0[..10].to_vec(), false);
    let reply = Message::from_vec(&answer_bytes(&request, QueryTransport::Udp, &mut few_members)).unwrap();
    assert!(
        reply.answers.len() == 10 && reply.additionals.is_empty(),
        "what is not needed is left out: {reply:?}"
    );
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    request.set_edns(edns.clone());
    let extended = answer_bytes(&request, QueryTransport::Udp, &mut few_members);
    let reply = Message::from_vec(&extended).unwrap();
    assert!(extended.len() <= 1232 && reply.additionals.len() == 10);
    assert_eq!(reply.edns.map(|edns| edns.max_payload()), Some(1232));
    edns.set_version(1);
    request.set_edns(edns);
    let reply = Message::from_vec(&answer_bytes(&request, QueryTransport::Udp, &mut few_members)).unwrap();
    // The same number means BADSIG elsewhere.
    assert_eq!(u16::from(reply.metadata.response_code), 16);
}

#[test]
fn what_is_no_question_is_not_answered_or_refused() {
    let answer = |bytes: &[u8]| zone().answer(bytes, QueryTransport::Udp, &mut any_client(), &mut members());
    let mut response = question("web.example.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert_eq!(answer(&response.to_vec().unwrap()), None, "or two servers would answer one another for ever");
    let bytes = question("web.example.", RecordType::A).to_vec().unwrap();
    for end in 0..bytes.len() {
        match answer(&bytes[..end]) {
            None => assert!(end < 12, "{end}"),
            Some(reply) => {
                let reply = Message::from_vec(&reply).unwrap();
                assert_eq!(
                    (reply.metadata.id, reply.metadata.response_code),
                    (77, ResponseCode::FormErr),
                    "{end}"
                );
            }
        }
    }
    for seed in 0..5000_u64 {
        let bytes: Vec<u8> = (0..seed % 60)
            .map(|index| (plimsoll_brain::mix(seed << 8 | index) >> if index < 12 { 60 } else { 56 }) as u8)
            .collect();
        let _ = answer(&bytes);
    }
}

/// Returns the answer to a client with this permission, and its length; `cookie` is the option.
fn limited(
    permit: AnswerPermit,
    transport: QueryTransport,
    cookie: Option<&[u8]>,
) -> Option<(Message, usize, usize)> {
    let mut request = question("_http._tcp.web.example.", RecordType::SRV);
    if let Some(cookie) = cookie {
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        edns.options_mut().insert(EdnsOption::Unknown(10, cookie.to_vec()));
        request.set_edns(edns);
    }
    let bytes = request.to_vec().unwrap();
    let answer = zone().answer(&bytes, transport, &mut AnyClient(permit), &mut members())?;
    Some((Message::from_vec(&answer).unwrap(), answer.len(), bytes.len()))
}

#[test]
fn a_client_above_its_rate_is_told_to_come_again() {
    assert_eq!(limited(AnswerPermit::None, QueryTransport::Udp, None), None);
    let (notice, len, request_len) = limited(AnswerPermit::Notice, QueryTransport::Udp, None).unwrap();
    assert!(notice.metadata.truncation && notice.answers.is_empty() && len <= request_len, "{notice:?}");
    for permit in [AnswerPermit::None, AnswerPermit::Notice] {
        let (full, ..) = limited(permit, QueryTransport::Tcp, None).unwrap();
        assert_eq!((full.metadata.truncation, full.answers.len()), (false, 3), "over TCP");
    }
}

#[test]
fn a_client_with_a_cookie_of_ours_has_no_rate() {
    let cookie = |reply: &Message| reply.edns.as_ref().unwrap().option(EdnsCode::Cookie).cloned();
    // The tests' client whose part is all zeros has a valid cookie.
    let (valid, invalid) = ([0; 24], [1; 24]);
    for permit in [AnswerPermit::None, AnswerPermit::Notice] {
        let (reply, ..) = limited(permit, QueryTransport::Udp, Some(&valid)).unwrap();
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 3));
        let expected = [&[0; 8][..], &[7; 16]].concat();
        assert_eq!(cookie(&reply), Some(EdnsOption::Unknown(10, expected)));
    }
    for presented in [&invalid[..], &invalid[..8]] {
        assert_eq!(limited(AnswerPermit::None, QueryTransport::Udp, Some(presented)), None);
        let (reply, len, request_len) =
            limited(AnswerPermit::Notice, QueryTransport::Udp, Some(presented)).unwrap();
        assert_eq!((u16::from(reply.metadata.response_code), reply.answers.len()), (23, 0), "BADCOOKIE");
        assert!(cookie(&reply).is_some() && len <= request_len + 16);
        let (reply, ..) = limited(AnswerPermit::Full, QueryTransport::Udp, Some(presented)).unwrap();
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 3));
        assert!(cookie(&reply).is_some(), "for the next time");
    }
    let (reply, ..) = limited(AnswerPermit::Full, QueryTransport::Udp, Some(&invalid[..9])).unwrap();
    assert_eq!((reply.metadata.response_code, cookie(&reply)), (ResponseCode::FormErr, None));
}

#[test]
fn the_do_bit_is_in_the_answer_as_in_the_question() {
    for dnssec_ok in [false, true] {
        let mut request = question("web.example.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_dnssec_ok(dnssec_ok);
        request.set_edns(edns);
        let reply = query_members(&request, QueryTransport::Udp, &mut members());
        assert_eq!(reply.edns.map(|edns| edns.flags().dnssec_ok), Some(dnssec_ok));
    }
}

#[test]
fn what_is_no_type_of_data_is_an_error() {
    for (kind, code) in [
        (RecordType::AXFR, ResponseCode::Refused),
        (RecordType::IXFR, ResponseCode::Refused),
        (RecordType::OPT, ResponseCode::FormErr),
        (RecordType::TSIG, ResponseCode::FormErr),
        (RecordType::from(249), ResponseCode::FormErr),
        (RecordType::from(128), ResponseCode::FormErr),
        (RecordType::from(253), ResponseCode::NotImp),
        (RecordType::from(254), ResponseCode::NotImp),
    ] {
        for transport in [QueryTransport::Udp, QueryTransport::Tcp] {
            for name in ["web.example.", "no.web.example."] {
                let reply = query_members(&question(name, kind), transport, &mut members());
                assert_eq!(reply.metadata.response_code, code, "{name} {kind}");
                assert!(reply.answers.is_empty() && reply.authorities.is_empty(), "{name} {kind}");
            }
        }
    }
}
