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
            let Some(&place) = self.group_indices.get(&section.group) else { continue };
            let members = self.groups[place].members.len();
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.group_report_mut(section.group, members).rate = f64::from(section.rate) / 4.0;
            }
            for word in &section.entries {
                if let Some(member) = find_index(&self.groups[place].member_indices, word.member) {
                    self.apply_entry(from, (place, member), word, seq, now);
                }
            }
        }
        for section in &report.sections {
            let Some(&place) = self.group_indices.get(&section.group) else { continue };
            let heard = section
                .entries
                .iter()
                .filter_map(|word| find_index(&self.groups[place].member_indices, word.member));
            let members: Vec<usize> = heard.collect();
            self.refresh(place, members.into_iter(), now);
        }
    }

    /// Applies the ageing of reports. It is to be called several times a second. With many members it covers
    /// some of them each time.
    pub fn age_reports(&mut self, now: Time) {
        let forget = self.settings.share_retention;
        self.peers.retain(|_, peer| !peer.is_expired(forget, now));
        let mut left = self.member_count.min(MAX_REFRESHED);
        while left > 0 {
            let MemberCursor { group, member } = self.refresh_cursor;
            let Some(members) = self.groups.get(group).map(|group| group.members.len()) else {
                self.refresh_cursor = MemberCursor::default();
                continue;
            };
            let end = members.min(member + left);
            self.refresh(group, member..end, now);
            left -= end - member;
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
        (place, member): (usize, usize),
        word: &MemberEntry,
        seq: u32,
        now: Time,
    ) {
        let group = self.groups[place].id;
        let members = self.groups[place].members.len();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let said = peer.group_report_mut(group, members);
        let before = said.entry(member).copied();
        if before.is_some_and(|before| (seq.wrapping_sub(before.seq) as i32) < 0) {
            return;
        }
        let heard = PeerMemberReport::from_entry(word, seq, now);
        said.set_entry(member, heard);
        let own = &mut self.groups[place].members[member];
        if let Some((reading, age)) = word.reading.as_ref().filter(|(reading, _)| reading.is_plausible()) {
            own.adopt_relayed_report(reading, now - Duration::from_millis((*age).into()), now);
            self.groups[place].presence.record_relayed_report();
        }
        let own = &self.groups[place].members[member];
        let (vitals, rate) = (&own.vitals, own.rate);
        if word.suspicion > 0 && before.is_none_or(|before| word.suspicion > before.suspicion) {
            vitals.failure_detector.raise_suspicion((f64::from(word.suspicion) / 8.0).min(MAX_WARNING));
        }
        // A balancer that serves requests with the member all the time knows better.
        let contradicted =
            rate >= MIN_OWN_RATE && vitals.streak() == 0 && vitals.failure_detector.sum() <= MAX_WARNING;
        let mut news = Vec::new();
        if let Some(left) = word.ejected
            && before.is_none_or(|before| !before.ejected)
            && !contradicted
        {
            news.push(FleetUpdateKind::Ejected { remaining: Duration::from_millis(left.into()), by: from });
        }
        if let Some((passed, age)) = word.check
            && before.is_none_or(|before| heard.checked_at > before.checked_at + SAME_CHECK_WINDOW)
        {
            news.push(FleetUpdateKind::HealthChecked {
                passed,
                age: Duration::from_millis(age.into()),
                by: from,
            });
        }
        if let Some(MonitorLoad { value, of_host, age }) = word.load {
            let age = Duration::from_millis(age.into());
            news.push(FleetUpdateKind::LoadReceived { value: value.into(), of_host, age });
        }
        for what in news {
            self.push_update(place, member, what);
        }
    }

    /// Recomputes the state that choices read, for some members of a group.
    fn refresh(&mut self, place: usize, members: impl Iterator<Item = usize>, now: Time) {
        let Some(group) = self.groups.get_mut(place) else { return };
        let there: Vec<(u64, &FleetPeer, &PeerGroupReport, f64)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_present())
            .filter_map(|(id, peer)| Some((*id, peer, peer.group_report(group.id)?, peer.report_weight(now))))
            .collect();
        // A lost balancer keeps its part of limits, if it served this group.
        let lost =
            self.peers.values().filter(|peer| !peer.is_present() && peer.group_report(group.id).is_some());
        let missing = lost.count();
        // Silent balancers do not count.
        group.presence.set_peers(there.iter().filter(|(.., say)| *say > MIN_PEER_WEIGHT).count());
        let mut news = Vec::new();
        for member in members {
            let Some(own) = group.members.get_mut(member) else { continue };
            let shared = own.limit < u32::MAX || own.vitals.is_rate_limited();
            let (mut others, mut rate, mut waiting) = (0.0, 0.0, 0.0);
            let mut wants: Vec<QuotaDemand> = Vec::new();
            let mut seen = Vec::new();
            for (id, peer, said, say) in &there {
                let Some(heard) = said.entry(member) else { continue };
                let told = f64::from(heard.latency);
                let takes = if told > 0.0 { told } else { DEFAULT_LATENCY };
                let age = now.since(peer.valid_until(heard)).as_secs_f64();
                let mean = f64::from(heard.mean);
                others += say * (mean + (f64::from(heard.in_flight) - mean) * libm::exp(-age / takes));
                rate += say * f64::from(heard.rate);
                waiting += say * f64::from(heard.waiting);
                if own.checked {
                    seen.push(*id);
                }
                if shared {
                    let (who, demand) = (*id, heard.demand());
                    wants.push(QuotaDemand { balancer: who, demand, in_flight: heard.in_flight });
                }
            }
            own.vitals.set_peer_in_flight(others);
            own.vitals.set_peer_rate(rate, waiting);
            if shared {
                let alone = wants.is_empty() && missing == 0;
                let demand = own.last_report.as_ref().map_or(own.mean, broadcast::SentReport::demand);
                let in_flight = own.vitals.in_flight();
                wants.insert(0, QuotaDemand { balancer: self.settings.own_id, demand, in_flight });
                own.vitals.set_rate_share((!alone).then(|| quota::rate_share(&wants, missing)));
                let limited = own.limit < u32::MAX && !alone;
                let part = limited.then(|| quota::limit_share(own.limit, &wants, missing));
                if own.vitals.set_limit_part(part) && group.waiting > 0.0 {
                    news.push((member, FleetUpdateKind::LimitRaised));
                }
            }
            if own.checked {
                let mine = probe_ownership::is_prober(
                    own.id,
                    self.settings.own_id,
                    seen.into_iter(),
                    self.settings.probers,
                );
                if core::mem::replace(&mut own.is_prober, mine) != mine {
                    news.push((member, FleetUpdateKind::ProbeDuty(mine)));
                }
            }
        }
        for (member, what) in news {
            self.push_update(place, member, what);
        }
    }
}

impl super::LocalMember {
    /// Records a load report that another balancer received, unless this balancer has a recent one of its
    /// own. A balancer's own report is known to no other. That keeps balancers from choosing the same member,
    /// which all know to be the emptiest.
    fn adopt_relayed_report(&mut self, reading: &Reading, at: Time, now: Time) {
        let known = self.vitals.last_report.view();
        let own = self.vitals.current_report(now).is_some_and(|view| view.at != self.relayed_report_at);
        if own || known.is_some_and(|known| at <= known.at) {
            return;
        }
        // The member may not have received yet the requests sent since its last report to this balancer.
        let (begun, in_flight) = self.vitals.begun_and_in_flight();
        let unanswered = known.map_or(0, |known| begun.wrapping_sub(known.begun)).min(in_flight);
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
