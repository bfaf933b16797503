//! The probe pool of `prequal`: what one core found out of some members lately, and what of it counts as hot.
//!
//! A result is used for as long as it is young, and only so often: both keep what is known of a member from being
//! believed long after it has changed. With each choice one result goes whatever happens, in turn the oldest and
//! the worst, because good results are used up and bad ones would stay.

use alloc::vec::Vec;
use core::time::Duration;

use crate::hash::unit;
use crate::meter::Reading;
use crate::{Member, MemberId, Time};

/// Results of one core, at most as many as there is room for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    probes: Vec<Probe>,
    room: usize,
    /// How often a result may be used.
    uses: f64,
    /// Of members that say nothing, and of those that speak: one counts what it has from here, the other what it has.
    loads: [Loads; 2],
    /// Is the worst to go next, and not the oldest?
    worst: bool,
}

/// Loads of the last results, for the quantile.
#[derive(Clone, Debug, Default)]
struct Loads {
    recent: Vec<f64>,
    /// Where in `recent` the next one goes.
    next: usize,
    /// The quantile of `recent` when it was last computed, and how many came since.
    hot: f64,
    since: usize,
}

/// The loads above which members are hot.
#[derive(Clone, Copy)]
pub(super) struct Hot([f64; 2]);

impl Hot {
    /// A member's load as a multiple of the one above which it is hot.
    pub(super) fn times(&self, probe: &Probe, member: &Member, now: Time) -> f64 {
        probe.load(member, now) / self.0[usize::from(probe.said.is_some())]
    }
}

/// One result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// In the plan it was made by; another member may sit there now.
    pub(super) place: usize,
    pub(super) member: MemberId,
    pub(super) at: Time,
    /// What the member said; `None` if nobody says and what is in flight from here has to do.
    pub(super) said: Option<Reading>,
    /// Requests begun with it then.
    pub(super) begun: u32,
    /// What a request took there lately where the member says nothing, seconds; 0 if nothing is known.
    pub(super) latency: f64,
    /// Times it may be used yet; the pool sets it.
    pub(super) uses: f64,
}

impl Probe {
    pub(super) fn new(place: usize, member: &Member, at: Time) -> Self {
        let begun = member.vitals.begun();
        Self { place, member: member.id, at, said: None, begun, latency: 0.0, uses: 0.0 }
    }

    /// Requests in flight there with one more: what the member had, on its way to its mean for as long as a request
    /// takes, and what was sent to it since.
    pub(super) fn queue(&self, member: &Member, now: Time) -> f64 {
        let here = f64::from(member.in_flight());
        let Some(said) = &self.said else { return here + 1.0 };
        let fades = libm::exp(-now.since(self.at).as_secs_f64() / f64::from(said.sojourn));
        let mean = f64::from(said.mean_in_flight);
        let had = mean + (f64::from(said.in_flight) - mean) * fades;
        (had + f64::from(member.vitals.begun().wrapping_sub(self.begun))).max(here) + 1.0
    }

    /// The same for its weight.
    pub(super) fn load(&self, member: &Member, now: Time) -> f64 {
        self.queue(member, now) / member.weight
    }

    /// What a request takes there with as many as it has now, seconds.
    pub(super) fn latency(&self, member: &Member, now: Time) -> f64 {
        self.said.as_ref().map_or(self.latency, |said| {
            f64::from(said.work) * (self.queue(member, now) / f64::from(said.knee)).max(1.0)
        })
    }
}

impl Pool {
    /// Takes the settings of a plan.
    pub(super) fn set(&mut self, room: usize, uses: f64) {
        (self.room, self.uses) = (room, uses);
        if self.probes.len() > room {
            self.probes.drain(..self.probes.len() - room);
        }
    }

    /// Drops what is too old, and what is of a member that has left its place.
    pub(super) fn expire(&mut self, members: &[Member], now: Time, age: Duration) {
        self.probes.retain(|probe| {
            members.get(probe.place).is_some_and(|member| member.id == probe.member)
                && now.since(probe.at) <= age
        });
    }

    /// Takes a result, in place of what was known of the member before.
    pub(super) fn add(&mut self, probe: Probe, member: &Member, chance: u64, now: Time) {
        if let Some(known) = self.probes.iter().position(|known| known.member == probe.member) {
            if probe.at <= self.probes[known].at && probe.said.is_some() {
                return;
            }
            self.probes.remove(known);
        }
        self.loads[usize::from(probe.said.is_some())].note(probe.load(member, now));
        if self.probes.len() >= self.room.max(1) {
            self.remove_oldest();
        }
        // A bound that is no whole number is met on average.
        let uses = if self.uses.is_finite() { libm::floor(self.uses + unit(chance)) } else { self.uses };
        self.probes.push(Probe { uses, ..probe });
    }

    /// The loads above which members are hot: this quantile of those seen lately. 1 for none.
    pub(super) fn hot(&mut self, quantile: f64) -> Hot {
        let [silent, speaking] = &mut self.loads;
        Hot([silent.quantile(quantile), speaking.quantile(quantile)])
    }

    /// The results.
    pub(super) fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Uses the result at `index`.
    pub(super) fn spend(&mut self, index: usize) {
        let probe = &mut self.probes[index];
        probe.uses -= 1.0;
        if probe.uses < 1.0 {
            self.probes.remove(index);
        }
    }

    /// Removes one, if enough are left and good ones are used up: in turn the oldest and the worst, which is the one
    /// with the most load of those that are hot, or else the slowest.
    pub(super) fn renew(&mut self, members: &[Member], hot: &Hot, now: Time) {
        if self.probes.len() <= LEAST || self.uses.is_infinite() {
            return;
        }
        self.worst = !self.worst;
        if !self.worst {
            self.remove_oldest();
            return;
        }
        let rank = |probe: &Probe| {
            let Some(member) = members.get(probe.place) else { return (true, f64::INFINITY) };
            let load = hot.times(probe, member, now);
            if load > 1.0 { (true, load) } else { (false, probe.latency(member, now)) }
        };
        let ranked = self.probes.iter().map(rank).enumerate();
        let worst = ranked.max_by(|(_, one), (_, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        if let Some((index, _)) = worst {
            self.probes.remove(index);
        }
    }

    fn remove_oldest(&mut self) {
        let oldest = self.probes.iter().enumerate().min_by_key(|(_, probe)| probe.at);
        if let Some(index) = oldest.map(|(index, _)| index) {
            self.probes.remove(index);
        }
    }
}

impl Loads {
    fn note(&mut self, load: f64) {
        self.since += 1;
        if self.recent.len() < MEMORY {
            self.recent.push(load);
        } else {
            self.recent[self.next] = load;
            self.next = (self.next + 1) % MEMORY;
        }
    }

    fn quantile(&mut self, quantile: f64) -> f64 {
        if quantile >= 1.0 || self.recent.is_empty() {
            return f64::INFINITY;
        }
        if self.since >= OFTEN.min(self.recent.len()) {
            self.since = 0;
            let mut sorted = [0.0; MEMORY];
            let sorted = &mut sorted[..self.recent.len()];
            sorted.copy_from_slice(&self.recent);
            let rank = ((quantile * sorted.len() as f64) as usize).min(sorted.len() - 1);
            self.hot = *sorted.select_nth_unstable_by(rank, f64::total_cmp).1;
        }
        self.hot
    }
}

/// Results that the quantile is over.
const MEMORY: usize = 64;

/// Results after which the quantile is computed anew.
const OFTEN: usize = 8;

/// Results that are left when one is removed: with fewer there is nothing to compare.
const LEAST: usize = 2;
