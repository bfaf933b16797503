use std::net::SocketAddr;

use plimsoll_brain::lottery::{MAX_CANDIDATE_BYTES, MAX_FALLBACKS, MAX_TABLE_PART_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    let v6 = any::<([u8; 16], u16)>().prop_map(SocketAddr::from);
    prop_oneof![v4, v6]
}

fn state() -> impl Strategy<Value = NodeState> {
    prop_oneof![
        Just(NodeState::Joining),
        Just(NodeState::Up),
        Just(NodeState::Draining),
        Just(NodeState::Leaving)
    ]
}

fn request() -> impl Strategy<Value = LotteryMessage> {
    let mode = prop_oneof![Just(AnswerMode::Referral), Just(AnswerMode::Lottery)];
    let fields =
        (any::<(u64, u32, u8, u32, u32)>(), mode, vec(any::<u16>(), 0..60), vec(any::<u8>(), 0..=MAX_INFO));
    (fields, 0_u16..=1200).prop_map(
        |(((id, service, attempt, generation, client_time), mode, avoid, info), max_answer_bytes)| {
            let request = LotteryRequest {
                id,
                service,
                attempt,
                mode,
                generation,
                client_time,
                avoid,
                info,
                max_answer_bytes,
            };
            LotteryMessage::Request(request)
        },
    )
}

fn fallback() -> impl Strategy<Value = FallbackMember> {
    (any::<u16>(), address()).prop_map(|(member, endpoint)| FallbackMember { member, endpoint })
}

fn answer() -> impl Strategy<Value = LotteryMessage> {
    let status = prop_oneof![
        Just(AnswerStatus::Busy),
        Just(AnswerStatus::UnknownService),
        Just(AnswerStatus::Draining)
    ];
    let status_and_endpoint = (status, proptest::option::of(address()));
    let status_and_endpoint =
        prop_oneof![address().prop_map(|endpoint| (AnswerStatus::Ok, Some(endpoint))), status_and_endpoint];
    let lists = (vec(any::<u8>(), 0..=MAX_INFO), vec(fallback(), 0..=MAX_FALLBACKS));
    (any::<(u64, u32, u8, u16, u16, u32, u32)>(), status_and_endpoint, lists).prop_map(
        |(numbers, status_and_endpoint, (info, fallbacks))| {
            let (id, service, rank, ttl, member, client_time, generation) = numbers;
            let (status, endpoint) = status_and_endpoint;
            LotteryMessage::Answer(LotteryAnswer {
                id,
                service,
                status,
                rank,
                ttl,
                member,
                endpoint,
                client_time,
                generation,
                info: info.into(),
                fallbacks,
                max_bytes: 0,
            })
        },
    )
}

fn commit() -> impl Strategy<Value = LotteryMessage> {
    let ids = vec(any::<u64>(), 0..=144);
    (any::<(u16, u32)>(), ids).prop_map(|((member, incarnation), ids)| {
        LotteryMessage::Commit(AnswerCommit { member, incarnation, ids })
    })
}

fn report() -> impl Strategy<Value = LotteryMessage> {
    let load = || {
        any::<(u32, u16, u16, u16, u16)>().prop_map(|(service, capacity, weight, load, in_flight)| {
            ServiceState { service, capacity, weight, load, in_flight }
        })
    };
    let services = vec(load(), 0..=111);
    let lists = services.prop_flat_map(|services| {
        let max_ids = ((1343 - 12 * services.len()) / 8).min(255);
        (Just(services), vec(any::<u64>(), 0..=max_ids))
    });
    let relayed = (any::<(u16, u32, u32)>(), state(), vec(load(), 0..4));
    let relayed = relayed.prop_map(|((member, incarnation, seq), state, services)| RelayedReport {
        member,
        incarnation,
        seq,
        state,
        services,
    });
    (any::<(u16, u32, u32, u64)>(), state(), lists, vec(relayed, 0..60)).prop_map(
        |(numbers, state, (services, ids), mut relayed)| {
            let (member, incarnation, seq, digest) = numbers;
            let used = 12 * services.len() + 8 * ids.len();
            while relayed.iter().map(RelayedReport::encoded_size).sum::<usize>() + 5 + used > 1343 {
                if relayed.pop().is_none() {
                    break;
                }
            }
            LotteryMessage::Report(NodeReport {
                member,
                incarnation,
                seq,
                state,
                digest,
                services,
                ids,
                heard: relayed,
            })
        },
    )
}

fn fetch() -> impl Strategy<Value = LotteryMessage> {
    any::<(u64, u32, u16)>()
        .prop_map(|(id, generation, part)| LotteryMessage::Fetch(TableFetch { id, generation, part }))
}

fn node_description(max_offers: usize) -> impl Strategy<Value = NodeDescription> {
    // Half of the offers are on the member's own host.
    let offer = (any::<(u32, u16, bool)>(), address(), vec(any::<u8>(), 0..8));
    (any::<(u16, u32)>(), address(), vec(offer, 0..=max_offers)).prop_map(
        |((member, incarnation), address, offers)| {
            let offers = offers.into_iter().map(|((service, capacity, near), endpoint, info)| {
                let endpoint = if near { (address.ip(), endpoint.port()).into() } else { endpoint };
                ServiceOffer { service, capacity, endpoint, info: info.into() }
            });
            NodeDescription { member, incarnation, address, offers: offers.collect() }
        },
    )
}

fn table() -> impl Strategy<Value = LotteryMessage> {
    let part_and_parts = any::<(u16, u16)>()
        .prop_filter_map("a part among the parts", |(a, b)| (a != b).then_some((a.min(b), a.max(b))));
    (any::<(u64, u32)>(), part_and_parts, vec(node_description(3), 0..40)).prop_map(
        |((id, generation), (part, parts), mut members)| {
            members.truncate(fitting_count(&members));
            LotteryMessage::Table(TablePart { id, generation, part, parts, members })
        },
    )
}

fn look() -> impl Strategy<Value = LotteryMessage> {
    any::<(u64, u32, u16)>()
        .prop_map(|(id, service, part)| LotteryMessage::CandidateQuery(CandidateQuery { id, service, part }))
}

fn drum() -> impl Strategy<Value = LotteryMessage> {
    let candidate = (any::<(u16, u16, u16)>(), address(), address(), any::<bool>());
    let candidate = candidate.prop_map(|((member, capacity, weight), address, endpoint, near)| {
        let endpoint = if near { (address.ip(), endpoint.port()).into() } else { endpoint };
        CandidateEntry { member, capacity, weight, address, endpoint }
    });
    (any::<(u64, u32)>(), vec(candidate, 0..100)).prop_map(|((id, service), mut candidates)| {
        let mut len = 0;
        candidates.retain(|candidate| {
            len += candidate.encoded_size();
            len <= MAX_CANDIDATE_BYTES
        });
        LotteryMessage::CandidateSet(CandidateSet { id, service, part: 0, parts: 1, candidates })
    })
}

/// Returns the number of members, from the first, that fit into one part.
fn fitting_count(members: &[NodeDescription]) -> usize {
    let mut len = 0;
    let fits = members.iter().take_while(|member| {
        len += member.encoded_size();
        len <= MAX_TABLE_PART_BYTES
    });
    fits.count()
}

fn message() -> impl Strategy<Value = LotteryMessage> {
    prop_oneof![request(), answer(), commit(), report(), fetch(), table(), look(), drum()]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in message()) {
        let datagram = match written(&message) {
            Ok(datagram) => datagram,
            // A request may have more members to avoid and more information than fit into a datagram; no
            // other kind does.
            Err(DatagramEncodeError::TooLong {
                kind: DatagramKind::Request | DatagramKind::Answer,
                len,
                ..
            }) => {
                prop_assert!(len > MAX_DATAGRAM_LEN);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert!(datagram.len() <= DatagramKind::of_message(&message).max_len());
        let reread = read(&datagram).unwrap();
        if let (LotteryMessage::Request(again), LotteryMessage::Request(first)) = (&reread, &message) {
            prop_assert_eq!(usize::from(again.max_answer_bytes), datagram.len());
            // A padding of one to three bytes is impossible, so a datagram that close to the maximum has
            // none.
            prop_assert!(again.max_answer_bytes >= MIN_ROOM);
            prop_assert!(again.max_answer_bytes + 3 >= first.max_answer_bytes);
        }
        prop_assert_eq!(roomless(reread), roomless(message));
    }

    #[test]
    fn a_changed_byte_anywhere_is_found(message in message(), at in any::<usize>(), mask in 1_u8..) {
        if let Ok(mut datagram) = written(&message) {
            let at = at % datagram.len();
            datagram[at] ^= mask;
            let found = matches!(
                keys().open(&datagram),
                Err(DatagramDecodeError::Forged | DatagramDecodeError::UnknownKey(_))
            );
            prop_assert!(found, "byte {}", at);
        }
    }

    #[test]
    fn an_answer_is_never_longer_than_its_request(asked in request(), reply in answer()) {
        let (Ok(asked), LotteryMessage::Answer(mut answer)) = (written(&asked), reply) else { return Ok(()) };
        let Ok(LotteryMessage::Request(request)) = read(&asked) else { panic!("a request") };
        answer.max_bytes = request.max_answer_bytes;
        let mut out = b"before".to_vec();
        match answer.encode(&keys(), &mut out) {
            Ok(()) => {
                prop_assert!(out.len() - 6 <= asked.len());
                let Ok(LotteryMessage::Answer(mut again)) = read(&out[6..]) else { panic!("an answer") };
                let named = again.fallbacks.len();
                prop_assert_eq!(&again.fallbacks, &answer.fallbacks[..named]);
                // Members that it does not list would not fit.
                if let Some(next) = answer.fallbacks.get(named) {
                    let more = if next.endpoint.is_ipv4() { 9 } else { 21 } + if named == 0 { 5 } else { 0 };
                    prop_assert!(out.len() - 6 + more > asked.len());
                }
                (again.fallbacks, again.max_bytes) = (answer.fallbacks.clone(), answer.max_bytes);
                prop_assert_eq!(again, answer);
            }
            Err(error) => {
                let DatagramEncodeError::TooLong { most, .. } = error else { panic!("{error}") };
                prop_assert_eq!(most, asked.len());
                prop_assert_eq!(&out[..], b"before");
                // Information that fits is accepted.
                answer.info = answer.info[..asked.len() - 75].into();
                prop_assert_eq!(answer.encode(&keys(), &mut out), Ok(()));
                prop_assert!(out.len() - 6 <= asked.len());
            }
        }
    }

    #[test]
    fn a_table_is_as_long_as_its_members_say(members in vec(node_description(30), 0..25)) {
        let mut rest = &members[..];
        while !rest.is_empty() {
            let part = fitting_count(rest);
            prop_assert!(part > 0);
            let table = |part: &[NodeDescription]| {
                let members = part.to_vec();
                LotteryMessage::Table(TablePart { id: 1, generation: 1, part: 0, parts: 1, members })
            };
            let datagram = written(&table(&rest[..part])).unwrap();
            let sizes = rest[..part].iter().map(NodeDescription::encoded_size);
            prop_assert_eq!(datagram.len(), 45 + sizes.sum::<usize>());
            prop_assert_eq!(read(&datagram), Ok(table(&rest[..part])));
            // The first member of the next part would not have fitted.
            if part < rest.len() {
                prop_assert!(written(&table(&rest[..=part])).is_err());
            }
            rest = &rest[part..];
        }
    }

    /// The sealer may send any bytes.
    #[test]
    fn nothing_that_is_read_panics(bytes in vec(any::<u8>(), 0..1400), kind in 1_u8..=9) {
        let mut bytes = bytes;
        if bytes.len() >= HEADER_LEN {
            bytes[..HEADER_LEN].copy_from_slice(&[0x52, 0x46, 1, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let _ = resealed(&bytes);
        let _ = read(&bytes);
    }
}
