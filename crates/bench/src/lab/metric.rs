//! Metrics of a point, and those that follow from two points.
//!
//! With N concurrent requests and response time T the speed is
//!
//! ```text
//! V = N / T
//! ```
//!
//! With the response time T_1 of one server without a balancer, and T_iB of i servers behind one, the
//! speed-up and the efficiency are (Ristov, Cvetkov and Gusev, section 3):
//!
//! ```text
//! S_i = T_1 / T_iB
//! E_i = S_i / i
//! ```

use serde::{Deserialize, Serialize};

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean time from when a request was due (closed loop: sent) to the end of its answer; answered ones
    /// only.
    Response,
    /// Median latency of all requests; failed ones count with the time-out.
    P50,
    /// The 99th percentile of the same latencies.
    P99,
    /// Concurrent requests over response time (closed loop).
    Speed,
    /// Response time of one server without a balancer over this one.
    Speedup,
    /// Speed-up over the number of servers.
    Efficiency,
    /// Requests answered without fault, per second.
    Throughput,
    /// Throughput over the capacity measured before the run.
    Utilisation,
    /// Requests answered without fault over requests that were due.
    Delivered,
    /// Share of the requests that ended, or were cut off at the end, which were answered without fault.
    Success,
    /// Share of the requests that timed out.
    TimedOut,
    /// Share of the requests answered with a status of 400 or more.
    Refused,
    /// Share of the requests that the balancer shed and marked as such: a part of `refused`.
    Shed,
    /// Share of the requests without a picked member: no daemon of the lottery answered, or no member serves.
    Unpicked,
    /// Mean time from asking the lottery to its answer, a part of the response.
    Pick,
    /// The 99th percentile of the same times.
    PickP99,
    /// Share of the daemons' answers that another daemon gave as well; both answers of a request count.
    Duplicates,
    /// Share of the requests for which the client received two members, one after the other.
    TwoMembers,
    /// Time within which 39 of 40 commits of a winner reach the other daemons; the maximum over the daemons.
    CommitDelay,
    /// Processor time of the daemons for an answer; seconds for a million of them.
    DaemonCpu,
    /// Processor time of all daemons in a second.
    DaemonBusy,
    /// Requests per second at a member; by member and second only.
    Arrivals,
    /// Standard deviation over the members of the requests at each in a batch, over their mean.
    Dispersion,
    /// Swing of the part of the requests at a member in a batch: its standard deviation over the ticks, over
    /// its mean; averaged over the members.
    Swing,
    /// Maximum rate of arrivals at a restarted member, from when it is used again until five seconds beyond
    /// its slow start, over its usual rate before it was killed.
    Surge,
    /// Rate of arrivals at that member in the first second in which it is used again, over its usual rate.
    FirstSecond,
    /// Rate of arrivals at that member for five seconds, from ten seconds and the slow start after its
    /// restart, over its usual rate.
    Regained,
    /// Sessions moved to another member, per session and minute, by batch. (iiop: forwards of clients, which
    /// also occur when servers end.)
    Moves,
    /// The same, per session since the load began; the first binding is no move.
    Moved,
    /// Processor time of the balancer, or of all its instances, for a request.
    BalancerCpu,
    /// Share of the machine's processors that was busy.
    HostCpu,
    /// Share of the time for which the application's servers of A were busy with a call, waiting included.
    ServerA,
    /// The same for B.
    ServerB,
    /// Share of the time for which the (emulated) processors of the servers of A were busy.
    CpuA,
    /// The same for B.
    CpuB,
    /// Share of the time for which the application's agent, or each of its clones, was busy, waiting
    /// included.
    Agent,
    /// Share of the time for which the (emulated) processor of the agent was busy.
    CpuAgent,
    /// Autoscaled members that were started and not stopped.
    Members,
    /// Serving members that the goal of `[scaler]` requires, by the curve of the load.
    Needed,
    /// Part of the time in which that goal was met.
    Met,
    /// Member-seconds over those of hindsight, which knows the load in advance.
    Cost,
    /// Half of the 95 % interval of the response time, over its mean.
    Spread,
}

impl Metric {
    /// Returns the name as in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Speed => "speed",
            Self::Speedup => "speedup",
            Self::Efficiency => "efficiency",
            Self::Throughput => "throughput",
            Self::Utilisation => "utilisation",
            Self::Delivered => "delivered",
            Self::Success => "success",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::Shed => "shed",
            Self::Unpicked => "unpicked",
            Self::Pick => "pick",
            Self::PickP99 => "pick_p99",
            Self::Duplicates => "duplicates",
            Self::TwoMembers => "two_members",
            Self::CommitDelay => "commit_delay",
            Self::DaemonCpu => "daemon_cpu",
            Self::DaemonBusy => "daemon_busy",
            Self::Arrivals => "arrivals",
            Self::Dispersion => "dispersion",
            Self::Swing => "swing",
            Self::Surge => "surge",
            Self::FirstSecond => "first_second",
            Self::Regained => "regained",
            Self::Moves => "moves",
            Self::Moved => "moved",
            Self::BalancerCpu => "balancer_cpu",
            Self::HostCpu => "host_cpu",
            Self::ServerA => "server_a",
            Self::ServerB => "server_b",
            Self::CpuA => "cpu_a",
            Self::CpuB => "cpu_b",
            Self::Agent => "agent",
            Self::CpuAgent => "cpu_agent",
            Self::Members => "members",
            Self::Needed => "needed",
            Self::Met => "met",
            Self::Cost => "cost",
            Self::Spread => "spread",
        }
    }

    /// Returns the label of an axis, with the unit.
    pub fn label(self) -> &'static str {
        match self {
            Self::Response => "response time T (s)",
            Self::P50 => "median latency (s)",
            Self::P99 => "p99 latency (s)",
            Self::Speed => "speed V = N / T (requests/s)",
            Self::Speedup => "speed-up S = T1 / TiB",
            Self::Efficiency => "efficiency E = S / i",
            Self::Throughput => "answered requests/s",
            Self::Utilisation => "answered requests/s / capacity",
            Self::Delivered => "answered / due",
            Self::Success => "share answered without fault",
            Self::TimedOut => "share timed out",
            Self::Refused => "share refused",
            Self::Shed => "share shed",
            Self::Unpicked => "share that nobody was picked for",
            Self::Pick => "time of a pick (s)",
            Self::PickP99 => "p99 time of a pick (s)",
            Self::Duplicates => "answers given twice / answers",
            Self::TwoMembers => "requests given two members / requests",
            Self::CommitDelay => "delay of commits (s)",
            Self::DaemonCpu => "processor time of an answer (µs)",
            Self::DaemonBusy => "daemons' processor time (cores)",
            Self::Arrivals => "requests/s at the member",
            Self::Dispersion => "dispersion of arrivals over members",
            Self::Swing => "swing of the parts of arrivals",
            Self::Surge => "arrivals after return / usual",
            Self::FirstSecond => "arrivals in the first second / usual",
            Self::Regained => "arrivals regained / usual",
            Self::Moves => "moves per session and minute",
            Self::Moved => "moves per session",
            Self::BalancerCpu => "balancer's processor time (µs/request)",
            Self::HostCpu => "share of the machine's processors in use",
            Self::ServerA => "utilisation of the servers A",
            Self::ServerB => "utilisation of the servers B",
            Self::CpuA => "utilisation of the processors of A",
            Self::CpuB => "utilisation of the processors of B",
            Self::Agent => "utilisation of the agent",
            Self::CpuAgent => "utilisation of the agent's processor",
            Self::Members => "members",
            Self::Needed => "members needed",
            Self::Met => "part of the time in which the goal was met",
            Self::Cost => "member-seconds / hindsight's",
            Self::Spread => "half interval of the response time / mean",
        }
    }

    /// Returns `true` if the metric is known for every second of a run.
    pub fn is_per_second(self) -> bool {
        matches!(
            self,
            Self::Throughput
                | Self::Arrivals
                | Self::Success
                | Self::Response
                | Self::P99
                | Self::Members
                | Self::Needed
        )
    }
}
