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
const MAX_SESSION_POLLS: usize = 64;

/// The maximum number of polls in an [`IoRound`]: 262,144 sockets.
const MAX_POLLS: usize = 4096;

/// If this many sockets were ready at once, more may be ready after these were handled.
const MIN_BUSY_EVENTS: usize = 2;

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
    ends_at_turn: Cell<Option<u64>>,
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
    is_awake: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

thread_local! {
    static RUN_QUEUE: RunQueue = RunQueue::default();
}

impl LocalExecutor {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (remote_wakes, is_notified, task) = Default::default();
        let thread =
            Arc::new(ExecutorThread { id: IDS.fetch_add(1, Relaxed), remote_wakes, is_notified, task });
        let readiness = Reactor::new()?;
        let (new_sessions, closed, round) = Default::default();
        Ok(Rc::new(Self { new_sessions, closed, thread, readiness, round }))
    }

    /// Adds a session. It first runs later, if sessions are driven.
    pub(crate) fn spawn(&self, session: impl Future<Output = ()> + 'static) {
        if !self.closed.get() {
            self.new_sessions.borrow_mut().push(Box::pin(session));
            RUN_QUEUE.with(|run_queue| {
                if run_queue.executor_id.get() == self.thread.id {
                    run_queue.notify();
                }
            });
        }
    }

    /// Waits for an [`IoRound`]. Completes at once on a thread that drives no sessions. One task at a time
    /// waits.
    pub(crate) async fn complete_round(&self) {
        let mut has_registered = false;
        poll_fn(|cx| {
            let run_queue = RUN_QUEUE.with(|run_queue| {
                let is_driven = run_queue.executor_id.get() == self.thread.id && !self.closed.get();
                if is_driven && !has_registered {
                    self.round.ends_at_turn.set(None);
                    self.round.waiting.set(Some(cx.waker().clone()));
                    run_queue.notify();
                }
                is_driven
            });
            let is_first = !mem::replace(&mut has_registered, true);
            let waiter = self.round.waiting.take();
            let is_over = !run_queue || (!is_first && waiter.is_none());
            self.round.waiting.set(waiter);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Runs sessions forever; dropping this drops them. To be polled by one thread.
    pub(crate) async fn drive(self: Rc<Self>, wakeup: ReactorWakeup) {
        let mut driver =
            SessionDriver { sessions: self, tasks: Slab::default(), wakeup, may_be_ready: false };
        RUN_QUEUE.with(|run_queue| {
            run_queue.executor_id.set(driver.sessions.thread.id);
            *run_queue.task.borrow_mut() = None;
            run_queue.woken.borrow_mut().clear();
        });
        // tokio makes tasks yield by reporting sockets as not ready; HTTP sessions yield by themselves
        // (`accept`).
        tokio::task::unconstrained(poll_fn(|cx| driver.poll(cx))).await
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
        RUN_QUEUE.with(|run_queue| {
            run_queue.is_awake.set(true);
            let thread = &self.sessions.thread;
            if !run_queue.task.borrow().as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *run_queue.task.borrow_mut() = Some(cx.waker().clone());
                *lock(&thread.task) = Some(cx.waker().clone());
            }
            if thread.is_notified.swap(false, AcqRel) {
                run_queue.woken.borrow_mut().extend(mem::take(&mut *lock(&thread.remote_wakes)));
            }
            let mut turns_left = MAX_SESSION_POLLS;
            self.may_be_ready |= self.wakeup.take_event(cx);
            self.sessions.round.begin(run_queue, &self.wakeup);
            loop {
                let event_count = if self.may_be_ready { self.wakeup.poll_events() } else { 0 };
                if !self.sessions.new_sessions.borrow().is_empty() {
                    self.adopt_new(run_queue);
                }
                let turns = run_queue.woken.borrow().len().min(turns_left);
                for _ in 0..turns {
                    let Some(session_waker) = run_queue.woken.borrow_mut().pop_front() else { break };
                    self.run_session(session_waker);
                }
                turns_left -= turns;
                run_queue.turns.set(run_queue.turns.get() + turns as u64);
                self.may_be_ready =
                    event_count == reactor::MAX_EVENTS || event_count >= MIN_BUSY_EVENTS && turns > 0;
                if !self.may_be_ready || turns == 0 || turns_left == 0 {
                    break;
                }
            }
            self.sessions.round.end(run_queue);
            let has_more = self.may_be_ready
                || !run_queue.woken.borrow().is_empty()
                || !self.sessions.new_sessions.borrow().is_empty();
            run_queue.is_awake.set(has_more);
            if has_more {
                // After the sockets were polled, so that a connection closed by a member is detected early
                // even if many sockets are ready.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
            }
        });
        Poll::Pending
    }

    /// Takes over the sessions that were added since.
    fn adopt_new(&mut self, run_queue: &RunQueue) {
        let sessions = &self.sessions;
        for session in sessions.new_sessions.borrow_mut().drain(..) {
            self.tasks.insert_with(|key| {
                let (thread, state) = (Arc::clone(&sessions.thread), AtomicU8::new(WOKEN));
                let session_waker = Arc::new(SessionWaker { thread, key, state });
                run_queue.woken.borrow_mut().push_back(Arc::clone(&session_waker));
                SessionTask { session, waker: session_waker }
            });
        }
    }

    fn run_session(&mut self, session_waker: Arc<SessionWaker>) {
        // Later events wake it again; it will see all earlier ones.
        if session_waker.state.fetch_and(!WOKEN, AcqRel) & ENDED != 0 {
            return;
        }
        let key = session_waker.key;
        let Some(task) = self.tasks.get_mut(key) else { return };
        let waker = Waker::from(session_waker);
        let mut cx = Context::from_waker(&waker);
        // A panic, in builds that survive it, ends this session only; the panic hook reports it.
        let outcome = catch_unwind(AssertUnwindSafe(|| task.session.as_mut().poll(&mut cx)));
        if !matches!(outcome, Ok(Poll::Pending))
            && let Some(task) = self.tasks.remove(key)
        {
            // Its remaining wakers have no effect, whichever session has its place.
            task.waker.state.fetch_or(ENDED, Relaxed);
        }
    }
}

impl IoRound {
    /// Polls the sockets until all ready ones were reported. The kernel reports them in turn, so that new
    /// events delay none that was ready before. [`MAX_POLLS`] bounds the polls all the same.
    fn begin(&self, run_queue: &RunQueue, wakeup: &ReactorWakeup) {
        let waiter = self.waiting.take();
        if waiter.is_some() && self.ends_at_turn.get().is_none() {
            let _ = (0..MAX_POLLS).find(|_| wakeup.poll_events() < reactor::MAX_EVENTS);
            self.ends_at_turn.set(Some(run_queue.turns.get() + run_queue.woken.borrow().len() as u64));
        }
        self.waiting.set(waiter);
    }

    /// Wakes the waiting task once all these sessions have run.
    fn end(&self, run_queue: &RunQueue) {
        if self.ends_at_turn.get().is_some_and(|last_turn| run_queue.turns.get() >= last_turn)
            && let Some(waiter) = self.waiting.take()
        {
            self.ends_at_turn.set(None);
            waiter.wake();
        }
    }
}

impl Drop for SessionDriver {
    fn drop(&mut self) {
        self.sessions.closed.set(true);
        self.sessions.round.waiting.take().into_iter().for_each(Waker::wake);
        // They hold the list that contains them.
        let new_sessions = mem::take(&mut *self.sessions.new_sessions.borrow_mut());
        drop(new_sessions);
        // Wake-ups during their drop have no effect.
        let _ = RUN_QUEUE.try_with(|run_queue| {
            if run_queue.executor_id.get() == self.sessions.thread.id {
                run_queue.executor_id.set(0);
                run_queue.woken.take();
                run_queue.task.take();
            }
        });
        lock(&self.sessions.thread.task).take();
        lock(&self.sessions.thread.remote_wakes).clear();
    }
}

impl RunQueue {
    fn notify(&self) {
        if !self.is_awake.replace(true)
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
        let mut pending = Some(self);
        // A thread that ends has no list any more.
        let _ = RUN_QUEUE.try_with(|run_queue| {
            if let Some(session_waker) =
                pending.take_if(|session_waker| run_queue.executor_id.get() == session_waker.thread.id)
            {
                run_queue.woken.borrow_mut().push_back(session_waker);
                run_queue.notify();
            }
        });
        if let Some(session_waker) = pending {
            Arc::clone(&session_waker.thread).push_remote(session_waker);
        }
    }
}

impl ExecutorThread {
    /// Adds a waker from another thread.
    #[cold]
    fn push_remote(&self, session_waker: Arc<SessionWaker>) {
        let task = lock(&self.task);
        // The sessions of a thread that has ended need no wake-up.
        let Some(task) = &*task else { return };
        lock(&self.remote_wakes).push(session_waker);
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
    fn run<F: Future>(test: impl FnOnce(Rc<LocalExecutor>) -> F) -> F::Output {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        runtime.expect("a runtime").block_on(async {
            let sessions = LocalExecutor::new().expect("descriptors");
            let wakeup = ReactorWakeup::new(Rc::clone(&sessions.readiness)).expect("descriptors");
            tokio::task::spawn_local(Rc::clone(&sessions).drive(wakeup));
            test(sessions).await
        })
    }

    /// Waits for one wake-up.
    async fn wait_woken(schedule_wake: impl FnOnce(Waker)) {
        let mut schedule_wake = Some(schedule_wake);
        poll_fn(|cx| match schedule_wake.take() {
            Some(schedule_wake) => {
                schedule_wake(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
    }

    #[test]
    fn sessions_are_woken_from_here_and_from_other_threads() {
        let (wakers, received_wakers) = mpsc::channel::<Waker>();
        let other_thread = thread::spawn(move || received_wakers.iter().map(Waker::wake).count());
        let finished = run(|sessions| async move {
            let (finished_sender, mut finished_receiver) = tokio::sync::mpsc::channel(1000);
            for index in 0..1000 {
                let (wakers, finished_sender) = (wakers.clone(), finished_sender.clone());
                sessions.spawn(async move {
                    wait_woken(|waker| wakers.send(waker).expect("the other thread listens")).await;
                    wait_woken(|waker| waker.wake_by_ref()).await;
                    tokio::task::yield_now().await;
                    finished_sender.try_send(index).expect("somebody waits");
                });
            }
            drop((finished_sender, wakers));
            let mut finished = Vec::new();
            while let Some(index) = finished_receiver.recv().await {
                finished.push(index);
            }
            finished.sort_unstable();
            finished
        });
        assert_eq!(finished, (0..1000).collect::<Vec<u64>>());
        assert_eq!(other_thread.join().expect("it ends"), 1000);
    }

    #[test]
    fn they_have_their_turns_in_the_order_in_which_they_were_woken_and_others_between() {
        let order = run(|sessions| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            for index in 0..3 * MAX_SESSION_POLLS {
                let order = Rc::clone(&order);
                sessions.spawn(async move {
                    for _ in 0..3 {
                        order.borrow_mut().push(index);
                        wait_woken(Waker::wake).await;
                    }
                });
            }
            let order_so_far = Rc::clone(&order);
            let other_task = tokio::task::spawn_local(async move {
                let mut interleaved = 0;
                while order_so_far.borrow().len() < 9 * MAX_SESSION_POLLS {
                    interleaved += usize::from(!order_so_far.borrow().is_empty());
                    wait_woken(Waker::wake).await;
                }
                interleaved
            });
            assert!(other_task.await.expect("it ends") >= 3);
            order.take()
        });
        let expected: Vec<usize> = (0..3).flat_map(|_| 0..3 * MAX_SESSION_POLLS).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn sockets_are_asked_between_the_turns_of_many() {
        let max_turns = run(|sessions| async move {
            let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            for _ in 0..4 * MAX_SESSION_POLLS {
                let (turns, ended) = (Rc::clone(&turns), Rc::clone(&ended));
                sessions.spawn(async move {
                    while !ended.get() {
                        turns.set(turns.get() + 1);
                        wait_woken(Waker::wake).await;
                    }
                });
            }
            let (writer, reader) = tokio::net::UnixStream::pair().expect("a pair of sockets");
            let mut max_turns = 0;
            for byte in 0..10 {
                writer.writable().await.expect("there is room");
                writer.try_write(&[byte]).expect("there is room");
                let turns_before = turns.get();
                reader.readable().await.expect("it came");
                reader.try_read(&mut [0; 1]).expect("it came");
                max_turns = max_turns.max(turns.get() - turns_before);
            }
            ended.set(true);
            max_turns
        });
        assert!((1..=4 * MAX_SESSION_POLLS).contains(&max_turns), "{max_turns} turns");
    }

    #[test]
    fn a_session_begins_others_and_those_that_end_are_woken_in_vain() {
        let count = run(|sessions| async move {
            let (count, old_wakers) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::<Waker>::new())));
            for _ in 0..10 {
                let (count, old_wakers, executor) =
                    (Rc::clone(&count), Rc::clone(&old_wakers), Rc::clone(&sessions));
                sessions.spawn(async move {
                    wait_woken(|waker| {
                        old_wakers.borrow_mut().push(waker.clone());
                        waker.wake();
                    })
                    .await;
                    let inner_count = Rc::clone(&count);
                    executor.spawn(async move {
                        wait_woken(Waker::wake).await;
                        inner_count.set(inner_count.get() + 1);
                    });
                });
            }
            while count.get() < 10 {
                // The places of the ended sessions now belong to others.
                old_wakers.borrow().iter().for_each(Waker::wake_by_ref);
                tokio::task::yield_now().await;
            }
            old_wakers.borrow().iter().for_each(Waker::wake_by_ref);
            tokio::task::yield_now().await;
            count.get()
        });
        assert_eq!(count, 10);
    }

    #[test]
    fn one_that_panics_takes_nobody_with_it() {
        assert!(run(|sessions| async move {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            sessions.spawn(async { panic!("as it should") });
            sessions.spawn(async move { sender.send(()).expect("somebody waits") });
            receiver.await.is_ok()
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
                let mut counter = DropCounter(Rc::clone(ended), None);
                sessions.spawn(async move {
                    wait_woken(|waker| {
                        counter.1 = Some(waker.clone());
                        sender.send(waker).expect("somebody waits");
                    })
                    .await;
                    drop(counter);
                });
                let waker = waker.await.expect("it begins");
                let unstarted = DropCounter(Rc::clone(ended), None);
                sessions.spawn(async move { drop(unstarted) });
                (sessions, waker)
            }
        });
        assert_eq!(ended.get(), 2, "one that waited, and one that had not begun");
        waker.wake();
        let late_counter = DropCounter(Rc::clone(&ended), None);
        sessions.spawn(async move { drop(late_counter) });
        assert_eq!(ended.get(), 3, "nobody is there to drive it");
    }
}
