//! Fixtures for the crate's tests: a core without threads, a group with one member.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, GroupSpec, MemberSpec, Strategy, StrategyParams, Time, WhenAllDown, strategy,
};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::listener::{Listener, ListenerShared};
use crate::runtime::clock::Clock;
use crate::runtime::resource_limits::ResourceLimits;
use crate::upstream::group::{ControlChannels, MemberRecord, PublishedPlan, ReportSample, SharedGroup};
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, WorkKind};
use crate::upstream::side_car::HostMeter;
use crate::upstream::thread_context::ThreadContext;
use crate::worker;
use crate::{
    BindingMode, ClientTimeouts, ForwardedHeaders, GroupSettings, HashKeySource, ListenerSettings,
    MemberTimeouts, Protocol, RetrySettings, SessionLoad,
};

pub(crate) const LOOPBACK: SocketAddr =
    SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 80));

/// Returns a core's pool of the group.
pub(crate) fn pool(core: &ThreadContext) -> Rc<GroupPool> {
    pool_with_reports(core, None).0
}

/// Returns the pool, and a receiver of its member's report samples, one per `sample`.
pub(crate) fn pool_with_reports(
    core: &ThreadContext,
    sample: Option<Duration>,
) -> (Rc<GroupPool>, mpsc::Receiver<ReportSample>) {
    pool_with_strategy(core, sample, "round_robin")
}

/// Returns the pool and receiver with another strategy.
pub(crate) fn pool_with_strategy(
    core: &ThreadContext,
    sample: Option<Duration>,
    strategy: &str,
) -> (Rc<GroupPool>, mpsc::Receiver<ReportSample>) {
    pool_with_member(core, sample, strategy, Some(LOOPBACK))
}

/// Returns the pool and receiver with the member at another address, or without one.
pub(crate) fn pool_with_member(
    core: &ThreadContext,
    sample: Option<Duration>,
    strategy: &str,
    member: Option<SocketAddr>,
) -> (Rc<GroupPool>, mpsc::Receiver<ReportSample>) {
    let strategy: &'static Strategy = strategy::find(strategy).expect("there is one");
    let member = member.map(|address| MemberSpec {
        name: "m:80".into(),
        address,
        capacity: 1.0,
        limit: u32::MAX,
        leaving: false,
        checked: false,
    });
    let spec = GroupSpec {
        name: "g".into(),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: member.into_iter().collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: None,
        aperture: None,
    };
    let minute = Duration::from_secs(60);
    let settings = Arc::new(GroupSettings {
        iiop: None,
        strip_reports: true,
        sample_reports: sample,
        public: Default::default(),
        hosts: Default::default(),
        addresses: Default::default(),
        side_car: None,
        hand_over: None,
        keeps_drained: false,
        session_load: SessionLoad::Unknown,
        spec: spec.clone(),
        probe: None,
        key: HashKeySource::Client,
        timeouts: MemberTimeouts { connect: minute, per_try: minute, total: minute, idle: minute },
        retry: RetrySettings { attempts: 2, budget: 0.2, min_per_second: 10.0 },
        queue: 0,
        max_rate: None,
        queue_timeout: minute,
        pool: 8,
        pool_idle: minute,
        send_proxy: None,
        tls: None,
        http2: false,
    });
    let mut analyzer = Analyzer::new(spec, Time(0));
    let plan = analyzer.plan(Time(0)).expect("the first");
    let records =
        analyzer.members().map(|(id, _, vitals)| MemberRecord::new(id, Arc::clone(vitals), 1)).collect();
    let (reports, report_receiver) = mpsc::channel(100);
    let channels = ControlChannels { failures: mpsc::channel(1).0, reports, events: mpsc::channel(1).0 };
    let group = SharedGroup::new(
        PublishedPlan {
            plan,
            records,
            others: Vec::new(),
            draining: Vec::new(),
            draining_plan: None,
            settings,
        },
        1,
        channels,
        &HostMeter::new(Time(0)),
    );
    (core.pool(&group), report_receiver)
}

/// Returns an HTTP listener for a core's pool.
pub(crate) fn listener(core: &ThreadContext, pool: Rc<GroupPool>) -> Rc<Listener> {
    let minute = Duration::from_secs(60);
    let settings = ListenerSettings {
        public: None,
        address: LOOPBACK,
        protocol: Protocol::Http,
        group: "g".into(),
        routes: None,
        others: Vec::new(),
        binding: BindingMode::PerRequest,
        affinity: None,
        move_idle: Duration::ZERO,
        backlog: 1,
        accept_proxy: false,
        priority: None,
        timeouts: ClientTimeouts { head: minute, idle: minute, body: minute, tunnel: minute },
        max_head: 8192,
        half_close: false,
        upgrades: vec!["websocket".into(), "y".into()],
        forwarded: ForwardedHeaders::Off,
        trusted: Vec::new(),
        max_flows: 1,
        zone: None,
        tls: None,
    };
    Listener::new(ListenerShared::new(LOOPBACK, 1), core.index, settings, pool, Vec::new())
}

/// Runs a future on a core with timers; it must end within a minute.
pub(crate) fn run<F: Future>(test: impl FnOnce(Rc<ThreadContext>) -> F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    runtime.expect("a runtime").block_on(async {
        let clock = Clock::start();
        let core = worker::start_context(0, clock, ResourceLimits::new(10, 100, 1 << 30)).expect("a core");
        tokio::time::timeout(Duration::from_secs(60), test(core)).await.expect("it ends")
    })
}

/// Returns an in-flight guard for the member.
pub(crate) fn trip(core: &ThreadContext) -> InFlight {
    in_flight_of(&pool(core))
}

/// Returns an in-flight guard for the member of an existing pool.
pub(crate) fn in_flight_of(pool: &Rc<GroupPool>) -> InFlight {
    match pool.admit(0, 0, Time(0), &[], WorkKind::Session) {
        AdmissionOutcome::Admitted(in_flight) => in_flight,
        AdmissionOutcome::Full | AdmissionOutcome::Overloaded | AdmissionOutcome::NoCandidate => {
            panic!("no member")
        }
    }
}
