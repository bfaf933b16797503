//! Load monitors that are polled for their loads (`CosLoadBalancing::LoadMonitor`), each by a task of its
//! own.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use plimsoll_brain::hash;
use plimsoll_wire::giop::{GiopError, Ior};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::Location;
use super::call::read_loads;
use super::invoke::invoke;
use super::servant::Servant;

/// A monitor, polled until this is dropped.
#[derive(Debug)]
pub(super) struct LoadMonitor {
    pub(super) object: Ior,
    /// Whether the last poll failed.
    has_failed: Arc<AtomicBool>,
    task: AbortHandle,
}

impl LoadMonitor {
    /// Polls at once, and then once per interval. Each pause has a jitter of a tenth, so that monitors are
    /// not polled in step.
    pub(super) fn start(
        runtime: &Handle,
        servant: Weak<Servant>,
        location: Location,
        object: Ior,
        interval: Duration,
    ) -> Self {
        let has_failed = Arc::new(AtomicBool::new(false));
        let task =
            runtime.spawn(poll_loads(servant, location, object.clone(), interval, Arc::clone(&has_failed)));
        Self { object, has_failed, task: task.abort_handle() }
    }

    /// Returns `true` if another monitor may replace this one: the last poll of it failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }
}

impl Drop for LoadMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn poll_loads(
    servant: Weak<Servant>,
    location: Location,
    object: Ior,
    interval: Duration,
    has_failed: Arc<AtomicBool>,
) {
    let mut round: u64 = 0;
    loop {
        let started_at = Instant::now();
        let outcome = invoke(&object, "_get_loads", |reader| {
            read_loads(reader)?.ok_or(GiopError::Malformed("its loads are too many, or no finite numbers"))
        })
        .await;
        let Some(servant) = servant.upgrade() else { return };
        let had_failed = has_failed.swap(outcome.is_err(), Relaxed);
        match outcome {
            Ok(loads) => {
                if had_failed {
                    tracing::info!("the load monitor of {location} answers again");
                }
                servant.record_loads(location.clone(), loads).await;
            }
            Err(error) if !had_failed => {
                tracing::warn!("the load monitor of {location} gives no loads: {error}")
            }
            Err(_) => {}
        }
        drop(servant);
        round += 1;
        let jitter =
            f64::from(u8::try_from(hash(format!("{location} {round}").as_bytes()) >> 56).unwrap_or(0))
                / 255.0;
        sleep_until(started_at + interval.mul_f64(0.9 + 0.2 * jitter)).await;
    }
}
