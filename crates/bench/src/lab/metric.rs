//! What is measured of a point, and what follows from two of them.
//!
//! Of N concurrent requests with response time T the speed is V = N / T. Against the response time T_1 of one
//! server without a balancer, i servers behind one have the speed-up S_i = T_1 / T_iB and the efficiency
//! E_i = S_i / i (Ristov, Cvetkov and Gusev, section 3).

use serde::{Deserialize, Serialize};

/// A quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean time from when a request was due (closed loop: sent) to the end of its answer; answered ones only.
    Response,
    /// Of all requests, failed ones counting with the time-out.
    P50,
    /// The same, 99th percentile.
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
    /// Share that was not answered in time.
    TimedOut,
    /// Share that was refused: answered with a status of 400 or more.
    Refused,
    /// Share that the balancer refused because there is no room, and said so: a part of `refused`.
    Shed,
    /// Share that nobody was picked for: no daemon of the lottery answered, or nobody serves.
    Unpicked,
    /// Mean time from asking the lottery to its answer, a part of the response.
    Pick,
    /// The same, 99th percentile.
    PickP99,
    /// Share of the daemons' answers that another daemon gave as well: of a request with two answers both.
    Duplicates,
    /// Share of the requests for which the client was told two members, one after the other.
    TwoMembers,
    /// Time within which 39 of 40 commits of a winner reach the other daemons; the longest that one of them measured.
    CommitDelay,
    /// Processor time of the daemons for an answer; seconds for a million of them.
    DaemonCpu,
    /// Processor time of all daemons in a second.
    DaemonBusy,
    /// Requests that came to a member, per second; by member and second only.
    Arrivals,
    /// Standard deviation over the members of the requests that came to each in a batch, over their mean.
    Dispersion,
    /// How much the part of the requests that comes to a member swings in a batch: its standard deviation over the ticks, over its
    /// mean, in the mean over the members.
    Swing,
    /// Greatest rate of arrivals at a member that was started again, from when it is used again until five
    /// seconds beyond its slow start, over its usual rate before it was killed.
    Surge,
    /// Its rate of arrivals in the first second in which it is used again, over its usual rate.
    FirstSecond,
    /// Its rate of arrivals from ten seconds and the slow start after it was started again, for five seconds, over
    /// its usual rate.
    Regained,
    /// Sessions that were sent to another member, per session and minute: by each batch. (iiop: forwards of clients,
    /// which come of servers that ended, too.)
    Moves,
    /// The same, per session since the load began; the first binding is no move.
    Moved,
    /// Processor time of the balancer, or of all its instances, for a request.
    BalancerCpu,
    /// Share of the machine's processors that was busy.
    HostCpu,
    /// Share of the time for which the application's servers of A were busy with a call, waiting included.
    ServerA,
    /// The same of B.
    ServerB,
    /// Share of the time for which the (emulated) processors of the servers of A were busy.
    CpuA,
    /// The same of B.
    CpuB,
    /// Share of the time for which the application's agent, or each of its clones, was busy, waiting included.
    Agent,
    /// Share of the time for which the (emulated) processor of the agent was busy.
    CpuAgent,
    /// Members that were started and not stopped, of those that come and go.
    Members,
    /// Members that have to serve for the goal of `[scaler]` to be met, by the curve of the load.
    Needed,
    /// Part of the time in which that goal was met.
    Met,
    /// Member-seconds over those of whoever knows the load beforehand.
    Cost,
    /// Half of the 95 % interval of the response time, over its mean.
    Spread,
}

impl Metric {
    /// As in experiment files.
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

    /// On an axis, with the unit.
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

    /// Is it known for every second of a run?
    pub fn over_time(self) -> bool {
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
