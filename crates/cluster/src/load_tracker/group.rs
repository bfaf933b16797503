//! One group: resolves names in expressions for a member, and computes loads.

use std::time::{Duration, Instant};

use super::{LoadUpdate, TrackedGroup};
use crate::observations::{CounterGrowth, MAX_AGE, Observation, ObservationOrigin, ObservationSet};
use crate::{CpuUtilization, Expression, MemberUsage, MetricSource, MonitorSettings};

impl TrackedGroup {
    /// Records reported values of a member. Returns updates, and whether there was room for all values.
    pub(super) fn record_values(
        &mut self,
        place: usize,
        values: &[(String, f64)],
        age: Duration,
        origin: ObservationOrigin,
        now: Instant,
    ) -> (Vec<LoadUpdate>, bool) {
        let mut room = true;
        for (name, value) in values {
            room &= self.insert_value(place, name, (*value, CounterGrowth::FromValues), age, origin, now);
        }
        let reads = |monitor: &MonitorSettings| {
            let named = |(name, _): &(String, f64)| {
                monitor.metric.names().iter().any(|read| {
                    read == name || read.strip_suffix(PER_SECOND).is_some_and(|counter| counter == name)
                })
            };
            values.iter().any(named)
        };
        let concerned = self.settings.monitor.as_ref().is_some_and(reads);
        let mut said: Vec<LoadUpdate> =
            if concerned { self.compute_load(place, now) } else { None }.into_iter().collect();
        if values.iter().any(|(name, _)| UTILIZATION_NAMES.contains(&name.as_str())) {
            said.extend(self.compute_usage(place, now));
        }
        if values.iter().any(|(name, _)| CPU_UTILIZATION_NAMES.contains(&name.as_str())) {
            said.extend(self.compute_cpu_utilization(place, now));
        }
        (said, room)
    }

    pub(super) fn insert_value(
        &mut self,
        place: usize,
        name: &str,
        told: (f64, CounterGrowth),
        age: Duration,
        origin: ObservationOrigin,
        now: Instant,
    ) -> bool {
        let at = now.checked_sub(age.min(MAX_AGE)).unwrap_or(now);
        let life = self.settings.report_lifetime();
        self.members[place].observations.insert(name, told, at, origin, life)
    }

    /// Returns the interval of a metric that needs the balancer's own figures only.
    pub(super) fn passive_interval(&self) -> Option<Duration> {
        let monitor = self.settings.monitor.as_ref()?;
        let own = |name: &String| is_local_metric(name);
        let told = |name: &String| self.members.iter().any(|member| member.observations.find(name).is_some());
        let names = monitor.metric.names();
        let passive = monitor.source == MetricSource::Passive
            || (names.iter().all(own) && !names.iter().any(|name| name != CAPACITY && told(name)));
        passive.then_some(monitor.interval)
    }

    /// Computes a member's load, if all required figures are known.
    pub(super) fn compute_load(&mut self, place: usize, now: Instant) -> Option<LoadUpdate> {
        let Measurement { value, measured_at: at, of_host } = self.measure(place, now).ok()?;
        self.members[place].load = Some((value, at));
        Some(LoadUpdate::Load {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            value,
            age: now.saturating_duration_since(at),
            of_host,
        })
    }

    /// Returns a member's usage, if it reports its requests per second and its utilization. As in gRPC's
    /// proposal A58, the application's own utilization takes precedence over that of the processors.
    pub(super) fn compute_usage(&self, place: usize, now: Instant) -> Option<LoadUpdate> {
        let facts = &self.members[place].observations;
        let fresh = |name: &&str| {
            let fact = facts.find(name)?;
            let counts = now.saturating_duration_since(fact.measured_at) <= self.settings.report_lifetime();
            (counts && fact.value >= 0.0).then_some(fact)
        };
        let rps = REQUEST_RATE_NAMES.iter().find_map(fresh)?;
        let busy = UTILIZATION_NAMES.iter().filter_map(fresh).find(|fact| fact.value > 0.0)?;
        let eps = fresh(&"eps").map_or(0.0, |fact| fact.value);
        Some(LoadUpdate::Usage {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            usage: MemberUsage { rps: rps.value, utilization: busy.value, eps },
            age: now.saturating_duration_since(rps.measured_at.min(busy.measured_at)),
        })
    }

    /// Returns the utilization of a member's processors, if the member reports it with their number and the
    /// monitor is not passive.
    pub(super) fn compute_cpu_utilization(&self, place: usize, now: Instant) -> Option<LoadUpdate> {
        if self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive) {
            return None;
        }
        let facts = &self.members[place].observations;
        let fresh = |name: &&str| {
            let fact = facts.find(name)?;
            let counts = now.saturating_duration_since(fact.measured_at) <= self.settings.report_lifetime();
            (counts && fact.value >= 0.0).then_some(fact)
        };
        let share = CPU_UTILIZATION_NAMES.iter().find_map(fresh)?;
        // An agent has sensors for the host and for a control group, and reports the greater value as `cpu`.
        // A program's own report, or a control group's usage, concerns the server alone.
        let whole = fresh(&HOST_UTILIZATION_NAME).is_some_and(|host| host.value == share.value);
        let processors = fresh(&CPU_COUNT_NAME).filter(|fact| fact.value > 0.0)?.value;
        Some(LoadUpdate::CpuUtilization {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            sensed: CpuUtilization { utilization: share.value, processors, covers_host: whole },
            age: now.saturating_duration_since(share.measured_at),
        })
    }

    /// Evaluates the metric. Returns the value with its time of measurement, or the reason why there is none.
    fn measure(&self, place: usize, now: Instant) -> Result<Measurement, String> {
        let Some(monitor) = &self.settings.monitor else { return Err("the group has no monitor".into()) };
        let (mut oldest, mut of_host, mut missing) = (now, false, Vec::new());
        let value = monitor.metric.eval(|name| match self.resolve_name(place, name, now) {
            Ok(figure) => {
                oldest = oldest.min(figure.measured_at);
                of_host |= figure.of_host;
                Some(figure.value)
            }
            Err(why) => {
                missing.push(why);
                None
            }
        });
        match value {
            Ok(value) if value >= 0.0 => Ok(Measurement { value, measured_at: oldest, of_host }),
            Ok(value) => Err(format!("{} is {value}: a load is not negative", monitor.metric.text())),
            Err(why) if missing.is_empty() => Err(format!("{}: {why}", monitor.metric.text())),
            Err(_) => Err(missing.join("; ")),
        }
    }

    /// Returns the value of a name with its time of measurement, or the reason why there is none.
    pub(super) fn resolve_name(&self, place: usize, name: &str, now: Instant) -> Result<Measurement, String> {
        let member = &self.members[place];
        let own = |value| Measurement { value, measured_at: now, of_host: false };
        if name == CAPACITY {
            return Ok(own(self.settings.members[place].capacity));
        }
        let passive =
            self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive);
        let (fact, counter) = match member.observations.find(name) {
            _ if passive => (None, false),
            Some(fact) => (Some(fact), false),
            None => {
                (name.strip_suffix(PER_SECOND).and_then(|counter| member.observations.find(counter)), true)
            }
        };
        let mut old = None;
        if let Some(fact) = fact {
            let age = now.saturating_duration_since(fact.measured_at);
            match fact.rate {
                _ if age > self.settings.report_lifetime() => {
                    old = Some(format!("`{name}` was last told {} s ago", age.as_secs()));
                }
                _ if !counter => {
                    let of_host = fact.origin.of_host || covers_host(name, &member.observations);
                    return Ok(Measurement { value: fact.value, measured_at: fact.measured_at, of_host });
                }
                Some(rate) => {
                    return Ok(Measurement {
                        value: rate,
                        measured_at: fact.measured_at,
                        of_host: fact.origin.of_host,
                    });
                }
                None => old = Some(format!("`{name}` is known once its counter is told again")),
            }
        }
        let counted = match name {
            "in_flight" => member.local.in_flight(),
            "requests_per_second" => member.local.requests_per_second(),
            "latency" => member.local.latency(now),
            _ => None,
        };
        match (counted, old) {
            (Some(value), _) => Ok(own(value)),
            (None, Some(old)) => Err(old),
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
        place: usize,
        now: Instant,
    ) -> impl Iterator<Item = (&'static str, Measurement)> {
        let read = move |name: &&str| {
            let reads = |expression: &Expression| expression.names().iter().any(|read| read == name);
            **name != *CAPACITY && self.settings.expressions().any(reads)
        };
        let passive =
            self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == MetricSource::Passive);
        let told = move |name: &str| !passive && self.members[place].observations.find(name).is_some();
        LOCAL_METRIC_NAMES
            .into_iter()
            .filter(read)
            .filter(move |name| !told(name))
            .filter_map(move |name| Some((name, self.resolve_name(place, name, now).ok()?)))
    }

    /// Returns the reason why there is no load or weight now.
    pub(super) fn problem(&self, place: usize, now: Instant) -> Option<String> {
        let mut why: Vec<String> = Vec::new();
        why.extend(self.members[place].problem.clone().map(|trouble| format!("its monitor: {trouble}")));
        if self.settings.monitor.is_some() {
            why.extend(self.measure(place, now).err());
        }
        if let Some(weight) = &self.settings.weight {
            let mut missing = Vec::new();
            let value = weight.eval(|name| match self.resolve_name(place, name, now) {
                Ok(figure) => Some(figure.value),
                Err(why) => {
                    missing.push(why);
                    None
                }
            });
            match value {
                Ok(value) if value < 0.0 => why.push(format!("its weight is {value}: below 0")),
                Ok(_) => {}
                Err(error) if missing.is_empty() => why.push(format!("its weight: {error}")),
                Err(_) => why.extend(missing),
            }
        }
        why.dedup();
        (!why.is_empty()).then(|| why.join("; "))
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
fn covers_host(name: &str, facts: &ObservationSet) -> bool {
    let same =
        |fact: &Observation| facts.find(&format!("{name}_host")).is_some_and(|host| host.value == fact.value);
    name.starts_with("host_") || name.ends_with("_host") || facts.find(name).is_some_and(same)
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
