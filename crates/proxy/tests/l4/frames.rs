//! Frames of HTTP/2 by hand: clients and members that behave unlike any library.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::home;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// GET http://h/, by the static table.
pub(crate) const HEAD: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'h'];
/// The code ENHANCE_YOUR_CALM.
pub(crate) const CALM: u32 = 11;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the next frame: its kind, flags, stream and payload; `None` at the end.
pub(crate) async fn next<R: AsyncRead + Unpin>(stream: &mut R) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, number @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes(number), payload))
}

/// Returns a response that is only a head, 200, by the static table.
pub(crate) fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88])
}

/// Returns RST_STREAM with a code.
pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Returns a client's connection after the preface.
pub(crate) async fn raw_client(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream
}

/// Starts a member whose response to a complete request is the result of `say`. That gets the number of the
/// connection, from 1 on, and of the stream, and decides whether the connection continues. Returns the number
/// of connections, too.
pub(crate) async fn raw_member(
    say: impl Fn(usize, u32) -> (Vec<u8>, bool) + Clone + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (number, say) = (1 + count.fetch_add(1, Relaxed), say.clone());
            tokio::spawn(async move {
                stream.read_exact(&mut [0; 24]).await.unwrap();
                stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
                while let Some((kind, flags, id, _)) = next(&mut stream).await {
                    let (said, goes_on) = match kind {
                        SETTINGS if flags & 1 == 0 => (frame(SETTINGS, 1, 0, &[]), true),
                        HEADERS | DATA if flags & END_STREAM != 0 => say(number, id),
                        _ => continue,
                    };
                    stream.write_all(&said).await.unwrap();
                    if !goes_on {
                        stream.shutdown().await.unwrap();
                    }
                }
            });
        }
    });
    (address, connections)
}
