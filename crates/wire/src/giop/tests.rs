use proptest::prelude::*;

use super::write::{GiopRequestHead, MessageFormat};
use super::*;

const MAX_MESSAGE: usize = 1 << 20;

fn forms() -> Vec<MessageFormat> {
    let orders = [ByteOrder::Big, ByteOrder::Little];
    GiopVersion::ALL
        .iter()
        .flat_map(|&version| orders.map(|order| MessageFormat { version, order }))
        .collect()
}

fn form() -> impl Strategy<Value = MessageFormat> {
    proptest::sample::select(forms())
}

fn bytes(max_len: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..max_len)
}

fn contexts() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    proptest::collection::vec((any::<u32>(), bytes(20)), 0..4)
}

fn borrowed(contexts: &[(u32, Vec<u8>)]) -> Vec<ServiceContext<'_>> {
    contexts.iter().map(|(id, data)| ServiceContext { id: *id, data }).collect()
}

fn ior() -> impl Strategy<Value = Ior> {
    let profile = (0..5_u32, bytes(40)).prop_map(|(tag, data)| TaggedProfile { tag, data });
    let profiles = proptest::collection::vec(profile, 0..4);
    (bytes(24), profiles).prop_map(|(type_id, profiles)| Ior { type_id, profiles })
}

/// Reads the message, which takes up all of `out`, and checks that each prefix of it is incomplete.
fn read(out: &[u8]) -> GiopMessage<'_> {
    let message = GiopMessage::parse(out).unwrap();
    assert_eq!(
        next_message(out, MAX_MESSAGE),
        Ok(NextMessage::Whole { header: message.header, len: out.len() })
    );
    for end in 0..out.len() {
        let Ok(NextMessage::Partial { missing, .. }) = next_message(&out[..end], MAX_MESSAGE) else {
            panic!("cut at {end}")
        };
        assert_eq!(missing, if end < HEADER_LEN { HEADER_LEN } else { out.len() } - end);
        match GiopMessage::parse(&out[..end]) {
            Ok(prefix) => assert_eq!(prefix.id(), message.id()),
            Err(error) => assert_eq!(error, GiopError::Truncated, "at {end}"),
        }
    }
    message
}

/// Checks that a corrupted message causes no worse than an error.
fn break_everywhere(out: &[u8]) {
    for start in HEADER_LEN..out.len() {
        let mut broken = out.to_vec();
        let end = (start + 4).min(out.len());
        for pattern in [[0xff; 4], [0, 0, 0, 200], [200, 0, 0, 0], [0x7f, 0xff, 0xff, 0xff]] {
            broken[start..end].copy_from_slice(&pattern[..end - start]);
            if let Ok(GiopMessage { header, content: MessageContent::Request(request) }) =
                GiopMessage::parse(&broken)
            {
                let change = rewrite::GiopRewrite { id: 1, key: b"key", context: None };
                let _ = rewrite::request(&header, &broken, &request, &change, &mut Vec::new());
                let _ = request.target.key();
            }
            let _ = rewrite::set_id(&mut broken.clone(), 1);
        }
        broken.copy_from_slice(out);
        broken.truncate(start);
        // The message ends early, though its header claims that this is all of it.
        let header =
            GiopHeader { size: (start - HEADER_LEN) as u32, ..GiopHeader::parse(out).unwrap().unwrap() };
        let mut message = Vec::new();
        header.write(&mut message);
        message.extend_from_slice(&broken[HEADER_LEN..]);
        let _ = GiopMessage::parse(&message);
    }
}

proptest! {
    #[test]
    fn requests_survive(
        form in form(), id: u32, flags in 0..3_usize, key in bytes(40), operation in bytes(20),
        contexts in contexts(), body in bytes(64), ior in ior(), way in 0..3,
    ) {
        let wanted = [
            ExpectedResponse::Oneway, ExpectedResponse::Acknowledgement, ExpectedResponse::Result,
        ][flags];
        let mut stored = Vec::new();
        ior.write(&mut CdrWriter::new(&mut stored, form.order));
        let target = match way {
            1 if form.version == GiopVersion::V1_2 => TargetAddress::Profile { tag: 7, data: &key },
            2 if form.version == GiopVersion::V1_2 => {
                let ior = IorBytes::read(&mut CdrReader::new(&stored, form.order)).unwrap();
                TargetAddress::Reference { index: 3, ior }
            }
            _ => TargetAddress::Key(&key),
        };
        let contexts = borrowed(&contexts);
        let head = GiopRequestHead {
            id, expected_response: wanted, target, operation: &operation, contexts: &contexts,
        };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| writer.bytes(&body));
        let MessageContent::Request(read) = read(&out).content else { panic!("it is a request") };
        let old = form.version < GiopVersion::V1_2 && wanted == ExpectedResponse::Acknowledgement;
        let sent = if old { ExpectedResponse::Result } else { wanted };
        prop_assert_eq!((read.id, read.expected_response), (id, sent));
        prop_assert_eq!((read.target, read.operation), (target, &operation[..]));
        prop_assert_eq!((read.principal, read.body), (&[][..], &body[..]));
        prop_assert!(read.contexts.iter().eq(contexts.iter().copied()));
        if form.version == GiopVersion::V1_2 && !body.is_empty() {
            prop_assert_eq!(read.body_offset % 8, 0);
        }
        if out.len() < 200 {
            break_everywhere(&out);
        }
    }

    #[test]
    fn replies_survive(
        form in form(), id: u32, status in 0..6_usize, contexts in contexts(), body in bytes(64),
    ) {
        let known = if form.version < GiopVersion::V1_2 { status % 4 } else { status };
        let status = [
            ReplyStatus::NoException, ReplyStatus::UserException, ReplyStatus::SystemException,
            ReplyStatus::Forward, ReplyStatus::ForwardPermanent, ReplyStatus::NeedsAddressing,
        ][known];
        let contexts = borrowed(&contexts);
        let mut out = Vec::new();
        write::reply(&mut out, form, id, status, &contexts, |writer| writer.bytes(&body));
        let MessageContent::Reply(reply) = read(&out).content else { panic!("it is a reply") };
        prop_assert_eq!((reply.id, reply.status, reply.body), (id, status, &body[..]));
        prop_assert!(reply.contexts.iter().eq(contexts.iter().copied()));
        let _ = (reply.forward(form.order), reply.exception(form.order));
        rewrite::set_id(&mut out, !id).unwrap();
        prop_assert_eq!(GiopMessage::parse(&out).unwrap().id(), Some(!id));
        break_everywhere(&out);
    }

    /// A reference stays the same in every byte order and at every offset.
    #[test]
    fn forwards_survive(form in form(), id: u32, ior in ior()) {
        let mut out = b"another message".to_vec();
        let start = out.len();
        write::forward(&mut out, form, id, &ior);
        let MessageContent::Reply(reply) = read(&out[start..]).content else { panic!("it is a reply") };
        prop_assert_eq!((reply.status, reply.forward(form.order)), (ReplyStatus::Forward, Some(ior.clone())));
        let mut out = Vec::new();
        write::locate_forward(&mut out, form, id, &ior);
        let MessageContent::LocateReply(reply) = read(&out).content else { panic!("it is a locate reply") };
        let forward = reply.forward(form.order);
        prop_assert_eq!((reply.status, forward), (LocateStatus::Forward, Some(ior.clone())));
        break_everywhere(&out);
        prop_assert_eq!(ior.text(form.order).parse::<Ior>(), Ok(ior));
    }

    /// Arguments of every alignment survive a longer or shorter key.
    #[test]
    fn arguments_keep_their_alignment(
        form in form(), key in bytes(24), other in bytes(24), operation in bytes(12),
        contexts in contexts(), with: bool, small: u8, half in -1e300..1e300_f64, long: u64,
    ) {
        let contexts = borrowed(&contexts);
        let head = GiopRequestHead {
            id: 5, expected_response: ExpectedResponse::Result, target: TargetAddress::Key(&key),
            operation: &operation, contexts: &contexts,
        };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| {
            writer.u8(small);
            writer.f64(half);
            writer.string(&operation);
            writer.u64(long);
        });
        let message = GiopMessage::parse(&out).unwrap();
        let MessageContent::Request(request) = &message.content else { panic!("it is a request") };
        let context = ServiceContext { id: CODE_SETS, data: b"sets" };
        let change = rewrite::GiopRewrite { id: 6, key: &other, context: with.then_some(context) };
        let mut new = Vec::new();
        rewrite::request(&message.header, &out, request, &change, &mut new).unwrap();
        let MessageContent::Request(request) = read(&new).content else { panic!("it is a request") };
        prop_assert_eq!((request.id, request.target), (6, TargetAddress::Key(&other)));
        if with {
            prop_assert!(request.contexts.find(CODE_SETS).is_some());
        }
        let mut arguments = request.argument_reader(form.order);
        prop_assert_eq!(arguments.u8(), Ok(small));
        prop_assert_eq!(arguments.f64(), Ok(half));
        prop_assert_eq!(arguments.string(), Ok(&operation[..]));
        prop_assert_eq!(arguments.u64(), Ok(long));
        prop_assert!(arguments.rest().is_empty());
    }

    /// A head can be rewritten while its body is still arriving; the rest is forwarded as it arrives.
    #[test]
    fn a_head_is_rewritten_before_its_body_has_come(
        form in form(), key in bytes(30), body in bytes(64), came in 0..64_usize,
    ) {
        let head = GiopRequestHead {
            id: 5, expected_response: ExpectedResponse::Result, target: TargetAddress::Key(b"the key"),
            operation: b"blob", contexts: &[],
        };
        let mut out = Vec::new();
        write::request(&mut out, form, &head, |writer| writer.bytes(&body));
        let header = GiopHeader::parse(&out).unwrap().unwrap();
        let body_at = GiopRequest::read(&header, &out).unwrap().body_offset;
        let received = &out[..(body_at + came).min(out.len())];
        let request = GiopRequest::read(&header, received).unwrap();
        let mut new = Vec::new();
        let changes = rewrite::GiopRewrite { id: 9, key: &key, context: None };
        rewrite::request(&header, received, &request, &changes, &mut new).unwrap();
        new.extend_from_slice(&out[received.len()..]);
        let MessageContent::Request(request) = read(&new).content else { panic!("it is a request") };
        prop_assert_eq!((request.id, request.body), (9, &body[..]));
    }

    #[test]
    fn anything_at_all_is_read_or_refused(
        junk in bytes(200), kind in 0..8_u8, minor in 0..3_u8, flags in 0..4_u8,
    ) {
        let mut out = b"GIOP\x01".to_vec();
        out.extend_from_slice(&[minor, flags, kind]);
        let size = junk.len() as u32;
        out.extend_from_slice(&if flags & 1 == 1 { size.to_le_bytes() } else { size.to_be_bytes() });
        out.extend_from_slice(&junk);
        let _ = GiopMessage::parse(&out);
        let _ = CdrReader::encapsulation(&junk).and_then(|mut reader| Ior::read(&mut reader));
        let _ = IiopProfile::parse(&junk);
    }
}

#[test]
fn the_rest_of_the_messages() {
    for format in forms() {
        for id in [0, 1, u32::MAX] {
            let mut out = Vec::new();
            write::cancel(&mut out, format, id);
            assert_eq!(read(&out).content, MessageContent::CancelRequest(id));
            let mut out = Vec::new();
            write::locate_request(&mut out, format, id, &TargetAddress::Key(b"key"));
            let target = TargetAddress::Key(b"key");
            assert_eq!(read(&out).content, MessageContent::LocateRequest(LocateRequest { id, target }));
            for (is_here, status) in [(true, LocateStatus::Here), (false, LocateStatus::Unknown)] {
                let mut out = Vec::new();
                write::locate_status(&mut out, format, id, is_here);
                assert_eq!(
                    read(&out).content,
                    MessageContent::LocateReply(LocateReply { id, status, body: &[] })
                );
            }
            let mut out = Vec::new();
            write::exception(&mut out, format, id, &SystemException::TRANSIENT);
            let MessageContent::Reply(reply) = read(&out).content else { panic!("it is a reply") };
            assert_eq!(reply.exception(format.order), Some(SystemException::TRANSIENT));
            let mut out = Vec::new();
            write::locate_exception(&mut out, format, id, &SystemException::TRANSIENT);
            let MessageContent::LocateReply(reply) = read(&out).content else {
                panic!("it is a locate reply")
            };
            if format.version == GiopVersion::V1_2 {
                let mut reader = CdrReader::with_origin(reply.body, format.order, LocateReply::BODY_OFFSET);
                assert_eq!(SystemException::read(&mut reader), Ok(SystemException::TRANSIENT));
            } else {
                assert_eq!(reply.status, LocateStatus::Here);
            }
        }
        let mut out = Vec::new();
        write::close(&mut out, format);
        assert_eq!(read(&out).content, MessageContent::CloseConnection);
        let mut out = Vec::new();
        write::error(&mut out, format);
        assert_eq!(read(&out).content, MessageContent::MessageError);
    }
}

/// The body of a locate reply follows its status immediately, in 1.2, too: at 20, which is no multiple of 8.
#[test]
fn a_locate_forward_is_not_aligned_to_eight() {
    let format = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Big };
    let ior = Ior { type_id: b"T".to_vec(), profiles: Vec::new() };
    let mut out = Vec::new();
    write::locate_forward(&mut out, format, 7, &ior);
    assert_eq!(out, b"GIOP\x01\x02\0\x04\0\0\0\x14\0\0\0\x07\0\0\0\x02\0\0\0\x02T\0\0\0\0\0\0\0");
}

#[test]
fn sizes_are_limited() {
    let header = GiopHeader {
        version: GiopVersion::V1_2,
        order: ByteOrder::Big,
        more_fragments: false,
        kind: MessageType::Request,
        size: 1013,
    };
    let mut out = Vec::new();
    header.write(&mut out);
    assert!(matches!(next_message(&out, 1025), Ok(NextMessage::Partial { missing: 1013, .. })));
    assert!(next_message(&out, 1024).is_err());
    GiopHeader { size: u32::MAX, ..header }.write(&mut out);
    assert!(next_message(&out[12..], MAX_MESSAGE).is_err());
}

#[test]
fn fragments_are_bounded() {
    let format = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Little };
    let fragment = |id: u32, kind: MessageType, len: u32| {
        let mut out = Vec::new();
        GiopHeader {
            version: format.version,
            order: format.order,
            more_fragments: true,
            kind,
            size: len + 4,
        }
        .write(&mut out);
        out.extend_from_slice(&id.to_le_bytes());
        out.extend(std::iter::repeat_n(0, len as usize));
        out
    };
    let mut assembler = FragmentAssembler::new(AssemblyLimits { messages: 2, bytes: 200 });
    assert_eq!(assembler.accept(&fragment(1, MessageType::Request, 24)), Ok(None));
    assert_eq!(assembler.accept(&fragment(2, MessageType::Request, 24)), Ok(None));
    assert!(assembler.accept(&fragment(3, MessageType::Request, 24)).is_err(), "a third message");
    assert!(assembler.accept(&fragment(1, MessageType::Fragment, 121)).is_err(), "201 bytes");
    assert_eq!(assembler.accept(&fragment(1, MessageType::Fragment, 120)), Ok(None));
    let mut cancel = Vec::new();
    write::cancel(&mut cancel, format, 1);
    assert!(assembler.accept(&cancel).unwrap().is_some());
    assert_eq!(assembler.len(), 1);
    assert_eq!(assembler.accept(&fragment(3, MessageType::Request, 100)), Ok(None), "there is room again");
}

#[test]
fn keys_are_found_however_an_object_is_named() {
    let ior = "corbaloc::1.2@h:1/the key".parse::<Corbaloc>().unwrap().ior();
    let mut stored = Vec::new();
    ior.write(&mut CdrWriter::new(&mut stored, ByteOrder::Big));
    let bytes = IorBytes::read(&mut CdrReader::new(&stored, ByteOrder::Big)).unwrap();
    assert_eq!(
        TargetAddress::Profile { tag: IIOP_TAG, data: &ior.profiles[0].data }.key(),
        Some(&b"the key"[..])
    );
    assert_eq!(TargetAddress::Profile { tag: 1, data: &ior.profiles[0].data }.key(), None);
    assert_eq!(TargetAddress::Reference { index: 0, ior: bytes }.key(), Some(&b"the key"[..]));
    assert_eq!(TargetAddress::Reference { index: 1, ior: bytes }.key(), None);
    assert_eq!(TargetAddress::Profile { tag: IIOP_TAG, data: b"\0\x02" }.key(), None);
}

#[test]
fn corbalocs() {
    let address = |version, host: &str, port| IiopAddress { version, host: host.to_string(), port };
    let parsed: Corbaloc = "corbaloc::a,iiop:1.2@[::1]:88,:1.1@b:1/k%20/%ff".parse().unwrap();
    let addresses = [
        address(GiopVersion::V1_0, "a", 2809),
        address(GiopVersion::V1_2, "::1", 88),
        address(GiopVersion::V1_1, "b", 1),
    ];
    assert_eq!((&parsed.addresses[..], &parsed.key[..]), (&addresses[..], &b"k /\xff"[..]));
    assert_eq!(parsed.to_string(), "corbaloc:iiop:1.0@a:2809,iiop:1.2@[::1]:88,iiop:1.1@b:1/k%20/%ff");
    let name: Corbaname = "corbaname::h:5#bank/a%2eb.c".parse().unwrap();
    assert_eq!((&name.service.key[..], &name.name[..]), (&b"NameService"[..], "bank/a.b.c"));
    let rir = "corbaloc:rir:/NameService".parse::<Corbaloc>().unwrap_err();
    assert!(rir.to_string().contains("rir:"), "{rir}");
}

#[test]
fn other_addresses_are_read() {
    let components = vec![
        CodeSets::common_sets().component(ByteOrder::Little),
        TaggedComponent { tag: 99, data: b"whatever".to_vec() },
        TaggedComponent::alternate_address("fe80::1", 4711, ByteOrder::Big),
    ];
    let profile = IiopProfile {
        version: GiopVersion::V1_2,
        host: "::1".into(),
        port: 1,
        key: b"k".to_vec(),
        components,
    };
    let ior = Ior { type_id: b"IDL:T:1.0".to_vec(), profiles: vec![profile.to_tagged(ByteOrder::Big)] };
    let reparsed = ior.to_string().parse::<Ior>().unwrap().first_iiop_profile().unwrap();
    assert_eq!(reparsed, profile);
    let addresses: Vec<String> = reparsed.addresses().map(|address| address.to_string()).collect();
    assert_eq!(addresses, ["[::1]:1", "[fe80::1]:4711"]);
    assert_eq!(reparsed.components[0].code_sets(), Some(CodeSets::common_sets()));
}
