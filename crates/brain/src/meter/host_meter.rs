//! A common meter for several servers on one host. Each server has a meter of its own, and one more counts
//! their joint use of the host's processors.
//!
//! A server's own meter cannot know that its neighbours are about to use the same processors: each of two
//! servers on a host would promise all of them, to different balancers. So a promise needs room at both: at
//! the server, which may have fewer workers than the host has processors, and at the host. For a rejection
//! one full meter suffices.
//!
//! All other figures of a report are the server's own; neighbours appear as slower work. Reports with the
//! host's numbers are worse. Balancers then see the other servers, but half of the load comes from balancers
//! unknown to them, and they see it late. They wait less and reject more than necessary, up to a tenth of the
//! host's capacity.

use super::{Meter, MeteredRequest, Reading};
use crate::Time;

/// The meter of all requests at the servers of one host.
#[derive(Clone, Debug)]
pub struct SharedHostMeter(Meter);

/// A request between [`SharedHostMeter::begin`] and [`SharedHostMeter::end`].
#[derive(Debug, PartialEq, Eq)]
pub struct HostedRequest {
    server: MeteredRequest,
    host: MeteredRequest,
}

impl SharedHostMeter {
    /// Returns the meter of a host whose servers have just come up.
    pub fn new(now: Time) -> Self {
        Self(Meter::new(now))
    }

    /// Records the arrival of a request at the server whose meter is `own`.
    pub fn begin(&mut self, server: &mut Meter, now: Time) -> HostedRequest {
        let hosted_request =
            HostedRequest { server: server.record_arrival(now), host: self.0.record_arrival(now) };
        // Of the host's slots the request uses the one that was promised with its server's.
        if let Some(until) = server.offered_slots.pop_front() {
            self.0.withdraw(until);
        }
        hosted_request
    }

    /// Records the end of a request at the server whose meter is `own`, and returns the report for its
    /// answer. See [`Meter::end`].
    pub fn end(&mut self, server: &mut Meter, request: HostedRequest, succeeded: bool, now: Time) -> Reading {
        self.0.record_end(request.host, succeeded, now);
        server.record_end(request.server, succeeded, now);
        let slot = succeeded && server.has_room() && self.0.has_room();
        if slot {
            let until = server.record_offer();
            self.0.record_offer_until(until);
        }
        Reading { slot, ..server.reading() }
    }

    /// Returns `true` if the server or the host requires that one more request is rejected.
    pub fn is_full(&self, server: &Meter) -> bool {
        server.is_full() || self.0.is_full()
    }

    /// Returns the joint report of all servers of the host.
    pub fn reading(&self) -> Reading {
        self.0.reading()
    }
}

#[cfg(test)]
mod tests {
    use super::super::knee::KneeEstimator;
    use super::*;

    fn at_millis(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    #[test]
    fn a_slot_needs_room_at_the_server_and_at_the_host_and_is_spent_at_both() {
        let mut host = SharedHostMeter::new(at_millis(0));
        let mut servers = [Meter::new(at_millis(0)), Meter::new(at_millis(0))];
        let first = host.begin(&mut servers[0], at_millis(0));
        let second = host.begin(&mut servers[1], at_millis(0));
        let third = host.begin(&mut servers[1], at_millis(0));
        assert!(
            !host.end(&mut servers[0], first, true, at_millis(10)).slot,
            "two are there, and it is believed to take two"
        );
        assert!(host.end(&mut servers[1], second, true, at_millis(20)).slot);
        // One is in flight, and one is promised.
        let fourth = host.begin(&mut servers[0], at_millis(20));
        assert!(!host.end(&mut servers[0], fourth, true, at_millis(21)).slot);
        // The client uses its promised slot, which frees the host's slot as well.
        let fifth = host.begin(&mut servers[1], at_millis(22));
        assert!(host.end(&mut servers[1], third, true, at_millis(23)).slot);
        assert!(!host.end(&mut servers[1], fifth, false, at_millis(24)).slot, "a failure promises nothing");
        assert_eq!(
            [host.reading().in_flight, servers[0].reading().in_flight, servers[1].reading().in_flight],
            [0; 3]
        );
        let sixth = host.begin(&mut servers[0], at_millis(25));
        assert!(
            host.end(&mut servers[0], sixth, true, at_millis(26)).slot,
            "what is not used leaves room for one"
        );
        let seventh = host.begin(&mut servers[0], at_millis(10_000));
        assert!(host.end(&mut servers[0], seventh, true, at_millis(10_001)).slot, "what is not used expires");
    }

    #[test]
    fn what_is_too_much_for_the_host_is_refused_by_servers_that_are_not_full() {
        let bounded_meter = || Meter { knee: KneeEstimator::bounded(2.0), ..Meter::new(at_millis(0)) };
        let (mut host, mut servers) = (SharedHostMeter(bounded_meter()), [bounded_meter(), bounded_meter()]);
        for _ in 0..4 {
            host.begin(&mut servers[0], at_millis(0));
        }
        for _ in 0..3 {
            assert_eq!(servers.each_ref().map(|server| host.is_full(server)), [false, false]);
            host.begin(&mut servers[1], at_millis(0));
        }
        assert_eq!(servers.each_ref().map(Meter::is_full), [false, false]);
        assert_eq!(servers.each_ref().map(|server| host.is_full(server)), [true, true]);
        // Requests are not rejected without evidence that there are too many.
        host.0.knee = KneeEstimator::default();
        assert_eq!(servers.each_ref().map(|server| host.is_full(server)), [false, false]);
    }
}
