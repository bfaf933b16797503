//! One group: resolves names in expressions for a member, and computes loads.

use std::time::{Duration, Instant};

use super::{LoadUpdate, TrackedGroup};
use crate::observations::{CounterGrowth, MAX_AGE, Observation, ObservationOrigin, ObservationSet};
use crate::{CpuUtilization, Expression, MemberUsage, MetricSource, MonitorSettings};

impl TrackedGroup {
    /// Records reported values of a member. Returns updates, and whether there was room for all values.
    pub(super) fn record_values(
        &mut self,
        index: usize,
        values: &[(String, f64)],
        age: Duration,
        origin: ObservationOrigin,
        now: Instant,
    ) -> (Vec<LoadUpdate>, bool) {
        let mut has_room = true;
        for (name, value) in values {
            has_room &= self.insert_value(index, name, (*value, CounterGrowth::FromValues), age, origin, now);
        }
        let reads_reported = |monitor: &MonitorSettings| {
            let is_read = |(name, _): &(String, f64)| {
                monitor.metric.names().iter().any(|read_name| {
                    read_name == name
                        || read_name.strip_suffix(PER_SECOND).is_some_and(|counter| counter == name)
                })
            };
            values.iter().any(is_read)
        };
        let load_affected = self.settings.monitor.as_ref().is_some_and(reads_reported);
        let mut updates: Vec<LoadUpdate> =
            if load_affected { self.compute_load(index, now) } else { None }.into_iter().collect();
        if values.iter().any(|(name, _)| UTILIZATION_NAMES.contains(&name.as_str())) {
            updates.extend(self.compute_usage(index, now));
        }
        if values.iter().any(|(name, _)| CPU_UTILIZATION_NAMES.contains(&name.as_str())) {
            updates.extend(self.compute_cpu_utilization(index, now));
        }
        (updates, has_room)
    }

    pub(super) fn insert_value(
        &mut self,
        index: usize,
        name: &str,
        sample: (f64, CounterGrowth),
        age: Duration,
        origin: ObservationOrigin,
        now: Instant,
    ) -> bool {
        let measured_at = now.checked_sub(age.min(MAX_AGE)).unwrap_or(now);
        let lifetime = self.settings.report_lifetime();
        self.members[index].observations.insert(name, sample, measured_at, origin, lifetime)
    }

    /// Returns the interval of a metric that needs the balancer's own figures only.
    pub(super) fn passive_interval(&self) -> Option<Duration> {
        let monitor = self.settings.monitor.as_ref()?;
        let is_local = |name: &String| is_local_metric(name);
        let is_reported =
            |name: &String| self.members.iter().any(|member| member.observations.find(name).is_some());
        let names = monitor.metric.names();
        let passive = monitor.source == MetricSource::Passive
            || (names.iter().all(is_local)
                && !names.iter().any(|name| name != CAPACITY && is_reported(name)));
        passive.then_some(monitor.interval)
    }

    /// Computes a member's load, if all required figures are known.
    pub(super) fn compute_load(&mut self, index: usize, now: Instant) -> Option<LoadUpdate> {
        let Measurement { value, measured_at, of_host } = self.measure(index, now).ok()?;
        self.members[index].load = Some((value, measured_at));
        Some(LoadUpdate::Load {
            group: self.settings.name.clone(),
            member: self.settings.members[index].name.clone(),
            value,
            age: now.saturating_duration_since(measured_at),
            of_host,
        })
    }

    /// Returns a member's usage, if it reports its requests per second and its utilization. As in gRPC's
    /// proposal A58, the application's own utilization takes precedence over that of the processors.
    pub(super) fn compute_usage(&self, index: usize, now: Instant) -> Option<LoadUpdate> {
        let observations = &self.members[index].observations;
        let fresh = |name: &&str| {
            let observation = observations.find(name)?;
            let is_fresh =
                now.saturating_duration_since(observation.measured_at) <= self.settings.report_lifetime();
            (is_fresh && observation.value >= 0.0).then_some(observation)
        };
        let rps = REQUEST_RATE_NAMES.iter().find_map(fresh)?;
        let utilization =
            UTILIZATION_NAMES.iter().filter_map(fresh).find(|observation| observation.value > 0.0)?;
        let eps = fresh(&"eps").map_or(0.0, |observation| observation.value);
        Some(LoadUpdate::Usage {
            group: self.settings.name.clone(),
            member: self.settings.members[index].name.clone(),
            usage: MemberUsage { rps: rps.value, utilization: utilization.value, eps },
            age: now.saturating_duration_since(rps.measured_at.min(utilization.measured_at)),
        })
    }

    /// Returns the utilization of a member's processors, if the member reports it with their number and the
    /// monitor is not passive.
    pub(super) fn compute_cpu_utilization(&self, index: usize, now: Instant) -> Option<LoadUpdate> {
        if self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive) {
            return None;
        }
        let observations = &self.members[index].observations;
        let fresh = |name: &&str| {
            let observation = observations.find(name)?;
            let is_fresh =
                now.saturating_duration_since(observation.measured_at) <= self.settings.report_lifetime();
            (is_fresh && observation.value >= 0.0).then_some(observation)
        };
        let utilization = CPU_UTILIZATION_NAMES.iter().find_map(fresh)?;
        // An agent has sensors for the host and for a control group, and reports the greater value as `cpu`.
        // A program's own report, or a control group's usage, concerns the server alone.
        let whole_host = fresh(&HOST_UTILIZATION_NAME).is_some_and(|host| host.value == utilization.value);
        let processors = fresh(&CPU_COUNT_NAME).filter(|observation| observation.value > 0.0)?.value;
        Some(LoadUpdate::CpuUtilization {
            group: self.settings.name.clone(),
            member: self.settings.members[index].name.clone(),
            sensed: CpuUtilization { utilization: utilization.value, processors, covers_host: whole_host },
            age: now.saturating_duration_since(utilization.measured_at),
        })
    }

    /// Evaluates the metric. Returns the value with its time of measurement, or the reason why there is none.
    fn measure(&self, index: usize, now: Instant) -> Result<Measurement, String> {
        let Some(monitor) = &self.settings.monitor else { return Err("the group has no monitor".into()) };
        let (mut oldest, mut of_host, mut missing) = (now, false, Vec::new());
        let value = monitor.metric.eval(|name| match self.resolve_name(index, name, now) {
            Ok(measurement) => {
                oldest = oldest.min(measurement.measured_at);
                of_host |= measurement.of_host;
                Some(measurement.value)
            }
            Err(error) => {
                missing.push(error);
                None
            }
        });
        match value {
            Ok(value) if value >= 0.0 => Ok(Measurement { value, measured_at: oldest, of_host }),
            Ok(value) => Err(format!("{} is {value}: a load is not negative", monitor.metric.text())),
            Err(error) if missing.is_empty() => Err(format!("{}: {error}", monitor.metric.text())),
            Err(_) => Err(missing.join("; ")),
        }
    }

    /// Returns the value of a name with its time of measurement, or the reason why there is none.
    pub(super) fn resolve_name(&self, index: usize, name: &str, now: Instant) -> Result<Measurement, String> {
        let member = &self.members[index];
        let local = |value| Measurement { value, measured_at: now, of_host: false };
        if name == CAPACITY {
            return Ok(local(self.settings.members[index].capacity));
        }
        let passive =
            self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive);
        let (observation, is_counter) = match member.observations.find(name) {
            _ if passive => (None, false),
            Some(observation) => (Some(observation), false),
            None => {
                (name.strip_suffix(PER_SECOND).and_then(|counter| member.observations.find(counter)), true)
            }
        };
        let mut stale_reason = None;
        if let Some(observation) = observation {
            let age = now.saturating_duration_since(observation.measured_at);
            match observation.rate {
                _ if age > self.settings.report_lifetime() => {
                    stale_reason = Some(format!("`{name}` was last told {} s ago", age.as_secs()));
                }
                _ if !is_counter => {
                    let of_host = observation.origin.of_host || covers_host(name, &member.observations);
                    return Ok(Measurement {
                        value: observation.value,
                        measured_at: observation.measured_at,
                        of_host,
                    });
                }
                Some(rate) => {
                    return Ok(Measurement {
                        value: rate,
                        measured_at: observation.measured_at,
                        of_host: observation.origin.of_host,
                    });
                }
                None => stale_reason = Some(format!("`{name}` is known once its counter is told again")),
            }
        }
        let local_value = match name {
            "in_flight" => member.local.in_flight(),
            "requests_per_second" => member.local.requests_per_second(),
            "latency" => member.local.latency(now),
            _ => None,
        };
        match (local_value, stale_reason) {
            (Some(value), _) => Ok(local(value)),
            (None, Some(reason)) => Err(reason),
            (None, None) if name == "latency" => Err("`latency`: no request has ended lately".into()),
            (None, None) if LOCAL_METRIC_NAMES.contains(&name) => {
                Err(format!("`{name}` is not measured yet"))
            }
            (None, None) if passive => {
                Err(format!("`{name}` is no figure of the balancer's own, and the source is passive"))
            }
            (None, None) => Err(format!("`{name}` was never told")),
        }
    }

    /// Returns the balancer's own figures of a member, except its capacity, that the group's expressions
    /// currently read.
    pub(super) fn local_values(
        &self,
        index: usize,
        now: Instant,
    ) -> impl Iterator<Item = (&'static str, Measurement)> {
        let is_read = move |name: &&str| {
            let reads_name =
                |expression: &Expression| expression.names().iter().any(|read_name| read_name == name);
            **name != *CAPACITY && self.settings.expressions().any(reads_name)
        };
        let passive =
            self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive);
        let is_reported = move |name: &str| !passive && self.members[index].observations.find(name).is_some();
        LOCAL_METRIC_NAMES
            .into_iter()
            .filter(is_read)
            .filter(move |name| !is_reported(name))
            .filter_map(move |name| Some((name, self.resolve_name(index, name, now).ok()?)))
    }

    /// Returns the reason why there is no load or weight now.
    pub(super) fn problem(&self, index: usize, now: Instant) -> Option<String> {
        let mut problems: Vec<String> = Vec::new();
        problems.extend(self.members[index].problem.clone().map(|problem| format!("its monitor: {problem}")));
        if self.settings.monitor.is_some() {
            problems.extend(self.measure(index, now).err());
        }
        if let Some(weight) = &self.settings.weight {
            let mut missing = Vec::new();
            let value = weight.eval(|name| match self.resolve_name(index, name, now) {
                Ok(measurement) => Some(measurement.value),
                Err(error) => {
                    missing.push(error);
                    None
                }
            });
            match value {
                Ok(value) if value < 0.0 => problems.push(format!("its weight is {value}: below 0")),
                Ok(_) => {}
                Err(error) if missing.is_empty() => problems.push(format!("its weight: {error}")),
                Err(_) => problems.extend(missing),
            }
        }
        problems.dedup();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// A measured value of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measurement {
    pub(super) value: f64,
    pub(super) measured_at: Instant,
    /// Whether it covers the member's whole host.
    pub(super) of_host: bool,
}

/// Returns `true` if the name stands for the whole host in agents' reports, whichever host or member was
/// reported. For `cpu` and `memory`, the greater of the host's and a control group's values, this holds if
/// the value is the host's.
fn covers_host(name: &str, observations: &ObservationSet) -> bool {
    let same_as_host = |observation: &Observation| {
        observations.find(&format!("{name}_host")).is_some_and(|host| host.value == observation.value)
    };
    name.starts_with("host_") || name.ends_with("_host") || observations.find(name).is_some_and(same_as_host)
}

const CAPACITY: &str = "capacity";

/// The balancer's own figures, which need no reports.
pub const LOCAL_METRIC_NAMES: [&str; 4] = ["in_flight", "requests_per_second", "latency", CAPACITY];

/// Returns `true` if the name is one of [`LOCAL_METRIC_NAMES`].
pub fn is_local_metric(name: &str) -> bool {
    LOCAL_METRIC_NAMES.contains(&name)
}

/// The names of requests per second in reports; the first one takes precedence.
const REQUEST_RATE_NAMES: [&str; 3] = ["rps_fractional", "rps", "requests_per_second"];

/// Returns `true` if the name stands for requests per second in reports.
pub fn is_request_rate(name: &str) -> bool {
    REQUEST_RATE_NAMES.contains(&name)
}

/// The names of a member's utilization; the first one takes precedence.
const UTILIZATION_NAMES: [&str; 3] = ["application_utilization", "cpu_utilization", "cpu"];

/// The names of the processors' utilization (the first takes precedence), and of their number.
pub(super) const CPU_UTILIZATION_NAMES: [&str; 2] = ["cpu", "cpu_utilization"];
const CPU_COUNT_NAME: &str = "cpus";

/// The name of the processors' utilization over the whole host.
const HOST_UTILIZATION_NAME: &str = "cpu_host";

pub(crate) const PER_SECOND: &str = "_per_second";
