//! What is known of every member, and the loads and weights that are made of it: a value driven from outside, with
//! the time as an argument.
//!
//! A name in an expression is, in this order: `capacity`, as configured; what was told, unless it is too old or
//! the monitor is `passive`; `NAME_per_second`, the rate of a counter that was told; what the balancer sees itself
//! (`in_flight`, `requests_per_second`, `latency` in seconds).
//!
//! A load is made when a figure of its metric comes in, or once per interval if the balancer's own figures are all
//! it needs. It is as old as the oldest figure in it. Where a figure is missing there is no load, and the strategy
//! sees how the last one ages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::status::{FactExplanation, LoadExplanation, MonitorExplanation};

use crate::bucket::{Bucket, Passage};
use crate::facts::{Facts, Figure, LIMIT_AGE, LIMIT_NAMES, Origin};
use crate::own::{Counters, Own};
use crate::pull::Answer;
use crate::{Expression, GroupSettings, Known, MemberKnown, Refusal, Report, Sensed, Source, Usage, is_name};

mod group;
#[cfg(test)]
mod tests;

pub(crate) use group::PER_SECOND;
use group::PROCESSORS_BUSY;
pub use group::{OWN, is_own, is_rate};

/// Everything that is known.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    groups: BTreeMap<Arc<str>, Group>,
}

/// What the balancer is to be told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// Of all that goes on at the member's host, if so.
    Load {
        group: Arc<str>,
        member: Arc<str>,
        value: f64,
        age: Duration,
        of_host: bool,
    },
    /// What loads are measured by is another thing from now on.
    Anew {
        group: Arc<str>,
    },
    Usage {
        group: Arc<str>,
        member: Arc<str>,
        usage: Usage,
        age: Duration,
    },
    Sensed {
        group: Arc<str>,
        member: Arc<str>,
        sensed: Sensed,
        age: Duration,
    },
    Weights {
        group: Arc<str>,
        weights: Vec<(Arc<str>, Option<f64>)>,
    },
    Flood {
        group: Arc<str>,
        member: Arc<str>,
    },
}

#[derive(Debug)]
struct Group {
    settings: Arc<GroupSettings>,
    /// In the order of the settings.
    members: Vec<Member>,
    /// Where a member is, by its name.
    names: BTreeMap<Arc<str>, usize>,
    /// Where a member is, by its address; the first one, if several have it.
    addresses: BTreeMap<SocketAddr, usize>,
    /// Where the members of a host are, by its address and by its name as configured.
    hosts: BTreeMap<String, Vec<usize>>,
    /// When loads were last made of the balancer's own figures.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    facts: Facts,
    bucket: Bucket,
    own: Own,
    /// The last load that was made, and when it was measured.
    load: Option<(f64, Instant)>,
    /// Why its monitor does not answer.
    trouble: Option<String>,
}

impl Watch {
    /// Takes other settings; members that stay, by name, keep what is known of them.
    pub(crate) fn update(
        &mut self,
        settings: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>,
        now: Instant,
    ) -> Vec<Said> {
        let mut said = Vec::new();
        let mut before = std::mem::take(&mut self.groups);
        for settings in settings {
            let settings: Arc<GroupSettings> = settings.into();
            let old = before.remove(&settings.name);
            let old = match old {
                Some(old) if Arc::ptr_eq(&old.settings, &settings) => {
                    self.groups.insert(settings.name.clone(), old);
                    continue;
                }
                old => old,
            };
            let (old_settings, old_members) = match old {
                Some(group) => (Some(group.settings), group.members),
                None => (None, Vec::new()),
            };
            let names = old_settings.iter().flat_map(|old| &old.members).map(|member| member.name.clone());
            let mut kept: BTreeMap<Arc<str>, Member> = names.zip(old_members).collect();
            // Of another metric, the last load says nothing.
            let same = old_settings.as_ref().is_some_and(|old| old.monitor == settings.monitor);
            let member = |spec: &crate::MemberSettings| {
                let mut member = kept.remove(&spec.name).unwrap_or_else(|| Member::new(now));
                if !same {
                    (member.load, member.trouble) = (None, None);
                }
                member
            };
            let members = settings.members.iter().map(member).collect();
            let measures = |settings: &GroupSettings| {
                settings.monitor.as_ref().map(|monitor| (monitor.source, monitor.metric.text().to_owned()))
            };
            if old_settings.is_some_and(|old| measures(&old) != measures(&settings)) {
                said.push(Said::Anew { group: settings.name.clone() });
            }
            let names = settings.members.iter().enumerate();
            let names = names.map(|(place, spec)| (spec.name.clone(), place)).collect();
            let addresses = settings.members.iter().enumerate().rev();
            let addresses = addresses.map(|(place, spec)| (spec.address, place)).collect();
            let hosts = hosts(&settings.members);
            let group = Group { settings, members, names, addresses, hosts, looked: None };
            self.groups.insert(group.settings.name.clone(), group);
        }
        said
    }

    /// Takes another expression for a group's weights, or none.
    pub(crate) fn weigh(&mut self, group: &str, weight: Option<Expression>) {
        if let Some(group) = self.groups.get_mut(group) {
            Arc::make_mut(&mut group.settings).weight = weight;
        }
    }

    /// The groups.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &GroupSettings> {
        self.groups.values().map(|group| &*group.settings)
    }

    /// Takes a report.
    pub(crate) fn report(&mut self, report: &Report, now: Instant) -> Result<Vec<Said>, Refusal> {
        check(report)?;
        let age = age_of(report.age_seconds)?;
        let places = self.places(report.group.as_deref(), &report.member)?;
        let mut said = Vec::new();
        let (mut fast, mut full) = (0, false);
        for (name, place, of_host) in &places {
            let Some(group) = self.groups.get_mut(name) else { continue };
            match group.members[*place].bucket.take(now) {
                Passage::Free => {
                    let origin = Origin { source: Source::Push, of_host: *of_host };
                    let told = group.tell(*place, &report.values, age, origin, now);
                    full |= !told.1;
                    said.extend(told.0);
                }
                passage => {
                    fast += 1;
                    if passage == Passage::Flood {
                        let member = group.settings.members[*place].name.clone();
                        said.push(Said::Flood { group: name.clone(), member });
                    }
                }
            }
        }
        // What happened is told in any case: the caller tells the balancer, and then the sender.
        match () {
            () if fast == places.len() => Err(Refusal::TooFast {
                why: format!("{}: more than 50 reports in a second: report less often", report.member),
                said,
            }),
            () if full => Err(Refusal::Wrong(format!(
                "{}: {LIMIT_NAMES} names are known of it and it may not have more: report fewer",
                report.member
            ))),
            () => Ok(said),
        }
    }

    /// Takes what was found out of a member, as far as it can be used.
    pub(crate) fn observe(
        &mut self,
        group: &str,
        member: &str,
        values: &[(String, f64)],
        source: Source,
        now: Instant,
    ) -> Vec<Said> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        let Some(&place) = group.names.get(member) else { return Vec::new() };
        let sound = values.iter().filter(|(name, value)| is_name(name) && value.is_finite());
        let sound: Vec<(String, f64)> = sound.cloned().collect();
        group.tell(place, &sound, Duration::ZERO, source.into(), now).0
    }

    /// Takes what a monitor answered.
    pub(crate) fn pulled(&mut self, group: &str, member: &str, outcome: Answer, now: Instant) -> Vec<Said> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        let Some(&place) = group.names.get(member) else { return Vec::new() };
        let Some(source) = group.settings.monitor.as_ref().map(|monitor| monitor.source) else {
            return Vec::new();
        };
        match outcome {
            Ok(values) => {
                group.members[place].trouble = None;
                let busy = values.iter().any(|figure| PROCESSORS_BUSY.contains(&figure.name.as_str()));
                for Figure { name, value, age, grown } in values {
                    group.put(place, &name, (value, grown), age, source.into(), now);
                }
                let sensed = if busy { group.sensed(place, now) } else { None };
                group.load(place, now).into_iter().chain(group.usage(place, now)).chain(sensed).collect()
            }
            Err(why) => {
                group.members[place].trouble = Some(why);
                Vec::new()
            }
        }
    }

    /// Groups whose counters [`Watch::look`] wants to see.
    pub(crate) fn watched(&self) -> Vec<Arc<str>> {
        let watched = self.groups.values().filter(|group| group.settings.expressions().next().is_some());
        watched.map(|group| group.settings.name.clone()).collect()
    }

    /// Takes the balancer's own counters of a group; makes what follows from the passing of time.
    pub(crate) fn look(&mut self, group: &str, counters: &[(Arc<str>, Counters)], now: Instant) -> Vec<Said> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        for (name, counters) in counters {
            if let Some(&place) = group.names.get(name) {
                group.members[place].own.look(*counters, now);
            }
        }
        let mut said = Vec::new();
        let interval = group.passive();
        let due = |looked: Instant| {
            interval.is_some_and(|interval| now.saturating_duration_since(looked) >= interval)
        };
        if interval.is_some() && group.looked.is_none_or(due) {
            group.looked = Some(now);
            said.extend((0..group.members.len()).filter_map(|place| group.load(place, now)));
        }
        if let Some(weight) = &group.settings.weight {
            let names = group.settings.members.iter().enumerate();
            let weights = names.map(|(place, spec)| {
                let value = weight.eval(|name| Some(group.figure(place, name, now).ok()?.value)).ok();
                (spec.name.clone(), value)
            });
            let weights = weights.collect();
            said.push(Said::Weights { group: group.settings.name.clone(), weights });
        }
        said
    }

    /// What is known of a group's members.
    pub(crate) fn known(&self, group: &str, now: Instant) -> Option<Known> {
        let group = self.groups.get(group)?;
        let monitor = group.settings.monitor.as_ref().map(|monitor| MonitorExplanation {
            source: monitor.source.name().into(),
            metric: monitor.metric.text().into(),
            interval_seconds: monitor.interval.as_secs_f64(),
        });
        let member = |place: usize| {
            let member = &group.members[place];
            let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
            let facts = member.facts.iter().map(|(name, fact)| FactExplanation {
                name: name.into(),
                value: fact.value,
                age_seconds: age(fact.at),
                source: fact.origin.source.name().into(),
            });
            // What the balancer knows by itself is told by nobody, and expressions read it all the same.
            let counted = group.own_figures(place, now).map(|(name, figure)| FactExplanation {
                name: name.into(),
                value: figure.value,
                age_seconds: age(figure.at),
                source: Source::Passive.name().into(),
            });
            MemberKnown {
                name: group.settings.members[place].name.clone(),
                facts: facts.chain(counted).collect(),
                load: member.load.map(|(value, at)| LoadExplanation { value, age_seconds: age(at) }),
                trouble: group.trouble(place, now),
                dropped: member.bucket.dropped(),
            }
        };
        Some(Known {
            monitor,
            weight: group.settings.weight.as_ref().map(|weight| weight.text().to_owned()),
            members: (0..group.members.len()).map(member).collect(),
        })
    }

    /// Where a member is: in the group that is named, or else in all that have it; and is it by its host that it is meant?
    fn places(&self, group: Option<&str>, member: &str) -> Result<Vec<(Arc<str>, usize, bool)>, Refusal> {
        let address: Option<SocketAddr> = member.parse().ok();
        let host = host_of(member);
        // By what it is called, or by where it is: an agent knows its address, not what we call it. Of a host are all
        // that are there: what the host works on counts in every group alike.
        let place = |group: &Group| -> Vec<(usize, bool)> {
            let by_address = || group.addresses.get(&address?).copied();
            let one = group.names.get(member).copied().or_else(by_address);
            match one {
                Some(place) => vec![(place, false)],
                None => group.hosts.get(&host).into_iter().flatten().map(|place| (*place, true)).collect(),
            }
        };
        if let Some(name) = group {
            let Some(group) = self.groups.get(name) else {
                let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
                return Err(Refusal::Unknown(format!(
                    "no group {}; there are: {}",
                    short(name),
                    some(&names)
                )));
            };
            let found = place(group);
            if found.is_empty() {
                let names: Vec<&str> = group.settings.members.iter().map(|spec| &*spec.name).collect();
                let member = short(member);
                return Err(Refusal::Unknown(format!(
                    "group {name} has no member {member}; it has: {}",
                    some(&names)
                )));
            }
            return Ok(found
                .into_iter()
                .map(|(place, of_host)| (group.settings.name.clone(), place, of_host))
                .collect());
        }
        let found: Vec<_> = self
            .groups
            .iter()
            .flat_map(|(name, group)| {
                place(group).into_iter().map(|(place, of_host)| (name.clone(), place, of_host))
            })
            .collect();
        if found.is_empty() {
            let all = self.groups.values().flat_map(|group| &group.settings.members);
            let names: Vec<&str> = all.map(|spec| &*spec.name).collect();
            let member = short(member);
            return Err(Refusal::Unknown(format!(
                "no group has a member {member}; there are: {}",
                some(&names)
            )));
        }
        Ok(found)
    }
}

impl Member {
    fn new(now: Instant) -> Self {
        Self {
            facts: Facts::default(),
            bucket: Bucket::new(now),
            own: Own::default(),
            load: None,
            trouble: None,
        }
    }
}

/// Where the members of each host are.
fn hosts(members: &[crate::MemberSettings]) -> BTreeMap<String, Vec<usize>> {
    let mut hosts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, spec) in members.iter().enumerate() {
        let name = spec.name.rsplit_once(':').map_or(&*spec.name, |(host, _)| host);
        let label = spec.host.as_deref().map(host_of);
        let places = [host_of(name), spec.address.ip().to_canonical().to_string()].into_iter().chain(label);
        for host in places.collect::<BTreeSet<_>>() {
            hosts.entry(host).or_default().push(place);
        }
    }
    hosts
}

/// A host as it is looked for: an address in its shortest form, a name in lower case.
fn host_of(text: &str) -> String {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => bare.to_ascii_lowercase(),
    }
}

/// Is every name a name and every value a number?
fn check(report: &Report) -> Result<(), Refusal> {
    let wrong = |why: String| Err(Refusal::Wrong(why));
    if report.values.is_empty() {
        return wrong("no values: give a name and a number".into());
    }
    if report.values.len() > LIMIT_NAMES {
        return wrong(format!("{} values: give at most {LIMIT_NAMES}", report.values.len()));
    }
    for (name, value) in &report.values {
        if !is_name(name) {
            return wrong(format!(
                "{} is not a name: letters, digits, `_`, `.` and `:`, a letter first, at most 64 of them",
                short(name)
            ));
        }
        if !value.is_finite() {
            return wrong(format!("{name} is {value}: give a finite number"));
        }
    }
    Ok(())
}

fn age_of(seconds: Option<f64>) -> Result<Duration, Refusal> {
    let seconds = seconds.unwrap_or(0.0);
    if seconds.is_nan() {
        return Err(Refusal::Wrong("age_seconds is not a number".into()));
    }
    Ok(Duration::from_secs_f64(seconds.clamp(0.0, LIMIT_AGE.as_secs_f64())))
}

/// A word from outside as it may stand in a message.
fn short(word: &str) -> String {
    let plain = word.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    format!("`{}`", plain.take(80).collect::<String>())
}

/// A list that stays readable.
fn some(names: &[&str]) -> String {
    match names.len().checked_sub(20) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..20].join(", ")),
    }
}
