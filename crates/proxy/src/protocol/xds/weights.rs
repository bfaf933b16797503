//! Smooths changing shares into clients' weights: a pure value.
//!
//! Shares by requests in flight depend on reports that are a second old, as do the clients' reactions.
//! Averaging them over half a second ([`SMOOTHING_TIME`]) damps that loop. Shares by weights or load reports
//! are steady already. Clients' weights stay while they are nearly right. Changes of the members in use apply
//! at once, and so do the shares of sessions that members under alert should lose.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};

/// The approximate sum of all weights: 32 bits hold it, whatever the rounding.
const WHOLE: f64 = 1_000_000.0;
/// The time over which shares by requests in flight are averaged.
const SMOOTHING_TIME: Duration = Duration::from_millis(500);
/// The tolerated deviation of weights, relative to the weight or to a twentieth of the mean: for shares that
/// change by themselves, and for others.
const MOVING_TOLERANCE: f64 = 0.03;
const STEADY_TOLERANCE: f64 = 0.001;

/// A member in use, and its share of the requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemberShare {
    pub(super) member: MemberId,
    pub(super) name: Arc<str>,
    pub(super) address: SocketAddr,
    /// The share, 0 to 1.
    pub(super) share: f64,
    /// The share of its sessions that stay, 0 to 1: 1 for a member that is not under alert.
    pub(super) staying_share: f64,
}

/// A member in the form for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WeightedMember {
    pub(super) name: Arc<str>,
    pub(super) address: SocketAddr,
    /// The weight, at least 1.
    pub(super) weight: u32,
}

/// The weights of one group's members.
#[derive(Debug, Default)]
pub(super) struct MemberWeights {
    updated_at: Option<Time>,
    shares: BTreeMap<MemberId, f64>,
    members: Vec<WeightedMember>,
}

impl MemberWeights {
    /// Returns the members for clients.
    pub(super) fn members(&self) -> &[WeightedMember] {
        &self.members
    }

    /// Records the current shares; returns `true` if clients need an update. `moving` is `true` for shares by
    /// requests in flight.
    pub(super) fn update(&mut self, now: Time, fresh: Vec<MemberShare>, moving: bool) -> bool {
        let passed = self.updated_at.replace(now).map(|at| now.since(at).as_secs_f64());
        let part = match passed {
            Some(passed) if moving => 1.0 - (-passed / SMOOTHING_TIME.as_secs_f64()).exp(),
            _ => 1.0,
        };
        let before = std::mem::take(&mut self.shares);
        let mut taken = BTreeSet::new();
        // For a client, two members at one address are the same, and it rejects a list with both.
        let mut members: Vec<(MemberShare, f64)> = Vec::new();
        for one in fresh {
            let kept = before.get(&one.member).copied().unwrap_or(one.share);
            let share = kept + (one.share - kept) * part;
            self.shares.insert(one.member, share);
            let share = share * one.staying_share.clamp(0.0, 1.0);
            if taken.insert(one.address) {
                members.push((one, share));
            } else if let Some((_, sum)) = members.iter_mut().find(|(first, _)| first.address == one.address)
            {
                *sum += share;
            }
        }
        let sum: f64 = members.iter().map(|(_, share)| share).sum();
        let sum = if sum > 0.0 { sum } else { 1.0 };
        let next: Vec<WeightedMember> = members
            .into_iter()
            .map(|(one, share)| {
                // A member in use always gets some requests: its connections stay open, and it is tried.
                let weight = (share / sum * WHOLE).round().clamp(1.0, WHOLE) as u32;
                WeightedMember { name: one.name, address: one.address, weight }
            })
            .collect();
        let tolerance = if moving { MOVING_TOLERANCE } else { STEADY_TOLERANCE };
        let least = WHOLE / next.len().max(1) as f64 / 20.0;
        let near = |told: &WeightedMember, next: &WeightedMember| {
            let weight = f64::from(told.weight);
            (f64::from(next.weight) - weight).abs() <= tolerance * weight.max(least)
        };
        let same = |told: &WeightedMember, next: &WeightedMember| {
            told.name == next.name && told.address == next.address
        };
        let all = |told: &[WeightedMember]| {
            told.iter().zip(&next).all(|(told, next)| same(told, next) && near(told, next))
        };
        if passed.is_some() && self.members.len() == next.len() && all(&self.members) {
            return false;
        }
        self.members = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(shares: &[f64]) -> Vec<MemberShare> {
        let one = |(id, share): (u32, &f64)| MemberShare {
            member: MemberId(id),
            name: format!("m{id}").into(),
            address: ([10, 0, 0, 1], 80 + id as u16).into(),
            share: *share,
            staying_share: 1.0,
        };
        (0..).zip(shares).map(one).collect()
    }

    fn weights(scales: &MemberWeights) -> Vec<u32> {
        scales.members().iter().map(|place| place.weight).collect()
    }

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn calm_shares_are_told_as_they_are() {
        let mut scales = MemberWeights::default();
        assert!(scales.update(at(0), shares(&[0.25, 0.75]), false));
        assert_eq!(weights(&scales), [250_000, 750_000]);
        assert!(!scales.update(at(1), shares(&[0.25, 0.75]), false));
        assert!(scales.update(at(2), shares(&[0.26, 0.74]), false));
        assert_eq!(weights(&scales), [260_000, 740_000]);
    }

    #[test]
    fn the_first_word_is_told_even_if_it_is_that_there_is_nobody() {
        let mut scales = MemberWeights::default();
        assert!(scales.update(at(0), Vec::new(), true) && scales.members().is_empty());
        assert!(!scales.update(at(1), Vec::new(), true));
    }

    #[test]
    fn moving_shares_come_by_and_by() {
        let mut scales = MemberWeights::default();
        scales.update(at(0), shares(&[0.5, 0.5]), true);
        assert!(!scales.update(at(50), shares(&[0.52, 0.48]), true), "within what is near enough");
        let mut now = 50;
        while now < 1050 {
            now += 50;
            scales.update(at(now), shares(&[0.9, 0.1]), true);
        }
        // Two time constants: 86 % of the way.
        let weight = f64::from(weights(&scales)[0]) / WHOLE;
        assert!((0.82..0.87).contains(&weight), "{weight}");
    }

    #[test]
    fn who_is_in_use_counts_at_once() {
        let mut scales = MemberWeights::default();
        scales.update(at(0), shares(&[0.5, 0.3, 0.2]), true);
        assert!(scales.update(at(1), shares(&[0.5, 0.5]), true));
        assert_eq!(scales.members().len(), 2);
        assert!(scales.update(at(2), shares(&[0.4, 0.4, 0.2]), true));
        let came = scales.members()[2].weight;
        assert!(came.abs_diff(200_000) < 1000, "one that comes has its share from the beginning: {came}");
    }

    #[test]
    fn what_is_to_go_counts_at_once() {
        for moving in [false, true] {
            let mut scales = MemberWeights::default();
            scales.update(at(0), shares(&[0.5, 0.5]), moving);
            let mut alert = shares(&[0.5, 0.5]);
            alert[0].staying_share = 0.5;
            assert!(scales.update(at(1), alert.clone(), moving));
            assert_eq!(weights(&scales), [333_333, 666_667], "what goes is shared out as the rest is");
            alert[0].staying_share = 0.0;
            assert!(scales.update(at(2), alert, moving));
            assert_eq!(weights(&scales), [1, 1_000_000]);
            assert!(scales.update(at(3), shares(&[0.5, 0.5]), moving));
            assert_eq!(weights(&scales), [500_000, 500_000], "and comes back when the alert is over");
        }
    }

    #[test]
    fn nobody_has_nothing_and_no_address_comes_twice() {
        let mut scales = MemberWeights::default();
        scales.update(at(0), shares(&[1.0, 0.0]), true);
        assert_eq!(weights(&scales), [1_000_000, 1]);
        let mut double = shares(&[0.5, 0.25, 0.25]);
        double[2].address = double[1].address;
        scales.update(at(1), double, false);
        assert_eq!(weights(&scales), [500_000, 500_000]);
        scales.update(at(2), shares(&[0.0, 0.0]), false);
        assert_eq!(weights(&scales), [1, 1]);
    }
}
