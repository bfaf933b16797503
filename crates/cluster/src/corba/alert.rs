//! Load alerts that are called when a member is to send its clients away, or need not any more
//! (`CosLoadBalancing::LoadAlert`), each by a task of its own.
//!
//! What is wanted and what was said are kept apart: a call that fails is made again, later each time, until it succeeds
//! or what is wanted changes. While an alert lasts it is said again every few seconds, so that a member that was started
//! again meanwhile hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_wire::giop::Ior;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Location;
use super::invoke::invoke;

/// Between two calls that fail, at first and at most.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Between two that say that an alert lasts.
const AGAIN: Duration = Duration::from_secs(5);

/// A load alert that is called until this is dropped.
#[derive(Debug)]
pub(super) struct Alert {
    pub(super) object: Ior,
    wanted: watch::Sender<bool>,
    /// Did the last call fail?
    lost: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Alert {
    /// For an object that has not been told anything yet.
    pub(super) fn start(runtime: &Handle, location: Location, object: Ior) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let (wanted, changes) = watch::channel(false);
        let task = runtime.spawn(tell(location, object.clone(), changes, Arc::clone(&lost)));
        Self { object, wanted, lost, task: task.abort_handle() }
    }

    /// From now on the member is to send its clients away, or not.
    pub(super) fn want(&self, alerted: bool) {
        self.wanted.send_replace(alerted);
    }

    /// Whether another may take its place: the last call to it failed.
    pub(super) fn lost(&self) -> bool {
        self.lost.load(Relaxed)
    }
}

impl Drop for Alert {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn tell(location: Location, object: Ior, mut wanted: watch::Receiver<bool>, lost: Arc<AtomicBool>) {
    let mut said = false;
    let mut wait = WAITS.0;
    loop {
        let alerted = *wanted.borrow_and_update();
        if !alerted && !said {
            // Nothing to say until something changes.
            if wanted.changed().await.is_err() {
                return;
            }
            wait = WAITS.0;
            continue;
        }
        // A call that failed may have been heard: the opposite has to be said then, too.
        let operation = if alerted { "enable_alert" } else { "disable_alert" };
        let outcome = invoke(&object, operation, |_| Ok(())).await;
        let before = lost.swap(outcome.is_err(), Relaxed);
        match outcome {
            Ok(()) => {
                if said != alerted || before {
                    tracing::info!("the load alert of {location} was told: {operation}");
                }
                said = alerted;
                wait = WAITS.0;
                if alerted {
                    let _ = timeout(AGAIN, wanted.changed()).await;
                }
            }
            Err(why) => {
                if !before {
                    tracing::warn!("the load alert of {location} cannot be told ({operation}): {why}");
                }
                said |= alerted;
                tokio::select! {
                    () = sleep(wait) => wait = (wait * 2).min(WAITS.1),
                    changed = wanted.changed() => match changed {
                        Ok(()) => wait = WAITS.0,
                        Err(_) => return,
                    },
                }
            }
        }
    }
}
