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

use crate::chunks::Chunks;
use crate::inner::lock;
use crate::readiness::{self, Bell, Readiness};

/// The number of sessions that run before the thread's other tasks run and the sockets are polled.
const TURN: usize = 64;

/// The maximum number of polls in a [`Round`]: 262,144 sockets.
const LOOKS: usize = 4096;

/// If this many sockets were ready at once, more may be ready after these were handled.
const MANY: usize = 2;

type Session = Pin<Box<dyn Future<Output = ()>>>;

/// The executor of one thread.
pub(crate) struct Sessions {
    /// The sessions that have not run yet. The task that drives the others owns them: they hold this.
    fresh: RefCell<Vec<Session>>,
    /// Whether the sessions are no longer driven.
    closed: Cell<bool>,
    home: Arc<Home>,
    pub(crate) readiness: Rc<Readiness>,
    round: Round,
}

/// A round of I/O for a waiting task: every socket that was ready when it began was reported, and every
/// session that was woken by then has run.
#[derive(Default)]
struct Round {
    waiting: Cell<Option<Waker>>,
    /// The number of turns at which the round is over; `None` before the sockets were polled.
    until: Cell<Option<u64>>,
}

/// The thread of the sessions, as wakers share it.
struct Home {
    /// A unique number.
    id: u64,
    /// The seats that other threads woke.
    afar: Mutex<Vec<Arc<Seat>>>,
    /// Whether they have woken the task since it last checked.
    called: AtomicBool,
    task: Mutex<Option<Waker>>,
}

/// A session's waker.
struct Seat {
    home: Arc<Home>,
    key: usize,
    /// [`WOKEN`], [`OVER`], both or none.
    state: AtomicU8,
}

/// A flag of a seat: its session is in a list to be run.
const WOKEN: u8 = 1;
/// A flag of a seat: its session has ended.
const OVER: u8 = 2;

/// A thread's state of the sessions that are driven there.
#[derive(Default)]
struct Here {
    /// The number of their executor; 0 for none.
    home: Cell<u64>,
    woken: RefCell<VecDeque<Arc<Seat>>>,
    /// The number of turns so far.
    turns: Cell<u64>,
    /// Whether the task will check `woken` without being woken.
    awake: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

thread_local! {
    static HERE: Here = Here::default();
}

impl Sessions {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (afar, called, task) = Default::default();
        let home = Arc::new(Home { id: IDS.fetch_add(1, Relaxed), afar, called, task });
        let readiness = Readiness::new()?;
        let (fresh, closed, round) = Default::default();
        Ok(Rc::new(Self { fresh, closed, home, readiness, round }))
    }

    /// Adds a session. It first runs later, if sessions are driven.
    pub(crate) fn spawn(&self, session: impl Future<Output = ()> + 'static) {
        if !self.closed.get() {
            self.fresh.borrow_mut().push(Box::pin(session));
            HERE.with(|here| {
                if here.home.get() == self.home.id {
                    here.call();
                }
            });
        }
    }

    /// Waits for a [`Round`]. Completes at once on a thread that drives no sessions. One task at a time
    /// waits.
    pub(crate) async fn round(&self) {
        let mut asked = false;
        poll_fn(|cx| {
            let here = HERE.with(|here| {
                let driven = here.home.get() == self.home.id && !self.closed.get();
                if driven && !asked {
                    self.round.until.set(None);
                    self.round.waiting.set(Some(cx.waker().clone()));
                    here.call();
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
    pub(crate) async fn drive(self: Rc<Self>, bell: Bell) {
        let mut seats = Seats { sessions: self, all: Chunks::default(), bell, more: false };
        HERE.with(|here| {
            here.home.set(seats.sessions.home.id);
            *here.task.borrow_mut() = None;
            here.woken.borrow_mut().clear();
        });
        // tokio makes tasks yield by reporting sockets as not ready; HTTP sessions yield by themselves
        // (`accept`).
        tokio::task::unconstrained(poll_fn(|cx| seats.poll(cx))).await
    }
}

/// The sessions that were started.
struct Seats {
    sessions: Rc<Sessions>,
    all: Chunks<Seated>,
    bell: Bell,
    /// Whether more sockets may be ready than were polled.
    more: bool,
}

struct Seated {
    session: Session,
    seat: Arc<Seat>,
}

impl Seats {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        HERE.with(|here| {
            here.awake.set(true);
            let home = &self.sessions.home;
            if !here.task.borrow().as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *here.task.borrow_mut() = Some(cx.waker().clone());
                *lock(&home.task) = Some(cx.waker().clone());
            }
            if home.called.swap(false, AcqRel) {
                here.woken.borrow_mut().extend(mem::take(&mut *lock(&home.afar)));
            }
            let mut left = TURN;
            self.more |= self.bell.rung(cx);
            self.sessions.round.begin(here, &self.bell);
            loop {
                let found = if self.more { self.bell.look() } else { 0 };
                if !self.sessions.fresh.borrow().is_empty() {
                    self.begin(here);
                }
                let turns = here.woken.borrow().len().min(left);
                for _ in 0..turns {
                    let Some(seat) = here.woken.borrow_mut().pop_front() else { break };
                    self.turn(seat);
                }
                left -= turns;
                here.turns.set(here.turns.get() + turns as u64);
                self.more = found == readiness::MOST || found >= MANY && turns > 0;
                if !self.more || turns == 0 || left == 0 {
                    break;
                }
            }
            self.sessions.round.end(here);
            let more =
                self.more || !here.woken.borrow().is_empty() || !self.sessions.fresh.borrow().is_empty();
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
    fn begin(&mut self, here: &Here) {
        let sessions = &self.sessions;
        for session in sessions.fresh.borrow_mut().drain(..) {
            self.all.insert_with(|key| {
                let (home, state) = (Arc::clone(&sessions.home), AtomicU8::new(WOKEN));
                let seat = Arc::new(Seat { home, key, state });
                here.woken.borrow_mut().push_back(Arc::clone(&seat));
                Seated { session, seat }
            });
        }
    }

    fn turn(&mut self, seat: Arc<Seat>) {
        // Later events wake it again; it will see all earlier ones.
        if seat.state.fetch_and(!WOKEN, AcqRel) & OVER != 0 {
            return;
        }
        let key = seat.key;
        let Some(seated) = self.all.get_mut(key) else { return };
        let waker = Waker::from(seat);
        let mut cx = Context::from_waker(&waker);
        // A panic, in builds that survive it, ends this session only; the panic hook reports it.
        let outcome = catch_unwind(AssertUnwindSafe(|| seated.session.as_mut().poll(&mut cx)));
        if !matches!(outcome, Ok(Poll::Pending))
            && let Some(seated) = self.all.remove(key)
        {
            // Its remaining wakers have no effect, whichever session has its place.
            seated.seat.state.fetch_or(OVER, Relaxed);
        }
    }
}

impl Round {
    /// Polls the sockets until all ready ones were reported. The kernel reports them in turn, so that new
    /// events delay none that was ready before. [`LOOKS`] bounds the polls all the same.
    fn begin(&self, here: &Here, bell: &Bell) {
        let waiting = self.waiting.take();
        if waiting.is_some() && self.until.get().is_none() {
            let _ = (0..LOOKS).find(|_| bell.look() < readiness::MOST);
            self.until.set(Some(here.turns.get() + here.woken.borrow().len() as u64));
        }
        self.waiting.set(waiting);
    }

    /// Wakes the waiting task once all these sessions have run.
    fn end(&self, here: &Here) {
        if self.until.get().is_some_and(|until| here.turns.get() >= until)
            && let Some(waiting) = self.waiting.take()
        {
            self.until.set(None);
            waiting.wake();
        }
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.sessions.closed.set(true);
        self.sessions.round.waiting.take().into_iter().for_each(Waker::wake);
        // They hold the list that contains them.
        let fresh = mem::take(&mut *self.sessions.fresh.borrow_mut());
        drop(fresh);
        // Wake-ups during their drop have no effect.
        let _ = HERE.try_with(|here| {
            if here.home.get() == self.sessions.home.id {
                here.home.set(0);
                here.woken.take();
                here.task.take();
            }
        });
        lock(&self.sessions.home.task).take();
        lock(&self.sessions.home.afar).clear();
    }
}

impl Here {
    fn call(&self) {
        if !self.awake.replace(true)
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
    }
}

impl Wake for Seat {
    #[inline]
    fn wake(self: Arc<Self>) {
        if self.wakes() {
            self.stand();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.wakes() {
            Arc::clone(self).stand();
        }
    }
}

impl Seat {
    /// Returns `true` if the seat has to be added to a list, as it is in none. Written even if it is in one:
    /// the thread that takes it from there has to see all earlier stores.
    #[inline]
    fn wakes(&self) -> bool {
        self.state.fetch_or(WOKEN, AcqRel) == 0
    }

    #[inline]
    fn stand(self: Arc<Self>) {
        let mut left = Some(self);
        // A thread that ends has no list any more.
        let _ = HERE.try_with(|here| {
            if let Some(seat) = left.take_if(|seat| here.home.get() == seat.home.id) {
                here.woken.borrow_mut().push_back(seat);
                here.call();
            }
        });
        if let Some(seat) = left {
            Arc::clone(&seat.home).call(seat);
        }
    }
}

impl Home {
    /// Adds a seat from another thread.
    #[cold]
    fn call(&self, seat: Arc<Seat>) {
        let task = lock(&self.task);
        // The sessions of a thread that has ended need no wake-up.
        let Some(task) = &*task else { return };
        lock(&self.afar).push(seat);
        if !self.called.swap(true, AcqRel) {
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
    fn run<F: Future>(work: impl FnOnce(Rc<Sessions>) -> F) -> F::Output {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        runtime.expect("a runtime").block_on(async {
            let sessions = Sessions::new().expect("descriptors");
            let bell = Bell::new(Rc::clone(&sessions.readiness)).expect("descriptors");
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
        struct Held(Rc<Cell<u32>>, Option<Waker>);
        impl Drop for Held {
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
                let mut held = Held(Rc::clone(ended), None);
                sessions.spawn(async move {
                    woken(|waker| {
                        held.1 = Some(waker.clone());
                        sender.send(waker).expect("somebody waits");
                    })
                    .await;
                    drop(held);
                });
                let waker = waker.await.expect("it begins");
                let fresh = Held(Rc::clone(ended), None);
                sessions.spawn(async move { drop(fresh) });
                (sessions, waker)
            }
        });
        assert_eq!(ended.get(), 2, "one that waited, and one that had not begun");
        waker.wake();
        let late = Held(Rc::clone(&ended), None);
        sessions.spawn(async move { drop(late) });
        assert_eq!(ended.get(), 3, "nobody is there to drive it");
    }
}
