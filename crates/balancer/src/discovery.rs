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
const FIRST: Duration = Duration::from_secs(5);

/// The time between two times that members are put in force.
const PAUSE: Duration = Duration::from_millis(250);

/// The time between two looks at the state of the store.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The time after a failure to put members in force.
const AGAIN: Duration = Duration::from_secs(5);

/// The number of answers that may wait: with more, sources wait, too.
const WAITING: usize = 64;

/// The sources that are asked.
pub(super) struct DiscoveryTasks {
    tasks: Vec<(Arc<str>, Arc<SourceSettings>, AbortHandle)>,
    to: mpsc::Sender<SourceUpdate>,
    heard: mpsc::Receiver<SourceUpdate>,
    /// The events to be published as soon as the engine runs.
    events: Vec<Event>,
    /// The revision of the store when it was read.
    store_revision: i64,
}

impl DiscoveryTasks {
    /// Returns followers that ask no source yet.
    pub(super) fn new() -> Self {
        let (to, heard) = mpsc::channel(WAITING);
        Self { tasks: Vec::new(), to, heard, events: Vec::new(), store_revision: 0 }
    }

    /// Asks those sources, and no others. A source that is asked already is asked on.
    fn follow_sources(&mut self, discoveries: &[GroupDiscovery]) {
        let mut before = std::mem::take(&mut self.tasks);
        for discovery in discoveries {
            // Registered members come from the store.
            for source in
                discovery.sources.iter().filter(|one| !matches!(one.kind, SourceKind::Registered(_)))
            {
                let same = |(group, other, _): &(Arc<str>, Arc<SourceSettings>, AbortHandle)| {
                    *group == discovery.group && **other == **source
                };
                let running = before.iter().position(same).map(|place| before.swap_remove(place));
                self.tasks.push(running.unwrap_or_else(|| {
                    let (group, source) = (Arc::clone(&discovery.group), Arc::clone(source));
                    let task =
                        tokio::spawn(poll_source(Arc::clone(&group), Arc::clone(&source), self.to.clone()));
                    (group, source, task.abort_handle())
                }));
            }
        }
        before.into_iter().for_each(|(.., task)| task.abort());
    }

    /// Takes the registered members of the store.
    fn take_registered(&self, running: &BalancerRuntime, view: &StoreSnapshot) {
        let told = registered_answers(view, &running.discoveries());
        told.into_iter()
            .filter_map(|one| running.discovered().record_answer(one))
            .for_each(|event| running.engine().write_event(event));
    }

    /// Asks each source once, for a bounded time.
    pub(super) async fn ask_all_once(
        &mut self,
        discoveries: &[GroupDiscovery],
        discovered: &DiscoveryState,
        kept: &StoreSnapshot,
    ) {
        self.store_revision = kept.revision;
        self.events.extend(
            registered_answers(kept, discoveries).into_iter().filter_map(|one| discovered.record_answer(one)),
        );
        self.follow_sources(discoveries);
        let all = async {
            while !discovered.all_answered() {
                match self.heard.recv().await {
                    Some(heard) => self.events.extend(discovered.record_answer(heard)),
                    None => return,
                }
            }
        };
        if timeout(FIRST, all).await.is_err() {
            tracing::warn!(
                "some sources of members have not answered within {} s: going on with what is known of them",
                FIRST.as_secs()
            );
        }
        // The members are in force from the first moment.
        let proposal = discovered.propose(None);
        self.events.extend(discovered.accept(proposal, None));
    }

    /// Puts changes in force, for ever.
    pub(super) async fn apply_changes(mut self, running: Arc<BalancerRuntime>) {
        self.events.drain(..).for_each(|event| running.engine().write_event(event));
        let mut views = running.store().snapshots();
        if views.borrow().revision != self.store_revision {
            // Other balancers wrote something since the store was read.
            views.mark_changed();
        }
        let mut ticks = interval(STORE_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = StoreFaults::default();
        // The time of the next change, and the earliest time for it.
        let (mut due, mut not_before) = (None::<Instant>, Instant::now());
        loop {
            let next = due.or_else(|| running.discovered().next_change_at().map(Instant::from_std));
            let wait = async {
                match next {
                    Some(next) => sleep_until(next.max(not_before)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = self.heard.recv() => {
                    let Some(heard) = heard else { return };
                    if let Some(event) = running.discovered().record_answer(heard) {
                        running.engine().write_event(event);
                    }
                    due.get_or_insert_with(Instant::now);
                }
                Ok(()) = views.changed() => {
                    let view = Arc::clone(&views.borrow_and_update());
                    self.take_registered(&running, &view);
                    let own = Arc::clone(&running);
                    // The task waits for locks, and for the notification of a drain.
                    let follow = move || {
                        own.apply_shared_config();
                        own.reapply_actions(Reapply::Nothing);
                    };
                    drop(spawn_blocking(follow).await);
                    due.get_or_insert_with(Instant::now);
                }
                // Nothing in it waits, not even for a disk.
                _ = ticks.tick() => running.report_store_health(&mut told),
                () = running.sources_changed() => {
                    self.follow_sources(&running.discoveries());
                    let view = running.store().snapshot();
                    self.take_registered(&running, &view);
                    due.get_or_insert_with(Instant::now);
                }
                () = wait => {
                    due = None;
                    not_before = Instant::now() + PAUSE;
                    let running = Arc::clone(&running);
                    // The task waits for a lock, as a reload does.
                    let outcome = spawn_blocking(move || running.apply_discovered()).await;
                    if let Ok(Err(why)) = outcome {
                        tracing::error!("members that were found cannot be put in force: {why}");
                        not_before = Instant::now() + AGAIN;
                        due = Some(not_before);
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
