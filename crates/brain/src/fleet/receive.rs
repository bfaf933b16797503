//! Receiving reports of other balancers, and applying them.

use alloc::vec::Vec;
use core::time::Duration;

use super::peer::{FleetPeer, PeerGroupReport, PeerMemberReport};
use super::quota::{self, QuotaDemand};
use super::report::{FleetReport, MemberEntry, MonitorLoad};
use super::{DEFAULT_LATENCY, Fleet, FleetUpdateKind, MemberCursor, broadcast, find_index, probe_ownership};
use crate::meter::Reading;
use crate::{MAX_WARNING, Time};

impl Fleet {
    /// Records report number `seq` of another balancer; numbers start anywhere and are used once. Entries of
    /// groups and members that are not served here are ignored.
    pub fn receive_report(&mut self, from: u64, seq: u32, report: &FleetReport, now: Time) {
        if from == self.settings.own_id {
            return;
        }
        // A sender of a report is present, even if it is unknown so far. A lost one must be announced first.
        if !self.peers.contains_key(&from) {
            self.peer_joined(from, now);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !peer.is_present() {
            return;
        }
        if !peer.has_reported() {
            // Now it is certain that the sender receives reports: earlier ones may have come too early for
            // it.
            self.renewed_at = self.renewed_at.max(now);
        }
        if !peer.record_sequence(seq, now) {
            return;
        }
        for section in &report.sections {
            let Some(&group_index) = self.group_indices.get(&section.group) else { continue };
            let members = self.groups[group_index].members.len();
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.group_report_mut(section.group, members).rate = f64::from(section.rate) / 4.0;
            }
            for entry in &section.entries {
                if let Some(member) = find_index(&self.groups[group_index].member_indices, entry.member) {
                    self.apply_entry(from, (group_index, member), entry, seq, now);
                }
            }
        }
        for section in &report.sections {
            let Some(&group_index) = self.group_indices.get(&section.group) else { continue };
            let member_indices = section
                .entries
                .iter()
                .filter_map(|entry| find_index(&self.groups[group_index].member_indices, entry.member));
            let members: Vec<usize> = member_indices.collect();
            self.refresh(group_index, members.into_iter(), now);
        }
    }

    /// Applies the ageing of reports. It is to be called several times a second. With many members it covers
    /// some of them each time.
    pub fn age_reports(&mut self, now: Time) {
        let retention = self.settings.share_retention;
        self.peers.retain(|_, peer| !peer.is_expired(retention, now));
        let mut remaining = self.member_count.min(MAX_REFRESHED);
        while remaining > 0 {
            let MemberCursor { group, member } = self.refresh_cursor;
            let Some(members) = self.groups.get(group).map(|group| group.members.len()) else {
                self.refresh_cursor = MemberCursor::default();
                continue;
            };
            let end = members.min(member + remaining);
            self.refresh(group, member..end, now);
            remaining -= end - member;
            self.refresh_cursor = if end == members {
                MemberCursor { group: group + 1, member: 0 }
            } else {
                MemberCursor { group, member: end }
            };
        }
    }

    pub(super) fn refresh_all(&mut self, now: Time) {
        for group in 0..self.groups.len() {
            let members = self.groups[group].members.len();
            self.refresh(group, 0..members, now);
        }
    }

    /// Records the entry of one member.
    fn apply_entry(
        &mut self,
        from: u64,
        (group_index, member): (usize, usize),
        entry: &MemberEntry,
        seq: u32,
        now: Time,
    ) {
        let group = self.groups[group_index].id;
        let members = self.groups[group_index].members.len();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let group_report = peer.group_report_mut(group, members);
        let previous = group_report.entry(member).copied();
        if previous.is_some_and(|previous| (seq.wrapping_sub(previous.seq) as i32) < 0) {
            return;
        }
        let member_report = PeerMemberReport::from_entry(entry, seq, now);
        group_report.set_entry(member, member_report);
        let local_member = &mut self.groups[group_index].members[member];
        if let Some((reading, age)) = entry.reading.as_ref().filter(|(reading, _)| reading.is_plausible()) {
            local_member.adopt_relayed_report(reading, now - Duration::from_millis((*age).into()), now);
            self.groups[group_index].presence.record_relayed_report();
        }
        let local_member = &self.groups[group_index].members[member];
        let (vitals, rate) = (&local_member.vitals, local_member.rate);
        if entry.suspicion > 0 && previous.is_none_or(|previous| entry.suspicion > previous.suspicion) {
            vitals.failure_detector.raise_suspicion((f64::from(entry.suspicion) / 8.0).min(MAX_WARNING));
        }
        // A balancer that serves requests with the member all the time knows better.
        let contradicted =
            rate >= MIN_OWN_RATE && vitals.streak() == 0 && vitals.failure_detector.sum() <= MAX_WARNING;
        let mut updates = Vec::new();
        if let Some(remaining) = entry.ejected
            && previous.is_none_or(|previous| !previous.ejected)
            && !contradicted
        {
            updates.push(FleetUpdateKind::Ejected {
                remaining: Duration::from_millis(remaining.into()),
                by: from,
            });
        }
        if let Some((passed, age)) = entry.check
            && previous
                .is_none_or(|previous| member_report.checked_at > previous.checked_at + SAME_CHECK_WINDOW)
        {
            updates.push(FleetUpdateKind::HealthChecked {
                passed,
                age: Duration::from_millis(age.into()),
                by: from,
            });
        }
        if let Some(MonitorLoad { value, of_host, age }) = entry.load {
            let age = Duration::from_millis(age.into());
            updates.push(FleetUpdateKind::LoadReceived { value: value.into(), of_host, age });
        }
        for update in updates {
            self.push_update(group_index, member, update);
        }
    }

    /// Recomputes the state that choices read, for some members of a group.
    fn refresh(&mut self, group_index: usize, members: impl Iterator<Item = usize>, now: Time) {
        let Some(group) = self.groups.get_mut(group_index) else { return };
        let reporting_peers: Vec<(u64, &FleetPeer, &PeerGroupReport, f64)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_present())
            .filter_map(|(id, peer)| Some((*id, peer, peer.group_report(group.id)?, peer.report_weight(now))))
            .collect();
        // A lost balancer keeps its part of limits, if it served this group.
        let lost_peers =
            self.peers.values().filter(|peer| !peer.is_present() && peer.group_report(group.id).is_some());
        let lost_count = lost_peers.count();
        // Silent balancers do not count.
        group
            .presence
            .set_peers(reporting_peers.iter().filter(|(.., weight)| *weight > MIN_PEER_WEIGHT).count());
        let mut updates = Vec::new();
        for member in members {
            let Some(local_member) = group.members.get_mut(member) else { continue };
            let is_shared = local_member.limit < u32::MAX || local_member.vitals.is_rate_limited();
            let (mut peer_in_flight, mut rate, mut waiting) = (0.0, 0.0, 0.0);
            let mut demands: Vec<QuotaDemand> = Vec::new();
            let mut peer_ids = Vec::new();
            for (id, peer, group_report, weight) in &reporting_peers {
                let Some(member_report) = group_report.entry(member) else { continue };
                let reported_latency = f64::from(member_report.latency);
                let latency = if reported_latency > 0.0 { reported_latency } else { DEFAULT_LATENCY };
                let age = now.since(peer.valid_until(member_report)).as_secs_f64();
                let mean = f64::from(member_report.mean);
                peer_in_flight +=
                    weight * (mean + (f64::from(member_report.in_flight) - mean) * libm::exp(-age / latency));
                rate += weight * f64::from(member_report.rate);
                waiting += weight * f64::from(member_report.waiting);
                if local_member.health_checked {
                    peer_ids.push(*id);
                }
                if is_shared {
                    let (balancer, demand) = (*id, member_report.demand());
                    demands.push(QuotaDemand { balancer, demand, in_flight: member_report.in_flight });
                }
            }
            local_member.vitals.set_peer_in_flight(peer_in_flight);
            local_member.vitals.set_peer_rate(rate, waiting);
            if is_shared {
                let is_alone = demands.is_empty() && lost_count == 0;
                let demand = local_member
                    .last_report
                    .as_ref()
                    .map_or(local_member.mean_in_flight, broadcast::SentReport::demand);
                let in_flight = local_member.vitals.in_flight();
                demands.insert(0, QuotaDemand { balancer: self.settings.own_id, demand, in_flight });
                local_member
                    .vitals
                    .set_rate_share((!is_alone).then(|| quota::rate_share(&demands, lost_count)));
                let is_limited = local_member.limit < u32::MAX && !is_alone;
                let limit_share =
                    is_limited.then(|| quota::limit_share(local_member.limit, &demands, lost_count));
                if local_member.vitals.set_limit_part(limit_share) && group.waiting > 0.0 {
                    updates.push((member, FleetUpdateKind::LimitRaised));
                }
            }
            if local_member.health_checked {
                let is_prober = probe_ownership::is_prober(
                    local_member.id,
                    self.settings.own_id,
                    peer_ids.into_iter(),
                    self.settings.probers,
                );
                if core::mem::replace(&mut local_member.is_prober, is_prober) != is_prober {
                    updates.push((member, FleetUpdateKind::ProbeDuty(is_prober)));
                }
            }
        }
        for (member, update) in updates {
            self.push_update(group_index, member, update);
        }
    }
}

impl super::LocalMember {
    /// Records a load report that another balancer received, unless this balancer has a recent one of its
    /// own. A balancer's own report is known to no other. That keeps balancers from choosing the same member,
    /// which all know to be the emptiest.
    fn adopt_relayed_report(&mut self, reading: &Reading, at: Time, now: Time) {
        let last_view = self.vitals.last_report.view();
        let has_own_report =
            self.vitals.current_report(now).is_some_and(|view| view.at != self.relayed_report_at);
        if has_own_report || last_view.is_some_and(|last_view| at <= last_view.at) {
            return;
        }
        // The member may not have received yet the requests sent since its last report to this balancer.
        let (begun, in_flight) = self.vitals.begun_and_in_flight();
        let unanswered = last_view.map_or(0, |last_view| begun.wrapping_sub(last_view.begun)).min(in_flight);
        self.vitals.last_report.record(
            &Reading { slot: false, ..*reading },
            begun.wrapping_sub(unanswered),
            at,
        );
        // It is not reported again.
        self.relayed_report_at =
            self.vitals.last_report.view().map_or(self.relayed_report_at, |view| view.at);
    }
}

/// The requests a second from which a balancer knows the state of a member itself.
const MIN_OWN_RATE: f64 = 5.0;

/// The time within which two checks are the same one, reported again.
const SAME_CHECK_WINDOW: Duration = Duration::from_millis(20);

/// The maximum number of members refreshed at once: each costs as many steps as there are balancers.
const MAX_REFRESHED: usize = 512;

/// The minimum weight of a balancer that counts as one.
const MIN_PEER_WEIGHT: f64 = 0.5;
