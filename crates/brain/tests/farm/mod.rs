//! A fleet in virtual time: balancers that do not know of each other in front of unequal members that share
//! their processors among the requests they have.
//!
//! Per ten members: four with 4 processors, two with 8, two with 4 fast ones, one with 2, one with 4 slow ones.
//! A job runs at speed * g * min(1, processors / jobs); g is 1 but for times when a neighbour takes 20 to 70 %
//! away. Work is lognormal with a mean of 10 ms. Requests come Poisson, are split evenly, travel for 0.25 ms each
//! way, and are given up after a second. Everything follows from the seed; the same seed gives every policy the
//! same arrivals, sizes and neighbours.

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

/// What a run is like.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) balancers: usize,
    pub(crate) members: usize,
    /// Share of the mean capacity that is asked for.
    pub(crate) load: f64,
    /// Seconds of virtual time.
    pub(crate) warmup: f64,
    pub(crate) measured: f64,
    pub(crate) seed: u64,
    /// Member that fails every request after half a millisecond.
    pub(crate) failing: Option<usize>,
    /// Member that says it is idle, fast and large.
    pub(crate) lying: Option<usize>,
    /// Member that runs at a tenth of its speed.
    pub(crate) slow: Option<usize>,
    /// Do members go on with what clients have given up?
    pub(crate) ignore_cancel: bool,
    /// Tries of a failed request on another member, as a share of the requests.
    pub(crate) retries: f64,
    /// How long requests are.
    pub(crate) work: Work,
    /// Times as long as that.
    pub(crate) scale: f64,
    /// Seconds after which a client gives up.
    pub(crate) patience: f64,
    /// Have members half as many processors?
    pub(crate) halved: bool,
    /// Do balancers have shares of the requests as 1, 1/2, 1/3 ...?
    pub(crate) skewed: bool,
    /// Do twice as many come for 3 of every 12 seconds?
    pub(crate) bursts: bool,
    /// Are all members alike?
    pub(crate) alike: bool,
    /// Do members stand still now and then, for 30 to 100 ms, in place of having neighbours?
    pub(crate) stalls: bool,
    /// Do members promise slots?
    pub(crate) slots: bool,
    /// Share of the requests that are more urgent than the others.
    pub(crate) urgent: f64,
    /// Are all requests five times as long from the middle on?
    pub(crate) heavier: bool,
    /// One way, seconds.
    pub(crate) network: f64,
    /// How a member shares its processors.
    pub(crate) discipline: Discipline,
    /// Members, of each ten, that say nothing of themselves.
    pub(crate) silent: usize,
    /// Do members refuse what is too much for them?
    pub(crate) guarded: bool,
    /// Do members offer slots that nobody used to balancers drawn by chance?
    pub(crate) push: bool,
    /// Is every balancer started anew in the middle?
    pub(crate) crash: bool,
}

/// How long requests are, 10 ms in the mean.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    /// A spread of 1.2, up to 300 ms.
    Lognormal,
    /// With an exponent of 1.5, from 4 ms to 300 ms.
    Pareto,
}

/// How a member works on several requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Discipline {
    /// All at once, each a bit slower.
    Sharing,
    /// One for each processor, the others wait in order.
    Fifo,
    /// As many as there are processors at once, which then take as long as one; those who come meanwhile wait. All are of one length.
    Batch,
    /// As sharing, but jobs wait for one another and get in one another's way.
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

/// What chooses for the balancers of a fleet.
pub(crate) trait Policy {
    /// A member for a request of balancer `who`, not `failed`,; `None` refuses it.
    fn choose(&mut self, who: usize, now: f64, fleet: &Fleet, failed: Option<usize>) -> Option<usize>;

    /// Does a request wait with balancer `who` that is more urgent than this?
    fn outranked(&self, _who: usize, _urgency: Urgency) -> bool {
        false
    }

    /// A request that found no member, for the first time at `since`: until when it waits for one; `None` if it does not.
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

    /// What became of those that wait, after something happened that may have made room or was one too many: a member
    /// for a request, or none for one that is to wait no longer.
    fn turns(&mut self, _who: usize, _now: f64, _fleet: &Fleet) -> Vec<(usize, Option<usize>)> {
        Vec::new()
    }

    /// The wait of a request is over, if it still waits: it may look a last time.
    fn late(&mut self, _who: usize, _now: f64, _flight: usize) -> Option<Option<usize>> {
        None
    }

    /// A request that may wait has lost its client.
    fn left(&mut self, _who: usize, _now: f64, _flight: usize) {}

    /// A request of balancer `who` is over.
    fn ended(&mut self, who: usize, now: f64, answer: &Answer);

    /// An answer of this member is there: what the policy's own part in the member does then.
    fn seen(&mut self, _now: f64, _member: usize, _fleet: &Fleet) {}

    /// A member offers a slot to balancer `who`.
    fn offered(&mut self, _who: usize, _now: f64, _member: usize, _reading: &Reading) {}

    /// Called every 100 ms.
    fn tick(&mut self, _now: f64, _fleet: &Fleet) {}

    /// Every how many seconds each balancer tells the others what it sees; `None` if they do not know of each other.
    fn interval(&self) -> Option<f64> {
        None
    }

    /// Balancer `who` tells the others.
    fn tell(&mut self, _who: usize, _now: f64) {}

    /// The balancers start anew.
    fn crash(&mut self) {}

    /// Messages other than requests and answers so far.
    fn messages(&self) -> u64 {
        0
    }
}

/// How a request ended for the balancer that sent it.
pub(crate) struct Answer {
    pub(crate) member: usize,
    pub(crate) latency: f64,
    /// Was it no answer, but its client that gave up?
    pub(crate) left: bool,
    pub(crate) failed: bool,
    /// Not served, because the member is full.
    pub(crate) refused: bool,
    /// What the member said with it.
    pub(crate) reading: Option<Reading>,
}

/// Virtual seconds as the brain has them.
fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}
