//! Side-car mode: the group is one server behind this process. A meter counts its requests, and each response
//! reports its load.
//!
//! A request is in the meter from its complete arrival to the head of its response, the last moment at which
//! the response can carry a report. A byte stream, which carries no report, is in the meter from its
//! beginning to its end.
//!
//! When balancers send an alert about the server, each connection that exists then leaves with the given
//! probability. It draws once ([`AlertState`]), and leaves at the boundary of a request, or while a byte
//! stream is idle. `http/shed_clients.rs` describes how HTTP clients leave.
//!
//! Side-cars of servers on one host count in that host's meter as well ([`HostMeter`]). A meter learns from
//! the order of events, so each has a lock, which is nearly always free. A side-car's data plane has one
//! worker for all of its servers, and the only other reader uses it ten times per second. With several
//! workers, they would contend for the host's lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::meter::{HostedRequest, Meter, MeteredRequest, Reading, SharedHostMeter};
use plimsoll_wire::load_report::{self, LoadReport, NotProcessed};

use crate::runtime::sync::lock;

/// The meter of a host, shared by all side-cars of this process.
pub(crate) struct HostMeter(Mutex<SharedHostMeter>);

impl HostMeter {
    pub(crate) fn new(now: Time) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SharedHostMeter::new(now))))
    }

    /// Returns the meter's current reading.
    pub(crate) fn reading(&self) -> Reading {
        lock(&self.0).reading()
    }
}

/// The state of the server behind a side-car.
pub(crate) struct SideCar {
    /// Always locked before the host's meter.
    meter: Mutex<Meter>,
    /// Present if other servers share the host.
    host: Option<Arc<HostMeter>>,
    /// The number of the last alert, and the bits of its share as an `f32`; 0 before the first.
    packed_alert: AtomicU64,
}

impl SideCar {
    pub(crate) fn new(host: Option<Arc<HostMeter>>, now: Time) -> Self {
        Self { meter: Mutex::new(Meter::new(now)), host, packed_alert: AtomicU64::new(0) }
    }

    /// Returns the current reading of the server's own meter.
    pub(crate) fn reading(&self) -> Reading {
        lock(&self.meter).reading()
    }

    /// Adds a request to the meter. If `refuse` is `true` and there is no room, returns the reading for the
    /// rejection instead.
    fn begin(&self, refuse: bool, now: Time) -> Result<MeterSlot, Reading> {
        let mut meter = lock(&self.meter);
        let Some(host) = &self.host else {
            return if refuse && meter.is_full() {
                Err(meter.reading())
            } else {
                Ok(MeterSlot::Single(meter.begin(now)))
            };
        };
        let mut host = lock(&host.0);
        if refuse && host.is_full(&meter) {
            return Err(meter.reading());
        }
        Ok(MeterSlot::Shared(host.begin(&mut meter, now)))
    }

    /// Removes a request from the meter.
    fn end(&self, slot: MeterSlot, succeeded: bool, now: Time) -> Reading {
        let mut meter = lock(&self.meter);
        match (slot, &self.host) {
            (MeterSlot::Single(request), _) => meter.end(request, succeeded, now),
            (MeterSlot::Shared(request), Some(host)) => {
                lock(&host.0).end(&mut meter, request, succeeded, now)
            }
            // A place in the host's meter implies the host.
            (MeterSlot::Shared(_), None) => meter.reading(),
        }
    }

    /// Asks this share of the connections to leave: another alert, or with 0 the end of the last.
    pub(crate) fn request_shed(&self, share: f64) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) as f32 } else { 0.0 };
        let sequence = (self.packed_alert.load(Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
        self.packed_alert.store(sequence << 32 | u64::from(share.to_bits()), Relaxed);
    }
}

/// The meter's guard of one request or byte stream, which removes it on drop at the latest. A pointer,
/// because every request has this field and only those of side-cars need the content.
#[derive(Default)]
pub(crate) struct MeterGuard(Option<Box<MeterState>>);

enum MeterState {
    /// The body is still arriving: the request is no load of the server yet.
    Arriving { side_car: Arc<SideCar> },
    /// The request is in the meter since `begun`.
    Active { side_car: Arc<SideCar>, slot: MeterSlot, started_at: Time },
    /// There was no room: the header line that reports it.
    Rejected(Vec<u8>),
}

/// A request's place in the meter of its server, or in that and the host's.
enum MeterSlot {
    Single(MeteredRequest),
    Shared(HostedRequest),
}

impl MeterGuard {
    /// Adds a request to the meter if there is room, or if `refuse` is `false`.
    pub(crate) fn begin(side_car: &Arc<SideCar>, refuse: bool, now: Time) -> Self {
        let state = match side_car.begin(refuse, now) {
            Ok(slot) => MeterState::Active { side_car: Arc::clone(side_car), slot, started_at: now },
            Err(reading) => MeterState::Rejected(report_header(reading, Some(NotProcessed::Full))),
        };
        Self(Some(Box::new(state)))
    }

    /// Creates the guard of a request whose body is still arriving; a rejection if there is no room now.
    /// [`record_arrival`](Self::record_arrival) adds the request to the meter.
    pub(crate) fn begin_arriving(side_car: &Arc<SideCar>) -> Self {
        let is_full = {
            let meter = lock(&side_car.meter);
            side_car.host.as_ref().map_or_else(|| meter.is_full(), |host| lock(&host.0).is_full(&meter))
        };
        if is_full {
            return Self::rejected(side_car);
        }
        Self(Some(Box::new(MeterState::Arriving { side_car: Arc::clone(side_car) })))
    }

    /// Returns `true` if the body is still arriving.
    #[inline]
    pub(crate) fn is_arriving(&self) -> bool {
        matches!(self.0.as_deref(), Some(MeterState::Arriving { .. }))
    }

    /// Adds a request to the meter whose body has arrived.
    pub(crate) fn record_arrival(&mut self, now: Time) {
        if let Some(MeterState::Arriving { side_car }) = self.0.as_deref() {
            *self = Self::begin(&Arc::clone(side_car), false, now);
        }
    }

    /// Creates the guard of a request that is rejected although there may be room, so that its client leaves.
    pub(crate) fn rejected(side_car: &SideCar) -> Self {
        Self(Some(Box::new(MeterState::Rejected(report_header(
            side_car.reading(),
            Some(NotProcessed::Full),
        )))))
    }

    /// Returns the header line of a rejection; empty if there was room.
    pub(crate) fn rejection_header(&self) -> &[u8] {
        match self.0.as_deref() {
            Some(MeterState::Rejected(header)) => header,
            _ => b"",
        }
    }

    /// Returns the header line of the balancer's own response when the server cannot be reached; empty
    /// without a side-car.
    pub(crate) fn unreachable_header(&self) -> Vec<u8> {
        match self.0.as_deref() {
            Some(MeterState::Active { side_car, .. } | MeterState::Arriving { side_car }) => {
                report_header(side_car.reading(), Some(NotProcessed::Away))
            }
            Some(MeterState::Rejected(header)) => header.clone(),
            None => Vec::new(),
        }
    }

    /// Records the head of the response, and returns the header line for it, if this is a side-car. `theirs`
    /// is the server's own value of that header. The clock is read for this: the meter would learn little
    /// from the time of an earlier event.
    pub(crate) fn record_response(
        &mut self,
        status: u16,
        member_report: Option<&[u8]>,
        tick: impl FnOnce() -> Time,
    ) -> Vec<u8> {
        if self.0.is_none() {
            return Vec::new();
        }
        let mut header =
            self.end(status < 500, tick()).map_or_else(Vec::new, |reading| report_header(reading, None));
        if let Some(member_report) = member_report {
            load_report::merge(member_report, &mut header);
        }
        header
    }

    /// Ends the request, and returns the meter's reading, if this is a side-car.
    pub(crate) fn end(&mut self, succeeded: bool, now: Time) -> Option<Reading> {
        match *self.0.take()? {
            MeterState::Active { side_car, slot, .. } => Some(side_car.end(slot, succeeded, now)),
            MeterState::Arriving { side_car } => Some(side_car.reading()),
            MeterState::Rejected(_) => None,
        }
    }
}

impl Drop for MeterGuard {
    fn drop(&mut self) {
        if let Some(MeterState::Active { started_at, .. }) = self.0.as_deref() {
            let started_at = *started_at;
            self.end(false, started_at);
        }
    }
}

/// A client connection's state of alerts.
#[derive(Default)]
pub(crate) struct AlertState(Option<AlertTracker>);

struct AlertTracker {
    side_car: Arc<SideCar>,
    /// The number of the last alert for which it has drawn, or that preceded it.
    alert_sequence: u32,
    /// Whether its client has left although the connection is kept, and how often.
    has_left: bool,
    departures: u32,
    /// The time until which a client that has returned is exempt.
    exempt_until: Time,
}

/// The minimum stay of a client that has returned; it doubles each further time.
const MIN_STAY: Duration = Duration::from_secs(8);

impl AlertState {
    /// Creates the state of a new connection, to which earlier alerts do not apply.
    pub(crate) fn begin(side_car: Option<&Arc<SideCar>>) -> Self {
        Self(side_car.map(|side_car| {
            let alert_sequence = (side_car.packed_alert.load(Relaxed) >> 32) as u32;
            AlertTracker {
                side_car: Arc::clone(side_car),
                alert_sequence,
                has_left: false,
                departures: 0,
                exempt_until: Time(0),
            }
        }))
    }

    /// Records that its client leaves, and may return on the same connection.
    pub(crate) fn record_departure(&mut self) {
        if let Some(tracker) = &mut self.0 {
            tracker.has_left = true;
        }
    }

    /// Returns `true` if its client has returned recently. Then alerts do not apply to it: a few clients that
    /// go back and forth do not balance the load.
    pub(crate) fn is_exempt(&mut self, now: Time) -> bool {
        let Some(tracker) = &mut self.0 else { return false };
        if std::mem::take(&mut tracker.has_left) {
            tracker.exempt_until = now + MIN_STAY * (1 << tracker.departures.min(8));
            tracker.departures += 1;
        }
        now < tracker.exempt_until
    }

    /// Returns `true` if there is an alert for which it has not drawn.
    #[inline]
    pub(crate) fn has_new_alert(&self) -> bool {
        self.0.as_ref().is_some_and(|tracker| {
            (tracker.side_car.packed_alert.load(Relaxed) >> 32) as u32 != tracker.alert_sequence
        })
    }

    /// Returns `true` if the connection should leave now. Draws once for each alert, from 64 random bits;
    /// always `false` without a side-car.
    pub(crate) fn should_leave(&mut self, random_bits: impl FnOnce() -> u64) -> bool {
        let Some(AlertTracker { side_car, alert_sequence: seen_sequence, .. }) = &mut self.0 else {
            return false;
        };
        let alert = side_car.packed_alert.load(Relaxed);
        let (sequence, share) = ((alert >> 32) as u32, f32::from_bits(alert as u32));
        if std::mem::replace(seen_sequence, sequence) == sequence {
            return false;
        }
        // The 24 bits of precision of a share.
        ((random_bits() >> 40) as f32) < share * (1 << 24) as f32
    }
}

fn report_header(reading: Reading, not_processed: Option<NotProcessed>) -> Vec<u8> {
    let mut header = Vec::with_capacity(256);
    load_report::write(&LoadReport { reading, not_processed }, &mut header);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_asked_once_by_each_alert_and_not_by_those_before_them() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut early_connections: Vec<AlertState> =
            (0..1000).map(|_| AlertState::begin(Some(&side_car))).collect();
        let mut random_bits = 0_u64;
        let mut count_leaving = |connections: &mut [AlertState]| {
            let mut count = 0;
            for connection in connections {
                random_bits = random_bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
                count += usize::from(connection.should_leave(|| random_bits));
            }
            count
        };
        assert_eq!(count_leaving(&mut early_connections), 0);
        side_car.request_shed(0.3);
        let mut late_connections = vec![AlertState::begin(Some(&side_car))];
        assert!(
            early_connections[0].has_new_alert()
                && !late_connections[0].has_new_alert()
                && !AlertState::begin(None).has_new_alert()
        );
        let leaving = count_leaving(&mut early_connections);
        assert!((250..=350).contains(&leaving), "{leaving}");
        assert_eq!((count_leaving(&mut early_connections), count_leaving(&mut late_connections)), (0, 0));
        assert!(!early_connections[0].has_new_alert(), "it was asked");
        side_car.request_shed(1.0);
        assert_eq!((count_leaving(&mut early_connections), count_leaving(&mut late_connections)), (1000, 1));
        side_car.request_shed(1.0);
        assert_eq!(count_leaving(&mut early_connections), 1000);
        let mut connection = early_connections.remove(0);
        for (departure, exempt_seconds) in [8, 16, 32].into_iter().enumerate() {
            let returned_at = Time(0) + Duration::from_secs(100) * departure as u32;
            assert!(!connection.is_exempt(returned_at));
            connection.record_departure();
            assert!(connection.is_exempt(returned_at), "it is back");
            assert!(connection.is_exempt(returned_at + Duration::from_millis(exempt_seconds * 1000 - 1)));
            assert!(!connection.is_exempt(returned_at + Duration::from_secs(exempt_seconds)));
        }
        side_car.request_shed(0.0);
        assert_eq!(count_leaving(&mut early_connections), 0);
        side_car.request_shed(f64::NAN);
        assert_eq!(
            (count_leaving(&mut early_connections), AlertState::begin(None).should_leave(|| 0)),
            (0, false)
        );
    }

    /// Serves bursts of requests one at a time until evidence bounds the knee. Returns the time at which that
    /// is so.
    fn close_knee(side_car: &Arc<SideCar>, reading: impl Fn() -> Reading) -> Time {
        let mut now = Time(0);
        for size in [1, 6, 2, 8].into_iter().cycle().take(2_000) {
            let burst: Vec<MeterGuard> = (0..size).map(|_| MeterGuard::begin(side_car, false, now)).collect();
            for mut request in burst {
                now = now + Duration::from_millis(10);
                request.record_response(200, None, || now);
            }
            if !reading().open {
                return now;
            }
        }
        panic!("the knee is open after 2,000 bursts: {:?}", reading());
    }

    /// Begins requests until one is refused. Returns those that were not.
    fn fill(side_car: &Arc<SideCar>, now: Time) -> Vec<MeterGuard> {
        let guards = (0..64).map(|_| MeterGuard::begin(side_car, true, now));
        let admitted: Vec<MeterGuard> =
            guards.take_while(|request| request.rejection_header().is_empty()).collect();
        assert!((1..64).contains(&admitted.len()), "{}", admitted.len());
        admitted
    }

    #[test]
    fn a_meter_that_is_full_refuses_if_it_may() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let guards: Vec<MeterGuard> =
            (0..1000).map(|_| MeterGuard::begin(&side_car, true, Time(0))).collect();
        assert!(
            guards.iter().all(|guard| guard.rejection_header().is_empty()),
            "no evidence calls them too many"
        );
        drop(guards);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = close_knee(&side_car, || side_car.reading());
        let mut admitted = fill(&side_car, now);
        let rejected = MeterGuard::begin(&side_car, true, now);
        assert!(String::from_utf8_lossy(rejected.rejection_header()).contains("full=1"));
        assert!(MeterGuard::begin(&side_car, false, now).rejection_header().is_empty());
        assert_eq!(side_car.reading().in_flight as usize, admitted.len());
        assert!(
            admitted
                .pop()
                .unwrap()
                .record_response(200, None, || now + Duration::from_millis(1))
                .starts_with(b"endpoint-load-metrics: TEXT ")
        );
        drop(admitted);
        assert_eq!(side_car.reading().in_flight, 0);
    }

    #[test]
    fn a_request_is_load_once_its_body_has_come() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut uploads: Vec<MeterGuard> = (0..100).map(|_| MeterGuard::begin_arriving(&side_car)).collect();
        assert!(uploads.iter().all(|upload| upload.rejection_header().is_empty()));
        assert_eq!(side_car.reading().in_flight, 0);
        uploads[0].record_arrival(Time(1_000_000));
        uploads[0].record_arrival(Time(2_000_000));
        assert_eq!(side_car.reading().in_flight, 1);
        // A response that does not wait for the body reports the server's load.
        assert!(
            uploads[1].record_response(413, None, || Time(2_000_000)).starts_with(b"endpoint-load-metrics")
        );
        drop(uploads);
        assert_eq!(side_car.reading().in_flight, 0);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = close_knee(&side_car, || side_car.reading());
        let _admitted = fill(&side_car, now);
        assert!(!MeterGuard::begin_arriving(&side_car).rejection_header().is_empty());
    }

    #[test]
    fn servers_of_one_host_refuse_for_each_other_and_share_its_slots() {
        let host = HostMeter::new(Time(0));
        let [first, second] = [(), ()].map(|()| Arc::new(SideCar::new(Some(Arc::clone(&host)), Time(0))));
        let respond_in_slot = |guard: Option<MeterGuard>, now| {
            let header = guard.unwrap().record_response(200, None, || Time(now));
            String::from_utf8(header).unwrap().contains("slot=1")
        };
        let mut guards: Vec<MeterGuard> = (0..2).map(|_| MeterGuard::begin(&first, true, Time(0))).collect();
        guards.push(MeterGuard::begin(&second, true, Time(0)));
        assert!(
            !respond_in_slot(guards.pop(), 1_000_000),
            "the host's knee begins at 2, and two are in flight"
        );
        assert_eq!(second.reading().in_flight, 0);
        assert!(respond_in_slot(guards.pop(), 2_000_000), "one is promised, one is there");
        assert!(
            !respond_in_slot(Some(MeterGuard::begin(&second, true, Time(2_000_000))), 2_500_000),
            "and no more"
        );
        drop(guards);
        assert_eq!(host.reading().in_flight, 0);
        // Only the first server's requests bound the knee of the host.
        let now = close_knee(&first, || host.reading());
        let host_limit = fill(&second, now).len();
        let mut guards: Vec<MeterGuard> = (0..2).map(|_| MeterGuard::begin(&first, true, now)).collect();
        guards.extend(fill(&second, now));
        assert_eq!(guards.len(), host_limit, "the limit is of the host");
        for (side_car, in_flight_text) in
            [(&first, "rif=2,".to_owned()), (&second, format!("rif={},", host_limit - 2))]
        {
            let rejected = MeterGuard::begin(side_car, true, now);
            let header = String::from_utf8_lossy(rejected.rejection_header()).into_owned();
            assert!(header.contains(&in_flight_text) && header.contains("full=1"), "{header}");
        }
        let in_flight_counts =
            [first.reading().in_flight, second.reading().in_flight, host.reading().in_flight];
        assert_eq!(in_flight_counts, [2, host_limit as u32 - 2, host_limit as u32]);
        drop(guards);
        assert_eq!(host.reading().in_flight, 0);
    }
}
