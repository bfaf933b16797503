//! The aperture: the part of a large group that a balancer uses, whatever the strategy.
//!
//! With many balancers in front of many members, each has less than one request at most of them. It learns
//! too little of too many, keeps connections to all, and its counts mean nothing. So each uses a part of its
//! own (Finagle's aperture): the first members in an order drawn from the balancer and the member
//! (rendezvous, as in `strategy/rendezvous.rs`). Other balancers have other orders, so all members are used
//! alike. A member that joins or leaves changes at most one place. A member that cannot be used makes room
//! for the next.
//!
//! The width is [`PER_REQUEST`] members for each request in flight from here, and at least the configured
//! minimum. If that is too little it widens at once, a quarter further than needed. It narrows when it has
//! been half as wide again as needed for [`CALM`]. Each step is a new plan.

use alloc::collections::BTreeSet;
use alloc::format;
use core::time::Duration;

use super::{AnalyzedMember, Analyzer};
use crate::{EventKind, Member, MemberId, Time, hash, mix};

/// The state of the aperture, which exists without a configured one, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Aperture {
    /// The seed that distinguishes balancers.
    seed: u64,
    /// The number of members used; 0 before the first look.
    width: usize,
    /// The mean of the requests in flight from here.
    mean_in_flight: f64,
    /// The time since which it has been wider than necessary.
    too_wide_since: Option<Time>,
    sampled_at: Option<Time>,
    /// The members that could be used and are not.
    pub(super) outside: BTreeSet<MemberId>,
}

impl Analyzer {
    /// Sets the seed of this balancer: different seeds use different parts of the members. Any number will
    /// do.
    pub fn set_balancer_seed(&mut self, seed: u64) {
        if self.aperture.seed != seed {
            self.aperture.seed = seed;
            self.stale |= self.spec.aperture.is_some();
        }
    }

    /// Returns `true` if the member could be used, and is outside the aperture.
    pub fn is_outside(&self, member: MemberId) -> bool {
        self.aperture.outside.contains(&member)
    }

    /// Sets the number of members used from the requests in flight.
    pub(super) fn update_aperture(&mut self) {
        let Some(least) = self.spec.aperture else { return };
        let in_flight: u32 = self.entries.iter().map(|entry| entry.vitals.in_flight_here()).sum();
        let aperture = &mut self.aperture;
        let since = self.now.since(aperture.sampled_at.unwrap_or(self.now)).as_secs_f64();
        aperture.sampled_at = Some(self.now);
        let more = f64::from(in_flight) - aperture.mean_in_flight;
        // Up at once, down slowly: too wide costs little.
        let memory = if more > 0.0 { RISE } else { FALL };
        aperture.mean_in_flight += more * (1.0 - libm::exp(-since / memory));
        let need = (libm::ceil(PER_REQUEST * aperture.mean_in_flight) as usize).max(least as usize);
        let before = aperture.width.max(least as usize);
        let width = aperture.follow(need, least as usize, self.now);
        // In a smaller group it makes no difference.
        let all = self.usable;
        if width.min(all) != before.min(all) {
            let (shown, busy) = (width.min(all), self.aperture.mean_in_flight);
            let why = format!("uses {shown} of {all} members, {} before", before.min(all));
            let inputs = [
                ("width", shown as f64),
                ("usable", all as f64),
                ("mean_in_flight", busy),
                ("least", least.into()),
            ];
            self.emit_event(EventKind::Aperture, None, why, &inputs);
            self.stale = true;
        }
    }

    /// Removes the members outside the aperture from those of a plan.
    pub(super) fn retain_in_aperture(
        &mut self,
        mut members: alloc::vec::Vec<Member>,
    ) -> alloc::vec::Vec<Member> {
        self.aperture.outside.clear();
        let Some(least) = self.spec.aperture else { return members };
        let width = self.aperture.width.max(least as usize);
        if members.len() <= width {
            return members;
        }
        let own = mix(self.aperture.seed ^ hash(self.spec.name.as_bytes()));
        let rank = |member: &Member| (mix(own ^ member.seed), member.id);
        let mut ranks: alloc::vec::Vec<(u64, MemberId)> = members.iter().map(rank).collect();
        let (_, last, _) = ranks.select_nth_unstable(width - 1);
        let last = *last;
        let outside = &mut self.aperture.outside;
        members.retain(|member| {
            let inside = rank(member) <= last;
            if !inside {
                outside.insert(member.id);
            }
            inside
        });
        members
    }

    /// Returns `true` if the member could be used and is outside the aperture. It serves clients that are
    /// bound to it.
    pub(super) fn is_entry_outside(&self, entry: &AnalyzedMember) -> bool {
        entry.state.is_eligible() && self.is_outside(entry.id)
    }
}

impl Aperture {
    fn follow(&mut self, need: usize, least: usize, now: Time) -> usize {
        let margin = |need: usize| need + need / 4;
        self.width = self.width.max(least);
        if need > self.width {
            (self.width, self.too_wide_since) = (margin(need), None);
        } else if self.width > least && self.width >= need + need / 2 {
            let wide = *self.too_wide_since.get_or_insert(now);
            if now.since(wide) >= CALM {
                (self.width, self.too_wide_since) = (if need > least { margin(need) } else { least }, None);
            }
        } else {
            self.too_wide_since = None;
        }
        self.width
    }
}

/// The members for each request in flight from here.
const PER_REQUEST: f64 = 2.0;

/// The seconds over which requests in flight are averaged as they rise, and as they fall.
const RISE: f64 = 0.1;
const FALL: f64 = 2.0;

/// The time for which it must be wider than necessary before it narrows.
const CALM: Duration = Duration::from_secs(30);
