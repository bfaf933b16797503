//! The handle of the running data plane, for the rest of the process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::load_line::Cpu;
use plimsoll_brain::meter::Reading;
use plimsoll_brain::neighbours::Neighbours;
use plimsoll_brain::status::{GroupExplanation, Recent};
use plimsoll_brain::{Event, EventKind, Knobs, Load, Shed, Strategy, Time, Usage};
use plimsoll_wire::giop::Ior;
use tokio::sync::{Notify, Semaphore, broadcast, mpsc};

use crate::clock::Clock;
use crate::control::{Control, Journal, Stamped};
use crate::core::{Census, PARTING};
use crate::counts::Elsewhere;
use crate::group::{Said, Strike, Wires};
use crate::inner::{Inner, lock};
use crate::lag::LagMeter;
use crate::lease::Desk;
use crate::metered::HostMeter;
use crate::neighbours::Sharing;
use crate::probe::{self, Probes};
use crate::report::GroupLook;
use crate::trace::{self, Spans, Traced};
use crate::worker::{self, Order, Worker};
use crate::{MemberCounters, Protocol, Settings, StartError, apply, explain, hand_over, iiop, report};

mod fleet;
mod lend;
mod operate;
mod succession;

pub use succession::{Estate, Legacy};

/// The number of failure signals that may wait for the control thread.
const STRIKES: usize = 256;
/// The number of members' report samples that may wait for the receiver.
const SAID: usize = 1024;
/// The number of events from clients' connections that may wait to be written.
const NOTES: usize = 64;
/// The interval of comparing success rates.
const COMPARE: Duration = Duration::from_secs(1);

/// A running data plane. A clone is another handle of the same. Every method may be called from any thread.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// The rates of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Completed requests per second.
    pub rps: f64,
    /// The utilization, 1 for full; may exceed 1.
    pub utilization: f64,
    /// Failed requests per second.
    pub eps: f64,
}

impl Engine {
    /// Binds every listener and starts the threads.
    ///
    /// # Errors
    /// A listener cannot be bound, the access log cannot be opened, or the system refuses a thread; nothing
    /// runs then.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let engine = Self::prepare(settings, Estate::default())?;
        match engine.open() {
            Ok(()) => Ok(engine),
            Err(error) => {
                end(&engine.0);
                Err(error)
            }
        }
    }

    /// Starts as [`Engine::start`], without accepting connections: that begins with [`Engine::open`].
    /// Listeners use those sockets of the estate that belong to them.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn prepare(settings: Settings, estate: Estate) -> Result<Self, StartError> {
        let clock = estate.begin.map_or_else(Clock::start, Clock::since);
        let cores = settings.threads.max(1);
        let census = Census::new(settings.max_connections, settings.max_descriptors, settings.max_memory);
        let (strikes, inbox) = mpsc::channel(STRIKES);
        let (said, heard) = mpsc::channel(SAID);
        let (notes, noted) = mpsc::channel(NOTES);
        let (traces, traced) = mpsc::channel(trace::QUEUE);
        let processors = worker::processors(cores);
        let workers = (0..cores)
            .map(|index| {
                Worker::start(index, clock, Arc::clone(&census), processors.as_ref().map(|list| list[index]))
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(StartError::Thread)?;
        let control = Control {
            cores,
            settings: Settings {
                listeners: Vec::new(),
                groups: Vec::new(),
                access_log: None,
                tracing: None,
                ..settings.clone()
            },
            groups: Default::default(),
            listeners: Vec::new(),
            workers,
            lag: LagMeter::new(cores),
            look: Time(0),
            journal: Journal::new(),
            wires: Wires { strikes, said, notes },
            due_hand_overs: Vec::new(),
            host: HostMeter::new(clock.now()),
            desk: Desk::default(),
            neighbours: Neighbours::default(),
            sharing: Sharing::default(),
            held: true,
            given: estate.sockets,
            elsewhere: Elsewhere::default(),
            flows: Vec::new(),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let (probes, findings) = Probes::new(runtime.handle().clone());
        let inner = Arc::new(Inner {
            clock,
            began: clock.now(),
            control: Mutex::new(control),
            census,
            probes: Mutex::new(probes),
            said: Mutex::new(Some(heard)),
            access: Mutex::default(),
            access_dropped: Arc::default(),
            traces,
            traced: Mutex::new(Some(traced)),
            spans: Spans::default(),
            version: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
            reload_error: Mutex::default(),
            stopping: AtomicBool::new(false),
            hand_overs: Arc::new(Semaphore::new(hand_over::AT_ONCE)),
            wake: Notify::new(),
            checked: Notify::new(),
            ended: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        if let Err(error) = apply::apply(&inner, settings) {
            end(&inner);
            // Dropping a runtime waits, which is not allowed where the caller may be asynchronous.
            runtime.shutdown_background();
            return Err(error);
        }
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = govern(&own, inbox, noted) => {}
                        () = probe::report(&own, findings) => {}
                    }
                });
                // Pending notifications about alerts are not waited for.
                runtime.shutdown_background();
            })
            .map_err(StartError::Thread)?;
        *lock(&inner.thread) = Some(thread);
        Ok(Self(inner))
    }

    /// Applies a new configuration without dropping connections, and returns the changes, one line each.
    /// `beside` are changes elsewhere, to be reported along with them.
    ///
    /// # Errors
    /// A resource for the new configuration is not available; the previous one stays in force then.
    pub fn reload(&self, settings: Settings, beside: Vec<String>) -> Result<Vec<String>, StartError> {
        let mut changes =
            apply::apply(&self.0, settings).inspect_err(|error| self.reload_refused(&error.to_string()))?;
        changes.extend(beside);
        self.0.reloads.fetch_add(1, Relaxed);
        *lock(&self.0.reload_error) = None;
        let why = if changes.is_empty() { "nothing changed".into() } else { changes.join("; ") };
        lock(&self.0.control).journal.note(EventKind::Reloaded, why);
        Ok(changes)
    }

    /// Applies settings that differ in discovered members only. That is no reload, and no change is reported
    /// here.
    ///
    /// # Errors
    /// A resource for the settings is not available; the previous ones stay in force then.
    pub fn found(&self, settings: Settings) -> Result<(), StartError> {
        apply::apply(&self.0, settings).map(drop)
    }

    /// Writes an event to the event log.
    pub fn tell(&self, event: Event) {
        lock(&self.0.control).journal.write(event);
    }

    /// Records that a new configuration was rejected before it came here: the file was invalid.
    pub fn reload_refused(&self, why: &str) {
        *lock(&self.0.reload_error) = Some(why.to_owned());
        lock(&self.0.control).journal.note(EventKind::ReloadRefused, why.to_owned());
    }

    /// Returns the status.
    pub fn status(&self) -> plimsoll_brain::status::Status {
        report::status(&self.0)
    }

    /// Returns the current state of one group; `None` if there is no such group.
    pub fn look(&self, group: &str) -> Option<GroupLook> {
        report::look(&self.0, group)
    }

    /// Returns the number of a group's requests that took at most a number of seconds, for a fixed list of
    /// bounds. Empty if there is no such group.
    pub fn buckets(&self, group: &str) -> Vec<(f64, u64)> {
        report::buckets(&self.0, group)
    }

    /// Returns the counters of each member of a group; empty if there is no such group.
    pub fn counters(&self, group: &str) -> Vec<MemberCounters> {
        report::counters(&self.0, group)
    }

    /// Records a member's load by the group's metric, measured `age` ago; `of_host` if it is the load of the
    /// whole host. Ignores unusable input (no such member, not a number, negative).
    pub fn load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).loaded(group, member, Load { value, at, of_host }, now);
        self.0.wake.notify_one();
    }

    /// Drops the recorded loads, as the group's metric has changed.
    pub fn forget_loads(&self, group: &str) {
        let now = self.0.clock.now();
        lock(&self.0.control).with(group, now, |analyzer| analyzer.forget_loads(now));
        self.0.wake.notify_one();
    }

    /// Returns the receiver of members' report samples, which contain more than the choice needs, as often as
    /// the groups' settings require. Samples not received in time are dropped. There is one receiver: `None`
    /// after the first call.
    pub fn said(&self) -> Option<mpsc::Receiver<Said>> {
        lock(&self.0.said).take()
    }

    /// Returns the receiver of traces, in batches, if [`Settings::tracing`] enables them. Batches not
    /// received in time are dropped and counted. There is one receiver: `None` after the first call.
    pub fn traced(&self) -> Option<mpsc::Receiver<Vec<Traced>>> {
        lock(&self.0.traced).take()
    }

    /// Returns the counters of spans, for the exporter to update.
    pub fn spans(&self) -> Spans {
        self.0.spans.clone()
    }

    /// Records a member's throughput and utilization, measured `age` ago, for strategies that weigh members
    /// by them. Ignores unusable input (no such member, not a number, negative).
    pub fn usage(&self, group: &str, member: &str, rates: Rates, age: Duration) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        let Rates { rps, utilization, eps } = rates;
        lock(&self.0.control).used(group, member, Usage { rps, utilization, eps, at }, now);
        self.0.wake.notify_one();
    }

    /// Records the utilization of a member's processors, measured `age` ago, for the load line. Ignores
    /// unusable input.
    pub fn sensed(&self, group: &str, member: &str, cpu: Cpu, age: Duration) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).sensed(group, member, cpu, at);
    }

    /// Returns the share of a member's sessions that should move, if the member is under alert. The member is
    /// given by name or address, in one group. Without a group, the result is that of the group with the
    /// largest share.
    pub fn asked_to_shed(&self, group: Option<&str>, member: &str) -> Option<Shed> {
        lock(&self.0.control).shed(group, member)
    }

    /// Sets weights from outside, for a group whose strategy uses them; `None` for a member whose weight is
    /// unknown.
    pub fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        lock(&self.0.control).weighed(group, weights, self.0.clock.now());
    }

    /// Returns the meter reading of a side-car's own server; `None` if there is no such group, or if it is
    /// not a side-car.
    pub fn reading(&self, group: &str) -> Option<Reading> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.group.side_car.as_ref()?.reading())
    }

    /// Returns the meter reading of all servers that share this host: see
    /// [`SideCarSettings::shares_host`](crate::SideCarSettings).
    pub fn host_reading(&self) -> Reading {
        lock(&self.0.control).host.reading()
    }

    /// Asks for a share (0 to 1) of the connections to a side-car's server to leave, on behalf of balancers.
    /// Each present connection draws once, and leaves at the next boundary of a request (HTTP) or idle moment
    /// (TCP). Connections that have not drawn before the next call use its share; 0 revokes an alert.
    pub fn shed(&self, group: &str, share: f64) {
        if let Some(ruled) = lock(&self.0.control).groups.get(group)
            && let Some(side_car) = &ruled.group.side_car
        {
            side_car.shed(share);
        }
    }

    /// Changes a group's strategy until the next reload, and returns the previous one, for people. `written`
    /// is the operator's spelling.
    ///
    /// # Errors
    /// There is no such group.
    pub fn choose_by(
        &self,
        group: &str,
        strategy: &'static Strategy,
        knobs: Knobs,
        written: &str,
    ) -> Result<String, String> {
        let now = self.0.clock.now();
        let before = lock(&self.0.control).choose_by(group, (strategy, knobs), written, now)?;
        self.0.wake.notify_one();
        Ok(before)
    }

    /// Writes an event: more reports arrived for a member than are accepted.
    pub fn flooded(&self, group: &str, member: &str) {
        let why = "more than 50 reports in a second: those beyond are dropped".to_owned();
        let (group, member) = (group.into(), Some(member.into()));
        let event = Event { kind: EventKind::Flooded, group, member, why, inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }

    /// Writes an event: a member does not report its load in the requested way, with the reason.
    pub fn no_reports(&self, group: &str, member: &str, why: &str) {
        let (group, member) = (group.into(), Some(member.into()));
        let event = Event { kind: EventKind::NoReports, group, member, why: why.into(), inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }

    /// Returns the strategy's knowledge of a group's members, its results, and recent decisions; `None` if
    /// there is no such group. Knowledge beyond the data plane (loads, facts) is left for callers to fill in.
    pub fn explain(&self, group: &str) -> Option<GroupExplanation> {
        explain::explain(&self.0, group)
    }

    /// Returns the last ten minutes of a group; `None` if there is no such group.
    pub fn recent(&self, group: &str) -> Option<Recent> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.recent(self.0.clock.now()))
    }

    /// Returns the last thousand events, oldest first.
    pub fn events(&self) -> Vec<Stamped> {
        lock(&self.0.control).journal.history()
    }

    /// Returns a receiver of further events.
    pub fn subscribe(&self) -> broadcast::Receiver<Stamped> {
        lock(&self.0.control).journal.subscribe()
    }

    /// Returns the bound addresses of the listeners, in the order of the configuration.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.0.control).listeners.iter().map(|listener| listener.door.address).collect()
    }

    /// Returns the object reference by which clients reach a group; `None` if there is no such group, or no
    /// IIOP listener for it.
    pub fn reference(&self, group: &str) -> Option<Ior> {
        let control = lock(&self.0.control);
        let iiop = control.groups.get(group)?.settings.iiop.clone()?;
        let listeners = control.settings.listeners.iter().zip(&control.listeners);
        let mut listeners = listeners
            .filter(|(listener, _)| listener.protocol == Protocol::Iiop && &*listener.group == group)
            .map(|(listener, open)| (listener, open.door.address))
            .peekable();
        listeners.peek()?;
        Some(iiop::reference::reference(&iiop, listeners))
    }

    /// Closes the listeners, and lets requests in flight end until the configured deadline (graceful
    /// shutdown). Returns the number of connections that were cut. Must be called within a tokio runtime that
    /// has timers.
    pub async fn stop(&self) -> u64 {
        let deadline = {
            let mut control = lock(&self.0.control);
            if !self.0.stopping.swap(true, Relaxed) {
                control
                    .journal
                    .note(EventKind::Stopping, "listeners are closed, requests in flight end".into());
                // Connections that end by themselves have done so well before the deadline.
                let parting = PARTING.min(control.settings.drain_deadline / 2);
                control.listeners.iter_mut().for_each(|open| open.sockets.clear());
                control.order_all(|| Order::Stop { parting, left: false });
            }
            self.0.clock.now() + control.settings.drain_deadline
        };
        self.wind_up(deadline).await
    }

    /// Waits until all connections have ended, or for the deadline, ends the threads, and returns the number
    /// of connections that were cut.
    async fn wind_up(&self, deadline: Time) -> u64 {
        // A core that has not received the order yet may still accept connections, so the count must be 0
        // repeatedly.
        let mut quiet = 0;
        while quiet < 3 && self.0.clock.now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
            quiet = if self.0.census.open() == 0 { quiet + 1 } else { 0 };
        }
        let cut = self.0.census.open();
        let inner = Arc::clone(&self.0);
        // Joining blocks, but only until the threads receive their last order.
        let _ = tokio::task::spawn_blocking(move || end(&inner)).await;
        cut as u64
    }
}

/// Ends all threads.
fn end(inner: &Inner) {
    inner.ended.store(true, Relaxed);
    inner.wake.notify_one();
    lock(&inner.probes).stop();
    let workers = std::mem::take(&mut lock(&inner.control).workers);
    workers.iter().for_each(|worker| {
        worker.order(Order::Exit);
    });
    workers.into_iter().for_each(Worker::join);
    if let Some(log) = lock(&inner.access).take() {
        log.close();
    }
    if let Some(thread) = lock(&inner.thread).take() {
        // The panic of a control thread was already reported on stderr.
        let _ = thread.join();
    }
}

/// Runs the control thread.
async fn govern(inner: &Arc<Inner>, mut strikes: mpsc::Receiver<Strike>, mut notes: mpsc::Receiver<Event>) {
    let mut compare = tokio::time::interval(COMPARE);
    compare.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut look = tokio::time::Instant::now();
    let mut fill = look;
    while !inner.ended.load(Relaxed) {
        let (due, to_tell) = {
            let mut control = lock(&inner.control);
            (control.due(), std::mem::take(&mut control.due_hand_overs))
        };
        hand_over::begin(inner, to_tell);
        let wait = due.map_or(Duration::from_secs(3600), |due| due.since(inner.clock.now()));
        tokio::select! {
            Some(strike) = strikes.recv() => lock(&inner.control).struck(&strike, inner.clock.now()),
            Some(event) = notes.recv() => lock(&inner.control).journal.write(event),
            _ = compare.tick() => lock(&inner.control).compare(inner.clock.now()),
            () = tokio::time::sleep(wait) => lock(&inner.control).tick(inner.clock.now()),
            () = tokio::time::sleep_until(look) => {
                let rest = lock(&inner.control).watch(inner.clock.now());
                look = tokio::time::Instant::now() + rest;
            }
            () = tokio::time::sleep_until(fill) => {
                let rest = lock(&inner.control).fill(inner.clock.now());
                fill = tokio::time::Instant::now() + rest;
            }
            // There may be a new limit on the request rate.
            () = inner.wake.notified() => fill = tokio::time::Instant::now(),
        }
    }
}
