//! Processor utilization, of the host and of a control group.
//!
//! The host's share is the time that was not idle of all time in /proc/stat. The I/O wait counts as idle;
//! time stolen by a hypervisor counts as busy, because it is not available here. The group's share is the
//! time that it used (`cpu.stat`) relative to its quota (`cpu.max`), or to all processors without a quota.
//! `cpu_throttled` is the share of its periods in which the quota ran out.

use std::time::Duration;

use super::{SensorContext, SensorPaths, SensorReader, value_of_key};
use crate::window::CounterWindow;

struct CpuSensor {
    host: CounterWindow<2>,
    group: CounterWindow<3>,
}

pub(super) fn open(_: &SensorPaths, window: Duration) -> Box<dyn SensorReader> {
    Box::new(CpuSensor { host: CounterWindow::new(window), group: CounterWindow::new(window) })
}

impl SensorReader for CpuSensor {
    fn read_values(&mut self, context: &mut SensorContext<'_>) {
        let stat = context.read_host("stat", parse_stat);
        let host = stat.and_then(|stat| {
            let increases = self.host.push(context.now, [stat.busy, stat.idle])?.increases;
            let total = increases[0] + increases[1];
            (total > 0.0).then(|| increases[0] / total)
        });
        let quota = context.read_optional_cgroup("cpu.max", parse_quota).flatten();
        let cpus = match (stat.map(|stat| stat.cpus), quota) {
            (Some(host), Some(quota)) => Some(quota.min(host)),
            (host, quota) => quota.or(host),
        };
        let growth = context
            .read_cgroup("cpu.stat", parse_group)
            .and_then(|counters| self.group.push(context.now, counters));
        let group = growth.zip(cpus).map(|(growth, cpus)| growth.increases[0] / 1e6 / growth.seconds / cpus);
        if let Some(share) = host.into_iter().chain(group).reduce(f64::max) {
            context.record_share("cpu", share);
        }
        if let Some(share) = host {
            context.record_share("cpu_host", share);
        }
        if let Some(share) = group {
            context.record_share("cpu_cgroup", share);
        }
        if let Some(growth) = growth.filter(|_| quota.is_some()) {
            let [_, periods, throttled] = growth.increases;
            context.record_share("cpu_throttled", if periods > 0.0 { throttled / periods } else { 0.0 });
        }
        if let Some(cpus) = cpus {
            context.record_number("cpus", cpus);
        }
    }
}

/// The contents of /proc/stat.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuTimes {
    /// The ticks of all processors.
    busy: f64,
    idle: f64,
    /// The number of processors, at least 1.
    cpus: f64,
}

fn parse_stat(text: &str) -> Option<CpuTimes> {
    let mut words = text.lines().next()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    // The columns are user, nice, system, idle, iowait, irq, softirq and steal; guest time is included in
    // user and nice.
    let mut times = [0.0; 8];
    let mut parsed_count = 0;
    for (time, word) in times.iter_mut().zip(words) {
        *time = word.parse::<u64>().ok()? as f64;
        parsed_count += 1;
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = times;
    let is_cpu_line = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|first_char: char| first_char.is_ascii_digit()))
    };
    let cpus = text.lines().filter(is_cpu_line).count().max(1) as f64;
    let busy = user + nice + system + irq + softirq + steal;
    (parsed_count >= 4).then_some(CpuTimes { busy, idle: idle + iowait, cpus })
}

/// Returns the quota in `cpu.max` as a number of processors; `Some(None)` if it is `max`.
fn parse_quota(text: &str) -> Option<Option<f64>> {
    let mut words = text.split_ascii_whitespace();
    let quota = words.next()?;
    let period: u64 = words.next()?.parse().ok().filter(|period| *period > 0)?;
    if quota == "max" {
        return Some(None);
    }
    let quota: u64 = quota.parse().ok().filter(|quota| *quota > 0)?;
    Some(Some(quota as f64 / period as f64))
}

/// Returns the microseconds used, the number of periods and the number of throttled periods.
fn parse_group(text: &str) -> Option<[f64; 3]> {
    let count = |key| value_of_key(text, key).unwrap_or(0.0);
    Some([value_of_key(text, "usage_usec")?, count("nr_periods"), count("nr_throttled")])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "cpu  1569082 303747 543421 1936091 4374 0 157682 1130 0 0\n\
                        cpu0 735045 148105 279546 1013420 1100 0 79223 566 0 0\n\
                        cpu1 834036 155641 263875 922670 3274 0 78459 563 0 0\n\
                        intr 53572855 0 0\nctxt 143221619\nbtime 1795193982\nprocs_running 1\n";

    #[test]
    fn what_kernels_say() {
        let expected = CpuTimes { busy: 2_575_062.0, idle: 1_940_465.0, cpus: 2.0 };
        assert_eq!(parse_stat(STAT), Some(expected));
        assert_eq!(
            parse_stat("cpu  1 2 3 4\n"),
            Some(CpuTimes { busy: 6.0, idle: 4.0, cpus: 1.0 }),
            "Linux 2.4"
        );
        assert_eq!(parse_stat("cpu  1 2 x 4\n"), None);
        assert_eq!(parse_stat("cpu0 1 2 3 4\n"), None);
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_quota("max 100000\n"), Some(None));
        assert_eq!(parse_quota("150000 100000\n"), Some(Some(1.5)));
        for wrong in ["", "max", "max 0", "0 100000", "-1 100000", "x 100000"] {
            assert_eq!(parse_quota(wrong), None, "{wrong}");
        }
        let text = "usage_usec 5000\nuser_usec 4000\nnr_periods 10\nnr_throttled 3\nthrottled_usec 77\n";
        assert_eq!(parse_group(text), Some([5000.0, 10.0, 3.0]));
        assert_eq!(parse_group("usage_usec 5\n"), Some([5.0, 0.0, 0.0]));
        assert_eq!(parse_group("user_usec 5\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(cpu[0-9]? |max |usage_usec |[0-9]{1,22} |\\n|.){0,40}") {
            let times = parse_stat(&text);
            prop_assert!(times.is_none_or(|stat| stat.busy.is_finite() && stat.cpus >= 1.0));
            prop_assert!(parse_quota(&text).flatten().is_none_or(|cpus| cpus > 0.0 && cpus.is_finite()));
            let group = parse_group(&text);
            prop_assert!(group.is_none_or(|counters| counters.iter().all(|counter| *counter >= 0.0)));
        }
    }
}
