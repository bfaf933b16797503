//! The steps of a server for a request: work at its processor, and waiting times in which its thread is held
//! and the processor is free for others.
//!
//! The threads are the member's workers. The processor serves pieces of work in the order of arrival, those
//! of the threads and those of received messages ([`ServiceSteps`] without a thread). It is computed; no
//! processor time is burned. In terms of layered queueing this is a task with its entries on a processor of
//! its own.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Instant;

use super::ServiceTime;
use super::timer::TaskTimer;
use crate::emulated_processors::{FifoProcessors, UsageIntegral};
use crate::rng::SplitMix64;

/// The steps for a request, in order. Written `cpu:exp:5ms,wait:exp:10ms`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceSteps(Vec<ServiceStep>);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ServiceStep {
    /// Work at the processor.
    Cpu(ServiceTime),
    /// A waiting time.
    Wait(ServiceTime),
}

/// The maximum number of steps that are parsed.
const MAX_STEPS: usize = 64;

impl ServiceSteps {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends work at the processor.
    #[must_use]
    pub fn cpu(mut self, time: ServiceTime) -> Self {
        self.0.push(ServiceStep::Cpu(time));
        self
    }

    /// Appends a waiting time.
    #[must_use]
    pub fn wait(mut self, time: ServiceTime) -> Self {
        self.0.push(ServiceStep::Wait(time));
        self
    }
}

impl FromStr for ServiceSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse_step = |step_text: &str| {
            let error = || {
                format!(
                    "`{step_text}` is not a step: expected `cpu:TIME` or `wait:TIME`, such as `cpu:exp:5ms`"
                )
            };
            let (kind, time) = step_text.trim().split_once(':').ok_or_else(error)?;
            let time = time.parse()?;
            match kind {
                "cpu" => Ok(ServiceStep::Cpu(time)),
                "wait" => Ok(ServiceStep::Wait(time)),
                _ => Err(error()),
            }
        };
        let steps: Vec<ServiceStep> = text.split(',').map(parse_step).collect::<Result<_, String>>()?;
        if steps.len() > MAX_STEPS { Err(format!("more than {MAX_STEPS} steps")) } else { Ok(Self(steps)) }
    }
}

/// Writes the form that is parsed.
impl Display for ServiceSteps {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match step {
                ServiceStep::Cpu(time) => write!(f, "{comma}cpu:{time}")?,
                ServiceStep::Wait(time) => write!(f, "{comma}wait:{time}")?,
            }
        }
        Ok(())
    }
}

/// The processor and the threads of one member.
pub(super) struct StepServer {
    processor: RefCell<FifoProcessors>,
    threads: RefCell<UsageIntegral>,
    /// The computed time at which the only thread ended the last request.
    thread_free_at: Cell<Option<Instant>>,
}

impl StepServer {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (processor, threads) = (FifoProcessors::new(1, now), UsageIntegral::new(now));
        Self {
            processor: RefCell::new(processor),
            threads: RefCell::new(threads),
            thread_free_at: Cell::new(None),
        }
    }

    /// Performs the steps from `begin` on, each `slower` times as long; the caller holds a thread if they
    /// need one. Returns the computed time of their end.
    ///
    /// Each step begins at the computed end of the last one. A late timer makes the answer late but takes no
    /// time of the server.
    pub(super) async fn perform(
        &self,
        starts_at: Instant,
        steps: &ServiceSteps,
        rng: &RefCell<SplitMix64>,
        timer: &TaskTimer,
        slowdown: f64,
    ) -> Instant {
        let mut now = starts_at;
        for step in &steps.0 {
            now = match step {
                ServiceStep::Cpu(service) => {
                    let time = service.draw(&mut rng.borrow_mut()).mul_f64(slowdown);
                    self.processor.borrow_mut().serve(now, time)
                }
                ServiceStep::Wait(service) => now + service.draw(&mut rng.borrow_mut()).mul_f64(slowdown),
            };
            timer.sleep(now).await;
        }
        now
    }

    /// Returns the time at which a request that arrived at `came` begins, once it holds a thread. With one
    /// thread (`only`) that is the computed end of the previous request, or `came` if that is later.
    pub(super) fn begin_time(&self, arrived_at: Instant, is_single_worker: bool) -> Instant {
        match self.thread_free_at.get() {
            Some(free_at) if is_single_worker => arrived_at.max(free_at),
            _ => Instant::now(),
        }
    }

    /// Records the computed time at which a thread became free.
    pub(super) fn set_thread_free(&self, free_at: Instant) {
        self.thread_free_at.set(Some(free_at));
    }

    /// Counts a thread as busy until the guard is dropped.
    pub(super) fn occupy_thread(&self) -> BusyThread<'_> {
        self.threads.borrow_mut().enter(Instant::now());
        BusyThread(&self.threads)
    }

    /// Returns the busy times of the threads (summed) and of the processor, in seconds.
    pub(super) fn busy_times(&self) -> (f64, f64) {
        let now = Instant::now();
        (
            self.threads.borrow().busy_time(now).as_secs_f64(),
            self.processor.borrow().busy_time(now).as_secs_f64(),
        )
    }
}

/// A busy thread.
pub(super) struct BusyThread<'a>(&'a RefCell<UsageIntegral>);

impl Drop for BusyThread<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().leave(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_printed_as_they_are_parsed() {
        let steps: ServiceSteps = "cpu:exp:5ms, wait:const:1ms".parse().unwrap();
        assert_eq!(steps.to_string(), "cpu:exp:5000000ns,wait:const:1000000ns");
        assert_eq!(steps.to_string().parse(), Ok(steps));
        for text in ["", "cpu", "cpu:", "cpu:exp", "sleep:exp:1ms", "cpu:exp:1ms,", "exp:1ms"] {
            assert!(text.parse::<ServiceSteps>().is_err(), "{text}");
        }
        assert!(["cpu:none"; MAX_STEPS + 1].join(",").parse::<ServiceSteps>().is_err());
    }
}
