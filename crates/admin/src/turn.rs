//! Serializes operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use hyper::StatusCode;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// The maximum number of concurrent registrations. Some members' names take long to resolve.
const MEMBERS: usize = 8;

pub(crate) struct Turns {
    /// The lock for one operation at a time: a reload must not run during a drain.
    order: Arc<Mutex<()>>,
    members: Arc<Semaphore>,
    /// Whether the operation in progress is an upgrade.
    upgrade: Arc<AtomicBool>,
    /// The lock for one query at a time, for those that are slow or query others.
    pub(crate) looks: Mutex<()>,
}

/// The guard of an operation in progress.
pub(crate) enum Turn {
    Order { _order: OwnedMutexGuard<()> },
    Member { _place: Option<OwnedSemaphorePermit> },
    Upgrade { _order: OwnedMutexGuard<()>, begun: Arc<AtomicBool> },
}

/// A rejection with its reason.
type NotNow = (StatusCode, &'static str);

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            order: Arc::default(),
            members: Arc::new(Semaphore::new(MEMBERS)),
            upgrade: Arc::default(),
            looks: Mutex::default(),
        }
    }

    /// Begins an operator's operation, after the current one.
    ///
    /// # Errors
    /// An upgrade is in progress: afterwards another process is responsible.
    pub(crate) async fn order(&self) -> Result<Turn, NotNow> {
        let over = || {
            let why = "an upgrade is under way: wait for its end";
            if self.upgrade.load(SeqCst) { Err((StatusCode::SERVICE_UNAVAILABLE, why)) } else { Ok(()) }
        };
        over()?;
        Ok(Turn::Order { _order: Arc::clone(&self.order).lock_owned().await })
    }

    /// Begins a member's operation, which never delays operators.
    pub(crate) async fn member(&self) -> Turn {
        // The semaphore is never closed; if it were, no waiting would be necessary.
        Turn::Member { _place: Arc::clone(&self.members).acquire_owned().await.ok() }
    }

    /// Begins an upgrade.
    ///
    /// # Errors
    /// Another operation is in progress: the command must not be delayed until another process runs.
    pub(crate) fn upgrade(&self) -> Result<Turn, NotNow> {
        let order = Arc::clone(&self.order).try_lock_owned().map_err(|_| {
            (StatusCode::CONFLICT, "an upgrade or another command is under way: wait for its end")
        })?;
        self.upgrade.store(true, SeqCst);
        Ok(Turn::Upgrade { _order: order, begun: Arc::clone(&self.upgrade) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Self::Upgrade { begun, .. } = self {
            begun.store(false, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_an_upgrade_or_for_members() {
        let turns = Turns::new();
        let all = async || {
            let mut all = Vec::new();
            for _ in 0..MEMBERS {
                all.push(turns.member().await);
            }
            all
        };
        let members = all().await;
        let order = turns.order().await;
        assert!(order.is_ok());
        assert_eq!(turns.upgrade().err().map(|(status, _)| status), Some(StatusCode::CONFLICT));
        drop((order, members));
        let upgrade = turns.upgrade();
        assert!(upgrade.is_ok());
        let (status, why) = turns.order().await.err().unwrap();
        assert_eq!(
            (status, why),
            (StatusCode::SERVICE_UNAVAILABLE, "an upgrade is under way: wait for its end")
        );
        drop((all().await, upgrade));
        assert!(turns.order().await.is_ok(), "it failed, or another process is to be asked");
    }
}
