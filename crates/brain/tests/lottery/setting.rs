//! What a run is like, and what came of it.

use plimsoll_brain::lottery::Mode;

/// What a run is like. Seconds of virtual time throughout.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) daemons: usize,
    pub(crate) clients: usize,
    pub(crate) mode: Mode,
    /// Share of the capacity that is asked for.
    pub(crate) load: f64,
    /// Mean work of a request.
    pub(crate) work: f64,
    pub(crate) warmup: f64,
    pub(crate) measured: f64,
    /// Chance that a message is lost, by one receiver.
    pub(crate) loss: f64,
    /// Chance that it comes twice.
    pub(crate) twice: f64,
    /// One way: at least this, and as much again in the mean.
    pub(crate) delay: f64,
    /// Chance that it takes 10 ms more in the mean.
    pub(crate) tail: f64,
    /// Do clocks differ, by seconds and by 200 parts in a million?
    pub(crate) skew: bool,
    /// Do shells know how long a message has waited?
    pub(crate) stamps: bool,
    /// Is there no multicast, so that what goes to all is a packet for each?
    pub(crate) unicast: bool,
    /// Are all members alike?
    pub(crate) even: bool,
    pub(crate) faults: Vec<Fault>,
    pub(crate) seed: u64,
}

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A host dies, and comes back.
    Crash { who: usize, at: f64, back: f64 },
    /// A daemon does nothing for 0.3 s of each second, and then has much to read.
    Lag { who: usize, at: f64, until: f64 },
    /// A daemon is stopped, and goes on with what has come meanwhile; its server works on.
    Stop { who: usize, at: f64, until: f64 },
    /// The first `split` daemons and every second client hear nothing of the others.
    Partition { split: usize, at: f64, until: f64 },
    /// An operator drains a member.
    Drain { who: usize, at: f64, until: f64 },
    /// A member leaves for good.
    Leave { who: usize, at: f64 },
    /// A server works at half its speed, and says nothing of it.
    Slow { who: usize, at: f64, until: f64 },
}

impl Setting {
    /// The base of the study: 1 % loss, 0.2 ms one way and sometimes far more, load 0.7.
    pub(crate) fn base(daemons: usize, mode: Mode, seed: u64) -> Self {
        Self {
            daemons,
            clients: 20,
            mode,
            load: 0.7,
            work: 0.020,
            warmup: 4.0,
            measured: 16.0,
            loss: 0.01,
            twice: 0.0,
            delay: 0.000_1,
            tail: 0.005,
            skew: true,
            stamps: true,
            unicast: false,
            even: false,
            faults: Vec::new(),
            seed,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// Requests for which answers with different members were sent.
    pub(crate) duplicates: u64,
    /// Requests that went to a second member although the first could be reached.
    pub(crate) begun_twice: u64,
    /// Requests whose clients got both.
    pub(crate) received_twice: u64,
    /// Requests for which nobody was named in the end.
    pub(crate) unanswered: u64,
    /// The same, of those that came when nothing had gone wrong for three seconds.
    pub(crate) left_over: u64,
    /// Answered later than 10 ms.
    pub(crate) late: u64,
    /// Members named that could not be reached.
    pub(crate) in_vain: u64,
    pub(crate) packets: u64,
    pub(crate) received: u64,
    pub(crate) reports: u64,
    /// Requests that were given two members, as the clients count them.
    pub(crate) counted_twice: u64,
    /// Work begun over capacity, member by member.
    pub(crate) shares: Vec<f64>,
    /// Requests begun in each second, member by member.
    pub(crate) seconds: Vec<Vec<u32>>,
    /// Sum and number of the seconds from request to answer.
    pub(crate) wait: f64,
    pub(crate) step: f64,
    pub(crate) doubted: u64,
    pub(crate) stood_in: u64,
    /// Digests that differed, of those compared at the end.
    pub(crate) differ: f64,
}

impl Outcome {
    pub(crate) fn percent(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.requests.max(1) as f64
    }

    /// Packets sent per request; a multicast is one where there is multicast.
    pub(crate) fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.requests.max(1) as f64
    }

    /// Coefficient of variation of what members have to do, per cent.
    pub(crate) fn cv(&self) -> f64 {
        let count = self.shares.len() as f64;
        let mean = self.shares.iter().sum::<f64>() / count;
        let variance = self.shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
        100.0 * variance.sqrt() / mean
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:>7} req  dup {:.3} % (got both {:.3}, begun twice {})  unanswered {}  late {:.2} %  vain {}  sent {:.3} recv {:.1}/req  cv {:.1} %  wait {:.3} ms  step {:.1} ms  doubted {}  stood in {}  differ {:.2}",
            self.requests,
            self.percent(self.duplicates),
            self.percent(self.received_twice),
            self.begun_twice,
            self.unanswered,
            self.percent(self.late),
            self.in_vain,
            self.per_request(self.packets),
            self.per_request(self.received),
            self.cv(),
            1e3 * self.wait / self.requests.max(1) as f64,
            1e3 * self.step,
            self.doubted,
            self.stood_in,
            self.differ,
        )
    }
}
