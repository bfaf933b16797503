//! Accepts connections and serves HTTP/1.1 on them, within limits: connections per endpoint, time to send a
//! head, time that a write may stall. Each endpoint has slots of its own, so that a crowd at one of them
//! cannot lock the operator out of the control socket.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Request;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use crate::access::{Caller, Kind};
use crate::audit::Audit;
use crate::bind::{self, Control};
use crate::jwt::Tokens;
use crate::lobby::{Guest, Lobby};
use crate::patience::Patience;
use crate::plane::{Arrival, Behind, Guard, Plane, Powers};
use crate::reply::Body;
use crate::ticket::Tickets;
use crate::tls::{Met, Welcome};
use crate::turn::Turns;
use crate::{Addresses, Config, Error, route};

/// The maximum number of connections to each endpoint for people and scrapers.
const CONNECTIONS: u32 = 64;
/// The maximum number of connections to the reports endpoint. Each ends with its report, so that agents do
/// not hold them.
pub(crate) const REPORTERS: u32 = 256;
/// The maximum number of connections over TLS; unauthenticated clients hold some until their handshake fails.
pub(crate) const GUESTS: u32 = 256;
/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The maximum number of event streams at each endpoint; lower, so that a scrape always finds a slot.
const STREAMS: usize = 32;
/// The time limit for a head, from the end of the previous response.
const HEAD: Duration = Duration::from_secs(10);
/// The time limit of a write without progress.
const STALL: Duration = Duration::from_secs(30);
/// The time limit for responses in progress at the end.
const GRACE: Duration = Duration::from_millis(500);

/// The maximum number of connections that receive a rejection at once; further ones are closed without it.
const REFUSALS: usize = 16;
/// The time limit for sending a rejection.
const REFUSAL: Duration = Duration::from_secs(1);

/// The rejection, after which the connection ends.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n\r\n\
    {\"error\":\"too many admin connections: close some and try again\"}\n";

/// The bound endpoints.
pub(crate) struct Doors {
    listener: Option<TcpListener>,
    names: Arc<[Box<str>]>,
    control: Option<Control>,
    reports: Option<TcpListener>,
    reports_only: bool,
    register: bool,
    secured: Option<(Secured, Guard)>,
    audit: Option<Arc<Audit>>,
    opening: Option<Arc<Notify>>,
}

impl Doors {
    /// Opens the endpoints. For `left` see [`Control::open`].
    pub(crate) async fn open(config: Config, left: Arc<AtomicBool>) -> Result<Self, Error> {
        left.store(config.stays, Relaxed);
        let mut given = config.given;
        let mut given = |door: &str| {
            let place = given.iter().position(|(of, _)| *of == door)?;
            Some(given.swap_remove(place).1)
        };
        let listener = match config.listen {
            Some(addr) => Some(bind::listener(addr, "listen", given("listen")).await?),
            None => None,
        };
        let reports = match config.reports {
            Some(addr) => Some(bind::listener(addr, "reports", given("reports")).await?),
            None => None,
        };
        let secured = match config.secured {
            Some(secured) => Some(Secured::open(secured, given("secured")).await?),
            None => None,
        };
        let control = match &config.control {
            Some(path) => Some(Control::open(path, given("control"), left).await?),
            None => None,
        };
        Ok(Self {
            listener,
            names: config.names.into(),
            control,
            reports,
            reports_only: config.reports_only,
            register: config.register,
            secured,
            audit: config.audit,
            opening: config.opening,
        })
    }

    /// Returns copies of their sockets, by the names of [`Config::given`].
    pub(crate) fn copies(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let secured = self.secured.as_ref().map(|(door, _)| door.listener.as_fd());
        let all = [
            ("listen", self.listener.as_ref().map(|door| door.as_fd())),
            ("reports", self.reports.as_ref().map(|door| door.as_fd())),
            ("control", self.control.as_ref().map(|door| door.listener.as_fd())),
            ("secured", secured),
        ];
        let copied = |(name, door): (_, Option<BorrowedFd<'_>>)| {
            Some(door?.try_clone_to_owned().map(|copy| (name, copy)))
        };
        all.into_iter().filter_map(copied).collect()
    }

    /// Returns the addresses of the endpoints.
    pub(crate) fn addresses(&self) -> Addresses {
        let of = |listener: &Option<TcpListener>| listener.as_ref().and_then(|door| door.local_addr().ok());
        let secured = self.secured.as_ref().and_then(|(door, _)| door.listener.local_addr().ok());
        Addresses { listen: of(&self.listener), reports: of(&self.reports), secured }
    }

    /// Serves all endpoints with `behind` as the backend, until `stopped` is sent or dropped.
    pub(crate) async fn serve(self, behind: Behind, stopped: oneshot::Receiver<()>) {
        let mut stopped = stopped;
        if let Some(opening) = &self.opening {
            tokio::select! {
                () = opening.notified() => {}
                _ = &mut stopped => return,
            }
        }
        let (end, ended) = watch::channel(false);
        let turns = Arc::new(Turns::new());
        let room = |powers, guard: Option<Guard>| {
            let plane =
                Plane::new(behind.clone(), powers, self.audit.clone(), turns.clone(), STREAMS, ended.clone())
                    .named(self.names.clone())
                    .lending(!self.reports_only)
                    .registering(self.register);
            Arc::new(match guard {
                Some(guard) => plane.guarded(guard),
                None => plane,
            })
        };
        let most = [(CONNECTIONS, true), (CONNECTIONS, true), (REPORTERS, true), (GUESTS, false)];
        let lobbies = most.map(|(places, open)| Lobby::new(places, open));
        let (secured, guarded) = match self.secured {
            Some((door, guard)) => (Some(door), room(Powers::Act, Some(guard))),
            None => (None, room(Powers::Act, None)),
        };
        let shows = room(Powers::Show, None);
        tokio::select! {
            _ = stopped => {}
            () = keep(self.listener, shows, &lobbies[0]) => {}
            () = keep(self.control, room(Powers::Act, None), &lobbies[1]) => {}
            () = keep(self.reports, room(Powers::Report, None), &lobbies[2]) => {}
            () = keep(secured, guarded, &lobbies[3]) => {}
        }
        // The endpoints are closed and the socket's file is gone. Earlier requests are still answered.
        let _ = end.send(true);
        let _ = timeout(GRACE, async {
            for (lobby, (places, _)) in lobbies.iter().zip(most) {
                let _ = lobby.slots.acquire_many(places).await;
            }
        })
        .await;
    }
}

/// A source of connections.
trait Door: Send + Sync + 'static {
    /// An accepted connection.
    type Raw: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A connection that is ready for requests.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Whether a rejection can be sent in plain text.
    const PLAIN: bool = true;

    /// Returns the next connection and its origin.
    async fn accept(&self) -> io::Result<(Self::Raw, String)>;

    /// Determines the peer's identity; an error is the reason of the failure.
    fn meet(&self, raw: Self::Raw) -> impl Future<Output = Result<(Self::Stream, Met), String>> + Send;
}

impl Door for TcpListener {
    type Raw = TcpStream;
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        let (stream, from) = Self::accept(self).await?;
        // A delay to combine writes would only postpone events.
        let _ = stream.set_nodelay(true);
        Ok((stream, from.to_string()))
    }

    async fn meet(&self, raw: TcpStream) -> Result<(TcpStream, Met), String> {
        Ok((raw, Caller::nobody().into()))
    }
}

impl Door for Control {
    type Raw = UnixStream;
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.listener.accept().await?;
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Ok((stream, pid.map_or_else(|| "unix".to_owned(), |pid| format!("unix, pid {pid}"))))
    }

    async fn meet(&self, raw: UnixStream) -> Result<(UnixStream, Met), String> {
        let peer = raw.peer_cred().map_err(|error| format!("it is not known who it is: {error}"))?;
        Ok((raw, Caller::unix(peer.uid()).into()))
    }
}

/// The endpoint behind TLS.
struct Secured {
    listener: TcpListener,
    welcome: Welcome,
}

impl Secured {
    async fn open(secured: crate::Secured, given: Option<OwnedFd>) -> Result<(Self, Guard), Error> {
        let tokens = secured.jwt.map(Tokens::open).transpose().map_err(Error::Secured)?.map(Arc::new);
        let tickets = secured.keytab.as_deref().map(Tickets::open).transpose().map_err(Error::Secured)?;
        let strangers = tokens.is_some() || tickets.is_some();
        let welcome = Welcome::open(&secured.tls, strangers).map_err(Error::Secured)?;
        let listener = bind::listener(secured.tls.address, "control", given).await?;
        if let Some(tokens) = &tokens {
            tokens.keep();
        }
        Ok((Self { listener, welcome }, Guard { rules: secured.rules, tokens, tickets }))
    }
}

impl Door for Secured {
    type Raw = TcpStream;
    type Stream = TlsStream<TcpStream>;

    const PLAIN: bool = false;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        Door::accept(&self.listener).await
    }

    async fn meet(&self, raw: TcpStream) -> Result<(Self::Stream, Met), String> {
        let met = timeout(HANDSHAKE, self.welcome.meet(raw)).await;
        met.unwrap_or_else(|_| Err("the handshake did not end in time".into()))
    }
}

async fn keep<D: Door>(door: Option<D>, plane: Arc<Plane>, lobby: &Lobby) {
    let Some(door) = door.map(Arc::new) else { return std::future::pending().await };
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    loop {
        match door.accept().await {
            Ok((stream, from)) => match lobby.enter(&from) {
                Some(guest) => {
                    // The next connection may arrive before the first read of this one.
                    guest.waits();
                    let visit = tokio::spawn(visit(door.clone(), stream, from, plane.clone(), guest.clone()));
                    guest.visits(visit.abort_handle());
                }
                None if D::PLAIN => {
                    if let Ok(slot) = refusals.clone().try_acquire_owned() {
                        tokio::spawn(timeout(REFUSAL, refuse(stream, slot)));
                    }
                }
                None => {}
            },
            // No file descriptors or memory: the connection stays in the backlog, and a retry would fail at
            // once.
            Err(error) => {
                tracing::warn!("admin: cannot accept a connection: {error}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn visit<D: Door>(door: Arc<D>, raw: D::Raw, from: String, plane: Arc<Plane>, guest: Arc<Guest>) {
    match door.meet(raw).await {
        Ok((stream, Met { caller, channel })) => {
            if caller.kind != Kind::None {
                guest.prove();
            }
            connection(stream, Arrival { caller, channel, from, guest }, plane).await;
        }
        Err(why) => plane.turned_away(&from, &why),
    }
}

async fn connection<S>(stream: S, arrival: Arrival, plane: Arc<Plane>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let arrival = Arc::new(arrival);
    let service = service_fn(|mut request: Request<Incoming>| {
        let (plane, arrival) = (plane.clone(), arrival.clone());
        async move {
            let guest = arrival.guest.clone();
            guest.works();
            request.extensions_mut().insert(guest.clone());
            let answer = route::answer(plane, arrival, request).await;
            answer.map(|answer| answer.map(|body| Underway { body, guest }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(Patience::new(stream, STALL)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // Client errors are answered or end the connection; they are not logged.
        _ = connection.as_mut() => return,
        () = plane.end() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The body of a response, whose connection counts as busy until the last byte has been passed to the socket.
struct Underway {
    body: Body,
    guest: Arc<Guest>,
}

impl hyper::body::Body for Underway {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.guest.waits();
    }
}

/// Sends a rejection for want of a slot. The client's data is read and discarded: closing a socket with
/// unread bytes resets the connection, and the client would not see the response.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, _slot: OwnedSemaphorePermit) {
    if stream.write_all(BUSY).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}
