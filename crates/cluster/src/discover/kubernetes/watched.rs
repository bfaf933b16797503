//! Slices that are listed once and watched from then on.
//!
//! The known state survives failures. A broken watch resumes after the last seen version, that of a slice or
//! of a bookmark. The slices are listed again if the server has discarded that version, or sends an unusable
//! response. If the server rejects the credentials, the client is created anew and reads its files again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::WatchEvent;
use tokio::time::{Instant, timeout};

use super::KubernetesSource;
use super::api::{Api, Events, Failed, Page, bound};
use super::slices::{Slice, members};
use crate::discover::{Answer, Asking, Source, Told};
use crate::pull::chance;

/// The time in which changes are combined into one update.
const MOMENT: Duration = Duration::from_millis(20);
/// The maximum of that time if more changes follow.
const LONGEST_MOMENT: Duration = Duration::from_millis(250);
/// The minimum duration of a watch; if the server ends one sooner, the next one is delayed.
const SOON: Duration = Duration::from_secs(1);

/// The slices of one service.
pub(super) struct Watched {
    source: Arc<KubernetesSource>,
    /// The duration of one watch.
    window: Duration,
    /// The time without events after which a watch is dead; longer than the window.
    silent: Duration,
    api: Option<Api>,
    known: Option<Known>,
    watching: Option<Watching>,
    /// The slices of unsupported kinds that have been logged.
    odd: BTreeSet<String>,
}

pub(super) struct Known {
    version: String,
    pub(super) slices: BTreeMap<String, Slice>,
    /// The reason why they yield no members, if there is one.
    wrong: Option<String>,
    /// Whether they differ from the reported ones.
    pub(super) news: bool,
}

struct Watching {
    events: Events,
    since: Instant,
}

impl Watched {
    pub(super) fn new(source: KubernetesSource, window: Duration, silent: Duration) -> Self {
        let (api, known, watching) = (None, None, None);
        Self { source: Arc::new(source), window, silent, api, known, watching, odd: BTreeSet::new() }
    }

    /// Returns when there is something to report, or when the absence of changes is confirmed. The result is
    /// the time until the next query.
    async fn wait(&mut self) -> Result<Duration, Failed> {
        if self.known.as_ref().is_some_and(|known| known.news) {
            return Ok(Duration::ZERO);
        }
        let api = match &mut self.api {
            Some(api) => api,
            none => none.insert(Api::open(&self.source).await?),
        };
        let Some(known) = &mut self.known else {
            let Page { version, slices } = api.list().await?;
            self.known = Some(Known::new(version, slices));
            return Ok(Duration::ZERO);
        };
        let Watching { events, since } = match &mut self.watching {
            Some(watching) => watching,
            none => {
                let events = api.watch(&known.version, self.window).await?;
                none.insert(Watching { events, since: Instant::now() })
            }
        };
        let first = timeout(self.silent, events.next()).await.unwrap_or_else(|_| {
            Err(Failed::Else(format!("nothing was heard of its watch for {} s", self.silent.as_secs_f64())))
        });
        let Some(mut event) = first? else {
            let soon = since.elapsed() < SOON;
            self.watching = None;
            return Ok(if soon { SOON } else { Duration::ZERO });
        };
        let until = Instant::now() + LONGEST_MOMENT;
        loop {
            known.take(event)?;
            if !known.news || Instant::now() > until {
                return Ok(Duration::ZERO);
            }
            event = match timeout(MOMENT, events.next()).await {
                Err(_) => return Ok(Duration::ZERO),
                Ok(next) => match next? {
                    Some(event) => event,
                    None => {
                        self.watching = None;
                        return Ok(Duration::ZERO);
                    }
                },
            };
        }
    }

    /// Returns the update to report.
    fn tell(&mut self) -> Result<Told, String> {
        let Some(known) = self.known.as_mut().filter(|known| known.news) else {
            let wrong = self.known.as_ref().and_then(|known| known.wrong.clone());
            return wrong.map_or_else(|| Ok(Told::default()), Err);
        };
        known.news = false;
        for (name, slice) in known.slices.iter().filter(|(_, slice)| !slice.usable()) {
            if self.odd.insert(name.clone()) {
                let kind = slice.kind();
                tracing::warn!(
                    "{}: EndpointSlice {name} is passed over: its addresses are of the type {kind}",
                    self.source.service
                );
            }
        }
        self.odd.retain(|name| known.slices.contains_key(name));
        let told = members(&self.source, &known.slices);
        known.wrong = told.as_ref().err().cloned();
        told
    }
}

impl Source for Watched {
    fn ask(&mut self) -> Asking<'_> {
        Box::pin(async move {
            let good_for = match self.wait().await {
                Ok(wait) => wait,
                Err(failed) => {
                    self.watching = None;
                    match &failed {
                        Failed::Gone => {
                            self.known = None;
                            // Many balancers may receive this at once.
                            let good_for = SOON.mul_f64(chance());
                            return Ok(Answer { told: Told::default(), good_for });
                        }
                        Failed::Stranger(_) => (self.api, self.known) = (None, None),
                        Failed::Unclear(_) => self.known = None,
                        Failed::Else(_) => {}
                    }
                    return Err(failed.to_string());
                }
            };
            Ok(Answer { told: self.tell()?, good_for })
        })
    }
}

impl Known {
    /// Creates the state of a new list, not yet reported.
    pub(super) fn new(version: String, slices: BTreeMap<String, Slice>) -> Self {
        Self { version, slices, wrong: None, news: true }
    }

    /// Applies an event of the watch.
    pub(super) fn take(&mut self, event: WatchEvent<EndpointSlice>) -> Result<(), Failed> {
        let (slice, there) = match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => (slice, true),
            WatchEvent::Deleted(slice) => (slice, false),
            WatchEvent::Bookmark(bookmark) => {
                self.version = bookmark.metadata.resource_version;
                return Ok(());
            }
            WatchEvent::Error(status) if status.code == 410 => return Err(Failed::Gone),
            WatchEvent::Error(status) => {
                return Err(Failed::Unclear(format!(
                    "the watch was ended: {} ({})",
                    status.message, status.code
                )));
            }
        };
        let (Some(name), Some(version)) =
            (slice.metadata.name.clone(), slice.metadata.resource_version.clone())
        else {
            return Err(Failed::Unclear("an event of the watch names no EndpointSlice and version".into()));
        };
        self.version = version;
        // Most changes concern parts that are not used here.
        let after = there.then(|| Slice::from(slice));
        if self.slices.get(&name) == after.as_ref() {
            return Ok(());
        }
        self.news = true;
        match after {
            Some(slice) => drop(self.slices.insert(name, slice)),
            None => drop(self.slices.remove(&name)),
        }
        bound(&self.slices, self.slices.values().map(Slice::len).sum()).map_err(Failed::Unclear)
    }
}
