//! The kernel's figures of this process, under the names that every Prometheus client library uses.

use std::fs;

use nix::time::{ClockId, clock_gettime};
use rustix::process::{Resource, getrlimit};

/// A snapshot; a value that cannot be read is `None`.
#[derive(Debug, Default)]
pub(crate) struct ProcessSnapshot {
    /// The user and system time of all threads, in seconds.
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: Option<f64>,
    pub(crate) virtual_bytes: Option<f64>,
    pub(crate) open_fds: Option<f64>,
    /// The soft limit; `None` if there is none.
    pub(crate) max_fds: Option<f64>,
}

impl ProcessSnapshot {
    pub(crate) fn read() -> Self {
        // This uses libc: rustix' own access to the clock does not run under valgrind, which the gates use
        // with this page.
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok().map(|kb| kb * 1024.0)
        };
        Self {
            cpu_seconds: cpu.map_or(0.0, |cpu| cpu.tv_sec() as f64 + cpu.tv_nsec() as f64 / 1e9),
            resident_bytes: kilobytes("VmRSS:"),
            virtual_bytes: kilobytes("VmSize:"),
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
        }
    }
}

/// Returns the number of open files. Since Linux 6.2 it is the size of the directory; before, that is 0 and
/// entries are counted.
fn open_fds() -> Option<f64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // Without the one that the listing itself opens.
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64),
        count => Some(count as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_everything() {
        let snapshot = ProcessSnapshot::read();
        assert!(snapshot.cpu_seconds > 0.0);
        assert!(snapshot.resident_bytes.unwrap() > 100e3);
        assert!(snapshot.virtual_bytes > snapshot.resident_bytes);
        let fds_before = snapshot.open_fds.unwrap();
        assert!((3.0..1e6).contains(&fds_before), "{fds_before}");
        assert!(snapshot.max_fds.is_none_or(|max| max >= fds_before));
    }
}
