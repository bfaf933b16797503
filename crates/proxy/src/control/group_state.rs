//! The slow path's state of a group: its analyzer, and counters of its members.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{Analyzer, Member, MemberId, MemberSpec, MemberState, MemberTraffic, Time};

use super::slow_members::ResponseTimes;
use super::{EventLog, SheddingTracker, SlowMembers};
use crate::GroupSettings;
use crate::control::drain_hook::HookTracker;
use crate::control::history::{GroupHistory, MAX_TIMED};
use crate::control::idle_backoff::IdleBackoff;
use crate::control::load_line::{GroupLoadLine, MIDDLES};
use crate::control::publication::{draining_plan, publication};
use crate::control::shared_hosts::MemberHosts;
use crate::control::status_report;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::group::{ControlChannels, MemberRecord, PublishedPlan, SharedGroup};
use crate::upstream::pool::process_seed;
use crate::upstream::rebind_events::{self, RebindTargets};
use crate::upstream::side_car::HostMeter;

/// The slow path's state of a group.
pub(crate) struct GroupState {
    pub(crate) analyzer: Analyzer,
    pub(crate) group: Arc<SharedGroup>,
    pub(crate) settings: Arc<GroupSettings>,
    /// The settings as last given: equal to `settings`, but perhaps another allocation.
    pub(crate) configured: Arc<GroupSettings>,
    pub(super) records: BTreeMap<MemberId, Arc<MemberRecord>>,
    /// The sessions that left members, as far as events have reported them.
    pub(crate) reported_moves: BTreeMap<MemberId, u64>,
    pub(crate) shedding: SheddingTracker,
    pub(crate) slow_members: SlowMembers,
    ids: BTreeMap<Arc<str>, MemberId>,
    pub(crate) hooks: HookTracker,
    pub(crate) load_line: GroupLoadLine,
    pub(crate) history: GroupHistory,
    /// The hosts of the members.
    pub(crate) hosts: MemberHosts,
    /// Whether a listener binds clients in such a way that an alert moves them.
    pub(crate) on_demand: bool,
    /// Whether a client holds a lease.
    pub(crate) has_leases: bool,
    /// The time for which the group has been idle.
    pub(crate) idle_backoff: IdleBackoff,
    /// The time of the next traffic sample.
    next_sample: Time,
}

impl GroupState {
    pub(crate) fn new(
        settings: Arc<GroupSettings>,
        cores: usize,
        channels: ControlChannels,
        host: &Arc<HostMeter>,
        idle_backoff: IdleBackoff,
        now: Time,
    ) -> Self {
        let mut analyzer = Analyzer::new(settings.spec.clone(), now);
        analyzer.set_balancer_seed(process_seed());
        analyzer.refill_buckets(settings.max_rate, now);
        let mut records = BTreeMap::new();
        let initial_plan = publication(&mut analyzer, &mut records, &settings, cores, now);
        let initial_plan = initial_plan.unwrap_or_else(|| PublishedPlan {
            plan: plimsoll_brain::Plan::new(settings.spec.strategy, settings.spec.params.clone(), Vec::new()),
            records: Vec::new(),
            others: Vec::new(),
            draining: Vec::new(),
            draining_plan: None,
            settings: Arc::clone(&settings),
        });
        let group = SharedGroup::new(initial_plan, cores, channels, host);
        let ids = ids(&analyzer);
        let hosts = MemberHosts::new(&analyzer, &settings);
        Self {
            analyzer,
            group,
            configured: Arc::clone(&settings),
            settings,
            records,
            reported_moves: BTreeMap::new(),
            shedding: SheddingTracker::default(),
            slow_members: SlowMembers::default(),
            ids,
            hooks: HookTracker::default(),
            load_line: GroupLoadLine::default(),
            history: GroupHistory::default(),
            hosts,
            on_demand: false,
            has_leases: false,
            idle_backoff,
            next_sample: now,
        }
    }

    /// Applies other settings; members that stay keep their state and counters.
    pub(crate) fn update(&mut self, settings: Arc<GroupSettings>, cores: usize, now: Time) {
        self.idle_backoff.wake();
        self.analyzer.update(settings.spec.clone(), now);
        self.analyzer.refill_buckets(settings.max_rate, now);
        self.ids = ids(&self.analyzer);
        self.hosts = MemberHosts::new(&self.analyzer, &settings);
        (self.settings, self.configured) = (Arc::clone(&settings), settings);
        let next_plan = publication(&mut self.analyzer, &mut self.records, &self.settings, cores, now);
        let next_plan = next_plan.unwrap_or_else(|| {
            let previous = self.group.published();
            PublishedPlan {
                plan: previous.plan.clone(),
                records: previous.records.clone(),
                others: previous.others.clone(),
                draining: previous.draining.clone(),
                draining_plan: draining_plan(&self.analyzer, &self.records, &self.settings, &previous.plan),
                settings: Arc::clone(&self.settings),
            }
        });
        self.group.publish(next_plan);
    }

    /// Publishes a new plan if there is one, and writes the events.
    pub(crate) fn publish_changes(&mut self, cores: usize, now: Time, event_log: &mut EventLog) {
        if let Some(next_plan) =
            publication(&mut self.analyzer, &mut self.records, &self.settings, cores, now)
        {
            self.group.publish(next_plan);
        }
        while let Some(event) = self.analyzer.poll_event() {
            event_log.write(event);
        }
    }

    pub(crate) fn id(&self, member: &str) -> Option<MemberId> {
        self.ids.get(member).copied()
    }

    /// Returns the member at an address, or all members at a host.
    pub(super) fn members_at(&self, address_text: &str) -> Vec<MemberId> {
        let ip_text =
            address_text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address_text);
        let (address, ip) = (address_text.parse::<SocketAddr>().ok(), ip_text.parse::<IpAddr>().ok());
        let is_at = |spec: &MemberSpec| {
            let host = spec.name.rsplit_once(':').map_or(&*spec.name, |(host, _)| host);
            match (address, ip) {
                (Some(address), _) => spec.address == address,
                (None, Some(ip)) => spec.address.ip().to_canonical() == ip.to_canonical(),
                (None, None) => host.eq_ignore_ascii_case(address_text),
            }
        };
        self.analyzer.members().filter(|(_, spec, _)| is_at(spec)).map(|(id, ..)| id).collect()
    }

    pub(crate) fn record(&self, member: MemberId) -> Option<&Arc<MemberRecord>> {
        self.records.get(&member)
    }

    /// Writes an event for each member whose sessions moved since the last call, with their targets.
    pub(super) fn report_moves(&mut self, event_log: &mut EventLog) {
        self.reported_moves.retain(|member, _| self.records.contains_key(member));
        for (id, record) in &self.records {
            if status_report::moved_sessions(record)
                == self.reported_moves.get(id).copied().unwrap_or_default()
            {
                continue;
            }
            let reported = self.reported_moves.entry(*id).or_default();
            // A core may be between counting a session and recording its target; then the next call reports
            // it.
            let mut targets = RebindTargets::new();
            record.own_counters().for_each(|counters| counters.rebinds.drain_into(&mut targets));
            record.leases.rebinds.drain_into(&mut targets);
            if targets.is_empty() {
                continue;
            }
            *reported = reported.wrapping_add(targets.values().sum());
            let reported_total = *reported;
            let name_of = |wanted_id: MemberId| {
                self.analyzer
                    .members()
                    .find(|(id, ..)| *id == wanted_id)
                    .map(|(_, spec, _)| spec.name.to_string())
            };
            let alert = self.analyzer.last_alert(*id);
            let member_name = name_of(*id).unwrap_or_default();
            event_log.write(rebind_events::rebind_event(
                (&self.group.name, &member_name),
                &targets,
                alert,
                reported_total,
                name_of,
            ));
        }
    }

    /// Writes an event if shedding has begun or ended since the last call.
    pub(super) fn report_shedding(&mut self, now: Time, event_log: &mut EventLog) {
        let rejected = SheddingTracker::REASONS.map(|reason| self.group.rejected(reason));
        let all_counters = self.records.values().flat_map(|record| record.own_counters());
        let completed = all_counters.map(|counters| counters.requests.value()).fold(0, u64::wrapping_add);
        let in_flight = self.analyzer.members().map(|(_, _, vitals)| vitals.in_flight()).sum();
        if let Some(mut event) = self.shedding.sample((rejected, completed), in_flight, &self.group.name, now)
        {
            let spec = &self.settings.spec;
            let rejects_at_limit =
                spec.params.get(spec.strategy, "reject").is_some_and(|reject| reject > 0.0);
            if rejects_at_limit && event.kind == plimsoll_brain::EventKind::Shedding {
                event.why.push_str(", or their loads are at `reject`");
            }
            event_log.write(event);
        }
        let recent_rejections = self.shedding.recent_count();
        if recent_rejections > 0 {
            self.shedding.attribute(recent_rejections, &self.members_without_room(now));
        }
    }

    /// Returns the members that take no request at the moment, each with the reason.
    fn members_without_room(&self, now: Time) -> Vec<(MemberId, &'static str)> {
        let published = self.group.published();
        let planned_members: BTreeMap<MemberId, &Member> =
            published.plan.members().iter().map(|member| (member.id, member)).collect();
        let rejection_reason = |(id, state): (MemberId, MemberState)| {
            let reason = match planned_members.get(&id) {
                Some(member) => published.plan.refusal_reason(member, now)?.label(),
                None => state.glyph_and_label().1,
            };
            Some((id, reason))
        };
        self.analyzer.states().filter_map(rejection_reason).collect()
    }

    /// Writes events for members that have become slow, or no longer are, since the last call. `requests` is
    /// `true` if response times show a member's speed.
    pub(super) fn report_slow(&mut self, carries_requests: bool, now: Time, event_log: &mut EventLog) {
        let response_times = |(id, spec, _): (MemberId, &MemberSpec, _)| {
            let (responses, median) = self.history.response_times(id, &MIDDLES);
            let median = median.filter(|_| carries_requests);
            ResponseTimes { member: id, name: Arc::clone(&spec.name), responses, median }
        };
        let all_response_times: Vec<ResponseTimes> =
            self.analyzer.members().take(MAX_TIMED).map(response_times).collect();
        for event in self.slow_members.compare(&all_response_times, &self.group.name, now) {
            event_log.write(event);
        }
    }

    /// Restores the slow members that the previous process recorded.
    pub(crate) fn resume_slow(&mut self, event_log: &EventLog, now: Time) {
        let slow_names = event_log.active_members(&self.group.name, SlowMembers::KINDS);
        let slow_ids: Vec<MemberId> = slow_names.iter().filter_map(|name| self.id(name)).collect();
        self.slow_members.resume(slow_ids, now);
    }

    pub(super) fn totals(&self) -> Vec<(MemberId, MemberTraffic)> {
        let traffic_of = |record: &MemberRecord| MemberTraffic {
            requests: record.all_counters().map(|counters| counters.requests.value()).sum(),
            failures: record.all_counters().map(|counters| counters.failures.value()).sum(),
        };
        self.records.iter().map(|(member, record)| (*member, traffic_of(record))).collect()
    }
}

impl GroupState {
    /// Counts another second, and returns `true` if the group is to be examined.
    pub(super) fn advance_second(&mut self) -> bool {
        let (analyzer, has_leases) = (&self.analyzer, self.has_leases);
        let is_busy = || has_leases || analyzer.members().any(|(_, _, vitals)| vitals.in_flight() > 0);
        self.idle_backoff.advance(self.group.begun(), is_busy)
    }

    /// Returns `true` if there has been no traffic for a while, so that the group need not be examined.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_backoff.is_idle(self.group.begun())
    }

    /// Samples the traffic if it is time, and returns the time until the next sample.
    pub(super) fn sample_traffic(&mut self, carries_requests: bool, lag: Duration, now: Time) -> Duration {
        self.analyzer.record_loop_delay(lag);
        if self.is_idle() {
            return IDLE_SAMPLE_INTERVAL;
        }
        if self.next_sample > now {
            return self.next_sample.since(now);
        }
        let delay = self.analyzer.watch(carries_requests, now);
        self.next_sample = now + delay;
        delay
    }
}

impl GroupState {
    /// Refills the members' request budgets if their rate per second is limited, and wakes as many waiting
    /// requests. Returns the time until the next refill.
    pub(super) fn refill_budgets(&mut self, now: Time) -> Duration {
        if self.settings.max_rate.is_none() {
            return LIMIT_CHECK_INTERVAL;
        }
        let capacity = self.analyzer.refill_buckets(self.settings.max_rate, now);
        let waiting = u32::try_from(self.group.wait_queue.waiting()).unwrap_or(u32::MAX);
        (0..capacity.min(waiting)).for_each(|_| self.group.wait_queue.wake_one());
        REFILL_INTERVAL
    }
}

/// The interval of refills where the request rate is limited.
const REFILL_INTERVAL: Duration = Duration::from_millis(10);

/// The interval of checks for a limit on the request rate.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time within which traffic of an idle group is noticed.
const IDLE_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the cause of a member's last failure.
pub(super) fn last_failure_cause(record: &MemberRecord) -> Option<Cow<'static, str>> {
    Some(FailureCause::from_code(record.last_failure.load(Relaxed))?.description())
}

fn ids(analyzer: &Analyzer) -> BTreeMap<Arc<str>, MemberId> {
    analyzer.members().map(|(id, spec, _)| (Arc::clone(&spec.name), id)).collect()
}
