use std::net::SocketAddr;

use plimsoll_brain::lottery::{DRUM, FURTHER, PART};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    let v6 = any::<([u8; 16], u16)>().prop_map(SocketAddr::from);
    prop_oneof![v4, v6]
}

fn state() -> impl Strategy<Value = Standing> {
    prop_oneof![
        Just(Standing::Joining),
        Just(Standing::Up),
        Just(Standing::Draining),
        Just(Standing::Leaving)
    ]
}

fn request() -> impl Strategy<Value = Message> {
    let mode = prop_oneof![Just(Mode::Referral), Just(Mode::Lottery)];
    let fields =
        (any::<(u64, u32, u8, u32, u32)>(), mode, vec(any::<u16>(), 0..60), vec(any::<u8>(), 0..=MOST_INFO));
    (fields, 0_u16..=1200).prop_map(
        |(((id, service, attempt, generation, client_time), mode, avoid, info), room)| {
            let request = Request { id, service, attempt, mode, generation, client_time, avoid, info, room };
            Message::Request(request)
        },
    )
}

fn further() -> impl Strategy<Value = Further> {
    (any::<u16>(), address()).prop_map(|(member, endpoint)| Further { member, endpoint })
}

fn answer() -> impl Strategy<Value = Message> {
    let status = prop_oneof![Just(Status::Busy), Just(Status::UnknownService), Just(Status::Draining)];
    let of = (status, proptest::option::of(address()));
    let of = prop_oneof![address().prop_map(|endpoint| (Status::Ok, Some(endpoint))), of];
    let lists = (vec(any::<u8>(), 0..=MOST_INFO), vec(further(), 0..=FURTHER));
    (any::<(u64, u32, u8, u16, u16, u32, u32)>(), of, lists).prop_map(|(numbers, of, (info, further))| {
        let (id, service, rank, ttl, member, client_time, generation) = numbers;
        let (status, endpoint) = of;
        Message::Answer(Answer {
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
            further,
            room: 0,
        })
    })
}

fn commit() -> impl Strategy<Value = Message> {
    let ids = vec(any::<u64>(), 0..=144);
    (any::<(u16, u32)>(), ids)
        .prop_map(|((member, incarnation), ids)| Message::Commit(Commit { member, incarnation, ids }))
}

fn report() -> impl Strategy<Value = Message> {
    let load =
        || {
            any::<(u32, u16, u16, u16, u16)>().prop_map(|(service, capacity, weight, load, in_flight)| {
                Share { service, capacity, weight, load, in_flight }
            })
        };
    let services = vec(load(), 0..=111);
    let lists = services.prop_flat_map(|services| {
        let most = ((1343 - 12 * services.len()) / 8).min(255);
        (Just(services), vec(any::<u64>(), 0..=most))
    });
    let said = (any::<(u16, u32, u32)>(), state(), vec(load(), 0..4));
    let said = said.prop_map(|((member, incarnation, seq), state, services)| Hearsay {
        member,
        incarnation,
        seq,
        state,
        services,
    });
    (any::<(u16, u32, u32, u64)>(), state(), lists, vec(said, 0..60)).prop_map(
        |(numbers, state, (services, ids), mut heard)| {
            let (member, incarnation, seq, digest) = numbers;
            let used = 12 * services.len() + 8 * ids.len();
            while heard.iter().map(Hearsay::bytes).sum::<usize>() + 5 + used > 1343 {
                if heard.pop().is_none() {
                    break;
                }
            }
            Message::Report(Report { member, incarnation, seq, state, digest, services, ids, heard })
        },
    )
}

fn fetch() -> impl Strategy<Value = Message> {
    any::<(u64, u32, u16)>().prop_map(|(id, generation, part)| Message::Fetch(Fetch { id, generation, part }))
}

fn listed(most: usize) -> impl Strategy<Value = Listed> {
    // Half of the offers are on the member's own host.
    let offer = (any::<(u32, u16, bool)>(), address(), vec(any::<u8>(), 0..8));
    (any::<(u16, u32)>(), address(), vec(offer, 0..=most)).prop_map(
        |((member, incarnation), address, offers)| {
            let offers = offers.into_iter().map(|((service, capacity, near), endpoint, info)| {
                let endpoint = if near { (address.ip(), endpoint.port()).into() } else { endpoint };
                Offer { service, capacity, endpoint, info: info.into() }
            });
            Listed { member, incarnation, address, offers: offers.collect() }
        },
    )
}

fn table() -> impl Strategy<Value = Message> {
    let place = any::<(u16, u16)>()
        .prop_filter_map("a part among the parts", |(a, b)| (a != b).then_some((a.min(b), a.max(b))));
    (any::<(u64, u32)>(), place, vec(listed(3), 0..40)).prop_map(
        |((id, generation), (part, parts), mut members)| {
            members.truncate(fit(&members));
            Message::Table(Table { id, generation, part, parts, members })
        },
    )
}

fn look() -> impl Strategy<Value = Message> {
    any::<(u64, u32, u16)>().prop_map(|(id, service, part)| Message::Look(Look { id, service, part }))
}

fn drum() -> impl Strategy<Value = Message> {
    let place = (any::<(u16, u16, u16)>(), address(), address(), any::<bool>());
    let place = place.prop_map(|((member, capacity, weight), address, endpoint, near)| {
        let endpoint = if near { (address.ip(), endpoint.port()).into() } else { endpoint };
        Place { member, capacity, weight, address, endpoint }
    });
    (any::<(u64, u32)>(), vec(place, 0..100)).prop_map(|((id, service), mut places)| {
        let mut len = 0;
        places.retain(|place| {
            len += place.bytes();
            len <= DRUM
        });
        Message::Drum(Drum { id, service, part: 0, parts: 1, places })
    })
}

/// Returns the number of members, from the first, that fit into one part.
fn fit(members: &[Listed]) -> usize {
    let mut len = 0;
    let fits = members.iter().take_while(|member| {
        len += member.bytes();
        len <= PART
    });
    fits.count()
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![request(), answer(), commit(), report(), fetch(), table(), look(), drum()]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in message()) {
        let datagram = match written(&message) {
            Ok(datagram) => datagram,
            // A request may have more members to avoid and more information than fit into a datagram; no
            // other kind does.
            Err(Unwritable::TooLong { kind: Kind::Request | Kind::Answer, len, .. }) => {
                prop_assert!(len > LONGEST);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert!(datagram.len() <= Kind::of(&message).longest());
        let again = read(&datagram).unwrap();
        if let (Message::Request(again), Message::Request(first)) = (&again, &message) {
            prop_assert_eq!(usize::from(again.room), datagram.len());
            // A padding of one to three bytes is impossible, so a datagram that close to the maximum has
            // none.
            prop_assert!(again.room >= LEAST_ROOM && again.room + 3 >= first.room);
        }
        prop_assert_eq!(roomless(again), roomless(message));
    }

    #[test]
    fn a_changed_byte_anywhere_is_found(message in message(), at in any::<usize>(), mask in 1_u8..) {
        if let Ok(mut datagram) = written(&message) {
            let at = at % datagram.len();
            datagram[at] ^= mask;
            let found = matches!(keys().open(&datagram), Err(Refused::Forged | Refused::UnknownKey(_)));
            prop_assert!(found, "byte {}", at);
        }
    }

    #[test]
    fn an_answer_is_never_longer_than_its_request(asked in request(), reply in answer()) {
        let (Ok(asked), Message::Answer(mut answer)) = (written(&asked), reply) else { return Ok(()) };
        let Ok(Message::Request(request)) = read(&asked) else { panic!("a request") };
        answer.room = request.room;
        let mut out = b"before".to_vec();
        match answer.encode(&keys(), &mut out) {
            Ok(()) => {
                prop_assert!(out.len() - 6 <= asked.len());
                let Ok(Message::Answer(mut again)) = read(&out[6..]) else { panic!("an answer") };
                let named = again.further.len();
                prop_assert_eq!(&again.further, &answer.further[..named]);
                // Members that it does not list would not fit.
                if let Some(next) = answer.further.get(named) {
                    let more = if next.endpoint.is_ipv4() { 9 } else { 21 } + if named == 0 { 5 } else { 0 };
                    prop_assert!(out.len() - 6 + more > asked.len());
                }
                (again.further, again.room) = (answer.further.clone(), answer.room);
                prop_assert_eq!(again, answer);
            }
            Err(error) => {
                let Unwritable::TooLong { most, .. } = error else { panic!("{error}") };
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
    fn a_table_is_as_long_as_its_members_say(members in vec(listed(30), 0..25)) {
        let mut rest = &members[..];
        while !rest.is_empty() {
            let part = fit(rest);
            prop_assert!(part > 0);
            let table = |part: &[Listed]| {
                Message::Table(Table { id: 1, generation: 1, part: 0, parts: 1, members: part.to_vec() })
            };
            let datagram = written(&table(&rest[..part])).unwrap();
            prop_assert_eq!(datagram.len(), 45 + rest[..part].iter().map(Listed::bytes).sum::<usize>());
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
        if bytes.len() >= HEADER {
            bytes[..HEADER].copy_from_slice(&[0x52, 0x46, 1, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let _ = resealed(&bytes);
        let _ = read(&bytes);
    }
}
