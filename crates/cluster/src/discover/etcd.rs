//! Keys of etcd below a prefix: each value describes a member. They are read once and watched from then on,
//! so that changes arrive at once without polling. A broken watch resumes after the last seen revision.
//!
//! A malformed value invalidates the whole list, as with any other source: the source's members stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{EventType, KeyValue, WatchResponse};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::look_up::look_up;
use super::{Answer, Asking, MOST, Reader, Source, Stated, Told, Way};
use crate::etcd::{Client, EtcdSettings, Failed, Watching};

/// The interval at which an idle watch reports that it is alive.
const QUIET: Duration = Duration::from_secs(10);
/// The time limit of name lookups, besides the time for etcd.
const NAMES: Duration = Duration::from_secs(10);
/// The delay before all keys are read again because the known state is outdated.
const STALE: Duration = Duration::from_millis(250);
/// The time in which changes are combined into one update.
const MOMENT: Duration = Duration::from_millis(20);

/// The maximum of that time if more changes follow.
const MOST_MOMENTS: Duration = Duration::from_millis(100);

/// Keys of etcd.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdSource {
    /// The cluster.
    pub etcd: EtcdSettings,
    /// The prefix of the keys.
    pub prefix: String,
    /// The parser of a value, which yields one member.
    pub read: Reader,
}

impl Way for EtcdSource {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn what(&self) -> String {
        self.prefix.clone()
    }

    fn patience(&self) -> Duration {
        // The time to connect and authenticate (at each endpoint), to read, and to begin a watch.
        let each = u32::try_from(self.etcd.endpoints.len()).unwrap_or(u32::MAX);
        self.etcd.timeout.saturating_mul(each.saturating_mul(2).saturating_add(3)) + QUIET + NAMES
    }

    fn again(&self, failures: u32) -> Duration {
        (Duration::from_millis(250) * 2_u32.saturating_pow(failures.min(8) - 1)).min(Duration::from_secs(10))
    }

    fn open(&self) -> Box<dyn Source> {
        let client = Client::new(self.etcd.clone());
        Box::new(Watched { settings: Arc::new(self.clone()), client, known: None, watching: None })
    }
}

struct Watched {
    settings: Arc<EtcdSource>,
    client: Client,
    known: Option<Known>,
    watching: Option<Watching>,
}

/// The known state.
struct Known {
    cluster: u64,
    revision: i64,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether it has been reported.
    told: bool,
}

impl Source for Watched {
    fn ask(&mut self) -> Asking<'_> {
        Box::pin(async move {
            let changed = self.wait().await;
            if let Err(failed) = changed {
                self.watching = None;
                return Err(failed.to_string());
            }
            let told = match &mut self.known {
                Some(known) if !known.told => {
                    let stated = stated(self.settings.read, &known.values)?;
                    let members = look_up(stated).await?;
                    known.told = true;
                    Told { members: Some(members), note: None }
                }
                _ => Told::default(),
            };
            // Otherwise two clusters behind one name would be queried in turn without end.
            let good_for = if self.known.is_none() { STALE } else { Duration::ZERO };
            Ok(Answer { told, good_for })
        })
    }
}

impl Watched {
    /// Returns when there is something to report, or after a quiet time.
    async fn wait(&mut self) -> Result<(), Failed> {
        if self.known.is_none() {
            let (header, kvs) = self.client.read(self.settings.prefix.as_bytes(), MOST).await?;
            let values = kvs.into_iter().map(|KeyValue { key, value, .. }| (key, value)).collect();
            let (cluster, revision) = (header.cluster_id, header.revision);
            self.known = Some(Known { cluster, revision, values, told: false });
            return Ok(());
        }
        let Some(known) = &mut self.known else { return Ok(()) };
        let watching = match &mut self.watching {
            Some(watching) => watching,
            none => {
                let prefix = self.settings.prefix.as_bytes();
                let mut begun = self.client.watch(prefix, known.next_revision()).await?;
                let late = |_| Err(Failed::Unsure("a watch that does not begin".into()));
                let first = timeout(self.client.patience(), begun.next()).await.unwrap_or_else(late)?;
                let header = first.header.unwrap_or_default();
                // Another cluster, or a restored one: the known state is outdated.
                if header.cluster_id != known.cluster || header.revision < known.revision {
                    self.known = None;
                    return Ok(());
                }
                if !known.take(first)? {
                    self.known = None;
                    return Ok(());
                }
                none.insert(begun)
            }
        };
        let Ok(first) = timeout(QUIET, watching.next()).await else { return Ok(()) };
        let (mut told, until) = (first?, Instant::now() + MOST_MOMENTS);
        loop {
            if !known.take(told)? {
                (self.known, self.watching) = (None, None);
                return Ok(());
            }
            sleep(Duration::ZERO).await;
            match timeout_at(until.min(Instant::now() + MOMENT), watching.next()).await {
                Ok(next) => told = next?,
                Err(_) => return Ok(()),
            }
        }
    }
}

impl Known {
    /// Returns the first unknown revision.
    fn next_revision(&self) -> i64 {
        self.revision.saturating_add(1)
    }

    /// Applies a response of the watch. Returns `false` if all keys must be read again.
    fn take(&mut self, told: WatchResponse) -> Result<bool, Failed> {
        if told.compact_revision > 0 {
            return Ok(false);
        }
        if told.canceled {
            return Err(Failed::Unsure(format!("the watch was ended: {}", told.cancel_reason)));
        }
        if told.events.is_empty() && !told.created {
            self.revision = self.revision.max(told.header.map_or(0, |header| header.revision));
        }
        for event in told.events {
            let kind = event.kind();
            let Some(KeyValue { key, mod_revision, value, .. }) = event.kv else { continue };
            self.revision = self.revision.max(mod_revision);
            self.told = false;
            match kind {
                EventType::Put => drop(self.values.insert(key, value)),
                EventType::Delete => drop(self.values.remove(&key)),
            }
        }
        if self.values.len() > MOST {
            return Err(Failed::Refused(0, super::look_up::too_many(self.values.len())));
        }
        Ok(true)
    }
}

/// Parses the members in the values. A member under several keys is listed once.
fn stated(read: Reader, values: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Vec<Stated>, String> {
    let mut all: Vec<Stated> = Vec::new();
    for (key, value) in values {
        let name = String::from_utf8_lossy(key);
        for one in (read.0)(&name, value)? {
            if !all.iter().any(|other| (&other.host, other.port) == (&one.host, one.port)) {
                all.push(one);
            }
        }
    }
    Ok(all)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod law;
