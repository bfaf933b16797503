//! Pseudo-fields in wrong places (RFC 9113 section 8.3) and fragments in paths: the library drops them or
//! resets the stream, and none of them reaches the other side.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, next, raw_client,
};
use crate::rig::{group, home, within};
use crate::second::{http, plain, to_second};

/// Returns a block of fields as HPACK encodes it without any table (RFC 7541 section 6.2.2).
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.extend([0, u8::try_from(name.len()).unwrap()]);
        out.extend(name.bytes());
        out.push(u8::try_from(value.len()).unwrap());
        out.extend(value.bytes());
    }
    out
}

const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "h")];
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Waits for the end of stream 1 at a client: `true` for a response, `false` for an error.
async fn answered(stream: &mut TcpStream) -> bool {
    loop {
        match next(stream).await {
            Some((HEADERS | DATA, flags, 1, _)) if flags & END_STREAM != 0 => return true,
            Some((RST_STREAM, _, 1, _) | (GOAWAY, ..)) | None => return false,
            Some(_) => {}
        }
    }
}

#[tokio::test]
async fn pseudo_fields_in_a_clients_trailers_reach_no_member() {
    within(async {
        let (member, mut told) = plain(ANSWER).await;
        let (_engine, address) = http(group(&[member]));
        let head = block(&[&POST[..], &[("trailer", "x-sum")]].concat());
        let sent = |trailers: &[(&str, &str)]| {
            let frames = [
                frame(HEADERS, END_HEADERS, 1, &head),
                frame(DATA, 0, 1, b"abc"),
                frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(trailers)),
            ];
            frames.concat()
        };
        // Behind other fields, the library detects them.
        let mut client = raw_client(address).await;
        client.write_all(&sent(&[("x-sum", "7"), (":path", "/evil")])).await.unwrap();
        assert!(!answered(&mut client).await);
        // Before them, it drops them.
        let mut client = raw_client(address).await;
        let first = [(":path", "/evil"), (":authority", "evil"), (":status", "666"), ("x-sum", "7")];
        client.write_all(&sent(&first)).await.unwrap();
        assert!(answered(&mut client).await);
        let asked = told.recv().await.unwrap();
        assert!(asked.starts_with("POST /a HTTP/1.1\r\nHost: h\r\n"), "{asked}");
        assert!(asked.ends_with("\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n"), "{asked}");
        assert!(!asked.contains("evil") && !asked.contains("666"), "{asked}");
    })
    .await;
}

#[tokio::test]
async fn pseudo_fields_of_requests_in_a_members_answer_reach_no_client() {
    within(async {
        let listener = TcpListener::bind(home()).await.unwrap();
        let member = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    stream.read_exact(&mut [0; 24]).await.unwrap();
                    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
                    while let Some((kind, flags, id, _)) = next(&mut stream).await {
                        let head = block(&[(":status", "200"), (":path", "/evil"), ("trailer", "x-sum")]);
                        let trailers = block(&[(":status", "666"), (":authority", "evil"), ("x-sum", "7")]);
                        let said = match kind {
                            SETTINGS if flags & 1 == 0 => frame(SETTINGS, 1, 0, &[]),
                            HEADERS => [
                                frame(HEADERS, END_HEADERS, id, &head),
                                frame(DATA, 0, id, b"abc"),
                                frame(HEADERS, END_HEADERS | END_STREAM, id, &trailers),
                            ]
                            .concat(),
                            _ => continue,
                        };
                        stream.write_all(&said).await.unwrap();
                    }
                });
            }
        });
        let (_engine, address) = http(to_second(&[member]));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n0\r\nx-sum: 7\r\n\r\n"),
            "{text}"
        );
        assert!(!text.contains("evil") && !text.contains("666") && !text.contains("\r\n:"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn a_fragment_reaches_no_member() {
    within(async {
        let (member, mut told) = plain(ANSWER).await;
        let (_engine, address) = http(group(&[member]));
        let get =
            |path| block(&[(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "h")]);
        for (path, line) in [("/a#evil", "GET /a HTTP/1.1\r\n"), ("/a?b#evil", "GET /a?b HTTP/1.1\r\n")] {
            let mut client = raw_client(address).await;
            client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get(path))).await.unwrap();
            assert!(answered(&mut client).await);
            let asked = told.recv().await.unwrap();
            assert!(asked.starts_with(line) && !asked.contains("evil"), "{asked}");
        }
    })
    .await;
}
