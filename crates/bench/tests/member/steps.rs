//! Members that serve a request step by step, at a processor of their own.

use super::*;

/// Starts a member with one worker, which works for 20 ms, waits for 200 and works for 20 again.
fn stepping(change: impl FnOnce(&mut MemberSpec)) -> Running {
    member(|spec| {
        spec.workers = 1;
        spec.steps = Some("cpu:const:20ms,wait:const:200ms,cpu:const:20ms".parse().unwrap());
        spec.receive_steps = Some("cpu:const:20ms".parse().unwrap());
        spec.admin = true;
        change(spec);
    })
}

#[test]
fn a_worker_is_held_while_it_waits_and_the_processor_is_not() {
    let m1 = stepping(|_| {});
    let begin = Instant::now();
    let (three, _) = together(&m1, 3);
    // One after another: 240 ms each.
    assert!(three >= 720 * MS, "{three:?}");
    let used = m1.tells("count");
    let seconds = |name: &str| used[name].as_f64().unwrap();
    // bound: the only worker is held for no longer than all of it took
    assert!((0.71..begin.elapsed().as_secs_f64()).contains(&seconds("threads")), "{used}");
    assert!((seconds("processor") - 0.12).abs() < 1e-6, "{used}");
    assert_eq!((&used["requests"], &used["values"]["in_flight"]), (&3.into(), &0.into()));
}

#[test]
fn what_only_receives_does_not_wait_for_the_worker() {
    let away = stepping(|spec| spec.steps = Some(format!("wait:{HOUR}").parse().unwrap()));
    let _streams = asked(&away, 1);
    away.comes_to(1, 1);
    let begin = Instant::now();
    let answer = away.say("POST /receive HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", "m1\n");
    let time = begin.elapsed();
    assert!(answer.starts_with("HTTP/1.1 200 ") && time >= 20 * MS, "{time:?} {answer}");
    // A received message is no request of its own.
    away.comes_to(1, 1);
}

#[test]
fn orders_may_have_an_address_of_their_own() {
    let (_kept, place) = kept();
    let m1 = stepping(|spec| {
        spec.protocol = MemberProtocol::Iiop;
        spec.admin = false;
        spec.admin_address = Some(place);
    });
    let mut stream = TcpStream::connect(place).unwrap();
    stream.write_all(b"GET /_plimsoll/count HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let answer = until(&mut stream, "}\n");
    assert!(answer.contains("\"member\":\"m1\"") && answer.contains("\"processor\":0"), "{answer}");
    drop(stream);
    m1.stop();
}
