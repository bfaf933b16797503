//! Measures the answers of a lottery daemon per second, the cost of an answer, and the delay that clients
//! see: one daemon with its socket on loopback among `members`. `background.rs` produces the load beside
//! that. The other members report as real ones do, clients repeat requests and ask all daemons, and as many
//! real daemons exchange gossip.
//!
//! `make bench-lottery` runs it. There are four phases of `seconds` each, with the background load in all of
//! them:
//!
//! * no measured requests: the cost of housekeeping;
//! * as many requests as are answered, with a window of 128 outstanding ones;
//! * half of that rate, evenly spaced;
//! * the same rate at a server that echoes everything, which shows the delay that the daemon adds.
//!
//! The daemon's processor time is that of its thread, so that other processes do not count. Nor should they
//! affect the delays (`place.rs`). The daemon, or the echo server, has the last core for itself, and all
//! others share the rest. An answer's time of arrival is the kernel's timestamp, not the time when the client
//! had a core to read it. The client's share of a processor shows whether it was the limit, and lost
//! datagrams are counted at each socket.
//!
//! The end shows whether the targets are met (`verdict.rs`); the exit code is 1 if one is not. `--out FILE`
//! writes the figures.

#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

mod background;
mod place;
mod verdict;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use background::Background;
use place::{Cores, Stamped};
use plimsoll_brain::mix;
use plimsoll_cluster::lottery::{DaemonSettings, LotteryDaemon, LotteryService, incarnation};
use plimsoll_wire::rfs::{
    AnswerMode, AnswerStatus, DatagramKey, EncodeDatagram as _, KeyRing, LotteryMessage, LotteryRequest,
};
use rustix::time::{ClockId, clock_gettime};
use verdict::Found;

const SERVICE: u32 = 80;
/// The outstanding requests in the phase at full load.
const WINDOW: u64 = 128;

fn main() -> ExitCode {
    let (mut numbers, mut out) = (Vec::new(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = Some(PathBuf::from(args.next().unwrap())),
            number => numbers.push(number.parse::<u64>().unwrap()),
        }
    }
    let members = numbers.first().copied().unwrap_or(100) as u16;
    let time = Duration::from_secs(numbers.get(1).copied().unwrap_or(5));
    let keys = KeyRing::new(DatagramKey::new(1, &[7; 32]));
    let cores = Cores::split();
    let before = threads();
    let lottery = LotteryDaemon::start(settings(1, ([127, 0, 0, 1], 0).into(), &keys)).unwrap();
    let fresh: Vec<String> = threads().difference(&before).cloned().collect();
    let [thread] = &fresh[..] else { panic!("{fresh:?}") };
    let daemon = lottery.address();
    cores.alone(thread);

    let background = Background::start(daemon, members, &keys);
    let stop = Arc::new(AtomicBool::new(false));
    let (echo, echoes, server) = echo(&stop);
    // After the start of all others: new threads inherit the priority.
    place::first();
    // Until all members are known and take part in the draw.
    std::thread::sleep(Duration::from_secs(3));

    println!(
        "{members} members, one of them real; as many daemons say who is there; phases of {} s; {cores}",
        time.as_secs()
    );
    println!("phase       answers/s  cpu/answer  answers/s/core  p50      p99      p99.9     client  lost");
    let (cpu, begin) = (used(thread), Instant::now());
    std::thread::sleep(time);
    let quiet = (used(thread) - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!("quiet       {:>9}  {:.2} % of a core", 0, quiet * 100.0);

    let mut client = Client::new(daemon, keys.clone());
    let full = client.phase("full", thread, time, None);
    let half = client.phase("half", thread, time, Some(full.answers / 2.0));

    cores.beside(thread);
    cores.alone(&echoes);
    let mut client = Client::new(echo, keys);
    let echo = client.phase("echo", &echoes, time, Some(full.answers / 2.0));
    stop.store(true, Ordering::Relaxed);
    server.join().unwrap();
    let beside = background.end();
    println!("beside that {beside}");
    drop(lottery);
    verdict::say(&Found { members, seconds: time.as_secs(), quiet, full, half, echo, beside }, out.as_deref())
}

/// Returns the settings of the measured daemon, or of one that only exchanges gossip.
fn settings(member: u16, listen: SocketAddr, keys: &KeyRing) -> DaemonSettings {
    DaemonSettings {
        member,
        incarnation: incarnation(),
        listen,
        address: None,
        peers: Vec::new(),
        multicast: None,
        keys: keys.clone(),
        // Only the first has a service for clients.
        services: (member == 1)
            .then(|| LotteryService {
                name: "web".into(),
                id: SERVICE,
                server: ([127, 0, 0, 1], 80).into(),
                capacity: 100,
                info: [].into(),
                check: None,
            })
            .into_iter()
            .collect(),
        ttl: Duration::ZERO,
        slow_start: Duration::ZERO,
        rate: 0,
    }
}

/// A client with one socket. It seals the requests before the measurement, so that its own work is small
/// beside the daemon's.
struct Client {
    socket: Stamped,
    asked: SocketAddr,
    keys: KeyRing,
    turn: u64,
}

/// The results of a phase.
struct Phase {
    /// Answers per second.
    answers: f64,
    /// The processor time of the daemon's thread per answer, in seconds.
    cpu_per_answer: f64,
    /// The delays at the client, in milliseconds.
    p50: f64,
    p99: f64,
    p999: f64,
    lost: u64,
}

impl Client {
    fn new(asked: SocketAddr, keys: KeyRing) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(asked).unwrap();
        socket.set_nonblocking(true).unwrap();
        // As far as the system allows: datagrams should be lost at the daemon. The output shows where they
        // were lost.
        socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
        Self { socket: Stamped::new(socket), asked, keys, turn: 0 }
    }

    /// Seals consecutive requests, all of the same length.
    fn sealed(&mut self, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count * LENGTH);
        for _ in 0..count {
            request(mix(self.turn), AnswerMode::Referral, 0, self.turn as u32)
                .encode(&self.keys, &mut out)
                .unwrap();
            self.turn += 1;
        }
        assert_eq!(out.len(), count * LENGTH);
        out
    }

    /// Sends requests for this time, at a rate or as fast as answers arrive; `thread` is the one whose
    /// processor time counts.
    fn phase(&mut self, name: &str, thread: &str, time: Duration, rate: Option<f64>) -> Phase {
        let first = self.turn;
        let most = rate.unwrap_or(FASTEST) * time.as_secs_f64();
        let sealed = self.sealed(most as usize);
        let all = most as u64;
        let drops = [drops(self.asked), drops(self.socket.address())];
        let (cpu, own, begin) = (used(thread), used_here(), Instant::now());
        let (mut waits, mut sent_at, mut buffer) = (Vec::<u32>::new(), Vec::<Duration>::new(), [0; 2000]);
        let mut quiet = Instant::now();
        while begin.elapsed() < time || (sent_at.len() > waits.len() && quiet.elapsed() < LOST) {
            let may = match rate {
                Some(rate) => (begin.elapsed().min(time).as_secs_f64() * rate) as u64,
                // Lost datagrams occupy the window until nothing has arrived for a while.
                None if begin.elapsed() < time && quiet.elapsed() > LOST => sent_at.len() as u64 + WINDOW,
                None if begin.elapsed() < time => waits.len() as u64 + WINDOW,
                None => 0,
            };
            let mut idle = true;
            while (sent_at.len() as u64) < may.min(all) {
                let at = sent_at.len() * LENGTH;
                let sent = place::now();
                if !self.socket.send(&sealed[at..at + LENGTH]) {
                    break;
                }
                idle = false;
                sent_at.push(sent);
                // Answers must not wait for requests.
                if sent_at.len().is_multiple_of(32) {
                    break;
                }
            }
            while let Some((len, came)) = self.socket.receive(&mut buffer) {
                // The client's time is the number of the request, at a fixed offset in both kinds of
                // datagrams. Only a sample of the answers is opened.
                let place = if len == LENGTH && buffer[3] == REQUEST { ECHOED } else { ANSWERED };
                let number = u32::from_be_bytes(buffer[place..place + 4].try_into().unwrap());
                if number.is_multiple_of(1024) && place == ANSWERED {
                    let message = self.keys.open(&buffer[..len]).unwrap().message().unwrap();
                    assert!(
                        matches!(message, LotteryMessage::Answer(answer) if answer.status == AnswerStatus::Ok)
                    );
                }
                let sent = sent_at[number.wrapping_sub(first as u32) as usize];
                waits.push(came.saturating_sub(sent).as_nanos().min(u128::from(u32::MAX)) as u32);
                quiet = Instant::now();
                idle = false;
            }
            match rate {
                // Otherwise its processor time would not show its share of the machine.
                None if idle => self.socket.wait(Duration::from_millis(1)),
                None => {}
                // The others need its core, too.
                Some(_) => std::thread::sleep(PAUSE),
            }
        }
        let (cpu, own) = (used(thread) - cpu, used_here() - own);
        let lost = sent_at.len() - waits.len();
        let [there, here] = [drops_since(self.asked, drops[0]), drops_since(self.socket.address(), drops[1])];
        waits.sort_unstable();
        let at = |part: f64| {
            let place = (waits.len() as f64 * part) as usize;
            f64::from(waits[place.min(waits.len() - 1)]) / 1e6
        };
        let (answers, each) =
            (waits.len() as f64 / time.as_secs_f64(), cpu.as_secs_f64() / waits.len() as f64);
        println!(
            "{name:<10}  {answers:>9.0}  {:>7.2} us  {:>14.0}  {:.3} ms {:.3} ms {:.3} ms  {:>4.0} \
             %   {lost}{}",
            each * 1e6,
            1.0 / each,
            at(0.5),
            at(0.99),
            at(0.999),
            own.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0,
            if lost > 0 {
                let rest = (lost as u64).saturating_sub(there + here);
                format!(
                    ": {there} before the daemon took them, {here} before the client did, {rest} otherwise"
                )
            } else {
                String::new()
            }
        );
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(at);
        Phase { answers, cpu_per_answer: each, p50, p99, p999, lost: lost as u64 }
    }
}

/// The length of a request, the offsets of its number in it and in an answer, and the type of a request.
const LENGTH: usize = 128;
const ECHOED: usize = 26;
const ANSWERED: usize = 45;
const REQUEST: u8 = 1;

/// The pause between two checks for due requests.
const PAUSE: Duration = Duration::from_micros(20);

/// An upper bound on the answers per second.
const FASTEST: f64 = 250_000.0;

/// Echoes everything, which is the minimum that a server can do: the difference is the daemon's cost.
fn echo(stop: &Arc<AtomicBool>) -> (SocketAddr, String, std::thread::JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (address, stop) = (socket.local_addr().unwrap(), Arc::clone(stop));
    let before = threads();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        while !stop.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
            socket.send_to(&buffer[..len], from).unwrap();
        }
    });
    let fresh: Vec<String> = threads().difference(&before).cloned().collect();
    let [name] = &fresh[..] else { panic!("{fresh:?}") };
    (address, name.clone(), thread)
}

/// Returns the number of datagrams that did not fit into the buffer of the socket with this address.
fn drops(address: SocketAddr) -> u64 {
    let port = format!(":{:04X}", address.port());
    let text = std::fs::read_to_string("/proc/net/udp").unwrap();
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|fields| fields.get(1).is_some_and(|local| local.ends_with(&port)));
    line.and_then(|fields| fields.last()?.parse().ok()).unwrap_or(0)
}

fn drops_since(address: SocketAddr, before: u64) -> u64 {
    drops(address).saturating_sub(before)
}

/// The time after which a missing answer counts as lost.
const LOST: Duration = Duration::from_millis(500);

fn request(id: u64, mode: AnswerMode, attempt: u8, client_time: u32) -> LotteryRequest {
    LotteryRequest {
        id,
        service: SERVICE,
        attempt,
        mode,
        generation: 0,
        client_time,
        avoid: Vec::new(),
        info: Vec::new(),
        max_answer_bytes: 128,
    }
}

fn threads() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the processor time of this thread.
fn used_here() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns the processor time of a thread.
fn used(thread: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
