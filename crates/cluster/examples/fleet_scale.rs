//! Measures the cost of a balancer in a large fleet: `balancers` of them in virtual time, `groups` with
//! `members` each, and `changes` per second at each balancer. Reports are really encoded, sealed, opened and
//! decoded; only the network is missing. It prints bytes per second, memory, processor time, and the delay
//! from a change at one balancer to its effect at another.
//!
//! `make bench-fleet` runs it with 16 balancers, 1000 groups, and 100 members in each. It measures one
//! balancer, which receives the reports of all others. The others receive none, so that the memory of one
//! fits into a machine; each sends as many reports as in a real fleet.

#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::fleet::{Fleet, FleetGroup, FleetMember, FleetSettings, FleetUpdateKind, PeerPresence};
use plimsoll_brain::{Time, Vitals, mix};
use plimsoll_wire::fleet::{FleetDatagram, FleetPayload};
use plimsoll_wire::rfs::{DatagramKey, KeyRing};
use rustix::time::{ClockId, clock_gettime};

/// The interval of rounds.
const INTERVAL: Duration = Duration::from_millis(10);

struct Node {
    fleet: Fleet,
    vitals: Vec<Arc<Vitals>>,
    seq: u32,
}

/// A change that has not been seen yet.
struct Change {
    made: f64,
    member: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Eight more requests are in flight there.
    Load,
    /// The member is ejected.
    Ejection,
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().unwrap());
    let mut next = |default| args.next().unwrap_or(default);
    let (balancers, groups, members) = (next(16), next(1000), next(100));
    let (changes, seconds) = (next(100) as f64, next(20) as f64);
    println!(
        "{balancers} balancers, {groups} groups of {members} members, {changes} changes a second at each"
    );
    for bytes in [250e3, 1e6, 4e6] {
        run(balancers, groups, members, changes, seconds, bytes);
    }
}

fn names(groups: usize, members: usize) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
    let member =
        |group: usize, member: usize| Arc::from(format!("10.{}.{}.{member}:80", group / 250, group % 250));
    (0..groups)
        .map(|group| (format!("group-{group}").into(), (0..members).map(|one| member(group, one)).collect()))
        .collect()
}

fn node(own: u64, names: &[(Arc<str>, Vec<Arc<str>>)], bytes_per_second: f64) -> Node {
    let forget = Duration::from_secs(60);
    let mut fleet = Fleet::new(FleetSettings {
        own_id: own,
        interval: INTERVAL,
        bytes_per_second,
        probers: 1,
        share_retention: forget,
    });
    let mut vitals = Vec::new();
    let groups = names.iter().map(|(name, members)| {
        let members = members.iter().map(|name| {
            let one = Arc::<Vitals>::default();
            vitals.push(Arc::clone(&one));
            FleetMember { name: Arc::clone(name), vitals: one, limit: 1000, health_checked: true }
        });
        FleetGroup {
            name: Arc::clone(name),
            presence: Arc::<PeerPresence>::default(),
            members: members.collect(),
        }
    });
    let groups = groups.collect();
    fleet.set_groups(groups, Time(0));
    Node { fleet, vitals, seq: 0 }
}

fn run(balancers: usize, groups: usize, members: usize, changes: f64, seconds: f64, bytes: f64) {
    let keys = KeyRing::new(DatagramKey::new(1, &[7; 32]));
    let names = names(groups, members);
    let all: Vec<(&Arc<str>, &Arc<str>)> =
        names.iter().flat_map(|(group, members)| members.iter().map(move |member| (group, member))).collect();
    let empty = resident();
    let mut nodes: Vec<Node> = vec![node(1, &names, bytes)];
    let one = resident() - empty;
    nodes.extend((2..=balancers as u64).map(|own| node(own, &names, bytes)));
    let several = resident();
    for node in &mut nodes {
        (1..=balancers as u64).for_each(|other| node.fleet.peer_joined(other, Time(1)));
    }
    let (mut out, mut dice) = (Vec::new(), 7_u64);
    let (mut sent, mut datagrams, mut heard) = (0_u64, 0_u64, 0_u64);
    let (mut telling, mut hearing) = (0.0, 0.0);
    let mut open: Vec<Change> = Vec::new();
    let (mut loads, mut ejections): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    // Everything is reported once before the measurement begins.
    let warm = 1.5 * (groups * members) as f64 * 24.0 * balancers as f64 / bytes + 2.0;
    let mut first_sweep = None;
    let rounds = ((warm + seconds) / INTERVAL.as_secs_f64()) as u64;
    let mut due = 0.0;
    for round in 1..=rounds {
        let now = Time(round * INTERVAL.as_nanos() as u64);
        let at = now.0 as f64 / 1e9;
        let measured = at >= warm;
        due += if measured { changes * INTERVAL.as_secs_f64() } else { 0.0 };
        while due >= 1.0 {
            due -= 1.0;
            for (place, node) in nodes.iter_mut().enumerate() {
                dice = mix(dice);
                let member = (dice % all.len() as u64) as usize;
                let kind = if dice >> 60 < 4 { Kind::Ejection } else { Kind::Load };
                match kind {
                    Kind::Load => {
                        for _ in 0..8 {
                            node.vitals[member].begin();
                        }
                    }
                    Kind::Ejection => {
                        let (group, name) = all[member];
                        node.fleet.record_ejection(group, name, Duration::from_secs(600), now);
                    }
                }
                if place == balancers - 1 {
                    open.push(Change { made: at, member, kind });
                }
            }
        }
        for place in 0..balancers {
            let begun = thread_time();
            let reports = nodes[place].fleet.poll_reports(now);
            if place == 0 {
                let begun = thread_time();
                nodes[0].fleet.age_reports(now);
                hearing += if measured { thread_time() - begun } else { 0.0 };
            }
            let mut wire = Vec::new();
            for report in reports {
                nodes[place].seq += 1;
                let from = ([10, 0, 0, place as u8], 7946).into();
                let says = FleetPayload::Report { name: format!("balancer-{place}"), report };
                out.clear();
                FleetDatagram { from, incarnation: 1, seq: nodes[place].seq, payload: says }
                    .encode(&keys, &mut out)
                    .unwrap();
                wire.push(out.clone());
            }
            if place == 0 && measured {
                telling += thread_time() - begun;
                datagrams += wire.len() as u64 * (balancers as u64 - 1);
                sent += wire.iter().map(|one| one.len() as u64 + 28).sum::<u64>() * (balancers as u64 - 1);
            }
            if place > 0 {
                let begun = thread_time();
                for bytes in &wire {
                    let FleetDatagram { seq, payload: says, .. } =
                        FleetDatagram::decode(&keys, bytes).unwrap();
                    let FleetPayload::Report { report, .. } = says else { continue };
                    nodes[0].fleet.receive_report(place as u64 + 1, seq, &report, now);
                }
                if measured {
                    hearing += thread_time() - begun;
                    heard += wire.iter().map(|one| one.len() as u64 + 28).sum::<u64>();
                }
            }
        }
        let mut news = Vec::new();
        while let Some(one) = nodes[0].fleet.poll_update() {
            if let FleetUpdateKind::Ejected { by, .. } = one.kind
                && by == balancers as u64
            {
                news.push(one.member);
            }
        }
        let seen = &nodes[0].vitals;
        open.retain(|change| {
            let known = match change.kind {
                Kind::Load => seen[change.member].peer_in_flight() >= 4.0,
                Kind::Ejection => news.contains(all[change.member].1),
            };
            if known {
                let list = if change.kind == Kind::Load { &mut loads } else { &mut ejections };
                list.push(at - change.made);
            }
            !known
        });
        if first_sweep.is_none() && nodes[0].fleet.peer_stats(now).all(|other| other.groups == groups) {
            first_sweep = Some(at);
        }
    }
    println!("bound of {:.2} MB/s at each", bytes / 1e6);
    println!(
        "  sent {:.0} kB/s in {:.0} datagrams/s, heard {:.0} kB/s; all groups of all others known after \
         {:.1} s",
        sent as f64 / 1e3 / seconds,
        datagrams as f64 / seconds,
        heard as f64 / 1e3 / seconds,
        first_sweep.unwrap_or(f64::NAN),
    );
    println!(
        "  processor {:.2} % to tell, {:.2} % to hear and act; memory {:.0} MB for its own members, {:.0} MB \
         for what others say",
        100.0 * telling / seconds,
        100.0 * hearing / seconds,
        one as f64 / 1e6,
        resident().saturating_sub(several) as f64 / 1e6,
    );
    for (what, list) in [("load", &mut loads), ("ejection", &mut ejections)] {
        list.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            list.get((q * (list.len() as f64 - 1.0).max(0.0)) as usize).map_or(f64::NAN, |s| s * 1e3)
        };
        println!(
            "  from a change of {what} to its effect: p50 {:.0} ms, p99 {:.0} ms of {} ({} not seen yet)",
            quantile(0.5),
            quantile(0.99),
            list.len(),
            open.iter().filter(|change| (change.kind == Kind::Load) == (what == "load")).count(),
        );
    }
}

/// Returns the processor time of this thread, in seconds.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
