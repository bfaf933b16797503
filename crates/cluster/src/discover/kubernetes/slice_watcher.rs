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
use super::api::{ApiClient, ApiError, EventStream, SliceList, check_limits};
use super::slices::{ServiceSlice, members};
use crate::discover::{MemberList, MemberSource, QueryFuture, QueryOutcome};
use crate::scrape::random_unit;

/// The time in which changes are combined into one update.
const COALESCE_WINDOW: Duration = Duration::from_millis(20);
/// The maximum of that time if more changes follow.
const MAX_COALESCE_WINDOW: Duration = Duration::from_millis(250);
/// The minimum duration of a watch; if the server ends one sooner, the next one is delayed.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

/// The slices of one service.
pub(super) struct SliceWatcher {
    source: Arc<KubernetesSource>,
    /// The duration of one watch.
    window: Duration,
    /// The time without events after which a watch is dead; longer than the window.
    silence_limit: Duration,
    api: Option<ApiClient>,
    snapshot: Option<SliceSnapshot>,
    open_watch: Option<OpenWatch>,
    /// The slices of unsupported kinds that have been logged.
    logged_unsupported: BTreeSet<String>,
}

pub(super) struct SliceSnapshot {
    version: String,
    pub(super) slices: BTreeMap<String, ServiceSlice>,
    /// The reason why they yield no members, if there is one.
    problem: Option<String>,
    /// Whether they differ from the reported ones.
    pub(super) is_changed: bool,
}

struct OpenWatch {
    events: EventStream,
    since: Instant,
}

impl SliceWatcher {
    pub(super) fn new(source: KubernetesSource, window: Duration, silence_limit: Duration) -> Self {
        let (api, snapshot, open_watch) = (None, None, None);
        Self {
            source: Arc::new(source),
            window,
            silence_limit,
            api,
            snapshot,
            open_watch,
            logged_unsupported: BTreeSet::new(),
        }
    }

    /// Returns when there is something to report, or when the absence of changes is confirmed. The result is
    /// the time until the next query.
    async fn wait_for_update(&mut self) -> Result<Duration, ApiError> {
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.is_changed) {
            return Ok(Duration::ZERO);
        }
        let api = match &mut self.api {
            Some(api) => api,
            empty_slot => empty_slot.insert(ApiClient::open(&self.source).await?),
        };
        let Some(snapshot) = &mut self.snapshot else {
            let SliceList { version, slices } = api.list().await?;
            self.snapshot = Some(SliceSnapshot::new(version, slices));
            return Ok(Duration::ZERO);
        };
        let OpenWatch { events, since: opened_at } = match &mut self.open_watch {
            Some(open_watch) => open_watch,
            empty_slot => {
                let events = api.watch(&snapshot.version, self.window).await?;
                empty_slot.insert(OpenWatch { events, since: Instant::now() })
            }
        };
        let first = timeout(self.silence_limit, events.next()).await.unwrap_or_else(|_| {
            Err(ApiError::Other(format!("its watch sent nothing for {} s", self.silence_limit.as_secs_f64())))
        });
        let Some(mut event) = first? else {
            let ended_early = opened_at.elapsed() < MIN_WATCH_DURATION;
            self.open_watch = None;
            return Ok(if ended_early { MIN_WATCH_DURATION } else { Duration::ZERO });
        };
        let deadline = Instant::now() + MAX_COALESCE_WINDOW;
        loop {
            snapshot.apply(event)?;
            if !snapshot.is_changed || Instant::now() > deadline {
                return Ok(Duration::ZERO);
            }
            event = match timeout(COALESCE_WINDOW, events.next()).await {
                Err(_) => return Ok(Duration::ZERO),
                Ok(next_event) => match next_event? {
                    Some(event) => event,
                    None => {
                        self.open_watch = None;
                        return Ok(Duration::ZERO);
                    }
                },
            };
        }
    }

    /// Returns the update to report.
    fn build_update(&mut self) -> Result<MemberList, String> {
        let Some(snapshot) = self.snapshot.as_mut().filter(|snapshot| snapshot.is_changed) else {
            let problem = self.snapshot.as_ref().and_then(|snapshot| snapshot.problem.clone());
            return problem.map_or_else(|| Ok(MemberList::default()), Err);
        };
        snapshot.is_changed = false;
        for (name, slice) in snapshot.slices.iter().filter(|(_, slice)| !slice.is_usable()) {
            if self.logged_unsupported.insert(name.clone()) {
                let kind = slice.address_type();
                tracing::warn!(
                    "{}: EndpointSlice {name} is passed over: its addresses are of the type {kind}",
                    self.source.service
                );
            }
        }
        self.logged_unsupported.retain(|name| snapshot.slices.contains_key(name));
        let result = members(&self.source, &snapshot.slices);
        snapshot.problem = result.as_ref().err().cloned();
        result
    }
}

impl MemberSource for SliceWatcher {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let valid_for = match self.wait_for_update().await {
                Ok(delay) => delay,
                Err(error) => {
                    self.open_watch = None;
                    match &error {
                        ApiError::Gone => {
                            self.snapshot = None;
                            // Many balancers may receive this at once.
                            let valid_for = MIN_WATCH_DURATION.mul_f64(random_unit());
                            return Ok(QueryOutcome { list: MemberList::default(), valid_for });
                        }
                        ApiError::Unauthorized(_) => (self.api, self.snapshot) = (None, None),
                        ApiError::Unusable(_) => self.snapshot = None,
                        ApiError::Other(_) => {}
                    }
                    return Err(error.to_string());
                }
            };
            Ok(QueryOutcome { list: self.build_update()?, valid_for })
        })
    }
}

impl SliceSnapshot {
    /// Creates the state of a new list, not yet reported.
    pub(super) fn new(version: String, slices: BTreeMap<String, ServiceSlice>) -> Self {
        Self { version, slices, problem: None, is_changed: true }
    }

    /// Applies an event of the watch.
    pub(super) fn apply(&mut self, event: WatchEvent<EndpointSlice>) -> Result<(), ApiError> {
        let (slice, is_present) = match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => (slice, true),
            WatchEvent::Deleted(slice) => (slice, false),
            WatchEvent::Bookmark(bookmark) => {
                self.version = bookmark.metadata.resource_version;
                return Ok(());
            }
            WatchEvent::Error(status) if status.code == 410 => return Err(ApiError::Gone),
            WatchEvent::Error(status) => {
                return Err(ApiError::Unusable(format!(
                    "the watch was ended: {} ({})",
                    status.message, status.code
                )));
            }
        };
        let (Some(name), Some(version)) =
            (slice.metadata.name.clone(), slice.metadata.resource_version.clone())
        else {
            return Err(ApiError::Unusable(
                "an event of the watch names no EndpointSlice and version".into(),
            ));
        };
        self.version = version;
        // Most changes concern parts that are not used here.
        let new_slice = is_present.then(|| ServiceSlice::from(slice));
        if self.slices.get(&name) == new_slice.as_ref() {
            return Ok(());
        }
        self.is_changed = true;
        match new_slice {
            Some(slice) => drop(self.slices.insert(name, slice)),
            None => drop(self.slices.remove(&name)),
        }
        check_limits(&self.slices, self.slices.values().map(ServiceSlice::len).sum())
            .map_err(ApiError::Unusable)
    }
}
