//! The group, built from the known capacities of its members.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::crew::{self, Crew, Mate};
use super::curve::{Shape, Station};
use super::gauge::{self, Base, Window};
use super::peers::{self, Guess, Peer};
use super::{Estimator, FEW, MEMORY, Seen, WINDOW, keep};
use crate::MemberId;

impl Estimator {
    /// Builds the group from its usable members. Those without measurements of their own are estimated from
    /// their peers.
    pub(super) fn muster(
        &mut self,
        seen: &Seen<'_>,
        windows: &BTreeMap<MemberId, Window>,
        shape: &Shape,
    ) -> Crew {
        let usable: Vec<MemberId> = self.crew.clone();
        let known = |id: &MemberId| {
            self.gauges.get(id).and_then(|gauge| gauge.estimate).filter(gauge::Estimate::known)
        };
        let units = seen.members.iter().filter(|member| member.usable).map(|member| member.capacity);
        let peers: Vec<Peer> = usable
            .iter()
            .zip(units)
            .map(|(id, unit)| {
                let gauge = self.gauges.get(id);
                let (least, most) = gauge.map_or((0.0, f64::INFINITY), |gauge| gauge.ends());
                let alone = gauge.and_then(|gauge| gauge.alone());
                Peer { unit, known: known(id).map(|one| one.best), least, most, alone }
            })
            .collect();
        let (guesses, together) = peers::guesses(&peers).unwrap_or_default();
        let mut guesses = guesses.into_iter();
        // The discipline of most known members.
        let shared = 2 * usable.iter().filter_map(&known).filter(|one| one.shared).count()
            >= usable.iter().filter_map(&known).count();
        let parts = self.parts(seen, &usable);
        let mut crew = Crew { mates: Vec::with_capacity(usable.len()), by_load: seen.by_load, together };
        for ((id, peer), part) in usable.iter().zip(&peers).zip(parts) {
            let mate = match known(id) {
                Some(one) => Mate {
                    capacity: one.best,
                    low: one.low,
                    high: one.high,
                    guess: false,
                    servers: one.servers,
                    shared: one.shared,
                    base: one.servers / one.best,
                    part,
                },
                None => {
                    let nothing = Guess { best: peer.least, high: f64::INFINITY };
                    let Guess { best, high } = guesses.next().unwrap_or(nothing);
                    let servers = peer.alone.map_or(1.0, |alone| (best * alone).max(1.0));
                    let base = servers / best.max(f64::MIN_POSITIVE);
                    Mate { capacity: best, low: peer.least, high, guess: true, servers, shared, base, part }
                }
            };
            crew.mates.push(mate);
        }
        if crew.is_known() {
            self.alone(&mut crew, &usable, windows, shape);
        }
        crew
    }

    /// Returns the part of the requests that each member gets.
    fn parts(&self, seen: &Seen<'_>, usable: &[MemberId]) -> Vec<f64> {
        // In the order of `usable`.
        let weights = seen.members.iter().filter(|member| member.usable).map(|member| member.weight);
        let weights: Vec<f64> = weights.collect();
        if seen.by_weight {
            return crew::shares(&weights);
        }
        let count = |id: &MemberId| self.gauges.get(id).map_or(0.0, |gauge| gauge.long);
        crew::parts(&usable.iter().map(count).collect::<Vec<f64>>(), &weights)
    }

    /// Learns the time of requests alone: the measured time less the wait of the curve.
    fn alone(
        &mut self,
        crew: &mut Crew,
        usable: &[MemberId],
        windows: &BTreeMap<MemberId, Window>,
        shape: &Shape,
    ) {
        let kept = keep(WINDOW, MEMORY);
        let learn = |base: &mut Base, station: &Station, requests: f64, took: f64, load: f64| {
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
            for window in usable.iter().filter_map(|id| windows.get(id)).filter(|window| window.steady()) {
                requests += window.requests;
                took += window.took;
                seconds = seconds.max(window.seconds);
            }
            learn(&mut self.base, &station, requests, took, requests / seconds.max(1e-9));
            let base = self.base.seconds();
            crew.mates.iter_mut().for_each(|mate| mate.base = base.unwrap_or(mate.base));
            return;
        }
        for (mate, id) in crew.mates.iter_mut().zip(usable) {
            let Some(gauge) = self.gauges.get_mut(id) else { continue };
            let station = Station {
                capacity: mate.capacity,
                servers: mate.servers,
                base: mate.base,
                shared: mate.shared,
                part: 1.0,
            };
            if let Some(window) = windows.get(id).filter(|window| window.steady()) {
                learn(&mut gauge.base, &station, window.requests, window.took, window.rate());
            }
            mate.base = gauge.base.seconds().unwrap_or(mate.base);
        }
    }

    /// Returns the sources of the known capacities.
    pub(super) fn source(&self, seen: &Seen<'_>) -> String {
        let usable = seen.members.iter().filter(|member| member.usable);
        let known = usable.filter_map(|member| self.gauges.get(&member.id)?.estimate);
        let mut sources: Vec<&str> = known.filter(gauge::Estimate::known).map(|one| one.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.join("; ")
    }
}

/// The minimum free share of the capacity at which the mean time alone is learnt.
const NEAR: f64 = 0.1;

/// The minimum of the time alone as a share of a request's time: the curve's wait is not exact.
const LEAST_ALONE: f64 = 0.3;
