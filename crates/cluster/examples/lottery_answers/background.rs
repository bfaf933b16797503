//! The background load beside the measured requests, as a daemon of a busy cluster has it.
//!
//! * The other members report, four times a second each, as with multicast, and respond to fetches.
//! * Clients fall back: some ask all daemons, and this daemon is one of those. It answers first, or waits for
//!   another one, commits and repeats that; other winners commit. Some clients repeat their requests.
//! * As many real daemons, each with a socket of its own, exchange gossip and report.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_brain::lottery::MAX_TABLE_PART_BYTES;
use plimsoll_brain::mix;
use plimsoll_cluster::lottery::LotteryDaemon;
use plimsoll_wire::rfs::{
    AnswerCommit, AnswerMode, EncodeDatagram as _, KeyRing, LotteryMessage, NodeDescription, NodeReport,
    NodeState, ServiceOffer, ServiceState, TableFetch, TablePart,
};
use serde_json::{Value, json};

use crate::{SERVICE, request, settings};

/// Requests to all daemons per second, and how many of four another member commits to.
const FALLBACKS: f64 = 1000.0;
const COMMITTED: u64 = 3;
/// Repeated requests per second.
const REPEATS: f64 = 1000.0;
/// The distance of a repetition in requests: 20 ms.
const LATER: u64 = 20;

/// The running background load.
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Beside>,
    daemons: Vec<LotteryDaemon>,
}

/// The datagrams of the background load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    reports: u64,
    fallbacks: u64,
    commits: u64,
    repeats: u64,
    /// The answers to those.
    answers: u64,
    /// The number of daemons that exchange gossip.
    daemons: usize,
    seconds: f64,
}

impl Background {
    pub(crate) fn start(daemon: SocketAddr, members: u16, keys: &KeyRing) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (stop, keys) = (Arc::clone(&stop), keys.clone());
            std::thread::spawn(move || others(daemon, members, &keys, &stop))
        };
        // Each has an address of its own, as in a real cluster: limits apply by address.
        let place = |number: u16| SocketAddr::from(([127, 1, (number >> 8) as u8, number as u8], 0));
        let daemons = (1..members).map(|number| {
            let mut settings = settings(members + number, place(number), keys);
            settings.peers = vec![daemon];
            LotteryDaemon::start(settings).unwrap()
        });
        Self { stop, thread, daemons: daemons.collect() }
    }

    /// Ends the background load and returns its counts.
    pub(crate) fn end(self) -> Beside {
        self.stop.store(true, Ordering::Relaxed);
        let beside = self.thread.join().unwrap();
        Beside { daemons: self.daemons.len(), ..beside }
    }
}

impl Beside {
    pub(crate) fn json(&self) -> Value {
        let each = |count: u64| (count as f64 / self.seconds).round();
        json!({
            "reports_per_second": each(self.reports), "fallbacks_per_second": each(self.fallbacks),
            "commits_per_second": each(self.commits), "repeats_per_second": each(self.repeats),
            "gossiping_daemons": self.daemons,
        })
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |count: u64| count as f64 / self.seconds;
        write!(
            f,
            "a second: {:.0} reports, {:.0} requests to all, {:.0} commits, {:.0} asked again ({:.0} \
             answers); {} daemons gossip",
            each(self.reports),
            each(self.fallbacks),
            each(self.commits),
            each(self.repeats),
            each(self.answers),
            self.daemons
        )
    }
}

/// Simulates the others, from one address for members and one for clients.
fn others(daemon: SocketAddr, members: u16, keys: &KeyRing, stop: &AtomicBool) -> Beside {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let clients = UdpSocket::bind("127.0.0.1:0").unwrap();
    clients.set_nonblocking(true).unwrap();
    let parts = table(members, socket.local_addr().unwrap());
    let (begin, mut buffer, mut out) = (Instant::now(), [0; 2000], Vec::new());
    let all = u64::from(members - 1);
    let mut beside = Beside::default();
    let mut send = |socket: &UdpSocket, message: &dyn Fn(&mut Vec<u8>)| {
        out.clear();
        message(&mut out);
        // Datagrams that do not fit into the daemon's buffer are lost, as in a real cluster.
        let _ = socket.send_to(&out, daemon);
    };
    while !stop.load(Ordering::Relaxed) {
        let elapsed = begin.elapsed().as_secs_f64();
        while all > 0 && beside.reports < (elapsed * 4.0 * all as f64) as u64 {
            let sent = beside.reports;
            send(&socket, &|out| report(sent, all).encode(keys, out).unwrap());
            beside.reports += 1;
        }
        while beside.fallbacks < (elapsed * FALLBACKS) as u64 {
            let id = mix(beside.fallbacks ^ 1 << 40);
            send(&clients, &|out| request(id, AnswerMode::Lottery, 2, 0).encode(keys, out).unwrap());
            if all > 0 && beside.fallbacks % 4 < COMMITTED {
                let member = 2 + (beside.fallbacks % all) as u16;
                let commit = AnswerCommit { member, incarnation: 1, ids: vec![id] };
                send(&socket, &|out| commit.encode(keys, out).unwrap());
                beside.commits += 1;
            }
            beside.fallbacks += 1;
        }
        while beside.repeats < (elapsed * REPEATS) as u64 {
            let id = |turn: u64| mix(turn ^ 1 << 41);
            let turn = beside.repeats;
            send(&clients, &|out| request(id(turn), AnswerMode::Referral, 0, 0).encode(keys, out).unwrap());
            if let Some(again) = turn.checked_sub(LATER) {
                send(&clients, &|out| {
                    request(id(again), AnswerMode::Referral, 1, 0).encode(keys, out).unwrap()
                });
            }
            beside.repeats += 1;
        }
        while clients.recv(&mut buffer).is_ok() {
            beside.answers += 1;
        }
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        if let Ok(LotteryMessage::Fetch(TableFetch { id, part, .. })) =
            keys.open(&buffer[..len]).and_then(|opened| opened.message())
            && let Some(members) = parts.get(usize::from(part))
        {
            let members = members.to_vec();
            let table = TablePart { id, generation: 9, part, parts: parts.len() as u16, members };
            let mut out = Vec::new();
            table.encode(keys, &mut out).unwrap();
            socket.send_to(&out, from).unwrap();
        }
    }
    Beside { seconds: begin.elapsed().as_secs_f64(), ..beside }
}

/// Returns the next report of one of them.
fn report(sent: u64, all: u64) -> NodeReport {
    let (member, seq) = (2 + (sent % all) as u16, (sent / all) as u32 + 1);
    // Loads change, and most weights with them.
    let weight = 128 + (mix(sent) % 64) as u16;
    let share = ServiceState { service: SERVICE, capacity: 100, weight, load: 500, in_flight: 3 };
    let (state, services, ids) = (NodeState::Up, vec![share], vec![mix(sent); 20]);
    NodeReport { member, incarnation: 1, seq, state, digest: 1, services, ids, heard: vec![] }
}

/// Returns the members, part by part.
fn table(members: u16, address: SocketAddr) -> Vec<Vec<NodeDescription>> {
    let listed = (2..=members).map(|member| {
        let endpoint = SocketAddr::from(([10, 0, (member >> 8) as u8, member as u8], 80));
        let offers = vec![ServiceOffer { service: SERVICE, capacity: 100, endpoint, info: [].into() }];
        NodeDescription { member, incarnation: 1, address, offers }
    });
    let mut parts: Vec<Vec<NodeDescription>> = vec![Vec::new()];
    for member in listed {
        let full = |part: &Vec<NodeDescription>| {
            part.iter().map(NodeDescription::encoded_size).sum::<usize>() + member.encoded_size()
                > MAX_TABLE_PART_BYTES
        };
        if parts.last().is_some_and(full) {
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().push(member);
    }
    parts
}
