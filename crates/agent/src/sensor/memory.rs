//! Memory: the share that is not available without swapping, of the host and of a control group's limit.
//!
//! The host's share is based on the kernel's estimate of available memory (`MemAvailable`, Linux 3.14). A
//! group's usage is `memory.current` minus the inactive file pages, which the kernel reclaims first. Without
//! a limit (`memory.max`) it has no share.

use std::time::Duration;

use super::{SensorContext, SensorPaths, SensorReader, value_of_key};

struct MemorySensor;

pub(super) fn open(_: &SensorPaths, _: Duration) -> Box<dyn SensorReader> {
    Box::new(MemorySensor)
}

impl SensorReader for MemorySensor {
    fn read_values(&mut self, context: &mut SensorContext<'_>) {
        let host = context.read_host("meminfo", used_share);
        let group = context.read_cgroup("memory.current", parse_bytes).and_then(|current| {
            let limit = context.read_optional_cgroup("memory.max", parse_limit).flatten()?;
            let inactive_file = context
                .read_optional_cgroup("memory.stat", |text| value_of_key(text, "inactive_file"))
                .unwrap_or(0.0);
            Some((current - inactive_file).max(0.0) / limit)
        });
        if let Some(share) = host.into_iter().chain(group).reduce(f64::max) {
            context.record_share("memory", share);
        }
        if let Some(share) = host {
            context.record_share("memory_host", share);
        }
        if let Some(share) = group {
            context.record_share("memory_cgroup", share);
        }
    }
}

/// Returns the share of the host's memory that is not available.
fn used_share(text: &str) -> Option<f64> {
    let kilobytes = |key| value_of_key(text, key);
    let total = kilobytes("MemTotal:").filter(|total| *total > 0.0)?;
    let available = kilobytes("MemAvailable:").or_else(|| {
        Some(
            kilobytes("MemFree:")?
                + kilobytes("Buffers:").unwrap_or(0.0)
                + kilobytes("Cached:").unwrap_or(0.0),
        )
    })?;
    Some(1.0 - available / total)
}

fn parse_bytes(text: &str) -> Option<f64> {
    text.trim().parse::<u64>().ok().map(|bytes| bytes as f64)
}

/// Returns the limit in bytes; `Some(None)` if it is `max`.
fn parse_limit(text: &str) -> Option<Option<f64>> {
    if text.trim() == "max" { Some(None) } else { parse_bytes(text).filter(|bytes| *bytes > 0.0).map(Some) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_kernels_say() {
        let text = "MemTotal:       24684084 kB\nMemFree:        23105276 kB\nMemAvailable:   18513063 kB\n\
                    Buffers:           45192 kB\n";
        assert!((used_share(text).unwrap() - 0.25).abs() < 1e-9);
        let old_kernel = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 100 kB\nCached: 300 kB\n";
        assert_eq!(used_share(old_kernel), Some(0.5));
        for wrong in ["", "MemTotal: 0 kB\nMemFree: 0 kB\n", "MemTotal: 5 kB\n", "MemTotal: x\nMemFree: 1\n"]
        {
            assert_eq!(used_share(wrong), None, "{wrong}");
        }
        assert_eq!(
            (parse_limit("max\n"), parse_limit("1024\n"), parse_limit("0\n"), parse_limit("x")),
            (Some(None), Some(Some(1024.0)), None, None)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(MemTotal: |MemAvailable: |MemFree: |[0-9]{1,22}|\\n|.){0,20}") {
            prop_assert!(used_share(&text).is_none_or(f64::is_finite));
            prop_assert!(parse_limit(&text).flatten().is_none_or(|limit| limit > 0.0));
        }
    }
}
