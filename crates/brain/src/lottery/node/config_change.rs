//! Changes of a running daemon's settings. A new capacity goes into the next report, which is sent at once.
//! Others learn of another offer, or of the same at another endpoint, as they learn of a new life: so the
//! daemon begins one. A service in both offers keeps its load, and at once gets its previous share.

use alloc::vec::Vec;
use core::time::Duration;

use super::{LocalService, LotteryNode};
use crate::Time;
use crate::lottery::message::{MAX_SERVICES, ServiceOffer};
use crate::lottery::siphash::SipHashKey;
use crate::lottery::weight::SmoothedLoad;

/// The new settings of a daemon; the other ones stay.
#[derive(Clone, Debug)]
pub struct NodeConfigChange {
    /// The new services of the server.
    pub offers: Vec<ServiceOffer>,
    /// The key of the cluster's draw.
    pub key: SipHashKey,
    /// See [`NodeConfig::ttl`](super::NodeConfig::ttl).
    pub ttl: u16,
    /// See [`NodeConfig::slow_start`](super::NodeConfig::slow_start).
    pub slow_start: Duration,
    /// See [`NodeConfig::rate`](super::NodeConfig::rate).
    pub rate: u32,
    /// See [`NodeConfig::burst`](super::NodeConfig::burst).
    pub burst: u32,
}

impl LotteryNode {
    /// Sets whether the server can serve a service now, which is `true` at first. If not, no client is sent
    /// to it; when it can again it comes back slowly.
    pub fn set_ready(&mut self, now: Time, service: u32, ready: bool) {
        let Some(local_service) =
            self.services.iter_mut().find(|local_service| local_service.service == service)
        else {
            return;
        };
        if local_service.ready != ready {
            (local_service.ready, local_service.since) = (ready, now);
            self.next_report = now;
        }
    }

    /// Holds a service, so that no client is sent to it whatever the server's state, or releases it slowly.
    /// It is the equivalent of [`set_draining`](Self::set_draining) for one service, and lasts through
    /// changes. Returns `false` if there is no such service.
    pub fn hold(&mut self, now: Time, service: u32, is_held: bool) -> bool {
        let Some(local_service) =
            self.services.iter_mut().find(|local_service| local_service.service == service)
        else {
            return false;
        };
        if local_service.held != is_held {
            (local_service.held, local_service.since) = (is_held, now);
            self.next_report = now;
        }
        true
    }

    /// Applies new settings, and returns whether they are in force. Another offer needs an `incarnation`
    /// greater than the present one, unless only capacities differ. A new service counts as ready.
    pub fn apply_change(&mut self, now: Time, change: NodeConfigChange, incarnation: u32) -> bool {
        let NodeConfigChange { mut offers, key, ttl, slow_start, rate, burst } = change;
        offers.truncate(MAX_SERVICES);
        let offers_changed = offers != self.config.offers;
        let needs_incarnation = !is_same_offer(&offers, &self.config.offers);
        if needs_incarnation && incarnation <= self.config.incarnation {
            return false;
        }
        (self.config.ttl, self.config.slow_start) = (ttl, slow_start);
        (self.config.rate, self.config.burst, self.config.key) = (rate, burst, key);
        self.source_limits.set_rate(rate, burst);
        if offers_changed {
            let previous_services = core::mem::take(&mut self.services);
            let service_for = |offer: &ServiceOffer| match previous_services
                .iter()
                .find(|local_service| local_service.service == offer.service)
            {
                Some(local_service) => LocalService { capacity: offer.capacity, ..local_service.clone() },
                None => LocalService::new(offer, now),
            };
            self.services = offers.iter().map(service_for).collect();
            self.config.offers = offers;
            self.describe_self();
            self.next_report = now;
        }
        if needs_incarnation {
            let since = self.since;
            self.rejoin(now, incarnation);
            self.since = since;
        }
        true
    }
}

/// Returns `true` if they are equal except for the capacities.
fn is_same_offer(left: &[ServiceOffer], right: &[ServiceOffer]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|(left_offer, right_offer)| {
            ServiceOffer { capacity: right_offer.capacity, ..left_offer.clone() } == *right_offer
        })
}

impl LocalService {
    /// Returns a service that the server can serve from `now` on.
    pub(super) fn new(offer: &ServiceOffer, now: Time) -> Self {
        Self {
            service: offer.service,
            capacity: offer.capacity,
            gauge: SmoothedLoad::default(),
            in_flight: 0,
            sent_weight: 0,
            ready: true,
            since: now,
            held: false,
        }
    }
}
