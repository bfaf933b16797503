//! Who does something when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use hyper::StatusCode;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Members that register at once. Some have names that take long to look up.
const MEMBERS: usize = 8;

pub(crate) struct Turns {
    /// One at a time: a reload during a drain is nobody's friend.
    order: Arc<Mutex<()>>,
    members: Arc<Semaphore>,
    /// Is that what is done?
    upgrade: Arc<AtomicBool>,
    /// One at a time: looks that ask others, or may take their time.
    pub(crate) looks: Mutex<()>,
}

/// Somebody's turn, for as long as it lives.
pub(crate) enum Turn {
    Order { _order: OwnedMutexGuard<()> },
    Member { _place: Option<OwnedSemaphorePermit> },
    Upgrade { _order: OwnedMutexGuard<()>, begun: Arc<AtomicBool> },
}

/// Not now, and why.
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

    /// What an operator does.
    ///
    /// # Errors
    /// An upgrade is under way: when it has ended another process is to be asked.
    pub(crate) async fn order(&self) -> Result<Turn, NotNow> {
        let over = || {
            let why = "an upgrade is under way: wait for its end";
            if self.upgrade.load(SeqCst) { Err((StatusCode::SERVICE_UNAVAILABLE, why)) } else { Ok(()) }
        };
        over()?;
        Ok(Turn::Order { _order: Arc::clone(&self.order).lock_owned().await })
    }

    /// What a member says of itself. Nobody who operates waits for that.
    pub(crate) async fn member(&self) -> Turn {
        // The semaphore is never closed; if it were, nobody would have to wait.
        Turn::Member { _place: Arc::clone(&self.members).acquire_owned().await.ok() }
    }

    /// An upgrade.
    ///
    /// # Errors
    /// Something else is done: nobody wants it done a while later, to another process.
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
