//! `plimsoll up` as a process: what it says, signals, reload, exit codes. Members are threads of the test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing here should take longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of its own for each test.
fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("up-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// An HTTP member that answers each request with `body` as soon as it may: at once, or when told.
fn member(body: &'static str, wait: Option<Receiver<()>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            if let Some(wait) = &wait {
                let _ = wait.recv();
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    address
}

fn config(folder: &Path, members: &[SocketAddr], extra: &str) -> String {
    let members: Vec<String> = members.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "threads = 1\n{extra}\n[admin]\nlisten = \"off\"\ncontrol = \"unix:{}/control\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n\
         [[group]]\nname = \"web\"\nslow_start = \"0s\"\nmembers = [{}]\n",
        folder.display(),
        members.join(", ")
    )
}

/// A running `plimsoll up`; killed if a test ends before it does.
struct Up {
    child: Child,
    lines: Receiver<String>,
    address: SocketAddr,
    folder: PathBuf,
}

impl Up {
    fn start(folder: PathBuf, text: &str, args: &[&str], notify: Option<&Path>) -> Self {
        fs::write(folder.join("plimsoll.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("up").args(args).current_dir(&folder).env_remove("NOTIFY_SOCKET").env_remove("RUST_LOG");
        if let Some(path) = notify {
            command.env("NOTIFY_SOCKET", path);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut up = Self { child, lines, address: ([127, 0, 0, 1], 0).into(), folder };
        let line = up.line("listening http ");
        let rest = line.split("listening http ").nth(1).unwrap();
        assert!(rest.contains(" -> web ("), "{line}");
        up.address = rest.split(' ').next().unwrap().parse().unwrap();
        up
    }

    /// The next line of the log that contains `text`.
    fn line(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => panic!("no {text:?} in the log: {error}"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn get(&self) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(&self) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["status", "-o", "json"])
            .current_dir(&self.folder)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    fn end(mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the process does not end");
            thread::sleep(Duration::from_millis(5)); // sleeps: polls
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs `up` where it is expected not to start.
fn refused(text: &str, shell: &str) -> Output {
    let folder = folder();
    let file = folder.join("plimsoll.toml");
    fs::write(&file, text).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" up -c \"$1\"")])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .arg(&file)
        .output()
        .unwrap();
    fs::remove_dir_all(folder).unwrap();
    output
}

#[test]
fn serves_reloads_and_stops() {
    let folder = folder();
    let (one, two) = (member("one", None), member("two", None));
    let text = config(&folder, &[one], "");
    let service = UnixDatagram::bind(folder.join("notify")).unwrap();
    service.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut buffer = [0; 512];
        let read = service.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    };
    let notify = folder.join("notify");
    let mut up = Up::start(folder.clone(), &text, &[], Some(&notify));
    assert!(told().starts_with("READY=1"));
    assert!(up.get().ends_with("one"));

    // A bad file keeps what is in force and says so.
    fs::write(folder.join("plimsoll.toml"), text.replace("members", "membres")).unwrap();
    up.signal(Signal::HUP);
    assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    let after = told();
    assert!(after.starts_with("READY=1") && after.contains("unknown key `membres`"), "{after}");
    up.line("unknown key `membres`");
    assert!(up.get().ends_with("one"));
    let status = up.status();
    assert_eq!(status["last_reload_successful"], false);
    assert_eq!(status["groups"][0]["members"][0]["requests"], 2);

    // A good one is put in force and keeps the counters.
    fs::write(folder.join("plimsoll.toml"), config(&folder, &[one, two], "")).unwrap();
    up.signal(Signal::HUP);
    assert!(told().starts_with("RELOADING=1"));
    assert!(told().starts_with("READY=1"));
    up.line(&format!("+ group web: member {two}"));
    let status = up.status();
    assert_eq!(status["last_reload_successful"], true);
    assert_eq!(status["groups"][0]["members"][0]["requests"], 2);
    let end = Instant::now() + PATIENCE;
    while !up.get().ends_with("two") {
        assert!(Instant::now() < end, "the new member has nothing to do");
    }

    up.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1\n");
    up.line("stopped");
    assert_eq!(up.end(), Some(0));
}

#[test]
fn work_in_flight_ends_before_the_process_does() {
    let folder = folder();
    let (release, wait) = channel();
    let address = member("late", Some(wait));
    let mut up = Up::start(folder.clone(), &config(&folder, &[address], ""), &["--log", "json"], None);
    let mut client = TcpStream::connect(up.address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let end = Instant::now() + PATIENCE;
    while up.status()["groups"][0]["members"][0]["in_flight"] != 1 {
        assert!(Instant::now() < end, "the request does not arrive");
    }
    up.signal(Signal::INT);
    let line = up.line("closed");
    let line: Value = serde_json::from_str(&line).expect("a log of JSON lines");
    assert_eq!(line["level"], "INFO");
    assert_eq!(up.status()["stopping"], true);
    release.send(()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("late"), "{answer}");
    assert_eq!(up.end(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = folder();
    let (_release, wait) = channel();
    let address = member("never", Some(wait));
    let mut up =
        Up::start(folder.clone(), &config(&folder, &[address], "drain_deadline = \"10m\""), &[], None);
    let mut client = TcpStream::connect(up.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let end = Instant::now() + PATIENCE;
    while up.status()["groups"][0]["members"][0]["in_flight"] != 1 {
        assert!(Instant::now() < end, "the request does not arrive");
    }
    up.signal(Signal::TERM);
    up.line("closed");
    up.signal(Signal::TERM);
    assert_eq!(up.end(), Some(130));
}

#[test]
fn what_cannot_be_had_is_said_in_one_line() {
    let folder = folder();
    let text = config(&folder, &[([127, 0, 0, 1], 9).into()], "");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let output = refused(&text.replace("127.0.0.1:0", &taken.to_string()), "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&taken.to_string()) && said.contains("in use"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    drop(holder);

    let output = refused(&format!("max_connections = 5000\n{text}"), "ulimit -n 1000;");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("max_connections = 5000") && said.contains("LimitNOFILE"), "{said}");

    let output = refused(&text.replace("group = \"web\"", "group = \"web\"\nprotocol = \"https\""), "");
    assert_eq!(output.status.code(), Some(2));

    let output = refused(&text.replace("listen = \"off\"", "listen = \"192.0.2.1:1\""), "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("192.0.2.1:1"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}
