//! `plimsoll top` on a terminal of the test's, without one, and for programs.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::stage::{Balancer, Member, binary, get, until, web};

/// A command on a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    ours: OwnedFd,
    /// The side of the terminal that the command has, whose settings the test reads.
    theirs: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(
        balancer: &Balancer,
        args: &[&str],
        columns: u16,
        lines: u16,
        variables: &[(&str, &str)],
    ) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        resize(&ours, columns, lines);
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = Command::new(binary());
        command.args(args).current_dir(balancer.folder().path());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("PLIMSOLL_CONTROL");
        command.envs(variables.iter().copied());
        command
            .stdin(Stdio::from(theirs.try_clone().unwrap()))
            .stdout(Stdio::from(theirs.try_clone().unwrap()));
        let child = command.stderr(Stdio::from(theirs.try_clone().unwrap())).spawn().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) = (File::from(ours.try_clone().unwrap()), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, keys: File::from(ours.try_clone().unwrap()), ours, theirs, shown }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns all output so far.
    fn raw(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Returns the last whole picture, as plain text.
    fn picture(&self) -> String {
        let raw = self.raw();
        // Each picture begins at home and ends by clearing the rest of the screen.
        let whole = raw.rsplit("\x1b[J").nth(1).unwrap_or_default();
        let last = whole.rsplit("\x1b[H").next().unwrap_or_default();
        plain(last)
    }

    fn wait_for(&self, text: &str) {
        until(&format!("{text:?} in {}", self.picture()), || self.picture().contains(text));
    }

    fn end(&mut self) -> Option<i32> {
        until("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// Returns `true` if the terminal shows the input, line by line, as a shell wants it.
    fn cooked(&self) -> bool {
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &OwnedFd, columns: u16, lines: u16) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

/// Returns the text without the codes that control the terminal.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\x1b' {
            out.extend((letter != '\r').then_some(letter));
            continue;
        }
        if letters.next() == Some('[') {
            letters.by_ref().find(|letter| ('@'..='~').contains(letter));
        }
    }
    out
}

fn busy() -> (Balancer, Vec<Member>) {
    let members = Member::several(2, &[]);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(&addresses, ""));
    for _ in 0..4 {
        assert_eq!(get(balancer.address(), "/").status, 200);
    }
    (balancer, members)
}

#[test]
fn it_is_live_on_a_terminal_and_leaves_it_as_it_was() {
    let (balancer, mut members) = busy();
    let mut terminal = Terminal::start(&balancer, &["top", "--interval", "100ms"], 140, 30, &[]);
    terminal.wait_for("✔ web  2/2 members up");
    terminal.wait_for(&members[0].address.to_string());
    terminal.wait_for("q quit");
    assert!(!terminal.cooked());
    assert!(terminal.raw().contains("\x1b[?1049h") && terminal.raw().contains("\x1b[?25l"));
    assert!(terminal.raw().contains("\x1b[32m"), "there is colour");

    terminal.press("s");
    terminal.wait_for("by name");
    terminal.press("g");
    terminal.press("h");
    terminal.wait_for("sort members by the next column");
    terminal.press("\x1b");
    terminal.wait_for("✔ web");

    // The picture is updated by itself, and stays when paused.
    terminal.press("p");
    terminal.wait_for("PAUSED");
    let address = members[1].address.to_string();
    assert_eq!(balancer.run(&["drain", &address]).code, Some(0));
    assert!(!terminal.picture().contains("draining"));
    terminal.press("p");
    terminal.wait_for("◌ draining");
    terminal.wait_for("drained by an operator");

    // Another size makes another picture.
    resize(&terminal.ours, 60, 12);
    kill_process(Pid::from_child(&terminal.child), Signal::WINCH).unwrap();
    until("it is small", || {
        let picture = terminal.picture();
        picture.lines().count() <= 12 && picture.lines().all(|line| line.chars().count() <= 60)
    });

    members.clear();
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    until("the screen is as it was", || terminal.raw().ends_with("\x1b[?25h\x1b[?1049l"));
    assert!(terminal.cooked());
}

#[test]
fn it_says_when_the_balancer_has_gone() {
    let (mut balancer, _members) = busy();
    let mut terminal = Terminal::start(&balancer, &["top", "--interval", "100ms"], 120, 20, &[]);
    terminal.wait_for("✔ web");
    balancer.process.kill();
    terminal.wait_for("‼ cannot reach unix:");
    terminal.press("\x03");
    assert_eq!(terminal.end(), Some(130), "Ctrl-C");
    assert!(terminal.cooked());
}

#[test]
fn a_signal_ends_it_in_order() {
    let (balancer, _members) = busy();
    let mut terminal = Terminal::start(&balancer, &["top"], 120, 20, &[("NO_COLOR", "1")]);
    terminal.wait_for("✔ web");
    for code in ["\x1b[32m", "\x1b[1m", "\x1b[31m"] {
        assert!(!terminal.raw().contains(code), "NO_COLOR is set");
    }
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    assert_eq!(terminal.end(), Some(130));
    until("the screen is as it was", || terminal.raw().contains("\x1b[?1049l"));
    assert!(terminal.cooked());
}

#[test]
fn without_a_terminal_it_is_one_picture() {
    let (balancer, members) = busy();
    let run = balancer.run(&["top"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("✔ web  2/2 members up") && !run.out.contains('\x1b'), "{}", run.out);
    for member in &members {
        assert!(run.out.contains(&format!("{}", member.address)), "{}", run.out);
    }
    let head = run.out.lines().find(|line| line.starts_with("member")).unwrap();
    let ours: Vec<&str> = head.split_whitespace().collect();
    let all =
        ["member", "state", "load", "report", "bindings", "rate", "p50", "p99", "errors", "sheds", "why"];
    assert_eq!(ours, all);
    // The dashboard has the same groups in that order, except those without a value.
    let mut browser = crate::stage::Wire::connect(balancer.admin());
    let host = balancer.admin();
    browser.send(format!("GET /dashboard HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    let page = browser.answer().unwrap().text();
    let table = page.split("class=\"members\"").nth(1).unwrap().split("</thead>").next().unwrap().to_owned();
    let heads = table.split("<th ").skip(1).filter_map(|head| head.split('>').nth(1)?.strip_suffix("</th"));
    let heads: Vec<String> = heads.map(str::to_lowercase).collect();
    let same: Vec<&str> = ours.into_iter().filter(|column| heads.iter().any(|head| head == column)).collect();
    assert_eq!(same, heads);
    assert!(heads.len() >= 8, "{heads:?}");
    assert_eq!(balancer.run(&["top", "mail"]).code, Some(2));
    assert_eq!(balancer.run(&["top", "--control", "unix:/nowhere.sock"]).code, Some(3));
    assert_eq!(balancer.run(&["top", "--interval", "1ms"]).code, Some(2));
}

#[test]
fn programs_get_a_document_per_interval() {
    let (balancer, members) = busy();
    assert_eq!(balancer.run(&["drain", &members[0].address.to_string()]).code, Some(0));
    let once = balancer.run(&["top", "--once", "-o", "json"]).json();
    assert_eq!(once["schema"], 1);
    assert_eq!(once["groups"][0]["members"].as_array().unwrap().len(), members.len());
    assert!(!once["events"].as_array().unwrap().is_empty());

    let mut child = Command::new(binary())
        .args(["top", "--interval", "100ms", "-o", "json"])
        .current_dir(balancer.folder().path())
        .env_remove("PLIMSOLL_CONTROL")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let documents: Vec<Value> =
        lines.take(3).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(documents.len(), 3);
    assert!(documents[1]["groups"][0]["members"][0]["requests_per_second"].is_number(), "{}", documents[1]);
    assert!(documents[2]["unix_ms"].as_u64() > documents[0]["unix_ms"].as_u64());
    // The reader has gone, and so the command ends by itself.
    until("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
