//! The CORBA member, tested message by message.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use plimsoll_bench::member::{MEMBER_CONTEXT, MemberProtocol, MemberSpec, TYPE_ID, reference};
use plimsoll_wire::giop::write::{self, GiopRequestHead, MessageFormat};
use plimsoll_wire::giop::{
    ByteOrder, CdrWriter, ExpectedResponse, GiopMessage, GiopReply, GiopVersion, LocateStatus,
    MessageContent, NextMessage, ReplyStatus, TargetAddress, next_message, split_fragments,
};

use super::{HOUR, MS, Running, eventually, kept, member, until};

const MOST: usize = 64 << 20;

fn iiop(change: impl FnOnce(&mut MemberSpec)) -> Running {
    member(|spec| {
        spec.protocol = MemberProtocol::Iiop;
        change(spec);
    })
}

fn forms() -> impl Iterator<Item = MessageFormat> {
    GiopVersion::ALL
        .into_iter()
        .flat_map(|version| [ByteOrder::Big, ByteOrder::Little].map(|order| MessageFormat { version, order }))
}

fn request(form: MessageFormat, id: u32, operation: &str, body: impl FnOnce(&mut CdrWriter<'_>)) -> Vec<u8> {
    asked(form, id, operation, ExpectedResponse::Result, body)
}

fn asked(
    form: MessageFormat,
    id: u32,
    operation: &str,
    wanted: ExpectedResponse,
    body: impl FnOnce(&mut CdrWriter<'_>),
) -> Vec<u8> {
    let mut out = Vec::new();
    let operation = operation.as_bytes();
    let head = GiopRequestHead {
        id,
        expected_response: wanted,
        target: TargetAddress::Key(b"any key at all"),
        operation,
        contexts: &[],
    };
    write::request(&mut out, form, &head, body);
    out
}

/// Reads the next message.
fn next(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let missing = match next_message(&bytes, MOST).unwrap() {
            NextMessage::Whole { .. } => return bytes,
            NextMessage::Partial { missing, .. } => missing,
        };
        let start = bytes.len();
        bytes.resize(start + missing, 0);
        stream.read_exact(&mut bytes[start..]).unwrap();
    }
}

fn reply<T>(message: &[u8], read: impl FnOnce(&GiopReply<'_>, ByteOrder) -> T) -> T {
    let GiopMessage { header, content: MessageContent::Reply(reply) } = GiopMessage::parse(message).unwrap()
    else {
        panic!("no reply: {}", message.escape_ascii())
    };
    read(&reply, header.order)
}

#[test]
fn answers_every_operation_in_every_form() {
    let m1 = iiop(|_| {});
    for form in forms() {
        let mut stream = m1.connect();
        let mut ask = |operation: &str, body: &dyn Fn(&mut CdrWriter<'_>)| {
            stream.write_all(&request(form, 7, operation, |writer| body(writer))).unwrap();
            let message = next(&mut stream);
            assert_eq!(GiopMessage::parse(&message).unwrap().header.format(), form);
            reply(&message, |reply, _| assert_eq!(reply.id, 7));
            message
        };
        for (number, prime) in [(0, false), (2, true), (91, false), (97, true), (4_294_967_291, true)] {
            let message = ask("is_prime", &|writer| writer.u32(number));
            let said = reply(&message, |reply, order| {
                assert_eq!(reply.contexts.find(MEMBER_CONTEXT), Some(&b"m1"[..]));
                reply.body_reader(order).bool().unwrap()
            });
            assert_eq!(said, prime, "{number}");
        }
        let half = ask("half", &|writer| writer.f64(-3.0));
        assert_eq!(reply(&half, |reply, order| reply.body_reader(order).f64().unwrap()), -1.5);
        let echo = ask("echo", &|writer| writer.string(b"text"));
        assert_eq!(reply(&echo, |reply, order| reply.body_reader(order).string().unwrap().to_vec()), b"text");
        let blob = ask("blob", &|writer| writer.octets(&[7; 100_000]));
        assert_eq!(
            reply(&blob, |reply, order| reply.body_reader(order).octets().unwrap().to_vec()),
            [7; 100_000]
        );
        let who = ask("who", &|_| ());
        assert_eq!(reply(&who, |reply, order| reply.body_reader(order).string().unwrap().to_vec()), b"m1");
        for (type_id, is_a) in
            [(TYPE_ID, true), (b"IDL:omg.org/CORBA/Object:1.0", true), (b"IDL:Other:1.0", false)]
        {
            let message = ask("_is_a", &|writer| writer.string(type_id));
            assert_eq!(reply(&message, |reply, order| reply.body_reader(order).bool().unwrap()), is_a);
        }
        assert!(!reply(&ask("_non_existent", &|_| ()), |reply, order| reply
            .body_reader(order)
            .bool()
            .unwrap()));
        let oops = ask("fail", &|writer| writer.bool(true));
        reply(&oops, |reply, order| {
            let mut body = reply.body_reader(order);
            let said = (reply.status, body.string().unwrap(), body.string().unwrap());
            assert_eq!(said, (ReplyStatus::UserException, &b"IDL:Test/Oops:1.0"[..], &b"m1"[..]));
        });
        for (operation, body, why) in [
            ("fail", &b"\0"[..], "NO_PERMISSION"),
            ("nothing_of_the_kind", b"", "BAD_OPERATION"),
            ("is_prime", b"\x01", "MARSHAL"),
            ("echo", b"\xff\xff\xff\xff", "MARSHAL"),
        ] {
            let message = ask(operation, &|writer| writer.bytes(body));
            let said = reply(&message, |reply, order| reply.exception(order).unwrap().type_id.to_vec());
            assert_eq!(String::from_utf8(said).unwrap(), format!("IDL:omg.org/CORBA/{why}:1.0"));
        }
        let mut locate = Vec::new();
        write::locate_request(&mut locate, form, 9, &TargetAddress::Key(b""));
        stream.write_all(&locate).unwrap();
        let message = next(&mut stream);
        let MessageContent::LocateReply(here) = GiopMessage::parse(&message).unwrap().content else {
            panic!("no locate reply")
        };
        assert_eq!((here.id, here.status), (9, LocateStatus::Here));
    }
    m1.stop();
}

#[test]
fn wide_strings_come_back_as_they_came() {
    let m1 = iiop(|_| {});
    let mut stream = m1.connect();
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Little };
    stream.write_all(&request(form, 1, "echo_wide", |writer| writer.octets(b"a\0b\0"))).unwrap();
    let said = reply(&next(&mut stream), |reply, order| reply.body_reader(order).octets().unwrap().to_vec());
    assert_eq!(said, b"a\0b\0");
    let form = MessageFormat { version: GiopVersion::V1_1, ..form };
    let body = |writer: &mut CdrWriter<'_>| {
        writer.u32(2);
        writer.bytes(b"a\0\0\0");
    };
    stream.write_all(&request(form, 1, "echo_wide", body)).unwrap();
    let said = reply(&next(&mut stream), |reply, _| reply.body.to_vec());
    assert_eq!(said, b"\x02\0\0\0a\0\0\0");
    m1.stop();
}

#[test]
fn oneways_are_counted_and_not_answered() {
    let m1 = iiop(|_| {});
    let mut stream = m1.connect();
    for form in forms() {
        stream.write_all(&asked(form, 1, "note", ExpectedResponse::Oneway, |writer| writer.u32(5))).unwrap();
    }
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Big };
    stream.write_all(&request(form, 2, "noted", |_| ())).unwrap();
    let noted = reply(&next(&mut stream), |reply, order| reply.body_reader(order).u32().unwrap());
    assert_eq!(noted, 6);
    m1.stop();
}

/// Fragments of two requests alternate; both are reassembled.
#[test]
fn puts_fragments_together() {
    let m1 = iiop(|_| {});
    let mut stream = m1.connect();
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Little };
    let pieces = |id: u32| {
        let mut bytes = Vec::new();
        let whole = request(form, id, "blob", |writer| writer.octets(&[id as u8; 5000]));
        split_fragments(&whole, 1024, &mut bytes).unwrap();
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let NextMessage::Whole { len, .. } = next_message(&bytes, MOST).unwrap() else {
                panic!("a whole piece")
            };
            pieces.push(bytes.drain(..len).collect::<Vec<u8>>());
        }
        pieces
    };
    for (one, other) in pieces(1).into_iter().zip(pieces(2)) {
        stream.write_all(&[one, other].concat()).unwrap();
    }
    for id in [1, 2] {
        let message = next(&mut stream);
        let said =
            reply(&message, |reply, order| (reply.id, reply.body_reader(order).octets().unwrap().to_vec()));
        assert_eq!(said, (id, vec![id as u8; 5000]));
    }
    m1.stop();
}

/// Requests of one connection are served concurrently, and one beyond the queue is refused.
#[test]
fn serves_side_by_side_up_to_its_queue() {
    let three = |service: &str, queue| {
        iiop(|spec| {
            spec.service = service.parse().unwrap();
            (spec.workers, spec.queue_limit) = (3, queue);
        })
    };
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Little };
    let all: Vec<u8> = (0..5).flat_map(|id| request(form, id, "who", |_| ())).collect();
    // Three are served at once and one waits; otherwise further ones would be refused.
    let full = three(HOUR, 1);
    let mut stream = full.connect();
    stream.write_all(&all).unwrap();
    let refused = |stream: &mut TcpStream, id| {
        reply(&next(stream), |reply, order| {
            let why = reply.exception(order).unwrap();
            assert_eq!((reply.id, why.type_id), (id, &b"IDL:omg.org/CORBA/TRANSIENT:1.0"[..]));
        });
    };
    refused(&mut stream, 4);
    stream.write_all(&request(form, 5, "who", |_| ())).unwrap();
    refused(&mut stream, 5);
    // Two rounds of three workers.
    let m1 = three("const:60ms", 2);
    let mut stream = m1.connect();
    let begin = Instant::now();
    stream.write_all(&all).unwrap();
    let done: BTreeSet<u32> = (0..5).map(|_| reply(&next(&mut stream), |reply, _| reply.id)).collect();
    assert_eq!(done.len(), 5);
    assert!(begin.elapsed() >= 120 * MS, "{:?}", begin.elapsed());
    m1.stop();
}

/// The object adapter's operations wait for a worker and take no service time.
#[test]
fn questions_wait_for_a_worker_and_need_no_service() {
    let (_kept, orders) = kept();
    let m1 = iiop(|spec| {
        spec.service = "const:200ms".parse().unwrap();
        (spec.workers, spec.admin_address) = (1, Some(orders));
    });
    let form = MessageFormat { version: GiopVersion::V1_0, order: ByteOrder::Big };
    let begin = Instant::now();
    let mut stream = m1.connect();
    stream.write_all(&request(form, 0, "who", |_| ())).unwrap();
    let order = |what: &str| {
        let mut orders = TcpStream::connect(orders).unwrap();
        let head = "HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        orders.write_all(format!("{what} {head}").as_bytes()).unwrap();
        until(&mut orders, "")
    };
    // Once the first is served the next service would take days.
    eventually("the first has come", || order("GET /_plimsoll/count").ends_with("\"requests\":1}\n"));
    assert!(order("POST /_plimsoll/slow?factor=1e6").starts_with("HTTP/1.1 200 "));
    for id in 1..20 {
        stream.write_all(&request(form, id, "_non_existent", |_| ())).unwrap();
    }
    let ids: Vec<u32> = (0..20).map(|_| reply(&next(&mut stream), |reply, _| reply.id)).collect();
    assert_eq!(ids[0], 0, "{ids:?}");
    assert!(begin.elapsed() >= 200 * MS, "{:?}", begin.elapsed());
    m1.stop();
}

/// A server of an application answers them at once: they show that it is there, and not how busy it is.
#[test]
fn questions_to_a_server_of_an_application_come_before_its_work() {
    let m1 = iiop(|spec| {
        spec.workers = 1;
        spec.steps = Some(format!("wait:{HOUR}").parse().unwrap());
    });
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Big };
    let mut stream = m1.connect();
    stream.write_all(&request(form, 0, "who", |_| ())).unwrap();
    stream.write_all(&request(form, 1, "_non_existent", |_| ())).unwrap();
    assert_eq!(reply(&next(&mut stream), |reply, _| reply.id), 1);
}

#[test]
fn says_that_it_does_not_understand() {
    let m1 = iiop(|_| {});
    for (junk, last) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], 6), (b"GIOP\x01\x03\x00\x00\x00\x00\x00\x00", 6)] {
        let mut stream = m1.connect();
        stream.write_all(junk).unwrap();
        let message = next(&mut stream);
        assert_eq!(message[7], last);
    }
    m1.stop();
}

#[test]
fn takes_its_leave_when_it_stops() {
    let m1 = iiop(|spec| spec.service = "const:200ms".parse().unwrap());
    let mut stream = m1.connect();
    let form = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Big };
    stream.write_all(&request(form, 3, "who", |_| ())).unwrap();
    // Another worker is free for a question: its reply shows that the first request has arrived.
    stream.write_all(&request(form, 4, "_non_existent", |_| ())).unwrap();
    let mut replies = vec![reply(&next(&mut stream), |reply, _| reply.id)];
    m1.stop();
    replies.push(reply(&next(&mut stream), |reply, _| reply.id));
    replies.sort_unstable();
    assert_eq!(replies, [3, 4]);
    assert_eq!(GiopMessage::parse(&next(&mut stream)).unwrap().content, MessageContent::CloseConnection);
}

#[test]
fn its_reference_says_where_it_is() {
    for (address, host) in
        [("127.0.0.1:5", "127.0.0.1:5"), ("0.0.0.0:6", "127.0.0.1:6"), ("[::]:7", "[::1]:7")]
    {
        let ior = reference(address.parse().unwrap());
        let profile = ior.first_iiop_profile().unwrap();
        assert_eq!(profile.addresses().next().unwrap().to_string(), host);
        assert!(profile.components.iter().any(|component| component.code_sets().is_some()));
    }
}
