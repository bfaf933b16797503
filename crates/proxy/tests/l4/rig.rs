//! Settings, members and waiting, for all tests of this folder.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use plimsoll_brain::status::{GroupStatus, MemberStatus};
use plimsoll_brain::{GroupSpec, MemberSpec, StrategyParams, WhenAllDown, strategy};
use plimsoll_proxy::{
    BindingMode, ClientTimeouts, Engine, ForwardedHeaders, GroupSettings, HashKeySource, ListenerSettings,
    MemberTimeouts, Protocol, RetrySettings, SessionLoad, Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

#[path = "../../../../tests/ports.rs"]
#[expect(dead_code, reason = "these tests need addresses only")]
mod ports;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);
/// Longer than anything takes on a machine with other work.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// Longer than a test may take: this has ended nothing.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn member(address: SocketAddr) -> MemberSpec {
    MemberSpec {
        name: address.to_string().into(),
        address,
        capacity: 1.0,
        limit: u32::MAX,
        leaving: false,
        checked: false,
    }
}

/// Returns a group without health checks, with `least_connections`.
pub(crate) fn group(members: &[SocketAddr]) -> GroupSettings {
    let strategy = strategy::find("least_connections").unwrap();
    GroupSettings {
        iiop: None,
        strip_reports: true,
        sample_reports: None,
        public: Default::default(),
        hosts: Default::default(),
        addresses: Default::default(),
        side_car: None,
        hand_over: None,
        keeps_drained: false,
        session_load: SessionLoad::Unknown,
        spec: GroupSpec {
            name: "g".into(),
            strategy,
            params: StrategyParams::defaults(strategy),
            members: members.iter().copied().map(member).collect(),
            health: None,
            outlier: None,
            slow_start: Duration::ZERO,
            when_all_down: WhenAllDown::Reject,
            admission: None,
            objective: None,
            aperture: None,
        },
        probe: None,
        key: HashKeySource::Client,
        timeouts: MemberTimeouts { connect: MINUTE, per_try: MINUTE, total: Duration::ZERO, idle: MINUTE },
        retry: RetrySettings { attempts: 2, budget: 0.2, min_per_second: 100.0 },
        queue: 100,
        max_rate: None,
        queue_timeout: MINUTE,
        pool: 10,
        pool_idle: MINUTE,
        send_proxy: None,
        tls: None,
        http2: false,
    }
}

pub(crate) fn by(group: GroupSettings, name: &str) -> GroupSettings {
    let strategy = strategy::find(name).unwrap();
    let spec = GroupSpec { strategy, params: StrategyParams::defaults(strategy), ..group.spec };
    GroupSettings { spec, ..group }
}

/// Returns a listener on a free loopback port, with an address of this test only. A client of a port that
/// another test has closed may use it again, and the system reuses ports.
pub(crate) fn listener(protocol: Protocol) -> ListenerSettings {
    ListenerSettings {
        public: None,
        address: home(),
        protocol,
        group: "g".into(),
        routes: None,
        others: Vec::new(),
        binding: if protocol == Protocol::Http { BindingMode::PerRequest } else { BindingMode::PerSession },
        affinity: None,
        move_idle: Duration::ZERO,
        backlog: 128,
        accept_proxy: false,
        priority: None,
        timeouts: ClientTimeouts { head: MINUTE, idle: MINUTE, body: MINUTE, tunnel: MINUTE },
        half_close: false,
        upgrades: vec!["websocket".into()],
        max_head: 16_384,
        forwarded: ForwardedHeaders::XForwarded,
        trusted: Vec::new(),
        max_flows: 1000,
        zone: None,
        tls: None,
    }
}

pub(crate) fn settings(listener: ListenerSettings, group: GroupSettings) -> Settings {
    Settings {
        threads: 2,
        max_connections: 1000,
        max_descriptors: 10_000,
        max_memory: 1 << 30,
        listeners: vec![listener],
        groups: vec![group.into()],
        access_log: None,
        tracing: None,
        drain_deadline: MINUTE,
        upgrade_deadline: MINUTE,
    }
}

/// Starts an engine, and returns its address.
pub(crate) fn start(listener: ListenerSettings, group: GroupSettings) -> (Engine, SocketAddr) {
    start_with(settings(listener, group))
}

pub(crate) fn start_with(settings: Settings) -> (Engine, SocketAddr) {
    let engine = Engine::start(settings).unwrap();
    let address = engine.addresses()[0];
    (engine, address)
}

pub(crate) fn status(engine: &Engine) -> GroupStatus {
    engine.status().groups.remove(0)
}

pub(crate) fn status_of(engine: &Engine, member: SocketAddr) -> MemberStatus {
    let name = member.to_string();
    status(engine).members.into_iter().find(|status| status.name == name).unwrap()
}

/// Fails a test that takes too long.
pub(crate) async fn within<F: Future>(test: F) -> F::Output {
    tokio::time::timeout(2 * MINUTE, test).await.expect("the test takes too long")
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + MINUTE;
    while !so() {
        assert!(Instant::now() < end, "in vain: {what}");
        // sleeps: polls
        tokio::time::sleep(10 * MILLI).await;
    }
}

/// Repeats `beat`, which returns `true` if it succeeded, for one and a half times the maximum interval.
/// Returns `false` if an observer may have seen a longer interval: then the machine was suspended, and
/// nothing follows from the result.
pub(crate) async fn steadily(most: Duration, mut beat: impl AsyncFnMut() -> bool) -> bool {
    let begun = Instant::now();
    let mut last = begun;
    // bound: the duration of the repetition
    while begun.elapsed() < most * 3 / 2 {
        // sleeps: paces the client
        tokio::time::sleep(most / 20).await;
        let now = Instant::now();
        let well = beat().await;
        // bound: the interval that is permitted; a longer one decides nothing
        if last.elapsed() > most * 4 / 5 {
            return false;
        }
        assert!(well, "it ended in the midst of something");
        last = now;
    }
    true
}

/// Returns the timers of the kernel's sockets in this state with this address at an end (1 for local, 2 for
/// remote). State 01 is established, 0A listens.
pub(crate) fn sockets(address: SocketAddr, end: usize, state: &str) -> Vec<String> {
    let SocketAddr::V4(address) = address else { panic!("{address}: of IPv4 only") };
    let place = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    let text = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    // Number, local and remote address, state, queues, timer.
    let rows = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() > 5 && row[end] == place && row[3] == state);
    rows.map(|row| row[5].to_owned()).collect()
}

/// Returns `true` if a socket listens there, without connecting.
pub(crate) fn listens(address: SocketAddr) -> bool {
    !sockets(address, 1, "0A").is_empty()
}

/// Returns the address of a test's listeners and members, with ports that the system chooses. A client or a
/// balancer of another test that ends may still connect to a port that the system gives away again.
pub(crate) fn home() -> SocketAddr {
    thread_local! {
        // Each test has a thread.
        static HOME: SocketAddr = SocketAddr::new(place().ip(), 0);
    }
    HOME.with(|home| *home)
}

/// Returns an address of the loopback that no other test uses, so that what is closed there can be opened
/// again.
pub(crate) fn place() -> SocketAddr {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    static CLAIMED: LazyLock<u16> = LazyLock::new(|| ports::claim("addresses", 1 << 11));
    // 11 bits for the process and for the test.
    let taken = TAKEN.fetch_add(1, Relaxed) & 0x7ff;
    let [.., a, b, c] = (usize::from(*CLAIMED) << 11 | taken).to_be_bytes();
    SocketAddr::from(([127, 64 + a, b, c], 7077))
}

/// A member that sends back the bytes that it gets, and counts sessions.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    sessions: Arc<AtomicUsize>,
}

impl Echo {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(home()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let sessions = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sessions);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Relaxed);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 100_000];
                    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&buffer[..len]).await.is_err() {
                            return;
                        }
                    }
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, sessions }
    }

    /// Returns the number of sessions so far.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Relaxed)
    }
}

/// Returns an address that refuses connections while the socket exists: it is not given away meanwhile.
pub(crate) fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(home()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Sends text to an echo; returns `true` if it comes back.
pub(crate) async fn is_echoed(stream: &mut TcpStream, text: &str) -> bool {
    let mut heard = vec![0; text.len()];
    let spoken = stream.write_all(text.as_bytes()).await.is_ok();
    spoken && stream.read_exact(&mut heard).await.is_ok() && heard == text.as_bytes()
}

/// Sends text to an echo and expects it back.
pub(crate) async fn echoes(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut heard = vec![0; text.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, text.as_bytes());
}

/// Checks that a client that sends nothing is rejected.
pub(crate) async fn assert_reset(address: SocketAddr) {
    // The reset may be faster than the client.
    let error = match TcpStream::connect(address).await {
        Ok(mut session) => session.read(&mut [0; 9]).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
