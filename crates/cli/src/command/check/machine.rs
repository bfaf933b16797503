//! The limits of the machine, and its clock.

use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

use plimsoll_config::limits;
use plimsoll_config::{Config, ListenerProtocol};

use super::diagnostic::{CheckSection, GuidePage};
use crate::control::format::{group_digits, short_duration};

/// The kernel's own default of the buffer that datagrams wait in, in bytes.
const DEFAULT_BUFFER: u64 = 212_992;

/// The number of ports for connections to one address of a member, below which a busy balancer runs out of
/// them.
const MIN_PORTS: u64 = 10_000;

/// The time by which a file may be newer than now, because of the clocks of file servers.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// Sources of time that cost no system call, by architecture and hypervisor.
const FAST_CLOCK_SOURCES: [&str; 5] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"];

/// Reads a number from a file of the kernel.
fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The limits on open files of a process, soft and hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenFileLimits {
    pub(super) soft: u64,
    pub(super) hard: u64,
}

impl OpenFileLimits {
    /// Returns those of a process on this machine; `None` where they cannot be read.
    pub(super) fn for_process(pid: u32) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
    }

    /// Reads them from the kernel's text for a process.
    fn read(limits: &str) -> Option<Self> {
        let mut numbers =
            limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace();
        let mut number = || match numbers.next()? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        };
        Some(Self { soft: number()?, hard: number()? })
    }
}

/// Checks open files, queues, buffers, ports and threads. The limit on files is that of the process
/// `running`, else that of this one, which a balancer that is started from here would have.
pub(super) fn check_limits(config: &Config, running: Option<u32>) -> CheckSection {
    let mut section = CheckSection::new("limits");
    let process = running.and_then(|pid| Some((pid, OpenFileLimits::for_process(pid)?.hard)));
    let (max_files, owner) = match process {
        Some((pid, hard)) => (hard, format!("pid {pid}")),
        None => (limits::hard(), "a process of this shell".to_owned()),
    };
    match limits::check_files(config, max_files, &owner) {
        Ok(()) => {
            let max_connections =
                config.max_connections.unwrap_or_else(|| limits::max_connections(config, max_files));
            let max_connections = group_digits(max_connections as u64);
            section.ok(format!(
                "open files: {} allow {max_connections} client connections (nofile of {owner})",
                group_digits(max_files)
            ));
        }
        Err(error) => {
            section.fail(error, "LimitNOFILE= of the unit, or ulimit -Hn of the shell", GuidePage::Limits)
        }
    }
    let backlog_warnings = limits::check_backlog(config);
    for line in &backlog_warnings {
        section.warn(
            line.clone(),
            "connections that come in a burst are dropped beyond it",
            GuidePage::Limits,
        );
    }
    if backlog_warnings.is_empty()
        && let Some(max_backlog) = read_number("/proc/sys/net/core/somaxconn")
    {
        section.ok(format!("queues of new connections: up to {max_backlog} (somaxconn)"));
    }
    if config
        .listeners
        .iter()
        .any(|listener| matches!(listener.protocol, ListenerProtocol::Udp | ListenerProtocol::Dns))
    {
        check_buffers(&mut section);
    }
    check_ports(&mut section);
    let cores = available_parallelism().map_or(1, usize::from);
    match config.threads {
        Some(threads) if threads > cores => section.warn(
            format!("{threads} threads on {cores} cores: they take turns"),
            "leave `threads` out: one for each core",
            GuidePage::Limits,
        ),
        _ => {}
    }
    section
}

fn check_buffers(section: &mut CheckSection) {
    match read_number("/proc/sys/net/core/rmem_default") {
        Some(bytes) if bytes < DEFAULT_BUFFER => section.warn(
            format!("datagrams wait in {bytes} bytes (rmem_default): a burst is dropped"),
            format!("sysctl -w net.core.rmem_default={DEFAULT_BUFFER}"),
            GuidePage::Limits,
        ),
        Some(bytes) => section.ok(format!("datagrams wait in {} bytes (rmem_default)", group_digits(bytes))),
        None => section.skip("rmem_default cannot be read here"),
    }
}

fn check_ports(section: &mut CheckSection) {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(from)), Some(Ok(to))) = (ends.next(), ends.next()) else {
        section.skip("ip_local_port_range cannot be read here");
        return;
    };
    let ports = (to + 1).saturating_sub(from);
    if ports < MIN_PORTS {
        section.warn(
            format!("{ports} ports for connections to each member (ip_local_port_range)"),
            "sysctl -w net.ipv4.ip_local_port_range=\"10000 65535\"",
            GuidePage::Limits,
        );
    } else {
        section.ok(format!(
            "{} ports for connections to each member (ip_local_port_range)",
            group_digits(ports)
        ));
    }
}

/// Checks that the time is right, and cheap to ask for.
pub(super) fn check_clock(file: Option<&Path>) -> CheckSection {
    let mut section = CheckSection::new("clock");
    let now = SystemTime::now();
    let modified = file.and_then(|file| std::fs::metadata(file).ok()?.modified().ok());
    match modified.and_then(|modified| modified.duration_since(now + CLOCK_TOLERANCE).ok()) {
        Some(ahead) => section.warn(
            format!(
                "the file was written {} from now: this clock is late, or that of its writer was early",
                short_duration((ahead + CLOCK_TOLERANCE).as_secs_f64())
            ),
            "set the clock; certificates, tokens and cookies are judged by it",
            GuidePage::Clock,
        ),
        None => section.ok("the time is not before the file was written"),
    }
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        section.ok("the clock is kept right by systemd-timesyncd");
    } else if Path::new("/run/chrony").exists() || Path::new("/run/chrony-dhcp").exists() {
        section.ok("chrony is there to keep the clock right");
    } else {
        section.skip("nothing here says whether the clock is kept right");
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match std::fs::read_to_string(source).map(|text| text.trim().to_owned()) {
        Ok(source) if FAST_CLOCK_SOURCES.contains(&&*source) => {
            section.ok(format!("asking for the time is cheap (clocksource {source})"));
        }
        Ok(source) => section.warn(
            format!("asking for the time takes a system call or a slow device (clocksource {source})"),
            "see what available_clocksource beside it offers; tsc is the fast one",
            GuidePage::Clock,
        ),
        Err(_) => section.skip("the kernel does not say where it has the time from"),
    }
    section
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let parse = |line: &str| OpenFileLimits::read(&format!("Max processes 1 2 processes\n{line}\n"));
        let line = "Max open files            1024                 524288               files";
        assert_eq!(parse(line), Some(OpenFileLimits { soft: 1024, hard: 524_288 }));
        let line = "Max open files            unlimited            unlimited            files";
        assert_eq!(parse(line), Some(OpenFileLimits { soft: u64::MAX, hard: u64::MAX }));
        assert_eq!((parse("Max open files"), parse("")), (None, None));
    }

    #[test]
    fn the_limit_that_counts_is_that_of_the_process_that_runs() {
        let script = ["-c", "ulimit -n 40; echo; exec cat"];
        let mut child =
            Command::new("sh").args(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let text =
            "[[listener]]\naddress='127.0.0.1:80'\ngroup='g'\n[[group]]\nname='g'\nmembers=['127.0.0.1:1']\n";
        let config = plimsoll_config::parse("x", text.into()).unwrap().config;
        let report = |running| format!("{:?}", check_limits(&config, running));
        let child_report = report(Some(child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(child_report.contains(&format!("and pid {} may open 40: ", child.id())), "{child_report}");
        assert!(!child_report.contains("this process"), "{child_report}");
        assert!(!report(None).contains("may open 40"));
    }
}
