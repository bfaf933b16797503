//! Accept connections and speak HTTP/1.1 on them, within bounds: connections per door, time to send a head,
//! time a write may stall. Each door has slots of its own, so that a crowd at one of them cannot lock the operator
//! out of the control socket.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::bind::{self, Control};
use crate::patience::Patience;
use crate::route::{self, Body, Plane, Powers};
use crate::supervisor::{Site, Supervisor};
use crate::{Config, Error, Subject};

/// Connections at once to each door that people and scrapers use.
const CONNECTIONS: u32 = 64;
/// Connections at once to the door for reports; each ends with its report, so that no crowd of agents keeps them.
pub(crate) const REPORTERS: u32 = 256;
/// Event streams at once at each door: fewer, so that a scrape always finds a slot.
const STREAMS: usize = 32;
/// For a head to arrive, from the end of the answer before it.
const HEAD: Duration = Duration::from_secs(10);
/// For a write that makes no progress.
const STALL: Duration = Duration::from_secs(30);
/// For answers under way at the end.
const GRACE: Duration = Duration::from_millis(500);

/// Connections that are told so at once; more are closed without a word.
const REFUSALS: usize = 16;
/// To be told so.
const REFUSAL: Duration = Duration::from_secs(1);

/// Ends with the connection.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n\r\n\
    {\"error\":\"too many admin connections: close some and try again\"}\n";

/// What was bound.
pub(crate) struct Doors {
    listener: Option<TcpListener>,
    control: Option<Control>,
    reports: Option<TcpListener>,
}

impl Doors {
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        let listener = match config.listen {
            Some(addr) => Some(bind::listener(addr, "listen").await?),
            None => None,
        };
        let reports = match config.reports {
            Some(addr) => Some(bind::listener(addr, "reports").await?),
            None => None,
        };
        let control = match &config.control {
            Some(path) => Some(Control::open(path).await?),
            None => None,
        };
        Ok(Self { listener, control, reports })
    }

    /// Of the read-only listener.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Of the door for reports.
    pub(crate) fn reports(&self) -> Option<SocketAddr> {
        self.reports.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves all doors, in front of a balancer or a Supervisor, until `stopped` is sent or dropped.
    pub(crate) async fn serve(self, behind: Behind, stopped: oneshot::Receiver<()>) {
        let (end, ended) = watch::channel(false);
        let room = |powers| match &behind {
            Behind::Balancer(subject) => {
                let streams = Arc::new(Semaphore::new(STREAMS));
                Room::Balancer(Arc::new(Plane::new(subject.clone(), powers, streams, ended.clone())))
            }
            Behind::Supervisor(supervisor) => {
                Room::Supervisor(Arc::new(Site::new(supervisor.clone(), powers, ended.clone())))
            }
        };
        let most = [CONNECTIONS, CONNECTIONS, REPORTERS];
        let slots = most.map(|most| Arc::new(Semaphore::new(most as usize)));
        tokio::select! {
            _ = stopped => {}
            () = keep(self.listener, room(Powers::Show), &slots[0]) => {}
            () = keep(self.control, room(Powers::Act), &slots[1]) => {}
            () = keep(self.reports, room(Powers::Report), &slots[2]) => {}
        }
        // The doors are closed and the socket's file is gone. What was asked before is still answered.
        let _ = end.send(true);
        let _ = timeout(GRACE, async {
            for (door, most) in slots.iter().zip(most) {
                let _ = door.acquire_many(most).await;
            }
        })
        .await;
    }
}

/// Who is behind the doors.
#[derive(Clone)]
pub(crate) enum Behind {
    Balancer(Arc<dyn Subject>),
    Supervisor(Arc<dyn Supervisor>),
}

/// What is behind one of them.
#[derive(Clone)]
enum Room {
    Balancer(Arc<Plane>),
    Supervisor(Arc<Site>),
}

impl Room {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match self {
            Self::Balancer(plane) => route::answer(plane, request).await,
            Self::Supervisor(site) => Ok(site.answer(request).await),
        }
    }

    /// Resolves when the admin plane ends.
    async fn end(&self) {
        match self {
            Self::Balancer(plane) => plane.end().await,
            Self::Supervisor(site) => site.end().await,
        }
    }
}

/// Where connections come from.
trait Door {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Door for TcpListener {
    type Stream = TcpStream;
    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // An event should be seen when it happens; without this it is only later.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Door for Control {
    type Stream = UnixStream;
    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

async fn keep<D: Door>(door: Option<D>, room: Room, slots: &Arc<Semaphore>) {
    let Some(door) = door else { return std::future::pending().await };
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    loop {
        match door.accept().await {
            Ok(stream) => match slots.clone().try_acquire_owned() {
                Ok(slot) => drop(tokio::spawn(connection(stream, room.clone(), slot))),
                Err(_) => {
                    if let Ok(slot) = refusals.clone().try_acquire_owned() {
                        tokio::spawn(timeout(REFUSAL, refuse(stream, slot)));
                    }
                }
            },
            // Out of files or memory: the connection stays in the queue and would fail again at once.
            Err(error) => {
                tracing::warn!("admin: cannot accept a connection: {error}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn connection<S>(stream: S, room: Room, _slot: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| room.clone().answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(Patience::new(stream, STALL)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // What a client does wrong is answered or ends its connection: nothing for the log.
        _ = connection.as_mut() => return,
        () = room.end() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Says that there is no slot. What the client sends is read away: a socket closed over unread bytes resets
/// the connection, and the client would not see the answer.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, _slot: OwnedSemaphorePermit) {
    if stream.write_all(BUSY).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}
