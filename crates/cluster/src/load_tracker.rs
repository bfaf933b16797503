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
        let mut updates = Vec::new();
        let mut previous_groups = std::mem::take(&mut self.groups);
        for settings in settings {
            let settings: Arc<GroupSettings> = settings.into();
            let previous = previous_groups.remove(&settings.name);
            let previous = match previous {
                Some(previous) if Arc::ptr_eq(&previous.settings, &settings) => {
                    self.groups.insert(settings.name.clone(), previous);
                    continue;
                }
                previous => previous,
            };
            let (old_settings, old_members) = match previous {
                Some(group) => (Some(group.settings), group.members),
                None => (None, Vec::new()),
            };
            let names =
                old_settings.iter().flat_map(|previous| &previous.members).map(|member| member.name.clone());
            let mut previous_members: BTreeMap<Arc<str>, TrackedMember> = names.zip(old_members).collect();
            // The last load of another metric is meaningless.
            let same_monitor =
                old_settings.as_ref().is_some_and(|previous| previous.monitor == settings.monitor);
            let take_member = |spec: &crate::MemberSettings| {
                let mut member =
                    previous_members.remove(&spec.name).unwrap_or_else(|| TrackedMember::new(now));
                if !same_monitor {
                    (member.load, member.problem) = (None, None);
                }
                member
            };
            let members = settings.members.iter().map(take_member).collect();
            let metric_of = |settings: &GroupSettings| {
                settings.monitor.as_ref().map(|monitor| (monitor.source, monitor.metric.text().to_owned()))
            };
            if old_settings.is_some_and(|previous| metric_of(&previous) != metric_of(&settings)) {
                updates.push(LoadUpdate::MetricChanged { group: settings.name.clone() });
            }
            let names = settings.members.iter().enumerate();
            let names = names.map(|(index, spec)| (spec.name.clone(), index)).collect();
            let addresses = settings.members.iter().enumerate().rev();
            let addresses = addresses.map(|(index, spec)| (spec.address, index)).collect();
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
        updates
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
        let targets = self.member_indices(report.group.as_deref(), &report.member)?;
        let mut updates = Vec::new();
        let (mut rate_limited, mut names_full) = (0, false);
        for (name, index, of_host) in &targets {
            let Some(group) = self.groups.get_mut(name) else { continue };
            match group.members[*index].bucket.take(now) {
                RateVerdict::Accepted => {
                    let origin = ObservationOrigin { source: MetricSource::Push, of_host: *of_host };
                    let outcome = group.record_values(*index, &report.values, age, origin, now);
                    names_full |= !outcome.1;
                    updates.extend(outcome.0);
                }
                verdict => {
                    rate_limited += 1;
                    if verdict == RateVerdict::FloodStarted {
                        let member = group.settings.members[*index].name.clone();
                        updates.push(LoadUpdate::Flood { group: name.clone(), member });
                    }
                }
            }
        }
        // Updates are returned in any case: the caller notifies the balancer, and then the sender.
        match () {
            () if rate_limited == targets.len() => Err(TrackerRejection::RateLimited {
                why: format!("{}: more than 50 reports in a second: report less often", report.member),
                updates,
            }),
            () if names_full => Err(TrackerRejection::Invalid(format!(
                "{}: {MAX_NAMES} names are known of it and it may not have more: report fewer",
                report.member
            ))),
            () => Ok(updates),
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
        let Some(&index) = group.index_by_name.get(member) else { return Vec::new() };
        let valid = values.iter().filter(|(name, value)| is_name(name) && value.is_finite());
        let valid: Vec<(String, f64)> = valid.cloned().collect();
        group.record_values(index, &valid, Duration::ZERO, source.into(), now).0
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
        let Some(&index) = group.index_by_name.get(member) else { return Vec::new() };
        let Some(source) = group.settings.monitor.as_ref().map(|monitor| monitor.source) else {
            return Vec::new();
        };
        match outcome {
            Ok(values) => {
                group.members[index].problem = None;
                let has_cpu =
                    values.iter().any(|sample| CPU_UTILIZATION_NAMES.contains(&sample.name.as_str()));
                for MetricSample { name, value, age, growth } in values {
                    group.insert_value(index, &name, (value, growth), age, source.into(), now);
                }
                let cpu_update = if has_cpu { group.compute_cpu_utilization(index, now) } else { None };
                group
                    .compute_load(index, now)
                    .into_iter()
                    .chain(group.compute_usage(index, now))
                    .chain(cpu_update)
                    .collect()
            }
            Err(error) => {
                group.members[index].problem = Some(error);
                Vec::new()
            }
        }
    }

    /// Returns the groups whose counters [`LoadTracker::record_counters`] needs.
    pub(crate) fn groups_with_counters(&self) -> Vec<Arc<str>> {
        let with_expressions =
            self.groups.values().filter(|group| group.settings.expressions().next().is_some());
        with_expressions.map(|group| group.settings.name.clone()).collect()
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
            if let Some(&index) = group.index_by_name.get(name) {
                group.members[index].local.sample(*counters, now);
            }
        }
        let mut updates = Vec::new();
        let interval = group.passive_interval();
        let is_due = |computed_at: Instant| {
            interval.is_some_and(|interval| now.saturating_duration_since(computed_at) >= interval)
        };
        if interval.is_some() && group.last_computed_at.is_none_or(is_due) {
            group.last_computed_at = Some(now);
            updates.extend((0..group.members.len()).filter_map(|index| group.compute_load(index, now)));
        }
        if let Some(weight) = &group.settings.weight {
            let names = group.settings.members.iter().enumerate();
            let weights = names.map(|(index, spec)| {
                let value = weight.eval(|name| Some(group.resolve_name(index, name, now).ok()?.value)).ok();
                (spec.name.clone(), value)
            });
            let weights = weights.collect();
            updates.push(LoadUpdate::Weights { group: group.settings.name.clone(), weights });
        }
        updates
    }

    /// Returns the observations of a group's members.
    pub(crate) fn observations(&self, group: &str, now: Instant) -> Option<GroupObservations> {
        let group = self.groups.get(group)?;
        let monitor = group.settings.monitor.as_ref().map(|monitor| MonitorExplanation {
            source: monitor.source.name().into(),
            metric: monitor.metric.text().into(),
            interval_seconds: monitor.interval.as_secs_f64(),
        });
        let member_status = |index: usize| {
            let member = &group.members[index];
            let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
            let observations = member.observations.iter().map(|(name, observation)| FactExplanation {
                name: name.into(),
                value: observation.value,
                age_seconds: age(observation.measured_at),
                source: observation.origin.source.name().into(),
            });
            // The balancer's own figures are not reported, but expressions can read them.
            let local_values = group.local_values(index, now).map(|(name, measurement)| FactExplanation {
                name: name.into(),
                value: measurement.value,
                age_seconds: age(measurement.measured_at),
                source: MetricSource::Passive.name().into(),
            });
            MemberObservations {
                name: group.settings.members[index].name.clone(),
                observations: observations.chain(local_values).collect(),
                load: member.load.map(|(value, at)| LoadExplanation { value, age_seconds: age(at) }),
                problem: group.problem(index, now),
                dropped: member.bucket.dropped(),
            }
        };
        Some(GroupObservations {
            monitor,
            weight: group.settings.weight.as_ref().map(|weight| weight.text().to_owned()),
            members: (0..group.members.len()).map(member_status).collect(),
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
        let matching_members = |group: &TrackedGroup| -> Vec<(usize, bool)> {
            let by_address = || group.index_by_address.get(&address?).copied();
            let exact = group.index_by_name.get(member).copied().or_else(by_address);
            match exact {
                Some(index) => vec![(index, false)],
                None => group
                    .indices_by_host
                    .get(&host)
                    .into_iter()
                    .flatten()
                    .map(|index| (*index, true))
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
            let matches = matching_members(group);
            if matches.is_empty() {
                let names: Vec<&str> = group.settings.members.iter().map(|spec| &*spec.name).collect();
                let member = quote_short(member);
                return Err(TrackerRejection::Unknown(format!(
                    "group {name} has no member {member}; it has: {}",
                    join_names(&names)
                )));
            }
            return Ok(matches
                .into_iter()
                .map(|(index, of_host)| (group.settings.name.clone(), index, of_host))
                .collect());
        }
        let matches: Vec<_> = self
            .groups
            .iter()
            .flat_map(|(name, group)| {
                matching_members(group).into_iter().map(|(index, of_host)| (name.clone(), index, of_host))
            })
            .collect();
        if matches.is_empty() {
            let members = self.groups.values().flat_map(|group| &group.settings.members);
            let names: Vec<&str> = members.map(|spec| &*spec.name).collect();
            let member = quote_short(member);
            return Err(TrackerRejection::Unknown(format!(
                "no group has a member {member}; there are: {}",
                join_names(&names)
            )));
        }
        Ok(matches)
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
    for (index, spec) in members.iter().enumerate() {
        let name = spec.name.rsplit_once(':').map_or(&*spec.name, |(host, _)| host);
        let label = spec.host.as_deref().map(host_of);
        let host_names =
            [host_of(name), spec.address.ip().to_canonical().to_string()].into_iter().chain(label);
        for host in host_names.collect::<BTreeSet<_>>() {
            hosts.entry(host).or_default().push(index);
        }
    }
    hosts
}

/// Normalises a host: an address in its shortest form, a name in lower case.
fn host_of(text: &str) -> String {
    let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match unbracketed.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => unbracketed.to_ascii_lowercase(),
    }
}

/// Checks that every name is valid and every value a number.
fn validate(report: &MetricReport) -> Result<(), TrackerRejection> {
    let invalid = |reason: String| Err(TrackerRejection::Invalid(reason));
    if report.values.is_empty() {
        return invalid("no values: give a name and a number".into());
    }
    if report.values.len() > MAX_NAMES {
        return invalid(format!("{} values: give at most {MAX_NAMES}", report.values.len()));
    }
    for (name, value) in &report.values {
        if !is_name(name) {
            return invalid(format!(
                "{} is not a name: letters, digits, `_`, `.` and `:`, a letter first, at most 64 of them",
                quote_short(name)
            ));
        }
        if !value.is_finite() {
            return invalid(format!("{name} is {value}: give a finite number"));
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
fn quote_short(text: &str) -> String {
    let printable = text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    format!("`{}`", printable.take(80).collect::<String>())
}

/// Joins names into a list of readable length.
fn join_names(names: &[&str]) -> String {
    match names.len().checked_sub(20) {
        None | Some(0) => names.join(", "),
        Some(remaining) => format!("{} and {remaining} more", names[..20].join(", ")),
    }
}
