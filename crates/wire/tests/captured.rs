//! Messages of real ORBs, compared with independent readings. `index.txt` names every file of `tests/giop/`,
//! with the contents that another program found in it. Parsing and writing a message yields the same bytes,
//! except for garbage that some ORBs leave in padding.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_wire::giop::{
    AssemblyLimits, ByteOrder, ExpectedResponse, FragmentAssembler, GiopMessage, GiopRequest, GiopVersion,
    Ior, LocateStatus, MessageContent, NextMessage, ReplyStatus, ServiceContext, ServiceContexts,
    TargetAddress, next_message, rewrite, write,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/giop")
}

/// Returns each message by its name: its bytes, and its description in the index.
fn captured() -> BTreeMap<String, (Vec<u8>, Vec<String>)> {
    let index = fs::read_to_string(folder().join("index.txt")).expect("the index of tests/giop");
    let lines = index.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_string);
            let name = words.next().expect("a name");
            let bytes = fs::read(folder().join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, (bytes, words.collect()))
        })
        .collect()
}

#[test]
fn is_read_as_another_program_reads_it() {
    let all = captured();
    assert!(all.len() > 100, "only {} messages are in the index", all.len());
    for (name, (bytes, words)) in &all {
        let message = GiopMessage::parse(bytes).unwrap_or_else(|bad| panic!("{name}: {bad}"));
        let found = next_message(bytes, 1 << 20);
        assert_eq!(found, Ok(NextMessage::Whole { header: message.header, len: bytes.len() }), "{name}");
        assert_eq!(said(&message, bytes.len()), words[..said(&message, 0).len()], "{name}");
    }
}

#[test]
fn every_file_is_in_the_index() {
    let known = captured();
    for entry in fs::read_dir(folder()).expect("tests/giop") {
        let name = entry.expect("a readable folder").file_name().into_string().expect("a name of text");
        assert!(!name.ends_with(".bin") || known.contains_key(&name), "{name} is not in index.txt");
    }
}

#[test]
fn is_the_same_when_it_is_written_again() {
    for (name, (bytes, _)) in captured() {
        let message = GiopMessage::parse(&bytes).expect("read before");
        let form = message.header.format();
        let mut out = Vec::new();
        match &message.content {
            MessageContent::Request(request) => {
                let Some(key) = request.target.key() else { panic!("{name} names its object by no key") };
                let change = rewrite::GiopRewrite { id: request.id, key, context: None };
                rewrite::request(&message.header, &bytes, request, &change, &mut out)
                    .expect("as long as before");
                if !matches!(request.target, TargetAddress::Key(_)) {
                    assert!(out.len() < bytes.len(), "{name}: a key is shorter");
                    continue;
                }
            }
            MessageContent::Reply(reply) if !message.header.more_fragments => {
                let contexts: Vec<ServiceContext<'_>> = reply.contexts.iter().collect();
                write::reply(&mut out, form, reply.id, reply.status, &contexts, |writer| {
                    writer.bytes(reply.body)
                });
            }
            MessageContent::LocateRequest(request) => {
                write::locate_request(&mut out, form, request.id, &request.target)
            }
            MessageContent::LocateReply(reply) => {
                write::locate_reply(&mut out, form, reply.id, reply.status, |writer| {
                    writer.bytes(reply.body)
                });
            }
            MessageContent::CancelRequest(id) => write::cancel(&mut out, form, *id),
            MessageContent::CloseConnection => write::close(&mut out, form),
            MessageContent::MessageError => write::error(&mut out, form),
            MessageContent::Reply(_) | MessageContent::Fragment(_) => {
                out.clone_from(&bytes);
                if let Some(id) = message.id() {
                    rewrite::set_id(&mut out, !id).expect("it has one");
                    assert_ne!(out, bytes, "{name}");
                    rewrite::set_id(&mut out, id).expect("it has one");
                }
            }
        }
        // omniORB leaves stale bytes in padding; this crate writes zeros.
        for (padding, _) in out.iter().zip(&bytes).filter(|(new, old)| new != old) {
            assert_eq!(*padding, 0, "{name}: {} became {}", bytes.escape_ascii(), out.escape_ascii());
        }
        assert_eq!(GiopMessage::parse(&out), Ok(message), "{name}");
    }
}

/// The pieces of a large message are `ORB-VERSION-KIND-blob.bin` and `ORB-VERSION-fragment-KIND-blob-N.bin`.
#[test]
fn fragments_make_a_message() {
    let all = captured();
    let mut assembled = 0;
    for (name, (bytes, _)) in all.iter().filter(|(name, _)| name.ends_with("-blob.bin")) {
        let mut assembler = FragmentAssembler::new(AssemblyLimits { messages: 1, bytes: 1 << 20 });
        let mut whole = assembler.accept(bytes).expect("a beginning");
        for number in 1.. {
            let next = name.replace("-request-", "-fragment-request-").replace("-reply-", "-fragment-reply-");
            let Some((piece, _)) = all.get(&next.replace(".bin", &format!("-{number}.bin"))) else { break };
            assert!(whole.is_none(), "{name} is whole before its {number}. fragment");
            whole = assembler.accept(piece).unwrap_or_else(|bad| panic!("{name}: {bad}"));
            assembled += 1;
        }
        let Some(whole) = whole else { panic!("{name} never ends") };
        let message = GiopMessage::parse(&whole).unwrap_or_else(|bad| panic!("{name}: {bad}"));
        assert_eq!(whole.len(), message.header.message_len(), "{name}");
        let order = message.header.order;
        let mut body = match &message.content {
            MessageContent::Request(request) => request.argument_reader(order),
            MessageContent::Reply(reply) => reply.body_reader(order),
            _ => panic!("{name} is a request or a reply"),
        };
        let octets = body.octets().unwrap_or_else(|bad| panic!("{name}: {bad}"));
        assert!(
            octets.len() > 1000 && body.rest().is_empty(),
            "{name}: {} and {}",
            octets.len(),
            body.rest().len()
        );
    }
    assert!(assembled > 3, "only {assembled} fragments");
}

#[test]
fn references_of_servers_are_kept_byte_for_byte() {
    for orb in ["omniorb", "jacorb", "glassfish"] {
        let text = fs::read_to_string(folder().join(format!("{orb}.ior"))).expect("a reference");
        let text = text.trim();
        let ior: Ior = text.parse().unwrap_or_else(|bad| panic!("{orb}: {bad}"));
        let order = if text[4..].starts_with("01") { ByteOrder::Little } else { ByteOrder::Big };
        assert!(ior.text(order).eq_ignore_ascii_case(text), "{orb}");
        assert_eq!(ior.type_id, b"IDL:Test/Latency:1.0");
        let profile = ior.first_iiop_profile().expect("an IIOP profile");
        assert_eq!((profile.version, &profile.host[..]), (GiopVersion::V1_2, "127.0.0.1"), "{orb}");
        assert!(profile.components.iter().any(|component| component.code_sets().is_some()), "{orb}");
        let order = if ior.profiles[0].data[0] == 1 { ByteOrder::Little } else { ByteOrder::Big };
        assert_eq!(profile.to_tagged(order), ior.profiles[0], "{orb}");
    }
}

/// Describes a message in the notation of the index.
fn said(message: &GiopMessage<'_>, len: usize) -> Vec<String> {
    let header = message.header;
    let kind = match &message.content {
        MessageContent::Request(_) => "request",
        MessageContent::Reply(_) => "reply",
        MessageContent::CancelRequest(_) => "cancel",
        MessageContent::LocateRequest(_) => "locate-request",
        MessageContent::LocateReply(_) => "locate-reply",
        MessageContent::CloseConnection => "close",
        MessageContent::MessageError => "error",
        MessageContent::Fragment(_) => "fragment",
    };
    let mut words = vec![
        len.to_string(),
        format!("1.{}", header.version.minor()),
        if header.order == ByteOrder::Big { "big" } else { "little" }.to_string(),
        kind.to_string(),
        message.id().map_or_else(|| "id=-".to_string(), |id| format!("id={id}")),
        if header.more_fragments { "more" } else { "-" }.to_string(),
    ];
    match &message.content {
        MessageContent::Request(request) => words.extend([
            String::from_utf8_lossy(request.operation).into_owned(),
            format!("expected={}", expected(request, header.version)),
            target(&request.target),
            contexts(&request.contexts),
            format!("body@{}", request.body_offset),
        ]),
        MessageContent::Reply(reply) => words.extend([
            status(reply.status).to_string(),
            contexts(&reply.contexts),
            format!("body@{}", reply.body_offset),
        ]),
        MessageContent::LocateRequest(request) => words.push(target(&request.target)),
        MessageContent::LocateReply(reply) => words.push(
            match reply.status {
                LocateStatus::Unknown => "unknown",
                LocateStatus::Here => "here",
                LocateStatus::Forward => "forward",
                other => panic!("no ORB was seen to say {other:?}"),
            }
            .to_string(),
        ),
        _ => {}
    }
    words
}

fn expected(request: &GiopRequest<'_>, version: GiopVersion) -> u8 {
    match request.expected_response {
        ExpectedResponse::Oneway => 0,
        ExpectedResponse::Acknowledgement => 1,
        ExpectedResponse::Result => {
            if version == GiopVersion::V1_2 {
                3
            } else {
                1
            }
        }
    }
}

fn status(status: ReplyStatus) -> &'static str {
    match status {
        ReplyStatus::NoException => "ok",
        ReplyStatus::UserException => "user-exception",
        ReplyStatus::SystemException => "system-exception",
        ReplyStatus::Forward => "forward",
        ReplyStatus::ForwardPermanent => "forward-perm",
        ReplyStatus::NeedsAddressing => "needs-addressing",
    }
}

fn target(target: &TargetAddress<'_>) -> String {
    match target {
        TargetAddress::Key(key) if key.iter().all(|byte| (0x21..0x7f).contains(byte)) => {
            format!("key={}", String::from_utf8_lossy(key))
        }
        TargetAddress::Key(key) => {
            format!("key=0x{}", key.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        TargetAddress::Profile { tag, data } => format!("profile={tag}:{}", data.len()),
        TargetAddress::Reference { ior, .. } => format!("reference={}", ior.profiles().count()),
    }
}

fn contexts(contexts: &ServiceContexts<'_>) -> String {
    let ids: Vec<String> = contexts.iter().map(|context| format!("{:#x}", context.id)).collect();
    format!("contexts={}", if ids.is_empty() { "none".to_string() } else { ids.join(",") })
}
