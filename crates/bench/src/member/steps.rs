//! The steps of a server for a request: work at its processor, and waiting times in which its thread is held
//! and the processor is free for others.
//!
//! The threads are the member's workers. The processor serves pieces of work in the order of arrival, those
//! of the threads and those of received messages ([`Steps`] without a thread). It is computed; no processor
//! time is burned. In terms of layered queueing this is a task with its entries on a processor of its own.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Instant;

use super::Service;
use super::timer::Timer;
use crate::busy::{InUse, Processors};
use crate::chance::Chance;

/// The steps for a request, in order. Written `cpu:exp:5ms,wait:exp:10ms`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps(Vec<Step>);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Work at the processor.
    Cpu(Service),
    /// A waiting time.
    Wait(Service),
}

/// The maximum number of steps that are parsed.
const MOST: usize = 64;

impl Steps {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends work at the processor.
    #[must_use]
    pub fn cpu(mut self, time: Service) -> Self {
        self.0.push(Step::Cpu(time));
        self
    }

    /// Appends a waiting time.
    #[must_use]
    pub fn wait(mut self, time: Service) -> Self {
        self.0.push(Step::Wait(time));
        self
    }
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = |part: &str| {
            let expected = || {
                format!("`{part}` is not a step: expected `cpu:TIME` or `wait:TIME`, such as `cpu:exp:5ms`")
            };
            let (what, time) = part.trim().split_once(':').ok_or_else(expected)?;
            let time = time.parse()?;
            match what {
                "cpu" => Ok(Step::Cpu(time)),
                "wait" => Ok(Step::Wait(time)),
                _ => Err(expected()),
            }
        };
        let steps: Vec<Step> = text.split(',').map(step).collect::<Result<_, String>>()?;
        if steps.len() > MOST { Err(format!("more than {MOST} steps")) } else { Ok(Self(steps)) }
    }
}

/// Writes the form that is parsed.
impl Display for Steps {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match step {
                Step::Cpu(time) => write!(f, "{comma}cpu:{time}")?,
                Step::Wait(time) => write!(f, "{comma}wait:{time}")?,
            }
        }
        Ok(())
    }
}

/// The processor and the threads of one member.
pub(super) struct Server {
    processor: RefCell<Processors>,
    threads: RefCell<InUse>,
    /// The computed time at which the only thread ended the last request.
    free: Cell<Option<Instant>>,
}

impl Server {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (processor, threads) = (Processors::new(1, now), InUse::new(now));
        Self { processor: RefCell::new(processor), threads: RefCell::new(threads), free: Cell::new(None) }
    }

    /// Performs the steps from `begin` on, each `slower` times as long; the caller holds a thread if they
    /// need one. Returns the computed time of their end.
    ///
    /// Each step begins at the computed end of the last one. A late timer makes the answer late but takes no
    /// time of the server.
    pub(super) async fn run(
        &self,
        begin: Instant,
        steps: &Steps,
        chance: &RefCell<Chance>,
        timer: &Timer,
        slower: f64,
    ) -> Instant {
        let mut at = begin;
        for step in &steps.0 {
            at = match step {
                Step::Cpu(service) => {
                    let time = service.draw(&mut chance.borrow_mut()).mul_f64(slower);
                    self.processor.borrow_mut().serve(at, time)
                }
                Step::Wait(service) => at + service.draw(&mut chance.borrow_mut()).mul_f64(slower),
            };
            timer.sleep(at).await;
        }
        at
    }

    /// Returns the time at which a request that arrived at `came` begins, once it holds a thread. With one
    /// thread (`only`) that is the computed end of the previous request, or `came` if that is later.
    pub(super) fn begin(&self, came: Instant, only: bool) -> Instant {
        match self.free.get() {
            Some(free) if only => came.max(free),
            _ => Instant::now(),
        }
    }

    /// Records the computed time at which a thread became free.
    pub(super) fn end(&self, at: Instant) {
        self.free.set(Some(at));
    }

    /// Counts a thread as busy until the guard is dropped.
    pub(super) fn thread(&self) -> Busy<'_> {
        self.threads.borrow_mut().enter(Instant::now());
        Busy(&self.threads)
    }

    /// Returns the busy times of the threads (summed) and of the processor, in seconds.
    pub(super) fn used(&self) -> (f64, f64) {
        let now = Instant::now();
        (self.threads.borrow().busy(now).as_secs_f64(), self.processor.borrow().busy(now).as_secs_f64())
    }
}

/// A busy thread.
pub(super) struct Busy<'a>(&'a RefCell<InUse>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().leave(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_printed_as_they_are_parsed() {
        let steps: Steps = "cpu:exp:5ms, wait:const:1ms".parse().unwrap();
        assert_eq!(steps.to_string(), "cpu:exp:5000000ns,wait:const:1000000ns");
        assert_eq!(steps.to_string().parse(), Ok(steps));
        for text in ["", "cpu", "cpu:", "cpu:exp", "sleep:exp:1ms", "cpu:exp:1ms,", "exp:1ms"] {
            assert!(text.parse::<Steps>().is_err(), "{text}");
        }
        assert!(["cpu:none"; MOST + 1].join(",").parse::<Steps>().is_err());
    }
}
