//! CORBA sessions: redirected, kept at their member, and redirected repeatedly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use plimsoll_bench::member::{self, MemberProtocol, MemberSpec, reference};
use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::{FailureKind, RunRecord};
use plimsoll_bench::run::{self, RunLimits};
use plimsoll_bench::target::IiopTarget;
use plimsoll_wire::giop::{Corbaloc, GiopMessage, Ior, NextMessage, next_message, write};
use tokio::sync::oneshot;

use super::rig::{HOUR, MS, nobody, patient, stopped, taken};

struct Served {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn served(name: &str, change: impl FnOnce(&mut MemberSpec)) -> Served {
    let mut spec = MemberSpec::new("127.0.0.1:0".parse().unwrap());
    (spec.protocol, spec.name) = (MemberProtocol::Iiop, Some(name.to_owned()));
    change(&mut spec);
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let stopped = async { drop(stopped.await) };
        member::serve(spec, |address| tell.send(address).unwrap(), stopped).unwrap();
    });
    Served { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
}

impl Served {
    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Redirects each request to the next of some objects, and counts them.
fn redirector(to: Vec<Ior>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (to, counter) = (to.clone(), counter.clone());
            std::thread::spawn(move || redirect(stream.unwrap(), &to, &counter));
        }
    });
    (address, count)
}

fn redirect(mut stream: TcpStream, to: &[Ior], counter: &AtomicUsize) {
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        input.extend_from_slice(&buffer[..count]);
        while let Ok(NextMessage::Whole { header, len }) = next_message(&input, 4096) {
            let id = GiopMessage::parse(&input).unwrap().id().unwrap();
            input.drain(..len);
            let mut out = Vec::new();
            write::forward(&mut out, header.format(), id, &to[counter.fetch_add(1, Relaxed) % to.len()]);
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }
}

/// Runs `clients` clients until the record of their calls is enough; returns it.
#[track_caller]
fn closed(to: &str, follow: bool, clients: usize, enough: impl Fn(&RunRecord) -> bool) -> RunRecord {
    let target = IiopTarget::new(to, follow).unwrap();
    stopped(run::start_closed_loop(target, clients, HOUR, patient()).unwrap(), enough)
}

#[test]
fn calls_an_object_by_each_kind_of_reference() {
    let mut m1 = served("m1", |_| {});
    let ior = reference(m1.address);
    let file = std::env::temp_dir().join(format!("plimsoll-load-{}.ior", std::process::id()));
    std::fs::write(&file, format!("\n{ior}\n")).unwrap();
    let port = m1.address.port();
    let references = [
        format!("iiop://127.0.0.1:{port}/any%20key"),
        format!("corbaloc::127.0.0.1:{port}/any"),
        format!("corbaloc:iiop:1.1@127.0.0.1:{port}/any"),
        ior.to_string(),
        format!("file:{}", file.display()),
        format!("file://{}", file.display()),
    ];
    for reference in &references {
        let record = closed(reference, true, 2, |record| record.ok >= 10);
        assert_eq!(record.failures(), 0, "{reference}: {:?}", record.failed);
        assert_eq!((record.forwarded, record.members["m1"].ok), (0, record.ok));
    }
    std::fs::remove_file(&file).unwrap();
    m1.stop();
}

#[test]
fn other_references_are_refused() {
    let nil = Ior::default().to_string();
    for reference in [
        "",
        "http://a/",
        "iiop://",
        "corbaloc:rir:/x",
        "IOR:00",
        &nil,
        "file:/nowhere/at/all",
        "iiop://[::/x",
    ] {
        let error = IiopTarget::new(reference, true).unwrap_err().to_string();
        assert!(error.contains(reference), "{error}");
    }
}

/// Each session is forwarded once, and stays.
#[test]
fn a_session_follows_and_stays() {
    let mut members = ["m1", "m2"].map(|name| served(name, |_| {}));
    let (balancer, count) = redirector(members.iter().map(|member| reference(member.address)).collect());
    let enough = |record: &RunRecord| record.ok >= 100 && record.forwarded >= 6;
    let record = closed(&format!("corbaloc::{balancer}/group"), true, 6, enough);
    assert_eq!(record.failures(), 0, "{:?}", record.failed);
    assert_eq!((record.forwarded, count.load(Relaxed), record.returned_sessions), (6, 6, 0));
    assert_eq!(record.members.len(), 2);
    members.iter_mut().for_each(Served::stop);
}

/// In an open loop with a limited number of connections, each connection is a session. A request takes a
/// random free session. If requests follow one another, all sessions are free and get equal shares. Of 1000
/// requests each member gets 250 with a standard deviation of 14, and deviates by 100 or more with a
/// probability below 1e-12.
#[test]
fn sessions_share_an_open_loop() {
    let mut members: Vec<Served> = (1..=4).map(|n| served(&format!("m{n}"), |_| {})).collect();
    let (balancer, _) = redirector(members.iter().map(|member| reference(member.address)).collect());
    let target = || IiopTarget::new(&format!("iiop://{balancer}/group"), true).unwrap();
    let limits = RunLimits { max_connections: Some(4), ..patient() };
    let pace = RequestPacer::new(ArrivalProcess::Constant, 2000.0, 100 * MS, 1);
    let record = run::start(target(), pace, limits.clone()).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures(), record.forwarded), (200, 0, 4), "{:?}", record.failed);
    assert_eq!(record.members.len(), 4);
    let run = run::start_closed_loop(target(), 1, HOUR, limits).unwrap();
    let record = stopped(run, |record| record.ok >= 1000);
    assert_eq!((record.failures(), record.forwarded), (0, 4), "{:?}", record.failed);
    let shares: Vec<f64> = record.shares().into_values().collect();
    assert!(shares.len() == 4 && shares.iter().all(|share| (0.15..0.35).contains(share)), "{shares:?}");
    members.iter_mut().for_each(Served::stop);
}

#[test]
fn a_forward_is_an_answer_to_who_does_not_follow() {
    let mut m1 = served("m1", |_| {});
    let (balancer, count) = redirector(vec![reference(m1.address)]);
    let record = closed(&format!("iiop://{balancer}/group"), false, 2, |record| record.ok >= 10);
    assert_eq!((record.failures(), record.forwarded), (0, 0), "{:?}", record.failed);
    // Requests that were cut off may have reached the server.
    assert!((record.ok..=record.due).contains(&(count.load(Relaxed) as u64)), "{}", record.ok);
    assert_eq!(record.members[&*m1.address.to_string()].ok, record.ok);
    m1.stop();
}

/// A session redirected to a missing server returns and is redirected to the next; no call fails.
#[test]
fn who_is_sent_to_nobody_goes_back() {
    let mut m1 = served("m1", |_| {});
    let (_held, free) = nobody();
    let (balancer, _) = redirector(vec![reference(free), reference(m1.address)]);
    // Each of the four reaches the member in the end, after four redirections to the missing server.
    let enough = |record: &RunRecord| record.ok >= 10 && record.forwarded >= 8;
    let record = closed(&format!("iiop://{balancer}/group"), true, 4, enough);
    assert_eq!(
        (record.failures(), record.forwarded, record.returned_sessions),
        (0, 8, 4),
        "{:?}",
        record.failed
    );
    m1.stop();
}

/// Members stop, each after its last reply: another member performs the unanswered calls.
#[test]
fn sessions_of_a_member_that_stops_begin_anew() {
    // The port stays reserved after the first member has stopped.
    let (_held, place) = nobody();
    let mut members = [("m1", Some(place)), ("m2", None)].map(|(name, place)| {
        served(name, |spec| {
            spec.service = "const:2ms".parse().unwrap();
            spec.listen = place.unwrap_or(spec.listen);
        })
    });
    let (balancer, _) = redirector(members.iter().map(|member| reference(member.address)).collect());
    let target = IiopTarget::new(&format!("iiop://{balancer}/group"), true).unwrap();
    let run = run::start_closed_loop(target, 4, HOUR, patient()).unwrap();
    let mut record = taken(&run, |record| record.members.len() == 2 && record.forwarded == 4);
    members[0].stop();
    // Its two sessions have ended, and its replies were read before these answers of the other.
    let on = |record: &RunRecord| record.members.get("m2").is_some_and(|m2| m2.ok >= 20);
    record.merge(&taken(&run, |record| record.returned_sessions >= 2 && on(record)));
    let before = record.members["m1"].ok;
    record.merge(&stopped(run, |record| record.members.get("m2").is_some_and(|m2| m2.ok > before)));
    // A request may have been in transit when the connection was closed.
    assert!(record.failures() <= 4, "{:?}", record.failed);
    assert_eq!(record.members["m1"].ok, before);
    members[1].stop();
}

/// An object that redirects its clients to itself: a call ends after a fixed number of hops.
#[test]
fn a_circle_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let own: Corbaloc = format!("corbaloc::1.2@{address}/group").parse().unwrap();
    let counter = Arc::new(AtomicUsize::new(0));
    let counts = counter.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            redirect(stream.unwrap(), &[own.ior()], &counts);
        }
    });
    let record = closed(&format!("iiop://{address}/group"), true, 1, |record| record.failures() >= 3);
    assert_eq!(record.ok, 0);
    assert_eq!(record.failed.keys().collect::<Vec<_>>(), [&FailureKind::Exception], "{:?}", record.failed);
    assert_eq!(record.exceptions["forwarded too often"], record.failures());
    assert!((record.forwarded..=17 * record.due).contains(&(counter.load(Relaxed) as u64)));
}

#[test]
fn exceptions_are_failures_by_their_names() {
    let mut m1 = served("m1", |spec| spec.fail_rate = 0.5);
    let enough = |record: &RunRecord| record.ok > 10 && record.failures() > 10;
    let record = closed(&format!("iiop://{}/k", m1.address), true, 2, enough);
    assert_eq!(record.failed.keys().collect::<Vec<_>>(), [&FailureKind::Exception], "{:?}", record.failed);
    let name = "IDL:omg.org/CORBA/UNKNOWN:1.0";
    assert_eq!(record.exceptions[name], record.failures());
    m1.stop();
}
