//! `plimsoll supervise`: real processes of Plimsoll are started, killed, found again and stopped.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::stage::{Folder, Load, Member, Process, Run, binary, found, free_port, listens, until};

/// A Supervisor with a file of its own.
pub(crate) struct House {
    pub(crate) process: Process,
    pub(crate) folder: Folder,
}

/// Returns the begin of a file: delays that a test can wait for.
pub(crate) fn own(folder: &Folder) -> String {
    format!(
        "[supervise]\ncontrol = \"unix:{}\"\nlisten = \"127.0.0.1:0\"\nrestart_delay = \"20ms\"\n\
         restart_delay_max = \"100ms\"\nsettled_after = \"1h\"\n",
        folder.join("s.sock").display()
    )
}

/// Returns the table of a process of the file.
pub(crate) fn process(name: &str, command: &[&str], rest: &str) -> String {
    format!("[[process]]\nname = \"{name}\"\ncommand = {command:?}\nstop_timeout = \"10s\"\n{rest}\n")
}

/// Returns the process of a lottery's daemon on its own: it needs nothing and ends at once when asked to.
pub(crate) fn lottery(name: &str, member: usize) -> String {
    let (member, keys) = (member.to_string(), format!("{name}.keys"));
    process(name, &["lottery", "--member", &member, "--listen", "127.0.0.1:0", "--keys", &keys], "")
}

/// Writes the file of a balancer in front of a member.
fn balancer(folder: &Folder, port: u16, member: SocketAddr) {
    let text = format!(
        "drain_deadline = \"2s\"\n[[listener]]\naddress = \"127.0.0.1:{port}\"\ngroup = \"web\"\n\
         [[group]]\nname = \"web\"\nslow_start = \"0s\"\nadmission = false\n\
         timeouts = {{ connect = \"20s\" }}\nmembers = [\"{member}\"]\n\
         [admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n",
        folder.join("up.sock").display()
    );
    let half = folder.write("up.new", text);
    fs::rename(half, folder.join("up.toml")).unwrap();
}

impl House {
    #[track_caller]
    fn start(processes: &str) -> Self {
        let folder = Folder::new();
        Self::start_in(folder, processes)
    }

    #[track_caller]
    pub(crate) fn start_in(folder: Folder, processes: &str) -> Self {
        folder.write("supervise.toml", own(&folder) + processes);
        Self::run_in(folder)
    }

    /// Starts the Supervisor with the file in this folder.
    #[track_caller]
    pub(crate) fn run_in(folder: Folder) -> Self {
        let process = run(&folder);
        Self { process, folder }
    }

    /// Kills the Supervisor by SIGKILL, without a clean-up.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts another Supervisor on the same file.
    #[track_caller]
    pub(crate) fn again(&mut self) {
        self.process = run(&self.folder);
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::plimsoll(&[&["supervise"], args].concat(), self.folder.path())
    }

    #[track_caller]
    pub(crate) fn well(&self, args: &[&str]) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
        run
    }

    /// Returns the status of a process.
    #[track_caller]
    pub(crate) fn of(&self, name: &str) -> Value {
        let status = self.run(&["status", "-o", "json"]).json();
        let processes = status["processes"].as_array().unwrap();
        let found = processes.iter().find(|process| process["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {status}")).clone()
    }

    /// Waits until a process is in a state; returns its status then.
    #[track_caller]
    fn is(&self, name: &str, state: &str) -> Value {
        found(&format!("{name} {state}"), || Some(self.of(name)).filter(|process| process["state"] == state))
    }

    /// Waits until a process runs under another id than `before`; returns that id.
    #[track_caller]
    pub(crate) fn runs(&self, name: &str, before: Option<i32>) -> i32 {
        found(&format!("{name} runs"), || pid(&self.of(name)).filter(|pid| Some(*pid) != before))
    }
}

impl Drop for House {
    /// Kills all that the Supervisor started, so that nothing outlives its test.
    fn drop(&mut self) {
        let left = fs::read_to_string(self.folder.join("s.state")).unwrap_or_default();
        let _ = Run::plimsoll(&["supervise", "shutdown", "--wait"], self.folder.path());
        let state: Value = serde_json::from_str(&left).unwrap_or_default();
        for process in state["processes"].as_array().into_iter().flatten() {
            if let Some(pid) = process["running"][0]["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32))
                && ours(pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Returns `true` if the process still runs the tested binary.
fn ours(pid: Pid) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    fs::canonicalize(binary()).is_ok_and(|binary| binary == program)
}

#[track_caller]
fn run(folder: &Folder) -> Process {
    let process = Process::start(&binary(), &["supervise"], folder.path());
    process.line("listening control ");
    // The state file exists once all processes have been found.
    until("it has begun", || folder.join("s.state").exists());
    process
}

fn pid(process: &Value) -> Option<i32> {
    process["pid"].as_i64().map(|pid| pid as i32)
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Returns `true` if a process with this id has not ended.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

#[test]
fn five_at_once_and_each_crash_is_one_restart() {
    let processes: String = (1..=5).map(|number| lottery(&format!("l{number}"), number)).collect();
    let house = House::start(&processes);
    let pids: Vec<i32> = (1..=5).map(|number| house.runs(&format!("l{number}"), None)).collect();
    for number in 1..=5 {
        let name = format!("l{number}: ");
        let says = |line: &String| line.starts_with(&name) && line.contains("listening lottery");
        until("it has begun", || house.process.lines().iter().any(says));
    }
    pids.iter().for_each(|pid| kill(*pid));
    for (number, before) in (1..=5).zip(&pids) {
        let name = format!("l{number}");
        house.runs(&name, Some(*before));
        let process = house.of(&name);
        assert_eq!((&process["restarts"], &process["failures"]), (&1.into(), &1.into()), "{process}");
        assert_eq!(process["last_exit"]["reason"], "killed by SIGKILL");
        let last = process["last_exit"]["lines"].as_array().unwrap();
        assert!(last.iter().any(|line| line.as_str().unwrap().contains("listening lottery")), "{process}");
    }
    house.process.line("l3: killed by SIGKILL: started again at once");
}

#[test]
fn a_crash_loop_backs_off_and_is_never_given_up() {
    let house = House::start(&lottery("l", 1));
    let mut before = None;
    for crash in 1..=6 {
        let pid = house.runs("l", before);
        kill(pid);
        let process = found("the crash is seen", || {
            let process = house.of("l");
            (process["failures"] == crash).then_some(process)
        });
        assert_eq!(process["last_exit"]["ending"], serde_json::json!({"signal": 9}));
        before = Some(pid);
    }
    house.process.line("6 times in a row: started again in ");
    house.runs("l", before);
    assert_eq!(house.of("l")["restarts"], 6);
}

#[test]
fn what_is_wrong_is_not_tried_again_until_it_changes() {
    let folder = Folder::new();
    folder.write("l.toml", "member = 0\n");
    let house = House::start_in(folder, &process("l", &["lottery", "-c", "l.toml"], ""));
    let failed = house.is("l", "failed");
    assert_eq!(failed["last_exit"]["ending"], serde_json::json!({"code": 2}));
    let said = failed["last_exit"]["lines"].to_string();
    assert!(
        said.contains("l.toml:1:10") && failed["why"].as_str().unwrap().contains("when l.toml changes"),
        "{failed}"
    );
    let run = house.run(&["status"]);
    assert!(run.code == Some(1) && run.out.contains("l.toml:1:10"), "{:?} {}", run.code, run.out);
    // The file is wrong in another way: one more try follows, and no more.
    house.folder.write("l.toml", "member = 1\nlisten = \"127.0.0.1:0\"\n");
    found("another try", || (house.of("l")["restarts"] == 1).then_some(()));
    let failed = house.is("l", "failed");
    assert!(failed["last_exit"]["lines"].to_string().contains("keys"), "{failed}");
    // The file is replaced, as editors do.
    let right = "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"l.keys\"\n";
    let new = house.folder.write("new", right);
    fs::rename(new, house.folder.join("l.toml")).unwrap();
    house.is("l", "running");
}

#[test]
fn a_stop_is_final() {
    let house = House::start(&(lottery("one", 1) + &lottery("two", 2)));
    let (one, two) = (house.runs("one", None), house.runs("two", None));
    let run = house.well(&["stop", "one", "--wait"]);
    assert_eq!(run.err, "one: stopped\n");
    assert!(!lives(one) && lives(two));
    // Another process stops it, and the Supervisor gets no command.
    kill_process(Pid::from_raw(two).unwrap(), Signal::TERM).unwrap();
    let stopped = house.is("two", "stopped");
    assert!(stopped["why"].as_str().unwrap().contains("somebody told it to end"), "{stopped}");
    assert_eq!(house.well(&["status"]).code, Some(0), "what was stopped is well");
    house.well(&["start", "two"]);
    let again = house.runs("two", Some(two));
    house.well(&["restart", "two", "--wait"]);
    let last = house.runs("two", Some(again));
    assert!(!lives(again) && lives(last));
    assert_eq!(house.of("one")["state"], "stopped");
    let run = house.run(&["start", "three"]);
    assert!(run.code == Some(2) && run.err.contains("there are: one, two"), "{:?} {}", run.code, run.err);
    house.well(&["reload", "two"]);
    assert!(lives(last), "a lottery reads its file again");
}

#[test]
fn who_does_not_end_in_time_is_killed() {
    let house = House::start(&lottery("l", 1).replace("\"10s\"", "\"100ms\""));
    let pid = house.runs("l", None);
    // The process can do nothing, not even end.
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    house.well(&["stop", "l", "--wait"]);
    assert_eq!(house.of("l")["last_exit"]["reason"], "killed by SIGKILL");
    house.process.line("l: killed: it was told to end 100ms ago");
}

#[test]
fn processes_outlive_their_supervisor_and_are_found_again() {
    let member = Member::start(&[]);
    let (folder, port) = (Folder::new(), free_port());
    balancer(&folder, port, member.address);
    let processes = process("web", &["up", "-c", "up.toml"], "") + &lottery("l", 1) + &lottery("idle", 2);
    let mut house = House::start_in(folder, &processes);
    let (web, lottery) = (house.runs("web", None), house.runs("l", None));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    until("the balancer serves", || listens(address));
    house.well(&["stop", "idle", "--wait"]);
    let mut load = Load::start(address, "POST", 200.0);
    load.more(50);
    house.kill();
    // Its output while there is no reader does it no harm.
    for _ in 0..50 {
        kill_process(Pid::from_raw(web).unwrap(), Signal::HUP).unwrap();
        load.more(2);
    }
    // One process ends while there is no Supervisor.
    kill(lottery);
    until("it has ended", || !lives(lottery));
    house.again();
    assert_eq!(house.runs("web", None), web, "it is the same process");
    let found = house.of("web");
    assert_eq!(
        (&found["adopted"], &found["state"], &found["restarts"]),
        (&true.into(), &"running".into(), &0.into())
    );
    house.process.line(&format!("web: found running, pid {web}"));
    // The output of that time was kept for the next Supervisor.
    house.process.line("web: ");
    house.process.line("reloaded: nothing changed");
    house.runs("l", Some(lottery));
    assert_eq!(house.of("l")["failures"], 1);
    assert_eq!(house.of("idle")["state"], "stopped", "a stop outlives the Supervisor");
    load.more(50);
    load.stop_unharmed();
    // The Supervisor watches it as before.
    kill(web);
    house.runs("web", Some(web));
    until("the balancer serves again", || listens(address));
    assert_eq!(house.of("web")["adopted"], false);
}

#[test]
fn both_ways_to_shut_down() {
    let mut house = House::start(&lottery("l", 1));
    let pid = house.runs("l", None);
    let run = house.well(&["shutdown", "--children", "leave", "--wait"]);
    assert_eq!(run.err, "ended; its processes go on\n");
    assert_eq!(house.process.end(), Some(0));
    assert!(lives(pid));
    house.again();
    assert_eq!(house.runs("l", None), pid);
    house.well(&["shutdown", "--wait"]);
    assert_eq!(house.process.end(), Some(0));
    assert!(!lives(pid) && !house.folder.join("s.state").exists());
    let run = house.run(&["status"]);
    assert!(run.code == Some(3) && run.err.contains("plimsoll supervise"), "{:?} {}", run.code, run.err);
    // The shutdown by signal, as an init system does it.
    house.again();
    let pid = house.runs("l", None);
    house.process.signal(Signal::TERM);
    assert_eq!(house.process.end(), Some(0));
    assert!(!lives(pid));
}

#[test]
fn one_view_of_the_host() {
    let member = Member::start(&[]);
    let (folder, port, status) = (Folder::new(), free_port(), free_port());
    balancer(&folder, port, member.address);
    folder.write(
        "l.toml",
        format!(
            "member = 7\nlisten = \"127.0.0.1:0\"\nkeys = \"l.keys\"\nstatus = \"127.0.0.1:{status}\"\n\
             [[service]]\nname = \"shop\"\nserver = \"127.0.0.1:1\"\ncapacity = 3\n"
        ),
    );
    let agent = free_port().to_string();
    let agent =
        process("a", &["agent", "--listen", &format!("127.0.0.1:{agent}")], "environment = [\"NO_COLOR=1\"]");
    let processes =
        process("web", &["up", "-c", "up.toml"], "") + &process("l", &["lottery", "-c", "l.toml"], "");
    let house = House::start_in(folder, &(processes + &agent));
    let run = found("all say that they are well", || {
        Some(house.run(&["status"])).filter(|run| run.code == Some(0))
    });
    for text in
        ["group web: 1/1 member up, adaptive", "member 7: service shop at 127.0.0.1:1, capacity 3", "known"]
    {
        assert!(run.out.contains(text), "{text} in {}", run.out);
    }
    let says = &house.of("l")["says"];
    assert_eq!(
        (&says["facts"]["values"]["lottery_members"], &says["facts"]["member"]),
        (&0.0.into(), &7.into()),
        "{says}"
    );
    house.well(&["reload", "web"]);
    house.process.line("web: ");
    let metrics = house.process.line("listening status ");
    let address: SocketAddr = metrics
        .split("status ")
        .nth(1)
        .unwrap()
        .split(':')
        .take(2)
        .collect::<Vec<_>>()
        .join(":")
        .parse()
        .unwrap();
    let page = crate::stage::get(address, "/metrics").text();
    assert!(page.contains("plimsoll_supervise_process_state{process=\"web\",state=\"running\"} 1"), "{page}");
    assert_eq!(crate::stage::get(address, "/v1/processes/web").status, 200);
}

#[test]
fn a_file_that_is_read_again_changes_what_it_says() {
    let house = House::start(&(lottery("stays", 1) + &lottery("goes", 2)));
    let (stays, goes) = (house.runs("stays", None), house.runs("goes", None));
    let write = |processes: &str| house.folder.write("supervise.toml", own(&house.folder) + processes);
    write("[[process]]\nname = \"stays\"\ncommand = [\"lotery\"]\n");
    let run = house.run(&["reload"]);
    assert!(run.code == Some(2) && run.err.contains("supervise.toml:9"), "{:?} {}", run.code, run.err);
    assert_eq!(house.run(&["status"]).code, Some(1));
    assert!(lives(stays) && lives(goes), "a bad file changes nothing");
    write(&(lottery("stays", 3) + &lottery("comes", 4)));
    let run = house.well(&["reload"]);
    for line in [
        "~ process stays: takes effect with plimsoll supervise restart stays",
        "+ process comes",
        "- process goes",
    ] {
        assert!(run.out.contains(line), "{line} in {}", run.out);
    }
    house.runs("comes", None);
    until("it is gone", || !lives(goes));
    assert_eq!((house.runs("stays", None), &house.of("stays")["outdated"]), (stays, &true.into()));
    house.well(&["restart", "stays", "--wait"]);
    assert_eq!(house.of("stays")["outdated"], false);
    let status = house.run(&["status", "-o", "json"]).json();
    let names: Vec<&str> =
        status["processes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stays", "comes"]);
}

#[test]
fn nothing_runs_while_nothing_happens() {
    let house =
        House::start(&(1..=3).map(|number| lottery(&format!("l{number}"), number)).collect::<String>());
    for number in 1..=3 {
        house.runs(&format!("l{number}"), None);
    }
    let cost = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", house.process.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // The fields are user and system time, 14 and 15 as proc(5) counts, in hundredths of a second.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let switches = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", house.process.pid())).unwrap();
        let of = |task: std::path::PathBuf| fs::read_to_string(task.join("status")).unwrap_or_default();
        let count = |status: String| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(0, |count| count.trim().parse().unwrap())
        };
        tasks.map(|task| count(of(task.unwrap().path()))).sum::<u64>()
    };
    // The last request is answered, and its threads sleep.
    let quiet = || {
        let before = (cost(), switches());
        // sleeps: the window in which hardly anything may happen; a slow machine does less
        std::thread::sleep(Duration::from_secs(2));
        // An idle thread ends after ten seconds, and its switches are no longer in the
        // sum.
        (cost() - before.0, switches().abs_diff(before.1))
    };
    let (ticks, wakes) =
        found("two seconds of quiet", || Some(quiet()).filter(|(ticks, wakes)| *ticks == 0 && *wakes <= 1));
    assert!(ticks == 0 && wakes <= 1);
    // The Supervisor's own memory, without the program, is below the limit, in whatever way it was built.
    let status = fs::read_to_string(format!("/proc/{}/status", house.process.pid())).unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let own: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(own < 32 << 10, "{own} KiB");
}

#[test]
fn of_two_supervisors_one_runs() {
    let house = House::start(&lottery("l", 1));
    let second = Run::plimsoll(&["supervise"], house.folder.path());
    assert!(
        second.code == Some(1) && second.err.contains("a running process answers there"),
        "{}",
        second.err
    );
    assert!(
        second.err.contains("[supervise] control") && second.err.contains("plimsoll supervise shutdown"),
        "{}",
        second.err
    );
    assert!(test_kill_process(Pid::from_raw(house.runs("l", None)).unwrap()).is_ok());
    let run = Run::plimsoll(&["supervise", "-c", "none.toml"], Path::new("/"));
    assert!(run.code == Some(2) && run.err.contains("none.toml"), "{}", run.err);
}

#[test]
fn what_is_published_is_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("examples/supervise");
    let run = Run::plimsoll(&["supervise", "--check", "-c", "supervise.toml"], &example);
    assert_eq!((run.code, &*run.err), (Some(0), "supervise.toml: ok: web, lottery\n"));
    let guide = fs::read_to_string(root.join("docs/guide/supervise.md")).unwrap();
    let unit = fs::read_to_string(example.join("plimsoll-supervise.service")).unwrap();
    assert!(guide.contains(&unit), "the unit in the guide is another one");
    let (_, file) = guide.split_once("```toml\n").unwrap();
    let text = fs::read_to_string(example.join("supervise.toml")).unwrap();
    assert!(text.contains(file.split_once("```").unwrap().0), "the file in the guide is another one");
}
