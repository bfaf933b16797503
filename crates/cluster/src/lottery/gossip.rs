//! Membership: SWIM with suspicion (Das, Gupta, Motivala, 2002), by the library foca, without I/O. Time and
//! randomness are arguments, callers poll for datagrams and news, and nothing sleeps; tests therefore run in
//! virtual time.
//!
//! Each daemon probes another one five times a second. A daemon that does not respond within 60 ms is probed
//! by three others. If it responds to none, it is suspected, and declared down unless it refutes this within
//! 400 ms. All of this travels with the probes, and with gossip to three others twenty times a second while
//! there is news. All daemons, whether five or a hundred, know of a crash in about a second.
//!
//! foca leaves three things to this module. A join request may be lost, and a daemon whose peers were all
//! down would stay alone forever; so it repeats the request while it does not see them. A daemon that was
//! suspended would declare others dead whose responses it has not read yet; so its own clock stops for the
//! same time. A daemon's identity is its address with the incarnation of its member. A restarted daemon thus
//! replaces its predecessor, and two daemons with one number are detected.

// The path is relative to the including file, as the fuzz target includes this one.
#[path = "gossip/codec.rs"]
mod codec;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Config, Foca, Identity, NoCustomBroadcast, Notification, PeriodicParams, Timer};
use plimsoll_brain::Time;
use plimsoll_wire::rfs::GossipDatagram as Datagram;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

pub(crate) use codec::DatagramSubject;
use codec::GossipCodec;

/// The identity of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) member: u16,
    /// The incarnation, which grows with each restart.
    pub(crate) incarnation: u32,
    pub(crate) address: SocketAddr,
}

impl Identity for NodeIdentity {
    type Addr = SocketAddr;

    /// Returns the identity after others declared this daemon dead: a new incarnation.
    fn renew(&self) -> Option<Self> {
        Some(Self { incarnation: self.incarnation.checked_add(1)?, ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.incarnation, self.member) > (other.incarnation, other.member)
    }
}

/// Returns a number for the incarnation of the sender. It depends on member, incarnation and address, so two
/// daemons with one number that began in the same second have different ones.
pub(crate) fn sender_incarnation(payload: &[u8]) -> u64 {
    plimsoll_brain::hash(codec::sender_bytes(payload))
}

/// Returns the subject of a gossip datagram; `None` if it is malformed.
pub(crate) fn subject(payload: &[u8]) -> Option<DatagramSubject> {
    codec::subject(payload)
}

/// A membership event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MembershipEvent {
    Up(NodeIdentity),
    Down(NodeIdentity),
    /// The others declared this daemon dead: its new incarnation.
    Renewed(u32),
}

/// A daemon's membership.
pub(crate) struct SwimMembership {
    foca: Foca<NodeIdentity, GossipCodec, SmallRng, NoCustomBroadcast>,
    runtime: FocaRuntime,
    /// The time of the next join requests.
    next_join_at: Time,
    /// The index of the next daemon to ask.
    next_join_index: usize,
    has_left: bool,
}

/// The interval of join requests to unseen daemons, and the number at once.
const JOIN_INTERVAL: Duration = Duration::from_millis(500);
const JOINS_AT_ONCE: usize = 16;

/// The sequence number at which a new incarnation begins: numbers are finite, and lower ones count as
/// replays. It is below the maximum, so that serial comparison finds the numbers of the next incarnation
/// newer.
pub(crate) const MAX_SEQUENCE: u32 = 0xf000_0000;

/// The maximum number of pending datagrams.
const MAX_PENDING: usize = 1024;

/// The delay of a timer from which the daemon counts as having been suspended.
const SUSPENSION_DELAY: Duration = Duration::from_millis(100);

impl SwimMembership {
    /// Creates the membership of a daemon that is still alone.
    pub(crate) fn new(identity: NodeIdentity, seed: u64, now: Time) -> Self {
        let foca = Foca::new(identity, foca_config(), SmallRng::seed_from_u64(seed), GossipCodec);
        let runtime = FocaRuntime { now, ..FocaRuntime::default() };
        Self { foca, runtime, next_join_at: now, next_join_index: 0, has_left: false }
    }

    /// Returns the last sequence number.
    pub(crate) fn sequence(&self) -> u32 {
        self.runtime.seq
    }

    /// Continues the sequence numbers of a previous process.
    pub(crate) fn resume_sequence(&mut self, seq: u32) {
        self.runtime.seq = seq;
    }

    /// Processes gossip of another daemon; malformed gossip is ignored.
    pub(crate) fn receive(&mut self, now: Time, payload: &[u8]) {
        self.runtime.now = now;
        if !self.has_left {
            // The gossip is useless, or comes from a daemon with this daemon's address.
            let _ = self.foca.handle_data(payload, &mut self.runtime);
        }
    }

    /// Performs the work that is due; `known` are possible addresses of daemons.
    pub(crate) fn run_due(&mut self, now: Time, known_addresses: impl Iterator<Item = SocketAddr>) {
        self.runtime.postpone_timers(now);
        if self.runtime.seq >= MAX_SEQUENCE {
            self.renew_after(now, self.incarnation());
            self.runtime.seq = 0;
        }
        while let Some(event) = self.runtime.next_timer(now) {
            // foca continues after an error, and no other reaction is possible.
            let _ = self.foca.handle_timer(event, &mut self.runtime);
        }
        if now >= self.next_join_at && !self.has_left {
            self.next_join_at = now + JOIN_INTERVAL;
            self.send_joins(known_addresses);
        }
    }

    /// Returns the time at which work is next due.
    pub(crate) fn next_due(&self) -> Time {
        let timer = self.runtime.timers.first_key_value().map(|((at, _), _)| *at);
        timer.map_or(self.next_join_at, |timer| timer.min(self.next_join_at))
    }

    /// Returns the next datagram and its destination.
    pub(crate) fn poll_transmit(&mut self) -> Option<(SocketAddr, Datagram)> {
        let (to, payload) = self.runtime.datagrams.pop_front()?;
        let NodeIdentity { member, incarnation, .. } = *self.foca.identity();
        self.runtime.seq = self.runtime.seq.saturating_add(1);
        Some((to, Datagram { member, incarnation, seq: self.runtime.seq, payload }))
    }

    /// Returns the next membership event.
    pub(crate) fn poll_event(&mut self) -> Option<MembershipEvent> {
        self.runtime.events.pop_front()
    }

    /// Returns the other daemons that are alive.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeIdentity> {
        self.foca.iter_members().map(|member| *member.id())
    }

    /// Returns this daemon's incarnation.
    pub(crate) fn incarnation(&self) -> u32 {
        self.foca.identity().incarnation
    }

    /// Begins an incarnation later than `life`, unless this one already is.
    pub(crate) fn renew_after(&mut self, now: Time, incarnation: u32) {
        self.runtime.now = now;
        let identity = *self.foca.identity();
        if identity.incarnation <= incarnation
            && let Some(incarnation) = incarnation.checked_add(1)
            && self.foca.change_identity(NodeIdentity { incarnation, ..identity }, &mut self.runtime).is_ok()
        {
            self.runtime.has_joined = false;
            self.runtime.events.push_back(MembershipEvent::Renewed(incarnation));
        }
    }

    /// Announces to some of the others that this daemon leaves; they inform the rest. It takes no part from
    /// now on.
    pub(crate) fn leave(&mut self, now: Time) {
        self.runtime.now = now;
        self.has_left = true;
        // There may be no others.
        let _ = self.foca.leave_cluster(&mut self.runtime);
        self.runtime.timers.clear();
    }

    /// Sends join requests to unseen daemons, or to all of them before any has accepted one.
    fn send_joins(&mut self, known_addresses: impl Iterator<Item = SocketAddr>) {
        let own_address = self.foca.identity().address;
        let alive_addresses: Vec<SocketAddr> = self.others().map(|node| node.address).collect();
        let is_missing = |address: &SocketAddr| {
            *address != own_address && !(self.runtime.has_joined && alive_addresses.contains(address))
        };
        let mut missing: Vec<SocketAddr> = known_addresses.filter(is_missing).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return;
        }
        let start = self.next_join_index % missing.len();
        missing.rotate_left(start);
        self.next_join_index = self.next_join_index.wrapping_add(JOINS_AT_ONCE);
        for address in missing.into_iter().take(JOINS_AT_ONCE) {
            // The identity is unknown: only the address counts.
            let _ =
                self.foca.announce(NodeIdentity { member: 0, incarnation: 0, address }, &mut self.runtime);
        }
    }
}

/// Returns the parameters. With these, 5, 30 and 100 daemons detect a crash in 0.8 to 1.2 s, and at 5 % loss
/// no live daemon is declared dead.
fn foca_config() -> Config {
    let periodic = |frequency: u64, members: usize| {
        let num_members = NonZeroUsize::new(members).unwrap_or(NonZeroUsize::MIN);
        Some(PeriodicParams { frequency: Duration::from_millis(frequency), num_members })
    };
    let mut config = Config::simple();
    config.probe_period = Duration::from_millis(200);
    config.probe_rtt = Duration::from_millis(60);
    config.suspect_to_down_after = Duration::from_millis(400);
    config.max_transmissions = NonZeroU8::new(10).unwrap_or(NonZeroU8::MIN);
    config.max_packet_size = NonZeroUsize::new(Datagram::MAX_PAYLOAD).unwrap_or(NonZeroUsize::MIN);
    config.notify_down_members = true;
    // Rumours of an ended incarnation have faded by then.
    config.remove_down_after = Some(Duration::from_secs(60));
    config.periodic_gossip = periodic(50, 3);
    // Reaches daemons that a rumour missed.
    config.periodic_announce = periodic(5_000, 1);
    // Reunites the halves of a partitioned network.
    config.periodic_announce_to_down_members = periodic(2_000, 2);
    config
}

/// The environment that foca requires.
#[derive(Debug, Default)]
struct FocaRuntime {
    now: Time,
    timers: BTreeMap<(Time, u64), Timer<NodeIdentity>>,
    count: u64,
    datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<MembershipEvent>,
    seq: u32,
    /// Whether another daemon has accepted the current incarnation.
    has_joined: bool,
}

impl FocaRuntime {
    /// Returns the next timer that is due.
    fn next_timer(&mut self, now: Time) -> Option<Timer<NodeIdentity>> {
        let entry = self.timers.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        // Set as if the timer were in time, so that those that follow from it are.
        self.now = entry.key().0;
        Some(entry.remove())
    }

    /// Postpones all timers by the time for which nothing was done.
    fn postpone_timers(&mut self, now: Time) {
        let delay = self.timers.first_key_value().map(|((due, _), _)| now.since(*due)).unwrap_or_default();
        if delay > SUSPENSION_DELAY {
            let timers = std::mem::take(&mut self.timers);
            self.timers =
                timers.into_iter().map(|((due, count), event)| ((due + delay, count), event)).collect();
        }
    }
}

impl foca::Runtime<NodeIdentity> for FocaRuntime {
    fn notify(&mut self, notification: Notification<'_, NodeIdentity>) {
        match notification {
            Notification::MemberUp(node) => self.events.push_back(MembershipEvent::Up(*node)),
            Notification::MemberDown(node) => self.events.push_back(MembershipEvent::Down(*node)),
            Notification::Rename(before, after) => {
                self.events.extend([MembershipEvent::Down(*before), MembershipEvent::Up(*after)]);
            }
            Notification::Active => self.has_joined = true,
            Notification::Idle | Notification::Defunct => self.has_joined = false,
            Notification::Rejoin(node) => {
                self.has_joined = false;
                self.events.push_back(MembershipEvent::Renewed(node.incarnation));
            }
        }
    }

    fn send_to(&mut self, to: NodeIdentity, data: &[u8]) {
        // They are sent after each call, and no call creates nearly as many.
        if self.datagrams.len() < MAX_PENDING {
            self.datagrams.push_back((to.address, data.to_vec()));
        }
    }

    fn submit_after(&mut self, event: Timer<NodeIdentity>, after: Duration) {
        self.count += 1;
        self.timers.insert((self.now + after, self.count), event);
    }
}

#[cfg(test)]
mod tests;
