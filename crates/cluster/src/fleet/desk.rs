//! A balancer's fleet membership with its keys and counters. It opens received datagrams and drops forged and
//! replayed ones; it seals the datagrams to send. Time is an argument, so that tests run in virtual time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::fleet::{self, Fleet, Listed, News, What};
use plimsoll_brain::status::{BalancerStatus, FleetStatus};
use plimsoll_brain::{Time, hash, mix};
use plimsoll_wire::fleet::{Datagram, Says};
use plimsoll_wire::rfs::{Keys, Recent, Seen};

use super::{Became, Change, Did, Lost, Notice, Past, Settings};
use crate::lottery::gossip::{Gossip, LAST, News as Member, Node};
use crate::lottery::socket::Outbox;

pub(super) struct Desk {
    name: String,
    address: SocketAddr,
    keys: Keys,
    recent: Recent,
    gossip: Gossip,
    pub(super) fleet: Fleet,
    interval: Duration,
    /// The times of the next report round and of the next maintenance.
    round: Time,
    tend: Time,
    /// The sequence number of reports and farewells.
    seq: u32,
    /// The other balancers, by address.
    known: BTreeMap<SocketAddr, Known>,
    changes: Vec<Change>,
    pub(super) counts: Counts,
}

/// The state of another balancer, apart from its observations of members.
struct Known {
    life: u32,
    /// The name; empty until the balancer has sent it.
    name: String,
    /// Whether its joining was reported.
    told: bool,
    silent: bool,
    /// The time since which it is gone without a farewell.
    lost: Option<Time>,
    /// The deadline to see a balancer that was present before a handoff.
    expected: Option<Time>,
    /// Its received and missed reports at two earlier times: the loss rate counts from the older one.
    before: [(u64, u64); 2],
    marked: Time,
}

/// Counters of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    received: u64,
    received_bytes: u64,
    refused: u64,
    pub(super) unsent: u64,
}

impl Desk {
    pub(super) fn new(settings: &Settings, address: SocketAddr, life: u32, seed: u64, now: Time) -> Self {
        let own = number(address);
        let node = Node { member: own as u16, life, address };
        let fleet = Fleet::new(fleet::Settings {
            own,
            interval: settings.interval,
            bytes_per_second: settings.bytes_per_second as f64,
            probers: settings.probers,
            forget: settings.forget,
        });
        Self {
            name: settings.name.clone(),
            address,
            keys: settings.keys.clone(),
            recent: Recent::new(LIVES),
            gossip: Gossip::new(node, mix(seed), now),
            fleet,
            interval: settings.interval,
            round: now,
            tend: now,
            seq: 0,
            known: BTreeMap::new(),
            changes: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the handoff state for the next process.
    pub(super) fn past(&self, now: Time) -> Past {
        let there = self.known.iter().filter(|(_, known)| known.lost.is_none() && known.told);
        Past {
            life: self.gossip.life(),
            seqs: (self.seq, self.gossip.seq()),
            others: there.map(|(address, known)| (*address, known.life, known.name.clone())).collect(),
            lost: self.lost(now),
        }
    }

    /// Returns the lost balancers that keep their share of limits.
    fn lost(&self, now: Time) -> Vec<Lost> {
        let known: BTreeMap<u64, (&SocketAddr, &Known)> =
            self.known.iter().map(|one| (number(*one.0), one)).collect();
        let lost = self.fleet.lost().filter_map(|(id, since, groups)| {
            let (address, known) = known.get(&id)?;
            let age_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            Some(Lost { other: (**address, known.life, known.name.clone()), age_ms, groups })
        });
        lost.collect()
    }

    /// Continues as the balancer of a previous process: known balancers are not reported as joining.
    pub(super) fn recall(&mut self, past: Past, now: Time) {
        self.seq = past.seqs.0;
        self.gossip.count_from(past.seqs.1);
        for (address, life, name) in past.others {
            let known = Known { name, told: true, expected: Some(now + EXPECTED), ..Known::new(life, now) };
            self.known.insert(address, known);
            self.fleet.up(number(address), now);
        }
        for Lost { other: (address, life, name), age_ms, groups } in past.lost {
            let since = now - Duration::from_millis(age_ms);
            let known = Known { name, told: true, lost: Some(since), ..Known::new(life, now) };
            self.known.entry(address).or_insert(known);
            self.fleet.recall_lost(number(address), since, groups.into_iter(), now);
        }
    }

    /// Returns the address that the others use.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies other groups.
    pub(super) fn list(&mut self, groups: Vec<Listed>, now: Time) {
        self.fleet.list(groups, now);
    }

    /// Processes a received datagram.
    pub(super) fn take(&mut self, now: Time, bytes: &[u8]) {
        self.counts.received += 1;
        self.counts.received_bytes += bytes.len() as u64;
        let Ok(datagram) = Datagram::decode(&self.keys, bytes) else {
            self.counts.refused += 1;
            return;
        };
        let Datagram { from, life, seq, says } = datagram;
        let kind: u64 = match says {
            Says::Membership(_) => 1,
            Says::Report { .. } | Says::Farewell => 2,
        };
        let speaker = mix(number(from) ^ mix(u64::from(life) << 8 | kind));
        if from == self.address || self.recent.see(speaker, seq) != Seen::Fresh {
            self.counts.refused += u64::from(from != self.address);
            return;
        }
        match says {
            Says::Membership(said) => self.gossip.take(now, &said),
            Says::Report { name, report } => {
                // Membership decides which balancers exist: reports of an unknown one are dropped until it
                // appears there.
                let Some(known) = self.known.get_mut(&from) else { return };
                if known.life != life || known.lost.is_some() {
                    return;
                }
                if known.name != name {
                    known.name = name;
                }
                if !std::mem::replace(&mut known.told, true) {
                    self.change(from, Became::Joined);
                }
                self.fleet.hear(number(from), seq, &report, now);
            }
            Says::Farewell => {
                if self.known.get(&from).is_some_and(|known| known.life == life) {
                    self.change(from, Became::Left);
                    self.known.remove(&from);
                    self.fleet.down(number(from), true, now);
                }
            }
        }
    }

    /// Records an action of the data plane.
    pub(super) fn notice(&mut self, notice: &Notice, now: Time) {
        let (group, member) = (&notice.group, &notice.member);
        match notice.what {
            Did::Checked(passed) => self.fleet.checked(group, member, passed, now),
            Did::Ejected(lasts) => self.fleet.ejected(group, member, lasts, now),
            Did::Loaded(load) => self.fleet.loaded(group, member, load),
        }
    }

    /// Performs all work that is due: membership, with `seeds` as possible addresses of others, and reports.
    /// Returns `true` if periodic maintenance was due, too.
    pub(super) fn wake(&mut self, now: Time, seeds: &[SocketAddr], out: &mut Outbox) -> bool {
        if self.seq.max(self.gossip.seq()) >= LAST {
            // To the others the balancer is lost and returns at once.
            self.gossip.renew(now, self.gossip.life());
            self.seq = 0;
            self.gossip.count_from(0);
        }
        if self.gossip.next() <= now {
            // Lost balancers may have returned.
            let known = seeds.iter().copied().chain(self.known.keys().copied());
            self.gossip.wake(now, known.collect::<Vec<_>>().into_iter());
        }
        while let Some(news) = self.gossip.poll_news() {
            self.member(news, now);
        }
        let tends = now >= self.tend;
        if tends {
            self.tend = now + TEND;
            self.fleet.tend(now);
            self.listen(now);
        }
        if now >= self.round {
            // Without others there are no reports to send, but the averages must be right when one joins.
            let others = self.known.values().any(|known| known.lost.is_none());
            self.round = now + if others { self.interval } else { self.interval.max(TEND) };
            self.tell(now, out);
        }
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            let (life, seq) = (datagram.incarnation, datagram.seq);
            self.post(&[to], life, seq, Says::Membership(datagram.said), out);
        }
        tends
    }

    /// Returns the time at which work is next due.
    pub(super) fn due(&self) -> Time {
        self.gossip.next().min(self.round).min(self.tend)
    }

    /// Sends a farewell.
    pub(super) fn leave(&mut self, now: Time, out: &mut Outbox) {
        let life = self.gossip.life();
        // A datagram may be lost, three hardly ever are. They precede the membership's notice, after which
        // the balancer would be lost.
        for _ in 0..3 {
            self.seq = self.seq.wrapping_add(1);
            let to = self.there();
            self.post(&to, life, self.seq, Says::Farewell, out);
        }
        self.gossip.leave(now);
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            self.post(&[to], datagram.incarnation, datagram.seq, Says::Membership(datagram.said), out);
        }
        self.fleet.leave();
    }

    /// Returns the next news about members, with the name of the balancer that reported it.
    pub(super) fn poll_news(&mut self) -> Option<(News, String)> {
        let news = self.fleet.poll_news()?;
        let by = match news.what {
            What::Checked { by, .. } | What::Ejected { by, .. } => self.called(by),
            What::Duty(_) | What::Loaded { .. } | What::Room => String::new(),
        };
        Some((news, by))
    }

    /// Returns the changes of other balancers' states.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the status of the fleet.
    pub(super) fn status(&self, now: Time) -> FleetStatus {
        let heard: BTreeMap<u64, fleet::Acquaintance> =
            self.fleet.others(now).map(|one| (one.id, one)).collect();
        let balancer = |(address, known): (&SocketAddr, &Known)| {
            let heard = heard.get(&number(*address));
            let ((came, missed), (had, had_not)) =
                (heard.map_or((0, 0), |one| (one.received, one.missed)), known.before[0]);
            let (came_since, missed_since) = (came.saturating_sub(had), missed.saturating_sub(had_not));
            let state = match known {
                Known { lost: Some(_), .. } => "lost",
                Known { silent: true, .. } => "silent",
                _ => "up",
            };
            BalancerStatus {
                name: known.name.clone(),
                address: address.to_string(),
                state: state.to_owned(),
                age_seconds: heard.map_or(0.0, |one| one.age.as_secs_f64()),
                reports: came,
                loss: missed_since as f64 / (came_since + missed_since).max(1) as f64,
                groups: heard.map_or(0, |one| one.groups),
            }
        };
        let mut balancers: Vec<BalancerStatus> = self.known.iter().map(balancer).collect();
        balancers.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
        let Counts { sent, sent_bytes, received, received_bytes, refused, unsent } = self.counts;
        FleetStatus {
            name: self.name.clone(),
            address: self.address.to_string(),
            balancers,
            sent,
            sent_bytes,
            received,
            received_bytes,
            refused,
            unsent,
        }
    }

    fn member(&mut self, news: Member, now: Time) {
        match news {
            Member::Up(node) => {
                let known = self.known.entry(node.address).or_insert_with(|| Known::new(node.life, now));
                known.expected = None;
                if known.life != node.life || known.lost.is_some() {
                    *known = Known { name: std::mem::take(&mut known.name), ..Known::new(node.life, now) };
                }
                self.fleet.up(number(node.address), now);
            }
            Member::Down(node) => {
                let Some(known) = self.known.get_mut(&node.address) else { return };
                if known.life == node.life && known.lost.is_none() {
                    known.lost = Some(now);
                    if known.told {
                        self.change(node.address, Became::Lost);
                    }
                    self.fleet.down(number(node.address), false, now);
                }
            }
            // All its datagrams carry the new incarnation from now on.
            Member::Renewed(_) => {}
        }
    }

    /// Detects balancers that are silent, and those that are gone for good.
    fn listen(&mut self, now: Time) {
        let missing = |(_, known): &(&SocketAddr, &mut Known)| known.expected.is_some_and(|by| by <= now);
        let missing: Vec<SocketAddr> = self
            .known
            .iter_mut()
            .filter(missing)
            .map(|(address, known)| {
                (known.expected, known.lost) = (None, Some(now));
                *address
            })
            .collect();
        for address in missing {
            self.change(address, Became::Lost);
            self.fleet.down(number(address), false, now);
        }
        let heard: Vec<(u64, fleet::Acquaintance)> =
            self.fleet.others(now).map(|one| (one.id, one)).collect();
        let mut changed = Vec::new();
        for (address, known) in &mut self.known {
            let id = number(*address);
            let Some((_, one)) = heard.iter().find(|(of, _)| *of == id) else { continue };
            if now.since(known.marked) >= MARK {
                known.marked = now;
                known.before = [known.before[1], (one.received, one.missed)];
            }
            let silent = known.lost.is_none() && one.age >= SILENT;
            if known.told && known.lost.is_none() && silent != known.silent {
                changed.push((*address, if silent { Became::Silent } else { Became::Heard }));
            }
            known.silent = silent;
        }
        for (address, what) in changed {
            self.change(address, what);
        }
        // The state of a lost balancer is dropped, and its address is no longer tried.
        self.known.retain(|address, known| {
            known.lost.is_none() || heard.iter().any(|(of, _)| *of == number(*address))
        });
    }

    fn tell(&mut self, now: Time, out: &mut Outbox) {
        let reports = self.fleet.round(now);
        if reports.is_empty() {
            return;
        }
        let (to, life) = (self.there(), self.gossip.life());
        for report in reports {
            self.seq = self.seq.wrapping_add(1);
            let says = Says::Report { name: self.name.clone(), report };
            self.post(&to, life, self.seq, says, out);
        }
    }

    fn post(&mut self, to: &[SocketAddr], life: u32, seq: u32, says: Says, out: &mut Outbox) {
        let start = out.bytes().len();
        let datagram = Datagram { from: self.address, life, seq, says };
        if datagram.encode(&self.keys, out.bytes()).is_err() {
            self.counts.unsent += 1;
            return;
        }
        self.counts.sent_bytes += (out.bytes().len() - start) as u64 * to.len() as u64;
        for address in to {
            out.post(start, *address);
        }
    }

    fn there(&self) -> Vec<SocketAddr> {
        self.known.iter().filter(|(_, known)| known.lost.is_none()).map(|(address, _)| *address).collect()
    }

    fn called(&self, id: u64) -> String {
        let known = self.known.iter().find(|(address, _)| number(**address) == id);
        known.map(|(address, known)| known.called(*address)).unwrap_or_default()
    }

    fn change(&mut self, address: SocketAddr, what: Became) {
        if let Some(known) = self.known.get(&address) {
            self.changes.push(Change { name: known.called(address), address, what });
        }
    }
}

impl Known {
    fn new(life: u32, now: Time) -> Self {
        Self {
            life,
            name: String::new(),
            told: false,
            silent: false,
            lost: None,
            expected: None,
            before: [(0, 0); 2],
            marked: now,
        }
    }

    fn called(&self, address: SocketAddr) -> String {
        if self.name.is_empty() { address.to_string() } else { self.name.clone() }
    }
}

/// Returns the number of a balancer, the same for all observers.
pub(super) fn number(address: SocketAddr) -> u64 {
    hash(address.to_string().as_bytes())
}

/// The maximum number of incarnations tracked for replays.
const LIVES: usize = 4096;

/// The interval of maintenance.
const TEND: Duration = Duration::from_millis(50);

/// The time within which a balancer from before a handoff must be seen; else it is lost.
const EXPECTED: Duration = Duration::from_secs(5);

/// The time without reports after which a live balancer counts as silent.
const SILENT: Duration = Duration::from_secs(2);

/// The loss rate covers the last ten to twenty seconds.
const MARK: Duration = Duration::from_secs(10);
