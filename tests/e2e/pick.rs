//! `plimsoll pick` beside scripted daemons: when it prints, when it gives up, what it refuses.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_client::{Client, ClientSettings, KeySource, PickError};
use plimsoll_wire::rfs::{
    AnswerStatus, EncodeDatagram as _, KeyRing, LotteryAnswer, LotteryMessage, service_id,
};

use crate::lottery::Cluster;
use crate::stage::{Folder, Run, binary, found, free_port, until};

fn keys() -> String {
    format!("7 {}\n", "5a".repeat(32))
}

/// A daemon that answers each request with the status of a rule, if any.
struct Teller {
    address: SocketAddr,
    heard: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    fn start(mut rule: impl FnMut(u64) -> Option<AnswerStatus> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let (heard, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&heard), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let (keys, mut buffer): (KeyRing, _) = (keys().parse().unwrap(), [0; 2000]);
            while !end.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                let message = keys.open(&buffer[..len]).unwrap().message().unwrap();
                let LotteryMessage::Request(request) = message else { panic!("{message:?}") };
                count.fetch_add(1, Ordering::Relaxed);
                let Some(status) = rule(request.id) else { continue };
                let answer = LotteryAnswer {
                    id: request.id,
                    service: request.service,
                    status,
                    rank: 0,
                    ttl: 0,
                    member: 5,
                    endpoint: (status == AnswerStatus::Ok).then(|| ([127, 0, 0, 1], 5).into()),
                    client_time: request.client_time,
                    generation: 0,
                    info: [].into(),
                    fallbacks: Vec::new(),
                    max_bytes: request.max_answer_bytes,
                };
                let mut out = Vec::new();
                answer.encode(&keys, &mut out).unwrap();
                socket.send_to(&out, from).unwrap();
            }
        });
        Self { address, heard, stop, thread: Some(thread) }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Returns whether the first of two answers can be read before the second is given, and both are printed.
/// `None` means that the client gave up meanwhile, as the machine stood still.
fn printed_apart() -> Option<()> {
    let read = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&read);
    let mut first = None;
    // The second request is answered when the first answer was read.
    let teller = Teller::start(move |id| {
        let first = *first.get_or_insert(id);
        (id == first || may.load(Ordering::Relaxed)).then_some(AnswerStatus::Ok)
    });
    let folder = Folder::new();
    folder.write("keys", keys());
    let mut command = Command::new(binary());
    command.args(["pick", "web", "-n", "2", "-k", "keys", "-d", &teller.address.to_string()]);
    let mut pick = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(pick.stdout.take().unwrap()).lines();
    let first = lines.next().map(Result::unwrap);
    read.store(true, Ordering::Relaxed);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    if pick.wait().unwrap().code() == Some(3) {
        return None;
    }
    assert_eq!((first.as_deref(), rest), (Some("127.0.0.1:5"), vec!["127.0.0.1:5".to_owned()]));
    Some(())
}

#[test]
fn answers_are_printed_as_they_come() {
    found("both answers", printed_apart);
}

#[test]
fn who_hears_only_that_all_are_busy_does_not_wait() {
    let folder = Folder::new();
    folder.write("keys", keys());
    for count in [1, 3] {
        let tellers: Vec<Teller> = (0..count).map(|_| Teller::start(|_| Some(AnswerStatus::Busy))).collect();
        let daemons: Vec<String> = tellers.iter().map(|teller| teller.address.to_string()).collect();
        let run = Run::plimsoll(&["pick", "web", "-k", "keys", "-d", &daemons.join(",")], folder.path());
        assert_eq!(run.code, Some(1), "{}", run.err);
        assert!(run.err.contains("no member can serve it now") && run.out.is_empty(), "{}", run.err);
        let heard = || tellers.iter().map(|teller| teller.heard.load(Ordering::Relaxed)).sum::<usize>();
        let before = heard();
        // A client that waited would ask 255 times, which takes minutes. While the machine stands still it
        // asks more often than it has to.
        let daemons = tellers.iter().map(|teller| teller.address).collect();
        let settings = ClientSettings::new(daemons, KeySource::File(folder.join("keys")));
        let client = Client::open(ClientSettings { attempts: u8::MAX, ..settings }).unwrap();
        assert!(matches!(client.pick(service_id("web"), b""), Err(PickError::Busy)));
        let asked = heard() - before;
        assert!((2..100).contains(&asked), "{asked} requests");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let folder = Folder::new();
    folder.write("keys", keys());
    let with = ["pick", "web", "-d", "127.0.0.1:7447", "-k", "keys"];
    for (args, why) in [
        (&["-n", "0"][..], "0 is not in 1.."),
        (&["--multicast", "10.0.0.1:7447"], "10.0.0.1 is not a multicast address"),
        (&["--multicast", "239.255.74.47"], "expected an address and a port"),
        (&["--interface", "127.0.0.1"], "--multicast"),
    ] {
        let run = Run::plimsoll(&[&with[..], args].concat(), folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
}

#[test]
fn keys_may_begin_with_a_mark_of_the_byte_order() {
    let teller = Teller::start(|_| Some(AnswerStatus::Ok));
    let folder = Folder::new();
    folder.write("keys", format!("\u{feff}{}", keys()));
    let run = Run::plimsoll(&["pick", "web", "-k", "keys", "-d", &teller.address.to_string()], folder.path());
    assert_eq!((run.code, &*run.out), (Some(0), "127.0.0.1:5\n"), "{}", run.err);
}

#[test]
fn a_group_is_asked_where_no_daemon_is_known() {
    let mut cluster = Cluster::new("127.0.0.1");
    let group = format!("239.255.74.49:{}", free_port());
    cluster.lone(&[
        "--multicast",
        &group,
        "--new-keys",
        "--service",
        "web=127.0.0.1:1",
        "--slow-start",
        "0s",
    ]);
    let pick = ["pick", "web", "--multicast", &group, "--interface", "127.0.0.1", "-k", "keys"];
    until("the group answers", || {
        let run = Run::plimsoll(&pick, cluster.folder.path());
        run.code == Some(0) && run.out == "127.0.0.1:1\n"
    });
}
