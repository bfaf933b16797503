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
use plimsoll_wire::rfs::Gossip as Datagram;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

pub(crate) use codec::About;
use codec::Codec;

/// The identity of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) member: u16,
    /// The incarnation, which grows with each restart.
    pub(crate) life: u32,
    pub(crate) address: SocketAddr,
}

impl Identity for Node {
    type Addr = SocketAddr;

    /// Returns the identity after others declared this daemon dead: a new incarnation.
    fn renew(&self) -> Option<Self> {
        Some(Self { life: self.life.checked_add(1)?, ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.life, self.member) > (other.life, other.member)
    }
}

/// Returns a number for the incarnation of the sender. It depends on member, incarnation and address, so two
/// daemons with one number that began in the same second have different ones.
pub(crate) fn life(said: &[u8]) -> u64 {
    plimsoll_brain::hash(codec::speaker(said))
}

/// Returns the subject of a gossip datagram; `None` if it is malformed.
pub(crate) fn about(said: &[u8]) -> Option<About> {
    codec::about(said)
}

/// A membership event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Up(Node),
    Down(Node),
    /// The others declared this daemon dead: its new incarnation.
    Renewed(u32),
}

/// A daemon's membership.
pub(crate) struct Gossip {
    foca: Foca<Node, Codec, SmallRng, NoCustomBroadcast>,
    outside: Outside,
    /// The time of the next join requests.
    ask: Time,
    /// The index of the next daemon to ask.
    turn: usize,
    left: bool,
}

/// The interval of join requests to unseen daemons, and the number at once.
const ASK: Duration = Duration::from_millis(500);
const ASKED: usize = 16;

/// The sequence number at which a new incarnation begins: numbers are finite, and lower ones count as
/// replays. It is below the maximum, so that serial comparison finds the numbers of the next incarnation
/// newer.
pub(crate) const LAST: u32 = 0xf000_0000;

/// The maximum number of pending datagrams.
const LETTERS: usize = 1024;

/// The delay of a timer from which the daemon counts as having been suspended.
const LATE: Duration = Duration::from_millis(100);

impl Gossip {
    /// Creates the membership of a daemon that is still alone.
    pub(crate) fn new(own: Node, seed: u64, now: Time) -> Self {
        let foca = Foca::new(own, settings(), SmallRng::seed_from_u64(seed), Codec);
        let outside = Outside { now, ..Outside::default() };
        Self { foca, outside, ask: now, turn: 0, left: false }
    }

    /// Returns the last sequence number.
    pub(crate) fn seq(&self) -> u32 {
        self.outside.seq
    }

    /// Continues the sequence numbers of a previous process.
    pub(crate) fn count_from(&mut self, seq: u32) {
        self.outside.seq = seq;
    }

    /// Processes gossip of another daemon; malformed gossip is ignored.
    pub(crate) fn take(&mut self, now: Time, said: &[u8]) {
        self.outside.now = now;
        if !self.left {
            // The gossip is useless, or comes from a daemon with this daemon's address.
            let _ = self.foca.handle_data(said, &mut self.outside);
        }
    }

    /// Performs the work that is due; `known` are possible addresses of daemons.
    pub(crate) fn wake(&mut self, now: Time, known: impl Iterator<Item = SocketAddr>) {
        self.outside.stand_still(now);
        if self.outside.seq >= LAST {
            self.renew(now, self.life());
            self.outside.seq = 0;
        }
        while let Some(event) = self.outside.due(now) {
            // foca continues after an error, and no other reaction is possible.
            let _ = self.foca.handle_timer(event, &mut self.outside);
        }
        if now >= self.ask && !self.left {
            self.ask = now + ASK;
            self.join(known);
        }
    }

    /// Returns the time at which work is next due.
    pub(crate) fn next(&self) -> Time {
        let timer = self.outside.timers.first_key_value().map(|((at, _), _)| *at);
        timer.map_or(self.ask, |timer| timer.min(self.ask))
    }

    /// Returns the next datagram and its destination.
    pub(crate) fn poll_transmit(&mut self) -> Option<(SocketAddr, Datagram)> {
        let (to, said) = self.outside.letters.pop_front()?;
        let Node { member, life, .. } = *self.foca.identity();
        self.outside.seq = self.outside.seq.saturating_add(1);
        Some((to, Datagram { member, incarnation: life, seq: self.outside.seq, said }))
    }

    /// Returns the next membership event.
    pub(crate) fn poll_news(&mut self) -> Option<News> {
        self.outside.news.pop_front()
    }

    /// Returns the other daemons that are alive.
    pub(crate) fn others(&self) -> impl Iterator<Item = Node> {
        self.foca.iter_members().map(|member| *member.id())
    }

    /// Returns this daemon's incarnation.
    pub(crate) fn life(&self) -> u32 {
        self.foca.identity().life
    }

    /// Begins an incarnation later than `life`, unless this one already is.
    pub(crate) fn renew(&mut self, now: Time, life: u32) {
        self.outside.now = now;
        let own = *self.foca.identity();
        if own.life <= life
            && let Some(life) = life.checked_add(1)
            && self.foca.change_identity(Node { life, ..own }, &mut self.outside).is_ok()
        {
            self.outside.joined = false;
            self.outside.news.push_back(News::Renewed(life));
        }
    }

    /// Announces to some of the others that this daemon leaves; they inform the rest. It takes no part from
    /// now on.
    pub(crate) fn leave(&mut self, now: Time) {
        self.outside.now = now;
        self.left = true;
        // There may be no others.
        let _ = self.foca.leave_cluster(&mut self.outside);
        self.outside.timers.clear();
    }

    /// Sends join requests to unseen daemons, or to all of them before any has accepted one.
    fn join(&mut self, known: impl Iterator<Item = SocketAddr>) {
        let own = self.foca.identity().address;
        let seen: Vec<SocketAddr> = self.others().map(|node| node.address).collect();
        let missing =
            |address: &SocketAddr| *address != own && !(self.outside.joined && seen.contains(address));
        let mut missing: Vec<SocketAddr> = known.filter(missing).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return;
        }
        let turn = self.turn % missing.len();
        missing.rotate_left(turn);
        self.turn = self.turn.wrapping_add(ASKED);
        for address in missing.into_iter().take(ASKED) {
            // The identity is unknown: only the address counts.
            let _ = self.foca.announce(Node { member: 0, life: 0, address }, &mut self.outside);
        }
    }
}

/// Returns the parameters. With these, 5, 30 and 100 daemons detect a crash in 0.8 to 1.2 s, and at 5 % loss
/// no live daemon is declared dead.
fn settings() -> Config {
    let each = |frequency: u64, members: usize| {
        let num_members = NonZeroUsize::new(members).unwrap_or(NonZeroUsize::MIN);
        Some(PeriodicParams { frequency: Duration::from_millis(frequency), num_members })
    };
    let mut config = Config::simple();
    config.probe_period = Duration::from_millis(200);
    config.probe_rtt = Duration::from_millis(60);
    config.suspect_to_down_after = Duration::from_millis(400);
    config.max_transmissions = NonZeroU8::new(10).unwrap_or(NonZeroU8::MIN);
    config.max_packet_size = NonZeroUsize::new(Datagram::MOST).unwrap_or(NonZeroUsize::MIN);
    config.notify_down_members = true;
    // Rumours of an ended incarnation have faded by then.
    config.remove_down_after = Some(Duration::from_secs(60));
    config.periodic_gossip = each(50, 3);
    // Reaches daemons that a rumour missed.
    config.periodic_announce = each(5_000, 1);
    // Reunites the halves of a partitioned network.
    config.periodic_announce_to_down_members = each(2_000, 2);
    config
}

/// The environment that foca requires.
#[derive(Debug, Default)]
struct Outside {
    now: Time,
    timers: BTreeMap<(Time, u64), Timer<Node>>,
    count: u64,
    letters: VecDeque<(SocketAddr, Vec<u8>)>,
    news: VecDeque<News>,
    seq: u32,
    /// Whether another daemon has accepted the current incarnation.
    joined: bool,
}

impl Outside {
    /// Returns the next timer that is due.
    fn due(&mut self, now: Time) -> Option<Timer<Node>> {
        let first = self.timers.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        // Set as if the timer were in time, so that those that follow from it are.
        self.now = first.key().0;
        Some(first.remove())
    }

    /// Postpones all timers by the time for which nothing was done.
    fn stand_still(&mut self, now: Time) {
        let late = self.timers.first_key_value().map(|((due, _), _)| now.since(*due)).unwrap_or_default();
        if late > LATE {
            let timers = std::mem::take(&mut self.timers);
            self.timers =
                timers.into_iter().map(|((due, count), event)| ((due + late, count), event)).collect();
        }
    }
}

impl foca::Runtime<Node> for Outside {
    fn notify(&mut self, notification: Notification<'_, Node>) {
        match notification {
            Notification::MemberUp(node) => self.news.push_back(News::Up(*node)),
            Notification::MemberDown(node) => self.news.push_back(News::Down(*node)),
            Notification::Rename(before, after) => {
                self.news.extend([News::Down(*before), News::Up(*after)]);
            }
            Notification::Active => self.joined = true,
            Notification::Idle | Notification::Defunct => self.joined = false,
            Notification::Rejoin(node) => {
                self.joined = false;
                self.news.push_back(News::Renewed(node.life));
            }
        }
    }

    fn send_to(&mut self, to: Node, data: &[u8]) {
        // They are sent after each call, and no call creates nearly as many.
        if self.letters.len() < LETTERS {
            self.letters.push_back((to.address, data.to_vec()));
        }
    }

    fn submit_after(&mut self, event: Timer<Node>, after: Duration) {
        self.count += 1;
        self.timers.insert((self.now + after, self.count), event);
    }
}

#[cfg(test)]
mod tests;
