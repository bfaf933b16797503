use super::*;

fn answer() -> Answer {
    Answer {
        id: 1,
        service: 1,
        status: Status::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint: Some(([192, 0, 2, 1], 80).into()),
        client_time: 0,
        generation: 0,
        info: Vec::new(),
        further: Vec::new(),
    }
}

fn request(avoid: usize, info: usize) -> Request {
    let (avoid, info) = (vec![1; avoid], vec![1; info]);
    Request { id: 1, service: 1, attempt: 0, mode: Mode::Lottery, generation: 0, client_time: 0, avoid, info }
}

fn report(services: usize, recent: usize) -> Report {
    let load = Share { service: 1, capacity: 1, weight: 1, load: 1, in_flight: 1 };
    let (services, ids) = (vec![load; services], vec![1; recent]);
    Report { member: 1, incarnation: 1, seq: 1, state: Standing::Up, digest: 1, services, ids }
}

/// Its length, or why it has none; then it appended nothing.
fn length(encode: impl FnOnce(&Keys, &mut Vec<u8>) -> Result<(), Unwritable>) -> Result<usize, Unwritable> {
    let mut out = b"before".to_vec();
    let done = encode(&keys(), &mut out);
    assert_eq!(done.is_err(), out == b"before");
    done.map(|()| out.len() - 6)
}

fn too_long(kind: Kind, len: usize, most: usize) -> Result<usize, Unwritable> {
    Err(Unwritable::TooLong { kind, len, most })
}

fn too_many(what: &'static str, count: usize, most: usize) -> Result<usize, Unwritable> {
    Err(Unwritable::TooMany { what, count, most })
}

#[test]
fn a_request_is_as_long_as_its_answer_may_be() {
    let padded = |least| length(|keys, out| request(0, 0).encode(least, keys, out));
    for (least, len) in [(0, 128), (127, 128), (128, 128), (129, 129), (1200, 1200), (usize::MAX, 1200)] {
        assert_eq!(padded(least), Ok(len), "{least}");
        assert_eq!(room(least).bytes(), len);
    }
    // 53 bytes and the information: three more than four bytes short of 128, where no padding fits without more.
    let filled = |info, least| length(|keys, out| request(0, info).encode(least, keys, out));
    assert_eq!(filled(71, 0), Ok(128));
    assert_eq!(filled(72, 0), Ok(129));
    assert_eq!(filled(74, 0), Ok(131));
    assert_eq!(filled(75, 0), Ok(128));
    assert_eq!(filled(76, 0), Ok(129));
    assert_eq!(filled(MOST_INFO, 1200), Ok(1200));
    assert_eq!(filled(MOST_INFO + 1, 0), too_many("bytes of information", 1001, 1000));
    let avoiding = |avoid, info| length(|keys, out| request(avoid, info).encode(0, keys, out));
    assert_eq!(avoiding(255, 637), Ok(1200));
    assert_eq!(avoiding(255, 638), too_long(Kind::Request, 1201, 1200));
    assert_eq!(avoiding(256, 0), too_many("members to avoid", 256, 255));
    // A byte short of the longest, and no padding of one byte.
    assert_eq!(length(|keys, out| request(255, 636).encode(1200, keys, out)), Ok(1199));
}

#[test]
fn an_answer_fits_into_what_it_answers() {
    let mut answer = answer();
    let len = |answer: &Answer, room| length(|keys, out| answer.encode(room, keys, out));
    assert_eq!(len(&answer, Room::LEAST), Ok(75));
    answer.info = vec![1; 53];
    assert_eq!(len(&answer, Room::LEAST), Ok(128));
    answer.info = vec![1; 54];
    assert_eq!(len(&answer, Room::LEAST), too_long(Kind::Answer, 129, 128));
    assert_eq!(len(&answer, room(129)), Ok(129));
    answer.info = Vec::new();
    answer.further = vec![Further { member: 2, endpoint: ([192, 0, 2, 2], 80).into() }; 4];
    assert_eq!((len(&answer, Room::LEAST), answer.further_that_fit(Room::LEAST)), (Ok(116), 4));
    answer.further = vec![Further { member: 2, endpoint: ([1_u16; 8], 80).into() }; 4];
    assert_eq!((answer.further_that_fit(Room::LEAST), answer.further_that_fit(room(163))), (2, 3));
    assert_eq!((len(&answer, room(164)), answer.further_that_fit(room(164))), (Ok(164), 4));
    assert_eq!(len(&answer, room(163)), too_long(Kind::Answer, 164, 163));
    answer.further.push(answer.further[0]);
    assert_eq!(len(&answer, room(1200)), too_many("further members", 5, 4));
    assert_eq!(answer.further_that_fit(room(1200)), 4);
}

#[test]
fn an_answer_that_is_well_says_where() {
    let mut answer = answer();
    answer.endpoint = None;
    let refused = length(|keys, out| answer.encode(Room::LEAST, keys, out));
    assert!(matches!(refused, Err(Unwritable::Contradiction(_))));
    answer.status = Status::Busy;
    assert_eq!(length(|keys, out| answer.encode(Room::LEAST, keys, out)), Ok(75));
}

#[test]
fn a_commit_holds_as_many_requests_as_it_says() {
    let len = |ids| {
        let commit = Commit { member: 1, incarnation: 1, ids: vec![1; ids] };
        length(|keys, out| commit.encode(keys, out))
    };
    assert_eq!((len(0), len(1)), (Ok(43), Ok(51)));
    assert_eq!((Commit::MOST_IDS, len(Commit::MOST_IDS)), (144, Ok(1195)));
    assert_eq!(len(145), too_long(Kind::Commit, 1203, 1200));
    assert_eq!(len(256), too_many("requests", 256, 255));
}

#[test]
fn a_report_holds_as_many_services_and_requests_as_it_says() {
    let len = |services, recent| length(|keys, out| report(services, recent).encode(keys, out));
    assert_eq!(len(0, 0), Ok(57));
    assert_eq!(Report::MOST_SERVICES, 111);
    for services in 0..=111 {
        let recent = Report::ids_beside(services).unwrap();
        assert!(len(services, recent).is_ok_and(|len| len <= LONGEST_REPORT), "{services}, {recent}");
        let one_more = len(services, recent + 1);
        assert!(matches!(one_more, Err(Unwritable::TooLong { most: LONGEST_REPORT, .. })), "{services}");
    }
    assert_eq!(Report::ids_beside(112), None);
    assert_eq!(Report::ids_beside(usize::MAX), None);
    assert_eq!(len(256, 0), too_many("services", 256, 255));
}

#[test]
fn a_table_says_which_member_is_too_large_for_it() {
    let far = Offer { service: 1, capacity: 1, endpoint: ([1_u16; 8], 80).into(), info: Vec::new() };
    let member = |services| Listed {
        member: 1,
        incarnation: 1,
        address: ([192, 0, 2, 1], 7447).into(),
        offers: vec![far.clone(); services],
    };
    assert_eq!(Table::split(&[]).unwrap(), [&[][..]]);
    assert_eq!(Table::split(&[member(42), member(42)]).unwrap().len(), 2);
    let too_large = Unwritable::TooLong { kind: Kind::Table, len: 1220, most: 1200 };
    assert_eq!(Table::split(&[member(0), member(43)]), Err(too_large));
    // At the member's own host an offer is less than half as long.
    let near = Offer { endpoint: ([192, 0, 2, 1], 80).into(), ..far.clone() };
    assert_eq!(Table::fit(&[Listed { offers: vec![near.clone(); 103], ..member(0) }]), 1);
    assert_eq!(Table::fit(&[Listed { offers: vec![near; 104], ..member(0) }]), 0);
    let small: Vec<Listed> = (0..255).map(|_| member(0)).collect();
    assert_eq!(Table::fit(&small), 82);
    let table = |part, parts| Table { id: 1, generation: 1, part, parts, members: Vec::new() };
    let len = |part, parts, room| length(|keys, out| table(part, parts).encode(room, keys, out));
    assert_eq!(len(0, 1, Room::LEAST), Ok(45));
    for (part, parts) in [(0, 0), (1, 1), (u16::MAX, u16::MAX)] {
        assert!(matches!(len(part, parts, Room::LEAST), Err(Unwritable::Contradiction(_))));
    }
    let full = Table { members: small[..6].to_vec(), ..table(0, 1) };
    assert_eq!(length(|keys, out| full.encode(Room::LEAST, keys, out)), too_long(Kind::Table, 129, 128));
    let crowded = Table { members: vec![member(256)], ..table(0, 1) };
    let most = room(LONGEST);
    assert_eq!(length(|keys, out| crowded.encode(most, keys, out)), too_many("services", 256, 255));
    let wordy = Listed { offers: vec![Offer { info: vec![1; 1001], ..far.clone() }], ..member(0) };
    let wordy = Table { members: vec![wordy], ..table(0, 1) };
    let refused = length(|keys, out| wordy.encode(most, keys, out));
    assert_eq!(refused, too_many("bytes of information", 1001, 1000));
}

#[test]
fn errors_are_sentences() {
    let error = Unwritable::TooLong { kind: Kind::Answer, len: 129, most: 128 };
    assert_eq!(error.to_string(), "answer of 129 bytes, where 128 are the most");
    let error = Unwritable::TooMany { what: "services", count: 256, most: 255 };
    assert_eq!(error.to_string(), "256 services, where 255 are the most");
    assert_eq!(Refused::Malformed("it is odd").to_string(), "bad RFS: it is odd");
    assert_eq!(Refused::UnknownKey(8).to_string(), "no key 8");
}
