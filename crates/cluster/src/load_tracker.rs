//! The observations of all members, and the loads and weights computed from them. The caller drives it and
//! passes the time as an argument.
//!
//! A name in an expression resolves in this order: `capacity`, as configured; a reported value, unless it is
//! too old or the monitor is `passive`; `NAME_per_second`, the rate of a reported counter; the balancer's own
//! observation (`in_flight`, `requests_per_second`, `latency` in seconds).
//!
//! A load is computed when a figure of its metric arrives, or once per interval if the balancer's own figures
//! suffice. Its age is that of its oldest figure. If a figure is missing there is no load, and the last one
//! ages in the strategy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::status::{FactExplanation, LoadExplanation, MonitorExplanation};

use crate::local_metrics::{LocalMetrics, TrafficCounters};
use crate::observations::{MAX_AGE, MAX_NAMES, MetricSample, ObservationOrigin, ObservationSet};
use crate::scrape::ScrapeResult;
use crate::token_bucket::{RateVerdict, TokenBucket};
use crate::{
    CpuUtilization, Expression, GroupObservations, GroupSettings, MemberObservations, MemberUsage,
    MetricReport, MetricSource, TrackerRejection, is_name,
};

mod group;
#[cfg(test)]
mod tests;

use group::CPU_UTILIZATION_NAMES;
pub(crate) use group::PER_SECOND;
pub use group::{LOCAL_METRIC_NAMES, is_local_metric, is_request_rate};

/// The observations of all groups.
#[derive(Debug, Default)]
pub(crate) struct LoadTracker {
    groups: BTreeMap<Arc<str>, TrackedGroup>,
}

/// Updates for the balancer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LoadUpdate {
    /// A load; `of_host` is set if it covers the member's whole host.
    Load {
        group: Arc<str>,
        member: Arc<str>,
        value: f64,
        age: Duration,
        of_host: bool,
    },
    /// The group's metric has changed.
    MetricChanged {
        group: Arc<str>,
    },
    Usage {
        group: Arc<str>,
        member: Arc<str>,
        usage: MemberUsage,
        age: Duration,
    },
    CpuUtilization {
        group: Arc<str>,
        member: Arc<str>,
        sensed: CpuUtilization,
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
struct TrackedGroup {
    settings: Arc<GroupSettings>,
    /// The members, in the order of the settings.
    members: Vec<TrackedMember>,
    /// The index of each member, by its name.
    index_by_name: BTreeMap<Arc<str>, usize>,
    /// The index of each member, by its address; the first one, if several have it.
    index_by_address: BTreeMap<SocketAddr, usize>,
    /// The indices of a host's members, by its address and by its name as configured.
    indices_by_host: BTreeMap<String, Vec<usize>>,
    /// The last time that loads were computed from the balancer's own figures.
    last_computed_at: Option<Instant>,
}

#[derive(Debug)]
struct TrackedMember {
    observations: ObservationSet,
    bucket: TokenBucket,
    local: LocalMetrics,
    /// The last computed load and its time of measurement.
    load: Option<(f64, Instant)>,
    /// The reason why its monitor does not respond.
    problem: Option<String>,
}

impl LoadTracker {
    /// Applies other settings; members that stay, by name, keep their observations.
    pub(crate) fn update(
        &mut self,
        settings: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>,
        now: Instant,
    ) -> Vec<LoadUpdate> {
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
            let mut kept: BTreeMap<Arc<str>, TrackedMember> = names.zip(old_members).collect();
            // The last load of another metric is meaningless.
            let same = old_settings.as_ref().is_some_and(|old| old.monitor == settings.monitor);
            let member = |spec: &crate::MemberSettings| {
                let mut member = kept.remove(&spec.name).unwrap_or_else(|| TrackedMember::new(now));
                if !same {
                    (member.load, member.problem) = (None, None);
                }
                member
            };
            let members = settings.members.iter().map(member).collect();
            let measures = |settings: &GroupSettings| {
                settings.monitor.as_ref().map(|monitor| (monitor.source, monitor.metric.text().to_owned()))
            };
            if old_settings.is_some_and(|old| measures(&old) != measures(&settings)) {
                said.push(LoadUpdate::MetricChanged { group: settings.name.clone() });
            }
            let names = settings.members.iter().enumerate();
            let names = names.map(|(place, spec)| (spec.name.clone(), place)).collect();
            let addresses = settings.members.iter().enumerate().rev();
            let addresses = addresses.map(|(place, spec)| (spec.address, place)).collect();
            let hosts = hosts(&settings.members);
            let group = TrackedGroup {
                settings,
                members,
                index_by_name: names,
                index_by_address: addresses,
                indices_by_host: hosts,
                last_computed_at: None,
            };
            self.groups.insert(group.settings.name.clone(), group);
        }
        said
    }

    /// Sets another expression for a group's weights, or none.
    pub(crate) fn set_weight_expression(&mut self, group: &str, weight: Option<Expression>) {
        if let Some(group) = self.groups.get_mut(group) {
            Arc::make_mut(&mut group.settings).weight = weight;
        }
    }

    /// Returns the groups.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &GroupSettings> {
        self.groups.values().map(|group| &*group.settings)
    }

    /// Records a report.
    pub(crate) fn record_report(
        &mut self,
        report: &MetricReport,
        now: Instant,
    ) -> Result<Vec<LoadUpdate>, TrackerRejection> {
        validate(report)?;
        let age = age_of(report.age_seconds)?;
        let places = self.member_indices(report.group.as_deref(), &report.member)?;
        let mut said = Vec::new();
        let (mut fast, mut full) = (0, false);
        for (name, place, of_host) in &places {
            let Some(group) = self.groups.get_mut(name) else { continue };
            match group.members[*place].bucket.take(now) {
                RateVerdict::Accepted => {
                    let origin = ObservationOrigin { source: MetricSource::Push, of_host: *of_host };
                    let told = group.record_values(*place, &report.values, age, origin, now);
                    full |= !told.1;
                    said.extend(told.0);
                }
                passage => {
                    fast += 1;
                    if passage == RateVerdict::FloodStarted {
                        let member = group.settings.members[*place].name.clone();
                        said.push(LoadUpdate::Flood { group: name.clone(), member });
                    }
                }
            }
        }
        // Updates are returned in any case: the caller notifies the balancer, and then the sender.
        match () {
            () if fast == places.len() => Err(TrackerRejection::RateLimited {
                why: format!("{}: more than 50 reports in a second: report less often", report.member),
                updates: said,
            }),
            () if full => Err(TrackerRejection::Invalid(format!(
                "{}: {MAX_NAMES} names are known of it and it may not have more: report fewer",
                report.member
            ))),
            () => Ok(said),
        }
    }

    /// Records the valid values of a member from another source.
    pub(crate) fn observe(
        &mut self,
        group: &str,
        member: &str,
        values: &[(String, f64)],
        source: MetricSource,
        now: Instant,
    ) -> Vec<LoadUpdate> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        let Some(&place) = group.index_by_name.get(member) else { return Vec::new() };
        let sound = values.iter().filter(|(name, value)| is_name(name) && value.is_finite());
        let sound: Vec<(String, f64)> = sound.cloned().collect();
        group.record_values(place, &sound, Duration::ZERO, source.into(), now).0
    }

    /// Records the response of a monitor.
    pub(crate) fn record_scrape(
        &mut self,
        group: &str,
        member: &str,
        outcome: ScrapeResult,
        now: Instant,
    ) -> Vec<LoadUpdate> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        let Some(&place) = group.index_by_name.get(member) else { return Vec::new() };
        let Some(source) = group.settings.monitor.as_ref().map(|monitor| monitor.source) else {
            return Vec::new();
        };
        match outcome {
            Ok(values) => {
                group.members[place].problem = None;
                let busy = values.iter().any(|figure| CPU_UTILIZATION_NAMES.contains(&figure.name.as_str()));
                for MetricSample { name, value, age, growth: grown } in values {
                    group.insert_value(place, &name, (value, grown), age, source.into(), now);
                }
                let sensed = if busy { group.compute_cpu_utilization(place, now) } else { None };
                group
                    .compute_load(place, now)
                    .into_iter()
                    .chain(group.compute_usage(place, now))
                    .chain(sensed)
                    .collect()
            }
            Err(why) => {
                group.members[place].problem = Some(why);
                Vec::new()
            }
        }
    }

    /// Returns the groups whose counters [`LoadTracker::record_counters`] needs.
    pub(crate) fn groups_with_counters(&self) -> Vec<Arc<str>> {
        let watched = self.groups.values().filter(|group| group.settings.expressions().next().is_some());
        watched.map(|group| group.settings.name.clone()).collect()
    }

    /// Records the balancer's own counters of a group, and computes the loads and weights that are due.
    pub(crate) fn record_counters(
        &mut self,
        group: &str,
        counters: &[(Arc<str>, TrafficCounters)],
        now: Instant,
    ) -> Vec<LoadUpdate> {
        let Some(group) = self.groups.get_mut(group) else { return Vec::new() };
        for (name, counters) in counters {
            if let Some(&place) = group.index_by_name.get(name) {
                group.members[place].local.sample(*counters, now);
            }
        }
        let mut said = Vec::new();
        let interval = group.passive_interval();
        let due = |looked: Instant| {
            interval.is_some_and(|interval| now.saturating_duration_since(looked) >= interval)
        };
        if interval.is_some() && group.last_computed_at.is_none_or(due) {
            group.last_computed_at = Some(now);
            said.extend((0..group.members.len()).filter_map(|place| group.compute_load(place, now)));
        }
        if let Some(weight) = &group.settings.weight {
            let names = group.settings.members.iter().enumerate();
            let weights = names.map(|(place, spec)| {
                let value = weight.eval(|name| Some(group.resolve_name(place, name, now).ok()?.value)).ok();
                (spec.name.clone(), value)
            });
            let weights = weights.collect();
            said.push(LoadUpdate::Weights { group: group.settings.name.clone(), weights });
        }
        said
    }

    /// Returns the observations of a group's members.
    pub(crate) fn observations(&self, group: &str, now: Instant) -> Option<GroupObservations> {
        let group = self.groups.get(group)?;
        let monitor = group.settings.monitor.as_ref().map(|monitor| MonitorExplanation {
            source: monitor.source.name().into(),
            metric: monitor.metric.text().into(),
            interval_seconds: monitor.interval.as_secs_f64(),
        });
        let member = |place: usize| {
            let member = &group.members[place];
            let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
            let facts = member.observations.iter().map(|(name, fact)| FactExplanation {
                name: name.into(),
                value: fact.value,
                age_seconds: age(fact.measured_at),
                source: fact.origin.source.name().into(),
            });
            // The balancer's own figures are not reported, but expressions can read them.
            let counted = group.local_values(place, now).map(|(name, figure)| FactExplanation {
                name: name.into(),
                value: figure.value,
                age_seconds: age(figure.measured_at),
                source: MetricSource::Passive.name().into(),
            });
            MemberObservations {
                name: group.settings.members[place].name.clone(),
                observations: facts.chain(counted).collect(),
                load: member.load.map(|(value, at)| LoadExplanation { value, age_seconds: age(at) }),
                problem: group.problem(place, now),
                dropped: member.bucket.dropped(),
            }
        };
        Some(GroupObservations {
            monitor,
            weight: group.settings.weight.as_ref().map(|weight| weight.text().to_owned()),
            members: (0..group.members.len()).map(member).collect(),
        })
    }

    /// Returns the members that a report is about, in the named group or in all: index, and whether the host
    /// was named.
    fn member_indices(
        &self,
        group: Option<&str>,
        member: &str,
    ) -> Result<Vec<(Arc<str>, usize, bool)>, TrackerRejection> {
        let address: Option<SocketAddr> = member.parse().ok();
        let host = host_of(member);
        // Members match by name or by address: an agent knows its address, not the configured name. A host
        // stands for all its members: its load counts in every group alike.
        let place = |group: &TrackedGroup| -> Vec<(usize, bool)> {
            let by_address = || group.index_by_address.get(&address?).copied();
            let one = group.index_by_name.get(member).copied().or_else(by_address);
            match one {
                Some(place) => vec![(place, false)],
                None => group
                    .indices_by_host
                    .get(&host)
                    .into_iter()
                    .flatten()
                    .map(|place| (*place, true))
                    .collect(),
            }
        };
        if let Some(name) = group {
            let Some(group) = self.groups.get(name) else {
                let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
                return Err(TrackerRejection::Unknown(format!(
                    "no group {}; there are: {}",
                    quote_short(name),
                    join_names(&names)
                )));
            };
            let found = place(group);
            if found.is_empty() {
                let names: Vec<&str> = group.settings.members.iter().map(|spec| &*spec.name).collect();
                let member = quote_short(member);
                return Err(TrackerRejection::Unknown(format!(
                    "group {name} has no member {member}; it has: {}",
                    join_names(&names)
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
            let member = quote_short(member);
            return Err(TrackerRejection::Unknown(format!(
                "no group has a member {member}; there are: {}",
                join_names(&names)
            )));
        }
        Ok(found)
    }
}

impl TrackedMember {
    fn new(now: Instant) -> Self {
        Self {
            observations: ObservationSet::default(),
            bucket: TokenBucket::new(now),
            local: LocalMetrics::default(),
            load: None,
            problem: None,
        }
    }
}

/// Returns the indices of each host's members.
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

/// Normalises a host: an address in its shortest form, a name in lower case.
fn host_of(text: &str) -> String {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => bare.to_ascii_lowercase(),
    }
}

/// Checks that every name is valid and every value a number.
fn validate(report: &MetricReport) -> Result<(), TrackerRejection> {
    let wrong = |why: String| Err(TrackerRejection::Invalid(why));
    if report.values.is_empty() {
        return wrong("no values: give a name and a number".into());
    }
    if report.values.len() > MAX_NAMES {
        return wrong(format!("{} values: give at most {MAX_NAMES}", report.values.len()));
    }
    for (name, value) in &report.values {
        if !is_name(name) {
            return wrong(format!(
                "{} is not a name: letters, digits, `_`, `.` and `:`, a letter first, at most 64 of them",
                quote_short(name)
            ));
        }
        if !value.is_finite() {
            return wrong(format!("{name} is {value}: give a finite number"));
        }
    }
    Ok(())
}

fn age_of(seconds: Option<f64>) -> Result<Duration, TrackerRejection> {
    let seconds = seconds.unwrap_or(0.0);
    if seconds.is_nan() {
        return Err(TrackerRejection::Invalid("age_seconds is not a number".into()));
    }
    Ok(Duration::from_secs_f64(seconds.clamp(0.0, MAX_AGE.as_secs_f64())))
}

/// Quotes external text for a message.
fn quote_short(word: &str) -> String {
    let plain = word.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    format!("`{}`", plain.take(80).collect::<String>())
}

/// Joins names into a list of readable length.
fn join_names(names: &[&str]) -> String {
    match names.len().checked_sub(20) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..20].join(", ")),
    }
}
