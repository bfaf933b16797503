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
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The interval at which a lasting alert is repeated.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);

/// A load alert, called until this is dropped.
#[derive(Debug)]
pub(super) struct LoadAlert {
    pub(super) object: Ior,
    alerted: watch::Sender<bool>,
    /// Whether the last call failed.
    has_failed: Arc<AtomicBool>,
    task: AbortHandle,
}

impl LoadAlert {
    /// Starts the task for an object that has not been called yet.
    pub(super) fn start(runtime: &Handle, location: Location, object: Ior) -> Self {
        let has_failed = Arc::new(AtomicBool::new(false));
        let (alerted, alerted_receiver) = watch::channel(false);
        let task =
            runtime.spawn(deliver_alert(location, object.clone(), alerted_receiver, Arc::clone(&has_failed)));
        Self { object, alerted, has_failed, task: task.abort_handle() }
    }

    /// Sets whether the member should shed its clients.
    pub(super) fn set_alerted(&self, alerted: bool) {
        self.alerted.send_replace(alerted);
    }

    /// Returns `true` if another object may replace this one: the last call to it failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }
}

impl Drop for LoadAlert {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn deliver_alert(
    location: Location,
    object: Ior,
    mut alerted_receiver: watch::Receiver<bool>,
    has_failed: Arc<AtomicBool>,
) {
    let mut is_delivered = false;
    let mut pause = RETRY_PAUSES.0;
    loop {
        let alerted = *alerted_receiver.borrow_and_update();
        if !alerted && !is_delivered {
            // There is nothing to send until the state changes.
            if alerted_receiver.changed().await.is_err() {
                return;
            }
            pause = RETRY_PAUSES.0;
            continue;
        }
        // A failed call may have been received, so the opposite must be sent then, too.
        let operation = if alerted { "enable_alert" } else { "disable_alert" };
        let outcome = invoke(&object, operation, |_| Ok(())).await;
        let had_failed = has_failed.swap(outcome.is_err(), Relaxed);
        match outcome {
            Ok(()) => {
                if is_delivered != alerted || had_failed {
                    tracing::info!("the load alert of {location} was told: {operation}");
                }
                is_delivered = alerted;
                pause = RETRY_PAUSES.0;
                if alerted {
                    let _ = timeout(REPEAT_INTERVAL, alerted_receiver.changed()).await;
                }
            }
            Err(error) => {
                if !had_failed {
                    tracing::warn!("the load alert of {location} cannot be told ({operation}): {error}");
                }
                is_delivered |= alerted;
                tokio::select! {
                    () = sleep(pause) => pause = (pause * 2).min(RETRY_PAUSES.1),
                    changed = alerted_receiver.changed() => match changed {
                        Ok(()) => pause = RETRY_PAUSES.0,
                        Err(_) => return,
                    },
                }
            }
        }
    }
}
