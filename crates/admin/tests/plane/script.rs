//! A balancer that says what the test wrote for it, and a client that sends what the test wrote for it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_admin::{
    AdminServer, BalancerBackend, ChangeFuture, CompletedUpgrade, Config, EventEntry, Lease, LeaseError,
    LeaseHolder, LeaseRequest, LoadReport, ObjectReference, RegisteredMember, Registration,
    RegistrationError, ReportRejection, SwitchTarget, UpgradeRequest, start,
};
use plimsoll_brain::autoscale::ScaleReason;
use plimsoll_brain::autoscale::instances::InstanceState;
use plimsoll_brain::status::{
    GroupExplanation, GroupRecent, GroupStatus, LatencySummary, ListenerStatus, LoadExplanation, LoadLine,
    MemberLoadLine, MemberStatus, PredictedLatency, ScaledMember, ScalerStatus, StatusReport, UrgencyStatus,
    WhatIf,
};
use plimsoll_brain::{EventKind, MemberState, ShedDecision};
use tokio::sync::broadcast;

/// Nothing that is waited for takes longer on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Entries that the script keeps.
pub(crate) const KEPT: usize = 5;

pub(crate) struct Script {
    pub(crate) status: Mutex<StatusReport>,
    pub(crate) calls: Mutex<Vec<String>>,
    log: Mutex<Vec<EventEntry>>,
    news: broadcast::Sender<()>,
}

impl Script {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            status: Mutex::new(status()),
            calls: Mutex::default(),
            log: Mutex::default(),
            news: broadcast::channel(1).0,
        })
    }

    /// Adds an entry to the log.
    pub(crate) fn tell(&self, seq: u64) {
        let mut log = self.log.lock().unwrap();
        log.push(entry(seq));
        let over = log.len().saturating_sub(KEPT);
        log.drain(..over);
        let _ = self.news.send(());
    }

    fn call(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }
}

impl BalancerBackend for Script {
    fn status(&self) -> StatusReport {
        self.status.lock().unwrap().clone()
    }

    fn buckets(&self, group: &str) -> Vec<(f64, u64)> {
        // The last exceeds the count of the status: requests ended between the two reads.
        if group == "web" { vec![(0.001, 3), (0.01, 9), (2.5, 12)] } else { vec![] }
    }

    fn events(&self, since: u64) -> Vec<EventEntry> {
        self.log.lock().unwrap().iter().filter(|entry| entry.seq > since).cloned().collect()
    }

    fn next_change(&self) -> ChangeFuture {
        let mut news = self.news.subscribe();
        Box::pin(async move {
            let _ = news.recv().await;
        })
    }

    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.call(format!("drain {group:?} {member}"));
        if member == "nobody:1" { Err("no group has a member nobody:1".into()) } else { Ok(()) }
    }

    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.call(format!("undrain {group:?} {member}"));
        Ok(())
    }

    fn set_enabled(&self, what: &SwitchTarget, on: bool) -> Result<Vec<String>, String> {
        self.call(format!("{} {what:?}", if on { "enable" } else { "disable" }));
        match what {
            SwitchTarget::Listener(address) if address == "nowhere:1" => {
                Err("there is no listener nowhere:1".into())
            }
            _ => Ok(vec!["~ a".into()]),
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.call("reload".into());
        if self.status.lock().unwrap().stopping { Err("it stops".into()) } else { Ok(vec!["+ a".into()]) }
    }

    fn upgrade(&self, wish: &UpgradeRequest) -> Result<CompletedUpgrade, String> {
        self.call(format!("upgrade {:?} {:?}", wish.binary, wish.timeout_seconds));
        match wish.binary.as_deref() {
            Some("/nowhere") => Err("/nowhere cannot be started".into()),
            _ => Ok(CompletedUpgrade { pid: 7, version: "1.2.3".into(), connections: 4 }),
        }
    }

    fn stop(&self) -> Result<(), String> {
        self.call("stop".into());
        Ok(())
    }

    fn explain(&self, group: &str) -> Option<GroupExplanation> {
        (group == "web").then(|| GroupExplanation { name: "web".into(), ..GroupExplanation::default() })
    }

    fn reference(&self, group: &str) -> Option<ObjectReference> {
        let (type_id, ior, corbaloc) =
            ("IDL:Test/Latency:1.0".into(), "IOR:00".into(), "corbaloc::one:1/web".into());
        (group == "web").then(|| ObjectReference { group: group.into(), type_id, ior, corbaloc })
    }

    fn recent(&self, group: &str) -> Option<GroupRecent> {
        (group != "nobody").then(GroupRecent::default)
    }

    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        self.call(format!("set {group} {key} {value}"));
        if key == "strategy" { Ok(vec!["~ a".into()]) } else { Err(format!("{key} cannot be set")) }
    }

    fn report(&self, report: LoadReport) -> Result<Option<ShedDecision>, ReportRejection> {
        self.call(format!("report {:?} {} {:?}", report.group, report.member, report.values));
        match &*report.member {
            "nobody:1" => Err(ReportRejection::Unknown("no member nobody:1".into())),
            "fast:1" => Err(ReportRejection::RateLimited("too fast".into())),
            "wrong:1" => Err(ReportRejection::Invalid("not a number".into())),
            "busy:1" => Ok(Some(ShedDecision { share: 0.25, epoch: 7, ..ShedDecision::default() })),
            _ => Ok(None),
        }
    }

    fn grant_lease(&self, group: &str, wish: &LeaseRequest) -> Result<Lease, LeaseError> {
        let from = wish.from.map_or_else(String::new, |from| format!(" from {from}"));
        self.call(format!("bind {group} {:?} {:?} {:?}{from}", wish.key, wish.lease_seconds, wish.exclude));
        match group {
            "web" => Ok(lease(false)),
            "empty" => Err(LeaseError::NoMember("nobody is there".into())),
            "full" => Err(LeaseError::LimitReached("all are full".into())),
            _ => Err(LeaseError::Unknown(format!("there is no group {group}"))),
        }
    }

    fn renew_lease(&self, group: &str, lease: &str, wish: &LeaseRequest) -> Result<Lease, LeaseError> {
        self.call(format!("renew {group} {lease} {:?}", wish.exclude));
        match lease {
            "0a" => Ok(self::lease(true)),
            _ => Err(LeaseError::Unknown("no such lease".into())),
        }
    }

    fn release_lease(&self, group: &str, lease: &str) -> Result<(), LeaseError> {
        self.call(format!("release {group} {lease}"));
        if lease == "0a" { Ok(()) } else { Err(LeaseError::Unknown("no such lease".into())) }
    }

    fn leases(&self, group: &str) -> Option<Vec<LeaseHolder>> {
        (group == "web").then(lessees)
    }

    fn renew_registration(
        &self,
        _group: &str,
        _member: &str,
        _asked: &Registration,
    ) -> Option<Result<RegisteredMember, RegistrationError>> {
        None
    }

    fn register(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Result<RegisteredMember, RegistrationError> {
        self.call(format!("register {group} {member} {asked:?}"));
        let (group, member) = (group.to_owned(), member.to_owned());
        let Registration { ttl_seconds, draining, .. } = *asked;
        Ok(RegisteredMember { address: member.clone(), group, member, ttl_seconds, draining, in_flight: 0 })
    }

    fn deregister(&self, group: &str, member: &str) -> Result<(), RegistrationError> {
        self.call(format!("deregister {group} {member}"));
        Ok(())
    }

    fn end_leases(&self, group: &str, member: Option<&str>, from: Option<IpAddr>) -> Result<usize, String> {
        self.call(format!("end-leases {group} {member:?} {from:?}"));
        Ok(9)
    }
}

fn lessees() -> Vec<LeaseHolder> {
    let of = |member: Option<&str>, from: Option<&str>, leases| LeaseHolder {
        member: member.map(str::to_owned),
        from: from.map(|from| from.parse().unwrap()),
        leases,
        left_seconds: 4.5,
    };
    vec![of(Some("10.0.0.1:80"), Some("10.0.0.7"), 9), of(None, None, 2)]
}

fn lease(moved: bool) -> Lease {
    Lease {
        member: "10.0.0.1:80".into(),
        address: "10.0.0.1:80".into(),
        lease: "0a".into(),
        lease_seconds: 9.0,
        moved,
        why: "as it is".into(),
    }
}

pub(crate) fn entry(seq: u64) -> EventEntry {
    EventEntry {
        seq,
        unix_ms: 1_800_000_000_000 + seq,
        kind: EventKind::Ejected,
        group: "web".into(),
        member: Some("10.0.0.3:80".into()),
        why: "5 failures in a row\nand \"more\"".into(),
        inputs: BTreeMap::from([("failures".to_owned(), 5.0)]),
    }
}

fn load_line() -> LoadLine {
    let what_if = |change: &str, capacity, over| WhatIf {
        change: change.into(),
        capacity: Some(capacity),
        headroom: Some(0.25),
        over: Some(over),
        p99: (!over).then_some(0.5),
        ..WhatIf::default()
    };
    LoadLine {
        capacity: Some(200.0),
        capacity_low: Some(190.0),
        headroom: Some(0.75),
        verdict: "fair".into(),
        error: Some(0.125),
        predictions_checked: 3,
        age_seconds: 2.5,
        predicted: vec![PredictedLatency {
            load: 0.95,
            requests_per_second: 190.0,
            p50: Some(0.02),
            p99: None,
        }],
        what_if: vec![what_if("minus_one", 100.0, false), what_if("double", 200.0, true)],
        ..LoadLine::default()
    }
}

/// A load line that is a range.
fn range() -> LoadLine {
    LoadLine {
        capacity_low: Some(85.0),
        capacity_high: Some(512.0),
        verdict: "range".into(),
        what_if: vec![WhatIf { change: "double".into(), ..WhatIf::default() }],
        ..LoadLine::default()
    }
}

fn scaler() -> ScalerStatus {
    let member = ScaledMember {
        index: 0,
        id: "4711-8".into(),
        member: Some("10.0.0.1:80".into()),
        stage: InstanceState::Serving,
        since_seconds: 7.5,
    };
    ScalerStatus {
        provider: "process".into(),
        target: "headroom 0.3".into(),
        desired: 3,
        members: 2,
        coming: 1,
        min: 1,
        max: 9,
        reason: ScaleReason::Forecast,
        why: "1 more".into(),
        actions: vec!["start 1 member".into()],
        inputs: BTreeMap::from([("demand".to_owned(), 1.5), ("forecast_upper".to_owned(), 2.25)]),
        age_seconds: Some(0.5),
        start_seconds: 4.0,
        started: vec![member],
        ..ScalerStatus::default()
    }
}

fn status() -> StatusReport {
    let member = |name: &str, state| MemberStatus {
        name: name.into(),
        address: "10.0.0.1:80".into(),
        state,
        why: "as it is".into(),
        since_seconds: 1.5,
        capacity: 2.0,
        weight: 0.5,
        in_flight: 3,
        in_flight_elsewhere: 1.5,
        part: Some(4),
        max_rate: Some(50.0),
        limit: Some(12),
        knee: (state == MemberState::Up).then_some(5.5),
        said_age_seconds: (state == MemberState::Up).then_some(3.5),
        load: (state == MemberState::Up).then_some(LoadExplanation { value: 0.75, age_seconds: 2.5 }),
        load_effective: (state == MemberState::Up).then_some(0.5),
        refused: BTreeMap::from([("limit".to_owned(), 41)]),
        slow_seconds: None,
        alert_share: 0.25,
        idle_connections: 4,
        requests: 7,
        failures: 1,
        clients_left: 3,
        answers: BTreeMap::from([("2xx".to_owned(), 6), ("5xx".to_owned(), 1)]),
        connects: 5,
        bytes_out: 1 << 40,
        bytes_in: 2,
        moved: 3,
        leases: 9,
        host: None,
        latency: LatencySummary { count: 7, sum: 0.25, ..LatencySummary::default() },
        load_line: Some(MemberLoadLine {
            capacity: (state == MemberState::Up).then_some(100.0),
            ..MemberLoadLine::default()
        }),
    };
    let group = |name: &str, members| GroupStatus {
        name: name.into(),
        strategy: "least_connections".into(),
        verdict: "1/2 members up".into(),
        healthy: true,
        load: (name == "web").then_some(0.625),
        members,
        rejected: BTreeMap::from([("no_member".to_owned(), 2)]),
        shedding_share: (name == "web").then_some(0.125),
        urgencies: vec![UrgencyStatus { urgency: 1, served: 13, refused: 14 }],
        latency: LatencySummary { count: 11, sum: 0.5, ..LatencySummary::default() },
        load_line: Some(if name == "web" { load_line() } else { range() }),
        scaler: (name == "web").then(scaler),
        ..GroupStatus::default()
    };
    StatusReport {
        schema: 1,
        version: "0.1.0".into(),
        uptime_seconds: 12.5,
        last_reload_successful: true,
        listeners: vec![ListenerStatus { address: "[::]:80".into(), ..ListenerStatus::default() }],
        groups: vec![
            group(
                "web",
                vec![member("10.0.0.1:80", MemberState::Up), member("10.0.0.3:80", MemberState::Ejected)],
            ),
            group("odd \"\\\n one", vec![member("a\"b\\c\nd", MemberState::SlowStart)]),
        ],
        ..StatusReport::default()
    }
}

/// A directory of the test's own, removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-admin-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Both endpoints open in front of a script.
pub(crate) struct Open {
    pub(crate) script: Arc<Script>,
    pub(crate) admin: AdminServer,
    pub(crate) control: PathBuf,
    pub(crate) scratch: Scratch,
}

pub(crate) fn open() -> Open {
    open_as(&[])
}

/// With a listener that may be asked by these names, too.
pub(crate) fn open_as(names: &[&str]) -> Open {
    let scratch = Scratch::new();
    let control = scratch.path("control.sock");
    let script = Script::new();
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        names: names.iter().map(|name| Box::from(*name)).collect(),
        control: Some(control.clone()),
        reports: Some(([127, 0, 0, 1], 0).into()),
        ..Config::default()
    };
    let admin = start(config, script.clone()).unwrap();
    Open { script, admin, control, scratch }
}

impl Open {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.admin.addr().unwrap()
    }

    /// Sends one request to the listener.
    pub(crate) fn ask(&self, method: &str, target: &str, headers: &str) -> Answer {
        Answer::to(tcp(self.addr()), method, target, headers, "")
    }

    pub(crate) fn show(&self, target: &str) -> Answer {
        self.ask("GET", target, "")
    }

    /// Sends one request to the control socket.
    pub(crate) fn act(&self, method: &str, target: &str, body: &str) -> Answer {
        Answer::to(unix(&self.control), method, target, "", body)
    }

    /// Sends one request to the endpoint for reports.
    pub(crate) fn tell(&self, method: &str, target: &str, body: &str) -> Answer {
        Answer::to(tcp(self.admin.reports().unwrap()), method, target, "", body)
    }

    /// Begins an event stream.
    pub(crate) fn follow(&self, target: &str, headers: &str) -> BufReader<TcpStream> {
        let mut stream = tcp(self.addr());
        write!(stream, "GET {target} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n").unwrap();
        BufReader::new(stream)
    }
}

pub(crate) fn tcp(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn to(
        stream: impl Read + Write,
        method: &str,
        target: &str,
        headers: &str,
        body: &str,
    ) -> Self {
        let mut stream = stream;
        let length = body.len();
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: \
             {length}\r\n\r\n{body}"
        )
        .unwrap();
        Self::read(stream)
    }

    /// Reads to the end of the stream.
    pub(crate) fn read(mut stream: impl Read) -> Self {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert!(self.head.contains("content-type: application/json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

/// Reads lines of an event stream until one begins with `prefix`; gives the rest of that line.
pub(crate) fn until(stream: &mut impl BufRead, prefix: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended before {prefix:?}");
        if let Some(rest) = line.strip_prefix(prefix) {
            return rest.trim_end().to_owned();
        }
    }
}
