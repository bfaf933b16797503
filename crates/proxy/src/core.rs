//! The context of one data-plane thread: timers, buffers, random numbers, pools.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_wire::http1::Marks;
use rustix::io::Errno;

use crate::access::Access;
use crate::clock::Clock;
use crate::group::Group;
use crate::memory::MemoryBudget;
use crate::pool::Pool;
use crate::sessions::Sessions;
use crate::splice::Pipes;
use crate::trace::Tracer;
use crate::wheel::Wheel;

/// The size of a read, in bytes: a body of 64 KiB and its head arrive in one piece, which saves a receive and
/// a send.
pub(crate) const BUFFER: usize = 128 * 1024;
/// The number of vectors kept for reuse, and the maximum size of each.
const SPARE: usize = 256;
const SPARE_BYTES: usize = 16 * 1024;

/// Longer than a request travels from anywhere on earth.
pub(crate) const PARTING: Duration = Duration::from_secs(1);

/// One thread's context; every task of the thread holds it.
pub(crate) struct Core {
    /// The index among the threads.
    pub(crate) index: usize,
    clock: Clock,
    now: Cell<Time>,
    pub(crate) wheel: Rc<Wheel>,
    pub(crate) sessions: Rc<Sessions>,
    /// Whether listeners are closed and the requests in flight are the last of their connections.
    pub(crate) stopping: Cell<bool>,
    /// The time for which an idle client connection stays open after its listener has closed.
    pub(crate) parting: Cell<Duration>,
    pub(crate) census: Arc<Census>,
    pub(crate) access: Access,
    pub(crate) tracer: Tracer,
    /// Whether requests are recorded, for the access log or for traces.
    pub(crate) noting: Cell<bool>,
    pub(crate) pipes: Pipes,
    buffer: RefCell<Box<[u8]>>,
    scratch: RefCell<Vec<u8>>,
    spare: RefCell<Vec<Vec<u8>>>,
    /// The marks of the head that is being read.
    pub(crate) marks: RefCell<Marks>,
    chance: Cell<u64>,
    pools: RefCell<BTreeMap<Arc<str>, Rc<Pool>>>,
}

/// The client connections of all threads, the datagram flows (unlimited here), and the descriptors of
/// connections to clients and members.
pub(crate) struct Census {
    open: AtomicUsize,
    flows: AtomicUsize,
    pub(crate) most: AtomicUsize,
    descriptors: AtomicUsize,
    /// The budget of the bytes that peers make this process keep.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The maximum number of descriptors for connections: the process's limit less those for health checks,
    /// the admin side and files.
    pub(crate) most_descriptors: AtomicUsize,
}

/// The descriptor of one connection to a member, while this is held.
pub(crate) struct Descriptor(Arc<Census>);

/// An admitted client connection.
pub(crate) struct Guest(Arc<Census>);

/// A datagram flow. Graceful shutdown waits for it as for connections.
pub(crate) struct FlowGuest(Arc<Census>);

impl Census {
    pub(crate) fn new(most: usize, most_descriptors: usize, memory: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryBudget::new(memory),
            open: AtomicUsize::new(0),
            flows: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
            descriptors: AtomicUsize::new(0),
            most_descriptors: AtomicUsize::new(most_descriptors),
        })
    }

    /// Counts another descriptor, and returns `true` if one was free.
    fn take(&self) -> bool {
        let free = self.descriptors.fetch_add(1, Relaxed) < self.most_descriptors.load(Relaxed);
        if !free {
            self.descriptors.fetch_sub(1, Relaxed);
        }
        free
    }

    /// Takes a descriptor for a connection to a member; `None` if connections use all that they may.
    fn descriptor(self: &Arc<Self>) -> Option<Descriptor> {
        self.take().then(|| Descriptor(Arc::clone(self)))
    }

    /// Returns the number of connections and flows.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed) + self.flows.load(Relaxed)
    }

    /// Admits a connection; `None` if there are too many.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Guest> {
        if self.open.fetch_add(1, Relaxed) >= self.most.load(Relaxed) || !self.take() {
            self.open.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Guest(Arc::clone(self)))
    }

    /// Counts a flow.
    pub(crate) fn enter_flow(self: &Arc<Self>) -> FlowGuest {
        self.flows.fetch_add(1, Relaxed);
        FlowGuest(Arc::clone(self))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
        self.0.descriptors.fetch_sub(1, Relaxed);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.descriptors.fetch_sub(1, Relaxed);
    }
}

impl Drop for FlowGuest {
    fn drop(&mut self) {
        self.0.flows.fetch_sub(1, Relaxed);
    }
}

impl Core {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new(index: usize, clock: Clock, census: Arc<Census>) -> io::Result<Rc<Self>> {
        // The system seeds the standard library's hasher: random enough for a start value.
        let seed = std::hash::RandomState::new().build_hasher().finish();
        Ok(Rc::new(Self {
            index,
            clock,
            now: Cell::new(clock.now()),
            wheel: Wheel::new(clock),
            sessions: Sessions::new()?,
            stopping: Cell::new(false),
            parting: Cell::new(PARTING),
            census,
            access: Access::default(),
            tracer: Tracer::default(),
            noting: Cell::new(false),
            pipes: Pipes::default(),
            buffer: RefCell::new(vec![0; BUFFER].into_boxed_slice()),
            scratch: RefCell::default(),
            spare: RefCell::default(),
            marks: RefCell::default(),
            chance: Cell::new(seed),
            pools: RefCell::default(),
        }))
    }

    /// Returns the time at which an idle client connection ends whose listener is closed. Closed at once, it
    /// would lose a request that is already on its way. A request that arrives in time is served as the last.
    pub(crate) fn parting(&self) -> Time {
        self.tick() + self.parting.get()
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
    pub(crate) fn note(&self) {
        self.noting.set(self.access.is_on() || self.tracer.is_on());
    }

    /// Lends the read buffer and an empty vector. `work` must not call this again.
    pub(crate) fn lend<R>(&self, work: impl FnOnce(&mut [u8], &mut Vec<u8>) -> R) -> R {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        work(&mut self.buffer.borrow_mut(), &mut scratch)
    }

    /// Returns an empty vector, which may have been used before.
    pub(crate) fn vector(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a vector back for reuse.
    pub(crate) fn recycle(&self, mut vector: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && (1..=SPARE_BYTES).contains(&vector.capacity()) {
            vector.clear();
            spare.push(vector);
        }
    }

    /// Awaits `future`; `None` if it takes longer than `span`.
    pub(crate) async fn within<T>(&self, span: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut timer = None;
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(outcome));
            }
            let timer = timer.get_or_insert_with(|| {
                let timer = self.wheel.timer(cx.waker());
                timer.set(self.tick() + span);
                timer
            });
            if timer.fired() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Returns 64 random bits (splitmix64, Steele, Lea and Flood 2014).
    pub(crate) fn chance(&self) -> u64 {
        let next = self.chance.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.chance.set(next);
        let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns this core's pool of a group.
    pub(crate) fn pool(&self, group: &Arc<Group>) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        match pools.get(&group.name) {
            Some(pool) if Arc::ptr_eq(&pool.group, group) => Rc::clone(pool),
            _ => {
                let pool = Pool::new(Arc::clone(group), self.index);
                pools.insert(Arc::clone(&group.name), Rc::clone(&pool));
                pool
            }
        }
    }

    /// Drops the pools of groups that are no longer configured. Connections that still use a pool keep it
    /// alive.
    pub(crate) fn retain_pools(&self, keep: impl Fn(&str) -> bool) {
        self.pools.borrow_mut().retain(|name, pool| {
            let keep = keep(name);
            if !keep {
                pool.close();
            }
            keep
        });
    }

    /// Takes a descriptor for a connection to a member. Closes this core's idle connections if no descriptor
    /// is left.
    ///
    /// # Errors
    /// `EMFILE`: connections use all the descriptors that they may.
    pub(crate) fn descriptor(&self) -> io::Result<Descriptor> {
        let taken = self.census.descriptor().or_else(|| {
            self.pools.borrow().values().for_each(|pool| pool.close_idle());
            self.census.descriptor()
        });
        taken.ok_or_else(|| Errno::MFILE.into())
    }

    pub(crate) fn sweep(&self) {
        let now = self.tick();
        self.pools.borrow().values().for_each(|pool| pool.sweep(now));
    }
}
