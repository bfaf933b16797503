//! One datagram of each kind, byte for byte, as in `docs/rfs2.md`. Another program computed the tags.

use super::*;

/// The text after `;` describes the bytes; `00*63` is a byte 63 times.
const REQUEST: &str = "
    52 46 01 01 00 00 00 80        ; RF, version 1, REQUEST, no flags, 128 bytes
    01 02 03 04 05 06 07 08        ; id
    00 00 00 2a                    ; service 42
    01 00                          ; asked once before, referral
    00 00 00 09                    ; knows generation 9
    11 22 33 44                    ; the client's time
    02 00 03 01 2c                 ; avoid two members: 3 and 300
    00 04 67 6f 6c 64              ; information: gold
    00 00 00 3f 00*63              ; padding
    00 00 00 07                    ; key 7
    96 f5 2e 3c b3 3d 13 f1        ; tag
    b1 fe 96 ea 82 0b e5 a8
";

const ANSWER: &str = "
    52 46 01 02 00 00 00 70        ; RF, version 1, ANSWER, no flags, 112 bytes
    01 02 03 04 05 06 07 08        ; id of the request
    00 00 00 2a                    ; service 42
    00 00                          ; ok, rank 0
    05 dc                          ; good for 1500 ms
    00 05                          ; member 5
    04 1f 90 c0 00 02 0a 00*12     ; 192.0.2.10:8080
    11 22 33 44                    ; the client's time
    00 00 00 09                    ; generation 9
    00 02 6f 6b                    ; information: ok
    00 01 00 1f 02                 ; option 1 of 31 bytes: two further members
    00 06 04 1f 90 c0 00 02 0b     ; member 6 at 192.0.2.11:8080
    00 07 06 1f 90 20 01 0d b8 00*11 07  ; member 7 at [2001:db8::7]:8080
    00 00 00 07                    ; key 7
    10 e9 a5 03 4b 42 e4 5e        ; tag
    e5 63 7a c7 72 6f 4a 39
";

const COMMIT: &str = "
    52 46 01 03 00 00 00 3b        ; RF, version 1, COMMIT, no flags, 59 bytes
    00*8                           ; no id
    00 05                          ; member 5
    65 53 f1 00                    ; its life
    02                             ; two requests
    01 02 03 04 05 06 07 08
    ff ff ff ff ff ff ff fe
    00 00 00 07                    ; key 7
    79 ef 81 9f 3b 42 82 73        ; tag
    19 78 17 a6 c5 4f fe b8
";

const REPORT: &str = "
    52 46 01 04 00 00 00 6a        ; RF, version 1, REPORT, no flags, 106 bytes
    00*8                           ; no id
    00 05                          ; member 5
    65 53 f1 00                    ; its life
    00 00 00 0c                    ; its report 12
    01                             ; up
    88 99 aa bb cc dd ee ff        ; digest of its table
    01 01                          ; one service, one request
    00 00 00 2a 01 90 00 80 01 5e 00 11  ; service 42: capacity 400, weight 128, load 350, 17 in flight
    01 02 03 04 05 06 07 08        ; the request
    00 02 00 19 01                 ; option 2 of 25 bytes: of one other
    00 06 65 53 f1 01 00 00 00 09 02 01 ; member 6, its life, its report 9, draining, one service
    00 00 00 2a 00 c8 00 70 ff ff 00 00 ; service 42: capacity 200, weight 112, load not known, none in flight
    00 00 00 07                    ; key 7
    f5 22 1d 0e 54 b2 ce c1        ; tag
    da 34 d8 3d 8e 15 9a 2c
";

const FETCH: &str = "
    52 46 01 05 00 00 04 b0        ; RF, version 1, FETCH, no flags, 1200 bytes
    11 11 11 11 11 11 11 11        ; id
    00 00 00 00                    ; knows no generation
    00 00                          ; wants part 0
    00 00 04 82 00*1154            ; padding
    00 00 00 07                    ; key 7
    0b 14 70 26 61 63 88 21        ; tag
    ce 18 13 ef 67 e3 23 cf
";

const TABLE: &str = "
    52 46 01 06 00 00 00 71        ; RF, version 1, TABLE, no flags, 113 bytes
    11 11 11 11 11 11 11 11        ; id of the fetch
    00 00 00 09                    ; generation 9
    00 00 00 01                    ; part 0 of 1
    02                             ; two members
    00 05 65 53 f1 00              ; member 5, its life
    04 1d 17 c0 00 02 0a           ; its daemon at 192.0.2.10:7447
    02                             ; two services
    00 00 00 2a 01 90              ; service 42, capacity 400
    00 1f 90                       ; same host, port 8080
    00 02 6f 6b                    ; information: ok
    00 00 00 2b 00 01              ; service 43, capacity 1
    04 00 50 c0 00 02 14           ; at 192.0.2.20:80
    00 00                          ; no information
    00 06 65 53 f1 01              ; member 6, its life
    06 1d 17 20 01 0d b8 00*11 06  ; its daemon at [2001:db8::6]:7447
    00                             ; no services
    00 00 00 07                    ; key 7
    4d c8 b5 27 77 25 f3 43        ; tag
    1b f3 9c d2 6b e6 a6 3d
";

const GOSSIP: &str = "
    52 46 01 07 00 00 00 6c        ; RF, version 1, GOSSIP, no flags, 108 bytes
    00*8                           ; no id
    00 05                          ; member 5
    65 53 f1 00                    ; its life
    00 00 00 0c                    ; its gossip 12
    00 3c                          ; 60 bytes are said
    00 05 65 53 f1 00 04 1d 17 c0 00 02 0a ; by member 5 at 192.0.2.10:7447
    00 00                          ; never suspected
    00 06 65 53 f1 01 06 1d 17 20 01 0d b8 00*11 06 ; to member 6 at [2001:db8::6]:7447
    00 03                          ; a ping, number 3
    00 01                          ; one piece of news
    00 07 65 53 f1 02 04 1d 17 c0 00 02 0c ; member 7 at 192.0.2.12:7447
    00 00 01                       ; never suspected before, is suspected
    00 00 00 07                    ; key 7
    48 45 31 69 a2 19 d3 1a        ; tag
    f0 d0 72 8b 47 38 87 02
";

const LOOK: &str = "
    52 46 01 08 00 00 04 b0        ; RF, version 1, LOOK, no flags, 1200 bytes
    22 22 22 22 22 22 22 22        ; id
    00 00 00 2a                    ; service 42
    00 00                          ; wants part 0
    00 00 04 82 00*1154            ; padding
    00 00 00 07                    ; key 7
    88 8b e4 ea b4 4f d5 78        ; tag
    ff 8d 4b b2 45 30 db 12
";

const DRUM: &str = "
    52 46 01 09 00 00 00 5d        ; RF, version 1, DRUM, no flags, 93 bytes
    22 22 22 22 22 22 22 22        ; id of the look
    00 00 00 2a                    ; service 42
    00 00 00 01                    ; part 0 of 1
    02                             ; two members
    00 05 01 90 00 80              ; member 5, capacity 400, weight 128
    04 1d 17 c0 00 02 0a           ; its daemon at 192.0.2.10:7447
    00 1f 90                       ; same host, port 8080
    00 06 00 c8 00 00              ; member 6, capacity 200, nothing heard of it
    06 1d 17 20 01 0d b8 00*11 06  ; its daemon at [2001:db8::6]:7447
    04 00 50 c0 00 02 14           ; at 192.0.2.20:80
    00 00 00 07                    ; key 7
    31 80 4c d7 4a 31 53 67        ; tag
    23 ed c7 81 5f 61 0b e3
";

fn bytes(text: &str) -> Vec<u8> {
    let words = text.lines().flat_map(|line| line.split(';').next().unwrap_or_default().split_whitespace());
    let byte_runs = words.map(|word| {
        let (byte, times) = word.split_once('*').unwrap_or((word, "1"));
        vec![u8::from_str_radix(byte, 16).unwrap(); times.parse().unwrap()]
    });
    byte_runs.flatten().collect()
}

/// Returns each example and its message.
pub(super) fn all() -> Vec<(&'static str, Vec<u8>, LotteryMessage)> {
    let (id, incarnation) = (0x0102_0304_0506_0708, 0x6553_f100);
    let request = LotteryRequest {
        id,
        service: 42,
        attempt: 1,
        mode: AnswerMode::Referral,
        generation: 9,
        client_time: 0x1122_3344,
        avoid: vec![3, 300],
        info: b"gold".to_vec(),
        max_answer_bytes: 128,
    };
    let answer = LotteryAnswer {
        id,
        service: 42,
        status: AnswerStatus::Ok,
        rank: 0,
        ttl: 1500,
        member: 5,
        endpoint: Some("192.0.2.10:8080".parse().unwrap()),
        client_time: 0x1122_3344,
        generation: 9,
        info: (*b"ok").into(),
        fallbacks: vec![
            FallbackMember { member: 6, endpoint: "192.0.2.11:8080".parse().unwrap() },
            FallbackMember { member: 7, endpoint: "[2001:db8::7]:8080".parse().unwrap() },
        ],
        max_bytes: 0,
    };
    let commit = AnswerCommit { member: 5, incarnation, ids: vec![id, u64::MAX - 1] };
    let load = ServiceState { service: 42, capacity: 400, weight: 128, load: 350, in_flight: 17 };
    let report = NodeReport {
        member: 5,
        incarnation,
        seq: 12,
        state: NodeState::Up,
        digest: 0x8899_aabb_ccdd_eeff,
        services: vec![load],
        ids: vec![id],
        heard: vec![RelayedReport {
            member: 6,
            incarnation: incarnation + 1,
            seq: 9,
            state: NodeState::Draining,
            services: vec![ServiceState {
                service: 42,
                capacity: 200,
                weight: 112,
                load: u16::MAX,
                in_flight: 0,
            }],
        }],
    };
    let fetch = TableFetch { id: 0x1111_1111_1111_1111, generation: 0, part: 0 };
    let near = ServiceOffer {
        service: 42,
        capacity: 400,
        endpoint: "192.0.2.10:8080".parse().unwrap(),
        info: (*b"ok").into(),
    };
    let far = ServiceOffer {
        service: 43,
        capacity: 1,
        endpoint: "192.0.2.20:80".parse().unwrap(),
        info: [].into(),
    };
    let serving = NodeDescription {
        member: 5,
        incarnation,
        address: "192.0.2.10:7447".parse().unwrap(),
        offers: vec![near, far],
    };
    let idle = NodeDescription {
        member: 6,
        incarnation: incarnation + 1,
        address: "[2001:db8::6]:7447".parse().unwrap(),
        offers: Vec::new(),
    };
    let table = TablePart { id: fetch.id, generation: 9, part: 0, parts: 1, members: vec![serving, idle] };
    let query = CandidateQuery { id: 0x2222_2222_2222_2222, service: 42, part: 0 };
    let near = CandidateEntry {
        member: 5,
        capacity: 400,
        weight: 128,
        address: "192.0.2.10:7447".parse().unwrap(),
        endpoint: "192.0.2.10:8080".parse().unwrap(),
    };
    let far = CandidateEntry {
        member: 6,
        capacity: 200,
        weight: 0,
        address: "[2001:db8::6]:7447".parse().unwrap(),
        endpoint: "192.0.2.20:80".parse().unwrap(),
    };
    let candidate_set =
        CandidateSet { id: query.id, service: 42, part: 0, parts: 1, candidates: vec![near, far] };
    vec![
        ("REQUEST", bytes(REQUEST), LotteryMessage::Request(request)),
        ("ANSWER", bytes(ANSWER), LotteryMessage::Answer(answer)),
        ("COMMIT", bytes(COMMIT), LotteryMessage::Commit(commit)),
        ("REPORT", bytes(REPORT), LotteryMessage::Report(report)),
        ("FETCH", bytes(FETCH), LotteryMessage::Fetch(fetch)),
        ("TABLE", bytes(TABLE), LotteryMessage::Table(table)),
        ("LOOK", bytes(LOOK), LotteryMessage::CandidateQuery(query)),
        ("DRUM", bytes(DRUM), LotteryMessage::CandidateSet(candidate_set)),
    ]
}

#[test]
fn each_kind_is_written_and_read_as_its_example() {
    for (name, bytes, message) in all() {
        assert_eq!(read(&bytes).as_ref(), Ok(&message), "{name}");
        assert_eq!(written(&message).unwrap(), bytes, "{name}");
        assert_eq!(DatagramKind::of_message(&message).label(), name.to_lowercase());
    }
    assert_eq!(all().len() + 1, DatagramKind::ALL.len(), "all but gossip");
}

#[test]
fn gossip_is_written_and_read_as_its_example() {
    let bytes = bytes(GOSSIP);
    let opened = keys();
    let opened = opened.open(&bytes).unwrap();
    let gossip = opened.gossip().unwrap().unwrap();
    assert_eq!(
        (gossip.member, gossip.incarnation, gossip.seq, gossip.payload.len()),
        (5, 0x6553_f100, 12, 60)
    );
    let mut out = Vec::new();
    gossip.encode(&keys(), &mut out).unwrap();
    assert_eq!(out, bytes);
    assert_eq!(opened.message(), Err(DatagramDecodeError::Malformed("gossip is for daemons only")));
    for (name, bytes, _) in all() {
        assert_eq!(keys().open(&bytes).unwrap().gossip(), Ok(None), "{name}");
    }
    for end in 16..bytes.len() - TRAILER_LEN {
        let mut cut = bytes[..end].to_vec();
        cut[6..8].copy_from_slice(&((end + TRAILER_LEN) as u16).to_be_bytes());
        keys().seal(0, &mut cut);
        assert!(keys().open(&cut).unwrap().gossip().is_err(), "the first {end} bytes");
    }
    let encoded_len =
        |count| GossipDatagram { payload: vec![0; count], ..gossip.clone() }.encode(&keys(), &mut Vec::new());
    assert_eq!(encoded_len(GossipDatagram::MAX_PAYLOAD), Ok(()));
    let (what, count) = ("bytes of gossip", GossipDatagram::MAX_PAYLOAD + 1);
    assert_eq!(
        encoded_len(count),
        Err(DatagramEncodeError::TooMany { what, count, most: GossipDatagram::MAX_PAYLOAD })
    );
}

#[test]
fn the_specification_shows_the_same_examples() {
    let text = include_str!("../../../../../docs/rfs2.md");
    let blocks: Vec<Vec<u8>> =
        text.split("```hex\n").skip(1).map(|block| bytes(block.split("```").next().unwrap())).collect();
    let mut examples: Vec<Vec<u8>> = all().into_iter().map(|(_, bytes, _)| bytes).collect();
    examples.insert(6, bytes(GOSSIP));
    assert_eq!(blocks, examples);
}

#[test]
fn every_changed_bit_of_an_example_is_found() {
    for (name, bytes, _) in all() {
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1 << (index % 8);
            assert!(
                matches!(
                    read(&changed),
                    Err(DatagramDecodeError::Forged | DatagramDecodeError::UnknownKey(_))
                ),
                "{name}, byte {index}"
            );
        }
    }
}

#[test]
fn every_beginning_of_an_example_is_refused() {
    for (name, bytes, _) in all() {
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{name}, the first {end} bytes");
        }
    }
}

/// A changed or truncated example either fails to decode, or decodes to a message that survives encoding.
#[test]
fn what_is_nearly_an_example_says_nothing_or_something_else() {
    for (name, bytes, _) in all() {
        let body = &bytes[..bytes.len() - TRAILER_LEN];
        for index in 0..body.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut changed = body.to_vec();
                changed[index] ^= mask;
                survives(name, resealed(&changed));
            }
            survives(name, resealed(&body[..index]));
        }
    }
}

fn survives(name: &str, result: Result<LotteryMessage, DatagramDecodeError>) {
    let Ok(message) = result else { return };
    let reread = read(&written(&message).unwrap()).unwrap();
    assert_eq!(roomless(reread), roomless(message), "{name}");
}
