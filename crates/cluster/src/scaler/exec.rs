//! A program that starts and stops members: it runs once per operation, with the operation as JSON on its
//! standard input.
//!
//! ```json
//! {"action": "start", "group": "web", "index": 3, "why": "…"}
//! {"action": "stop", "group": "web", "index": 3, "id": "i-07", "address": "10.0.0.3:80", "why": "…"}
//! ```
//!
//! It ends with exit code 0 on success. For a start it first writes `{"address": "10.0.0.3:80", "id":
//! "i-07"}`.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    Instance, InstanceProvider, InstanceSpec, MAX_RESPONSE_LENGTH, ProviderFuture, StopRequest,
    parse_started, start_request, stop_request,
};

/// A program that starts and stops members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecSettings {
    /// The program and its arguments; not empty.
    pub command: Vec<String>,
    /// The time limit of one run as a whole.
    pub timeout: Duration,
}

impl InstanceProvider for ExecSettings {
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance> {
        Box::pin(async move {
            let output = run(&self.command, start_request(&spec).to_string(), self.timeout).await?;
            parse_started(spec.index, &output)
        })
    }

    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()> {
        Box::pin(async move {
            run(&self.command, stop_request(&request).to_string(), self.timeout).await.map(drop)
        })
    }

    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>> {
        Box::pin(async { Ok(None) })
    }
}

/// Runs a program to its end, with a text on its standard input. Returns its standard output.
pub(super) async fn run(command: &[String], input: String, timeout: Duration) -> Result<Vec<u8>, String> {
    let command = command.to_vec();
    // One thread per run; the caller limits the concurrent runs.
    let result = tokio::task::spawn_blocking(move || run_blocking(&command, &input, timeout)).await;
    result.map_err(|error| error.to_string())?
}

fn run_blocking(command: &[String], input: &str, timeout: Duration) -> Result<Vec<u8>, String> {
    let (program, arguments) = command.split_first().ok_or("there is no command")?;
    let mut process = Command::new(program);
    process.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its children end with it, even if they do not end by themselves.
    process.process_group(0);
    for name in REMOVED_VARIABLES {
        process.env_remove(name);
    }
    let mut child = process.spawn().map_err(|error| format!("cannot start `{program}`: {error}"))?;
    let spawn_reader = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                // The relevant part; a program that writes more receives a closed pipe.
                let _ = pipe.take(MAX_RESPONSE_LENGTH as u64 + 1).read_to_end(&mut bytes);
            }
            let _ = sender.send(bytes);
        });
        receiver
    };
    let stdout = spawn_reader(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = spawn_reader(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input may not need it.
        let _ = stdin.write_all(input.as_bytes());
    }
    let deadline = Instant::now() + timeout;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= deadline => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                let _ = child.wait();
                return Err(format!(
                    "`{program}` did not end within {} s, and was killed",
                    timeout.as_secs_f64()
                ));
            }
            Ok(None) => std::thread::sleep(PAUSE),
            Err(error) => return Err(format!("`{program}` cannot be waited for: {error}")),
        }
    };
    if !status.success() {
        let stderr = stderr.recv_timeout(PIPE_GRACE).unwrap_or_default();
        let last_line =
            String::from_utf8_lossy(&stderr).lines().rev().find(|line| !line.trim().is_empty()).map(shorten);
        let last_line = last_line.map(|last_line| format!(": {last_line}")).unwrap_or_default();
        return Err(format!("`{program}` failed, {status}{last_line}"));
    }
    let output = stdout
        .recv_timeout(PIPE_GRACE)
        .map_err(|_| format!("`{program}` left its output open to what it started"))?;
    if output.len() > MAX_RESPONSE_LENGTH {
        return Err(format!("`{program}` wrote more than {MAX_RESPONSE_LENGTH} bytes"));
    }
    Ok(output)
}

/// Shortens an external line for a message and replaces its control characters.
pub(super) fn shorten(line: &str) -> String {
    let printable = line.trim().chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    printable.take(200).collect()
}

/// The program's children may hold its pipes; this limits the wait for them.
const PIPE_GRACE: Duration = Duration::from_secs(1);

/// The environment variables for this process alone.
pub(super) const REMOVED_VARIABLES: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "PLIMSOLL_SUPERVISE_SOCKETS",
];

/// The interval of checks whether the program has ended.
const PAUSE: Duration = Duration::from_millis(10);
