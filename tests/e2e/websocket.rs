//! WebSockets through the balancer: a server and a client of a library in common use.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocket, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message, accept, client};

use crate::stage::{
    Balancer, Member, PATIENCE, Script, Wire, found, free_port, listening, noise, until, web,
};

/// Starts a server that sends back what it gets.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(mut socket) = accept(stream) else { return };
                // The library answers pings. The close handshake ends with an error.
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn open(balancer: &Balancer) -> WebSocket<TcpStream> {
    try_open(balancer).unwrap()
}

/// Opens a WebSocket; `None` if the balancer closed a client that began late.
fn try_open(balancer: &Balancer) -> Option<WebSocket<TcpStream>> {
    let stream = TcpStream::connect(balancer.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (socket, answer) = client(format!("ws://{}/chat", balancer.address()), stream).ok()?;
    assert_eq!(answer.status(), 101);
    Some(socket)
}

#[test]
fn messages_of_every_kind_go_both_ways() {
    let member = echo();
    let balancer = Balancer::start(&web(&[member], ""));
    let mut socket = open(&balancer);
    for text in ["hello", "", "schöne Grüße"] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    for length in [0, 125, 126, 65_536, 1 << 20] {
        let bytes = noise(length);
        socket.send(Message::binary(bytes.clone())).unwrap();
        assert!(socket.read().unwrap().into_data() == bytes, "{length} bytes");
    }
    socket.send(Message::Ping(Bytes::from_static(b"there?"))).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong(Bytes::from_static(b"there?")));
    assert_eq!(balancer.member(member)["in_flight"], 1);

    let goodbye = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
    socket.close(Some(goodbye.clone())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(Some(goodbye)));
    assert!(matches!(socket.read(), Err(Error::ConnectionClosed)));
    drop(socket);
    until("no request in flight", || balancer.member(member)["in_flight"] == 0);
    let member = balancer.member(member);
    assert_eq!((&member["failures"], &member["answers"]["1xx"]), (&0.into(), &1.into()), "{member}");
}

#[test]
fn many_at_once_are_kept_apart() {
    let balancer = Balancer::start(&web(&[echo(), echo()], ""));
    let mut sockets: Vec<_> = (0..50).map(|_| open(&balancer)).collect();
    for round in 0..3 {
        for (number, socket) in sockets.iter_mut().enumerate() {
            socket.send(Message::text(format!("{number} in round {round}"))).unwrap();
        }
        for (number, socket) in sockets.iter_mut().enumerate() {
            assert_eq!(socket.read().unwrap(), Message::text(format!("{number} in round {round}")));
        }
    }
}

#[test]
fn a_reload_and_the_idle_timeout_of_requests_do_not_cut_a_tunnel() {
    let member = echo();
    let text = listening("[listener.timeouts]\nidle = \"100ms\"\nbody = \"100ms\"", &[member], "");
    let balancer = Balancer::start(&text);
    let mut socket = found("a tunnel", || try_open(&balancer));
    balancer.reload(&text.replace("[listener.timeouts]", "[listener.timeouts]\nhead = \"1s\""));
    // The silence is longer than both timeouts, measured by an event: another client is closed for it.
    Wire::connect(balancer.address()).closed();
    Wire::connect(balancer.address()).closed();
    socket.send(Message::text("still there")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("still there"));
}

#[test]
fn a_silent_tunnel_ends_when_it_was_told_to() {
    let text = listening("[listener.timeouts]\ntunnel = \"200ms\"", &[echo()], "");
    let balancer = Balancer::start(&text);
    // A tunnel that was silent for too long before it began, as the machine stood still, is ended as well.
    let mut socket = found("a tunnel", || {
        let mut socket = try_open(&balancer)?;
        socket.send(Message::text("hello")).ok()?;
        (socket.read().ok()? == Message::text("hello")).then_some(socket)
    });
    assert!(socket.read().is_err(), "it is closed");
}

#[test]
fn a_member_may_refuse_to_upgrade() {
    let member = Member::start(&[]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let stream = TcpStream::connect(balancer.address()).unwrap();
    let refused = client(format!("ws://{}/", balancer.address()), stream).unwrap_err();
    assert!(refused.to_string().contains("200"), "{refused}");
}

#[test]
fn only_who_asked_for_it_gets_a_tunnel() {
    let member =
        Script::answering("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n");
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    // h2c would carry requests past all checks.
    for fields in ["", "Upgrade: x\r\n", "Connection: upgrade\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n"]
    {
        client.send(format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
        assert_eq!(client.answer().unwrap().status, 502, "{fields:?}");
    }
}

#[test]
fn a_long_conversation_is_no_slow_answer() {
    let member = echo();
    let balancer = Balancer::start(&web(&[member], ""));
    let begun = Instant::now();
    let mut socket = open(&balancer);
    // The client's own measure of the answer cannot be shorter than the balancer's.
    let answered = begun.elapsed();
    let talked = Instant::now();
    // bound: how long the conversation goes on
    while talked.elapsed() < answered + Duration::from_millis(200) {
        socket.send(Message::text("and then")).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text("and then"));
    }
    drop(socket);
    until("it has ended", || balancer.member(member)["requests"] == 1);
    let latency = |of: serde_json::Value| of["latency"]["sum"].as_f64().unwrap();
    for latency in [latency(balancer.member(member)), latency(balancer.group("web"))] {
        // bound: the client's own measure
        assert!(
            latency <= answered.as_secs_f64() + 0.1,
            "{latency} s, where the client waited for {answered:?}"
        );
    }
}

/// A stream of HTTP/2, the first of its connection: written bytes go as DATA, and DATA that comes is read. It
/// supports no other streams, and less may be sent than the other side's windows are at first.
struct Tunnel {
    stream: TcpStream,
    /// The bytes that have come and were not read yet.
    ahead: Vec<u8>,
}

impl Tunnel {
    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        self.stream.write_all(&[&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat())
    }

    /// Returns the next frame's kind, flags and payload.
    fn next(&mut self) -> io::Result<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok((head[3], head[4], payload))
    }

    /// Asks for a WebSocket (RFC 8441).
    fn open(balancer: &Balancer) -> WebSocket<Self> {
        let stream = TcpStream::connect(balancer.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut tunnel = Self { stream, ahead: Vec::new() };
        tunnel.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        tunnel.frame(4, 0, 0, b"").unwrap();
        // The fields are literals, some with names of the static table: :method, :path, :authority; :scheme
        // is in it.
        let fields: [&[u8]; 4] = [
            b"\x02\x07CONNECT\x04\x05/chat\x01\x01h\x86",
            b"\x00\x09:protocol\x09websocket",
            b"\x00\x15sec-websocket-version\x0213",
            b"\x00\x06origin\x08http://h",
        ];
        tunnel.frame(1, 4, 1, &fields.concat()).unwrap();
        let mut promised = false;
        loop {
            match tunnel.next().unwrap() {
                // SETTINGS_ENABLE_CONNECT_PROTOCOL
                (4, 0, settings) => promised = settings.chunks(6).any(|one| one == [0, 8, 0, 0, 0, 1]),
                // The status is 200, by the static table.
                (1, _, head) => {
                    assert_eq!(head[0], 0x88);
                    break;
                }
                (kind, ..) => assert!([4, 8].contains(&kind), "{kind}"),
            }
        }
        assert!(promised);
        WebSocket::from_raw_socket(tunnel, Role::Client, None)
    }
}

impl Write for Tunnel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = bytes.len().min(16_384);
        self.frame(0, 0, 1, &bytes[..most])?;
        Ok(most)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Tunnel {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        while self.ahead.is_empty() {
            match self.next()? {
                (0, flags, content) => {
                    if flags & 1 == 1 && content.is_empty() {
                        return Ok(0);
                    }
                    self.ahead = content;
                }
                (3, ..) => return Err(io::ErrorKind::ConnectionReset.into()),
                _ => {}
            }
        }
        let most = space.len().min(self.ahead.len());
        space[..most].copy_from_slice(&self.ahead[..most]);
        self.ahead.drain(..most);
        // Both windows grow.
        for stream in [0, 1] {
            self.frame(8, 0, stream, &u32::try_from(most).unwrap().to_be_bytes())?;
        }
        Ok(most)
    }
}

#[test]
fn messages_go_both_ways_on_a_stream_of_http_2() {
    let member = echo();
    let balancer = Balancer::start(&web(&[member], ""));
    let mut socket = Tunnel::open(&balancer);
    for text in ["hello", "", "schöne Grüße"] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    let bytes = noise(40_000);
    socket.send(Message::binary(bytes.clone())).unwrap();
    assert!(socket.read().unwrap().into_data() == bytes);
    assert_eq!(balancer.member(member)["in_flight"], 1);
    let goodbye = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
    socket.close(Some(goodbye.clone())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(Some(goodbye)));
    assert!(matches!(socket.read(), Err(Error::ConnectionClosed)));
    drop(socket);
    until("no request in flight", || balancer.member(member)["in_flight"] == 0);
}
