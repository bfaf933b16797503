//! Serializes operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use hyper::StatusCode;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// The maximum number of concurrent registrations. Some members' names take long to resolve.
const MAX_REGISTRATIONS: usize = 8;

pub(crate) struct OperationLocks {
    /// The lock for one operation at a time: a reload must not run during a drain.
    operator: Arc<Mutex<()>>,
    members: Arc<Semaphore>,
    /// Whether the operation in progress is an upgrade.
    upgrade: Arc<AtomicBool>,
    /// The lock for one query at a time, for those that are slow or query others.
    pub(crate) slow_query: Mutex<()>,
}

/// The guard of an operation in progress.
pub(crate) enum OperationGuard {
    Operator { _order: OwnedMutexGuard<()> },
    Member { _place: Option<OwnedSemaphorePermit> },
    Upgrade { _order: OwnedMutexGuard<()>, begun: Arc<AtomicBool> },
}

/// A rejection with its reason.
type BusyRejection = (StatusCode, &'static str);

impl OperationLocks {
    pub(crate) fn new() -> Self {
        Self {
            operator: Arc::default(),
            members: Arc::new(Semaphore::new(MAX_REGISTRATIONS)),
            upgrade: Arc::default(),
            slow_query: Mutex::default(),
        }
    }

    /// Begins an operator's operation, after the current one.
    ///
    /// # Errors
    /// An upgrade is in progress: afterwards another process is responsible.
    pub(crate) async fn lock_operator(&self) -> Result<OperationGuard, BusyRejection> {
        let check_upgrade = || {
            let why = "an upgrade is under way: wait for its end";
            if self.upgrade.load(SeqCst) { Err((StatusCode::SERVICE_UNAVAILABLE, why)) } else { Ok(()) }
        };
        check_upgrade()?;
        Ok(OperationGuard::Operator { _order: Arc::clone(&self.operator).lock_owned().await })
    }

    /// Begins a member's operation, which never delays operators.
    pub(crate) async fn lock_member(&self) -> OperationGuard {
        // The semaphore is never closed; if it were, no waiting would be necessary.
        OperationGuard::Member { _place: Arc::clone(&self.members).acquire_owned().await.ok() }
    }

    /// Begins an upgrade.
    ///
    /// # Errors
    /// Another operation is in progress: the command must not be delayed until another process runs.
    pub(crate) fn lock_upgrade(&self) -> Result<OperationGuard, BusyRejection> {
        let operator_guard = Arc::clone(&self.operator).try_lock_owned().map_err(|_| {
            (StatusCode::CONFLICT, "an upgrade or another command is under way: wait for its end")
        })?;
        self.upgrade.store(true, SeqCst);
        Ok(OperationGuard::Upgrade { _order: operator_guard, begun: Arc::clone(&self.upgrade) })
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        if let Self::Upgrade { begun: is_upgrading, .. } = self {
            is_upgrading.store(false, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_an_upgrade_or_for_members() {
        let locks = OperationLocks::new();
        let fill_slots = async || {
            let mut guards = Vec::new();
            for _ in 0..MAX_REGISTRATIONS {
                guards.push(locks.lock_member().await);
            }
            guards
        };
        let members = fill_slots().await;
        let operator_guard = locks.lock_operator().await;
        assert!(operator_guard.is_ok());
        assert_eq!(locks.lock_upgrade().err().map(|(status, _)| status), Some(StatusCode::CONFLICT));
        drop((operator_guard, members));
        let upgrade = locks.lock_upgrade();
        assert!(upgrade.is_ok());
        let (status, why) = locks.lock_operator().await.err().unwrap();
        assert_eq!(
            (status, why),
            (StatusCode::SERVICE_UNAVAILABLE, "an upgrade is under way: wait for its end")
        );
        drop((fill_slots().await, upgrade));
        assert!(locks.lock_operator().await.is_ok(), "it failed, or another process is to be asked");
    }
}
