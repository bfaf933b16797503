//! Processor time, from the kernel's counters in /proc.

/// Returns the processor time of a process in seconds, all threads together, to a hundredth; `None` once it
/// has ended.
pub(super) fn of_process(pid: u32) -> Option<f64> {
    process_seconds(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the processor time of its current threads, to the nanosecond; `None` once it has ended.
pub(super) fn of_threads(pid: u32) -> Option<f64> {
    let mut sum = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that ends meanwhile is left out.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next()?.parse::<f64>().ok()? / 1e9;
    }
    Some(sum)
}

/// Returns the seconds for which all processors together have been busy, and for which they have existed.
pub(super) fn of_host() -> Option<(f64, f64)> {
    host_seconds(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Returns the user and system time from the text of /proc/PID/stat.
fn process_seconds(stat: &str) -> Option<f64> {
    // The name in parentheses may hold spaces and parentheses: the fields follow the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / clock_ticks())
}

/// Returns the busy and total time from the first line of /proc/stat.
fn host_seconds(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; the time of guests is included in user.
    let fields: Vec<f64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let total: f64 = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some(((total - idle) / clock_ticks(), total / clock_ticks()))
}

fn clock_ticks() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 99 1000 200 18";
        assert_eq!(process_seconds(stat), Some(200.0 / clock_ticks()));
        assert_eq!(process_seconds("42 a"), None);
    }

    #[test]
    fn guests_are_not_counted_twice() {
        let stat = "cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 1 2 3\n";
        assert_eq!(host_seconds(stat), Some((150.0 / clock_ticks(), 1000.0 / clock_ticks())));
    }

    #[test]
    fn this_process_uses_some() {
        // The smallest counted amount takes an unknown time.
        while of_process(std::process::id()).is_some_and(|seconds| seconds == 0.0) {
            std::hint::spin_loop();
        }
        assert!(of_process(std::process::id()).is_some_and(|seconds| seconds > 0.0));
        assert!(of_threads(std::process::id()).is_none_or(|seconds| seconds > 0.0));
        assert!(of_host().is_some_and(|(busy, all)| busy > 0.0 && busy <= all));
    }
}
