//! An executor for the sessions of a thread's HTTP clients, all of them in one tokio task.
//!
//! A session is woken for each piece of data, twice for a request. A wake-up of a tokio task costs some 300
//! instructions: its states, its references, its queue. Here, woken sessions are in a list of the thread, and
//! one task runs them in the order of their wake-ups.
//!
//! The sockets are polled again when all ready sessions have run, or after as many as tokio would run
//! ([`TURN`]). If only one socket is ready, it pays for both, about as much again: but then there is time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::runtime::reactor::{self, Reactor, ReactorWakeup};
use crate::runtime::slab::Slab;
use crate::runtime::sync::lock;

/// The number of sessions that run before the thread's other tasks run and the sockets are polled.
const TURN: usize = 64;

/// The maximum number of polls in an [`IoRound`]: 262,144 sockets.
const MAX_POLLS: usize = 4096;

/// If this many sockets were ready at once, more may be ready after these were handled.
const BUSY_EVENTS: usize = 2;

type SessionFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The executor of one thread.
pub(crate) struct LocalExecutor {
    /// The sessions that have not run yet. The task that drives the others owns them: they hold this.
    new_sessions: RefCell<Vec<SessionFuture>>,
    /// Whether the sessions are no longer driven.
    closed: Cell<bool>,
    thread: Arc<ExecutorThread>,
    pub(crate) readiness: Rc<Reactor>,
    round: IoRound,
}

/// A round of I/O for a waiting task: every socket that was ready when it began was reported, and every
/// session that was woken by then has run.
#[derive(Default)]
struct IoRound {
    waiting: Cell<Option<Waker>>,
    /// The number of turns at which the round is over; `None` before the sockets were polled.
    until: Cell<Option<u64>>,
}

/// The thread of the sessions, as wakers share it.
struct ExecutorThread {
    /// A unique number.
    id: u64,
    /// The wakers that other threads woke.
    remote_wakes: Mutex<Vec<Arc<SessionWaker>>>,
    /// Whether they have woken the task since it last checked.
    is_notified: AtomicBool,
    task: Mutex<Option<Waker>>,
}

/// A session's waker.
struct SessionWaker {
    thread: Arc<ExecutorThread>,
    key: usize,
    /// [`WOKEN`], [`ENDED`], both or none.
    state: AtomicU8,
}

/// A flag of a waker: its session is in a list to be run.
const WOKEN: u8 = 1;
/// A flag of a waker: its session has ended.
const ENDED: u8 = 2;

/// A thread's state of the sessions that are driven there.
#[derive(Default)]
struct RunQueue {
    /// The number of their executor; 0 for none.
    executor_id: Cell<u64>,
    woken: RefCell<VecDeque<Arc<SessionWaker>>>,
    /// The number of turns so far.
    turns: Cell<u64>,
    /// Whether the task will check `woken` without being woken.
    awake: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

thread_local! {
    static HERE: RunQueue = RunQueue::default();
}

impl LocalExecutor {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (afar, called, task) = Default::default();
        let home = Arc::new(ExecutorThread {
            id: IDS.fetch_add(1, Relaxed),
            remote_wakes: afar,
            is_notified: called,
            task,
        });
        let readiness = Reactor::new()?;
        let (fresh, closed, round) = Default::default();
        Ok(Rc::new(Self { new_sessions: fresh, closed, thread: home, readiness, round }))
    }

    /// Adds a session. It first runs later, if sessions are driven.
    pub(crate) fn spawn(&self, session: impl Future<Output = ()> + 'static) {
        if !self.closed.get() {
            self.new_sessions.borrow_mut().push(Box::pin(session));
            HERE.with(|here| {
                if here.executor_id.get() == self.thread.id {
                    here.notify();
                }
            });
        }
    }

    /// Waits for an [`IoRound`]. Completes at once on a thread that drives no sessions. One task at a time
    /// waits.
    pub(crate) async fn complete_round(&self) {
        let mut asked = false;
        poll_fn(|cx| {
            let here = HERE.with(|here| {
                let driven = here.executor_id.get() == self.thread.id && !self.closed.get();
                if driven && !asked {
                    self.round.until.set(None);
                    self.round.waiting.set(Some(cx.waker().clone()));
                    here.notify();
                }
                driven
            });
            let first = !mem::replace(&mut asked, true);
            let waits = self.round.waiting.take();
            let over = !here || (!first && waits.is_none());
            self.round.waiting.set(waits);
            if over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Runs sessions forever; dropping this drops them. To be polled by one thread.
    pub(crate) async fn drive(self: Rc<Self>, bell: ReactorWakeup) {
        let mut seats =
            SessionDriver { sessions: self, tasks: Slab::default(), wakeup: bell, may_be_ready: false };
        HERE.with(|here| {
            here.executor_id.set(seats.sessions.thread.id);
            *here.task.borrow_mut() = None;
            here.woken.borrow_mut().clear();
        });
        // tokio makes tasks yield by reporting sockets as not ready; HTTP sessions yield by themselves
        // (`accept`).
        tokio::task::unconstrained(poll_fn(|cx| seats.poll(cx))).await
    }
}

/// The sessions that were started.
struct SessionDriver {
    sessions: Rc<LocalExecutor>,
    tasks: Slab<SessionTask>,
    wakeup: ReactorWakeup,
    /// Whether more sockets may be ready than were polled.
    may_be_ready: bool,
}

struct SessionTask {
    session: SessionFuture,
    waker: Arc<SessionWaker>,
}

impl SessionDriver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        HERE.with(|here| {
            here.awake.set(true);
            let home = &self.sessions.thread;
            if !here.task.borrow().as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *here.task.borrow_mut() = Some(cx.waker().clone());
                *lock(&home.task) = Some(cx.waker().clone());
            }
            if home.is_notified.swap(false, AcqRel) {
                here.woken.borrow_mut().extend(mem::take(&mut *lock(&home.remote_wakes)));
            }
            let mut left = TURN;
            self.may_be_ready |= self.wakeup.take_event(cx);
            self.sessions.round.begin(here, &self.wakeup);
            loop {
                let found = if self.may_be_ready { self.wakeup.poll_events() } else { 0 };
                if !self.sessions.new_sessions.borrow().is_empty() {
                    self.adopt_new(here);
                }
                let turns = here.woken.borrow().len().min(left);
                for _ in 0..turns {
                    let Some(seat) = here.woken.borrow_mut().pop_front() else { break };
                    self.run_session(seat);
                }
                left -= turns;
                here.turns.set(here.turns.get() + turns as u64);
                self.may_be_ready = found == reactor::MAX_EVENTS || found >= BUSY_EVENTS && turns > 0;
                if !self.may_be_ready || turns == 0 || left == 0 {
                    break;
                }
            }
            self.sessions.round.end(here);
            let more = self.may_be_ready
                || !here.woken.borrow().is_empty()
                || !self.sessions.new_sessions.borrow().is_empty();
            here.awake.set(more);
            if more {
                // After the sockets were polled, so that a connection closed by a member is detected early
                // even if many sockets are ready.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
            }
        });
        Poll::Pending
    }

    /// Takes over the sessions that were added since.
    fn adopt_new(&mut self, here: &RunQueue) {
        let sessions = &self.sessions;
        for session in sessions.new_sessions.borrow_mut().drain(..) {
            self.tasks.insert_with(|key| {
                let (home, state) = (Arc::clone(&sessions.thread), AtomicU8::new(WOKEN));
                let seat = Arc::new(SessionWaker { thread: home, key, state });
                here.woken.borrow_mut().push_back(Arc::clone(&seat));
                SessionTask { session, waker: seat }
            });
        }
    }

    fn run_session(&mut self, seat: Arc<SessionWaker>) {
        // Later events wake it again; it will see all earlier ones.
        if seat.state.fetch_and(!WOKEN, AcqRel) & ENDED != 0 {
            return;
        }
        let key = seat.key;
        let Some(seated) = self.tasks.get_mut(key) else { return };
        let waker = Waker::from(seat);
        let mut cx = Context::from_waker(&waker);
        // A panic, in builds that survive it, ends this session only; the panic hook reports it.
        let outcome = catch_unwind(AssertUnwindSafe(|| seated.session.as_mut().poll(&mut cx)));
        if !matches!(outcome, Ok(Poll::Pending))
            && let Some(seated) = self.tasks.remove(key)
        {
            // Its remaining wakers have no effect, whichever session has its place.
            seated.waker.state.fetch_or(ENDED, Relaxed);
        }
    }
}

impl IoRound {
    /// Polls the sockets until all ready ones were reported. The kernel reports them in turn, so that new
    /// events delay none that was ready before. [`MAX_POLLS`] bounds the polls all the same.
    fn begin(&self, here: &RunQueue, bell: &ReactorWakeup) {
        let waiting = self.waiting.take();
        if waiting.is_some() && self.until.get().is_none() {
            let _ = (0..MAX_POLLS).find(|_| bell.poll_events() < reactor::MAX_EVENTS);
            self.until.set(Some(here.turns.get() + here.woken.borrow().len() as u64));
        }
        self.waiting.set(waiting);
    }

    /// Wakes the waiting task once all these sessions have run.
    fn end(&self, here: &RunQueue) {
        if self.until.get().is_some_and(|until| here.turns.get() >= until)
            && let Some(waiting) = self.waiting.take()
        {
            self.until.set(None);
            waiting.wake();
        }
    }
}

impl Drop for SessionDriver {
    fn drop(&mut self) {
        self.sessions.closed.set(true);
        self.sessions.round.waiting.take().into_iter().for_each(Waker::wake);
        // They hold the list that contains them.
        let fresh = mem::take(&mut *self.sessions.new_sessions.borrow_mut());
        drop(fresh);
        // Wake-ups during their drop have no effect.
        let _ = HERE.try_with(|here| {
            if here.executor_id.get() == self.sessions.thread.id {
                here.executor_id.set(0);
                here.woken.take();
                here.task.take();
            }
        });
        lock(&self.sessions.thread.task).take();
        lock(&self.sessions.thread.remote_wakes).clear();
    }
}

impl RunQueue {
    fn notify(&self) {
        if !self.awake.replace(true)
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
    }
}

impl Wake for SessionWaker {
    #[inline]
    fn wake(self: Arc<Self>) {
        if self.mark_woken() {
            self.enqueue();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.mark_woken() {
            Arc::clone(self).enqueue();
        }
    }
}

impl SessionWaker {
    /// Returns `true` if the waker has to be added to a list, as it is in none. Written even if it is in one:
    /// the thread that takes it from there has to see all earlier stores.
    #[inline]
    fn mark_woken(&self) -> bool {
        self.state.fetch_or(WOKEN, AcqRel) == 0
    }

    #[inline]
    fn enqueue(self: Arc<Self>) {
        let mut left = Some(self);
        // A thread that ends has no list any more.
        let _ = HERE.try_with(|here| {
            if let Some(seat) = left.take_if(|seat| here.executor_id.get() == seat.thread.id) {
                here.woken.borrow_mut().push_back(seat);
                here.notify();
            }
        });
        if let Some(seat) = left {
            Arc::clone(&seat.thread).push_remote(seat);
        }
    }
}

impl ExecutorThread {
    /// Adds a waker from another thread.
    #[cold]
    fn push_remote(&self, seat: Arc<SessionWaker>) {
        let task = lock(&self.task);
        // The sessions of a thread that has ended need no wake-up.
        let Some(task) = &*task else { return };
        lock(&self.remote_wakes).push(seat);
        if !self.is_notified.swap(true, AcqRel) {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    /// Runs a future while sessions are driven, and ends them.
    fn run<F: Future>(work: impl FnOnce(Rc<LocalExecutor>) -> F) -> F::Output {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        runtime.expect("a runtime").block_on(async {
            let sessions = LocalExecutor::new().expect("descriptors");
            let bell = ReactorWakeup::new(Rc::clone(&sessions.readiness)).expect("descriptors");
            tokio::task::spawn_local(Rc::clone(&sessions).drive(bell));
            work(sessions).await
        })
    }

    /// Waits for one wake-up.
    async fn woken(whom: impl FnOnce(Waker)) {
        let mut whom = Some(whom);
        poll_fn(|cx| match whom.take() {
            Some(whom) => {
                whom(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
    }

    #[test]
    fn sessions_are_woken_from_here_and_from_other_threads() {
        let (wakers, woke) = mpsc::channel::<Waker>();
        let other = thread::spawn(move || woke.iter().map(Waker::wake).count());
        let done = run(|sessions| async move {
            let (done, mut ends) = tokio::sync::mpsc::channel(1000);
            for index in 0..1000 {
                let (wakers, done) = (wakers.clone(), done.clone());
                sessions.spawn(async move {
                    woken(|waker| wakers.send(waker).expect("the other thread listens")).await;
                    woken(|waker| waker.wake_by_ref()).await;
                    tokio::task::yield_now().await;
                    done.try_send(index).expect("somebody waits");
                });
            }
            drop((done, wakers));
            let mut all = Vec::new();
            while let Some(index) = ends.recv().await {
                all.push(index);
            }
            all.sort_unstable();
            all
        });
        assert_eq!(done, (0..1000).collect::<Vec<u64>>());
        assert_eq!(other.join().expect("it ends"), 1000);
    }

    #[test]
    fn they_have_their_turns_in_the_order_in_which_they_were_woken_and_others_between() {
        let order = run(|sessions| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            for index in 0..3 * TURN {
                let order = Rc::clone(&order);
                sessions.spawn(async move {
                    for _ in 0..3 {
                        order.borrow_mut().push(index);
                        woken(Waker::wake).await;
                    }
                });
            }
            let seen = Rc::clone(&order);
            let other = tokio::task::spawn_local(async move {
                let mut between = 0;
                while seen.borrow().len() < 9 * TURN {
                    between += usize::from(!seen.borrow().is_empty());
                    woken(Waker::wake).await;
                }
                between
            });
            assert!(other.await.expect("it ends") >= 3);
            order.take()
        });
        let expected: Vec<usize> = (0..3).flat_map(|_| 0..3 * TURN).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn sockets_are_asked_between_the_turns_of_many() {
        let most = run(|sessions| async move {
            let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            for _ in 0..4 * TURN {
                let (turns, ended) = (Rc::clone(&turns), Rc::clone(&ended));
                sessions.spawn(async move {
                    while !ended.get() {
                        turns.set(turns.get() + 1);
                        woken(Waker::wake).await;
                    }
                });
            }
            let (one, other) = tokio::net::UnixStream::pair().expect("a pair of sockets");
            let mut most = 0;
            for byte in 0..10 {
                one.writable().await.expect("there is room");
                one.try_write(&[byte]).expect("there is room");
                let before = turns.get();
                other.readable().await.expect("it came");
                other.try_read(&mut [0; 1]).expect("it came");
                most = most.max(turns.get() - before);
            }
            ended.set(true);
            most
        });
        assert!((1..=4 * TURN).contains(&most), "{most} turns");
    }

    #[test]
    fn a_session_begins_others_and_those_that_end_are_woken_in_vain() {
        let count = run(|sessions| async move {
            let (count, left) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::<Waker>::new())));
            for _ in 0..10 {
                let (count, left, own) = (Rc::clone(&count), Rc::clone(&left), Rc::clone(&sessions));
                sessions.spawn(async move {
                    woken(|waker| {
                        left.borrow_mut().push(waker.clone());
                        waker.wake();
                    })
                    .await;
                    let inner = Rc::clone(&count);
                    own.spawn(async move {
                        woken(Waker::wake).await;
                        inner.set(inner.get() + 1);
                    });
                });
            }
            while count.get() < 10 {
                // The places of the ended sessions now belong to others.
                left.borrow().iter().for_each(Waker::wake_by_ref);
                tokio::task::yield_now().await;
            }
            left.borrow().iter().for_each(Waker::wake_by_ref);
            tokio::task::yield_now().await;
            count.get()
        });
        assert_eq!(count, 10);
    }

    #[test]
    fn one_that_panics_takes_nobody_with_it() {
        assert!(run(|sessions| async move {
            let (done, end) = tokio::sync::oneshot::channel();
            sessions.spawn(async { panic!("as it should") });
            sessions.spawn(async move { done.send(()).expect("somebody waits") });
            end.await.is_ok()
        }));
    }

    #[test]
    fn they_end_with_whoever_drives_them() {
        struct DropCounter(Rc<Cell<u32>>, Option<Waker>);
        impl Drop for DropCounter {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                self.1.iter().for_each(Waker::wake_by_ref);
            }
        }
        let ended = Rc::new(Cell::new(0));
        let (sessions, waker) = run(|sessions| {
            let ended = &ended;
            async move {
                let (sender, waker) = tokio::sync::oneshot::channel();
                let mut held = DropCounter(Rc::clone(ended), None);
                sessions.spawn(async move {
                    woken(|waker| {
                        held.1 = Some(waker.clone());
                        sender.send(waker).expect("somebody waits");
                    })
                    .await;
                    drop(held);
                });
                let waker = waker.await.expect("it begins");
                let fresh = DropCounter(Rc::clone(ended), None);
                sessions.spawn(async move { drop(fresh) });
                (sessions, waker)
            }
        });
        assert_eq!(ended.get(), 2, "one that waited, and one that had not begun");
        waker.wake();
        let late = DropCounter(Rc::clone(&ended), None);
        sessions.spawn(async move { drop(late) });
        assert_eq!(ended.get(), 3, "nobody is there to drive it");
    }
}
