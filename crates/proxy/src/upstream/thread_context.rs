//! The context of one data-plane thread: timers, buffers, random numbers, pools.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_wire::http1::MarkedFields;
use rustix::io::Errno;

use crate::net::splice::PipePool;
use crate::runtime::clock::Clock;
use crate::runtime::executor::LocalExecutor;
use crate::runtime::resource_limits::{DescriptorPermit, ResourceLimits};
use crate::runtime::timer_wheel::TimerWheel;
use crate::upstream::access_log::AccessLogger;
use crate::upstream::group::SharedGroup;
use crate::upstream::pool::GroupPool;
use crate::upstream::trace::Tracer;

/// The size of a read, in bytes: a body of 64 KiB and its head arrive in one piece, which saves a receive and
/// a send.
pub(crate) const BUFFER: usize = 128 * 1024;
/// The number of vectors kept for reuse, and the maximum size of each.
const MAX_SPARE_VECTORS: usize = 256;
const MAX_SPARE_CAPACITY: usize = 16 * 1024;

/// Longer than a request travels from anywhere on earth.
pub(crate) const GOODBYE_GRACE: Duration = Duration::from_secs(1);

/// One thread's context; every task of the thread holds it.
pub(crate) struct ThreadContext {
    /// The index among the threads.
    pub(crate) index: usize,
    clock: Clock,
    now: Cell<Time>,
    pub(crate) wheel: Rc<TimerWheel>,
    pub(crate) sessions: Rc<LocalExecutor>,
    /// Whether listeners are closed and the requests in flight are the last of their connections.
    pub(crate) stopping: Cell<bool>,
    /// The time for which an idle client connection stays open after its listener has closed.
    pub(crate) idle_grace: Cell<Duration>,
    pub(crate) limits: Arc<ResourceLimits>,
    pub(crate) access_log: AccessLogger,
    pub(crate) tracer: Tracer,
    /// Whether requests are recorded, for the access log or for traces.
    pub(crate) is_recording: Cell<bool>,
    pub(crate) pipes: PipePool,
    buffer: RefCell<Box<[u8]>>,
    scratch: RefCell<Vec<u8>>,
    spare_vectors: RefCell<Vec<Vec<u8>>>,
    /// The marks of the head that is being read.
    pub(crate) marked_fields: RefCell<MarkedFields>,
    random_state: Cell<u64>,
    pools: RefCell<BTreeMap<Arc<str>, Rc<GroupPool>>>,
}

impl ThreadContext {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new(index: usize, clock: Clock, limits: Arc<ResourceLimits>) -> io::Result<Rc<Self>> {
        // The system seeds the standard library's hasher: random enough for a start value.
        let seed = std::hash::RandomState::new().build_hasher().finish();
        Ok(Rc::new(Self {
            index,
            clock,
            now: Cell::new(clock.now()),
            wheel: TimerWheel::new(clock),
            sessions: LocalExecutor::new()?,
            stopping: Cell::new(false),
            idle_grace: Cell::new(GOODBYE_GRACE),
            limits,
            access_log: AccessLogger::default(),
            tracer: Tracer::default(),
            is_recording: Cell::new(false),
            pipes: PipePool::default(),
            buffer: RefCell::new(vec![0; BUFFER].into_boxed_slice()),
            scratch: RefCell::default(),
            spare_vectors: RefCell::default(),
            marked_fields: RefCell::default(),
            random_state: Cell::new(seed),
            pools: RefCell::default(),
        }))
    }

    /// Returns the time at which an idle client connection ends whose listener is closed. Closed at once, it
    /// would lose a request that is already on its way. A request that arrives in time is served as the last.
    pub(crate) fn idle_deadline(&self) -> Time {
        self.tick() + self.idle_grace.get()
    }

    /// Reads the clock; callers do so after each external event.
    pub(crate) fn tick(&self) -> Time {
        let now = self.clock.now();
        self.now.set(now);
        now
    }

    /// Returns the time of the last clock reading, which serves for all that follows from the same event.
    pub(crate) fn now(&self) -> Time {
        self.now.get()
    }

    /// Updates whether requests are recorded from now on.
    pub(crate) fn update_recording(&self) {
        self.is_recording.set(self.access_log.is_enabled() || self.tracer.is_enabled());
    }

    /// Lends the read buffer and an empty vector. `work` must not call this again.
    pub(crate) fn with_buffers<R>(&self, action: impl FnOnce(&mut [u8], &mut Vec<u8>) -> R) -> R {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        action(&mut self.buffer.borrow_mut(), &mut scratch)
    }

    /// Returns an empty vector, which may have been used before.
    pub(crate) fn take_vector(&self) -> Vec<u8> {
        self.spare_vectors.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a vector back for reuse.
    pub(crate) fn recycle(&self, mut vector: Vec<u8>) {
        let mut spare_vectors = self.spare_vectors.borrow_mut();
        if spare_vectors.len() < MAX_SPARE_VECTORS && (1..=MAX_SPARE_CAPACITY).contains(&vector.capacity()) {
            vector.clear();
            spare_vectors.push(vector);
        }
    }

    /// Awaits `future`; `None` if it takes longer than `span`.
    pub(crate) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut timer = None;
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(outcome));
            }
            let timer = timer.get_or_insert_with(|| {
                let timer = self.wheel.timer(cx.waker());
                timer.set(self.tick() + limit);
                timer
            });
            if timer.fired() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Returns 64 random bits (splitmix64, Steele, Lea and Flood 2014).
    pub(crate) fn random_bits(&self) -> u64 {
        let state = self.random_state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random_state.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns this core's pool of a group.
    pub(crate) fn pool(&self, group: &Arc<SharedGroup>) -> Rc<GroupPool> {
        let mut pools = self.pools.borrow_mut();
        match pools.get(&group.name) {
            Some(pool) if Arc::ptr_eq(&pool.group, group) => Rc::clone(pool),
            _ => {
                let pool = GroupPool::new(Arc::clone(group), self.index);
                pools.insert(Arc::clone(&group.name), Rc::clone(&pool));
                pool
            }
        }
    }

    /// Drops the pools of groups that are no longer configured. Connections that still use a pool keep it
    /// alive.
    pub(crate) fn retain_pools(&self, keep: impl Fn(&str) -> bool) {
        self.pools.borrow_mut().retain(|name, pool| {
            let kept = keep(name);
            if !kept {
                pool.close();
            }
            kept
        });
    }

    /// Takes a descriptor for a connection to a member. Closes this core's idle connections if no descriptor
    /// is left.
    ///
    /// # Errors
    /// `EMFILE`: connections use all the descriptors that they may.
    pub(crate) fn descriptor(&self) -> io::Result<DescriptorPermit> {
        let permit = self.limits.descriptor().or_else(|| {
            self.pools.borrow().values().for_each(|pool| pool.close_idle());
            self.limits.descriptor()
        });
        permit.ok_or_else(|| Errno::MFILE.into())
    }

    pub(crate) fn sweep(&self) {
        let now = self.tick();
        self.pools.borrow().values().for_each(|pool| pool.sweep(now));
    }
}
