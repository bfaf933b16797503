//! Locks between threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, and ignores poisoning: no thread that panicked with the lock has left a state that is worse
/// than ending.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
