use proptest::prelude::*;

use super::write::{Form, Head};
use super::*;

const MOST: usize = 1 << 20;

fn forms() -> Vec<Form> {
    let orders = [Order::Big, Order::Little];
    Version::ALL.iter().flat_map(|&version| orders.map(|order| Form { version, order })).collect()
}

fn form() -> impl Strategy<Value = Form> {
    proptest::sample::select(forms())
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..most)
}

fn contexts() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    proptest::collection::vec((any::<u32>(), bytes(20)), 0..4)
}

fn borrowed(contexts: &[(u32, Vec<u8>)]) -> Vec<Context<'_>> {
    contexts.iter().map(|(id, data)| Context { id: *id, data }).collect()
}

fn ior() -> impl Strategy<Value = Ior> {
    let profile = (0..5_u32, bytes(40)).prop_map(|(tag, data)| Profile { tag, data });
    let profiles = proptest::collection::vec(profile, 0..4);
    (bytes(24), profiles).prop_map(|(type_id, profiles)| Ior { type_id, profiles })
}

/// Reads the message, which takes up all of `out`, and checks that each prefix of it is incomplete.
fn read(out: &[u8]) -> Message<'_> {
    let message = Message::parse(out).unwrap();
    assert_eq!(cut(out, MOST), Ok(Cut::Whole { header: message.header, len: out.len() }));
    for end in 0..out.len() {
        let Ok(Cut::Partial { missing, .. }) = cut(&out[..end], MOST) else { panic!("cut at {end}") };
        assert_eq!(missing, if end < HEADER { HEADER } else { out.len() } - end);
        match Message::parse(&out[..end]) {
            Ok(part) => assert_eq!(part.id(), message.id()),
            Err(error) => assert_eq!(error, BadGiop::Truncated, "at {end}"),
        }
    }
    message
}

/// Checks that a corrupted message causes no worse than an error.
fn break_everywhere(out: &[u8]) {
    for at in HEADER..out.len() {
        let mut broken = out.to_vec();
        let end = (at + 4).min(out.len());
        for with in [[0xff; 4], [0, 0, 0, 200], [200, 0, 0, 0], [0x7f, 0xff, 0xff, 0xff]] {
            broken[at..end].copy_from_slice(&with[..end - at]);
            if let Ok(Message { header, content: Content::Request(request) }) = Message::parse(&broken) {
                let change = rewrite::Change { id: 1, key: b"key", context: None };
                let _ = rewrite::request(&header, &broken, &request, &change, &mut Vec::new());
                let _ = request.target.key();
            }
            let _ = rewrite::set_id(&mut broken.clone(), 1);
        }
        broken.copy_from_slice(out);
        broken.truncate(at);
        // The message ends early, though its header claims that this is all of it.
        let header = Header { size: (at - HEADER) as u32, ..Header::parse(out).unwrap().unwrap() };
        let mut whole = Vec::new();
        header.write(&mut whole);
        whole.extend_from_slice(&broken[HEADER..]);
        let _ = Message::parse(&whole);
    }
}

proptest! {
    #[test]
    fn requests_survive(
        form in form(), id: u32, flags in 0..3_usize, key in bytes(40), operation in bytes(20), contexts in contexts(),
        body in bytes(64), ior in ior(), way in 0..3,
    ) {
        let wanted = [Wanted::Nothing, Wanted::Arrival, Wanted::Result][flags];
        let mut stored = Vec::new();
        ior.write(&mut Writer::new(&mut stored, form.order));
        let target = match way {
            1 if form.version == Version::V1_2 => Target::Profile { tag: 7, data: &key },
            2 if form.version == Version::V1_2 => {
                let ior = IorBytes::read(&mut Reader::new(&stored, form.order)).unwrap();
                Target::Reference { index: 3, ior }
            }
            _ => Target::Key(&key),
        };
        let contexts = borrowed(&contexts);
        let head = Head { id, wanted, target, operation: &operation, contexts: &contexts };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| writer.bytes(&body));
        let Content::Request(read) = read(&out).content else { panic!("it is a request") };
        let old = form.version < Version::V1_2 && wanted == Wanted::Arrival;
        prop_assert_eq!((read.id, read.wanted), (id, if old { Wanted::Result } else { wanted }));
        prop_assert_eq!((read.target, read.operation), (target, &operation[..]));
        prop_assert_eq!((read.principal, read.body), (&[][..], &body[..]));
        prop_assert!(read.contexts.iter().eq(contexts.iter().copied()));
        if form.version == Version::V1_2 && !body.is_empty() {
            prop_assert_eq!(read.body_at % 8, 0);
        }
        if out.len() < 200 {
            break_everywhere(&out);
        }
    }

    #[test]
    fn replies_survive(form in form(), id: u32, status in 0..6_usize, contexts in contexts(), body in bytes(64)) {
        let known = if form.version < Version::V1_2 { status % 4 } else { status };
        let status = [
            Status::Done, Status::UserException, Status::SystemException, Status::Forward, Status::ForwardForGood,
            Status::NeedsAddressing,
        ][known];
        let contexts = borrowed(&contexts);
        let mut out = Vec::new();
        write::reply(&mut out, form, id, status, &contexts, |writer| writer.bytes(&body));
        let Content::Reply(reply) = read(&out).content else { panic!("it is a reply") };
        prop_assert_eq!((reply.id, reply.status, reply.body), (id, status, &body[..]));
        prop_assert!(reply.contexts.iter().eq(contexts.iter().copied()));
        let _ = (reply.forward(form.order), reply.exception(form.order));
        rewrite::set_id(&mut out, !id).unwrap();
        prop_assert_eq!(Message::parse(&out).unwrap().id(), Some(!id));
        break_everywhere(&out);
    }

    /// A reference stays the same in every byte order and at every offset.
    #[test]
    fn forwards_survive(form in form(), id: u32, ior in ior()) {
        let mut out = b"another message".to_vec();
        let at = out.len();
        write::forward(&mut out, form, id, &ior);
        let Content::Reply(reply) = read(&out[at..]).content else { panic!("it is a reply") };
        prop_assert_eq!((reply.status, reply.forward(form.order)), (Status::Forward, Some(ior.clone())));
        let mut out = Vec::new();
        write::locate_forward(&mut out, form, id, &ior);
        let Content::LocateReply(reply) = read(&out).content else { panic!("it is a locate reply") };
        prop_assert_eq!((reply.status, reply.forward(form.order)), (LocateStatus::Forward, Some(ior.clone())));
        break_everywhere(&out);
        prop_assert_eq!(ior.text(form.order).parse::<Ior>(), Ok(ior));
    }

    /// Arguments of every alignment survive a longer or shorter key.
    #[test]
    fn arguments_keep_their_alignment(
        form in form(), key in bytes(24), other in bytes(24), operation in bytes(12), contexts in contexts(), with: bool,
        small: u8, half in -1e300..1e300_f64, long: u64,
    ) {
        let contexts = borrowed(&contexts);
        let head = Head {
            id: 5, wanted: Wanted::Result, target: Target::Key(&key), operation: &operation, contexts: &contexts,
        };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| {
            writer.u8(small);
            writer.f64(half);
            writer.string(&operation);
            writer.u64(long);
        });
        let message = Message::parse(&out).unwrap();
        let Content::Request(request) = &message.content else { panic!("it is a request") };
        let context = Context { id: CODE_SETS, data: b"sets" };
        let change = rewrite::Change { id: 6, key: &other, context: with.then_some(context) };
        let mut new = Vec::new();
        rewrite::request(&message.header, &out, request, &change, &mut new).unwrap();
        let Content::Request(request) = read(&new).content else { panic!("it is a request") };
        prop_assert_eq!((request.id, request.target), (6, Target::Key(&other)));
        if with {
            prop_assert!(request.contexts.find(CODE_SETS).is_some());
        }
        let mut arguments = request.arguments(form.order);
        prop_assert_eq!(arguments.u8(), Ok(small));
        prop_assert_eq!(arguments.f64(), Ok(half));
        prop_assert_eq!(arguments.string(), Ok(&operation[..]));
        prop_assert_eq!(arguments.u64(), Ok(long));
        prop_assert!(arguments.rest().is_empty());
    }

    /// A head can be rewritten while its body is still arriving; the rest is forwarded as it arrives.
    #[test]
    fn a_head_is_rewritten_before_its_body_has_come(form in form(), key in bytes(30), body in bytes(64), came in 0..64_usize) {
        let head = Head {
            id: 5, wanted: Wanted::Result, target: Target::Key(b"the key"), operation: b"blob", contexts: &[],
        };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| writer.bytes(&body));
        let header = Header::parse(&out).unwrap().unwrap();
        let body_at = Request::read(&header, &out).unwrap().body_at;
        let there = &out[..(body_at + came).min(out.len())];
        let request = Request::read(&header, there).unwrap();
        let mut new = Vec::new();
        rewrite::request(&header, there, &request, &rewrite::Change { id: 9, key: &key, context: None }, &mut new).unwrap();
        new.extend_from_slice(&out[there.len()..]);
        let Content::Request(request) = read(&new).content else { panic!("it is a request") };
        prop_assert_eq!((request.id, request.body), (9, &body[..]));
    }

    #[test]
    fn anything_at_all_is_read_or_refused(junk in bytes(200), kind in 0..8_u8, minor in 0..3_u8, flags in 0..4_u8) {
        let mut out = b"GIOP\x01".to_vec();
        out.extend_from_slice(&[minor, flags, kind]);
        let size = junk.len() as u32;
        out.extend_from_slice(&if flags & 1 == 1 { size.to_le_bytes() } else { size.to_be_bytes() });
        out.extend_from_slice(&junk);
        let _ = Message::parse(&out);
        let _ = Reader::encapsulation(&junk).and_then(|mut reader| Ior::read(&mut reader));
        let _ = IiopProfile::parse(&junk);
    }
}

#[test]
fn the_rest_of_the_messages() {
    for form in forms() {
        for id in [0, 1, u32::MAX] {
            let mut out = Vec::new();
            write::cancel(&mut out, form, id);
            assert_eq!(read(&out).content, Content::CancelRequest(id));
            let mut out = Vec::new();
            write::locate_request(&mut out, form, id, &Target::Key(b"key"));
            let target = Target::Key(b"key");
            assert_eq!(read(&out).content, Content::LocateRequest(LocateRequest { id, target }));
            for (here, status) in [(true, LocateStatus::Here), (false, LocateStatus::Unknown)] {
                let mut out = Vec::new();
                write::located(&mut out, form, id, here);
                assert_eq!(read(&out).content, Content::LocateReply(LocateReply { id, status, body: &[] }));
            }
            let mut out = Vec::new();
            write::exception(&mut out, form, id, &SystemException::TRANSIENT);
            let Content::Reply(reply) = read(&out).content else { panic!("it is a reply") };
            assert_eq!(reply.exception(form.order), Some(SystemException::TRANSIENT));
            let mut out = Vec::new();
            write::locate_exception(&mut out, form, id, &SystemException::TRANSIENT);
            let Content::LocateReply(reply) = read(&out).content else { panic!("it is a locate reply") };
            if form.version == Version::V1_2 {
                let mut reader = Reader::with_origin(reply.body, form.order, LocateReply::BODY_AT);
                assert_eq!(SystemException::read(&mut reader), Ok(SystemException::TRANSIENT));
            } else {
                assert_eq!(reply.status, LocateStatus::Here);
            }
        }
        let mut out = Vec::new();
        write::close(&mut out, form);
        assert_eq!(read(&out).content, Content::CloseConnection);
        let mut out = Vec::new();
        write::error(&mut out, form);
        assert_eq!(read(&out).content, Content::MessageError);
    }
}

/// The body of a locate reply follows its status immediately, in 1.2, too: at 20, which is no multiple of 8.
#[test]
fn a_locate_forward_is_not_aligned_to_eight() {
    let form = Form { version: Version::V1_2, order: Order::Big };
    let ior = Ior { type_id: b"T".to_vec(), profiles: Vec::new() };
    let mut out = Vec::new();
    write::locate_forward(&mut out, form, 7, &ior);
    assert_eq!(out, b"GIOP\x01\x02\0\x04\0\0\0\x14\0\0\0\x07\0\0\0\x02\0\0\0\x02T\0\0\0\0\0\0\0");
}

#[test]
fn sizes_are_limited() {
    let header =
        Header { version: Version::V1_2, order: Order::Big, more: false, kind: Kind::Request, size: 1013 };
    let mut out = Vec::new();
    header.write(&mut out);
    assert!(matches!(cut(&out, 1025), Ok(Cut::Partial { missing: 1013, .. })));
    assert!(cut(&out, 1024).is_err());
    Header { size: u32::MAX, ..header }.write(&mut out);
    assert!(cut(&out[12..], MOST).is_err());
}

#[test]
fn fragments_are_bounded() {
    let form = Form { version: Version::V1_2, order: Order::Little };
    let piece = |id: u32, kind: Kind, len: u32| {
        let mut out = Vec::new();
        Header { version: form.version, order: form.order, more: true, kind, size: len + 4 }.write(&mut out);
        out.extend_from_slice(&id.to_le_bytes());
        out.extend(std::iter::repeat_n(0, len as usize));
        out
    };
    let mut assembler = Assembler::new(Limits { messages: 2, bytes: 200 });
    assert_eq!(assembler.take(&piece(1, Kind::Request, 24)), Ok(None));
    assert_eq!(assembler.take(&piece(2, Kind::Request, 24)), Ok(None));
    assert!(assembler.take(&piece(3, Kind::Request, 24)).is_err(), "a third message");
    assert!(assembler.take(&piece(1, Kind::Fragment, 121)).is_err(), "201 bytes");
    assert_eq!(assembler.take(&piece(1, Kind::Fragment, 120)), Ok(None));
    let mut cancel = Vec::new();
    write::cancel(&mut cancel, form, 1);
    assert!(assembler.take(&cancel).unwrap().is_some());
    assert_eq!(assembler.len(), 1);
    assert_eq!(assembler.take(&piece(3, Kind::Request, 100)), Ok(None), "there is room again");
}

#[test]
fn keys_are_found_however_an_object_is_named() {
    let ior = "corbaloc::1.2@h:1/the key".parse::<Corbaloc>().unwrap().ior();
    let mut stored = Vec::new();
    ior.write(&mut Writer::new(&mut stored, Order::Big));
    let bytes = IorBytes::read(&mut Reader::new(&stored, Order::Big)).unwrap();
    assert_eq!(Target::Profile { tag: IIOP, data: &ior.profiles[0].data }.key(), Some(&b"the key"[..]));
    assert_eq!(Target::Profile { tag: 1, data: &ior.profiles[0].data }.key(), None);
    assert_eq!(Target::Reference { index: 0, ior: bytes }.key(), Some(&b"the key"[..]));
    assert_eq!(Target::Reference { index: 1, ior: bytes }.key(), None);
    assert_eq!(Target::Profile { tag: IIOP, data: b"\0\x02" }.key(), None);
}

#[test]
fn corbalocs() {
    let place = |version, host: &str, port| Place { version, host: host.to_string(), port };
    let read: Corbaloc = "corbaloc::a,iiop:1.2@[::1]:88,:1.1@b:1/k%20/%ff".parse().unwrap();
    let places =
        [place(Version::V1_0, "a", 2809), place(Version::V1_2, "::1", 88), place(Version::V1_1, "b", 1)];
    assert_eq!((&read.places[..], &read.key[..]), (&places[..], &b"k /\xff"[..]));
    assert_eq!(read.to_string(), "corbaloc:iiop:1.0@a:2809,iiop:1.2@[::1]:88,iiop:1.1@b:1/k%20/%ff");
    let name: Corbaname = "corbaname::h:5#bank/a%2eb.c".parse().unwrap();
    assert_eq!((&name.service.key[..], &name.name[..]), (&b"NameService"[..], "bank/a.b.c"));
    let rir = "corbaloc:rir:/NameService".parse::<Corbaloc>().unwrap_err();
    assert!(rir.to_string().contains("rir:"), "{rir}");
}

#[test]
fn other_addresses_are_read() {
    let components = vec![
        CodeSets::common().component(Order::Little),
        Component { tag: 99, data: b"whatever".to_vec() },
        Component::alternate("fe80::1", 4711, Order::Big),
    ];
    let profile =
        IiopProfile { version: Version::V1_2, host: "::1".into(), port: 1, key: b"k".to_vec(), components };
    let ior = Ior { type_id: b"IDL:T:1.0".to_vec(), profiles: vec![profile.profile(Order::Big)] };
    let again = ior.to_string().parse::<Ior>().unwrap().iiop().unwrap();
    assert_eq!(again, profile);
    let places: Vec<String> = again.places().map(|place| place.to_string()).collect();
    assert_eq!(places, ["[::1]:1", "[fe80::1]:4711"]);
    assert_eq!(again.components[0].code_sets(), Some(CodeSets::common()));
}
