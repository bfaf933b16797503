//! The settings of a run, and its result.

use plimsoll_brain::lottery::AnswerMode;

/// The settings of a run, in seconds of virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) daemons: usize,
    pub(crate) clients: usize,
    pub(crate) mode: AnswerMode,
    /// The demand as a share of the capacity.
    pub(crate) load: f64,
    /// The mean work of a request.
    pub(crate) work: f64,
    pub(crate) warmup: f64,
    pub(crate) measured: f64,
    /// The probability that one receiver loses a message.
    pub(crate) loss: f64,
    /// The probability that it arrives twice.
    pub(crate) twice: f64,
    /// The minimum one-way delay, and the mean of a random delay on top.
    pub(crate) delay: f64,
    /// The probability of a delay of 10 ms more in the mean.
    pub(crate) tail: f64,
    /// Whether clocks differ, by seconds and by 200 parts in a million.
    pub(crate) skew: bool,
    /// Whether shells know the age of a message.
    pub(crate) stamps: bool,
    /// Whether there is no multicast, so that a message to all is a packet for each.
    pub(crate) unicast: bool,
    /// Whether all members are alike.
    pub(crate) even: bool,
    pub(crate) faults: Vec<Fault>,
    pub(crate) seed: u64,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A host dies, and comes back.
    Crash { who: usize, at: f64, back: f64 },
    /// A daemon stops for 0.3 s of each second, and then has many messages to read.
    Lag { who: usize, at: f64, until: f64 },
    /// A daemon is stopped, and continues with the messages of that time; its server works on.
    Stop { who: usize, at: f64, until: f64 },
    /// The first `split` daemons and every second client are cut off from the others.
    Partition { split: usize, at: f64, until: f64 },
    /// An operator drains a member.
    Drain { who: usize, at: f64, until: f64 },
    /// A member leaves for good.
    Leave { who: usize, at: f64 },
    /// A server works at half its speed, without a report of it.
    Slow { who: usize, at: f64, until: f64 },
}

impl Setting {
    /// Returns the base of the study: 1 % loss, 0.2 ms one way and sometimes far more, load 0.7.
    pub(crate) fn base(daemons: usize, mode: AnswerMode, seed: u64) -> Self {
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

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// The requests for which answers with different members were sent.
    pub(crate) duplicates: u64,
    /// The requests that went to a second member although the first was reachable.
    pub(crate) begun_twice: u64,
    /// The requests whose clients got both.
    pub(crate) received_twice: u64,
    /// The requests that got no member in the end.
    pub(crate) unanswered: u64,
    /// The same, of those that came when nothing had gone wrong for three seconds.
    pub(crate) left_over: u64,
    /// The requests answered later than 10 ms.
    pub(crate) late: u64,
    /// The named members that were unreachable.
    pub(crate) in_vain: u64,
    pub(crate) packets: u64,
    pub(crate) received: u64,
    pub(crate) reports: u64,
    /// The requests that got two members, by the clients' counts.
    pub(crate) counted_twice: u64,
    /// The work begun over the capacity, for each member.
    pub(crate) shares: Vec<f64>,
    /// The requests begun in each second, for each member.
    pub(crate) seconds: Vec<Vec<u32>>,
    /// The sum and the number of the seconds from request to answer.
    pub(crate) wait: f64,
    pub(crate) step: f64,
    pub(crate) doubted: u64,
    pub(crate) stood_in: u64,
    /// The share of different digests among those compared at the end.
    pub(crate) differ: f64,
}

impl Outcome {
    pub(crate) fn percent(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.requests.max(1) as f64
    }

    /// Returns the packets sent per request; a multicast counts as one.
    pub(crate) fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.requests.max(1) as f64
    }

    /// Returns the coefficient of variation of the members' work, per cent.
    pub(crate) fn cv(&self) -> f64 {
        let count = self.shares.len() as f64;
        let mean = self.shares.iter().sum::<f64>() / count;
        let variance = self.shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
        100.0 * variance.sqrt() / mean
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:>7} req  dup {:.3} % (got both {:.3}, begun twice {})  unanswered {}  late {:.2} %  vain \
             {}  sent {:.3} recv {:.1}/req  cv {:.1} %  wait {:.3} ms  step {:.1} ms  doubted {}  stood in \
             {}  differ {:.2}",
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
