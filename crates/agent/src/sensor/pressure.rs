//! Pressure stall information: the share of time in which some thread waited for a processor, for I/O or for
//! memory (Linux 4.20; `psi=1` on the kernel's command line where it is off).
//!
//! The kernel's own averages cover at least ten seconds, whereas its totals in microseconds are current. The
//! stalls are those of the control group if it has the file, else the host's. Each has its own window, since
//! a group comes and goes with its service.

use std::time::Duration;

use super::{SensorContext, SensorPaths, SensorReader};
use crate::window::CounterWindow;

/// The name of the value, the host's file and the control group's file.
const RESOURCES: [(&str, &str, &str); 3] = [
    ("cpu_pressure", "pressure/cpu", "cpu.pressure"),
    ("io_pressure", "pressure/io", "io.pressure"),
    ("memory_pressure", "pressure/memory", "memory.pressure"),
];

struct PressureSensor {
    groups: [CounterWindow<1>; 3],
    hosts: [CounterWindow<1>; 3],
}

pub(super) fn open(_: &SensorPaths, window: Duration) -> Box<dyn SensorReader> {
    let windows = || std::array::from_fn(|_| CounterWindow::new(window));
    Box::new(PressureSensor { groups: windows(), hosts: windows() })
}

impl SensorReader for PressureSensor {
    fn read_values(&mut self, context: &mut SensorContext<'_>) {
        for (((name, host_file, group_file), group_window), host_window) in
            RESOURCES.into_iter().zip(&mut self.groups).zip(&mut self.hosts)
        {
            let growth = match context.read_optional_cgroup(group_file, parse_total) {
                Some(total) => group_window.push(context.now, [total]),
                None => context
                    .read_host(host_file, parse_total)
                    .and_then(|total| host_window.push(context.now, [total])),
            };
            if let Some(growth) = growth {
                context.record_share(name, growth.increases[0] / 1e6 / growth.seconds);
            }
        }
    }
}

/// Returns the microseconds in which some thread stalled.
fn parse_total(text: &str) -> Option<f64> {
    let mut some_fields = text.lines().find_map(|line| line.strip_prefix("some "))?.split_ascii_whitespace();
    let total = some_fields.find_map(|word| word.strip_prefix("total="))?;
    total.parse::<u64>().ok().map(|total| total as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_kernels_say() {
        let text = "some avg10=0.41 avg60=3.09 avg300=3.82 total=6876200158\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n";
        assert_eq!(parse_total(text), Some(6_876_200_158.0));
        for wrong in ["", "some", "some avg10=0.41", "some total=x", "some total=-1", "full total=3"] {
            assert_eq!(parse_total(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(some |full |total=|avg10=|[0-9]{1,22}|\\n|.){0,20}") {
            prop_assert!(parse_total(&text).is_none_or(|total| total >= 0.0));
        }
    }
}
