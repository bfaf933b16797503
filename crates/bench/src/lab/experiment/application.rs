//! `[application]`: the synthetic application of Petriu, Amer, Majumdar and Abdull-Fatah (Using analytic
//! models for predicting middleware performance, 2000), in place of independent requests.
//!
//! A client's cycle is: bind A, call A, bind B, call B. There are two servers of A (members 1 and 2) and two
//! of B (3 and 4). In the *handle-driven* architecture the agent names a server and the client goes there. In
//! the *forwarding* one the agent's threads, its clones, take the message and deliver it to a server, which
//! answers the client. Each sender first sleeps for the inter-node delay D.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ByteSize, DurationValue};
use crate::lab::calibration::WireTimes;
use crate::lab::table::PointLevels;
use crate::member::{ServiceSteps, ServiceTime};

use super::Factor;

/// The number of servers of A, and of B.
pub const COPIES: usize = 2;

/// The parameters of the application. All times are means.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationSettings {
    /// The architecture.
    pub architecture: AgentArchitecture,
    /// SA: the work of a server A for a call, where `demand` is no factor. SB = 1.5 SA.
    #[serde(default = "ten")]
    pub demand: Spanned<DurationValue>,
    /// D: the delay from one node to another, where `delay` is no factor.
    #[serde(default = "ten")]
    pub delay: Spanned<DurationValue>,
    /// L: the bytes of a call and of its answer, where `length` is no factor.
    #[serde(default = "usual")]
    pub length: Spanned<ByteSize>,
    /// C: the threads of the agent that forwards, where `clones` is no factor.
    #[serde(default = "one")]
    pub clones: Spanned<usize>,
    /// The work of the agent for a request, without the locator's (forward: in four pieces, between its
    /// calls).
    pub agent: Spanned<DurationValue>,
    /// The work of the locator, at the agent's processor, for each request (forward).
    #[serde(default = "none")]
    pub locate: Spanned<DurationValue>,
    /// The work of a server beside SA or SB (handle).
    #[serde(default = "none")]
    pub overhead: Spanned<DurationValue>,
    /// The work at the server's processor to receive a message (forward).
    #[serde(default = "none")]
    pub receive: Spanned<DurationValue>,
    /// The work at the server's processor to send an answer (forward).
    #[serde(default = "none")]
    pub send: Spanned<DurationValue>,
    /// The work of a server for each thousand bytes of L.
    #[serde(default = "none")]
    pub per_kilobyte: Spanned<DurationValue>,
    /// The work of a client in a cycle, at a processor of its own.
    #[serde(default = "none")]
    pub client: Spanned<DurationValue>,
    /// The distribution of pieces of work; the delay is constant.
    #[serde(default)]
    pub work: WorkDistribution,
}

/// The way in which clients reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentArchitecture {
    /// The agent returns a handle to the server (H-ORB).
    Handle,
    /// The agent forwards the request (F-ORB).
    Forward,
}

/// The distribution of pieces of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkDistribution {
    /// Each piece between two calls is exponential.
    #[default]
    Exponential,
    /// Each piece is constant.
    Constant,
}

/// The application of one point. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PointApplication {
    /// The architecture.
    pub architecture: AgentArchitecture,
    /// SA.
    pub demand: f64,
    /// D.
    pub delay: f64,
    /// L in bytes.
    pub length: usize,
    /// C.
    pub clones: usize,
    /// The maximum age of the loads by which the agent chooses; `None` for a random choice.
    pub age: Option<f64>,
    /// The work of the agent.
    pub agent: f64,
    /// The work of the locator.
    pub locate: f64,
    /// The work of a client in a cycle.
    pub client: f64,
    overhead: f64,
    receive: f64,
    send: f64,
    per_byte: f64,
    work: WorkDistribution,
}

impl ApplicationSettings {
    /// Returns the application of a point with these levels.
    pub fn at_levels(&self, levels: &PointLevels) -> PointApplication {
        let level = |factor| levels.get(&factor).and_then(super::FactorLevel::number);
        let seconds = |span: &Spanned<DurationValue>| span.get_ref().0.as_secs_f64();
        let seconds_at_level = |factor, default_seconds| {
            level(factor).map_or_else(|| seconds(default_seconds), |value| value / 1e3)
        };
        let count =
            |factor, default_count: usize| level(factor).map_or(default_count, |value| value as usize);
        PointApplication {
            architecture: self.architecture,
            demand: seconds_at_level(Factor::Demand, &self.demand),
            delay: seconds_at_level(Factor::Delay, &self.delay),
            length: count(Factor::Length, self.length.get_ref().0),
            clones: count(Factor::Clones, *self.clones.get_ref()).max(1),
            age: level(Factor::Age).filter(|age| *age > 0.0),
            agent: seconds(&self.agent),
            locate: seconds(&self.locate),
            client: seconds(&self.client),
            overhead: seconds(&self.overhead),
            receive: seconds(&self.receive),
            send: seconds(&self.send),
            per_byte: seconds(&self.per_kilobyte) / 1e3,
            work: self.work,
        }
    }
}

impl PointApplication {
    /// Returns the distribution of a piece of work with this mean, in seconds.
    pub fn work_piece(&self, mean: f64) -> ServiceTime {
        let mean = Duration::from_secs_f64(mean.clamp(0.0, 3600.0));
        match self.work {
            _ if mean.is_zero() => ServiceTime::None,
            WorkDistribution::Exponential => ServiceTime::Exp(mean),
            WorkDistribution::Constant => ServiceTime::Const(mean),
        }
    }

    /// Returns the same application with constant work.
    pub(in crate::lab) fn with_constant_work(self) -> Self {
        Self { work: WorkDistribution::Constant, ..self }
    }

    /// Returns the mean seconds of a cycle of a single client, without the network and the relay.
    pub(in crate::lab) fn single_client_cycle(&self) -> f64 {
        let byte_seconds = self.length as f64 * self.per_byte;
        // For A and B together: SA and SB, and everything else twice.
        let (delays, processing) = match self.architecture {
            AgentArchitecture::Handle => (4.0, self.agent + self.overhead + byte_seconds),
            AgentArchitecture::Forward => {
                (3.0, self.agent + self.locate + self.receive + self.send + byte_seconds)
            }
        };
        self.client + 2.5 * self.demand + 2.0 * (delays * self.delay + processing)
    }

    /// Returns the times of the network and the relay, from two times of a single client in seconds. These
    /// are its cycle, and the time until it knew its server or had delivered the message.
    pub(in crate::lab) fn wire_times(&self, cycle_seconds: f64, pick_seconds: f64) -> WireTimes {
        let receive_seconds =
            if self.architecture == AgentArchitecture::Forward { self.receive } else { 0.0 };
        let relay = (pick_seconds - receive_seconds).max(0.0);
        WireTimes { relay, reach: ((cycle_seconds - self.single_client_cycle()) / 2.0 - relay).max(0.0) }
    }

    /// Returns the steps of server `number` (from 1 on) for a call, and for a message that it only receives.
    pub fn steps(&self, number: usize) -> (ServiceSteps, Option<ServiceSteps>) {
        let demand = if number <= COPIES { self.demand } else { 1.5 * self.demand };
        let byte_seconds = self.length as f64 * self.per_byte;
        let wait = ServiceTime::Const(Duration::from_secs_f64(self.delay));
        let cpu = |mean| self.work_piece(mean);
        match self.architecture {
            AgentArchitecture::Handle => {
                let half_demand = cpu((demand + self.overhead + byte_seconds) / 2.0);
                (ServiceSteps::new().cpu(half_demand).wait(wait).cpu(half_demand), None)
            }
            AgentArchitecture::Forward => {
                let third_demand = cpu(demand / 3.0);
                let serve = ServiceSteps::new().cpu(third_demand).wait(wait).cpu(third_demand);
                let serve = serve.cpu(cpu(self.send + byte_seconds)).cpu(third_demand);
                (serve, Some(ServiceSteps::new().cpu(cpu(self.receive))))
            }
        }
    }
}

/// Wraps a default value, which has no place in the text.
fn without_span<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn none() -> Spanned<DurationValue> {
    without_span(DurationValue::default())
}

fn ten() -> Spanned<DurationValue> {
    without_span(DurationValue(Duration::from_millis(10)))
}

fn usual() -> Spanned<ByteSize> {
    without_span(ByteSize(150))
}

fn one() -> Spanned<usize> {
    without_span(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::FactorLevel;

    #[test]
    fn levels_take_the_place_of_what_is_written() {
        let text = "architecture = \"forward\"\nagent = \"15.2ms\"\nreceive = \"2ms\"\nsend = \"14ms\"\nwork \
            = \"constant\"\nper_kilobyte = \"1ms\"";
        let application: ApplicationSettings = toml::from_str(text).unwrap();
        let levels = PointLevels::from([
            (Factor::Demand, FactorLevel::Number(30.0)),
            (Factor::Delay, FactorLevel::Number(250.0)),
            (Factor::Clones, FactorLevel::Number(4.0)),
            (Factor::Length, FactorLevel::Number(1000.0)),
        ]);
        let point_application = application.at_levels(&levels);
        assert_eq!(
            (point_application.clones, point_application.length, point_application.age),
            (4, 1000, None)
        );
        let (serve, receive) = point_application.steps(4);
        // SB is 45 ms, in thirds; a kilobyte takes a millisecond.
        assert_eq!(
            serve.to_string(),
            "cpu:const:15000000ns,wait:const:250000000ns,\
             cpu:const:15000000ns,cpu:const:15000000ns,cpu:const:15000000ns"
        );
        assert_eq!(receive.unwrap().to_string(), "cpu:const:2000000ns");
        // For A three delays, the agent, receiving, sending, a kilobyte and SA; for B likewise. The rest is
        // the network and the relay.
        let expected_cycle = 2.0 * (3.0 * 0.25 + 0.0152 + 0.002 + 0.014 + 0.001) + 2.5 * 0.03;
        let wire_times = point_application.with_constant_work().wire_times(expected_cycle + 0.005, 0.003);
        assert!(
            (wire_times.relay - 0.001).abs() < 1e-9 && (wire_times.reach - 0.0015).abs() < 1e-9,
            "{wire_times:?}"
        );
        let defaults = application.at_levels(&PointLevels::new());
        assert_eq!((defaults.demand, defaults.delay, defaults.length, defaults.clones), (0.01, 0.01, 150, 1));
        let handle = ApplicationSettings {
            architecture: AgentArchitecture::Handle,
            overhead: without_span(DurationValue(Duration::from_millis(20))),
            per_kilobyte: none(),
            work: WorkDistribution::Exponential,
            ..application
        };
        let (serve, receive) = handle.at_levels(&PointLevels::new()).steps(2);
        assert_eq!(serve.to_string(), "cpu:exp:15000000ns,wait:const:10000000ns,cpu:exp:15000000ns");
        assert_eq!(receive, None);
    }
}
