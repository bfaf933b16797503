//! The balancer under test: `plimsoll up` with a file of its own, and the commands that look and act.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{Folder, PATIENCE, Process, found, get, part, until};

/// Returns the binary that is tested: the one that `PLIMSOLL_BIN` names, or cargo's own.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("PLIMSOLL_BIN").map_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into(), PathBuf::from)
}

/// A running balancer.
pub(crate) struct Balancer {
    pub(crate) process: Process,
    folder: Folder,
    addresses: Vec<SocketAddr>,
    admin: SocketAddr,
}

/// A command that has ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    /// Runs a command of Plimsoll in a folder.
    pub(crate) fn plimsoll(args: &[&str], folder: &Path) -> Self {
        Self::of(&binary(), args, folder)
    }

    /// Runs a program to its end; one that does not end in time is killed.
    pub(crate) fn of(program: &Path, args: &[&str], folder: &Path) -> Self {
        // The program is killed with the test's own process, and when its time is over.
        let (limit, setpriv) = (PATIENCE.as_secs().to_string(), part("setpriv"));
        let mut command = Command::new(&setpriv);
        command.args(["--pdeathsig", "KILL", "--", "timeout", "--signal=KILL", &limit]);
        command.arg(&setpriv).args(["--pdeathsig", "KILL", "--"]).arg(program).args(args);
        command.current_dir(folder).env_remove("PLIMSOLL_CONTROL").env_remove("NO_COLOR");
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {:?} {}{}", self.code, self.out, self.err))
    }
}

/// Returns a file with one http listener on group `web` of these members. `rest` goes to the end, into the
/// table of the group.
pub(crate) fn web(members: &[SocketAddr], rest: &str) -> String {
    listening("", members, rest)
}

/// Returns the same with more settings of the listener, such as `protocol = "tcp"`.
pub(crate) fn listening(listener: &str, members: &[SocketAddr], rest: &str) -> String {
    let groups = groups(&[("web", members)], rest);
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{listener}\n{groups}")
}

/// Returns tables of groups; slow start is off, so that shares are final at once. `rest` is the last group's.
pub(crate) fn groups(groups: &[(&str, &[SocketAddr])], rest: &str) -> String {
    let table = |(name, members): &(&str, &[SocketAddr])| {
        format!("[[group]]\nname = \"{name}\"\nslow_start = \"0s\"\nmembers = {}\n", members_list(members))
    };
    groups.iter().map(table).collect::<String>() + rest
}

/// Returns members as a file lists them.
pub(crate) fn members_list(members: &[SocketAddr]) -> String {
    let quoted: Vec<String> = members.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

impl Balancer {
    /// Starts a balancer on `text` and waits until it serves.
    #[track_caller]
    pub(crate) fn start(text: &str) -> Self {
        Self::start_in(Folder::new(), text)
    }

    /// Starts a balancer in an existing folder.
    #[track_caller]
    pub(crate) fn start_in(folder: Folder, text: &str) -> Self {
        Self::of(&binary(), folder, text)
    }

    /// Starts a balancer of another binary.
    #[track_caller]
    pub(crate) fn of(program: &Path, folder: Folder, text: &str) -> Self {
        write(&folder, text);
        let mut process = Process::start(program, &["up"], folder.path());
        let admin = found("a balancer that serves", || {
            assert!(!process.ended(), "the balancer did not start: {process}");
            let said = process.lines();
            said.iter().find_map(|line| address_after(line, "listening admin "))
        });
        let lines = process.lines();
        let listening =
            ["http", "https", "iiop", "tcp", "udp", "xds"].map(|protocol| format!("listening {protocol} "));
        let addresses = lines
            .iter()
            .filter_map(|line| listening.iter().find_map(|before| address_after(line, before)))
            .collect();
        Self { process, folder, addresses, admin }
    }

    /// Returns the address of its first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Returns the addresses of its listeners at the start, in the order of the file.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the address where reports of members are taken.
    pub(crate) fn reports(&self) -> SocketAddr {
        self.said("listening reports ")
    }

    /// Returns the address of the load manager, if the file has one.
    pub(crate) fn load_manager(&self) -> SocketAddr {
        self.said("listening load manager ")
    }

    /// Returns the address of control over TLS, if the file has it, as `--host` takes it.
    pub(crate) fn host(&self) -> String {
        format!("https://{}", self.said("listening control tls://"))
    }

    /// Returns the address behind these words in a line of its log, which is written some time after the line
    /// that the start waited for.
    #[track_caller]
    fn said(&self, words: &str) -> SocketAddr {
        let line = self.process.line(words);
        address_after(&line, words).unwrap_or_else(|| panic!("no address: {line}"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Kills the balancer by SIGKILL; returns its folder, for another one.
    pub(crate) fn killed(mut self) -> Folder {
        self.process.kill();
        self.folder
    }

    /// Returns the address of its read-only listener.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs a command in this balancer's folder.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::plimsoll(args, self.folder.path())
    }

    /// Writes another file; it is not read before a reload.
    pub(crate) fn write(&self, text: &str) {
        write(&self.folder, text);
    }

    /// Puts another file in force with `plimsoll reload`.
    #[track_caller]
    pub(crate) fn reload(&self, text: &str) -> String {
        self.write(text);
        let run = self.run(&["reload"]);
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        run.out
    }

    /// Puts another file in force with SIGHUP, and waits until it is.
    #[track_caller]
    pub(crate) fn hang_up(&self, text: &str) {
        self.write(text);
        let before = self.status()["reloads"].as_u64();
        self.process.signal(Signal::HUP);
        until("a reload", || self.status()["reloads"].as_u64() > before);
    }

    /// Returns what `plimsoll status -o json` prints, asked over HTTP: tests look often, and a process each
    /// time would keep the machine busy.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let answer = get(self.admin, "/status");
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    /// Returns one group as `plimsoll members -o json` prints it.
    #[track_caller]
    pub(crate) fn group(&self, name: &str) -> Value {
        let mut status = self.status();
        let groups = status["groups"].as_array_mut().unwrap();
        let found = groups.iter_mut().find(|group| group["name"] == name);
        found.unwrap_or_else(|| panic!("no group {name}")).take()
    }

    /// Returns a member of the group `web`.
    #[track_caller]
    pub(crate) fn member(&self, address: SocketAddr) -> Value {
        member_of(&self.group("web"), address)
    }

    /// Waits until so many requests are counted in all at these members of the group `web`. A client may have
    /// its answer before the request is counted.
    #[track_caller]
    pub(crate) fn counted(&self, members: &[SocketAddr], requests: u64) {
        let of = |member: &SocketAddr| self.member(*member)["requests"].as_u64().unwrap();
        until("all are counted", || members.iter().map(of).sum::<u64>() >= requests);
    }

    /// Returns how often the balancer answered for group `web` itself, for this reason.
    #[track_caller]
    pub(crate) fn rejected(&self, reason: &str) -> u64 {
        self.metric(&format!("plimsoll_rejected_total{{group=\"web\",reason=\"{reason}\"}}")) as u64
    }

    /// Returns a member's events of this kind, oldest first.
    #[track_caller]
    pub(crate) fn events(&self, member: SocketAddr, kind: &str) -> Vec<Value> {
        let run = self.run(&["events", "-o", "json"]);
        let event = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let wanted = |event: &Value| event["kind"] == kind && event["member"] == member.to_string();
        run.out.lines().map(event).filter(wanted).collect()
    }

    /// Returns the page of metrics.
    #[track_caller]
    pub(crate) fn metrics(&self) -> String {
        get(self.admin, "/metrics").text()
    }

    /// Returns a sample of the metrics, by name and labels.
    #[track_caller]
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let page = self.metrics();
        let sample = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        sample.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
    }
}

/// Returns a member of a group.
#[track_caller]
fn member_of(group: &Value, address: SocketAddr) -> Value {
    let members = group["members"].as_array().unwrap();
    let found = members.iter().find(|member| member["address"] == address.to_string());
    found.unwrap_or_else(|| panic!("no {address} in {group}")).clone()
}

/// Writes the file with a table of the admin plane. The last table of `text` ends where that begins, unless
/// it is the last one itself.
fn write(folder: &Folder, text: &str) {
    let control = folder.join("control.sock");
    let header = if text.contains("\n[admin]\n") { "" } else { "\n[admin]" };
    let control = match text.contains("\ncontrol = ") {
        true => String::new(),
        false => format!("control = \"unix:{}\"\n", control.display()),
    };
    let admin = format!("{header}\nlisten = \"127.0.0.1:0\"\nreports = \"127.0.0.1:0\"\n{control}");
    // The rename is atomic: a reload must not read half of the file.
    let half = folder.write("plimsoll.toml.new", text.to_owned() + &admin);
    std::fs::rename(half, folder.join("plimsoll.toml")).unwrap();
}

fn address_after(line: &str, before: &str) -> Option<SocketAddr> {
    let rest = line.split_once(before)?.1;
    rest.split([' ', ',']).next()?.trim_end_matches(':').parse().ok()
}
