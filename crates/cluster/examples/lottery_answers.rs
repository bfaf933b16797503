//! How many requests a lottery daemon answers, what an answer costs it, and how long its clients wait: one daemon with its socket
//! on loopback in a cluster of `members`, whose others report as real ones do (four times a second each) and answer what it fetches.
//!
//! `make bench-lottery` runs it. Three phases of `seconds` each: no requests (what housekeeping costs), as many as are answered (a
//! window of 128 without an answer), and half of that, sent evenly. The daemon's processor time is its thread's own, so that others
//! on the machine do not count; how long clients wait they do make longer.

#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll_brain::lottery::PART;
use plimsoll_brain::mix;
use plimsoll_cluster::lottery::{Lottery, Service, Settings, incarnation};
use plimsoll_wire::rfs::{
    Encode as _, Fetch, Key, Keys, Listed, Message, Mode, Offer, Report, Request, Share, Standing, Status,
    Table,
};

const SERVICE: u32 = 80;
/// Requests without an answer in the phase of as many as are answered.
const WINDOW: u64 = 128;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap());
    let members = args.next().unwrap_or(100) as u16;
    let time = Duration::from_secs(args.next().unwrap_or(5));
    let keys = Keys::new(Key::new(1, &[7; 32]));
    let before = threads();
    let lottery = Lottery::start(settings(&keys)).unwrap();
    let fresh: Vec<String> = threads().difference(&before).cloned().collect();
    let [thread] = &fresh[..] else { panic!("{fresh:?}") };
    let daemon = lottery.address();

    let stop = Arc::new(AtomicBool::new(false));
    let others = {
        let (stop, keys) = (Arc::clone(&stop), keys.clone());
        std::thread::spawn(move || others(daemon, members, &keys, &stop))
    };
    // Until all are known and drawn from.
    std::thread::sleep(Duration::from_secs(3));

    println!("{members} members, one of them real; phases of {} s", time.as_secs());
    println!("phase       answers/s  cpu/answer  answers/s/core  p50      p99      p99.9    lost");
    let (cpu, begin) = (used(thread), Instant::now());
    std::thread::sleep(time);
    let busy = (used(thread) - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!("quiet       {:>9}  {:.2} % of a core", 0, busy * 100.0);

    let mut client = Client::new(daemon, keys);
    let full = client.phase("full", thread, time, None);
    client.phase("half", thread, time, Some(full / 2.0));
    stop.store(true, Ordering::Relaxed);
    others.join().unwrap();
}

fn settings(keys: &Keys) -> Settings {
    Settings {
        member: 1,
        incarnation: incarnation(),
        listen: ([127, 0, 0, 1], 0).into(),
        address: None,
        peers: Vec::new(),
        multicast: None,
        keys: keys.clone(),
        services: vec![Service {
            name: "web".into(),
            id: SERVICE,
            server: ([127, 0, 0, 1], 80).into(),
            capacity: 100,
            check: None,
        }],
        ttl: Duration::ZERO,
        slow_start: Duration::ZERO,
        rate: 0,
    }
}

/// All others, from one address: reports, and the table when the daemon asks who they are.
fn others(daemon: SocketAddr, members: u16, keys: &Keys, stop: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let address = socket.local_addr().unwrap();
    let listed: Vec<Listed> = (2..=members)
        .map(|member| {
            let endpoint = SocketAddr::from(([10, 0, (member >> 8) as u8, member as u8], 80));
            let offers = vec![Offer { service: SERVICE, capacity: 100, endpoint, info: [].into() }];
            Listed { member, incarnation: 1, address, offers }
        })
        .collect();
    let mut parts: Vec<Vec<Listed>> = vec![Vec::new()];
    for member in listed {
        let full = |part: &Vec<Listed>| part.iter().map(Listed::bytes).sum::<usize>() + member.bytes() > PART;
        if parts.last().is_some_and(full) {
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().push(member);
    }
    let (begin, mut sent, mut buffer, mut out) = (Instant::now(), 0_u64, [0; 2000], Vec::new());
    let all = u64::from(members - 1);
    while !stop.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * 4.0 * all as f64) as u64;
        while all > 0 && sent < due {
            let (member, seq) = (2 + (sent % all) as u16, (sent / all) as u32 + 1);
            // Loads change, and most weights with them.
            let weight = 128 + (mix(sent) % 64) as u16;
            let share = Share { service: SERVICE, capacity: 100, weight, load: 500, in_flight: 3 };
            let (state, services, ids) = (Standing::Up, vec![share], vec![mix(sent); 20]);
            let report = Report { member, incarnation: 1, seq, state, digest: 1, services, ids };
            out.clear();
            report.encode(keys, &mut out).unwrap();
            socket.send_to(&out, daemon).unwrap();
            sent += 1;
        }
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        if let Ok(Message::Fetch(Fetch { id, part, .. })) =
            keys.open(&buffer[..len]).and_then(|opened| opened.message())
            && let Some(members) = parts.get(usize::from(part))
        {
            let members = members.to_vec();
            let table = Table { id, generation: 9, part, parts: parts.len() as u16, members };
            out.clear();
            table.encode(keys, &mut out).unwrap();
            socket.send_to(&out, from).unwrap();
        }
    }
}

struct Client {
    socket: UdpSocket,
    keys: Keys,
    turn: u64,
}

impl Client {
    fn new(daemon: SocketAddr, keys: Keys) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(daemon).unwrap();
        socket.set_nonblocking(true).unwrap();
        // What is lost is to be lost by the daemon.
        socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
        Self { socket, keys, turn: 0 }
    }

    /// Asks for so long, at a rate or as fast as answers come; answers per second.
    fn phase(&mut self, name: &str, thread: &str, time: Duration, rate: Option<f64>) -> f64 {
        let (cpu, begin, first) = (used(thread), Instant::now(), self.turn);
        let (mut waits, mut sent_at, mut buffer) = (Vec::<u32>::new(), Vec::new(), [0; 2000]);
        let (mut out, mut quiet) = (Vec::new(), Instant::now());
        while begin.elapsed() < time || (sent_at.len() > waits.len() && quiet.elapsed() < LOST) {
            let may = match rate {
                Some(rate) => (begin.elapsed().min(time).as_secs_f64() * rate) as u64,
                // What is lost makes no room, until nothing has come for a while.
                None if begin.elapsed() < time && quiet.elapsed() > LOST => sent_at.len() as u64 + WINDOW,
                None if begin.elapsed() < time => waits.len() as u64 + WINDOW,
                None => 0,
            };
            while (sent_at.len() as u64) < may {
                out.clear();
                request(mix(self.turn), self.turn as u32).encode(&self.keys, &mut out).unwrap();
                if self.socket.send(&out).is_err() {
                    break;
                }
                self.turn += 1;
                sent_at.push(begin.elapsed());
                // Answers are not to wait for requests.
                if sent_at.len().is_multiple_of(32) {
                    break;
                }
            }
            loop {
                match self.socket.recv(&mut buffer) {
                    Ok(len) => {
                        // The client's time is the number of the request; only now and then is an answer opened.
                        let number = u32::from_be_bytes(buffer[45..49].try_into().unwrap());
                        if number.is_multiple_of(1024) {
                            let message = self.keys.open(&buffer[..len]).unwrap().message().unwrap();
                            assert!(
                                matches!(message, Message::Answer(answer) if answer.status == Status::Ok)
                            );
                        }
                        let sent = sent_at[number.wrapping_sub(first as u32) as usize];
                        waits.push((begin.elapsed() - sent).as_nanos().min(u128::from(u32::MAX)) as u32);
                        quiet = Instant::now();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let cpu = used(thread) - cpu;
        waits.sort_unstable();
        let at = |part: f64| {
            let place = (waits.len() as f64 * part) as usize;
            format!("{:.2} ms", f64::from(waits[place.min(waits.len() - 1)]) / 1e6)
        };
        let (answers, each) =
            (waits.len() as f64 / time.as_secs_f64(), cpu.as_secs_f64() / waits.len() as f64);
        let lost = sent_at.len() - waits.len();
        println!(
            "{name:<10}  {answers:>9.0}  {:>7.2} us  {:>14.0}  {}  {}  {}  {lost}",
            each * 1e6,
            1.0 / each,
            at(0.5),
            at(0.99),
            at(0.999)
        );
        answers
    }
}

/// What did not come in this time is lost.
const LOST: Duration = Duration::from_millis(500);

fn request(id: u64, client_time: u32) -> Request {
    Request {
        id,
        service: SERVICE,
        attempt: 0,
        mode: Mode::Referral,
        generation: 0,
        client_time,
        avoid: Vec::new(),
        info: Vec::new(),
        room: 128,
    }
}

fn threads() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

/// Processor time of a thread.
fn used(thread: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
