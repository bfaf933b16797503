//! The run queue: the number of threads that run or are runnable.
//!
//! /proc/loadavg has the number of runnable threads at the moment, including this agent's own, and the
//! kernel's damped average of the last minute. A single sample is noisy, so `run_queue` is the mean of the
//! samples in the time span. Both are the host's, also in a container.

use std::time::Duration;

use super::{SensorContext, SensorPaths, SensorReader};
use crate::window::CounterWindow;

struct RunQueueSensor {
    /// The sum and the number of the samples.
    samples: [f64; 2],
    window: CounterWindow<2>,
}

pub(super) fn open(_: &SensorPaths, window: Duration) -> Box<dyn SensorReader> {
    Box::new(RunQueueSensor { samples: [0.0; 2], window: CounterWindow::new(window) })
}

impl SensorReader for RunQueueSensor {
    fn read_values(&mut self, context: &mut SensorContext<'_>) {
        let Some((average, running)) = context.read_host("loadavg", parse_loadavg) else { return };
        context.record_number("load_average", average);
        // Subtract this thread, which runs in order to read the file.
        let other_running = (running - 1.0).max(0.0);
        self.samples = [self.samples[0] + other_running, self.samples[1] + 1.0];
        let mean = self
            .window
            .push(context.now, self.samples)
            .map(|growth| growth.increases[0] / growth.increases[1]);
        context.record_number("run_queue", mean.unwrap_or(other_running));
    }
}

/// Returns the one-minute load average and the number of runnable threads.
fn parse_loadavg(text: &str) -> Option<(f64, f64)> {
    let mut words = text.split_ascii_whitespace();
    let average = words.next()?.parse::<f64>().ok().filter(|average| (0.0..1e9).contains(average))?;
    let running = words.nth(2)?.split_once('/')?.0.parse::<u32>().ok()?;
    Some((average, f64::from(running)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_kernels_say() {
        assert_eq!(parse_loadavg("0.18 0.35 0.73 1/89 21706\n"), Some((0.18, 1.0)));
        assert_eq!(parse_loadavg("1213.00 3.0 1.0 1207/4000 3\n"), Some((1213.0, 1207.0)));
        for wrong in
            ["", "nan 0 0 1/2 3", "inf 0 0 1/2 3", "-1 0 0 1/2 3", "1 2 3", "1 2 3 4 5", "1 2 3 -1/2 3"]
        {
            assert_eq!(parse_loadavg(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "([0-9.]{1,9} |[0-9]{1,12}/[0-9]|.){0,9}") {
            prop_assert!(
                parse_loadavg(&text).is_none_or(|(average, running)| average >= 0.0 && running >= 0.0)
            );
        }
    }
}
