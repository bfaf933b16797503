//! Members that do a request step by step, at a processor of their own.

use super::*;

/// A member with one worker, which works for 20 ms, waits for 200 and works for 20 again.
fn stepping(change: impl FnOnce(&mut Spec)) -> Running {
    member(|spec| {
        spec.workers = 1;
        spec.steps = Some("cpu:const:20ms,wait:const:200ms,cpu:const:20ms".parse().unwrap());
        spec.receive = Some("cpu:const:20ms".parse().unwrap());
        spec.admin = true;
        change(spec);
    })
}

fn said(m1: &Running) -> serde_json::Value {
    let answer = m1.say("GET /_plimsoll/count HTTP/1.1\r\nHost: a\r\n\r\n", "}\n");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_worker_is_held_while_it_waits_and_the_processor_is_not() {
    let m1 = stepping(|_| {});
    let (three, _) = together(&m1, 3);
    // One after another: 240 ms each.
    assert!(three >= 720 * MS, "{three:?}");
    let used = said(&m1);
    let near = |name: &str, value: f64| {
        let seconds = used[name].as_f64().unwrap();
        assert!((value..value * 1.5).contains(&seconds), "{name}: {used}");
    };
    near("threads", 0.72 - 0.01);
    near("processor", 0.12 - 0.001);
    assert_eq!((&used["requests"], &used["values"]["in_flight"]), (&3.into(), &0.into()));
    // What only receives does not wait for the worker, which is away for 200 ms.
    let mut busy = m1.connect();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    while said(&m1)["values"]["in_flight"] != 1 {}
    let begin = Instant::now();
    let answer = m1.say("POST /receive HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", "m1\n");
    let time = begin.elapsed();
    assert!(answer.starts_with("HTTP/1.1 200 ") && time >= 20 * MS, "{time:?} {answer}");
    // Behind it, it would have taken until now; and it is no request of its own.
    until(&mut busy, "m1\n");
    assert!(begin.elapsed() > time);
    assert_eq!(said(&m1)["requests"], 4);
}

#[test]
fn orders_may_have_an_address_of_their_own() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let m1 = stepping(|spec| {
        spec.kind = Kind::Iiop;
        spec.admin = false;
        spec.orders = Some(place);
    });
    let mut stream = TcpStream::connect(place).unwrap();
    stream.write_all(b"GET /_plimsoll/count HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let answer = until(&mut stream, "}\n");
    assert!(answer.contains("\"member\":\"m1\"") && answer.contains("\"processor\":0"), "{answer}");
    drop(stream);
    m1.stop();
}
