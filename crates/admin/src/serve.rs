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
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use crate::access::{Caller, CredentialKind};
use crate::audit::AuditLog;
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::endpoint::{
    AdminBackend, AdminEndpoint, EndpointAuthenticator, EndpointCapability, PeerConnection,
};
use crate::jwt::TokenVerifier;
use crate::kerberos::TicketVerifier;
use crate::listen::{self, ControlSocket};
use crate::operation_lock::OperationLocks;
use crate::reply::ResponseBody;
use crate::tls::{PeerAcceptor, PeerIdentity};
use crate::write_timeout::WriteTimeout;
use crate::{BoundAddresses, Config, StartError, route};

/// The maximum number of connections to each endpoint for people and scrapers.
const MAX_CONNECTIONS: u32 = 64;
/// The maximum number of connections to the reports endpoint. Each ends with its report, so that agents do
/// not hold them.
pub(crate) const MAX_REPORT_CONNECTIONS: u32 = 256;
/// The maximum number of connections over TLS; unauthenticated clients hold some until their handshake fails.
pub(crate) const MAX_SECURED_CONNECTIONS: u32 = 256;
/// The time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of event streams at each endpoint; lower, so that a scrape always finds a slot.
const MAX_EVENT_STREAMS: usize = 32;
/// The time limit for a head, from the end of the previous response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of a write without progress.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for responses in progress at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1500);
/// The time for the first request of a connection, if the process ends meanwhile.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// The maximum number of connections that receive a rejection at once; further ones are closed without it.
const MAX_REJECTIONS: usize = 16;
/// The time limit for sending a rejection.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The rejection, after which the connection ends.
const BUSY_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n\r\n\
    {\"error\":\"too many admin connections: close some and try again\"}\n";

/// The bound endpoints.
pub(crate) struct BoundEndpoints {
    listener: Option<TcpListener>,
    names: Arc<[Box<str>]>,
    control: Option<ControlSocket>,
    reports: Option<TcpListener>,
    reports_only: bool,
    register: bool,
    secured: Option<(SecuredListener, EndpointAuthenticator)>,
    audit: Option<Arc<AuditLog>>,
    open_signal: Option<Arc<Notify>>,
}

impl BoundEndpoints {
    /// Opens the endpoints. For `left` see [`ControlSocket::open`].
    pub(crate) async fn open(config: Config, is_handed_over: Arc<AtomicBool>) -> Result<Self, StartError> {
        is_handed_over.store(config.keeps_control_file, Relaxed);
        let mut inherited_sockets = config.inherited_sockets;
        let mut take_inherited = |name: &str| {
            let index = inherited_sockets.iter().position(|(socket_name, _)| *socket_name == name)?;
            Some(inherited_sockets.swap_remove(index).1)
        };
        let listener = match config.listen {
            Some(addr) => Some(listen::bind_listener(addr, "listen", take_inherited("listen")).await?),
            None => None,
        };
        let reports = match config.reports {
            Some(addr) => Some(listen::bind_listener(addr, "reports", take_inherited("reports")).await?),
            None => None,
        };
        let secured = match config.secured {
            Some(secured) => Some(SecuredListener::open(secured, take_inherited("secured")).await?),
            None => None,
        };
        let control = match &config.control {
            Some(path) => Some(ControlSocket::open(path, take_inherited("control"), is_handed_over).await?),
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
            open_signal: config.open_signal,
        })
    }

    /// Returns copies of their sockets, by the names of [`Config::inherited_sockets`].
    pub(crate) fn copies(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let secured = self.secured.as_ref().map(|(listener, _)| listener.listener.as_fd());
        let sockets = [
            ("listen", self.listener.as_ref().map(|listener| listener.as_fd())),
            ("reports", self.reports.as_ref().map(|listener| listener.as_fd())),
            ("control", self.control.as_ref().map(|listener| listener.listener.as_fd())),
            ("secured", secured),
        ];
        let duplicate = |(name, listener): (_, Option<BorrowedFd<'_>>)| {
            Some(listener?.try_clone_to_owned().map(|copy| (name, copy)))
        };
        sockets.into_iter().filter_map(duplicate).collect()
    }

    /// Returns the addresses of the endpoints.
    pub(crate) fn addresses(&self) -> BoundAddresses {
        let local_address = |listener: &Option<TcpListener>| {
            listener.as_ref().and_then(|listener| listener.local_addr().ok())
        };
        let secured = self.secured.as_ref().and_then(|(listener, _)| listener.listener.local_addr().ok());
        BoundAddresses {
            listen: local_address(&self.listener),
            reports: local_address(&self.reports),
            secured,
        }
    }

    /// Serves all endpoints with `behind` as the backend, until `stopped` is sent or dropped.
    pub(crate) async fn serve(self, backend: AdminBackend, stopped: oneshot::Receiver<()>) {
        let mut stopped = stopped;
        if let Some(open_signal) = &self.open_signal {
            tokio::select! {
                () = open_signal.notified() => {}
                _ = &mut stopped => return,
            }
        }
        let (end_sender, end_receiver) = watch::channel(false);
        let locks = Arc::new(OperationLocks::new());
        let make_endpoint = |capability, authenticator: Option<EndpointAuthenticator>| {
            let endpoint = AdminEndpoint::new(
                backend.clone(),
                capability,
                self.audit.clone(),
                locks.clone(),
                MAX_EVENT_STREAMS,
                end_receiver.clone(),
            )
            .with_host_names(self.names.clone())
            .with_leases(!self.reports_only)
            .with_registration(self.register);
            Arc::new(match authenticator {
                Some(authenticator) => endpoint.with_authenticator(authenticator),
                None => endpoint,
            })
        };
        let slot_limits = [
            (MAX_CONNECTIONS, true),
            (MAX_CONNECTIONS, true),
            (MAX_REPORT_CONNECTIONS, true),
            (MAX_SECURED_CONNECTIONS, false),
        ];
        let slot_pools =
            slot_limits.map(|(max_connections, is_open)| ConnectionSlots::new(max_connections, is_open));
        let (secured, secured_endpoint) = match self.secured {
            Some((secured_listener, authenticator)) => {
                (Some(secured_listener), make_endpoint(EndpointCapability::Command, Some(authenticator)))
            }
            None => (None, make_endpoint(EndpointCapability::Command, None)),
        };
        let query_endpoint = make_endpoint(EndpointCapability::Query, None);
        let control_endpoint = make_endpoint(EndpointCapability::Command, None);
        let report_endpoint = make_endpoint(EndpointCapability::Report, None);
        tokio::select! {
            _ = stopped => {}
            () = accept_connections(self.listener, query_endpoint, &slot_pools[0]) => {}
            () = accept_connections(self.control, control_endpoint, &slot_pools[1]) => {}
            () = accept_connections(self.reports, report_endpoint, &slot_pools[2]) => {}
            () = accept_connections(secured, secured_endpoint, &slot_pools[3]) => {}
        }
        // The endpoints are closed and the socket's file is gone. Earlier requests are still answered.
        let _ = end_sender.send(true);
        let _ = timeout(SHUTDOWN_GRACE, async {
            for (slots, (max_connections, _)) in slot_pools.iter().zip(slot_limits) {
                let _ = slots.slots.acquire_many(max_connections).await;
            }
        })
        .await;
    }
}

/// A source of connections.
trait ConnectionSource: Send + Sync + 'static {
    /// An accepted connection.
    type Raw: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A connection that is ready for requests.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Whether a rejection can be sent in plain text.
    const REJECTS_IN_PLAIN_TEXT: bool = true;

    /// Returns the next connection and its origin.
    async fn accept(&self) -> io::Result<(Self::Raw, String)>;

    /// Determines the peer's identity; an error is the reason of the failure.
    fn identify_peer(
        &self,
        raw: Self::Raw,
    ) -> impl Future<Output = Result<(Self::Stream, PeerIdentity), String>> + Send;
}

impl ConnectionSource for TcpListener {
    type Raw = TcpStream;
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        let (stream, from) = Self::accept(self).await?;
        // A delay to combine writes would only postpone events.
        let _ = stream.set_nodelay(true);
        Ok((stream, from.to_string()))
    }

    async fn identify_peer(&self, stream: TcpStream) -> Result<(TcpStream, PeerIdentity), String> {
        Ok((stream, Caller::unauthenticated().into()))
    }
}

impl ConnectionSource for ControlSocket {
    type Raw = UnixStream;
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.listener.accept().await?;
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Ok((stream, pid.map_or_else(|| "unix".to_owned(), |pid| format!("unix, pid {pid}"))))
    }

    async fn identify_peer(&self, stream: UnixStream) -> Result<(UnixStream, PeerIdentity), String> {
        let peer = stream.peer_cred().map_err(|error| format!("it is not known who it is: {error}"))?;
        Ok((stream, Caller::unix(peer.uid()).into()))
    }
}

/// The endpoint behind TLS.
struct SecuredListener {
    listener: TcpListener,
    acceptor: PeerAcceptor,
}

impl SecuredListener {
    async fn open(
        secured: crate::SecuredConfig,
        inherited: Option<OwnedFd>,
    ) -> Result<(Self, EndpointAuthenticator), StartError> {
        let tokens =
            secured.jwt.map(TokenVerifier::open).transpose().map_err(StartError::Secured)?.map(Arc::new);
        let tickets =
            secured.keytab.as_deref().map(TicketVerifier::open).transpose().map_err(StartError::Secured)?;
        let accepts_anonymous = tokens.is_some() || tickets.is_some();
        let acceptor = PeerAcceptor::open(&secured.tls, accepts_anonymous).map_err(StartError::Secured)?;
        let listener = listen::bind_listener(secured.tls.address, "control", inherited).await?;
        if let Some(tokens) = &tokens {
            tokens.keep();
        }
        Ok((Self { listener, acceptor }, EndpointAuthenticator { rules: secured.rules, tokens, tickets }))
    }
}

impl ConnectionSource for SecuredListener {
    type Raw = TcpStream;
    type Stream = TlsStream<TcpStream>;

    const REJECTS_IN_PLAIN_TEXT: bool = false;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        ConnectionSource::accept(&self.listener).await
    }

    async fn identify_peer(&self, stream: TcpStream) -> Result<(Self::Stream, PeerIdentity), String> {
        let result = timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await;
        result.unwrap_or_else(|_| Err("the handshake did not end in time".into()))
    }
}

async fn accept_connections<D: ConnectionSource>(
    source: Option<D>,
    endpoint: Arc<AdminEndpoint>,
    slots: &ConnectionSlots,
) {
    let Some(source) = source.map(Arc::new) else { return std::future::pending().await };
    let rejection_slots = Arc::new(Semaphore::new(MAX_REJECTIONS));
    loop {
        match source.accept().await {
            Ok((stream, from)) => match slots.acquire(&from) {
                Some(slot) => {
                    // The next connection may arrive before the first read of this one.
                    slot.mark_idle();
                    let task = tokio::spawn(serve_connection(
                        source.clone(),
                        stream,
                        from,
                        endpoint.clone(),
                        slot.clone(),
                    ));
                    slot.set_task(task.abort_handle());
                }
                None if D::REJECTS_IN_PLAIN_TEXT => {
                    if let Ok(permit) = rejection_slots.clone().try_acquire_owned() {
                        tokio::spawn(timeout(REJECTION_TIMEOUT, send_rejection(stream, permit)));
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

async fn serve_connection<D: ConnectionSource>(
    source: Arc<D>,
    raw_stream: D::Raw,
    from: String,
    endpoint: Arc<AdminEndpoint>,
    slot: Arc<ConnectionSlot>,
) {
    match source.identify_peer(raw_stream).await {
        Ok((stream, PeerIdentity { caller, channel })) => {
            if caller.kind != CredentialKind::None {
                slot.mark_authenticated();
            }
            serve_http(stream, PeerConnection { caller, channel, origin: from, slot }, endpoint).await;
        }
        Err(reason) => endpoint.log_rejected_connection(&from, &reason),
    }
}

async fn serve_http<S>(stream: S, peer: PeerConnection, endpoint: Arc<AdminEndpoint>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let accepted_at = Instant::now();
    let (first_request, has_request) = (Notify::new(), AtomicBool::new(false));
    let service = service_fn(|mut request: Request<Incoming>| {
        let (endpoint, peer) = (endpoint.clone(), peer.clone());
        has_request.store(true, Relaxed);
        first_request.notify_one();
        async move {
            let slot = peer.slot.clone();
            slot.mark_busy();
            request.extensions_mut().insert(slot.clone());
            let response = route::handle(endpoint, peer, request).await;
            response.map(|response| response.map(|body| TrackedBody { body, slot }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, WRITE_STALL_TIMEOUT)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // Client errors are answered or end the connection; they are not logged.
        _ = connection.as_mut() => return,
        () = endpoint.wait_for_end() => {}
    }
    if !has_request.load(Relaxed) {
        // A client that has just connected gets an answer, as the next process has not accepted it.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = timeout_at(accepted_at + FIRST_REQUEST_GRACE, first_request.notified()) => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// The body of a response, whose connection counts as busy until the last byte has been passed to the socket.
struct TrackedBody {
    body: ResponseBody,
    slot: Arc<ConnectionSlot>,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = <ResponseBody as hyper::body::Body>::Error;

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

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.slot.mark_idle();
    }
}

/// Sends a rejection for want of a slot. The client's data is read and discarded: closing a socket with
/// unread bytes resets the connection, and the client would not see the response.
async fn send_rejection<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, _permit: OwnedSemaphorePermit) {
    if stream.write_all(BUSY_RESPONSE).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}
