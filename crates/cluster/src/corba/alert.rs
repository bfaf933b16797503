//! Load alerts, called when a member should shed its clients and when it need not any more
//! (`CosLoadBalancing::LoadAlert`), each by a task of its own.
//!
//! The wanted state and the last acknowledged one are separate. A failed call is repeated with a growing
//! pause until it succeeds or the wanted state changes. While an alert lasts it is repeated every few
//! seconds, so that a restarted member receives it.

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

/// The pause after a failed call, at first and at most.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The interval at which a lasting alert is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// A load alert, called until this is dropped.
#[derive(Debug)]
pub(super) struct Alert {
    pub(super) object: Ior,
    wanted: watch::Sender<bool>,
    /// Whether the last call failed.
    lost: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Alert {
    /// Starts the task for an object that has not been called yet.
    pub(super) fn start(runtime: &Handle, location: Location, object: Ior) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let (wanted, changes) = watch::channel(false);
        let task = runtime.spawn(tell(location, object.clone(), changes, Arc::clone(&lost)));
        Self { object, wanted, lost, task: task.abort_handle() }
    }

    /// Sets whether the member should shed its clients.
    pub(super) fn want(&self, alerted: bool) {
        self.wanted.send_replace(alerted);
    }

    /// Returns `true` if another object may replace this one: the last call to it failed.
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
            // There is nothing to send until the state changes.
            if wanted.changed().await.is_err() {
                return;
            }
            wait = WAITS.0;
            continue;
        }
        // A failed call may have been received, so the opposite must be sent then, too.
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
