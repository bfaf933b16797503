//! The group, built from the known capacities of its members.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::curve::{ServiceDistribution, Station};
use super::group_capacity::{self, GroupCapacity, MemberCapacity};
use super::member_estimate::{self, BaseServiceTime, LoadWindow};
use super::peer_capacity::{self, CapacityGuess, PeerCapacity};
use super::{CapacityEstimator, GroupLoadSample, LONG_HALF_LIFE, MIN_REQUESTS, WINDOW, decay_factor};
use crate::MemberId;

impl CapacityEstimator {
    /// Builds the group from its usable members. Those without measurements of their own are estimated from
    /// their peers.
    pub(super) fn build_group(
        &mut self,
        sample: &GroupLoadSample<'_>,
        windows: &BTreeMap<MemberId, LoadWindow>,
        shape: &ServiceDistribution,
    ) -> GroupCapacity {
        let usable: Vec<MemberId> = self.usable.clone();
        let known_estimate = |id: &MemberId| {
            self.estimators
                .get(id)
                .and_then(|estimator| estimator.estimate)
                .filter(member_estimate::CapacityEstimate::known)
        };
        let units = sample.members.iter().filter(|member| member.usable).map(|member| member.capacity);
        let peers: Vec<PeerCapacity> = usable
            .iter()
            .zip(units)
            .map(|(id, unit)| {
                let estimator = self.estimators.get(id);
                let (min_capacity, max_capacity) =
                    estimator.map_or((0.0, f64::INFINITY), |estimator| estimator.observed_bounds());
                let base_latency = estimator.and_then(|estimator| estimator.base_latency());
                PeerCapacity {
                    unit,
                    known: known_estimate(id).map(|estimate| estimate.best),
                    min_capacity,
                    max_capacity,
                    base_seconds: base_latency,
                }
            })
            .collect();
        let (guesses, shared_variance) = peer_capacity::guess_capacities(&peers).unwrap_or_default();
        let mut guesses = guesses.into_iter();
        // The discipline of most known members.
        let shared = 2 * usable.iter().filter_map(&known_estimate).filter(|estimate| estimate.shared).count()
            >= usable.iter().filter_map(&known_estimate).count();
        let shares = self.request_shares(sample, &usable);
        let mut group = GroupCapacity {
            members: Vec::with_capacity(usable.len()),
            by_load: sample.by_load,
            shared_variance,
        };
        for ((id, peer), share) in usable.iter().zip(&peers).zip(shares) {
            let member = match known_estimate(id) {
                Some(estimate) => MemberCapacity {
                    capacity: estimate.best,
                    low: estimate.low,
                    high: estimate.high,
                    from_peers: false,
                    servers: estimate.servers,
                    shared: estimate.shared,
                    base: estimate.servers / estimate.best,
                    part: share,
                },
                None => {
                    let unbounded = CapacityGuess { best: peer.min_capacity, high: f64::INFINITY };
                    let CapacityGuess { best, high } = guesses.next().unwrap_or(unbounded);
                    let servers =
                        peer.base_seconds.map_or(1.0, |base_seconds| (best * base_seconds).max(1.0));
                    let base = servers / best.max(f64::MIN_POSITIVE);
                    MemberCapacity {
                        capacity: best,
                        low: peer.min_capacity,
                        high,
                        from_peers: true,
                        servers,
                        shared,
                        base,
                        part: share,
                    }
                }
            };
            group.members.push(member);
        }
        if group.is_known() {
            self.learn_base_times(&mut group, &usable, windows, shape);
        }
        group
    }

    /// Returns the part of the requests that each member gets.
    fn request_shares(&self, sample: &GroupLoadSample<'_>, usable: &[MemberId]) -> Vec<f64> {
        // In the order of `usable`.
        let weights = sample.members.iter().filter(|member| member.usable).map(|member| member.weight);
        let weights: Vec<f64> = weights.collect();
        if sample.by_weight {
            return group_capacity::shares(&weights);
        }
        let count =
            |id: &MemberId| self.estimators.get(id).map_or(0.0, |estimator| estimator.long_term_requests);
        group_capacity::shares_by_requests(&usable.iter().map(count).collect::<Vec<f64>>(), &weights)
    }

    /// Learns the time of requests alone: the measured time less the wait of the curve.
    fn learn_base_times(
        &mut self,
        group: &mut GroupCapacity,
        usable: &[MemberId],
        windows: &BTreeMap<MemberId, LoadWindow>,
        shape: &ServiceDistribution,
    ) {
        let decay = decay_factor(WINDOW, LONG_HALF_LIFE);
        let learn_base = |base: &mut BaseServiceTime,
                          station: &Station,
                          requests: f64,
                          request_seconds: f64,
                          load: f64| {
            let free_share = 1.0 - load / station.capacity;
            if requests < MIN_REQUESTS || free_share < MIN_FREE_SHARE {
                return;
            }
            let base_seconds =
                request_seconds / requests - station.wait(load / station.part.max(1e-12), shape);
            let min_base = MIN_BASE_SHARE * request_seconds / requests;
            base.add(base_seconds.max(min_base), requests * free_share * free_share, decay);
        };
        if group.by_load {
            let Some(station) = group.stations().first().copied() else { return };
            let (mut requests, mut request_seconds, mut seconds) = (0.0, 0.0, 0.0_f64);
            for window in usable.iter().filter_map(|id| windows.get(id)).filter(|window| window.is_steady()) {
                requests += window.requests;
                request_seconds += window.request_seconds;
                seconds = seconds.max(window.seconds);
            }
            learn_base(&mut self.base, &station, requests, request_seconds, requests / seconds.max(1e-9));
            let base = self.base.seconds();
            group.members.iter_mut().for_each(|member| member.base = base.unwrap_or(member.base));
            return;
        }
        for (member, id) in group.members.iter_mut().zip(usable) {
            let Some(estimator) = self.estimators.get_mut(id) else { continue };
            let station = Station {
                capacity: member.capacity,
                servers: member.servers,
                base: member.base,
                shared: member.shared,
                part: 1.0,
            };
            if let Some(window) = windows.get(id).filter(|window| window.is_steady()) {
                learn_base(
                    &mut estimator.base,
                    &station,
                    window.requests,
                    window.request_seconds,
                    window.rate(),
                );
            }
            member.base = estimator.base.seconds().unwrap_or(member.base);
        }
    }

    /// Returns the sources of the known capacities.
    pub(super) fn capacity_source(&self, sample: &GroupLoadSample<'_>) -> String {
        let usable = sample.members.iter().filter(|member| member.usable);
        let estimates = usable.filter_map(|member| self.estimators.get(&member.id)?.estimate);
        let mut sources: Vec<&str> = estimates
            .filter(member_estimate::CapacityEstimate::known)
            .map(|estimate| estimate.source)
            .collect();
        sources.sort_unstable();
        sources.dedup();
        sources.join("; ")
    }
}

/// The minimum free share of the capacity at which the mean time alone is learnt.
const MIN_FREE_SHARE: f64 = 0.1;

/// The minimum of the time alone as a share of a request's time: the curve's wait is not exact.
const MIN_BASE_SHARE: f64 = 0.3;
