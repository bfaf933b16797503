//! Side-car mode: the group is one server behind this process. A meter counts its requests, and each response
//! reports its load.
//!
//! A request is in the meter from its complete arrival to the head of its response, the last moment at which
//! the response can carry a report. A byte stream, which carries no report, is in the meter from its
//! beginning to its end.
//!
//! When balancers send an alert about the server, each connection that exists then leaves with the given
//! probability. It draws once ([`Heed`]), and leaves at the boundary of a request, or while a byte stream is
//! idle. `http/away.rs` describes how HTTP clients leave.
//!
//! Side-cars of servers on one host count in that host's meter as well ([`HostMeter`]). A meter learns from
//! the order of events, so each has a lock, which is nearly always free. A side-car's data plane has one
//! worker for all of its servers, and the only other reader uses it ten times per second. With several
//! workers, they would contend for the host's lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::meter::{Host, Job, Jobs, Meter, Reading};
use plimsoll_wire::reading::{self, Said, Unseen};

use crate::inner::lock;

/// The meter of a host, shared by all side-cars of this process.
pub(crate) struct HostMeter(Mutex<Host>);

impl HostMeter {
    pub(crate) fn new(now: Time) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Host::new(now))))
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
    alert: AtomicU64,
}

impl SideCar {
    pub(crate) fn new(host: Option<Arc<HostMeter>>, now: Time) -> Self {
        Self { meter: Mutex::new(Meter::new(now)), host, alert: AtomicU64::new(0) }
    }

    /// Returns the current reading of the server's own meter.
    pub(crate) fn reading(&self) -> Reading {
        lock(&self.meter).reading()
    }

    /// Adds a request to the meter. If `refuse` is `true` and there is no room, returns the reading for the
    /// rejection instead.
    fn begin(&self, refuse: bool, now: Time) -> Result<Seat, Reading> {
        let mut own = lock(&self.meter);
        let Some(host) = &self.host else {
            return if refuse && own.full() { Err(own.reading()) } else { Ok(Seat::Own(own.begin(now))) };
        };
        let mut host = lock(&host.0);
        if refuse && host.full(&own) {
            return Err(own.reading());
        }
        Ok(Seat::Shared(host.begin(&mut own, now)))
    }

    /// Removes a request from the meter.
    fn end(&self, seat: Seat, succeeded: bool, now: Time) -> Reading {
        let mut own = lock(&self.meter);
        match (seat, &self.host) {
            (Seat::Own(job), _) => own.end(job, succeeded, now),
            (Seat::Shared(jobs), Some(host)) => lock(&host.0).end(&mut own, jobs, succeeded, now),
            // A place in the host's meter implies the host.
            (Seat::Shared(_), None) => own.reading(),
        }
    }

    /// Asks this share of the connections to leave: another alert, or with 0 the end of the last.
    pub(crate) fn shed(&self, share: f64) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) as f32 } else { 0.0 };
        let number = (self.alert.load(Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
        self.alert.store(number << 32 | u64::from(share.to_bits()), Relaxed);
    }
}

/// The meter's guard of one request or byte stream, which removes it on drop at the latest. A pointer,
/// because every request has this field and only those of side-cars need the content.
#[derive(Default)]
pub(crate) struct Metered(Option<Box<Count>>);

enum Count {
    /// The body is still arriving: the request is no load of the server yet.
    Coming { side_car: Arc<SideCar> },
    /// The request is in the meter since `begun`.
    In { side_car: Arc<SideCar>, seat: Seat, begun: Time },
    /// There was no room: the header line that reports it.
    Refused(Vec<u8>),
}

/// A request's place in the meter of its server, or in that and the host's.
enum Seat {
    Own(Job),
    Shared(Jobs),
}

impl Metered {
    /// Adds a request to the meter if there is room, or if `refuse` is `false`.
    pub(crate) fn begin(side_car: &Arc<SideCar>, refuse: bool, now: Time) -> Self {
        let count = match side_car.begin(refuse, now) {
            Ok(seat) => Count::In { side_car: Arc::clone(side_car), seat, begun: now },
            Err(reading) => Count::Refused(line(reading, Some(Unseen::Full))),
        };
        Self(Some(Box::new(count)))
    }

    /// Creates the guard of a request whose body is still arriving; a rejection if there is no room now.
    /// [`came`](Self::came) adds the request to the meter.
    pub(crate) fn begin_coming(side_car: &Arc<SideCar>) -> Self {
        let full = {
            let own = lock(&side_car.meter);
            side_car.host.as_ref().map_or_else(|| own.full(), |host| lock(&host.0).full(&own))
        };
        if full {
            return Self::unwanted(side_car);
        }
        Self(Some(Box::new(Count::Coming { side_car: Arc::clone(side_car) })))
    }

    /// Returns `true` if the body is still arriving.
    #[inline]
    pub(crate) fn is_coming(&self) -> bool {
        matches!(self.0.as_deref(), Some(Count::Coming { .. }))
    }

    /// Adds a request to the meter whose body has arrived.
    pub(crate) fn came(&mut self, now: Time) {
        if let Some(Count::Coming { side_car }) = self.0.as_deref() {
            *self = Self::begin(&Arc::clone(side_car), false, now);
        }
    }

    /// Creates the guard of a request that is rejected although there may be room, so that its client leaves.
    pub(crate) fn unwanted(side_car: &SideCar) -> Self {
        Self(Some(Box::new(Count::Refused(line(side_car.reading(), Some(Unseen::Full))))))
    }

    /// Returns the header line of a rejection; empty if there was room.
    pub(crate) fn refusal(&self) -> &[u8] {
        match self.0.as_deref() {
            Some(Count::Refused(line)) => line,
            _ => b"",
        }
    }

    /// Returns the header line of the balancer's own response when the server cannot be reached; empty
    /// without a side-car.
    pub(crate) fn away(&self) -> Vec<u8> {
        match self.0.as_deref() {
            Some(Count::In { side_car, .. } | Count::Coming { side_car }) => {
                line(side_car.reading(), Some(Unseen::Away))
            }
            Some(Count::Refused(line)) => line.clone(),
            None => Vec::new(),
        }
    }

    /// Records the head of the response, and returns the header line for it, if this is a side-car. `theirs`
    /// is the server's own value of that header. The clock is read for this: the meter would learn little
    /// from the time of an earlier event.
    pub(crate) fn answered(
        &mut self,
        status: u16,
        theirs: Option<&[u8]>,
        tick: impl FnOnce() -> Time,
    ) -> Vec<u8> {
        if self.0.is_none() {
            return Vec::new();
        }
        let mut header = self.end(status < 500, tick()).map_or_else(Vec::new, |reading| line(reading, None));
        if let Some(theirs) = theirs {
            reading::join(theirs, &mut header);
        }
        header
    }

    /// Ends the request, and returns the meter's reading, if this is a side-car.
    pub(crate) fn end(&mut self, succeeded: bool, now: Time) -> Option<Reading> {
        match *self.0.take()? {
            Count::In { side_car, seat, .. } => Some(side_car.end(seat, succeeded, now)),
            Count::Coming { side_car } => Some(side_car.reading()),
            Count::Refused(_) => None,
        }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        if let Some(Count::In { begun, .. }) = self.0.as_deref() {
            let begun = *begun;
            self.end(false, begun);
        }
    }
}

/// A client connection's state of alerts.
#[derive(Default)]
pub(crate) struct Heed(Option<Heard>);

struct Heard {
    side_car: Arc<SideCar>,
    /// The number of the last alert for which it has drawn, or that preceded it.
    number: u32,
    /// Whether its client has left although the connection is kept, and how often.
    left: bool,
    times: u32,
    /// The time until which a client that has returned is exempt.
    rests: Time,
}

/// The minimum stay of a client that has returned; it doubles each further time.
const REST: Duration = Duration::from_secs(8);

impl Heed {
    /// Creates the state of a new connection, to which earlier alerts do not apply.
    pub(crate) fn begin(side_car: Option<&Arc<SideCar>>) -> Self {
        Self(side_car.map(|side_car| {
            let number = (side_car.alert.load(Relaxed) >> 32) as u32;
            Heard { side_car: Arc::clone(side_car), number, left: false, times: 0, rests: Time(0) }
        }))
    }

    /// Records that its client leaves, and may return on the same connection.
    pub(crate) fn left(&mut self) {
        if let Some(heard) = &mut self.0 {
            heard.left = true;
        }
    }

    /// Returns `true` if its client has returned recently. Then alerts do not apply to it: a few clients that
    /// go back and forth do not balance the load.
    pub(crate) fn rests(&mut self, now: Time) -> bool {
        let Some(heard) = &mut self.0 else { return false };
        if std::mem::take(&mut heard.left) {
            heard.rests = now + REST * (1 << heard.times.min(8));
            heard.times += 1;
        }
        now < heard.rests
    }

    /// Returns `true` if there is an alert for which it has not drawn.
    #[inline]
    pub(crate) fn news(&self) -> bool {
        self.0.as_ref().is_some_and(|heard| (heard.side_car.alert.load(Relaxed) >> 32) as u32 != heard.number)
    }

    /// Returns `true` if the connection should leave now. Draws once for each alert, from 64 random bits;
    /// always `false` without a side-car.
    pub(crate) fn goes(&mut self, chance: impl FnOnce() -> u64) -> bool {
        let Some(Heard { side_car, number: heard, .. }) = &mut self.0 else { return false };
        let alert = side_car.alert.load(Relaxed);
        let (number, share) = ((alert >> 32) as u32, f32::from_bits(alert as u32));
        if std::mem::replace(heard, number) == number {
            return false;
        }
        // The 24 bits of precision of a share.
        ((chance() >> 40) as f32) < share * (1 << 24) as f32
    }
}

fn line(reading: Reading, unseen: Option<Unseen>) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    reading::write(&Said { reading, unseen }, &mut line);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_asked_once_by_each_alert_and_not_by_those_before_them() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut early: Vec<Heed> = (0..1000).map(|_| Heed::begin(Some(&side_car))).collect();
        let mut chance = 0_u64;
        let mut gone = |all: &mut [Heed]| {
            let mut count = 0;
            for one in all {
                chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
                count += usize::from(one.goes(|| chance));
            }
            count
        };
        assert_eq!(gone(&mut early), 0);
        side_car.shed(0.3);
        let mut late = vec![Heed::begin(Some(&side_car))];
        assert!(early[0].news() && !late[0].news() && !Heed::begin(None).news());
        let share = gone(&mut early);
        assert!((250..=350).contains(&share), "{share}");
        assert_eq!((gone(&mut early), gone(&mut late)), (0, 0));
        assert!(!early[0].news(), "it was asked");
        side_car.shed(1.0);
        assert_eq!((gone(&mut early), gone(&mut late)), (1000, 1));
        side_car.shed(1.0);
        assert_eq!(gone(&mut early), 1000);
        let mut one = early.remove(0);
        for (time, rest) in [8, 16, 32].into_iter().enumerate() {
            let back = Time(0) + Duration::from_secs(100) * time as u32;
            assert!(!one.rests(back));
            one.left();
            assert!(one.rests(back), "it is back");
            assert!(one.rests(back + Duration::from_millis(rest * 1000 - 1)));
            assert!(!one.rests(back + Duration::from_secs(rest)));
        }
        side_car.shed(0.0);
        assert_eq!(gone(&mut early), 0);
        side_car.shed(f64::NAN);
        assert_eq!((gone(&mut early), Heed::begin(None).goes(|| 0)), (0, false));
    }

    /// Serves bursts of requests one at a time until evidence bounds the knee. Returns the time at which that is so.
    fn bounded(side_car: &Arc<SideCar>, knee: impl Fn() -> Reading) -> Time {
        let mut now = Time(0);
        for size in [1, 6, 2, 8].into_iter().cycle().take(2_000) {
            let burst: Vec<Metered> = (0..size).map(|_| Metered::begin(side_car, false, now)).collect();
            for mut request in burst {
                now = now + Duration::from_millis(10);
                request.answered(200, None, || now);
            }
            if !knee().open {
                return now;
            }
        }
        panic!("the knee is open after 2,000 bursts: {:?}", knee());
    }

    /// Begins requests until one is refused. Returns those that were not.
    fn fill(side_car: &Arc<SideCar>, now: Time) -> Vec<Metered> {
        let begun = (0..64).map(|_| Metered::begin(side_car, true, now));
        let held: Vec<Metered> = begun.take_while(|request| request.refusal().is_empty()).collect();
        assert!((1..64).contains(&held.len()), "{}", held.len());
        held
    }

    #[test]
    fn a_meter_that_is_full_refuses_if_it_may() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let unknown: Vec<Metered> = (0..1000).map(|_| Metered::begin(&side_car, true, Time(0))).collect();
        assert!(unknown.iter().all(|one| one.refusal().is_empty()), "no evidence calls them too many");
        drop(unknown);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = bounded(&side_car, || side_car.reading());
        let mut held = fill(&side_car, now);
        let refused = Metered::begin(&side_car, true, now);
        assert!(String::from_utf8_lossy(refused.refusal()).contains("full=1"));
        assert!(Metered::begin(&side_car, false, now).refusal().is_empty());
        assert_eq!(side_car.reading().in_flight as usize, held.len());
        assert!(
            held.pop()
                .unwrap()
                .answered(200, None, || now + Duration::from_millis(1))
                .starts_with(b"endpoint-load-metrics: TEXT ")
        );
        drop(held);
        assert_eq!(side_car.reading().in_flight, 0);
    }

    #[test]
    fn a_request_is_load_once_its_body_has_come() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut uploads: Vec<Metered> = (0..100).map(|_| Metered::begin_coming(&side_car)).collect();
        assert!(uploads.iter().all(|one| one.refusal().is_empty()));
        assert_eq!(side_car.reading().in_flight, 0);
        uploads[0].came(Time(1_000_000));
        uploads[0].came(Time(2_000_000));
        assert_eq!(side_car.reading().in_flight, 1);
        // A response that does not wait for the body reports the server's load.
        assert!(uploads[1].answered(413, None, || Time(2_000_000)).starts_with(b"endpoint-load-metrics"));
        drop(uploads);
        assert_eq!(side_car.reading().in_flight, 0);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = bounded(&side_car, || side_car.reading());
        let _held = fill(&side_car, now);
        assert!(!Metered::begin_coming(&side_car).refusal().is_empty());
    }

    #[test]
    fn servers_of_one_host_refuse_for_each_other_and_share_its_slots() {
        let host = HostMeter::new(Time(0));
        let [one, other] = [(), ()].map(|()| Arc::new(SideCar::new(Some(Arc::clone(&host)), Time(0))));
        let answered = |metered: Option<Metered>, at| {
            let header = metered.unwrap().answered(200, None, || Time(at));
            String::from_utf8(header).unwrap().contains("slot=1")
        };
        let mut held: Vec<Metered> = (0..2).map(|_| Metered::begin(&one, true, Time(0))).collect();
        held.push(Metered::begin(&other, true, Time(0)));
        assert!(!answered(held.pop(), 1_000_000), "the host's knee begins at 2, and two are in flight");
        assert_eq!(other.reading().in_flight, 0);
        assert!(answered(held.pop(), 2_000_000), "one is promised, one is there");
        assert!(!answered(Some(Metered::begin(&other, true, Time(2_000_000))), 2_500_000), "and no more");
        drop(held);
        assert_eq!(host.reading().in_flight, 0);
        // Only the first server's requests bound the knee of the host.
        let now = bounded(&one, || host.reading());
        let all = fill(&other, now).len();
        let mut held: Vec<Metered> = (0..2).map(|_| Metered::begin(&one, true, now)).collect();
        held.extend(fill(&other, now));
        assert_eq!(held.len(), all, "the limit is of the host");
        for (side_car, own) in [(&one, "rif=2,".to_owned()), (&other, format!("rif={},", all - 2))] {
            let refused = Metered::begin(side_car, true, now);
            let said = String::from_utf8_lossy(refused.refusal()).into_owned();
            assert!(said.contains(&own) && said.contains("full=1"), "{said}");
        }
        let counts = [one.reading().in_flight, other.reading().in_flight, host.reading().in_flight];
        assert_eq!(counts, [2, all as u32 - 2, all as u32]);
        drop(held);
        assert_eq!(host.reading().in_flight, 0);
    }
}
