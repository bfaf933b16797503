use plimsoll_brain::lottery::{MAX_IDS, MAX_SERVICES, MAX_TABLE_PART_BYTES};

use super::*;

fn answer() -> LotteryAnswer {
    LotteryAnswer {
        id: 1,
        service: 1,
        status: AnswerStatus::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint: Some(([192, 0, 2, 1], 80).into()),
        client_time: 0,
        generation: 0,
        info: [].into(),
        fallbacks: Vec::new(),
        max_bytes: 0,
    }
}

fn request(avoid: usize, info: usize, max_answer_bytes: u16) -> LotteryRequest {
    LotteryRequest {
        id: 1,
        service: 1,
        attempt: 0,
        mode: AnswerMode::Lottery,
        generation: 0,
        client_time: 0,
        avoid: vec![1; avoid],
        info: vec![1; info],
        max_answer_bytes,
    }
}

fn report(services: usize, id_count: usize) -> NodeReport {
    let load = ServiceState { service: 1, capacity: 1, weight: 1, load: 1, in_flight: 1 };
    let (services, ids) = (vec![load; services], vec![1; id_count]);
    NodeReport {
        member: 1,
        incarnation: 1,
        seq: 1,
        state: NodeState::Up,
        digest: 1,
        services,
        ids,
        heard: vec![],
    }
}

/// Returns the encoded length or the error; an error must append nothing.
fn length(message: &impl EncodeDatagram) -> Result<usize, DatagramEncodeError> {
    let mut out = b"before".to_vec();
    let result = message.encode(&keys(), &mut out);
    assert_eq!(result.is_err(), out == b"before");
    result.map(|()| out.len() - 6)
}

fn too_long(kind: DatagramKind, len: usize, max: usize) -> Result<usize, DatagramEncodeError> {
    Err(DatagramEncodeError::TooLong { kind, len, most: max })
}

fn too_many(what: &'static str, count: usize, max: usize) -> Result<usize, DatagramEncodeError> {
    Err(DatagramEncodeError::TooMany { what, count, most: max })
}

#[test]
fn a_request_is_as_long_as_its_answer_may_be() {
    let padded = |max_bytes| length(&request(0, 0, max_bytes));
    for (max_bytes, len) in [(0, 128), (127, 128), (128, 128), (129, 129), (1200, 1200), (u16::MAX, 1200)] {
        assert_eq!(padded(max_bytes), Ok(len), "{max_bytes}");
        let LotteryMessage::Request(reread) =
            read(&written(&LotteryMessage::Request(request(0, 0, max_bytes))).unwrap()).unwrap()
        else {
            panic!("a request")
        };
        assert_eq!(usize::from(reread.max_answer_bytes), len);
    }
    // The fixed part has 53 bytes. A padding has at least four bytes, so one that fills up to three missing
    // bytes exceeds 128.
    let filled = |info, max_bytes| length(&request(0, info, max_bytes));
    assert_eq!(filled(71, 0), Ok(128));
    assert_eq!(filled(72, 0), Ok(129));
    assert_eq!(filled(74, 0), Ok(131));
    assert_eq!(filled(75, 0), Ok(128));
    assert_eq!(filled(76, 0), Ok(129));
    assert_eq!(filled(MAX_INFO, 1200), Ok(1200));
    assert_eq!(filled(MAX_INFO + 1, 0), too_many("bytes of information", 1001, 1000));
    let avoiding = |avoid, info| length(&request(avoid, info, 0));
    assert_eq!(avoiding(255, 637), Ok(1200));
    assert_eq!(avoiding(255, 638), too_long(DatagramKind::Request, 1201, 1200));
    assert_eq!(avoiding(256, 0), too_many("members to avoid", 256, 255));
    // One byte below the maximum: padding of one byte is impossible.
    assert_eq!(length(&request(255, 636, 1200)), Ok(1199));
}

#[test]
fn an_answer_fits_into_what_it_answers() {
    let encode = |info: usize, fallbacks: &[FallbackMember], max_bytes| {
        let answer =
            LotteryAnswer { info: vec![1; info].into(), fallbacks: fallbacks.into(), max_bytes, ..answer() };
        let mut out = Vec::new();
        answer.encode(&keys(), &mut out)?;
        let Ok(LotteryMessage::Answer(again)) = read(&out) else { panic!("an answer") };
        assert_eq!(again.fallbacks, fallbacks[..again.fallbacks.len()], "the best are named");
        Ok((out.len(), again.fallbacks.len()))
    };
    assert_eq!(encode(0, &[], 128), Ok((75, 0)));
    assert_eq!(encode(53, &[], 128), Ok((128, 0)));
    assert_eq!(encode(53, &[], 0), Ok((128, 0)), "there is always that much");
    let too_long =
        |len, max| Err(DatagramEncodeError::TooLong { kind: DatagramKind::Answer, len, most: max });
    assert_eq!(encode(54, &[], 128), too_long(129, 128), "information is not cut");
    assert_eq!(encode(54, &[], 129), Ok((129, 0)));
    let v4_fallbacks = [FallbackMember { member: 2, endpoint: ([192, 0, 2, 2], 80).into() }; 5];
    assert_eq!(encode(0, &v4_fallbacks, 128), Ok((116, 4)), "never more than four");
    assert_eq!(encode(0, &v4_fallbacks, 1200), Ok((116, 4)));
    let v6_fallbacks = [FallbackMember { member: 2, endpoint: ([1_u16; 8], 80).into() }; 4];
    assert_eq!(encode(0, &v6_fallbacks, 128), Ok((122, 2)));
    assert_eq!(encode(0, &v6_fallbacks, 163), Ok((143, 3)));
    assert_eq!(encode(0, &v6_fallbacks, 164), Ok((164, 4)));
    assert_eq!(encode(50, &v6_fallbacks, 128), Ok((125, 0)));
    assert_eq!(
        length(&LotteryAnswer { info: vec![1; 1001].into(), ..answer() }),
        too_many("bytes of information", 1001, 1000)
    );
}

#[test]
fn an_answer_that_is_well_says_where() {
    let mut answer = answer();
    answer.endpoint = None;
    assert!(matches!(length(&answer), Err(DatagramEncodeError::Contradiction(_))));
    answer.status = AnswerStatus::Busy;
    assert_eq!(length(&answer), Ok(75));
}

#[test]
fn a_commit_holds_as_many_requests_as_it_says() {
    let commit_len = |ids| length(&AnswerCommit { member: 1, incarnation: 1, ids: vec![1; ids] });
    assert_eq!((commit_len(0), commit_len(1)), (Ok(43), Ok(51)));
    assert_eq!(commit_len(144), Ok(1195));
    assert_eq!(commit_len(145), too_long(DatagramKind::Commit, 1203, 1200));
    assert_eq!(commit_len(256), too_many("requests", 256, 255));
    assert!(commit_len(MAX_IDS).is_ok(), "as many as the brain sends");
}

#[test]
fn a_report_holds_as_many_services_and_requests_as_it_says() {
    let len = |services, id_count| length(&report(services, id_count));
    assert_eq!(len(0, 0), Ok(57));
    for services in 0..=111 {
        let id_count = ((1343 - 12 * services) / 8).min(255);
        assert!(len(services, id_count).is_ok_and(|len| len <= MAX_REPORT_LEN), "{services}, {id_count}");
        assert!(len(services, id_count + 1).is_err(), "{services}");
    }
    assert_eq!(len(112, 0), too_long(DatagramKind::Report, 1401, 1400));
    assert_eq!(len(256, 0), too_many("services", 256, 255));
    assert!(len(MAX_SERVICES, MAX_IDS).is_ok(), "as many as the brain sends");
}

#[test]
fn a_table_is_as_long_as_its_members_say() {
    let far = ServiceOffer { service: 1, capacity: 1, endpoint: ([1_u16; 8], 80).into(), info: [].into() };
    let member = |services| NodeDescription {
        member: 1,
        incarnation: 1,
        address: ([192, 0, 2, 1], 7447).into(),
        offers: vec![far.clone(); services],
    };
    let table = |part, parts, members| TablePart { id: 1, generation: 1, part, parts, members };
    assert_eq!(length(&table(0, 1, Vec::new())), Ok(45));
    for (part, parts) in [(0, 0), (1, 1), (u16::MAX, u16::MAX)] {
        assert!(matches!(
            length(&table(part, parts, Vec::new())),
            Err(DatagramEncodeError::Contradiction(_))
        ));
    }
    assert_eq!(length(&table(0, 1, vec![member(42)])), Ok(45 + member(42).encoded_size()));
    assert_eq!(length(&table(0, 1, vec![member(43)])), too_long(DatagramKind::Table, 1220, 1200));
    // On the member's own host an offer is less than half as long.
    let near = ServiceOffer { endpoint: ([192, 0, 2, 1], 80).into(), ..far.clone() };
    let near = |services| NodeDescription { offers: vec![near.clone(); services], ..member(0) };
    assert!(
        near(103).encoded_size() <= MAX_TABLE_PART_BYTES && length(&table(0, 1, vec![near(103)])).is_ok()
    );
    assert!(
        near(104).encoded_size() > MAX_TABLE_PART_BYTES && length(&table(0, 1, vec![near(104)])).is_err()
    );
    assert!(length(&table(0, 1, vec![member(0); 82])).is_ok());
    assert!(length(&table(0, 1, vec![member(0); 83])).is_err());
    assert_eq!(length(&table(0, 1, vec![member(256)])), too_many("services", 256, 255));
    let oversized = NodeDescription {
        offers: vec![ServiceOffer { info: vec![1; 1001].into(), ..far.clone() }],
        ..member(0)
    };
    assert_eq!(length(&table(0, 1, vec![oversized])), too_many("bytes of information", 1001, 1000));
    assert_eq!(MAX_TABLE_PART_BYTES, MAX_DATAGRAM_LEN - HEADER_LEN - 9 - TRAILER_LEN);
}

#[test]
fn errors_are_sentences() {
    let error = DatagramEncodeError::TooLong { kind: DatagramKind::Answer, len: 129, most: 128 };
    assert_eq!(error.to_string(), "answer of 129 bytes, where 128 are the most");
    let error = DatagramEncodeError::TooMany { what: "services", count: 256, most: 255 };
    assert_eq!(error.to_string(), "256 services, where 255 are the most");
    assert_eq!(DatagramDecodeError::Malformed("it is odd").to_string(), "bad RFS: it is odd");
    assert_eq!(DatagramDecodeError::UnknownKey(8).to_string(), "no key 8");
}
