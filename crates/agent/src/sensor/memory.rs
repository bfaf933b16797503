//! Memory: the share that is not available without swapping, of the host and of a control group's limit.
//!
//! The host's share is based on the kernel's estimate of available memory (`MemAvailable`, Linux 3.14). A
//! group's usage is `memory.current` minus the inactive file pages, which the kernel reclaims first. Without
//! a limit (`memory.max`) it has no share.

use std::time::Duration;

use super::{Look, Place, Sense, keyed};

struct Memory;

pub(super) fn open(_: &Place, _: Duration) -> Box<dyn Sense> {
    Box::new(Memory)
}

impl Sense for Memory {
    fn look(&mut self, look: &mut Look<'_>) {
        let host = look.host("meminfo", host);
        let group = look.cgroup("memory.current", plain).and_then(|current| {
            let limit = look.cgroup_if_there("memory.max", limit).flatten()?;
            let idle =
                look.cgroup_if_there("memory.stat", |text| keyed(text, "inactive_file")).unwrap_or(0.0);
            Some((current - idle).max(0.0) / limit)
        });
        if let Some(share) = host.into_iter().chain(group).reduce(f64::max) {
            look.share("memory", share);
        }
        if let Some(share) = host {
            look.share("memory_host", share);
        }
        if let Some(share) = group {
            look.share("memory_cgroup", share);
        }
    }
}

/// Returns the share of the host's memory that is not available.
fn host(text: &str) -> Option<f64> {
    let kilobytes = |key| keyed(text, key);
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

fn plain(text: &str) -> Option<f64> {
    text.trim().parse::<u64>().ok().map(|bytes| bytes as f64)
}

/// Returns the limit in bytes; `Some(None)` if it is `max`.
fn limit(text: &str) -> Option<Option<f64>> {
    if text.trim() == "max" { Some(None) } else { plain(text).filter(|bytes| *bytes > 0.0).map(Some) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_kernels_say() {
        let text = "MemTotal:       24684084 kB\nMemFree:        23105276 kB\nMemAvailable:   18513063 kB\n\
                    Buffers:           45192 kB\n";
        assert!((host(text).unwrap() - 0.25).abs() < 1e-9);
        let old = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 100 kB\nCached: 300 kB\n";
        assert_eq!(host(old), Some(0.5));
        for wrong in ["", "MemTotal: 0 kB\nMemFree: 0 kB\n", "MemTotal: 5 kB\n", "MemTotal: x\nMemFree: 1\n"]
        {
            assert_eq!(host(wrong), None, "{wrong}");
        }
        assert_eq!(
            (limit("max\n"), limit("1024\n"), limit("0\n"), limit("x")),
            (Some(None), Some(Some(1024.0)), None, None)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(MemTotal: |MemAvailable: |MemFree: |[0-9]{1,22}|\\n|.){0,20}") {
            prop_assert!(host(&text).is_none_or(f64::is_finite));
            prop_assert!(limit(&text).flatten().is_none_or(|limit| limit > 0.0));
        }
    }
}
