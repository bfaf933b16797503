//! Who is there: SWIM with suspicion (Das, Gupta, Motivala, 2002), by the library foca, as a value. Time and chance are
//! arguments, what is to be sent and what is new are asked for, and nothing is slept on; so it is tested in virtual time.
//!
//! Each daemon probes another five times a second. Who does not answer within 60 ms is probed by three others; who answers none
//! of them is a suspect, and down if it does not object within 400 ms. All of it travels with the probes, and with gossip to three
//! others twenty times a second while there is something new. A crash is known to all in about a second, whether they are five
//! or a hundred.
//!
//! Three things foca leaves to us. A datagram that asks to join may be lost, and a daemon whose peers were all down stays alone
//! for ever: so it asks them again for as long as it does not see them. A daemon that stood still would take those whose answers
//! it has not read yet for dead: it lets its own clock stand still for as long. And its identity is the daemon's address with the
//! life of its member, so that who starts anew replaces who was there before, and two daemons of one number are seen to be two.

// Where it is whoever includes this file, as the fuzz target does.
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

/// A daemon, as the others know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) member: u16,
    /// Its incarnation: greater with each life.
    pub(crate) life: u32,
    pub(crate) address: SocketAddr,
}

impl Identity for Node {
    type Addr = SocketAddr;

    /// Others thought it dead: a new life.
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

/// A number for the life of the daemon that says something: of its member, its incarnation and its address, so that two daemons
/// of one number that began in the same second are told apart.
pub(crate) fn life(said: &[u8]) -> u64 {
    plimsoll_brain::hash(codec::speaker(said))
}

/// What something that is said is about; none if it cannot be understood.
pub(crate) fn about(said: &[u8]) -> Option<About> {
    codec::about(said)
}

/// What became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Up(Node),
    Down(Node),
    /// The others thought that this daemon was down: this is its life now.
    Renewed(u32),
}

/// A daemon's part in it.
pub(crate) struct Gossip {
    foca: Foca<Node, Codec, SmallRng, NoCustomBroadcast>,
    outside: Outside,
    /// When those who are not there are asked again.
    ask: Time,
    /// Whose turn it is then.
    turn: usize,
    left: bool,
}

/// Between two attempts to join those that are not seen; and how many at once.
const ASK: Duration = Duration::from_millis(500);
const ASKED: usize = 16;

/// After so many datagrams another life begins: numbers end, and what comes with one from before is taken for old. Not at the very end, so
/// that whoever compares them round finds those of the next life newer.
pub(crate) const LAST: u32 = 0xf000_0000;

/// Datagrams that wait to be sent.
const LETTERS: usize = 1024;

/// What comes later than this finds a daemon that stood still.
const LATE: Duration = Duration::from_millis(100);

impl Gossip {
    /// Of a daemon that is alone so far.
    pub(crate) fn new(own: Node, seed: u64, now: Time) -> Self {
        let foca = Foca::new(own, settings(), SmallRng::seed_from_u64(seed), Codec);
        let outside = Outside { now, ..Outside::default() };
        Self { foca, outside, ask: now, turn: 0, left: false }
    }

    /// The number of the last datagram.
    pub(crate) fn seq(&self) -> u32 {
        self.outside.seq
    }

    /// Goes on counting datagrams where a process before this one stopped.
    pub(crate) fn count_from(&mut self, seq: u32) {
        self.outside.seq = seq;
    }

    /// What another said. What is not understood is left out.
    pub(crate) fn take(&mut self, now: Time, said: &[u8]) {
        self.outside.now = now;
        if !self.left {
            // It says nothing that is of use to us, or comes from somebody with our own address.
            let _ = self.foca.handle_data(said, &mut self.outside);
        }
    }

    /// Does what is due; `known` are addresses at which there should be daemons.
    pub(crate) fn wake(&mut self, now: Time, known: impl Iterator<Item = SocketAddr>) {
        self.outside.stand_still(now);
        if self.outside.seq >= LAST {
            self.renew(now, self.life());
            self.outside.seq = 0;
        }
        while let Some(event) = self.outside.due(now) {
            // It goes on after an error, and there is nothing else to do about one.
            let _ = self.foca.handle_timer(event, &mut self.outside);
        }
        if now >= self.ask && !self.left {
            self.ask = now + ASK;
            self.join(known);
        }
    }

    /// When something is due.
    pub(crate) fn next(&self) -> Time {
        let timer = self.outside.timers.first_key_value().map(|((at, _), _)| *at);
        timer.map_or(self.ask, |timer| timer.min(self.ask))
    }

    /// The next datagram, and where it goes.
    pub(crate) fn poll_transmit(&mut self) -> Option<(SocketAddr, Datagram)> {
        let (to, said) = self.outside.letters.pop_front()?;
        let Node { member, life, .. } = *self.foca.identity();
        self.outside.seq = self.outside.seq.saturating_add(1);
        Some((to, Datagram { member, incarnation: life, seq: self.outside.seq, said }))
    }

    /// What has become known since it was asked last.
    pub(crate) fn poll_news(&mut self) -> Option<News> {
        self.outside.news.pop_front()
    }

    /// The others that are there, as far as it knows.
    pub(crate) fn others(&self) -> impl Iterator<Item = Node> {
        self.foca.iter_members().map(|member| *member.id())
    }

    /// Its own life.
    pub(crate) fn life(&self) -> u32 {
        self.foca.identity().life
    }

    /// Begins a later life than `life`, if it is in none.
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

    /// Tells some of the others that it goes, who tell the rest. It takes no part from now on.
    pub(crate) fn leave(&mut self, now: Time) {
        self.outside.now = now;
        self.left = true;
        // There may be nobody to tell.
        let _ = self.foca.leave_cluster(&mut self.outside);
        self.outside.timers.clear();
    }

    /// Asks those that it does not see to take it in, and all while nobody has.
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
            // Whoever is there: only the address counts.
            let _ = self.foca.announce(Node { member: 0, life: 0, address }, &mut self.outside);
        }
    }
}

/// What the study measured: a crash is known to 5, 30 and 100 daemons in 0.8 to 1.2 s, and nobody is taken for dead at 5 % loss.
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
    // Rumours of a life that is over have ended by then.
    config.remove_down_after = Some(Duration::from_secs(60));
    config.periodic_gossip = each(50, 3);
    // Whom a rumour did not reach.
    config.periodic_announce = each(5_000, 1);
    // Halves of a network that was cut in two find one another.
    config.periodic_announce_to_down_members = each(2_000, 2);
    config
}

/// What foca asks of the world.
#[derive(Debug, Default)]
struct Outside {
    now: Time,
    timers: BTreeMap<(Time, u64), Timer<Node>>,
    count: u64,
    letters: VecDeque<(SocketAddr, Vec<u8>)>,
    news: VecDeque<News>,
    seq: u32,
    /// Another has taken it in, in its present life.
    joined: bool,
}

impl Outside {
    /// The next event whose time has come.
    fn due(&mut self, now: Time) -> Option<Timer<Node>> {
        let first = self.timers.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        // As if it were in time, so that what follows from it is.
        self.now = first.key().0;
        Some(first.remove())
    }

    /// Puts off all that is due by the time for which nothing was done.
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
        // They are sent after each call, and no call makes nearly so many.
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
