//! The limits of the machine: open files, and the kernel's queue of connections.

use std::path::Path;
use std::thread::available_parallelism;

use plimsoll_admin::{MAX_REPORT_CONNECTIONS, MAX_SECURED_CONNECTIONS};
use plimsoll_proxy::MAX_PIPE_FILES;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::{Config, GroupConfig, ListenerConfig, ListenerProtocol};

/// The default of connections, if the machine allows them.
const MAX_DEFAULT_CONNECTIONS: u64 = 100_000;

/// The files for everything that is not a connection: listeners, timers, logs, the admin side, probes.
const RESERVED_FILES: u64 = 256;

/// The files of a connection: one towards the client and one towards the member.
const FILES_PER_CONNECTION: u64 = 2;

/// The files of a spliced connection beside these: at most a pipe each way, which is two files.
const PIPED_PER_CONNECTION: u64 = 4;

/// The least number of connections of a balancer.
const MIN_CONNECTIONS: u64 = 16;

/// The least and the largest default of a udp listener's flows.
const FLOW_BOUNDS: (u64, u64) = (16, 16_384);

/// Returns the largest number of files that this process may ever open, and those that it starts: the hard
/// limit.
pub fn hard() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// The name of the calling process for [`check_files`].
pub const THIS_PROCESS: &str = "this process";

/// Raises the limit on open files to the hard limit; returns the limit in force.
pub fn raise() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it cannot be raised, the present limit counts.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the default of `max_connections` with that many files.
pub fn max_connections(config: &Config, files: u64) -> usize {
    usize::try_from(connection_capacity(config, files).clamp(MIN_CONNECTIONS, MAX_DEFAULT_CONNECTIONS))
        .unwrap_or(usize::MAX)
}

/// Returns how many descriptors connections of clients and to members may take together, with that many
/// files. A client of HTTP/2 may have a hundred requests in flight, each on a connection of its own to a
/// member.
pub fn max_descriptors(config: &Config, files: u64) -> usize {
    let descriptors =
        connection_capacity(config, files).max(MIN_CONNECTIONS).saturating_mul(FILES_PER_CONNECTION);
    usize::try_from(descriptors).unwrap_or(usize::MAX)
}

/// Returns how many client connections there are files for if each has one to a member.
fn connection_capacity(config: &Config, files: u64) -> u64 {
    let available_files =
        files.saturating_sub(RESERVED_FILES + other_files(config) + flow_files(config, files));
    // The pipes are at their maximum, or at the number that so few connections can use if that is less.
    let piped_connections = available_files / (FILES_PER_CONNECTION + PIPED_PER_CONNECTION);
    (available_files.saturating_sub(pipe_files(config)) / FILES_PER_CONNECTION).max(piped_connections)
}

/// Returns the default `max_flows` of a udp listener, with that many files. All listeners with the default
/// together leave the files that `max_connections` needs. That is a half of all, if the file does not set it
/// and there are listeners for connections.
pub fn max_flows(config: &Config, files: u64) -> usize {
    let listeners = udp(config).filter(|listener| listener.max_flows.is_none()).count() as u64;
    let available_files =
        files.saturating_sub(RESERVED_FILES + other_files(config) + named_flows(config).sum::<u64>());
    let min_files = files_of(config, MIN_CONNECTIONS);
    let connections = match config.max_connections {
        Some(max_connections) => files_of(config, max_connections as u64),
        None if udp(config).count() == config.listeners.len() => min_files,
        None => min_files.max(available_files / 2),
    };
    let flows_per_listener = available_files.saturating_sub(connections) / listeners.max(1);
    usize::try_from(flows_per_listener.clamp(FLOW_BOUNDS.0, FLOW_BOUNDS.1)).unwrap_or(usize::MAX)
}

/// Returns how many files so many client connections take.
fn files_of(config: &Config, connections: u64) -> u64 {
    let pipe_count = connections.saturating_mul(PIPED_PER_CONNECTION).min(pipe_files(config));
    connections.saturating_mul(FILES_PER_CONNECTION).saturating_add(pipe_count)
}

/// Returns the default `max_memory`: half of the memory that this process may use.
pub fn max_memory() -> usize {
    let cgroup_file = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let read_file = |path: &Path| std::fs::read_to_string(path).ok();
    let limit = cgroup_limit(&cgroup_file, read_file).into_iter().chain(machine_memory()).min();
    usize::try_from(limit.unwrap_or(1 << 30) / 2).unwrap_or(usize::MAX)
}

/// Returns the bytes of memory that this machine has.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Returns the lowest memory limit of a process's control group and of those that it is in. `own` is its
/// `/proc/self/cgroup`; `read` returns a file's text. Both versions are known: `0::/path` is the one
/// hierarchy of version 2, `N:memory:/path` that of version 1.
fn cgroup_limit(cgroup_file: &str, read_file: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let hierarchies = cgroup_file.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", path) => Some(("/sys/fs/cgroup", path, "memory.max")),
            (names, path) if names.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = hierarchies.flat_map(|(root, path, file)| {
        let folder = Path::new(root).join(path.trim_start_matches('/'));
        let limit_files =
            folder.ancestors().take_while(|folder| folder.starts_with(root)).map(|folder| folder.join(file));
        limit_files.filter_map(|path| read_file(&path)?.trim().parse().ok()).collect::<Vec<u64>>()
    });
    limits.min()
}

/// Checks that `files` suffice for the configuration; the error has the remedy. `whose` names the process
/// that may open so many.
pub fn check_files(config: &Config, files: u64, owner: &str) -> Result<(), String> {
    let connections = config.max_connections.map_or(MIN_CONNECTIONS, |configured| configured as u64);
    let configured_flows: Vec<u64> = named_flows(config).collect();
    let configured_sum = configured_flows.iter().sum::<u64>();
    let unconfigured_count = udp(config).count() - configured_flows.len();
    let min_flows = configured_sum + unconfigured_count as u64 * FLOW_BOUNDS.0;
    let required_files =
        files_of(config, connections).saturating_add(RESERVED_FILES + other_files(config) + min_flows);
    if required_files <= files {
        return Ok(());
    }
    let mut message = format!("max_connections = {connections}");
    if config.max_connections.is_none() {
        message = format!("{connections} connections");
    }
    match configured_flows.len() {
        0 => {}
        1 => message += &format!(" and max_flows = {configured_sum}"),
        listener_count => {
            message +=
                &format!(" and the max_flows of {listener_count} udp listeners, {configured_sum} together,")
        }
    }
    if other_files(config) > 0 {
        message += " and monitors, reports and control";
    }
    Err(format!(
        "{message} can take {required_files} open files, and {owner} may open {files}: raise the limit \
         (ulimit -Hn, LimitNOFILE= in a systemd unit, --ulimit nofile= of a container) or lower the numbers"
    ))
}

/// Returns the listeners with a backlog that the kernel would cut, one line each.
pub fn check_backlog(config: &Config) -> Vec<String> {
    let path = "/proc/sys/net/core/somaxconn";
    let Some(backlog_limit) =
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<usize>().ok())
    else {
        return Vec::new();
    };
    let is_truncated = |backlog: usize| backlog > backlog_limit;
    config
        .listeners
        .iter()
        .filter(|listener| listener.protocol != ListenerProtocol::Udp && is_truncated(listener.backlog))
        .map(|listener| {
            format!(
                "the kernel cuts the backlog of {} from {} to {backlog_limit}: sysctl -w \
                 net.core.somaxconn={}",
                listener.address, listener.backlog, listener.backlog
            )
        })
        .collect()
}

/// Returns the files beside connections and flows: monitors that are asked, members that report.
fn other_files(config: &Config) -> u64 {
    let is_polled =
        |group: &&GroupConfig| group.monitor.as_ref().is_some_and(|monitor| monitor.source.is_polled());
    let poll_connections =
        config.groups.iter().filter(is_polled).map(|group| group.members.len() as u64).sum::<u64>();
    let report_connections = config.admin.reports.0.map_or(0, |_| u64::from(MAX_REPORT_CONNECTIONS));
    let control_connections = config.admin.control.tls().map_or(0, |_| u64::from(MAX_SECURED_CONNECTIONS));
    poll_connections + report_connections + control_connections
}

/// Returns the files of the pipes through which byte streams are spliced, on all threads.
fn pipe_files(config: &Config) -> u64 {
    let is_spliced = |listener: &ListenerConfig| {
        matches!(listener.protocol, ListenerProtocol::Http | ListenerProtocol::Https | ListenerProtocol::Tcp)
    };
    if !config.listeners.iter().any(is_spliced) {
        return 0;
    }
    let threads = config.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    (threads * MAX_PIPE_FILES) as u64
}

/// Returns the files of flows, one each, with that many files in all.
fn flow_files(config: &Config, files: u64) -> u64 {
    let flows_per_listener = max_flows(config, files) as u64;
    udp(config)
        .map(|listener| listener.max_flows.map_or(flows_per_listener, |configured_max| configured_max as u64))
        .sum()
}

/// Returns the numbers of flows that the file sets.
fn named_flows(config: &Config) -> impl Iterator<Item = u64> {
    udp(config).filter_map(|listener| Some(listener.max_flows? as u64))
}

fn udp(config: &Config) -> impl Iterator<Item = &ListenerConfig> {
    config.listeners.iter().filter(|listener| listener.protocol == ListenerProtocol::Udp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let rest = "[[listener]]\naddress='127.0.0.1:53'\ngroup='g'\nprotocol='udp'\nmax_flows=1000\n\
                    [[group]]\nname='g'\nmembers=['127.0.0.1:1']\n";
        crate::parse("x", format!("{text}\n{rest}").into_bytes()).unwrap().config
    }

    #[test]
    fn the_lowest_limit_of_a_control_group_and_those_around_it_counts() {
        let files = [
            ("/sys/fs/cgroup/system.slice/lb.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/memory.max", "4294967296\n"),
            ("/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "536870912\n"),
        ];
        let read_file = |path: &Path| {
            let matching_file = files.iter().find(|(name, _)| Path::new(name) == path);
            matching_file.map(|(_, text)| (*text).to_owned())
        };
        assert_eq!(cgroup_limit("0::/system.slice/lb.service\n", read_file), Some(1 << 30));
        assert_eq!(cgroup_limit("12:cpu,memory:/docker/ab\n11:pids:/x\n", read_file), Some(512 << 20));
        assert_eq!(cgroup_limit("0::/\n", read_file), Some(4 << 30));
        assert_eq!(cgroup_limit("", read_file), None);
        assert!(max_memory() > 1 << 20);
    }

    #[test]
    fn files_bound_connections() {
        let default_limits = config("");
        assert_eq!(max_connections(&default_limits, 1 << 20), 100_000);
        assert_eq!(max_connections(&default_limits, 5256), 2000);
        assert_eq!(max_connections(&default_limits, 10), 16);
        assert!(check_files(&default_limits, 1288, THIS_PROCESS).is_ok());
        assert!(check_files(&default_limits, 1287, THIS_PROCESS).unwrap_err().contains("max_flows = 1000"));
        assert_eq!(max_connections(&config("admin.reports = '127.0.0.1:9901'"), 5256), 1872);
        let second_listener =
            "[[listener]]\naddress='127.0.0.1:54'\ngroup='g'\nprotocol='udp'\nmax_flows=500";
        let error = check_files(&config(second_listener), 1287, THIS_PROCESS).unwrap_err();
        assert!(error.contains("the max_flows of 2 udp listeners, 1500 together, can take"), "{error}");
        let configured_limits = config("max_connections = 50_000");
        assert!(check_files(&configured_limits, 101_256, THIS_PROCESS).is_ok());
        let error = check_files(&configured_limits, 1024, THIS_PROCESS).unwrap_err();
        assert!(
            error.contains("max_connections = 50000") && error.contains("this process may open 1024"),
            "{error}"
        );
        let error = check_files(&configured_limits, 1024, "pid 4711").unwrap_err();
        assert!(error.contains("pid 4711 may open 1024") && !error.contains("this process"), "{error}");
    }

    #[test]
    fn flows_that_nobody_counted_share_the_files_that_there_are() {
        let listener =
            |port: u16, rest: &str| format!("[[listener]]\naddress='127.0.0.1:{port}'\ngroup='g'\n{rest}\n");
        let parse_listeners = |listeners: &[String]| {
            let group = "[[group]]\nname='g'\nmembers=['127.0.0.1:1']\n";
            crate::parse("x", format!("threads = 1\n{}{group}", listeners.concat()).into_bytes())
                .unwrap()
                .config
        };
        let udp = |port: u16| listener(port, "protocol='udp'");
        // The two defaults of 16,384 each are more than there are files.
        let two_listeners = parse_listeners(&[udp(53), udp(54)]);
        assert!(check_files(&two_listeners, 20_000, THIS_PROCESS).is_ok());
        assert_eq!(max_flows(&two_listeners, 20_000), (20_000 - 256 - 32) / 2);
        assert_eq!(max_flows(&two_listeners, 1 << 20), 16_384);
        // Connections get a half, or the files of `max_connections`.
        let mixed_protocols = parse_listeners(&[udp(53), udp(54), listener(80, "protocol='iiop'")]);
        assert_eq!(
            (max_flows(&mixed_protocols, 20_000), max_connections(&mixed_protocols, 20_000)),
            (19_744 / 4, 19_744 / 4)
        );
        let with_max_connections =
            parse_listeners(&["max_connections = 9000\n".into(), udp(53), listener(80, "protocol='iiop'")]);
        assert_eq!(max_flows(&with_max_connections, 20_000), 20_000 - 256 - 18_000);
        // A number in the file stays, and leaves the others less.
        let with_max_flows = parse_listeners(&[listener(53, "protocol='udp'\nmax_flows=19000"), udp(54)]);
        assert_eq!(max_flows(&with_max_flows, 20_000), 20_000 - 256 - 19_000 - 32);
        let error = check_files(&with_max_flows, 19_000, THIS_PROCESS).unwrap_err();
        assert!(
            error.contains("and max_flows = 19000 can take") && error.contains("lower the numbers"),
            "{error}"
        );
        // The defaults fit, down to the least number of files for a start.
        for files in 320..4000 {
            for config in [&two_listeners, &mixed_protocols] {
                let required_files =
                    2 * max_connections(config, files) as u64 + 2 * max_flows(config, files) as u64 + 256;
                assert!(required_files <= files, "{required_files} of {files}");
                assert!(check_files(config, files, THIS_PROCESS).is_ok());
            }
        }
        assert!(check_files(&two_listeners, 319, THIS_PROCESS).is_err());
    }

    #[test]
    fn pipes_take_files_but_no_more_than_connections_can_use() {
        let tcp = |text: &str| {
            config(&format!("{text}\n[[listener]]\naddress='127.0.0.1:80'\ngroup='g'\nprotocol='tcp'"))
        };
        let four_threads = tcp("threads = 4");
        assert_eq!(max_connections(&four_threads, 5256), 2000 - 256);
        // Of 600 files that are left 512 would be for pipes, which the connections could not fill.
        assert_eq!(max_connections(&four_threads, 1256 + 600), 100);
        let configured_limits = tcp("threads = 4\nmax_connections = 1000");
        assert!(
            check_files(&configured_limits, 1256 + 2512, THIS_PROCESS).is_ok()
                && check_files(&configured_limits, 1256 + 2511, THIS_PROCESS).is_err()
        );
        let few_connections = tcp("threads = 4\nmax_connections = 100");
        assert!(
            check_files(&few_connections, 1256 + 600, THIS_PROCESS).is_ok()
                && check_files(&few_connections, 1256 + 599, THIS_PROCESS).is_err()
        );
        // The default is the largest valid value.
        for files in 1400..6000 {
            let max_default = max_connections(&four_threads, files);
            assert!(
                check_files(
                    &tcp(&format!("threads = 4\nmax_connections = {max_default}")),
                    files,
                    THIS_PROCESS
                )
                .is_ok()
            );
        }
    }
}
