//! A process as the Supervisor holds it: started or found, controlled, and waited for.
//!
//! It is held by a pidfd, which names the process and no later one with the same id. It is in a process group
//! of its own, so that a Ctrl-C in the Supervisor's terminal is the Supervisor's affair, and its children can
//! be killed with it.
//!
//! Its standard error is a pipe that it has open both ways and that does not block it. So it always has a
//! reader. When the Supervisor dies the process writes on. As much as fits waits for the next Supervisor,
//! which opens the pipe by `/proc/PID/fd/2`; the rest is lost. The process neither dies of it nor waits.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use plimsoll_brain::supervision::ExitCause;
use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Receiver;

use plimsoll_balancer::HOLDER_VARIABLE;
use plimsoll_config::{EnvironmentVariable, ProcessConfig};

/// The room for a process's output while there is no reader, in bytes; less if the system does not allow it.
const PIPE_CAPACITY: usize = 1 << 20;

/// The variables for the Supervisor alone.
const PRIVATE_VARIABLES: &[&str] = &[
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "STATE_DIRECTORY",
    HOLDER_VARIABLE,
];

/// The command of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaunchSpec {
    /// A command of Plimsoll's own binary and its arguments.
    pub(super) command: Vec<String>,
    /// Names and values beside the inherited environment.
    pub(super) environment: Vec<(String, String)>,
}

impl LaunchSpec {
    pub(super) fn of(process: &ProcessConfig) -> Self {
        let to_pair = |variable: &EnvironmentVariable| (variable.name.clone(), variable.value.clone());
        let environment = process.environment.iter().map(to_pair).collect();
        Self { command: process.command.clone(), environment }
    }
}

/// The identity of a process, different from all others since the start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pub(super) pid: i32,
    /// The time of its start: clock ticks since the start of the machine.
    pub(super) start: u64,
    /// Its process group: that of the first, if one has taken over from another.
    #[serde(default)]
    pub(super) group: i32,
}

impl ProcessIdentity {
    fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }
}

/// A process that runs, or did.
pub(super) struct SupervisedChild {
    pub(super) identity: ProcessIdentity,
    pidfd: Arc<AsyncFd<OwnedFd>>,
}

/// The handles to wait for its end.
pub(super) struct ExitWaiter {
    pidfd: Arc<AsyncFd<OwnedFd>>,
    /// The child; `None` for one that was found, which is another process's child.
    std_child: Option<std::process::Child>,
}

impl SupervisedChild {
    /// Starts a process; returns it with the handles to wait for and its output. `dated` means that its lines
    /// have a date even if those of the Supervisor do not. `holder` is the address for sockets that are to be
    /// held for its next process.
    pub(super) fn start(
        program: &Path,
        launch: &LaunchSpec,
        adds_timestamps: bool,
        holder_path: Option<&Path>,
    ) -> io::Result<(Self, ExitWaiter, Receiver)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&reader, PIPE_CAPACITY);
        let read_write = open(
            format!("/proc/self/fd/{}", writer.as_raw_fd()),
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let reader = Receiver::from_owned_fd(reader)?;
        let mut command = Command::new(program);
        command.args(&launch.command).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(read_write));
        for name in PRIVATE_VARIABLES {
            command.env_remove(name);
        }
        if adds_timestamps {
            command.env_remove("JOURNAL_STREAM");
        }
        if let Some(holder_path) = holder_path {
            command.env(HOLDER_VARIABLE, holder_path);
        }
        command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
        let mut std_child = command.spawn()?;
        // The child is not reaped before `wait`: until then the id is its own, even if it has ended.
        let pid = Pid::from_child(&std_child);
        let identity_and_pidfd = identity(pid).and_then(|identity| Ok((identity, open_pidfd(pid)?)));
        match identity_and_pidfd {
            Ok((identity, pidfd)) => {
                let exit_waiter = ExitWaiter { pidfd: Arc::clone(&pidfd), std_child: Some(std_child) };
                Ok((Self { identity, pidfd }, exit_waiter, reader))
            }
            Err(error) => {
                let _ = std_child.kill();
                let _ = std_child.wait();
                Err(error)
            }
        }
    }

    /// Takes over a process that a Supervisor before this one started; `None` if it has ended. Its output may
    /// be out of reach.
    pub(super) fn adopt(process_identity: ProcessIdentity) -> Option<(Self, ExitWaiter, Option<Receiver>)> {
        let pid = Pid::from_raw(process_identity.pid)?;
        let pidfd = open_pidfd(pid).ok()?;
        // The held process is the known one if both began at the same time.
        let identity =
            identity(pid).ok().filter(|identity| identity.is_same(&process_identity) && !is_zombie(pid))?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let stderr = open(format!("/proc/{pid}/fd/2"), flags, Mode::empty()).map_err(io::Error::from);
        let stderr = stderr.and_then(Receiver::from_owned_fd).ok();
        let exit_waiter = ExitWaiter { pidfd: Arc::clone(&pidfd), std_child: None };
        Some((Self { identity, pidfd }, exit_waiter, stderr))
    }

    /// Asks it to end, and those that it took over from, whose connections still end.
    pub(super) fn terminate(&self, command: &[String]) {
        self.signal(Signal::TERM);
        for predecessor in group_siblings(&self.identity, command) {
            if let Some((predecessor, ..)) = Self::adopt(predecessor) {
                predecessor.signal(Signal::TERM);
            }
        }
    }

    /// Kills it and its children.
    pub(super) fn kill(&self) {
        // The group's id cannot be another's as long as one of it has not been waited for.
        if let (Some(pid), Some(group)) =
            (Pid::from_raw(self.identity.pid), Pid::from_raw(self.identity.group))
            && identity(pid).is_ok_and(|now| now.is_same(&self.identity))
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.signal(Signal::KILL);
    }

    /// Makes it read its configuration again; returns `false` if it does not handle the signal, and would die
    /// of it.
    pub(super) fn hang_up(&self) -> bool {
        let path = format!("/proc/{}/status", self.identity.pid);
        let handles_hangup =
            fs::read_to_string(path).is_ok_and(|status| handles_signal(&status, Signal::HUP));
        if handles_hangup {
            self.signal(Signal::HUP);
        }
        handles_hangup
    }

    fn signal(&self, signal: Signal) {
        // A process that has ended needs no signal.
        let _ = pidfd_send_signal(self.pidfd.get_ref(), signal);
    }
}

impl ExitWaiter {
    /// Returns when the process has ended.
    pub(super) async fn wait(mut self) -> ExitCause {
        loop {
            let Ok(mut guard) = self.pidfd.readable().await else { return ExitCause::Unknown };
            match self.std_child.as_mut().map(std::process::Child::try_wait) {
                Some(Ok(Some(status))) => return ending(status),
                Some(Ok(None)) => guard.clear_ready(),
                Some(Err(_)) | None => return ExitCause::Unknown,
            }
        }
    }
}

fn open_pidfd(pid: Pid) -> io::Result<Arc<AsyncFd<OwnedFd>>> {
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    #[expect(deprecated, reason = "sound with an OwnedFd, which stays open and the same; its heir is unsafe")]
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
    Ok(Arc::new(pidfd))
}

fn ending(status: ExitStatus) -> ExitCause {
    match (status.code(), status.signal()) {
        (Some(exit_code), _) => ExitCause::Code(exit_code),
        (None, Some(signal)) => ExitCause::Signal(signal),
        (None, None) => ExitCause::Unknown,
    }
}

fn identity(pid: Pid) -> io::Result<ProcessIdentity> {
    let stat_text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let start = stat_field(&stat_text, STAT_START).and_then(|start| start.parse().ok());
    let group = stat_field(&stat_text, STAT_GROUP).and_then(|group| group.parse().ok());
    let unreadable = || io::Error::other(format!("/proc/{pid}/stat is not understood"));
    let (start, group) = start.zip(group).ok_or_else(unreadable)?;
    Ok(ProcessIdentity { pid: pid.as_raw_nonzero().get(), start, group })
}

/// Returns the process that took over from one, if one did: the youngest of its group that has its command
/// line.
pub(super) fn find_successor(identity: &ProcessIdentity, command: &[String]) -> Option<ProcessIdentity> {
    group_siblings(identity, command)
        .filter(|candidate| candidate.start > identity.start)
        .max_by_key(|candidate| candidate.start)
}

/// Returns other processes of its group with its command line.
fn group_siblings(
    predecessor: &ProcessIdentity,
    command: &[String],
) -> impl Iterator<Item = ProcessIdentity> {
    // An earlier version wrote no group.
    let group = if predecessor.group == 0 { predecessor.pid } else { predecessor.group };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let identities = pids.filter_map(|pid| identity(pid).ok().filter(|_| !is_zombie(pid)));
    identities.filter(move |candidate| {
        candidate.group == group
            && candidate.pid != predecessor.pid
            && has_command_line(candidate.pid, command)
    })
}

/// Returns `true` if it was started with these arguments.
fn has_command_line(pid: i32, command: &[String]) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = line.split(|byte| *byte == 0);
    arguments.next();
    // The last argument has an end, too.
    let arguments: Vec<&[u8]> = arguments.collect();
    arguments.iter().take(command.len()).copied().eq(command.iter().map(String::as_bytes))
        && arguments.len() == command.len() + 1
}

/// Returns `true` if it has ended without being waited for.
fn is_zombie(pid: Pid) -> bool {
    let stat_text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat_field(&stat_text, STAT_STATE).is_none_or(|state| ["Z", "X"].contains(&state))
}

/// The numbers of fields of `/proc/PID/stat`, from 1, as proc(5) counts.
const STAT_STATE: usize = 3;
const STAT_GROUP: usize = 5;
const STAT_START: usize = 22;

/// Returns a field behind the name, which is in parentheses and may contain any.
fn stat_field(stat_text: &str, field_number: usize) -> Option<&str> {
    stat_text.rsplit_once(')')?.1.split_ascii_whitespace().nth(field_number - STAT_STATE)
}

/// Returns `true` if a process handles a signal, by its `/proc/PID/status`.
fn handles_signal(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Returns the path of the running program, for others of the same kind, so that a program that replaced it
/// is used.
pub(super) fn program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat_text =
            "42 (a) S (b) R 1 42 42 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 9 0 777 1000 5 18446744073709551615";
        assert_eq!(
            (stat_field(stat_text, STAT_STATE), stat_field(stat_text, STAT_START)),
            (Some("R"), Some("777"))
        );
        assert_eq!(stat_field("42 (a", STAT_START), None);
        let own_pid = Pid::from_raw(std::process::id() as i32).unwrap();
        assert!(identity(own_pid).unwrap().start > 0 && !is_zombie(own_pid));
    }

    #[test]
    fn who_listens_for_a_signal() {
        let status = "Name:\ta\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000004001\n";
        assert!(handles_signal(status, Signal::HUP) && handles_signal(status, Signal::TERM));
        assert!(!handles_signal(status, Signal::INT) && !handles_signal("", Signal::HUP));
    }

    fn shell(script: &str) -> (SupervisedChild, ExitWaiter, Receiver) {
        let launch = LaunchSpec {
            command: vec!["-c".into(), script.into()],
            environment: vec![("X".into(), "7".into())],
        };
        SupervisedChild::start(Path::new("/bin/sh"), &launch, false, None).unwrap()
    }

    #[tokio::test]
    async fn how_it_ended_is_known() {
        let (_, exit_waiter, _) = shell("exit $X");
        assert_eq!(exit_waiter.wait().await, ExitCause::Code(7));
        let (child, exit_waiter, _stderr) = shell("sleep 60");
        child.terminate(&[]);
        assert_eq!(exit_waiter.wait().await, ExitCause::Signal(15));
        let (child, exit_waiter, mut pipe) = shell("trap '' TERM; echo deaf >&2; sleep 60 & wait");
        pipe.read_exact(&mut [0; 5]).await.unwrap();
        child.terminate(&[]);
        child.kill();
        assert_eq!(exit_waiter.wait().await, ExitCause::Signal(9));
    }

    #[tokio::test]
    async fn what_is_found_is_what_was_started() {
        let (child, exit_waiter, pipe) = shell("sleep 60");
        drop(pipe);
        let (adopted, adopted_waiter, stderr) = SupervisedChild::adopt(child.identity).expect("it runs");
        assert!(stderr.is_some());
        let other_identity = ProcessIdentity { start: child.identity.start + 1, ..child.identity };
        assert!(SupervisedChild::adopt(other_identity).is_none(), "a later process with the same number");
        adopted.kill();
        assert_eq!(adopted_waiter.wait().await, ExitCause::Unknown);
        assert!(
            SupervisedChild::adopt(child.identity).is_none(),
            "it has ended, though nobody has waited for it"
        );
        assert_eq!(exit_waiter.wait().await, ExitCause::Signal(9));
    }

    #[tokio::test]
    async fn an_heir_is_found_by_its_group_and_its_command_line() {
        // Nothing is forked any more once the line is out.
        let script = "sleep 0.1; if [ -n \"$X\" ]; then (unset X; exec /bin/sh -c \"$0\" \"$0\") & fi; echo \
                      >&2; \
                      kill -STOP $$";
        let launch = LaunchSpec {
            command: vec!["-c".into(), script.into(), script.into()],
            environment: vec![("X".into(), "1".into())],
        };
        let (child, exit_waiter, mut pipe) =
            SupervisedChild::start(Path::new("/bin/sh"), &launch, false, None).unwrap();
        // Each of the two prints one line.
        pipe.read_exact(&mut [0; 2]).await.unwrap();
        let successor = find_successor(&child.identity, &launch.command).expect("it runs");
        assert!(successor.group == child.identity.pid && successor.pid != child.identity.pid);
        assert_eq!(find_successor(&successor, &launch.command), None, "one that is older is no heir");
        assert_eq!(find_successor(&child.identity, &["up".into()]), None);
        child.kill();
        assert_eq!(exit_waiter.wait().await, ExitCause::Signal(9));
    }

    #[tokio::test]
    async fn what_it_says_waits_for_the_next_reader() {
        let (child, exit_waiter, pipe) =
            shell("while [ ! -e /proc/$$/fd/9 ]; do echo x >&2; sleep 0.01; done");
        drop(pipe);
        let (_, _, stderr) = SupervisedChild::adopt(child.identity).expect("it runs");
        let mut bytes_read = [0; 4];
        stderr.expect("a pipe").read_exact(&mut bytes_read).await.unwrap();
        assert_eq!(&bytes_read, b"x\nx\n", "it neither died of the missing reader nor waits for one");
        child.kill();
        assert_eq!(exit_waiter.wait().await, ExitCause::Signal(9));
    }
}
