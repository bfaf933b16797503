//! Echoes over TCP and UDP: whole, corrupted, lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::{FailureKind, RunRecord};
use plimsoll_bench::run::{self, LoadRun, RunLimits};
use plimsoll_bench::target::{RequestTarget, TcpEcho, UdpEcho};

use super::rig::{MS, PATIENCE, nobody, patient, taken, until};

fn run<T: RequestTarget + Send + 'static>(
    target: T,
    requests: u32,
    rate: f64,
    limits: RunLimits,
) -> RunRecord {
    begin(target, requests, rate, limits).join().unwrap()
}

fn begin<T: RequestTarget + Send + 'static>(
    target: T,
    requests: u32,
    rate: f64,
    limits: RunLimits,
) -> LoadRun {
    // Half a gap less, so that rounding has no effect.
    let length = Duration::from_secs_f64((f64::from(requests) - 0.5) / rate);
    run::start(target, RequestPacer::new(ArrivalProcess::Constant, rate, length, 1), limits).unwrap()
}

/// Echoes bytes, modified by `change`.
fn tcp(change: fn(&mut [u8])) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    change(&mut buffer[..count]);
                    if stream.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Sends each datagram back as often as `keep` returns, given its number and bytes.
fn udp(keep: impl Fn(usize, &mut Vec<u8>) -> usize + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        for number in 0.. {
            let (count, peer) = socket.recv_from(&mut buffer).unwrap();
            let mut datagram = buffer[..count].to_vec();
            for _ in 0..keep(number, &mut datagram) {
                socket.send_to(&datagram, peer).unwrap();
            }
        }
    });
    address
}

#[test]
fn small_and_large_payloads_come_back() {
    let address = tcp(|_| {}).to_string();
    for size in [1, 64, 1 << 16, 3_000_000] {
        let record = run(TcpEcho::new(&address, size).unwrap(), 10, 50.0, patient());
        assert_eq!((record.ok, record.failures()), (10, 0), "{size}: {:?}", record.failed);
    }
    let address = udp(|_, _| 1).to_string();
    // One at a time: the kernel drops datagrams that do not fit into the socket of a stalled server.
    let limits = RunLimits { max_connections: Some(1), ..patient() };
    for size in [1, 64, 8192, 60_000] {
        let record = run(UdpEcho::new(&address, size).unwrap(), 10, 50.0, limits.clone());
        assert_eq!((record.ok, record.failures()), (10, 0), "{size}: {:?}", record.failed);
    }
}

#[test]
fn what_comes_back_changed_is_no_answer() {
    let address = tcp(|bytes| bytes[bytes.len() - 1] ^= 1).to_string();
    let record = run(TcpEcho::new(&address, 100).unwrap(), 20, 200.0, patient());
    assert_eq!(record.failed, [(FailureKind::Malformed, 20)].into());
    let address = udp(|number, bytes| {
        if number % 4 == 0 {
            bytes.truncate(50);
        }
        1
    });
    let record = run(UdpEcho::new(&address.to_string(), 100).unwrap(), 20, 200.0, patient());
    assert_eq!((record.ok, &record.failed), (15, &[(FailureKind::Malformed, 5)].into()));
}

#[test]
fn lost_datagrams_time_out_and_copies_do_no_harm() {
    let address = udp(|number, _| match number % 5 {
        0 => 0,
        1 => 3,
        _ => 1,
    });
    let limits = RunLimits { timeout: 10 * PATIENCE, ..patient() };
    let waits = begin(UdpEcho::new(&address.to_string(), 32).unwrap(), 50, 200.0, limits);
    let record = taken(&waits, |record| record.due == 50 && record.ok >= 40);
    assert_eq!((record.ok, record.failures()), (40, 0), "{:?}", record.failed);
    until("the others are waited for", || waits.in_flight() == 10);
    let lost = udp(|_, _| 0);
    let limits = RunLimits { timeout: 200 * MS, ..patient() };
    let record = run(UdpEcho::new(&lost.to_string(), 32).unwrap(), 20, 200.0, limits);
    assert_eq!((record.ok, &record.failed), (0, &[(FailureKind::Timeout, 20)].into()));
    assert!(record.latency.quantile(0.0) >= 199 * MS);
    assert_eq!(record.latency.count(), 20);
}

#[test]
fn nobody_listens() {
    // A socket connected to another address holds the port; for all others the port is closed.
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    deaf.connect("127.0.0.1:9").unwrap();
    let record =
        run(UdpEcho::new(&deaf.local_addr().unwrap().to_string(), 32).unwrap(), 10, 200.0, patient());
    assert_eq!(record.failed, [(FailureKind::Connect, 10)].into());
    let (_held, free) = nobody();
    let record = run(TcpEcho::new(&free.to_string(), 32).unwrap(), 10, 200.0, patient());
    assert_eq!(record.failed, [(FailureKind::Connect, 10)].into());
}

#[test]
fn a_new_socket_for_each_and_a_pool() {
    let (tcp, udp) = (tcp(|_| {}).to_string(), udp(|_, _| 1).to_string());
    for limits in [
        RunLimits { reuse_connections: false, ..patient() },
        RunLimits { max_connections: Some(1), ..patient() },
    ] {
        let record = run(TcpEcho::new(&tcp, 32).unwrap(), 100, 500.0, limits.clone());
        assert_eq!((record.ok, record.failures()), (100, 0), "{:?}", record.failed);
        let record = run(UdpEcho::new(&udp, 32).unwrap(), 100, 500.0, limits);
        assert_eq!((record.ok, record.failures()), (100, 0), "{:?}", record.failed);
    }
}
