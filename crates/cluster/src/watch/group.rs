//! One group: resolves names in expressions for a member, and computes loads.

use std::time::{Duration, Instant};

use super::{Group, Said};
use crate::facts::{Fact, Facts, Grown, LIMIT_AGE, Origin};
use crate::{Expression, MonitorSettings, Sensed, Source, Usage};

impl Group {
    /// Records reported values of a member. Returns updates, and whether there was room for all values.
    pub(super) fn tell(
        &mut self,
        place: usize,
        values: &[(String, f64)],
        age: Duration,
        origin: Origin,
        now: Instant,
    ) -> (Vec<Said>, bool) {
        let mut room = true;
        for (name, value) in values {
            room &= self.put(place, name, (*value, Grown::Said), age, origin, now);
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
        let mut said: Vec<Said> = if concerned { self.load(place, now) } else { None }.into_iter().collect();
        if values.iter().any(|(name, _)| BUSY.contains(&name.as_str())) {
            said.extend(self.usage(place, now));
        }
        if values.iter().any(|(name, _)| PROCESSORS_BUSY.contains(&name.as_str())) {
            said.extend(self.sensed(place, now));
        }
        (said, room)
    }

    pub(super) fn put(
        &mut self,
        place: usize,
        name: &str,
        told: (f64, Grown),
        age: Duration,
        origin: Origin,
        now: Instant,
    ) -> bool {
        let at = now.checked_sub(age.min(LIMIT_AGE)).unwrap_or(now);
        let life = self.settings.life();
        self.members[place].facts.insert(name, told, at, origin, life)
    }

    /// Returns the interval of a metric that needs the balancer's own figures only.
    pub(super) fn passive(&self) -> Option<Duration> {
        let monitor = self.settings.monitor.as_ref()?;
        let own = |name: &String| is_own(name);
        let told = |name: &String| self.members.iter().any(|member| member.facts.find(name).is_some());
        let names = monitor.metric.names();
        let passive = monitor.source == Source::Passive
            || (names.iter().all(own) && !names.iter().any(|name| name != CAPACITY && told(name)));
        passive.then_some(monitor.interval)
    }

    /// Computes a member's load, if all required figures are known.
    pub(super) fn load(&mut self, place: usize, now: Instant) -> Option<Said> {
        let Measured { value, at, of_host } = self.measure(place, now).ok()?;
        self.members[place].load = Some((value, at));
        Some(Said::Load {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            value,
            age: now.saturating_duration_since(at),
            of_host,
        })
    }

    /// Returns a member's usage, if it reports its requests per second and its utilization. As in gRPC's
    /// proposal A58, the application's own utilization takes precedence over that of the processors.
    pub(super) fn usage(&self, place: usize, now: Instant) -> Option<Said> {
        let facts = &self.members[place].facts;
        let fresh = |name: &&str| {
            let fact = facts.find(name)?;
            let counts = now.saturating_duration_since(fact.at) <= self.settings.life();
            (counts && fact.value >= 0.0).then_some(fact)
        };
        let rps = RATES.iter().find_map(fresh)?;
        let busy = BUSY.iter().filter_map(fresh).find(|fact| fact.value > 0.0)?;
        let eps = fresh(&"eps").map_or(0.0, |fact| fact.value);
        Some(Said::Usage {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            usage: Usage { rps: rps.value, utilization: busy.value, eps },
            age: now.saturating_duration_since(rps.at.min(busy.at)),
        })
    }

    /// Returns the utilization of a member's processors, if the member reports it with their number and the
    /// monitor is not passive.
    pub(super) fn sensed(&self, place: usize, now: Instant) -> Option<Said> {
        if self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == Source::Passive) {
            return None;
        }
        let facts = &self.members[place].facts;
        let fresh = |name: &&str| {
            let fact = facts.find(name)?;
            let counts = now.saturating_duration_since(fact.at) <= self.settings.life();
            (counts && fact.value >= 0.0).then_some(fact)
        };
        let share = PROCESSORS_BUSY.iter().find_map(fresh)?;
        // An agent has sensors for the host and for a control group, and reports the greater value as `cpu`.
        // A program's own report, or a control group's usage, concerns the server alone.
        let whole = fresh(&HOST_BUSY).is_some_and(|host| host.value == share.value);
        let processors = fresh(&PROCESSORS).filter(|fact| fact.value > 0.0)?.value;
        Some(Said::Sensed {
            group: self.settings.name.clone(),
            member: self.settings.members[place].name.clone(),
            sensed: Sensed { share: share.value, processors, whole },
            age: now.saturating_duration_since(share.at),
        })
    }

    /// Evaluates the metric. Returns the value with its time of measurement, or the reason why there is none.
    fn measure(&self, place: usize, now: Instant) -> Result<Measured, String> {
        let Some(monitor) = &self.settings.monitor else { return Err("the group has no monitor".into()) };
        let (mut oldest, mut of_host, mut missing) = (now, false, Vec::new());
        let value = monitor.metric.eval(|name| match self.figure(place, name, now) {
            Ok(figure) => {
                oldest = oldest.min(figure.at);
                of_host |= figure.of_host;
                Some(figure.value)
            }
            Err(why) => {
                missing.push(why);
                None
            }
        });
        match value {
            Ok(value) if value >= 0.0 => Ok(Measured { value, at: oldest, of_host }),
            Ok(value) => Err(format!("{} is {value}: a load is not negative", monitor.metric.text())),
            Err(why) if missing.is_empty() => Err(format!("{}: {why}", monitor.metric.text())),
            Err(_) => Err(missing.join("; ")),
        }
    }

    /// Returns the value of a name with its time of measurement, or the reason why there is none.
    pub(super) fn figure(&self, place: usize, name: &str, now: Instant) -> Result<Measured, String> {
        let member = &self.members[place];
        let own = |value| Measured { value, at: now, of_host: false };
        if name == CAPACITY {
            return Ok(own(self.settings.members[place].capacity));
        }
        let passive = self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == Source::Passive);
        let (fact, counter) = match member.facts.find(name) {
            _ if passive => (None, false),
            Some(fact) => (Some(fact), false),
            None => (name.strip_suffix(PER_SECOND).and_then(|counter| member.facts.find(counter)), true),
        };
        let mut old = None;
        if let Some(fact) = fact {
            let age = now.saturating_duration_since(fact.at);
            match fact.rate {
                _ if age > self.settings.life() => {
                    old = Some(format!("`{name}` was last told {} s ago", age.as_secs()));
                }
                _ if !counter => {
                    let of_host = fact.origin.of_host || of_host(name, &member.facts);
                    return Ok(Measured { value: fact.value, at: fact.at, of_host });
                }
                Some(rate) => {
                    return Ok(Measured { value: rate, at: fact.at, of_host: fact.origin.of_host });
                }
                None => old = Some(format!("`{name}` is known once its counter is told again")),
            }
        }
        let counted = match name {
            "in_flight" => member.own.in_flight(),
            "requests_per_second" => member.own.requests_per_second(),
            "latency" => member.own.latency(now),
            _ => None,
        };
        match (counted, old) {
            (Some(value), _) => Ok(own(value)),
            (None, Some(old)) => Err(old),
            (None, None) if name == "latency" => Err("`latency`: no request has ended lately".into()),
            (None, None) if OWN.contains(&name) => Err(format!("`{name}` is not measured yet")),
            (None, None) if passive => {
                Err(format!("`{name}` is no figure of the balancer's own, and the source is passive"))
            }
            (None, None) => Err(format!("`{name}` was never told")),
        }
    }

    /// Returns the balancer's own figures of a member, except its capacity, that the group's expressions
    /// currently read.
    pub(super) fn own_figures(
        &self,
        place: usize,
        now: Instant,
    ) -> impl Iterator<Item = (&'static str, Measured)> {
        let read = move |name: &&str| {
            let reads = |expression: &Expression| expression.names().iter().any(|read| read == name);
            **name != *CAPACITY && self.settings.expressions().any(reads)
        };
        let passive = self.settings.monitor.as_ref().is_some_and(|monitor| monitor.source == Source::Passive);
        let told = move |name: &str| !passive && self.members[place].facts.find(name).is_some();
        OWN.into_iter()
            .filter(read)
            .filter(move |name| !told(name))
            .filter_map(move |name| Some((name, self.figure(place, name, now).ok()?)))
    }

    /// Returns the reason why there is no load or weight now.
    pub(super) fn trouble(&self, place: usize, now: Instant) -> Option<String> {
        let mut why: Vec<String> = Vec::new();
        why.extend(self.members[place].trouble.clone().map(|trouble| format!("its monitor: {trouble}")));
        if self.settings.monitor.is_some() {
            why.extend(self.measure(place, now).err());
        }
        if let Some(weight) = &self.settings.weight {
            let mut missing = Vec::new();
            let value = weight.eval(|name| match self.figure(place, name, now) {
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
pub(super) struct Measured {
    pub(super) value: f64,
    pub(super) at: Instant,
    /// Whether it covers the member's whole host.
    pub(super) of_host: bool,
}

/// Returns `true` if the name stands for the whole host in agents' reports, whichever host or member was
/// reported. For `cpu` and `memory`, the greater of the host's and a control group's values, this holds if
/// the value is the host's.
fn of_host(name: &str, facts: &Facts) -> bool {
    let same = |fact: &Fact| facts.find(&format!("{name}_host")).is_some_and(|host| host.value == fact.value);
    name.starts_with("host_") || name.ends_with("_host") || facts.find(name).is_some_and(same)
}

const CAPACITY: &str = "capacity";

/// The balancer's own figures, which need no reports.
pub const OWN: [&str; 4] = ["in_flight", "requests_per_second", "latency", CAPACITY];

/// Returns `true` if the name is one of [`OWN`].
pub fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

/// The names of requests per second in reports; the first one takes precedence.
const RATES: [&str; 3] = ["rps_fractional", "rps", "requests_per_second"];

/// Returns `true` if the name stands for requests per second in reports.
pub fn is_rate(name: &str) -> bool {
    RATES.contains(&name)
}

/// The names of a member's utilization; the first one takes precedence.
const BUSY: [&str; 3] = ["application_utilization", "cpu_utilization", "cpu"];

/// The names of the processors' utilization (the first takes precedence), and of their number.
pub(super) const PROCESSORS_BUSY: [&str; 2] = ["cpu", "cpu_utilization"];
const PROCESSORS: &str = "cpus";

/// The name of the processors' utilization over the whole host.
const HOST_BUSY: &str = "cpu_host";

pub(crate) const PER_SECOND: &str = "_per_second";
