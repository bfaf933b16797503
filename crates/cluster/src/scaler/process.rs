//! Members that are processes of this machine, from a template.
//!
//! A process is identified by its PID and its start time. It has a process group of its own, so that its
//! children can be ended with it, and a Ctrl-C in the balancer's terminal does not reach it. The running
//! processes are listed in a file, if one is configured: a balancer that was killed finds them again after
//! its restart.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::exec::REMOVED_VARIABLES;
use super::ports::{AddressRange, ReservedAddresses, fill_placeholders};
use super::{Instance, InstanceProvider, InstanceSpec, ProviderFuture, StopRequest};

/// Processes of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSettings {
    /// The program and its arguments, with `{port}`, `{host}`, `{address}`, `{index}` and `{group}`; not
    /// empty.
    pub command: Vec<String>,
    /// The names and values of additional environment variables, with the same placeholders.
    pub environment: Vec<(String, String)>,
    /// The working directory; the balancer's own if `None`.
    pub folder: Option<PathBuf>,
    /// The file to which the output is appended, whose name may contain the placeholders; none if `None`.
    pub log: Option<PathBuf>,
    /// The addresses to listen on.
    pub listen: AddressRange,
    /// The time limit of a graceful shutdown after SIGTERM.
    pub stop_timeout: Duration,
    /// The file that lists the processes, for the next balancer.
    pub state_file: Option<PathBuf>,
}

/// The started processes.
pub(super) struct ProcessProvider {
    settings: ProcessSettings,
    group: String,
    /// The processes, by identifier.
    processes: Mutex<BTreeMap<String, HeldProcess>>,
    /// The reasons why recent processes ended; few.
    exit_reasons: Mutex<BTreeMap<String, String>>,
    reserved: ReservedAddresses,
}

struct HeldProcess {
    instance: Instance,
    identity: ProcessIdentity,
    /// The child; `None` for a process found in the file.
    child: Option<Child>,
}

/// The identity of a process, unique since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessIdentity {
    pid: i32,
    /// The start time in clock ticks since boot.
    started_at: u64,
}

impl ProcessIdentity {
    /// Returns the identity of the process with a PID; `None` if there is none, or it is a zombie.
    fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain any character, so fields are counted from its end: the state, and 19 fields
        // later the start time.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let is_alive = fields.next().is_some_and(|state| state != "Z" && state != "X");
        let started_at = fields.nth(18)?.parse().ok()?;
        is_alive.then_some(Self { pid, started_at })
    }

    /// Returns `true` if no running process has this PID.
    fn is_pid_free(pid: i32) -> bool {
        Self::find(pid).is_none()
    }

    fn is_running(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    fn id(self) -> String {
        format!("{}-{}", self.pid, self.started_at)
    }

    /// Parses the result of [`id`](Self::id).
    fn parse(id: &str) -> Option<Self> {
        let (pid, started_at) = id.split_once('-')?;
        Some(Self { pid: pid.parse().ok().filter(|pid| *pid > 0)?, started_at: started_at.parse().ok()? })
    }
}

impl HeldProcess {
    /// Returns the reason of the end, if the process has ended.
    fn exit_reason(&mut self) -> Option<String> {
        if ProcessIdentity::find(self.identity.pid)
            .is_some_and(|current| self.child.is_some() || current == self.identity)
        {
            return None;
        }
        let Some(child) = &mut self.child else {
            // While its process group has members, its PID is not reused; if the PID is in use again, the
            // group is empty.
            if ProcessIdentity::is_pid_free(self.identity.pid)
                && let Some(pid) = Pid::from_raw(self.identity.pid)
            {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            return Some("it ended".into());
        };
        // The PID is not reused before the child is waited for, so the rest of its process group can be
        // killed.
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(match (status.code(), status.signal()) {
                (Some(code), _) => format!("it ended with exit code {code}"),
                (None, Some(signal)) => format!("it was ended by signal {signal}"),
                (None, None) => "it ended".into(),
            }),
            Err(error) => Some(format!("it cannot be waited for: {error}")),
        }
    }

    fn signal(&self, signal: Signal) {
        // The PID of a child that was not waited for is its own; another one may have been reused.
        if (self.child.is_some() || self.identity.is_running())
            && let Some(pid) = Pid::from_raw(self.identity.pid)
        {
            // A process that is already gone needs no signal.
            let _ = match signal {
                Signal::KILL => kill_process_group(pid, signal),
                signal => kill_process(pid, signal),
            };
        }
    }
}

impl ProcessProvider {
    pub(super) fn open(settings: &ProcessSettings, group: &str) -> Self {
        let processes = Self {
            settings: settings.clone(),
            group: group.to_owned(),
            processes: Mutex::default(),
            exit_reasons: Mutex::default(),
            reserved: ReservedAddresses::default(),
        };
        processes.adopt_previous();
        processes
    }

    fn spawn(&self, spec: &InstanceSpec, address: SocketAddr) -> Result<HeldProcess, String> {
        let ProcessSettings { command, environment, folder, log, .. } = &self.settings;
        let fill_template = |template: &str| fill_placeholders(template, address, spec.index, &self.group);
        let (program, arguments) = command.split_first().ok_or("there is no command")?;
        let mut command_builder = Command::new(fill_template(program));
        command_builder
            .args(arguments.iter().map(|template| fill_template(template)))
            .process_group(0)
            .stdin(Stdio::null());
        command_builder.envs(environment.iter().map(|(name, value)| (name, fill_template(value))));
        for name in REMOVED_VARIABLES {
            command_builder.env_remove(name);
        }
        if let Some(folder) = folder {
            command_builder.current_dir(folder);
        }
        match log {
            None => command_builder.stdout(Stdio::null()).stderr(Stdio::null()),
            Some(log) => {
                let path = fill_template(&log.to_string_lossy());
                let file = OpenOptions::new().append(true).create(true).open(&path);
                let file = file.map_err(|error| format!("cannot write {path}: {error}"))?;
                let log_copy = file.try_clone().map_err(|error| error.to_string())?;
                command_builder.stdout(file).stderr(log_copy)
            }
        };
        let child = command_builder.spawn().map_err(|error| format!("cannot start `{program}`: {error}"))?;
        let pid = Pid::from_child(&child).as_raw_nonzero().get();
        // The next poll reports a process that has already ended.
        let identity = ProcessIdentity::find(pid).unwrap_or(ProcessIdentity { pid, started_at: 0 });
        let instance = Instance { index: spec.index, id: identity.id(), address };
        Ok(HeldProcess { instance, identity, child: Some(child) })
    }

    /// Writes the list of processes to the file.
    fn save_state(&self, processes: &BTreeMap<String, HeldProcess>) {
        let Some(path) = &self.settings.state_file else { return };
        let process_json = |process: &HeldProcess| {
            let HeldProcess { instance, identity, .. } = process;
            json!({
                "index": instance.index, "address": instance.address.to_string(),
                "pid": identity.pid, "start": identity.started_at,
            })
        };
        let process_list: Vec<Value> = processes.values().map(process_json).collect();
        let text = json!({"schema": 1, "group": self.group, "processes": process_list}).to_string();
        let temporary_path = path.with_added_extension("new");
        if let Err(error) = fs::write(&temporary_path, text).and_then(|()| fs::rename(&temporary_path, path))
        {
            let _ = fs::remove_file(&temporary_path);
            tracing::warn!(
                "cannot write {}: {error}; a balancer after this one would not find the members of {}",
                path.display(),
                self.group
            );
        }
    }

    /// Finds the processes that a previous balancer started.
    fn adopt_previous(&self) {
        let Some(path) = &self.settings.state_file else { return };
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return tracing::warn!("cannot read {}: {error}", path.display()),
        };
        let Ok(saved_state) = serde_json::from_slice::<Value>(&text) else {
            return tracing::warn!("{} is no state of processes; it is written anew", path.display());
        };
        let mut processes = lock(&self.processes);
        for entry in saved_state["processes"].as_array().into_iter().flatten().take(MAX_PROCESSES) {
            let integer = |name: &str| entry[name].as_u64();
            let (Some(index), Some(pid), Some(started_at)) =
                (integer("index"), integer("pid"), integer("start"))
            else {
                continue;
            };
            let (Ok(index), Ok(pid)) = (u32::try_from(index), i32::try_from(pid)) else { continue };
            let Some(address) = entry["address"].as_str().and_then(|text| text.parse().ok()) else {
                continue;
            };
            let identity = ProcessIdentity { pid, started_at };
            if identity.is_running() {
                let instance = Instance { index, id: identity.id(), address };
                self.reserved.mark_used(address);
                processes.insert(instance.id.clone(), HeldProcess { instance, identity, child: None });
            }
        }
    }

    /// Removes the processes that have ended.
    fn reap_ended(&self) {
        let mut processes = lock(&self.processes);
        let mut ended: Vec<(String, String)> = Vec::new();
        for (id, process) in processes.iter_mut() {
            if let Some(exit_reason) = process.exit_reason() {
                ended.push((id.clone(), exit_reason));
            }
        }
        if ended.is_empty() {
            return;
        }
        let mut exit_reasons = lock(&self.exit_reasons);
        for (id, exit_reason) in ended {
            if let Some(process) = processes.remove(&id) {
                self.reserved.release(&process.instance.address);
            }
            exit_reasons.insert(id, exit_reason);
            while exit_reasons.len() > MAX_PROCESSES {
                exit_reasons.pop_first();
            }
        }
        self.save_state(&processes);
    }
}

impl Drop for ProcessProvider {
    /// Processes that could not be found again are killed.
    fn drop(&mut self) {
        if self.settings.state_file.is_none() {
            lock(&self.processes).values().for_each(|process| process.signal(Signal::KILL));
        }
    }
}

impl InstanceProvider for ProcessProvider {
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance> {
        Box::pin(async move {
            let address = self.reserved.reserve(&self.settings.listen)?;
            let process = self.spawn(&spec, address).inspect_err(|_| self.reserved.release(&address))?;
            let instance = process.instance.clone();
            let mut processes = lock(&self.processes);
            processes.insert(instance.id.clone(), process);
            self.save_state(&processes);
            Ok(instance)
        })
    }

    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()> {
        Box::pin(async move {
            let id = &request.instance.id;
            let send_signal = |signal| {
                self.reap_ended();
                let processes = lock(&self.processes);
                let process = processes.get(id);
                if let Some(process) = process {
                    process.signal(signal);
                }
                process.is_some()
            };
            let deadline = Instant::now() + self.settings.stop_timeout;
            let mut is_running = send_signal(Signal::TERM);
            let mut killed = false;
            while is_running {
                sleep(PAUSE).await;
                self.reap_ended();
                is_running = lock(&self.processes).contains_key(id);
                if is_running && Instant::now() >= deadline {
                    if killed && Instant::now() >= deadline + KILL_TIMEOUT {
                        return Err(format!("{} cannot be ended, not even by SIGKILL", request.instance.id));
                    }
                    is_running = send_signal(Signal::KILL);
                    killed = true;
                }
            }
            Ok(())
        })
    }

    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>> {
        Box::pin(async move {
            self.reap_ended();
            Ok(Some(lock(&self.processes).values().map(|process| process.instance.clone()).collect()))
        })
    }

    fn adopt(&self, instance: &Instance) {
        let Some(identity) = ProcessIdentity::parse(&instance.id).filter(|identity| identity.is_running())
        else {
            return;
        };
        let mut processes = lock(&self.processes);
        if !processes.contains_key(&instance.id) {
            self.reserved.mark_used(instance.address);
            processes.insert(
                instance.id.clone(),
                HeldProcess { instance: instance.clone(), identity, child: None },
            );
            self.save_state(&processes);
        }
    }

    fn release_all(&self) {
        // The next process owns the file from now on.
        lock(&self.processes).clear();
    }

    fn min_query_interval(&self) -> Duration {
        // A poll costs one system call per process.
        Duration::from_millis(200)
    }

    fn exit_reason(&self, id: &str) -> Option<String> {
        let exit_reason = lock(&self.exit_reasons).remove(id)?;
        Some(match &self.settings.log {
            Some(_) => exit_reason,
            None => format!("{exit_reason}; name a `log` to see what it says"),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The maximum number of processes in the file, and of stored reasons.
const MAX_PROCESSES: usize = 4096;

/// The interval of checks whether a signalled process has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// The time within which a killed process is gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
