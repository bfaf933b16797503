//! The PROXY protocol on both sides, with plain sockets.

use std::net::SocketAddr;

use plimsoll_proxy::{ListenerSettings, Protocol};
use plimsoll_wire::proxy_protocol::{ProxyAddresses, ProxyHeader, ProxyVersion, parse, write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::*;

fn far() -> ProxyAddresses {
    ProxyAddresses {
        source: "203.0.113.9:1234".parse().unwrap(),
        destination: "198.51.100.1:443".parse().unwrap(),
    }
}

fn header(version: ProxyVersion, addresses: Option<&ProxyAddresses>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(version, addresses, &mut bytes);
    bytes
}

fn accepting(protocol: Protocol) -> ListenerSettings {
    ListenerSettings { accept_proxy: true, ..listener(protocol) }
}

/// Returns the header that a member received, and the first bytes after it.
async fn told(member: &TcpListener, len: usize) -> (ProxyHeader, Vec<u8>) {
    let mut session = member.accept().await.unwrap().0;
    let mut bytes = Vec::new();
    loop {
        assert!(session.read_buf(&mut bytes).await.unwrap() > 0, "the end after {bytes:?}");
        if let Some(header) = parse(&bytes).unwrap()
            && bytes.len() >= header.len + len
        {
            session.write_all(b"welcome").await.unwrap();
            return (header, bytes.split_off(header.len));
        }
    }
}

#[tokio::test]
async fn members_are_told_who_the_client_is() {
    within(async {
        for version in [1, 2] {
            let member = TcpListener::bind(home()).await.unwrap();
            let mut group = group(&[member.local_addr().unwrap()]);
            group.send_proxy = Some(version);
            let (_engine, address) = start(listener(Protocol::Tcp), group);
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let (header, rest) = told(&member, 5).await;
            let source = client.local_addr().unwrap();
            assert_eq!(header.addresses, Some(ProxyAddresses { source, destination: address }));
            assert_eq!(header.len == 28, version == 2);
            assert_eq!(rest, b"hello");
            let mut answer = [0; 7];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"welcome");
        }
    })
    .await;
}

#[tokio::test]
async fn every_connection_to_a_member_begins_so_and_serves_one_client() {
    within(async {
        let member = TcpListener::bind(home()).await.unwrap();
        let mut group = group(&[member.local_addr().unwrap()]);
        group.send_proxy = Some(2);
        let (_engine, address) = start(listener(Protocol::Http), group);
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut session = member.accept().await.unwrap().0;
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"\r\n\r\n") || bytes.len() < 40 {
                assert!(session.read_buf(&mut bytes).await.unwrap() > 0);
            }
            let header = parse(&bytes).unwrap().unwrap();
            assert_eq!(header.addresses.unwrap().source, client.local_addr().unwrap());
            assert!(bytes[header.len..].starts_with(b"GET / HTTP/1.1\r\n"));
            session.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            let mut answer = [0; 23];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 204 No Content");
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_client_says_is_passed_on() {
    within(async {
        let member = TcpListener::bind(home()).await.unwrap();
        let mut group = group(&[member.local_addr().unwrap()]);
        group.send_proxy = Some(2);
        let (_engine, address) = start(accepting(Protocol::Tcp), group);
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            // All at once, and byte by byte.
            for piece in [1000, 1] {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.set_nodelay(true).unwrap();
                for bytes in [header(version, Some(&far())), b"hello".to_vec()].concat().chunks(piece) {
                    client.write_all(bytes).await.unwrap();
                    tokio::task::yield_now().await;
                }
                let (header, rest) = told(&member, 5).await;
                assert_eq!((header.addresses, &rest[..]), (Some(far()), &b"hello"[..]));
            }
            // A health check of the load balancer in front: its own addresses apply.
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&header(version, None)).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let (header, _) = told(&member, 5).await;
            let source = client.local_addr().unwrap();
            assert_eq!(header.addresses, Some(ProxyAddresses { source, destination: address }));
        }
    })
    .await;
}

#[tokio::test]
async fn http_sees_the_client_that_was_named() {
    within(async {
        let member = TcpListener::bind(home()).await.unwrap();
        let (_engine, address) = start(accepting(Protocol::Http), group(&[member.local_addr().unwrap()]));
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let six = "[2001:db8::7]:99".parse::<SocketAddr>().unwrap();
            let named = ProxyAddresses { source: six, destination: "[2001:db8::1]:80".parse().unwrap() };
            let request = [header(version, Some(&named)), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()];
            client.write_all(&request.concat()).await.unwrap();
            let mut session = member.accept().await.unwrap().0;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(session.read_buf(&mut head).await.unwrap() > 0);
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.contains("x-forwarded-for: 2001:db8::7\r\n"), "{head}");
            session.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_without_a_header_is_closed() {
    within(async {
        let echo = Echo::start().await;
        let within = |head| {
            let mut listener = accepting(Protocol::Tcp);
            listener.timeouts.head = head;
            start(listener, group(&[echo.address]))
        };
        let (patient, hasty) = (within(HOUR), within(300 * MILLI));
        // No header, the beginning of one, nothing.
        for ((engine, address), bytes, reason) in [
            (&patient, &b"GET / HTTP/1.1\r\n\r\n"[..], "bad_request"),
            (&patient, b"PROXY TCP4 1.2.3.4 nonsense\r\n", "bad_request"),
            (&hasty, b"PROXY TCP4 1.2.3", "client_timeout"),
            (&hasty, b"", "client_timeout"),
        ] {
            let before = status(engine).rejected.get(reason).copied().unwrap_or(0);
            let mut client = TcpStream::connect(address).await.unwrap();
            // The reset may be faster than the client.
            let _ = client.write_all(bytes).await;
            assert!(matches!(client.read(&mut [0; 9]).await, Ok(0) | Err(_)), "{bytes:?}");
            assert_eq!(status(engine).rejected[reason], before + 1, "{bytes:?}");
        }
        assert_eq!(echo.sessions(), 0);
        for (engine, _) in [&patient, &hasty] {
            until("nothing is open", || engine.status().listeners[0].connections == 0).await;
        }
    })
    .await;
}
