//! A stream of GIOP messages. It is split the same way in whatever pieces it arrives. A request with another
//! ID and another object keeps its contents and the alignment of its body.

use plimsoll_wire::giop::{
    AssemblyLimits, CODE_SETS, FragmentAssembler, GiopError, GiopHeader, GiopMessage, GiopRequest,
    MessageContent, MessageType, NextMessage, ServiceContext, TargetAddress, next_message, rewrite,
    split_fragments,
};

use super::fields::show;
use super::{Verdict, cuts};

/// The maximum length of a message.
const MOST: usize = 64 * 1024;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let whole = next_message(input, MOST);
    for at in cuts(input) {
        match next_message(&input[..at], MOST) {
            Ok(NextMessage::Partial { header, missing }) => {
                assert!(missing > 0, "{} at {at}", show(input));
                if let (Some(header), Ok(NextMessage::Whole { header: later, len })) = (header, whole) {
                    assert_eq!((header, at + missing), (later, len), "{} at {at}", show(input));
                }
            }
            early => assert_eq!(early, whole, "said after {at} bytes of {}", show(input)),
        }
        // The beginning of a message has no other contents than the whole.
        match (GiopMessage::parse(&input[..at]), GiopMessage::parse(input)) {
            (Ok(early), Ok(late)) => assert_eq!(early.id(), late.id(), "{} at {at}", show(input)),
            (Err(GiopError::Truncated), _) => {}
            (early, late) => assert_eq!(early, late, "{} at {at}", show(input)),
        }
    }
    stream(input)
}

fn stream(mut rest: &[u8]) -> Verdict {
    let mut assembler = FragmentAssembler::new(AssemblyLimits { messages: 4, bytes: MOST });
    while !rest.is_empty() {
        let len = match next_message(rest, MOST) {
            Err(_) => return Verdict::Refused,
            Ok(NextMessage::Partial { .. }) => return Verdict::Partial,
            Ok(NextMessage::Whole { len, .. }) => len,
        };
        let (message, after) = rest.split_at(len);
        match GiopMessage::parse(message) {
            Err(GiopError::Truncated)
                if GiopHeader::parse(message)
                    .is_ok_and(|header| header.is_some_and(|header| header.more_fragments)) => {}
            Err(_) => return Verdict::Refused,
            Ok(parsed) => one(message, &parsed),
        }
        match assembler.accept(message) {
            Err(_) => return Verdict::Refused,
            Ok(Some(assembled)) => drop(GiopMessage::parse(&assembled)),
            Ok(None) => {}
        }
        rest = after;
    }
    if assembler.is_empty() { Verdict::Accepted } else { Verdict::Partial }
}

fn one(message: &[u8], parsed: &GiopMessage<'_>) {
    if parsed.id().is_some() {
        let mut other = message.to_vec();
        rewrite::set_id(&mut other, 0x1234_5678).expect("it has an id");
        let again = GiopMessage::parse(&other).expect("only its id has changed");
        assert_eq!(again.id(), Some(0x1234_5678), "{}", show(message));
        assert_eq!(again.header, parsed.header);
    }
    if let MessageContent::Request(request) = &parsed.content {
        for key in [&b""[..], b"k", b"12345", &[7; 300]] {
            rewritten(message, &parsed.header, request, key);
        }
    }
    let header = parsed.header;
    if !header.more_fragments && header.kind != MessageType::Fragment && message.len() < 4096 {
        in_pieces(message, parsed);
    }
}

fn rewritten(message: &[u8], header: &GiopHeader, request: &GiopRequest<'_>, key: &[u8]) {
    let context = ServiceContext { id: CODE_SETS, data: &[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8] };
    for context in [None, Some(context)] {
        let change = rewrite::GiopRewrite { id: 77, key, context };
        let mut out = b"before".to_vec();
        rewrite::request(header, message, request, &change, &mut out).expect("it is short");
        let again = GiopMessage::parse(&out[6..]).unwrap_or_else(|bad| panic!("{bad}: {}", show(message)));
        assert_eq!(again.header.message_len(), out.len() - 6, "{}", show(message));
        let MessageContent::Request(new) = again.content else { panic!("it was a request") };
        assert_eq!(new.target, TargetAddress::Key(key));
        assert_eq!(
            (new.id, new.expected_response, new.operation),
            (77, request.expected_response, request.operation)
        );
        assert_eq!((new.principal, new.body), (request.principal, request.body), "{}", show(message));
        if !request.body.is_empty() || header.more_fragments {
            assert_eq!(new.body_offset % 8, request.body_offset % 8, "{}", show(message));
        }
        for kept in request.contexts.iter() {
            assert!(new.contexts.iter().any(|context| context == kept), "{}", show(message));
        }
        assert_eq!(
            context.is_some() || request.contexts.find(CODE_SETS).is_some(),
            new.contexts.find(CODE_SETS).is_some()
        );
    }
}

/// Fragmented and reassembled, a message is unchanged.
fn in_pieces(message: &[u8], parsed: &GiopMessage<'_>) {
    let mut pieces = Vec::new();
    split_fragments(message, 64, &mut pieces).expect("it was read");
    let mut assembler = FragmentAssembler::new(AssemblyLimits { messages: 1, bytes: MOST });
    let mut rest = &pieces[..];
    loop {
        let Ok(NextMessage::Whole { header, len }) = next_message(rest, MOST) else {
            panic!("{}", show(message))
        };
        assert_eq!(header.version, parsed.header.version);
        let taken = assembler.accept(&rest[..len]).expect("its own fragments");
        rest = &rest[len..];
        if let Some(whole) = taken {
            assert_eq!(GiopMessage::parse(&whole).as_ref(), Ok(parsed), "{}", show(message));
            assert!(rest.is_empty() && assembler.is_empty(), "{}", show(message));
            return;
        }
    }
}
