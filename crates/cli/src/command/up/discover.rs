//! Groups with members from sources: each source is asked by a task of its own, and its members are put in
//! force.
//!
//! Before anything listens each source is asked once, for a bounded time. From then on changes are put in
//! force at most a few times a second: a source that changes all the time has a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Event;
use plimsoll_cluster::discover::{Heard, Kind, SourceSettings, follow};
use plimsoll_cluster::store::View;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::config::Discovery;
use crate::running::Running;
use crate::running::discovered::Discovered;
use crate::running::kept::Again;
use crate::running::registered::heard;
use crate::running::stored::Told;

/// The time for the first answers of all sources, before anything listens.
const FIRST: Duration = Duration::from_secs(5);

/// The time between two times that members are put in force.
const PAUSE: Duration = Duration::from_millis(250);

/// The time between two looks at the state of the store.
const LOOK: Duration = Duration::from_millis(250);

/// The time after a failure to put members in force.
const AGAIN: Duration = Duration::from_secs(5);

/// The number of answers that may wait: with more, sources wait, too.
const WAITING: usize = 64;

/// The sources that are asked.
pub(super) struct Followers {
    tasks: Vec<(Arc<str>, Arc<SourceSettings>, AbortHandle)>,
    to: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
    /// The events to be published as soon as the engine runs.
    events: Vec<Event>,
    /// The revision of the store when it was read.
    seen: i64,
}

impl Followers {
    /// Returns followers that ask no source yet.
    pub(super) fn new() -> Self {
        let (to, heard) = mpsc::channel(WAITING);
        Self { tasks: Vec::new(), to, heard, events: Vec::new(), seen: 0 }
    }

    /// Asks those sources, and no others. A source that is asked already is asked on.
    fn follow(&mut self, discoveries: &[Discovery]) {
        let mut before = std::mem::take(&mut self.tasks);
        for discovery in discoveries {
            // Registered members come from the store.
            for source in discovery.sources.iter().filter(|one| !matches!(one.kind, Kind::Registered(_))) {
                let same = |(group, other, _): &(Arc<str>, Arc<SourceSettings>, AbortHandle)| {
                    *group == discovery.group && **other == **source
                };
                let running = before.iter().position(same).map(|place| before.swap_remove(place));
                self.tasks.push(running.unwrap_or_else(|| {
                    let (group, source) = (Arc::clone(&discovery.group), Arc::clone(source));
                    let task = tokio::spawn(follow(Arc::clone(&group), Arc::clone(&source), self.to.clone()));
                    (group, source, task.abort_handle())
                }));
            }
        }
        before.into_iter().for_each(|(.., task)| task.abort());
    }

    /// Takes the registered members of the store.
    fn registered(&self, running: &Running, view: &View) {
        let told = heard(view, &running.discoveries());
        told.into_iter()
            .filter_map(|one| running.discovered().hear(one))
            .for_each(|event| running.engine().tell(event));
    }

    /// Asks each source once, for a bounded time.
    pub(super) async fn first(&mut self, discoveries: &[Discovery], discovered: &Discovered, kept: &View) {
        self.seen = kept.revision;
        self.events.extend(heard(kept, discoveries).into_iter().filter_map(|one| discovered.hear(one)));
        self.follow(discoveries);
        let all = async {
            while !discovered.all_asked() {
                match self.heard.recv().await {
                    Some(heard) => self.events.extend(discovered.hear(heard)),
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
    pub(super) async fn all(mut self, running: Arc<Running>) {
        self.events.drain(..).for_each(|event| running.engine().tell(event));
        let mut views = running.store().views();
        if views.borrow().revision != self.seen {
            // Other balancers wrote something since the store was read.
            views.mark_changed();
        }
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Told::default();
        // The time of the next change, and the earliest time for it.
        let (mut due, mut not_before) = (None::<Instant>, Instant::now());
        loop {
            let next = due.or_else(|| running.discovered().due().map(Instant::from_std));
            let wait = async {
                match next {
                    Some(next) => sleep_until(next.max(not_before)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = self.heard.recv() => {
                    let Some(heard) = heard else { return };
                    if let Some(event) = running.discovered().hear(heard) {
                        running.engine().tell(event);
                    }
                    due.get_or_insert_with(Instant::now);
                }
                Ok(()) = views.changed() => {
                    let view = Arc::clone(&views.borrow_and_update());
                    self.registered(&running, &view);
                    let own = Arc::clone(&running);
                    // The task waits for locks, and for the notification of a drain.
                    let follow = move || {
                        own.follow_document();
                        own.keep(Again::Nothing);
                    };
                    drop(spawn_blocking(follow).await);
                    due.get_or_insert_with(Instant::now);
                }
                // Nothing in it waits, not even for a disk.
                _ = ticks.tick() => running.tell_of_store(&mut told),
                () = running.sources_changed() => {
                    self.follow(&running.discoveries());
                    let view = running.store().view();
                    self.registered(&running, &view);
                    due.get_or_insert_with(Instant::now);
                }
                () = wait => {
                    due = None;
                    not_before = Instant::now() + PAUSE;
                    let running = Arc::clone(&running);
                    // The task waits for a lock, as a reload does.
                    let outcome = spawn_blocking(move || running.find()).await;
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

impl Drop for Followers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(.., task)| task.abort());
    }
}
