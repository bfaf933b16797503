//! Calls to any reachable member of an etcd cluster.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{
    AuthenticateRequest, AuthenticateResponse, EmptyResponse, EtcdKeyValue, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, Message,
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse, WatchRequest, WatchResponse, path,
    prefix_end,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::connection::{EtcdConnection, MessageStream};
use super::{EtcdEndpoint, EtcdError, EtcdSettings};

/// The number of keys in one page.
const PAGE: i64 = 500;

/// gRPC status codes.
const INVALID_ARGUMENT: u32 = 3;
const UNAUTHENTICATED: u32 = 16;

/// A client of an etcd cluster. It has one connection, made on demand.
pub(crate) struct EtcdClient {
    settings: EtcdSettings,
    connection: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    open: Option<OpenConnection>,
    /// The endpoint to try first.
    next_endpoint: usize,
}

#[derive(Clone)]
struct OpenConnection {
    connection: Arc<EtcdConnection>,
    token: Option<Arc<str>>,
}

impl EtcdClient {
    /// Creates a client without a connection.
    pub(crate) fn new(settings: EtcdSettings) -> Self {
        Self { settings, connection: Mutex::default() }
    }

    /// Returns the time limit of a connection attempt, and of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Reads a consistent snapshot of all keys with a prefix, at most `most`.
    ///
    /// # Errors
    /// There are more keys, or they cannot be read.
    pub(crate) async fn read(
        &self,
        prefix: &[u8],
        most: usize,
    ) -> Result<(ResponseHeader, Vec<EtcdKeyValue>), EtcdError> {
        let range_end = prefix_end(prefix);
        let mut all: Vec<EtcdKeyValue> = Vec::new();
        let mut begin = prefix.to_vec();
        let mut first: Option<ResponseHeader> = None;
        loop {
            let revision = first.map_or(0, |header| header.revision);
            let range = RangeRequest { key: begin, range_end: range_end.clone(), limit: PAGE, revision };
            let page: RangeResponse = self.call(path::RANGE, &range, true).await?;
            let header = page.header.unwrap_or_default();
            let header = *first.get_or_insert(header);
            if page.more && page.kvs.is_empty() {
                return Err(EtcdError::OutcomeUnknown(
                    "an answer that says there is more, and has no key".into(),
                ));
            }
            all.extend(page.kvs);
            if all.len() > most {
                return Err(EtcdError::Rejected(0, format!("more than {most} keys are there")));
            }
            match all.last() {
                Some(last) if page.more => {
                    begin = last.key.clone();
                    begin.push(0);
                }
                _ => return Ok((header, all)),
            }
        }
    }

    /// Executes an atomic transaction.
    pub(crate) async fn transact(&self, txn: &TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.call(path::TXN, txn, false).await
    }

    /// Requests a lease of `ttl` seconds.
    pub(crate) async fn grant(&self, ttl: i64) -> Result<i64, EtcdError> {
        // A lease that is granted twice expires by itself.
        let granted: LeaseGrantResponse =
            self.call(path::GRANT, &LeaseGrantRequest { ttl, id: 0 }, true).await?;
        if granted.error.is_empty() { Ok(granted.id) } else { Err(EtcdError::Rejected(0, granted.error)) }
    }

    /// Renews a lease. Returns its new time to live in seconds; 0 if it has expired.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<i64, EtcdError> {
        let kept: LeaseKeepAliveResponse =
            self.call(path::KEEP_ALIVE, &LeaseKeepAliveRequest { id }, true).await?;
        Ok(kept.ttl)
    }

    /// Ends a lease and deletes its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        self.call::<EmptyResponse>(path::REVOKE, &LeaseRevokeRequest { id }, true).await.map(drop)
    }

    /// Watches all changes of keys with a prefix from a revision on.
    pub(crate) async fn watch(&self, prefix: &[u8], from: i64) -> Result<WatchStream, EtcdError> {
        let request = WatchRequest::for_prefix(prefix, from);
        let mut renewed = false;
        loop {
            let open = self.open().await?;
            let begun = open.connection.stream(path::WATCH, &request, open.token.as_deref());
            let begun =
                timeout(self.settings.timeout, begun).await.unwrap_or_else(|_| Err(self.timeout_error()));
            match begun {
                Ok(stream) => return Ok(WatchStream { stream, _line: open.connection }),
                Err(failed) if is_token_expired(&failed) && !renewed => {
                    renewed = true;
                    self.discard(&open).await;
                }
                Err(failed) => {
                    self.discard(&open).await;
                    return Err(failed);
                }
            }
        }
    }

    /// Makes a call. It tries one member after the other while the call had no effect, or, if it may be
    /// repeated (`again`), while there is no response.
    async fn call<A: Message + Default>(
        &self,
        path: &str,
        question: &impl Message,
        again: bool,
    ) -> Result<A, EtcdError> {
        let (mut tries, mut renewed) = (0, false);
        loop {
            let open = self.open().await?;
            let asked = open.connection.call(path, question, open.token.as_deref());
            let asked =
                timeout(self.settings.timeout, asked).await.unwrap_or_else(|_| Err(self.timeout_error()));
            let failed = match asked {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tries += 1;
            match &failed {
                failed if is_token_expired(failed) && !renewed => renewed = true,
                EtcdError::Rejected(..) => return Err(failed),
                EtcdError::Unreachable(_) if tries <= self.settings.endpoints.len() => {}
                EtcdError::OutcomeUnknown(_) if again && tries < self.settings.endpoints.len().max(2) => {}
                EtcdError::Unreachable(_) | EtcdError::OutcomeUnknown(_) => {
                    self.discard(&open).await;
                    return Err(failed);
                }
            }
            self.discard(&open).await;
        }
    }

    fn timeout_error(&self) -> EtcdError {
        EtcdError::OutcomeUnknown(format!("no answer within {} s", self.settings.timeout.as_secs_f64()))
    }

    /// Returns the connection, or makes one to the first reachable endpoint.
    async fn open(&self) -> Result<OpenConnection, EtcdError> {
        let mut held = self.connection.lock().await;
        if let Some(open) = held.open.as_ref().filter(|open| !open.connection.is_closed()) {
            return Ok(open.clone());
        }
        let mut why = Vec::new();
        for _ in &self.settings.endpoints {
            let place = held.next_endpoint % self.settings.endpoints.len();
            let endpoint = &self.settings.endpoints[place];
            // The next attempt begins with another endpoint, on success and on failure.
            held.next_endpoint = place + 1;
            match self.connect(endpoint).await {
                Ok(open) => {
                    held.open = Some(open.clone());
                    return Ok(open);
                }
                Err(error) => why.push(format!("{endpoint}: {error}")),
            }
        }
        Err(EtcdError::Unreachable(why.join("; ")))
    }

    /// Makes a connection and authenticates the user on it. Each step has the full time limit, as etcd takes
    /// long to check passwords.
    async fn connect(&self, endpoint: &EtcdEndpoint) -> Result<OpenConnection, String> {
        let limit = self.settings.timeout;
        let late = |what: &str| format!("no {what} within {} s", limit.as_secs_f64());
        let line = timeout(limit, EtcdConnection::connect(endpoint, &self.settings.tls)).await;
        let line = line.unwrap_or_else(|_| Err(late("connection")))?;
        let token = timeout(limit, self.authenticate(&line)).await.unwrap_or_else(|_| Err(late("token")))?;
        Ok(OpenConnection { connection: Arc::new(line), token })
    }

    /// Returns the user's token, if there is a user.
    async fn authenticate(&self, line: &EtcdConnection) -> Result<Option<Arc<str>>, String> {
        let Some((name, file)) = &self.settings.user else { return Ok(None) };
        let wrong = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", file.display());
        let from = file.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(from)).await;
        let password = read.map_err(|why| wrong(&why))?.map_err(|why| wrong(&why))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        let ask = AuthenticateRequest { name: name.clone(), password };
        let proved: AuthenticateResponse = line
            .call(path::AUTHENTICATE, &ask, None)
            .await
            .map_err(|failed| format!("user {name}: {failed}"))?;
        Ok(Some(proved.token.into()))
    }

    /// Drops that connection.
    async fn discard(&self, open: &OpenConnection) {
        let mut held = self.connection.lock().await;
        if held.open.as_ref().is_some_and(|held| Arc::ptr_eq(&held.connection, &open.connection)) {
            held.open = None;
        }
    }
}

/// Returns `true` if etcd no longer accepts the token.
fn is_token_expired(failed: &EtcdError) -> bool {
    match failed {
        EtcdError::Rejected(UNAUTHENTICATED, _) => true,
        EtcdError::Rejected(INVALID_ARGUMENT, why) => why.contains("auth store is old"),
        _ => false,
    }
}

/// A stream of changes.
pub(crate) struct WatchStream {
    stream: MessageStream,
    /// Keeps the connection open.
    _line: Arc<EtcdConnection>,
}

impl WatchStream {
    /// Returns the next response. Callers may drop the future and call again.
    ///
    /// # Errors
    /// The watch has ended.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, EtcdError> {
        self.stream.next().await
    }
}
