//! Groups with members from sources: each source is asked by a task of its own, and its members are put in
//! force.
//!
//! Before anything listens each source is asked once, for a bounded time. From then on changes are put in
//! force at most a few times a second: a source that changes all the time has a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Event;
use plimsoll_cluster::discover::{SourceKind, SourceSettings, SourceUpdate, poll_source};
use plimsoll_cluster::store::StoreSnapshot;
use plimsoll_config::GroupDiscovery;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::runtime::BalancerRuntime;
use crate::runtime::discovery_state::DiscoveryState;
use crate::runtime::operator_state::Reapply;
use crate::runtime::registered::registered_answers;
use crate::runtime::store_health::StoreFaults;

/// The time for the first answers of all sources, before anything listens.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two times that members are put in force.
const MIN_APPLY_INTERVAL: Duration = Duration::from_millis(250);

/// The time between two looks at the state of the store.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The time after a failure to put members in force.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The number of answers that may wait: with more, sources wait, too.
const UPDATE_QUEUE_LEN: usize = 64;

/// The sources that are asked.
pub(super) struct DiscoveryTasks {
    tasks: Vec<(Arc<str>, Arc<SourceSettings>, AbortHandle)>,
    sender: mpsc::Sender<SourceUpdate>,
    updates: mpsc::Receiver<SourceUpdate>,
    /// The events to be published as soon as the engine runs.
    events: Vec<Event>,
    /// The revision of the store when it was read.
    store_revision: i64,
}

impl DiscoveryTasks {
    /// Returns followers that ask no source yet.
    pub(super) fn new() -> Self {
        let (sender, updates) = mpsc::channel(UPDATE_QUEUE_LEN);
        Self { tasks: Vec::new(), sender, updates, events: Vec::new(), store_revision: 0 }
    }

    /// Asks those sources, and no others. A source that is asked already is asked on.
    fn follow_sources(&mut self, discoveries: &[GroupDiscovery]) {
        let mut previous_tasks = std::mem::take(&mut self.tasks);
        for discovery in discoveries {
            // Registered members come from the store.
            for source in discovery
                .sources
                .iter()
                .filter(|candidate| !matches!(candidate.kind, SourceKind::Registered(_)))
            {
                let is_same_source = |(group, other, _): &(Arc<str>, Arc<SourceSettings>, AbortHandle)| {
                    *group == discovery.group && **other == **source
                };
                let existing_task = previous_tasks
                    .iter()
                    .position(is_same_source)
                    .map(|index| previous_tasks.swap_remove(index));
                self.tasks.push(existing_task.unwrap_or_else(|| {
                    let (group, source) = (Arc::clone(&discovery.group), Arc::clone(source));
                    let task = tokio::spawn(poll_source(
                        Arc::clone(&group),
                        Arc::clone(&source),
                        self.sender.clone(),
                    ));
                    (group, source, task.abort_handle())
                }));
            }
        }
        previous_tasks.into_iter().for_each(|(.., task)| task.abort());
    }

    /// Takes the registered members of the store.
    fn take_registered(&self, balancer: &BalancerRuntime, view: &StoreSnapshot) {
        let answers = registered_answers(view, &balancer.discoveries());
        answers
            .into_iter()
            .filter_map(|answer| balancer.discovered().record_answer(answer))
            .for_each(|event| balancer.engine().write_event(event));
    }

    /// Asks each source once, for a bounded time.
    pub(super) async fn ask_all_once(
        &mut self,
        discoveries: &[GroupDiscovery],
        discovered: &DiscoveryState,
        snapshot: &StoreSnapshot,
    ) {
        self.store_revision = snapshot.revision;
        self.events.extend(
            registered_answers(snapshot, discoveries)
                .into_iter()
                .filter_map(|answer| discovered.record_answer(answer)),
        );
        self.follow_sources(discoveries);
        let first_answers = async {
            while !discovered.all_answered() {
                match self.updates.recv().await {
                    Some(update) => self.events.extend(discovered.record_answer(update)),
                    None => return,
                }
            }
        };
        if timeout(FIRST_ANSWERS_TIMEOUT, first_answers).await.is_err() {
            tracing::warn!(
                "some sources of members have not answered within {} s: going on with what is known of them",
                FIRST_ANSWERS_TIMEOUT.as_secs()
            );
        }
        // The members are in force from the first moment.
        let proposal = discovered.propose(None);
        self.events.extend(discovered.accept(proposal, None));
    }

    /// Puts changes in force, for ever.
    pub(super) async fn apply_changes(mut self, balancer: Arc<BalancerRuntime>) {
        self.events.drain(..).for_each(|event| balancer.engine().write_event(event));
        let mut views = balancer.store().snapshots();
        if views.borrow().revision != self.store_revision {
            // Other balancers wrote something since the store was read.
            views.mark_changed();
        }
        let mut ticks = interval(STORE_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported_faults = StoreFaults::default();
        // The time of the next change, and the earliest time for it.
        let (mut apply_at, mut not_before) = (None::<Instant>, Instant::now());
        loop {
            let next_apply =
                apply_at.or_else(|| balancer.discovered().next_change_at().map(Instant::from_std));
            let wait = async {
                match next_apply {
                    Some(instant) => sleep_until(instant.max(not_before)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                update = self.updates.recv() => {
                    let Some(update) = update else { return };
                    if let Some(event) = balancer.discovered().record_answer(update) {
                        balancer.engine().write_event(event);
                    }
                    apply_at.get_or_insert_with(Instant::now);
                }
                Ok(()) = views.changed() => {
                    let view = Arc::clone(&views.borrow_and_update());
                    self.take_registered(&balancer, &view);
                    let owned_balancer = Arc::clone(&balancer);
                    // The task waits for locks, and for the notification of a drain.
                    let apply = move || {
                        owned_balancer.apply_shared_config();
                        owned_balancer.reapply_actions(Reapply::Nothing);
                    };
                    drop(spawn_blocking(apply).await);
                    apply_at.get_or_insert_with(Instant::now);
                }
                // Nothing in it waits, not even for a disk.
                _ = ticks.tick() => balancer.report_store_health(&mut reported_faults),
                () = balancer.sources_changed() => {
                    self.follow_sources(&balancer.discoveries());
                    let view = balancer.store().snapshot();
                    self.take_registered(&balancer, &view);
                    apply_at.get_or_insert_with(Instant::now);
                }
                () = wait => {
                    apply_at = None;
                    not_before = Instant::now() + MIN_APPLY_INTERVAL;
                    let balancer = Arc::clone(&balancer);
                    // The task waits for a lock, as a reload does.
                    let outcome = spawn_blocking(move || balancer.apply_discovered()).await;
                    if let Ok(Err(error)) = outcome {
                        tracing::error!("members that were found cannot be put in force: {error}");
                        not_before = Instant::now() + RETRY_DELAY;
                        apply_at = Some(not_before);
                    }
                }
            }
        }
    }
}

impl Drop for DiscoveryTasks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(.., task)| task.abort());
    }
}
