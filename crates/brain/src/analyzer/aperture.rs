//! The aperture: of a large group a balancer uses a part only, whatever the strategy.
//!
//! With many balancers before many members each has less than one request with most of them: it learns too little of too many, keeps
//! connections to all, and what it counts says nothing. So each uses a part of them that is its own (Finagle's aperture): the first
//! so many in an order that is drawn from the balancer and the member (rendezvous, as in `strategy/rendezvous.rs`). Other balancers have
//! other orders, so all members are used alike; a member that comes or goes changes at most one place; one that cannot be used makes
//! room for the next.
//!
//! It is as wide as [`PER_REQUEST`] members for each request in flight from here, and at least as the configuration says. It widens at once
//! where that is too little, a quarter further than needed, and narrows when it has been half as wide again as needed for [`CALM`]: each
//! step is a new plan.

use alloc::collections::BTreeSet;
use alloc::format;
use core::time::Duration;

use super::{Analyzer, Entry};
use crate::{EventKind, Member, MemberId, Time, hash, mix};

/// What is kept of it, whether it is asked for or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Aperture {
    /// Tells balancers apart.
    seed: u64,
    /// Members used; 0 before the first look.
    width: usize,
    /// Requests in flight from here, averaged.
    busy: f64,
    /// Since when it is wider than it has to be.
    wide: Option<Time>,
    looked: Option<Time>,
    /// Members that could be used and are not.
    pub(super) outside: BTreeSet<MemberId>,
}

impl Analyzer {
    /// Says which balancer this is: those with different seeds use different parts of the members. Any number will do.
    pub fn seat(&mut self, seed: u64) {
        if self.aperture.seed != seed {
            self.aperture.seed = seed;
            self.stale |= self.spec.aperture.is_some();
        }
    }

    /// Could it be used, and is not, as this balancer uses others?
    pub fn is_outside(&self, member: MemberId) -> bool {
        self.aperture.outside.contains(&member)
    }

    /// Looks at the requests in flight, and sets how many members are used.
    pub(super) fn look_through(&mut self) {
        let Some(least) = self.spec.aperture else { return };
        let in_flight: u32 = self.entries.iter().map(|entry| entry.vitals.in_flight_here()).sum();
        let aperture = &mut self.aperture;
        let since = self.now.since(aperture.looked.unwrap_or(self.now)).as_secs_f64();
        aperture.looked = Some(self.now);
        let more = f64::from(in_flight) - aperture.busy;
        // Up at once, down slowly: too wide costs little.
        let memory = if more > 0.0 { RISE } else { FALL };
        aperture.busy += more * (1.0 - libm::exp(-since / memory));
        let need = (libm::ceil(PER_REQUEST * aperture.busy) as usize).max(least as usize);
        let before = aperture.width.max(least as usize);
        let width = aperture.follow(need, least as usize, self.now);
        // Where there are no more it makes no difference.
        let all = self.usable;
        if width.min(all) != before.min(all) {
            let (shown, busy) = (width.min(all), self.aperture.busy);
            let why = format!("uses {shown} of {all} members, {} before", before.min(all));
            let inputs = [
                ("width", shown as f64),
                ("usable", all as f64),
                ("mean_in_flight", busy),
                ("least", least.into()),
            ];
            self.tell(EventKind::Aperture, None, why, &inputs);
            self.stale = true;
        }
    }

    /// Of those that could be in a plan, those that are.
    pub(super) fn within(&mut self, mut members: alloc::vec::Vec<Member>) -> alloc::vec::Vec<Member> {
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

    /// Is it one that could be used and is not? Whoever is bound to it may come to it.
    pub(super) fn shut_out(&self, entry: &Entry) -> bool {
        entry.state.eligible() && self.is_outside(entry.id)
    }
}

impl Aperture {
    fn follow(&mut self, need: usize, least: usize, now: Time) -> usize {
        let margin = |need: usize| need + need / 4;
        self.width = self.width.max(least);
        if need > self.width {
            (self.width, self.wide) = (margin(need), None);
        } else if self.width > least && self.width >= need + need / 2 {
            let wide = *self.wide.get_or_insert(now);
            if now.since(wide) >= CALM {
                (self.width, self.wide) = (if need > least { margin(need) } else { least }, None);
            }
        } else {
            self.wide = None;
        }
        self.width
    }
}

/// Members for each request in flight from here.
const PER_REQUEST: f64 = 2.0;

/// Seconds over which requests in flight are averaged when they become more, and when they become fewer.
const RISE: f64 = 0.1;
const FALL: f64 = 2.0;

/// How long it has to be wider than it has to be before it narrows.
const CALM: Duration = Duration::from_secs(30);
