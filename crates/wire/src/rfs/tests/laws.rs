use std::net::SocketAddr;

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
    (fields, 0_usize..=1200).prop_map(
        |(((id, service, attempt, generation, client_time), mode, avoid, info), least)| {
            let request = Request { id, service, attempt, mode, generation, client_time, avoid, info };
            Message::Request(request, room(least))
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
    let lists = (vec(any::<u8>(), 0..=MOST_INFO), vec(further(), 0..=Answer::MOST_FURTHER));
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
            info,
            further,
        })
    })
}

fn commit() -> impl Strategy<Value = Message> {
    let ids = vec(any::<u64>(), 0..=Commit::MOST_IDS);
    (any::<(u16, u32)>(), ids)
        .prop_map(|((member, incarnation), ids)| Message::Commit(Commit { member, incarnation, ids }))
}

fn report() -> impl Strategy<Value = Message> {
    let load = any::<(u32, u16, u16, u16, u16)>().prop_map(|(service, capacity, weight, load, in_flight)| {
        Share { service, capacity, weight, load, in_flight }
    });
    let services = vec(load, 0..=Report::MOST_SERVICES);
    let lists = services.prop_flat_map(|services| {
        let most = Report::ids_beside(services.len()).unwrap();
        (Just(services), vec(any::<u64>(), 0..=most))
    });
    (any::<(u16, u32, u32, u64)>(), state(), lists).prop_map(|(numbers, state, (services, ids))| {
        let (member, incarnation, seq, digest) = numbers;
        Message::Report(Report { member, incarnation, seq, state, digest, services, ids })
    })
}

fn fetch() -> impl Strategy<Value = Message> {
    any::<(u64, u32, u16)>()
        .prop_map(|(id, generation, part)| Message::Fetch(Fetch { id, generation, part }, room(LONGEST)))
}

fn listed(most: usize) -> impl Strategy<Value = Listed> {
    // Half of the offers are at the member's own host.
    let offer = (any::<(u32, u16, bool)>(), address(), vec(any::<u8>(), 0..8));
    (any::<(u16, u32)>(), address(), vec(offer, 0..=most)).prop_map(
        |((member, incarnation), address, offers)| {
            let offers = offers.into_iter().map(|((service, capacity, near), endpoint, info)| {
                let endpoint = if near { (address.ip(), endpoint.port()).into() } else { endpoint };
                Offer { service, capacity, endpoint, info }
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
            members.truncate(Table::fit(&members));
            Message::Table(Table { id, generation, part, parts, members })
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![request(), answer(), commit(), report(), fetch(), table()]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in message()) {
        let datagram = match written(&message) {
            Ok(datagram) => datagram,
            // A request may have more than one datagram's members to avoid and information; nothing else here has.
            Err(Unwritable::TooLong { kind: Kind::Request | Kind::Answer, len, .. }) => {
                prop_assert!(len > LONGEST);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert!(datagram.len() <= message.kind().longest());
        match (read(&datagram).unwrap(), message) {
            (Message::Request(again, room), Message::Request(first, wanted)) => {
                prop_assert_eq!(again, first);
                prop_assert_eq!(room.bytes(), datagram.len());
                // A padding of one to three bytes cannot be said: a datagram that is so near to the longest goes without.
                prop_assert!(room >= Room::LEAST && room.bytes() + 3 >= wanted.bytes());
            }
            (again, first) => prop_assert_eq!(again, first),
        }
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
        let Ok(Message::Request(_, room)) = read(&asked) else { panic!("a request") };
        let mut out = b"before".to_vec();
        let all = answer.further.len();
        let fit = answer.further_that_fit(room);
        match answer.encode(room, &keys(), &mut out) {
            Ok(()) => {
                prop_assert!(out.len() - 6 <= asked.len());
                prop_assert_eq!(fit, all);
            }
            Err(error) => {
                let Unwritable::TooLong { most, .. } = error else { panic!("{error}") };
                prop_assert_eq!(most, asked.len());
                prop_assert_eq!(&out[..], b"before");
                // Fewer further members, or none, and as much information as there is room for then.
                prop_assert!(fit < all || all == 0);
                answer.further.truncate(fit);
                if answer.encode(room, &keys(), &mut out).is_err() {
                    prop_assert_eq!(fit, 0);
                    answer.info.truncate(room.bytes() - 75);
                    prop_assert_eq!(answer.encode(room, &keys(), &mut out), Ok(()));
                }
                prop_assert!(out.len() - 6 <= asked.len());
            }
        }
    }

    #[test]
    fn a_table_is_cut_into_parts_that_fit_and_make_it_up(members in vec(listed(30), 0..25)) {
        let parts = Table::split(&members).unwrap();
        prop_assert_eq!(parts.concat(), &members[..]);
        let count = parts.len() as u16;
        for (at, part) in parts.iter().enumerate() {
            let table = Table { id: 1, generation: 1, part: at as u16, parts: count, members: part.to_vec() };
            let datagram = written(&Message::Table(table.clone())).unwrap();
            prop_assert_eq!(read(&datagram), Ok(Message::Table(table.clone())));
            // With the first of the next part it would not have fitted.
            if let Some(next) = parts.get(at + 1) {
                let members = [*part, &next[..1]].concat();
                let fuller = Message::Table(Table { members, ..table });
                prop_assert!(written(&fuller).is_err());
            }
        }
    }

    /// Whatever it is that somebody with the key sealed.
    #[test]
    fn nothing_that_is_read_panics(bytes in vec(any::<u8>(), 0..1400), kind in 1_u8..=6) {
        let mut bytes = bytes;
        if bytes.len() >= HEADER {
            bytes[..HEADER].copy_from_slice(&[0x52, 0x46, 1, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let _ = resealed(&bytes);
        let _ = read(&bytes);
    }
}
