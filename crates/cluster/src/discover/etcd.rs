//! Keys of etcd below a prefix: each value describes a member. They are read once and watched from then on,
//! so that changes arrive at once without polling. A broken watch resumes after the last seen revision.
//!
//! A malformed value invalidates the whole list, as with any other source: the source's members stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{EtcdKeyValue, EventType, WatchResponse};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::resolve_hosts::resolve_members;
use super::{
    ListParser, MAX_MEMBERS, MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig,
    UnresolvedMember,
};
use crate::etcd::{EtcdClient, EtcdError, EtcdSettings, WatchStream};

/// The interval at which an idle watch reports that it is alive.
const IDLE_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The time limit of name lookups, besides the time for etcd.
const NAME_LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before all keys are read again because the known state is outdated.
const REREAD_DELAY: Duration = Duration::from_millis(250);
/// The time in which changes are combined into one update.
const COALESCE_WINDOW: Duration = Duration::from_millis(20);

/// The maximum of that time if more changes follow.
const MAX_COALESCE_WINDOW: Duration = Duration::from_millis(100);

/// Keys of etcd.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdSource {
    /// The cluster.
    pub etcd: EtcdSettings,
    /// The prefix of the keys.
    pub prefix: String,
    /// The parser of a value, which yields one member.
    pub read: ListParser,
}

impl SourceConfig for EtcdSource {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn target(&self) -> String {
        self.prefix.clone()
    }

    fn query_timeout(&self) -> Duration {
        // The time to connect and authenticate (at each endpoint), to read, and to begin a watch.
        let endpoints = u32::try_from(self.etcd.endpoints.len()).unwrap_or(u32::MAX);
        self.etcd.timeout.saturating_mul(endpoints.saturating_mul(2).saturating_add(3))
            + IDLE_REPORT_INTERVAL
            + NAME_LOOKUP_TIMEOUT
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        (Duration::from_millis(250) * 2_u32.saturating_pow(failures.min(8) - 1)).min(Duration::from_secs(10))
    }

    fn open(&self) -> Box<dyn MemberSource> {
        let client = EtcdClient::new(self.etcd.clone());
        Box::new(EtcdWatcher { settings: Arc::new(self.clone()), client, snapshot: None, watch_stream: None })
    }
}

struct EtcdWatcher {
    settings: Arc<EtcdSource>,
    client: EtcdClient,
    snapshot: Option<KeySnapshot>,
    watch_stream: Option<WatchStream>,
}

/// The known state.
struct KeySnapshot {
    cluster_id: u64,
    revision: i64,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether it has been reported.
    is_reported: bool,
}

impl MemberSource for EtcdWatcher {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let update = self.wait_for_update().await;
            if let Err(error) = update {
                self.watch_stream = None;
                return Err(error.to_string());
            }
            let list = match &mut self.snapshot {
                Some(snapshot) if !snapshot.is_reported => {
                    let unresolved_members = parse_members(self.settings.read, &snapshot.values)?;
                    let members = resolve_members(unresolved_members).await?;
                    snapshot.is_reported = true;
                    MemberList { members: Some(members), note: None }
                }
                _ => MemberList::default(),
            };
            // Otherwise two clusters behind one name would be queried in turn without end.
            let valid_for = if self.snapshot.is_none() { REREAD_DELAY } else { Duration::ZERO };
            Ok(QueryOutcome { list, valid_for })
        })
    }
}

impl EtcdWatcher {
    /// Returns when there is something to report, or after a quiet time.
    async fn wait_for_update(&mut self) -> Result<(), EtcdError> {
        if self.snapshot.is_none() {
            let (header, kvs) = self.client.read(self.settings.prefix.as_bytes(), MAX_MEMBERS).await?;
            let values = kvs.into_iter().map(|EtcdKeyValue { key, value, .. }| (key, value)).collect();
            let (cluster_id, revision) = (header.cluster_id, header.revision);
            self.snapshot = Some(KeySnapshot { cluster_id, revision, values, is_reported: false });
            return Ok(());
        }
        let Some(snapshot) = &mut self.snapshot else { return Ok(()) };
        let watch_stream = match &mut self.watch_stream {
            Some(watch_stream) => watch_stream,
            empty_slot => {
                let prefix = self.settings.prefix.as_bytes();
                let mut new_stream = self.client.watch(prefix, snapshot.next_revision()).await?;
                let timeout_error = |_| Err(EtcdError::OutcomeUnknown("a watch that does not begin".into()));
                let first_response =
                    timeout(self.client.timeout(), new_stream.next()).await.unwrap_or_else(timeout_error)?;
                let header = first_response.header.unwrap_or_default();
                // Another cluster, or a restored one: the known state is outdated.
                if header.cluster_id != snapshot.cluster_id || header.revision < snapshot.revision {
                    self.snapshot = None;
                    return Ok(());
                }
                if !snapshot.apply(first_response)? {
                    self.snapshot = None;
                    return Ok(());
                }
                empty_slot.insert(new_stream)
            }
        };
        let Ok(first_response) = timeout(IDLE_REPORT_INTERVAL, watch_stream.next()).await else {
            return Ok(());
        };
        let (mut response, deadline) = (first_response?, Instant::now() + MAX_COALESCE_WINDOW);
        loop {
            if !snapshot.apply(response)? {
                (self.snapshot, self.watch_stream) = (None, None);
                return Ok(());
            }
            sleep(Duration::ZERO).await;
            match timeout_at(deadline.min(Instant::now() + COALESCE_WINDOW), watch_stream.next()).await {
                Ok(next_response) => response = next_response?,
                Err(_) => return Ok(()),
            }
        }
    }
}

impl KeySnapshot {
    /// Returns the first unknown revision.
    fn next_revision(&self) -> i64 {
        self.revision.saturating_add(1)
    }

    /// Applies a response of the watch. Returns `false` if all keys must be read again.
    fn apply(&mut self, response: WatchResponse) -> Result<bool, EtcdError> {
        if response.compact_revision > 0 {
            return Ok(false);
        }
        if response.canceled {
            return Err(EtcdError::OutcomeUnknown(format!(
                "the watch was ended: {}",
                response.cancel_reason
            )));
        }
        if response.events.is_empty() && !response.created {
            self.revision = self.revision.max(response.header.map_or(0, |header| header.revision));
        }
        for event in response.events {
            let kind = event.kind();
            let Some(EtcdKeyValue { key, mod_revision, value, .. }) = event.kv else { continue };
            self.revision = self.revision.max(mod_revision);
            self.is_reported = false;
            match kind {
                EventType::Put => drop(self.values.insert(key, value)),
                EventType::Delete => drop(self.values.remove(&key)),
            }
        }
        if self.values.len() > MAX_MEMBERS {
            return Err(EtcdError::Rejected(0, super::resolve_hosts::too_many_message(self.values.len())));
        }
        Ok(true)
    }
}

/// Parses the members in the values. A member under several keys is listed once.
fn parse_members(
    read: ListParser,
    values: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<Vec<UnresolvedMember>, String> {
    let mut members: Vec<UnresolvedMember> = Vec::new();
    for (key, value) in values {
        let name = String::from_utf8_lossy(key);
        for member in (read.0)(&name, value)? {
            if !members.iter().any(|other| (&other.host, other.port) == (&member.host, member.port)) {
                members.push(member);
            }
        }
    }
    Ok(members)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;
