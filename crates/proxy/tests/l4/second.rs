//! A client and members of HTTP/2, of another implementation.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream, server};
use http::{HeaderMap, Request, Response};
use plimsoll_proxy::{Engine, GroupSettings, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::rig::{group, home, listener, start};

pub(crate) fn http(group: GroupSettings) -> (Engine, SocketAddr) {
    start(listener(Protocol::Http), group)
}

/// Sends requests on a client's connection.
pub(crate) type Sender = SendRequest<Bytes>;

/// Returns a client's connection, and the task with its outcome.
pub(crate) async fn client(address: SocketAddr) -> (Sender, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    (sender, tokio::spawn(connection))
}

/// A response: its head, its body, its trailers.
pub(crate) type Answer = (Response<()>, Vec<u8>, Option<HeaderMap>);

pub(crate) async fn answer(response: h2::client::ResponseFuture) -> Result<Answer, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let mut content = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len()).unwrap();
        content.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await?;
    Ok((Response::from_parts(head, ()), content, trailers))
}

pub(crate) async fn get(sender: &SendRequest<Bytes>, path: &str) -> Result<Answer, h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let request = Request::get(format!("http://web.example{path}")).body(()).unwrap();
    let (response, _) = sender.send_request(request, true)?;
    answer(response).await
}

pub(crate) fn call() -> http::request::Builder {
    Request::post("http://web.example/s/M")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// Sends all of `bytes`, as fast as they are accepted.
pub(crate) async fn send_all(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    end: bool,
) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = match stream.capacity() {
            0 => poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap_or(Ok(0))?,
            room => room,
        };
        let piece = bytes.split_to(room.min(bytes.len()));
        stream.send_data(piece, false)?;
    }
    if end {
        stream.send_data(Bytes::new(), true)?;
    }
    Ok(())
}

/// Starts an HTTP/1.1 member that answers each request with `answer`, and returns the requests.
pub(crate) async fn plain(answer: &'static str) -> (SocketAddr, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = tokio::sync::mpsc::channel(100);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut text = String::new();
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                    text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
                    let whole = match text.contains("chunked\r\n") {
                        true => text.ends_with("\r\n\r\n") && text.contains("\r\n0\r\n"),
                        false => text.contains("\r\n\r\n"),
                    };
                    if whole {
                        let _ = tell.try_send(std::mem::take(&mut text));
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    });
    (address, told)
}

/// Starts an HTTP/2 member, and returns the number of its connections, too.
pub(crate) async fn second<F, W>(most: u32, work: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(Request<RecvStream>, server::SendResponse<Bytes>) -> W + Clone + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Relaxed);
            let work = work.clone();
            tokio::spawn(async move {
                // As in every implementation: frames are small, and must not be delayed.
                stream.set_nodelay(true).unwrap();
                let mut connection =
                    server::Builder::new().max_concurrent_streams(most).handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(work.clone()(request, respond));
                }
            });
        }
    });
    (address, connections)
}

pub(crate) fn to_second(members: &[SocketAddr]) -> GroupSettings {
    GroupSettings { http2: true, ..group(members) }
}

/// Sends a body and its trailers back.
pub(crate) async fn echo(request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    let mut answer =
        Response::builder().header("x-te", head.headers.get("te").map_or("none", |te| te.to_str().unwrap()));
    if let Some(kind) = head.headers.get("content-type") {
        answer = answer.header("content-type", kind);
    }
    let mut stream = respond.send_response(answer.body(()).unwrap(), false).unwrap();
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        if send_all(&mut stream, piece, false).await.is_err() {
            return;
        }
    }
    let mut trailers = body.trailers().await.unwrap().unwrap_or_default();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}
