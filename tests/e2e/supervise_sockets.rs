//! A Supervisor holds the listening sockets of a balancer: clients that connect while there is no process
//! wait for the next one.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use plimsoll_bench::record::FailureKind;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Folder, Load, Member, PATIENCE, Run, Wire, curl_status, free_port, get, part, until};
use crate::supervise::{House, own, process};

/// The Supervisor's line for held sockets.
const HELD: &str = "held for the next process";

/// The Supervisor's line before it waits with the next start.
const TWICE: &str = "2 times in a row: started again in";

/// A Supervisor with one balancer, which it starts again once, and then only on command.
struct Guarded(House);

impl Guarded {
    /// Starts the Supervisor; `listeners` are those of the group `web`.
    #[track_caller]
    fn start(folder: Folder, listeners: &str, members: &[SocketAddr], supervise: &str) -> Self {
        write(&folder, listeners, members);
        let once = "restart_delay = \"1h\"\nrestart_delay_max = \"1h\"";
        let own = own(&folder).replace("restart_delay = \"20ms\"\nrestart_delay_max = \"100ms\"", once);
        folder.write("supervise.toml", own + supervise + &process("web", &["up", "-c", "up.toml"], ""));
        let guarded = Self(House::run_in(folder));
        until("its sockets are held", || guarded.held() == 1);
        guarded
    }

    /// Counts the Supervisor's lines with this text.
    fn said(&self, what: &str) -> usize {
        self.0.process.lines().iter().filter(|line| line.contains(what)).count()
    }

    /// Counts how often its sockets have been held so far.
    fn held(&self) -> usize {
        self.said(HELD)
    }

    /// Acts, and waits until the sockets are held anew.
    #[track_caller]
    fn held_after(&self, act: impl FnOnce()) {
        let before = self.held();
        act();
        until("its sockets are held", || self.held() > before);
    }

    #[track_caller]
    fn pid(&self) -> i32 {
        self.0.runs("web", None)
    }

    fn kill(&self) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), Signal::KILL).unwrap();
    }

    /// Kills the balancer twice in a row, so that no process serves.
    #[track_caller]
    fn kill_for_good(&self) {
        if self.0.of("web")["failures"] == 0 {
            self.held_after(|| self.kill());
        }
        let before = self.said(TWICE);
        self.kill();
        // The test does not ask by a connection: that would wait for the next process, as any client does.
        until("nobody serves", || self.said(TWICE) > before);
    }

    #[track_caller]
    fn start_again(&self) {
        self.held_after(|| drop(self.0.well(&["start", "web"])));
    }

    #[track_caller]
    fn control(&self, args: &[&str]) {
        let control = format!("unix:{}", self.0.folder.join("up.sock").display());
        let run = Run::plimsoll(&[args, &["--control", &control]].concat(), self.0.folder.path());
        assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
    }
}

fn write(folder: &Folder, listeners: &str, members: &[SocketAddr]) {
    let text = format!(
        "threads = 2\ndrain_deadline = \"2s\"\n{listeners}\n\
         [[group]]\nname = \"web\"\nslow_start = \"0s\"\nadmission = false\nmembers = {members:?}\n\
         [admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n",
        folder.join("up.sock").display()
    );
    let text =
        members.iter().fold(text, |text, member| text.replace(&member.to_string(), &format!("\"{member}\"")));
    let half = folder.write("up.new", text);
    fs::rename(half, folder.join("up.toml")).unwrap();
}

fn listener(port: u16, rest: &str) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\ngroup = \"web\"\n{rest}\n")
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Returns `true` if a client is refused.
fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Connects a client that has sent a request, and waits.
#[track_caller]
fn asks(address: SocketAddr) -> Wire {
    let mut client = Wire::connect(address);
    client.send(format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
    client
}

#[test]
fn three_kills_refuse_nobody() {
    let member = Member::start(&[]);
    let (folder, port) = (Folder::new(), free_port());
    write(&folder, &listener(port, ""), &[member.address]);
    let house = House::start_in(folder, &process("web", &["up", "-c", "up.toml"], ""));
    let held = || house.process.lines().iter().filter(|line| line.contains(HELD)).count();
    until("its sockets are held", || held() == 1);
    // Each request has a connection of its own.
    let mut load = Load::with(at(port), "GET", &[("Connection", "close")], 300.0);
    load.more(200);
    for kills in 1..=3 {
        let pid = house.runs("web", None);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        house.runs("web", Some(pid));
        until("its sockets are held again", || held() == kills + 1);
        load.more(200);
    }
    let record = load.stop();
    let lost = record.failed.clone();
    assert!(record.ok >= 700, "{record:?}");
    // Requests in flight at a kill lose their answers; no other request fails.
    let refused = [FailureKind::Connect, FailureKind::ConnectTimeout]
        .iter()
        .filter_map(|fault| lost.get(fault))
        .sum::<u64>();
    assert_eq!(refused, 0, "of {} requests: {lost:?}", record.due);
    assert!(lost.keys().all(|fault| *fault == FailureKind::Closed), "{lost:?}");
}

#[test]
fn whoever_comes_meanwhile_waits_at_every_kind_of_socket() {
    let member = Member::start(&[]);
    let echo = Member::start(&["--echo", "udp"]);
    let (folder, ports) = (Folder::new(), [(); 7].map(|()| free_port()));
    let [http, tcp, https, udp, dns, shows, reports] = ports;
    crate::stage::Authority::new(&folder, "ca").issue(&folder, "one", &["one.test"]);
    let tls =
        "protocol = \"https\"\ntls = { certificates = [{ certificate = \"one.pem\", key = \"one.key\" }] }";
    let named = "protocol = \"dns\"\ndomain = \"web.example.\"\nanswer_rate = 0";
    let listeners = [
        listener(http, ""),
        listener(tcp, "protocol = \"tcp\""),
        listener(https, tls),
        listener(dns, named),
        listener(udp, "protocol = \"udp\"").replace("\"web\"", "\"echo\""),
        format!("[[group]]\nname = \"echo\"\nmembers = [\"{}\"]\n", echo.address),
    ];
    let guarded = Guarded::start(folder, &listeners.concat(), &[member.address], "");
    let text = guarded.0.folder.read("up.toml");
    let doors = format!("listen = \"127.0.0.1:{shows}\"\nreports = \"127.0.0.1:{reports}\"");
    guarded.0.folder.write("up.toml", text.replace("listen = \"off\"", &doors));
    // A reload does not change the addresses of the admin side.
    guarded.held_after(|| drop(guarded.0.well(&["restart", "web", "--wait"])));
    guarded.kill_for_good();
    let connections = [http, tcp, shows].map(|port| asks(at(port)));
    let told = TcpStream::connect(at(reports)).unwrap();
    let asked = UdpSocket::bind("127.0.0.1:0").unwrap();
    asked.set_read_timeout(Some(PATIENCE)).unwrap();
    asked.connect(at(udp)).unwrap();
    asked.send(b"are you there?").unwrap();
    let mut command = UnixStream::connect(guarded.0.folder.join("up.sock")).unwrap();
    command.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let ca = guarded.0.folder.join("ca.pem").display().to_string();
    let secured = thread::spawn(move || {
        let (to, url) = (format!("one.test:{https}:127.0.0.1"), format!("https://one.test:{https}/"));
        curl_status(&["--cacert", &ca, "--resolve", &to, &url], b"")
    });
    let dig = |args: &[&str]| {
        let mut command = Command::new(part("dig"));
        command
            .args(["-r", "+short", "@127.0.0.1", "-p", &dns.to_string(), "+tries=1", "+time=60"])
            .args(args);
        command.arg("web.example").stdout(Stdio::piped()).spawn().unwrap()
    };
    let resolved = [dig(&["+tcp"]), dig(&["+notcp"])];
    assert_eq!(guarded.0.of("web")["state"], "backing_off", "nobody has served them yet");
    guarded.start_again();
    for mut client in connections {
        assert_eq!(client.answer().unwrap().status, 200);
    }
    assert_eq!(secured.join().unwrap(), 200);
    assert_eq!(asked.recv(&mut [0; 64]).unwrap(), b"are you there?".len());
    for resolved in resolved {
        assert_eq!(String::from_utf8_lossy(&resolved.wait_with_output().unwrap().stdout), "127.0.0.1\n");
    }
    let mut answer = String::new();
    command.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(told);
}

#[test]
fn a_balancer_that_is_stopped_leaves_nobody_waiting() {
    let member = Member::start(&[]);
    let ports = [free_port(), free_port(), free_port()];
    let two = [listener(ports[0], ""), listener(ports[1], "")];
    let guarded = Guarded::start(Folder::new(), &two.concat(), &[member.address], "");
    // A listener that a reload adds is held, one that it removes is not.
    let other = [listener(ports[1], ""), listener(ports[2], "")];
    write(&guarded.0.folder, &other.concat(), &[member.address]);
    guarded.held_after(|| guarded.control(&["reload"]));
    until("the listener is gone", || refuses(at(ports[0])));
    // The same holds for listeners that an operator closes and opens.
    let name = at(ports[1]).to_string();
    guarded.held_after(|| guarded.control(&["disable", "listener", &name]));
    until("the listener is closed", || refuses(at(ports[1])));
    guarded.held_after(|| guarded.control(&["enable", "listener", &name]));
    guarded.kill_for_good();
    let waiting = [ports[1], ports[2]].map(|port| asks(at(port)));
    assert!(refuses(at(ports[0])));
    guarded.start_again();
    for mut client in waiting {
        assert_eq!(client.answer().unwrap().status, 200);
    }
    let all_refuse = |what: &str| until(what, || ports.iter().all(|port| refuses(at(*port))));
    // After any stop no client waits at an address that is not served.
    guarded.0.well(&["stop", "web", "--wait"]);
    all_refuse("it is stopped by the Supervisor");
    guarded.start_again();
    guarded.control(&["stop", "--wait"]);
    all_refuse("it is stopped by a command");
    guarded.start_again();
    guarded.kill_for_good();
    drop(asks(at(ports[1])));
    guarded.0.well(&["stop", "web", "--wait"]);
    all_refuse("it is stopped while nobody serves");
    // No socket is held for a balancer with a wrong file.
    guarded.start_again();
    guarded.0.folder.write("up.toml", "drain_deadline = 7");
    guarded.kill();
    until("its file is wrong", || guarded.0.of("web")["state"] == "failed");
    all_refuse("its file is wrong");
}

#[test]
fn sockets_that_nobody_takes_in_time_are_closed() {
    let member = Member::start(&[]);
    let port = free_port();
    let within = "hold_sockets = \"1s\"\n";
    let guarded = Guarded::start(Folder::new(), &listener(port, ""), &[member.address], within);
    guarded.kill_for_good();
    until("clients are refused", || refuses(at(port)));
    guarded.0.process.line("web: its listening sockets are closed, and clients are refused");
    guarded.start_again();
    assert_eq!(get(at(port), "/").status, 200);
}

#[test]
fn another_supervisor_and_another_process_hold_them_as_well() {
    let member = Member::start(&[]);
    let port = free_port();
    let mut guarded = Guarded::start(Folder::new(), &listener(port, ""), &[member.address], "");
    let first = guarded.pid();
    // The Supervisor is killed: the next one holds the sockets, too.
    guarded.0.kill();
    guarded.0.again();
    until("its sockets are held", || guarded.held() == 1);
    assert_eq!(guarded.pid(), first);
    // A new process takes over, and has its sockets held.
    guarded.held_after(|| guarded.control(&["upgrade"]));
    let second = guarded.0.runs("web", Some(first));
    until("the first has ended", || !fs::exists(format!("/proc/{first}")).unwrap());
    guarded.held_after(|| guarded.kill());
    let third = guarded.0.runs("web", Some(second));
    guarded.kill_for_good();
    let mut waiting = asks(at(port));
    guarded.start_again();
    assert_eq!(waiting.answer().unwrap().status, 200);
    assert_ne!(guarded.pid(), third);
}
