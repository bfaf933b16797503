//! The same with each of many seeds, on all processors: runs know nothing of each other.

use std::ops::Range;
use std::sync::Mutex;
use std::thread;

/// What `work` makes of each seed, in the order of the seeds, whoever was done first: sums over them are always the same.
/// Panics if one does; what is begun ends before that, and no more is begun.
pub(crate) fn each<T: Send>(seeds: Range<u64>, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let left = Mutex::new(seeds);
    let done = Mutex::new(Vec::new());
    let take = || left.lock().ok().and_then(|mut left| left.next());
    let worker = || {
        while let Some(seed) = take() {
            let _stop = Stop(&left);
            let result = work(seed);
            done.lock().expect("nobody fails while holding it").push((seed, result));
        }
    };
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            // What fails is said by the name of the test.
            thread::Builder::new().name(name.clone()).spawn_scoped(scope, worker).expect("a thread");
        }
    });
    let mut done = done.into_inner().expect("nobody failed while holding it");
    done.sort_by_key(|(seed, _)| *seed);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Leaves no seed to the others when the work with one has failed.
struct Stop<'a>(&'a Mutex<Range<u64>>);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if thread::panicking()
            && let Ok(mut left) = self.0.lock()
        {
            left.start = left.end;
        }
    }
}
