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
const PAGE_SIZE: i64 = 500;

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
    open_connection: Option<OpenConnection>,
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
        max_keys: usize,
    ) -> Result<(ResponseHeader, Vec<EtcdKeyValue>), EtcdError> {
        let range_end = prefix_end(prefix);
        let mut pairs: Vec<EtcdKeyValue> = Vec::new();
        let mut start_key = prefix.to_vec();
        let mut first: Option<ResponseHeader> = None;
        loop {
            let revision = first.map_or(0, |header| header.revision);
            let range =
                RangeRequest { key: start_key, range_end: range_end.clone(), limit: PAGE_SIZE, revision };
            let page: RangeResponse = self.call(path::RANGE, &range, true).await?;
            let header = page.header.unwrap_or_default();
            let header = *first.get_or_insert(header);
            if page.more && page.kvs.is_empty() {
                return Err(EtcdError::OutcomeUnknown(
                    "an answer that says there is more, and has no key".into(),
                ));
            }
            pairs.extend(page.kvs);
            if pairs.len() > max_keys {
                return Err(EtcdError::Rejected(0, format!("more than {max_keys} keys are there")));
            }
            match pairs.last() {
                Some(last) if page.more => {
                    start_key = last.key.clone();
                    start_key.push(0);
                }
                _ => return Ok((header, pairs)),
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
        let renewal: LeaseKeepAliveResponse =
            self.call(path::KEEP_ALIVE, &LeaseKeepAliveRequest { id }, true).await?;
        Ok(renewal.ttl)
    }

    /// Ends a lease and deletes its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        self.call::<EmptyResponse>(path::REVOKE, &LeaseRevokeRequest { id }, true).await.map(drop)
    }

    /// Watches all changes of keys with a prefix from a revision on.
    pub(crate) async fn watch(&self, prefix: &[u8], start_revision: i64) -> Result<WatchStream, EtcdError> {
        let request = WatchRequest::for_prefix(prefix, start_revision);
        let mut token_renewed = false;
        loop {
            let open_connection = self.open().await?;
            let stream =
                open_connection.connection.stream(path::WATCH, &request, open_connection.token.as_deref());
            let stream =
                timeout(self.settings.timeout, stream).await.unwrap_or_else(|_| Err(self.timeout_error()));
            match stream {
                Ok(stream) => return Ok(WatchStream { stream, _connection: open_connection.connection }),
                Err(error) if is_token_expired(&error) && !token_renewed => {
                    token_renewed = true;
                    self.discard(&open_connection).await;
                }
                Err(error) => {
                    self.discard(&open_connection).await;
                    return Err(error);
                }
            }
        }
    }

    /// Makes a call. It tries one member after the other while the call had no effect, or, if it may be
    /// repeated (`again`), while there is no response.
    async fn call<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        is_idempotent: bool,
    ) -> Result<A, EtcdError> {
        let (mut tries, mut token_renewed) = (0, false);
        loop {
            let open_connection = self.open().await?;
            let response = open_connection.connection.call(path, request, open_connection.token.as_deref());
            let response =
                timeout(self.settings.timeout, response).await.unwrap_or_else(|_| Err(self.timeout_error()));
            let error = match response {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tries += 1;
            match &error {
                error if is_token_expired(error) && !token_renewed => token_renewed = true,
                EtcdError::Rejected(..) => return Err(error),
                EtcdError::Unreachable(_) if tries <= self.settings.endpoints.len() => {}
                EtcdError::OutcomeUnknown(_)
                    if is_idempotent && tries < self.settings.endpoints.len().max(2) => {}
                EtcdError::Unreachable(_) | EtcdError::OutcomeUnknown(_) => {
                    self.discard(&open_connection).await;
                    return Err(error);
                }
            }
            self.discard(&open_connection).await;
        }
    }

    fn timeout_error(&self) -> EtcdError {
        EtcdError::OutcomeUnknown(format!("no answer within {} s", self.settings.timeout.as_secs_f64()))
    }

    /// Returns the connection, or makes one to the first reachable endpoint.
    async fn open(&self) -> Result<OpenConnection, EtcdError> {
        let mut state = self.connection.lock().await;
        if let Some(open_connection) =
            state.open_connection.as_ref().filter(|open_connection| !open_connection.connection.is_closed())
        {
            return Ok(open_connection.clone());
        }
        let mut errors = Vec::new();
        for _ in &self.settings.endpoints {
            let index = state.next_endpoint % self.settings.endpoints.len();
            let endpoint = &self.settings.endpoints[index];
            // The next attempt begins with another endpoint, on success and on failure.
            state.next_endpoint = index + 1;
            match self.connect(endpoint).await {
                Ok(open_connection) => {
                    state.open_connection = Some(open_connection.clone());
                    return Ok(open_connection);
                }
                Err(error) => errors.push(format!("{endpoint}: {error}")),
            }
        }
        Err(EtcdError::Unreachable(errors.join("; ")))
    }

    /// Makes a connection and authenticates the user on it. Each step has the full time limit, as etcd takes
    /// long to check passwords.
    async fn connect(&self, endpoint: &EtcdEndpoint) -> Result<OpenConnection, String> {
        let limit = self.settings.timeout;
        let timeout_message = |awaited: &str| format!("no {awaited} within {} s", limit.as_secs_f64());
        let connection = timeout(limit, EtcdConnection::connect(endpoint, &self.settings.tls)).await;
        let connection = connection.unwrap_or_else(|_| Err(timeout_message("connection")))?;
        let token = timeout(limit, self.authenticate(&connection))
            .await
            .unwrap_or_else(|_| Err(timeout_message("token")))?;
        Ok(OpenConnection { connection: Arc::new(connection), token })
    }

    /// Returns the user's token, if there is a user.
    async fn authenticate(&self, connection: &EtcdConnection) -> Result<Option<Arc<str>>, String> {
        let Some((name, password_file)) = &self.settings.user else { return Ok(None) };
        let read_error =
            |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", password_file.display());
        let file_path = password_file.clone();
        let contents = tokio::task::spawn_blocking(move || std::fs::read_to_string(file_path)).await;
        let password = contents.map_err(|error| read_error(&error))?.map_err(|error| read_error(&error))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        let request = AuthenticateRequest { name: name.clone(), password };
        let response: AuthenticateResponse = connection
            .call(path::AUTHENTICATE, &request, None)
            .await
            .map_err(|error| format!("user {name}: {error}"))?;
        Ok(Some(response.token.into()))
    }

    /// Drops that connection.
    async fn discard(&self, open_connection: &OpenConnection) {
        let mut state = self.connection.lock().await;
        if state
            .open_connection
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(&current.connection, &open_connection.connection))
        {
            state.open_connection = None;
        }
    }
}

/// Returns `true` if etcd no longer accepts the token.
fn is_token_expired(error: &EtcdError) -> bool {
    match error {
        EtcdError::Rejected(UNAUTHENTICATED, _) => true,
        EtcdError::Rejected(INVALID_ARGUMENT, message) => message.contains("auth store is old"),
        _ => false,
    }
}

/// A stream of changes.
pub(crate) struct WatchStream {
    stream: MessageStream,
    /// Keeps the connection open.
    _connection: Arc<EtcdConnection>,
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
