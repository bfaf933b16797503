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
const WEIGHT_SCALE: f64 = 1_000_000.0;
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
    pub(super) fn update(&mut self, now: Time, member_shares: Vec<MemberShare>, moving: bool) -> bool {
        let elapsed = self.updated_at.replace(now).map(|at| now.since(at).as_secs_f64());
        let smoothing = match elapsed {
            Some(elapsed) if moving => 1.0 - (-elapsed / SMOOTHING_TIME.as_secs_f64()).exp(),
            _ => 1.0,
        };
        let previous = std::mem::take(&mut self.shares);
        let mut seen_addresses = BTreeSet::new();
        // For a client, two members at one address are the same, and it rejects a list with both.
        let mut members: Vec<(MemberShare, f64)> = Vec::new();
        for member_share in member_shares {
            let previous_share = previous.get(&member_share.member).copied().unwrap_or(member_share.share);
            let share = previous_share + (member_share.share - previous_share) * smoothing;
            self.shares.insert(member_share.member, share);
            let share = share * member_share.staying_share.clamp(0.0, 1.0);
            if seen_addresses.insert(member_share.address) {
                members.push((member_share, share));
            } else if let Some((_, sum)) =
                members.iter_mut().find(|(first, _)| first.address == member_share.address)
            {
                *sum += share;
            }
        }
        let sum: f64 = members.iter().map(|(_, share)| share).sum();
        let sum = if sum > 0.0 { sum } else { 1.0 };
        let new_members: Vec<WeightedMember> = members
            .into_iter()
            .map(|(member_share, share)| {
                // A member in use always gets some requests: its connections stay open, and it is tried.
                let weight = (share / sum * WEIGHT_SCALE).round().clamp(1.0, WEIGHT_SCALE) as u32;
                WeightedMember { name: member_share.name, address: member_share.address, weight }
            })
            .collect();
        let tolerance = if moving { MOVING_TOLERANCE } else { STEADY_TOLERANCE };
        let min_weight = WEIGHT_SCALE / new_members.len().max(1) as f64 / 20.0;
        let is_close = |old: &WeightedMember, new: &WeightedMember| {
            let weight = f64::from(old.weight);
            (f64::from(new.weight) - weight).abs() <= tolerance * weight.max(min_weight)
        };
        let same_member =
            |old: &WeightedMember, new: &WeightedMember| old.name == new.name && old.address == new.address;
        let unchanged = |old: &[WeightedMember]| {
            old.iter().zip(&new_members).all(|(old, new)| same_member(old, new) && is_close(old, new))
        };
        if elapsed.is_some() && self.members.len() == new_members.len() && unchanged(&self.members) {
            return false;
        }
        self.members = new_members;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(shares: &[f64]) -> Vec<MemberShare> {
        let member_share = |(id, share): (u32, &f64)| MemberShare {
            member: MemberId(id),
            name: format!("m{id}").into(),
            address: ([10, 0, 0, 1], 80 + id as u16).into(),
            share: *share,
            staying_share: 1.0,
        };
        (0..).zip(shares).map(member_share).collect()
    }

    fn weights(member_weights: &MemberWeights) -> Vec<u32> {
        member_weights.members().iter().map(|member| member.weight).collect()
    }

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn calm_shares_are_told_as_they_are() {
        let mut member_weights = MemberWeights::default();
        assert!(member_weights.update(at(0), shares(&[0.25, 0.75]), false));
        assert_eq!(weights(&member_weights), [250_000, 750_000]);
        assert!(!member_weights.update(at(1), shares(&[0.25, 0.75]), false));
        assert!(member_weights.update(at(2), shares(&[0.26, 0.74]), false));
        assert_eq!(weights(&member_weights), [260_000, 740_000]);
    }

    #[test]
    fn the_first_word_is_told_even_if_it_is_that_there_is_nobody() {
        let mut member_weights = MemberWeights::default();
        assert!(member_weights.update(at(0), Vec::new(), true) && member_weights.members().is_empty());
        assert!(!member_weights.update(at(1), Vec::new(), true));
    }

    #[test]
    fn moving_shares_come_by_and_by() {
        let mut member_weights = MemberWeights::default();
        member_weights.update(at(0), shares(&[0.5, 0.5]), true);
        assert!(!member_weights.update(at(50), shares(&[0.52, 0.48]), true), "within what is near enough");
        let mut now = 50;
        while now < 1050 {
            now += 50;
            member_weights.update(at(now), shares(&[0.9, 0.1]), true);
        }
        // Two time constants: 86 % of the way.
        let weight = f64::from(weights(&member_weights)[0]) / WEIGHT_SCALE;
        assert!((0.82..0.87).contains(&weight), "{weight}");
    }

    #[test]
    fn who_is_in_use_counts_at_once() {
        let mut member_weights = MemberWeights::default();
        member_weights.update(at(0), shares(&[0.5, 0.3, 0.2]), true);
        assert!(member_weights.update(at(1), shares(&[0.5, 0.5]), true));
        assert_eq!(member_weights.members().len(), 2);
        assert!(member_weights.update(at(2), shares(&[0.4, 0.4, 0.2]), true));
        let new_weight = member_weights.members()[2].weight;
        assert!(
            new_weight.abs_diff(200_000) < 1000,
            "one that comes has its share from the beginning: {new_weight}"
        );
    }

    #[test]
    fn what_is_to_go_counts_at_once() {
        for moving in [false, true] {
            let mut member_weights = MemberWeights::default();
            member_weights.update(at(0), shares(&[0.5, 0.5]), moving);
            let mut alert = shares(&[0.5, 0.5]);
            alert[0].staying_share = 0.5;
            assert!(member_weights.update(at(1), alert.clone(), moving));
            assert_eq!(
                weights(&member_weights),
                [333_333, 666_667],
                "what goes is shared out as the rest is"
            );
            alert[0].staying_share = 0.0;
            assert!(member_weights.update(at(2), alert, moving));
            assert_eq!(weights(&member_weights), [1, 1_000_000]);
            assert!(member_weights.update(at(3), shares(&[0.5, 0.5]), moving));
            assert_eq!(weights(&member_weights), [500_000, 500_000], "and comes back when the alert is over");
        }
    }

    #[test]
    fn nobody_has_nothing_and_no_address_comes_twice() {
        let mut member_weights = MemberWeights::default();
        member_weights.update(at(0), shares(&[1.0, 0.0]), true);
        assert_eq!(weights(&member_weights), [1_000_000, 1]);
        let mut duplicated = shares(&[0.5, 0.25, 0.25]);
        duplicated[2].address = duplicated[1].address;
        member_weights.update(at(1), duplicated, false);
        assert_eq!(weights(&member_weights), [500_000, 500_000]);
        member_weights.update(at(2), shares(&[0.0, 0.0]), false);
        assert_eq!(weights(&member_weights), [1, 1]);
    }
}
