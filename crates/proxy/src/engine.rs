//! The running data plane, as the rest of the process holds it.

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

/// Strikes that may wait for the control thread.
const STRIKES: usize = 256;
/// Words of members that may wait to be heard.
const SAID: usize = 1024;
/// What happened at clients that may wait to be written down.
const NOTES: usize = 64;
/// How often success rates are looked at.
const COMPARE: Duration = Duration::from_secs(1);

/// A running data plane. Cloning gives another handle of the same. Every method may be called from any thread.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// How much a member does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Requests it ends a second.
    pub rps: f64,
    /// How busy it is, 1 for fully; may exceed 1.
    pub utilization: f64,
    /// Requests it fails a second.
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

    /// The same, but for accepting anybody: that begins with [`Engine::open`]. Sockets of the estate are taken for the listeners
    /// that they are of.
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
                // Whoever is still told of an alert is not waited for.
                runtime.shutdown_background();
            })
            .map_err(StartError::Thread)?;
        *lock(&inner.thread) = Some(thread);
        Ok(Self(inner))
    }

    /// Puts a new configuration in force without dropping anything; what it changed, one line each. `beside` is
    /// what it changes elsewhere, to be told with it.
    ///
    /// # Errors
    /// Something of it cannot be had; the configuration before stays in force then.
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

    /// Puts other members in force that were found: what else the settings say is in force already. That is no reload, and
    /// nothing is told of it here.
    ///
    /// # Errors
    /// Something of the settings cannot be had; what was in force before stays then.
    pub fn found(&self, settings: Settings) -> Result<(), StartError> {
        apply::apply(&self.0, settings).map(drop)
    }

    /// Writes an event into the journal.
    pub fn tell(&self, event: Event) {
        lock(&self.0.control).journal.write(event);
    }

    /// Says that a new configuration was refused before it came here: the file was bad.
    pub fn reload_refused(&self, why: &str) {
        *lock(&self.0.reload_error) = Some(why.to_owned());
        lock(&self.0.control).journal.note(EventKind::ReloadRefused, why.to_owned());
    }

    /// What there is to be seen.
    pub fn status(&self) -> plimsoll_brain::status::Status {
        report::status(&self.0)
    }

    /// One group as it is now; `None` if there is no such group.
    pub fn look(&self, group: &str) -> Option<GroupLook> {
        report::look(&self.0, group)
    }

    /// How many requests of a group took at most so many seconds, for a fixed row of bounds; empty if there
    /// is no such group.
    pub fn buckets(&self, group: &str) -> Vec<(f64, u64)> {
        report::buckets(&self.0, group)
    }

    /// What is counted of each member of a group; empty if there is no such group.
    pub fn counters(&self, group: &str) -> Vec<MemberCounters> {
        report::counters(&self.0, group)
    }

    /// The load of a member by the group's metric, measured `age` ago; of all that goes on at its host, if so. What cannot be used (no
    /// such member, not a number, negative) is ignored.
    pub fn load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).loaded(group, member, Load { value, at, of_host }, now);
        self.0.wake.notify_one();
    }

    /// The group's metric is another one from now on: what was told by the one before is forgotten.
    pub fn forget_loads(&self, group: &str) {
        let now = self.0.clock.now();
        lock(&self.0.control).with(group, now, |analyzer| analyzer.forget_loads(now));
        self.0.wake.notify_one();
    }

    /// What members say with their answers of what the choice does not need, sampled as the groups' settings ask; what is
    /// not taken out in time is dropped. There is one listener: `None` after the first call.
    pub fn said(&self) -> Option<mpsc::Receiver<Said>> {
        lock(&self.0.said).take()
    }

    /// What was traced, in batches, where [`Settings::tracing`] says so; what is not taken out in time is dropped and counted. There is
    /// one who takes it: `None` after the first call.
    pub fn traced(&self) -> Option<mpsc::Receiver<Vec<Traced>>> {
        lock(&self.0.traced).take()
    }

    /// What became of spans, to be counted by whoever sends them.
    pub fn spans(&self) -> Spans {
        self.0.spans.clone()
    }

    /// How much a member does and how busy that makes it, measured `age` ago; for strategies that weigh members by it.
    /// What cannot be used (no such member, not a number, negative) is ignored.
    pub fn usage(&self, group: &str, member: &str, rates: Rates, age: Duration) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        let Rates { rps, utilization, eps } = rates;
        lock(&self.0.control).used(group, member, Usage { rps, utilization, eps, at }, now);
        self.0.wake.notify_one();
    }

    /// How busy a member's processors are, measured `age` ago. For the load line; what cannot be used is ignored.
    pub fn sensed(&self, group: &str, member: &str, cpu: Cpu, age: Duration) {
        let now = self.0.clock.now();
        let at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).sensed(group, member, cpu, at);
    }

    /// Which part of a member's sessions is to go elsewhere, if it is under alert: by its name or address, in one group
    /// or in the one of all that have it that asks for most.
    pub fn asked_to_shed(&self, group: Option<&str>, member: &str) -> Option<Shed> {
        lock(&self.0.control).shed(group, member)
    }

    /// Weights from outside, for a group whose strategy takes them; `None` for a member whose weight is not known.
    pub fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        lock(&self.0.control).weighed(group, weights, self.0.clock.now());
    }

    /// What the meter of a side-car's own server says now; `None` if there is no such group, or it is none.
    pub fn reading(&self, group: &str) -> Option<Reading> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.group.side_car.as_ref()?.reading())
    }

    /// What the meter of all servers says that share this host: see [`SideCarSettings::shares_host`](crate::SideCarSettings).
    pub fn host_reading(&self) -> Reading {
        lock(&self.0.control).host.reading()
    }

    /// Balancers want this share (0 to 1) of the connections to a side-car's server to go elsewhere: each that is
    /// there now draws once, and goes at the next boundary of a request (http) or quiet moment (tcp). Connections
    /// that have not drawn yet when the next call comes draw by that; 0 takes an alert back.
    pub fn shed(&self, group: &str, share: f64) {
        if let Some(ruled) = lock(&self.0.control).groups.get(group)
            && let Some(side_car) = &ruled.group.side_car
        {
            side_car.shed(share);
        }
    }

    /// Puts another strategy in force, until the next reload: the one before it, for people. `written` is how the
    /// operator wrote it.
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

    /// Notes that more reports came for a member than are taken.
    pub fn flooded(&self, group: &str, member: &str) {
        let why = "more than 50 reports in a second: those beyond are dropped".to_owned();
        let (group, member) = (group.into(), Some(member.into()));
        let event = Event { kind: EventKind::Flooded, group, member, why, inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }

    /// Notes that a member does not report its load in the way that it is asked to, and why.
    pub fn no_reports(&self, group: &str, member: &str, why: &str) {
        let (group, member) = (group.into(), Some(member.into()));
        let event = Event { kind: EventKind::NoReports, group, member, why: why.into(), inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }

    /// What the strategy knows of a group's members and makes of them, with what was decided lately; `None` if
    /// there is no such group. What is known beyond the data plane (loads, facts) is left out for others to fill in.
    pub fn explain(&self, group: &str) -> Option<GroupExplanation> {
        explain::explain(&self.0, group)
    }

    /// The last ten minutes of a group; `None` if there is no such group.
    pub fn recent(&self, group: &str) -> Option<Recent> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.recent(self.0.clock.now()))
    }

    /// The last thousand events, oldest first.
    pub fn events(&self) -> Vec<Stamped> {
        lock(&self.0.control).journal.history()
    }

    /// Events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Stamped> {
        lock(&self.0.control).journal.subscribe()
    }

    /// Where the listeners really listen, in the order of the configuration.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.0.control).listeners.iter().map(|listener| listener.door.address).collect()
    }

    /// The object reference by which clients reach a group: `None` if there is no such group, or no iiop listener of it.
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

    /// Closes the listeners and lets requests in flight end until the deadline of the settings; how many
    /// connections were cut. Must be called within a tokio runtime that has timers.
    pub async fn stop(&self) -> u64 {
        let deadline = {
            let mut control = lock(&self.0.control);
            if !self.0.stopping.swap(true, Relaxed) {
                control
                    .journal
                    .note(EventKind::Stopping, "listeners are closed, requests in flight end".into());
                // All that part in peace have done so well before the deadline.
                let parting = PARTING.min(control.settings.drain_deadline / 2);
                control.listeners.iter_mut().for_each(|open| open.sockets.clear());
                control.order_all(|| Order::Stop { parting, left: false });
            }
            self.0.clock.now() + control.settings.drain_deadline
        };
        self.wind_up(deadline).await
    }

    /// Ends when all connections have, or else at the deadline; how many were cut.
    async fn wind_up(&self, deadline: Time) -> u64 {
        // The census also counts connections that wait to be accepted by a core that was not told yet.
        let mut quiet = 0;
        while quiet < 3 && self.0.clock.now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
            quiet = if self.0.census.open() == 0 { quiet + 1 } else { 0 };
        }
        let cut = self.0.census.open();
        let inner = Arc::clone(&self.0);
        // Joining blocks, but only until the threads see their last order.
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
        // A control thread that panicked has said so on stderr.
        let _ = thread.join();
    }
}

/// The control thread.
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
            // There may be a limit now that was not there.
            () = inner.wake.notified() => fill = tokio::time::Instant::now(),
        }
    }
}
