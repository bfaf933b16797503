//! The group, built from the known capacities of its members.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::curve::{ServiceDistribution, Station};
use super::group_capacity::{self, GroupCapacity, MemberCapacity};
use super::member_estimate::{self, BaseServiceTime, LoadWindow};
use super::peer_capacity::{self, CapacityGuess, PeerCapacity};
use super::{CapacityEstimator, FEW, GroupLoadSample, MEMORY, WINDOW, decay_factor};
use crate::MemberId;

impl CapacityEstimator {
    /// Builds the group from its usable members. Those without measurements of their own are estimated from
    /// their peers.
    pub(super) fn build_group(
        &mut self,
        seen: &GroupLoadSample<'_>,
        windows: &BTreeMap<MemberId, LoadWindow>,
        shape: &ServiceDistribution,
    ) -> GroupCapacity {
        let usable: Vec<MemberId> = self.usable.clone();
        let known = |id: &MemberId| {
            self.estimators
                .get(id)
                .and_then(|gauge| gauge.estimate)
                .filter(member_estimate::CapacityEstimate::known)
        };
        let units = seen.members.iter().filter(|member| member.usable).map(|member| member.capacity);
        let peers: Vec<PeerCapacity> = usable
            .iter()
            .zip(units)
            .map(|(id, unit)| {
                let gauge = self.estimators.get(id);
                let (least, most) = gauge.map_or((0.0, f64::INFINITY), |gauge| gauge.observed_bounds());
                let alone = gauge.and_then(|gauge| gauge.base_latency());
                PeerCapacity { unit, known: known(id).map(|one| one.best), least, most, base_seconds: alone }
            })
            .collect();
        let (guesses, together) = peer_capacity::guess_capacities(&peers).unwrap_or_default();
        let mut guesses = guesses.into_iter();
        // The discipline of most known members.
        let shared = 2 * usable.iter().filter_map(&known).filter(|one| one.shared).count()
            >= usable.iter().filter_map(&known).count();
        let parts = self.request_shares(seen, &usable);
        let mut crew = GroupCapacity {
            members: Vec::with_capacity(usable.len()),
            by_load: seen.by_load,
            shared_variance: together,
        };
        for ((id, peer), part) in usable.iter().zip(&peers).zip(parts) {
            let mate = match known(id) {
                Some(one) => MemberCapacity {
                    capacity: one.best,
                    low: one.low,
                    high: one.high,
                    from_peers: false,
                    servers: one.servers,
                    shared: one.shared,
                    base: one.servers / one.best,
                    part,
                },
                None => {
                    let nothing = CapacityGuess { best: peer.least, high: f64::INFINITY };
                    let CapacityGuess { best, high } = guesses.next().unwrap_or(nothing);
                    let servers = peer.base_seconds.map_or(1.0, |alone| (best * alone).max(1.0));
                    let base = servers / best.max(f64::MIN_POSITIVE);
                    MemberCapacity {
                        capacity: best,
                        low: peer.least,
                        high,
                        from_peers: true,
                        servers,
                        shared,
                        base,
                        part,
                    }
                }
            };
            crew.members.push(mate);
        }
        if crew.is_known() {
            self.learn_base_times(&mut crew, &usable, windows, shape);
        }
        crew
    }

    /// Returns the part of the requests that each member gets.
    fn request_shares(&self, seen: &GroupLoadSample<'_>, usable: &[MemberId]) -> Vec<f64> {
        // In the order of `usable`.
        let weights = seen.members.iter().filter(|member| member.usable).map(|member| member.weight);
        let weights: Vec<f64> = weights.collect();
        if seen.by_weight {
            return group_capacity::shares(&weights);
        }
        let count = |id: &MemberId| self.estimators.get(id).map_or(0.0, |gauge| gauge.long_term_requests);
        group_capacity::shares_by_requests(&usable.iter().map(count).collect::<Vec<f64>>(), &weights)
    }

    /// Learns the time of requests alone: the measured time less the wait of the curve.
    fn learn_base_times(
        &mut self,
        crew: &mut GroupCapacity,
        usable: &[MemberId],
        windows: &BTreeMap<MemberId, LoadWindow>,
        shape: &ServiceDistribution,
    ) {
        let kept = decay_factor(WINDOW, MEMORY);
        let learn = |base: &mut BaseServiceTime, station: &Station, requests: f64, took: f64, load: f64| {
            let left = 1.0 - load / station.capacity;
            if requests < FEW || left < NEAR {
                return;
            }
            let alone = took / requests - station.wait(load / station.part.max(1e-12), shape);
            let least = LEAST_ALONE * took / requests;
            base.add(alone.max(least), requests * left * left, kept);
        };
        if crew.by_load {
            let Some(station) = crew.stations().first().copied() else { return };
            let (mut requests, mut took, mut seconds) = (0.0, 0.0, 0.0_f64);
            for window in usable.iter().filter_map(|id| windows.get(id)).filter(|window| window.is_steady()) {
                requests += window.requests;
                took += window.request_seconds;
                seconds = seconds.max(window.seconds);
            }
            learn(&mut self.base, &station, requests, took, requests / seconds.max(1e-9));
            let base = self.base.seconds();
            crew.members.iter_mut().for_each(|mate| mate.base = base.unwrap_or(mate.base));
            return;
        }
        for (mate, id) in crew.members.iter_mut().zip(usable) {
            let Some(gauge) = self.estimators.get_mut(id) else { continue };
            let station = Station {
                capacity: mate.capacity,
                servers: mate.servers,
                base: mate.base,
                shared: mate.shared,
                part: 1.0,
            };
            if let Some(window) = windows.get(id).filter(|window| window.is_steady()) {
                learn(&mut gauge.base, &station, window.requests, window.request_seconds, window.rate());
            }
            mate.base = gauge.base.seconds().unwrap_or(mate.base);
        }
    }

    /// Returns the sources of the known capacities.
    pub(super) fn capacity_source(&self, seen: &GroupLoadSample<'_>) -> String {
        let usable = seen.members.iter().filter(|member| member.usable);
        let known = usable.filter_map(|member| self.estimators.get(&member.id)?.estimate);
        let mut sources: Vec<&str> =
            known.filter(member_estimate::CapacityEstimate::known).map(|one| one.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.join("; ")
    }
}

/// The minimum free share of the capacity at which the mean time alone is learnt.
const NEAR: f64 = 0.1;

/// The minimum of the time alone as a share of a request's time: the curve's wait is not exact.
const LEAST_ALONE: f64 = 0.3;
