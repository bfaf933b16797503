//! Calls to any reachable member of an etcd cluster.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{
    Authenticate, Authenticated, Done, Grant, Granted, Header, KeepAlive, KeptAlive, KeyValue, Message,
    Nothing, Range, Ranged, Revoke, Txn, WatchRequest, WatchResponse, end_of, path,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::line::{Line, Stream};
use super::{Endpoint, EtcdSettings, Failed};

/// The number of keys in one page.
const PAGE: i64 = 500;

/// gRPC status codes.
const INVALID_ARGUMENT: u32 = 3;
const UNAUTHENTICATED: u32 = 16;

/// A client of an etcd cluster. It has one connection, made on demand.
pub(crate) struct Client {
    settings: EtcdSettings,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    open: Option<Open>,
    /// The endpoint to try first.
    next: usize,
}

#[derive(Clone)]
struct Open {
    line: Arc<Line>,
    token: Option<Arc<str>>,
}

impl Client {
    /// Creates a client without a connection.
    pub(crate) fn new(settings: EtcdSettings) -> Self {
        Self { settings, held: Mutex::default() }
    }

    /// Returns the time limit of a connection attempt, and of a call.
    pub(crate) fn patience(&self) -> Duration {
        self.settings.timeout
    }

    /// Reads a consistent snapshot of all keys with a prefix, at most `most`.
    ///
    /// # Errors
    /// There are more keys, or they cannot be read.
    pub(crate) async fn read(&self, prefix: &[u8], most: usize) -> Result<(Header, Vec<KeyValue>), Failed> {
        let range_end = end_of(prefix);
        let mut all: Vec<KeyValue> = Vec::new();
        let mut begin = prefix.to_vec();
        let mut first: Option<Header> = None;
        loop {
            let revision = first.map_or(0, |header| header.revision);
            let range = Range { key: begin, range_end: range_end.clone(), limit: PAGE, revision };
            let page: Ranged = self.ask(path::RANGE, &range, true).await?;
            let header = page.header.unwrap_or_default();
            let header = *first.get_or_insert(header);
            if page.more && page.kvs.is_empty() {
                return Err(Failed::Unsure("an answer that says there is more, and has no key".into()));
            }
            all.extend(page.kvs);
            if all.len() > most {
                return Err(Failed::Refused(0, format!("more than {most} keys are there")));
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
    pub(crate) async fn transact(&self, txn: &Txn) -> Result<Done, Failed> {
        self.ask(path::TXN, txn, false).await
    }

    /// Requests a lease of `ttl` seconds.
    pub(crate) async fn grant(&self, ttl: i64) -> Result<i64, Failed> {
        // A lease that is granted twice expires by itself.
        let granted: Granted = self.ask(path::GRANT, &Grant { ttl, id: 0 }, true).await?;
        if granted.error.is_empty() { Ok(granted.id) } else { Err(Failed::Refused(0, granted.error)) }
    }

    /// Renews a lease. Returns its new time to live in seconds; 0 if it has expired.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<i64, Failed> {
        let kept: KeptAlive = self.ask(path::KEEP_ALIVE, &KeepAlive { id }, true).await?;
        Ok(kept.ttl)
    }

    /// Ends a lease and deletes its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Failed> {
        self.ask::<Nothing>(path::REVOKE, &Revoke { id }, true).await.map(drop)
    }

    /// Watches all changes of keys with a prefix from a revision on.
    pub(crate) async fn watch(&self, prefix: &[u8], from: i64) -> Result<Watching, Failed> {
        let request = WatchRequest::of(prefix, from);
        let mut renewed = false;
        loop {
            let open = self.open().await?;
            let begun = open.line.stream(path::WATCH, &request, open.token.as_deref());
            let begun = timeout(self.settings.timeout, begun).await.unwrap_or_else(|_| Err(self.late()));
            match begun {
                Ok(stream) => return Ok(Watching { stream, _line: open.line }),
                Err(failed) if stale(&failed) && !renewed => {
                    renewed = true;
                    self.forget(&open).await;
                }
                Err(failed) => {
                    self.forget(&open).await;
                    return Err(failed);
                }
            }
        }
    }

    /// Makes a call. It tries one member after the other while the call had no effect, or, if it may be
    /// repeated (`again`), while there is no response.
    async fn ask<A: Message + Default>(
        &self,
        path: &str,
        question: &impl Message,
        again: bool,
    ) -> Result<A, Failed> {
        let (mut tries, mut renewed) = (0, false);
        loop {
            let open = self.open().await?;
            let asked = open.line.ask(path, question, open.token.as_deref());
            let asked = timeout(self.settings.timeout, asked).await.unwrap_or_else(|_| Err(self.late()));
            let failed = match asked {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tries += 1;
            match &failed {
                failed if stale(failed) && !renewed => renewed = true,
                Failed::Refused(..) => return Err(failed),
                Failed::Away(_) if tries <= self.settings.endpoints.len() => {}
                Failed::Unsure(_) if again && tries < self.settings.endpoints.len().max(2) => {}
                Failed::Away(_) | Failed::Unsure(_) => {
                    self.forget(&open).await;
                    return Err(failed);
                }
            }
            self.forget(&open).await;
        }
    }

    fn late(&self) -> Failed {
        Failed::Unsure(format!("no answer within {} s", self.settings.timeout.as_secs_f64()))
    }

    /// Returns the connection, or makes one to the first reachable endpoint.
    async fn open(&self) -> Result<Open, Failed> {
        let mut held = self.held.lock().await;
        if let Some(open) = held.open.as_ref().filter(|open| !open.line.ended()) {
            return Ok(open.clone());
        }
        let mut why = Vec::new();
        for _ in &self.settings.endpoints {
            let place = held.next % self.settings.endpoints.len();
            let endpoint = &self.settings.endpoints[place];
            // The next attempt begins with another endpoint, on success and on failure.
            held.next = place + 1;
            match self.make(endpoint).await {
                Ok(open) => {
                    held.open = Some(open.clone());
                    return Ok(open);
                }
                Err(error) => why.push(format!("{endpoint}: {error}")),
            }
        }
        Err(Failed::Away(why.join("; ")))
    }

    /// Makes a connection and authenticates the user on it. Each step has the full time limit, as etcd takes
    /// long to check passwords.
    async fn make(&self, endpoint: &Endpoint) -> Result<Open, String> {
        let limit = self.settings.timeout;
        let late = |what: &str| format!("no {what} within {} s", limit.as_secs_f64());
        let line = timeout(limit, Line::connect(endpoint, &self.settings.tls)).await;
        let line = line.unwrap_or_else(|_| Err(late("connection")))?;
        let token = timeout(limit, self.prove(&line)).await.unwrap_or_else(|_| Err(late("token")))?;
        Ok(Open { line: Arc::new(line), token })
    }

    /// Returns the user's token, if there is a user.
    async fn prove(&self, line: &Line) -> Result<Option<Arc<str>>, String> {
        let Some((name, file)) = &self.settings.user else { return Ok(None) };
        let wrong = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", file.display());
        let from = file.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(from)).await;
        let password = read.map_err(|why| wrong(&why))?.map_err(|why| wrong(&why))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        let ask = Authenticate { name: name.clone(), password };
        let proved: Authenticated = line
            .ask(path::AUTHENTICATE, &ask, None)
            .await
            .map_err(|failed| format!("user {name}: {failed}"))?;
        Ok(Some(proved.token.into()))
    }

    /// Drops that connection.
    async fn forget(&self, open: &Open) {
        let mut held = self.held.lock().await;
        if held.open.as_ref().is_some_and(|held| Arc::ptr_eq(&held.line, &open.line)) {
            held.open = None;
        }
    }
}

/// Returns `true` if etcd no longer accepts the token.
fn stale(failed: &Failed) -> bool {
    match failed {
        Failed::Refused(UNAUTHENTICATED, _) => true,
        Failed::Refused(INVALID_ARGUMENT, why) => why.contains("auth store is old"),
        _ => false,
    }
}

/// A stream of changes.
pub(crate) struct Watching {
    stream: Stream,
    /// Keeps the connection open.
    _line: Arc<Line>,
}

impl Watching {
    /// Returns the next response. Callers may drop the future and call again.
    ///
    /// # Errors
    /// The watch has ended.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Failed> {
        self.stream.next().await
    }
}
