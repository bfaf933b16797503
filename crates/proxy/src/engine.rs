//! The handle of the running data plane, for the rest of the process.

pub(crate) mod apply;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::load_line::CpuUtilization;
use plimsoll_brain::meter::Reading;
use plimsoll_brain::shared_hosts::SharedHosts;
use plimsoll_brain::status::{GroupExplanation, GroupRecent};
use plimsoll_brain::{
    Event, EventKind, ReportedLoad, ShedDecision, Strategy, StrategyParams, Time, UsageReport,
};
use plimsoll_wire::giop::Ior;
use tokio::sync::{Notify, Semaphore, broadcast, mpsc};

use crate::control::counter_snapshot::PredecessorLoad;
use crate::control::drain_hook;
use crate::control::engine_shared::EngineShared;
use crate::control::explain;
use crate::control::lease::LeaseTable;
use crate::control::probe::{self, ProbeRunner};
use crate::control::shared_hosts::HostSharing;
use crate::control::status_report;
use crate::control::status_report::GroupSnapshot;
use crate::control::{ControlPlane, EventLog, SequencedEvent};
use crate::protocol::iiop;
use crate::runtime::clock::Clock;
use crate::runtime::resource_limits::ResourceLimits;
use crate::runtime::sync::lock;
use crate::upstream::group::{ControlChannels, FailureSignal, ReportSample};
use crate::upstream::side_car::HostMeter;
use crate::upstream::thread_context::GOODBYE_GRACE;
use crate::upstream::trace::{self, FinishedTrace, SpanCounters};
use crate::worker::event_loop_lag::LagMeter;
use crate::worker::{self, WorkerCommand, WorkerHandle};
use crate::{MemberCounters, Protocol, Settings, StartError};

mod commands;
mod fleet;
mod handoff;
mod leases;

pub use handoff::{HandoffState, InheritedState};

/// The number of failure signals that may wait for the control thread.
const FAILURE_QUEUE: usize = 256;
/// The number of members' report samples that may wait for the receiver.
const REPORT_QUEUE: usize = 1024;
/// The number of events from clients' connections that may wait to be written.
const EVENT_QUEUE: usize = 64;
/// The interval of comparing success rates.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// A running data plane. A clone is another handle of the same. Every method may be called from any thread.
#[derive(Clone)]
pub struct Engine(Arc<EngineShared>);

/// The rates of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberRates {
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
        let engine = Self::prepare(settings, InheritedState::default())?;
        match engine.open() {
            Ok(()) => Ok(engine),
            Err(error) => {
                end_threads(&engine.0);
                Err(error)
            }
        }
    }

    /// Starts as [`Engine::start`], without accepting connections: that begins with [`Engine::open`].
    /// Listeners use those sockets of the inherited state that belong to them.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn prepare(settings: Settings, inherited: InheritedState) -> Result<Self, StartError> {
        let clock = inherited.clock_start.map_or_else(Clock::start, Clock::with_start);
        let cores = settings.threads.max(1);
        let limits =
            ResourceLimits::new(settings.max_connections, settings.max_descriptors, settings.max_memory);
        let (failures, failure_receiver) = mpsc::channel(FAILURE_QUEUE);
        let (reports, report_receiver) = mpsc::channel(REPORT_QUEUE);
        let (events, event_receiver) = mpsc::channel(EVENT_QUEUE);
        let (traces, trace_receiver) = mpsc::channel(trace::QUEUE);
        let processors = worker::processors(cores);
        let workers = (0..cores)
            .map(|index| {
                WorkerHandle::start(
                    index,
                    clock,
                    Arc::clone(&limits),
                    processors.as_ref().map(|cpus| cpus[index]),
                )
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(StartError::Thread)?;
        let control = ControlPlane {
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
            next_sample: Time(0),
            event_log: EventLog::new(),
            channels: ControlChannels { failures, reports, events },
            pending_hooks: Vec::new(),
            host_meter: HostMeter::new(clock.now()),
            lease_table: LeaseTable::default(),
            shared_hosts: SharedHosts::default(),
            host_sharing: HostSharing::default(),
            held: true,
            inherited_sockets: inherited.sockets,
            predecessor_load: PredecessorLoad::default(),
            inherited_flows: Vec::new(),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let (probes, results) = ProbeRunner::new(runtime.handle().clone());
        let inner = Arc::new(EngineShared {
            clock,
            started_at: clock.now(),
            control: Mutex::new(control),
            limits,
            probes: Mutex::new(probes),
            report_samples: Mutex::new(Some(report_receiver)),
            access_log: Mutex::default(),
            access_dropped: Arc::default(),
            traces,
            trace_receiver: Mutex::new(Some(trace_receiver)),
            spans: SpanCounters::default(),
            version: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
            reload_error: Mutex::default(),
            stopping: AtomicBool::new(false),
            hook_permits: Arc::new(Semaphore::new(drain_hook::MAX_CONCURRENT)),
            wake: Notify::new(),
            probes_finished: Notify::new(),
            ended: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        if let Err(error) = apply::apply(&inner, settings) {
            end_threads(&inner);
            // Dropping a runtime waits, which is not allowed where the caller may be asynchronous.
            runtime.shutdown_background();
            return Err(error);
        }
        let shared = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = run_control(&shared, failure_receiver, event_receiver) => {}
                        () = probe::handle_results(&shared, results) => {}
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
    pub fn reload(&self, settings: Settings, other_changes: Vec<String>) -> Result<Vec<String>, StartError> {
        let mut changes = apply::apply(&self.0, settings)
            .inspect_err(|error| self.record_rejected_reload(&error.to_string()))?;
        changes.extend(other_changes);
        self.0.reloads.fetch_add(1, Relaxed);
        *lock(&self.0.reload_error) = None;
        let message = if changes.is_empty() { "nothing changed".into() } else { changes.join("; ") };
        lock(&self.0.control).event_log.write_process_event(EventKind::Reloaded, message);
        Ok(changes)
    }

    /// Applies settings that differ in discovered members only. That is no reload, and no change is reported
    /// here.
    ///
    /// # Errors
    /// A resource for the settings is not available; the previous ones stay in force then.
    pub fn apply_discovered(&self, settings: Settings) -> Result<(), StartError> {
        apply::apply(&self.0, settings).map(drop)
    }

    /// Writes an event to the event log.
    pub fn write_event(&self, event: Event) {
        lock(&self.0.control).event_log.write(event);
    }

    /// Records that a new configuration was rejected before it came here: the file was invalid.
    pub fn record_rejected_reload(&self, error: &str) {
        *lock(&self.0.reload_error) = Some(error.to_owned());
        lock(&self.0.control).event_log.write_process_event(EventKind::ReloadRefused, error.to_owned());
    }

    /// Returns the status.
    pub fn status(&self) -> plimsoll_brain::status::StatusReport {
        status_report::status(&self.0)
    }

    /// Returns the current state of one group; `None` if there is no such group.
    pub fn group_snapshot(&self, group: &str) -> Option<GroupSnapshot> {
        status_report::group_snapshot(&self.0, group)
    }

    /// Returns the number of a group's requests that took at most a number of seconds, for a fixed list of
    /// bounds. Empty if there is no such group.
    pub fn latency_buckets(&self, group: &str) -> Vec<(f64, u64)> {
        status_report::buckets(&self.0, group)
    }

    /// Returns the counters of each member of a group; empty if there is no such group.
    pub fn member_counters(&self, group: &str) -> Vec<MemberCounters> {
        status_report::counters(&self.0, group)
    }

    /// Records a member's load by the group's metric, measured `age` ago; `of_host` if it is the load of the
    /// whole host. Ignores unusable input (no such member, not a number, negative).
    pub fn record_load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool) {
        let now = self.0.clock.now();
        let measured_at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).record_load(
            group,
            member,
            ReportedLoad { value, at: measured_at, of_host },
            now,
        );
        self.0.wake.notify_one();
    }

    /// Drops the recorded loads, as the group's metric has changed.
    pub fn forget_loads(&self, group: &str) {
        let now = self.0.clock.now();
        lock(&self.0.control).with_analyzer(group, now, |analyzer| analyzer.forget_loads(now));
        self.0.wake.notify_one();
    }

    /// Returns the receiver of members' report samples, which contain more than the choice needs, as often as
    /// the groups' settings require. Samples not received in time are dropped. There is one receiver: `None`
    /// after the first call.
    pub fn report_samples(&self) -> Option<mpsc::Receiver<ReportSample>> {
        lock(&self.0.report_samples).take()
    }

    /// Returns the receiver of traces, in batches, if [`Settings::tracing`] enables them. Batches not
    /// received in time are dropped and counted. There is one receiver: `None` after the first call.
    pub fn traces(&self) -> Option<mpsc::Receiver<Vec<FinishedTrace>>> {
        lock(&self.0.trace_receiver).take()
    }

    /// Returns the counters of spans, for the exporter to update.
    pub fn span_counters(&self) -> SpanCounters {
        self.0.spans.clone()
    }

    /// Records a member's throughput and utilization, measured `age` ago, for strategies that weigh members
    /// by them. Ignores unusable input (no such member, not a number, negative).
    pub fn record_usage(&self, group: &str, member: &str, rates: MemberRates, age: Duration) {
        let now = self.0.clock.now();
        let measured_at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        let MemberRates { rps, utilization, eps } = rates;
        lock(&self.0.control).record_usage(
            group,
            member,
            UsageReport { rps, utilization, eps, at: measured_at },
            now,
        );
        self.0.wake.notify_one();
    }

    /// Records the utilization of a member's processors, measured `age` ago, for the load line. Ignores
    /// unusable input.
    pub fn record_processor_load(&self, group: &str, member: &str, cpu: CpuUtilization, age: Duration) {
        let now = self.0.clock.now();
        let measured_at = Time(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        lock(&self.0.control).record_processor_load(group, member, cpu, measured_at);
    }

    /// Returns the share of a member's sessions that should move, if the member is under alert. The member is
    /// given by name or address, in one group. Without a group, the result is that of the group with the
    /// largest share.
    pub fn requested_shed(&self, group: Option<&str>, member: &str) -> Option<ShedDecision> {
        lock(&self.0.control).requested_shed(group, member)
    }

    /// Sets weights from outside, for a group whose strategy uses them; `None` for a member whose weight is
    /// unknown.
    pub fn set_weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        lock(&self.0.control).set_weights(group, weights, self.0.clock.now());
    }

    /// Returns the meter reading of a side-car's own server; `None` if there is no such group, or if it is
    /// not a side-car.
    pub fn meter_reading(&self, group: &str) -> Option<Reading> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.group.side_car.as_ref()?.reading())
    }

    /// Returns the meter reading of all servers that share this host: see
    /// [`SideCarSettings::shares_host`](crate::SideCarSettings).
    pub fn host_reading(&self) -> Reading {
        lock(&self.0.control).host_meter.reading()
    }

    /// Asks for a share (0 to 1) of the connections to a side-car's server to leave, on behalf of balancers.
    /// Each present connection draws once, and leaves at the next boundary of a request (HTTP) or idle moment
    /// (TCP). Connections that have not drawn before the next call use its share; 0 revokes an alert.
    pub fn request_shed(&self, group: &str, share: f64) {
        if let Some(group_state) = lock(&self.0.control).groups.get(group)
            && let Some(side_car) = &group_state.group.side_car
        {
            side_car.request_shed(share);
        }
    }

    /// Changes a group's strategy until the next reload, and returns the previous one, for people. `written`
    /// is the operator's spelling.
    ///
    /// # Errors
    /// There is no such group.
    pub fn set_strategy(
        &self,
        group: &str,
        strategy: &'static Strategy,
        params: StrategyParams,
        strategy_text: &str,
    ) -> Result<String, String> {
        let now = self.0.clock.now();
        let previous = lock(&self.0.control).set_strategy(group, (strategy, params), strategy_text, now)?;
        self.0.wake.notify_one();
        Ok(previous)
    }

    /// Writes an event: more reports arrived for a member than are accepted.
    pub fn record_report_flood(&self, group: &str, member: &str) {
        let message = "more than 50 reports in a second: those beyond are dropped".to_owned();
        let (group, member) = (group.into(), Some(member.into()));
        let event = Event { kind: EventKind::Flooded, group, member, why: message, inputs: Vec::new() };
        lock(&self.0.control).event_log.write(event);
    }

    /// Writes an event: a member does not report its load in the requested way, with the reason.
    pub fn record_missing_reports(&self, group: &str, member: &str, reason: &str) {
        let (group, member) = (group.into(), Some(member.into()));
        let event =
            Event { kind: EventKind::NoReports, group, member, why: reason.into(), inputs: Vec::new() };
        lock(&self.0.control).event_log.write(event);
    }

    /// Returns the strategy's knowledge of a group's members, its results, and recent decisions; `None` if
    /// there is no such group. Knowledge beyond the data plane (loads, facts) is left for callers to fill in.
    pub fn explain(&self, group: &str) -> Option<GroupExplanation> {
        explain::explain(&self.0, group)
    }

    /// Returns the last ten minutes of a group; `None` if there is no such group.
    pub fn recent(&self, group: &str) -> Option<GroupRecent> {
        let control = lock(&self.0.control);
        Some(control.groups.get(group)?.recent(self.0.clock.now()))
    }

    /// Returns the last thousand events, oldest first.
    pub fn events(&self) -> Vec<SequencedEvent> {
        lock(&self.0.control).event_log.history()
    }

    /// Returns a receiver of further events.
    pub fn subscribe(&self) -> broadcast::Receiver<SequencedEvent> {
        lock(&self.0.control).event_log.subscribe()
    }

    /// Returns the bound addresses of the listeners, in the order of the configuration.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.0.control).listeners.iter().map(|listener| listener.shared.address).collect()
    }

    /// Returns the object reference by which clients reach a group; `None` if there is no such group, or no
    /// IIOP listener for it.
    pub fn reference(&self, group: &str) -> Option<Ior> {
        let control = lock(&self.0.control);
        let iiop = control.groups.get(group)?.settings.iiop.clone()?;
        let configured = control.settings.listeners.iter().zip(&control.listeners);
        let mut listeners = configured
            .filter(|(listener, _)| listener.protocol == Protocol::Iiop && &*listener.group == group)
            .map(|(listener, state)| (listener, state.shared.address))
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
                control.event_log.write_process_event(
                    EventKind::Stopping,
                    "listeners are closed, requests in flight end".into(),
                );
                // Connections that end by themselves have done so well before the deadline.
                let idle_grace = GOODBYE_GRACE.min(control.settings.drain_deadline / 2);
                control.listeners.iter_mut().for_each(|listener| listener.sockets.clear());
                control.send_to_workers(|| WorkerCommand::Stop { idle_grace, handed_off: false });
            }
            self.0.clock.now() + control.settings.drain_deadline
        };
        self.shut_down(deadline).await
    }

    /// Waits until all connections have ended, or for the deadline, ends the threads, and returns the number
    /// of connections that were cut.
    async fn shut_down(&self, deadline: Time) -> u64 {
        // A core that has not received the order yet may still accept connections, so the count must be 0
        // repeatedly.
        let mut idle_rounds = 0;
        while idle_rounds < 3 && self.0.clock.now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
            idle_rounds = if self.0.limits.open() == 0 { idle_rounds + 1 } else { 0 };
        }
        let cut_connections = self.0.limits.open();
        let inner = Arc::clone(&self.0);
        // Joining blocks, but only until the threads receive their last order.
        let _ = tokio::task::spawn_blocking(move || end_threads(&inner)).await;
        cut_connections as u64
    }
}

/// Ends all threads.
fn end_threads(inner: &EngineShared) {
    inner.ended.store(true, Relaxed);
    inner.wake.notify_one();
    lock(&inner.probes).stop();
    let workers = std::mem::take(&mut lock(&inner.control).workers);
    workers.iter().for_each(|worker| {
        worker.send(WorkerCommand::Exit);
    });
    workers.into_iter().for_each(WorkerHandle::join);
    if let Some(log) = lock(&inner.access_log).take() {
        log.close();
    }
    if let Some(thread) = lock(&inner.thread).take() {
        // The panic of a control thread was already reported on stderr.
        let _ = thread.join();
    }
}

/// Runs the control thread.
async fn run_control(
    inner: &Arc<EngineShared>,
    mut failures: mpsc::Receiver<FailureSignal>,
    mut events: mpsc::Receiver<Event>,
) {
    let mut compare_timer = tokio::time::interval(COMPARE_INTERVAL);
    compare_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_sample = tokio::time::Instant::now();
    let mut next_refill = next_sample;
    while !inner.ended.load(Relaxed) {
        let (timeout, pending_hooks) = {
            let mut control = lock(&inner.control);
            (control.next_timeout(), std::mem::take(&mut control.pending_hooks))
        };
        drain_hook::start_hooks(inner, pending_hooks);
        let wait = timeout.map_or(Duration::from_secs(3600), |timeout| timeout.since(inner.clock.now()));
        tokio::select! {
            Some(strike) = failures.recv() => {
                lock(&inner.control).record_failure_signal(&strike, inner.clock.now());
            }
            Some(event) = events.recv() => lock(&inner.control).event_log.write(event),
            _ = compare_timer.tick() => lock(&inner.control).compare_members(inner.clock.now()),
            () = tokio::time::sleep(wait) => lock(&inner.control).handle_timeouts(inner.clock.now()),
            () = tokio::time::sleep_until(next_sample) => {
                let delay = lock(&inner.control).sample_traffic(inner.clock.now());
                next_sample = tokio::time::Instant::now() + delay;
            }
            () = tokio::time::sleep_until(next_refill) => {
                let delay = lock(&inner.control).refill_budgets(inner.clock.now());
                next_refill = tokio::time::Instant::now() + delay;
            }
            // There may be a new limit on the request rate.
            () = inner.wake.notified() => next_refill = tokio::time::Instant::now(),
        }
    }
}
