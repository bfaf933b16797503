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
        let Some(min_width) = self.spec.aperture else { return };
        let in_flight: u32 = self.entries.iter().map(|entry| entry.vitals.in_flight_here()).sum();
        let aperture = &mut self.aperture;
        let elapsed = self.now.since(aperture.sampled_at.unwrap_or(self.now)).as_secs_f64();
        aperture.sampled_at = Some(self.now);
        let excess = f64::from(in_flight) - aperture.mean_in_flight;
        // Up at once, down slowly: too wide costs little.
        let time_constant = if excess > 0.0 { RISE_SECONDS } else { FALL_SECONDS };
        aperture.mean_in_flight += excess * (1.0 - libm::exp(-elapsed / time_constant));
        let needed_width =
            (libm::ceil(MEMBERS_PER_REQUEST * aperture.mean_in_flight) as usize).max(min_width as usize);
        let previous_width = aperture.width.max(min_width as usize);
        let width = aperture.update_width(needed_width, min_width as usize, self.now);
        // In a smaller group it makes no difference.
        let usable = self.usable;
        if width.min(usable) != previous_width.min(usable) {
            let (shown_width, mean_in_flight) = (width.min(usable), self.aperture.mean_in_flight);
            let reason =
                format!("uses {shown_width} of {usable} members, {} before", previous_width.min(usable));
            let inputs = [
                ("width", shown_width as f64),
                ("usable", usable as f64),
                ("mean_in_flight", mean_in_flight),
                ("least", min_width.into()),
            ];
            self.emit_event(EventKind::Aperture, None, reason, &inputs);
            self.stale = true;
        }
    }

    /// Removes the members outside the aperture from those of a plan.
    pub(super) fn retain_in_aperture(
        &mut self,
        mut members: alloc::vec::Vec<Member>,
    ) -> alloc::vec::Vec<Member> {
        self.aperture.outside.clear();
        let Some(min_width) = self.spec.aperture else { return members };
        let width = self.aperture.width.max(min_width as usize);
        if members.len() <= width {
            return members;
        }
        let balancer_hash = mix(self.aperture.seed ^ hash(self.spec.name.as_bytes()));
        let rank = |member: &Member| (mix(balancer_hash ^ member.seed), member.id);
        let mut ranks: alloc::vec::Vec<(u64, MemberId)> = members.iter().map(rank).collect();
        let (_, last_rank, _) = ranks.select_nth_unstable(width - 1);
        let last_rank = *last_rank;
        let outside = &mut self.aperture.outside;
        members.retain(|member| {
            let is_inside = rank(member) <= last_rank;
            if !is_inside {
                outside.insert(member.id);
            }
            is_inside
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
    fn update_width(&mut self, needed: usize, min_width: usize, now: Time) -> usize {
        let with_margin = |width: usize| width + width / 4;
        self.width = self.width.max(min_width);
        if needed > self.width {
            (self.width, self.too_wide_since) = (with_margin(needed), None);
        } else if self.width > min_width && self.width >= needed + needed / 2 {
            let too_wide_since = *self.too_wide_since.get_or_insert(now);
            if now.since(too_wide_since) >= NARROWING_DELAY {
                (self.width, self.too_wide_since) =
                    (if needed > min_width { with_margin(needed) } else { min_width }, None);
            }
        } else {
            self.too_wide_since = None;
        }
        self.width
    }
}

/// The members for each request in flight from here.
const MEMBERS_PER_REQUEST: f64 = 2.0;

/// The seconds over which requests in flight are averaged as they rise, and as they fall.
const RISE_SECONDS: f64 = 0.1;
const FALL_SECONDS: f64 = 2.0;

/// The time for which it must be wider than necessary before it narrows.
const NARROWING_DELAY: Duration = Duration::from_secs(30);
