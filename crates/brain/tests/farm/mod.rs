//! A fleet in virtual time: balancers without knowledge of each other in front of unequal members that share
//! their processors among their requests.
//!
//! Per ten members: four with 4 processors, two with 8, two with 4 fast ones, one with 2, one with 4 slow
//! ones. A job runs at speed * g * min(1, processors / jobs); g is 1 except at times when a neighbour takes
//! 20 to 70 % away. Work is lognormal with a mean of 10 ms. Requests come Poisson, are split evenly, travel
//! for 0.25 ms each way, and are given up after a second. Everything follows from the seed; the same seed
//! gives every policy the same arrivals, sizes and neighbours.

use plimsoll_brain::meter::Reading;
use plimsoll_brain::{Time, Urgency};

mod arrivals;
#[path = "../dice/mod.rs"]
pub(crate) mod dice;
mod flight;
pub(crate) mod ours;
mod outcome;
pub(crate) mod peers;
pub(crate) mod predecessors;
mod run;
mod server;

pub(crate) use outcome::Outcome;
pub(crate) use run::run;
pub(crate) use server::Fleet;

/// The settings of a run.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) balancers: usize,
    pub(crate) members: usize,
    /// The demand as a share of the mean capacity.
    pub(crate) load: f64,
    /// Seconds of virtual time.
    pub(crate) warmup: f64,
    pub(crate) measured: f64,
    pub(crate) seed: u64,
    /// The member that fails every request after half a millisecond.
    pub(crate) failing: Option<usize>,
    /// The member that reports that it is idle, fast and large.
    pub(crate) lying: Option<usize>,
    /// The member that runs at a tenth of its speed.
    pub(crate) slow: Option<usize>,
    /// Whether members continue requests that clients have given up.
    pub(crate) ignore_cancel: bool,
    /// The retries of failed requests on another member, as a share of the requests.
    pub(crate) retries: f64,
    /// The distribution of work.
    pub(crate) work: Work,
    /// The factor on that work.
    pub(crate) scale: f64,
    /// The seconds after which a client gives up.
    pub(crate) patience: f64,
    /// Whether members have half as many processors.
    pub(crate) halved: bool,
    /// Whether balancers have shares of the requests as 1, 1/2, 1/3 ...
    pub(crate) skewed: bool,
    /// Whether twice as many requests come for 3 of every 12 seconds.
    pub(crate) bursts: bool,
    /// Whether all members are alike.
    pub(crate) alike: bool,
    /// Whether members stop now and then, for 30 to 100 ms, instead of having neighbours.
    pub(crate) stalls: bool,
    /// Whether members promise slots.
    pub(crate) slots: bool,
    /// The share of the requests that are more urgent than the others.
    pub(crate) urgent: f64,
    /// Whether all requests are five times as long from the middle on.
    pub(crate) heavier: bool,
    /// The one-way delay, seconds.
    pub(crate) network: f64,
    /// The discipline of the members.
    pub(crate) discipline: Discipline,
    /// The number of members, of each ten, without load reports.
    pub(crate) silent: usize,
    /// Whether members reject excess requests.
    pub(crate) guarded: bool,
    /// Whether members offer unused slots to random balancers.
    pub(crate) push: bool,
    /// Whether every balancer restarts in the middle.
    pub(crate) crash: bool,
}

/// The distribution of work, 10 ms in the mean.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    /// A spread of 1.2, up to 300 ms.
    Lognormal,
    /// An exponent of 1.5, from 4 ms to 300 ms.
    Pareto,
}

/// The way in which a member works on several requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Discipline {
    /// All at once, each a bit slower.
    Sharing,
    /// One for each processor, the others wait in order.
    Fifo,
    /// As many as there are processors at once, in the time of one; later ones wait. All are of one length.
    Batch,
    /// As sharing, but jobs wait for one another and disturb one another.
    Contended,
}

impl Setting {
    pub(crate) fn at(load: f64, seed: u64) -> Self {
        Self {
            balancers: 20,
            members: 40,
            load,
            warmup: 20.0,
            measured: 30.0,
            seed,
            failing: None,
            lying: None,
            slow: None,
            ignore_cancel: false,
            retries: 0.0,
            work: Work::Lognormal,
            scale: 1.0,
            patience: 1.0,
            halved: false,
            skewed: false,
            bursts: false,
            alike: false,
            stalls: false,
            slots: true,
            urgent: 0.0,
            heavier: false,
            network: 0.000_25,
            discipline: Discipline::Sharing,
            silent: 0,
            guarded: false,
            push: false,
            crash: false,
        }
    }
}

/// The policy of a fleet's balancers.
pub(crate) trait Policy {
    /// Returns a member for a request of balancer `who`, not `failed`; `None` rejects it.
    fn choose(&mut self, who: usize, now: f64, fleet: &Fleet, failed: Option<usize>) -> Option<usize>;

    /// Returns `true` if a more urgent request waits at balancer `who`.
    fn outranked(&self, _who: usize, _urgency: Urgency) -> bool {
        false
    }

    /// Queues a request that found no member, for the first time at `since`. Returns the end of its wait;
    /// `None` if it does not wait.
    fn wait(
        &mut self,
        _who: usize,
        _now: f64,
        _since: f64,
        _flight: usize,
        _urgency: Urgency,
    ) -> Option<f64> {
        None
    }

    /// Returns the waiting requests that go on, after an event that may have made room or was one too many:
    /// with a member, or with `None` for one that is to wait no longer.
    fn turns(&mut self, _who: usize, _now: f64, _fleet: &Fleet) -> Vec<(usize, Option<usize>)> {
        Vec::new()
    }

    /// Handles the end of a request's wait, if it still waits: it may look a last time.
    fn late(&mut self, _who: usize, _now: f64, _flight: usize) -> Option<Option<usize>> {
        None
    }

    /// Handles the loss of the client of a request that may wait.
    fn left(&mut self, _who: usize, _now: f64, _flight: usize) {}

    /// Handles the end of a request of balancer `who`.
    fn ended(&mut self, who: usize, now: f64, answer: &Answer);

    /// Lets the policy's own part in the member act on an answer of this member.
    fn seen(&mut self, _now: f64, _member: usize, _fleet: &Fleet) {}

    /// Handles a member's offer of a slot to balancer `who`.
    fn offered(&mut self, _who: usize, _now: f64, _member: usize, _reading: &Reading) {}

    /// Handles a tick of 100 ms.
    fn tick(&mut self, _now: f64, _fleet: &Fleet) {}

    /// Returns the seconds between each balancer's reports to the others; `None` without an exchange.
    fn interval(&self) -> Option<f64> {
        None
    }

    /// Sends the reports of balancer `who` to the others.
    fn tell(&mut self, _who: usize, _now: f64) {}

    /// Restarts the balancers.
    fn crash(&mut self) {}

    /// Returns the number of messages other than requests and answers so far.
    fn messages(&self) -> u64 {
        0
    }
}

/// The end of a request for the balancer that sent it.
pub(crate) struct Answer {
    pub(crate) member: usize,
    pub(crate) latency: f64,
    /// Whether its client gave up, and there was no answer.
    pub(crate) left: bool,
    pub(crate) failed: bool,
    /// Whether it was not served, because the member is full.
    pub(crate) refused: bool,
    /// The member's load report.
    pub(crate) reading: Option<Reading>,
}

/// Returns virtual seconds as the brain's time.
fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}
