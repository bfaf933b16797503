//! Runs with many seeds, or names, on all processors: runs are independent of each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Returns the result of `work` for each item, in the order of the items, whatever the order of their ends:
/// sums over them are always the same. Panics if one does; running ones end before that, and no more are
/// begun.
pub(crate) fn each<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    let items: Vec<I> = items.into_iter().collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let left = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let failed = AtomicBool::new(false);
    let take = || {
        let mut left = left.lock().expect("an iterator does not fail");
        left.next().filter(|_| !failed.load(Ordering::Relaxed))
    };
    let worker = || {
        let _watch = Watch(&failed);
        while let Some((place, item)) = take() {
            let result = work(item);
            done.lock().expect("nobody fails while holding it").push((place, result));
        }
    };
    // A failure has the name of the test.
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::scope(|scope| {
        for _ in 0..threads {
            thread::Builder::new().name(name.clone()).spawn_scoped(scope, worker).expect("a thread");
        }
    });
    let mut done = done.into_inner().expect("nobody failed while holding it");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A guard that records that its thread has failed.
struct Watch<'a>(&'a AtomicBool);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}
