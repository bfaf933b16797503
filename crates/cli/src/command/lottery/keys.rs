//! `plimsoll lottery keys`: the keys of daemons, and the change from one to the next without a gap.
//!
//! A change has three steps, each taken at all hosts before the next begins:
//!
//! 1. The new key is accepted everywhere.
//! 2. Daemons seal with it.
//! 3. The old ones are no longer accepted.
//!
//! At each step every host opens what every other seals. Between two steps there is a pause, in which clients
//! read their own files of keys and datagrams in flight arrive. A change that broke off is begun anew: its
//! key is accepted by some hosts and used by none, or known to all.
//!
//! Keys for clients are changed in the same steps, apart from the others. No daemon seals with one of its own
//! accord: it answers with the one that it was asked with. The clients whose files are changed seal with the
//! new one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;

use clap::Subcommand;
use plimsoll_admin::{KeyRing, KeyStep, Whose};
use plimsoll_cluster::lottery::incarnation;
use plimsoll_wire::rfs::{MOST_KEYS, Role};
use serde_json::{Value, json};

use super::super::{Exit, Failure, Globals};
use super::{key, ring};
use crate::config::{TimeSpan, count};
use crate::control::text::plain;
use crate::control::{self, Balancer, DaemonPlace, Peer, Said, Target as _};

/// Show and change the keys of daemons
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(Show),
    Rotate(Rotate),
}

/// Say the numbers of the keys that daemons have, that of the one they send with first
#[derive(clap::Args, Debug)]
struct Show {
    #[command(flatten)]
    at: DaemonPlace,
}

/// Change to a new key without a gap: name all daemons of the cluster
///
/// The new key is given to all, then all send with it, then the old ones are forgotten. It stops before any step that not all hosts are
/// ready for; to go on, say it again. Clients that have a file of keys of their own need the new key there before the second step: see
/// --file.
#[derive(clap::Args, Debug)]
struct Rotate {
    /// Change the key for clients, who may only ask with it, and leave those for daemons as they are. The first one is made, too
    #[arg(long)]
    clients: bool,

    /// Take the steps in this file of keys as well, such as that of clients of this host
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Pause between two steps; clients look at their files once a second
    #[arg(long, value_name = "TIME", default_value = "5s")]
    settle: TimeSpan,

    /// Go on although daemons are there that are not named: they are cut off until they have the key
    #[arg(long)]
    partial: bool,

    #[command(flatten)]
    at: DaemonPlace,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.what {
        What::Show(args) => control::each(&args.at, globals, |at, _| {
            let ring: KeyRing = Peer::daemon(at).get("/v1/keys")?;
            let table = shown(&ring);
            Ok(Said::shown(json!(ring), table))
        }),
        What::Rotate(args) => rotate(args, globals),
    }
}

fn shown(ring: &KeyRing) -> String {
    let others: Vec<String> = ring.keys.iter().skip(1).map(u32::to_string).collect();
    let also = if others.is_empty() { String::new() } else { format!(", accepts {}", others.join(", ")) };
    format!("member {}: sends with {}{also}{}\n", ring.member, ring.sealing, clients(&ring.client_keys))
}

/// Returns the keys for clients in words, if there are any.
pub(super) fn clients(keys: &[u32]) -> String {
    let keys: Vec<String> = keys.iter().map(u32::to_string).collect();
    if keys.is_empty() { String::new() } else { format!(", for clients {}", keys.join(", ")) }
}

fn rotate(args: &Rotate, globals: &Globals) -> Result<ExitCode, Failure> {
    let hosts = match args.at.hosts()? {
        Some(hosts) => hosts,
        None => vec![args.at.own()?],
    };
    let whose = if args.clients { Whose::Client } else { Whose::Daemon };
    let change = Change { hosts: &hosts, files: &args.file, whose, globals };
    change.suit()?;
    let rings = change.look()?;
    fit(&hosts, &rings, args.partial)?;
    change.clear(&rings)?;

    let id = next(&rings).ok_or_else(|| {
        Failure::failed(
            "a key has the greatest number that there is: give all hosts a file with others first",
        )
    })?;
    let secret = key::secret()
        .and_then(|digits| digits.parse().map_err(std::io::Error::other))
        .map_err(|error| Failure::failed(format_args!("no new key: {error}")))?;
    let again = "no host sends with the new key yet; say it again when all hosts answer";
    change.step(&KeyStep::Accept(id, secret, whose), &format!("key {id} is accepted"), again)?;
    sleep(args.settle.0);
    let again = "some send with the new key, which all accept; say it again when all hosts answer";
    let rings = change.step(&KeyStep::Seal(id), &format!("key {id} is sent with"), again)?;
    sleep(args.settle.0);
    let old: BTreeSet<u32> =
        rings.iter().flat_map(|ring| change.of(ring)).copied().filter(|key| *key != id).collect();
    let mut rings = rings;
    for key in old {
        let again = "all send with the new key; say it again, and what was left is forgotten then";
        rings = change.step(&KeyStep::Retire(key), &format!("key {key} is forgotten"), again)?;
    }
    let outcomes: Vec<Result<Said, Failure>> =
        rings.iter().map(|ring| Ok(Said::shown(json!(ring), shown(ring)))).collect();
    control::tell(&hosts, &outcomes, globals)?;
    Ok(control::ended(&outcomes))
}

/// A change of keys at these hosts, and in these files.
struct Change<'c> {
    hosts: &'c [Balancer],
    files: &'c [PathBuf],
    whose: Whose,
    globals: &'c Globals,
}

impl Change<'_> {
    /// Returns those of the kind that is changed; the first is the sealing one.
    fn of<'r>(&self, ring: &'r KeyRing) -> &'r [u32] {
        match self.whose {
            Whose::Daemon => &ring.keys,
            Whose::Client => &ring.client_keys,
        }
    }

    /// Checks that no client's file without a key for daemons would get one.
    fn suit(&self) -> Result<(), Failure> {
        for file in self.files.iter().filter(|_| self.whose == Whose::Daemon) {
            if ring::whose(file).map_err(Failure::failed)?.role() == Role::Client {
                return Err(Failure::failed(format_args!(
                    "{} has keys for clients only: change these by --clients; nothing was changed",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns the keys of all hosts.
    fn look(&self) -> Result<Vec<KeyRing>, Failure> {
        let rings = control::all(self.hosts, |host| -> Result<KeyRing, Failure> {
            Ok(Peer::daemon(host).get("/v1/keys")?)
        });
        self.whole(rings, "nothing was changed")
    }

    /// Takes a step everywhere, first in the files: a key that clients know too early does no harm, unless
    /// they seal with it.
    fn step(&self, step: &KeyStep, done: &str, again: &str) -> Result<Vec<KeyRing>, Failure> {
        let seals = matches!(step, KeyStep::Seal(_));
        if !seals {
            self.write(step, again)?;
        }
        let (target, body) = request(step);
        let rings = control::all(self.hosts, |host| -> Result<KeyRing, Failure> {
            ring_of(Peer::daemon(host).post(target, &body)?)
        });
        let rings = self.whole(rings, again)?;
        if seals {
            self.write(step, again)?;
        }
        self.globals.say(&format!("{done} by {}\n", count(rings.len(), "host")));
        Ok(rings)
    }

    fn write(&self, step: &KeyStep, again: &str) -> Result<(), Failure> {
        for file in self.files {
            ring::step(file, step).map_err(|why| Failure::failed(format_args!("{why}; {again}")))?;
        }
        Ok(())
    }

    /// Removes the rest of a change that broke off, if there is no room for a further key.
    fn clear(&self, rings: &[KeyRing]) -> Result<(), Failure> {
        let sealing: BTreeSet<u32> = rings.iter().filter_map(|ring| self.of(ring).first()).copied().collect();
        let full = |ring: &KeyRing| self.of(ring).len() >= MOST_KEYS;
        for (host, ring) in self.hosts.iter().zip(rings).filter(|(_, ring)| full(ring)) {
            for id in self.of(ring).iter().filter(|id| !sealing.contains(id)) {
                Peer::daemon(host).post("/v1/keys/retire", &json!({"id": id}))?;
                self.globals.say(&format!("{host}: key {id}, which nobody sends with, is forgotten\n"));
            }
        }
        Ok(())
    }

    /// Returns all results, or fails after printing the errors.
    fn whole<T>(&self, outcomes: Vec<Result<T, Failure>>, again: &str) -> Result<Vec<T>, Failure> {
        let lost = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        for (host, outcome) in self.hosts.iter().zip(&outcomes) {
            if let Err(failure) = outcome {
                let why = plain(failure.line());
                // Most errors name the host themselves.
                let host = host.to_string();
                let at = if why.contains(&host) { String::new() } else { format!("{host}: ") };
                self.globals.insist(&format!("error: {at}{why}\n"));
            }
        }
        let none = lost == outcomes.len() && outcomes.iter().all(unreachable);
        match lost {
            0 => Ok(outcomes.into_iter().flatten().collect()),
            lost => Err(Failure::new(
                if none { Exit::Unreachable } else { Exit::Failed },
                format_args!(
                    "not gone on: {lost} of {} did not take it; {again}",
                    count(outcomes.len(), "host")
                ),
            )),
        }
    }
}

fn unreachable<T>(outcome: &Result<T, Failure>) -> bool {
    matches!(outcome, Err(failure) if failure.exit == Exit::Unreachable)
}

fn request(step: &KeyStep) -> (&'static str, Value) {
    match step {
        KeyStep::Accept(id, secret, whose) => {
            ("/v1/keys/accept", json!({"id": id, "secret": secret.digits(), "role": whose}))
        }
        KeyStep::Seal(id) => ("/v1/keys/seal", json!({"id": id})),
        KeyStep::Retire(id) => ("/v1/keys/retire", json!({"id": id})),
    }
}

fn ring_of(said: Value) -> Result<KeyRing, Failure> {
    let what = "it does not answer as a daemon of this version does";
    serde_json::from_value(said)
        .map_err(|error| Failure::new(Exit::Unreachable, format_args!("{what}: {error}")))
}

/// Checks that the keys can be changed without a gap, with these daemons as they are.
fn fit(hosts: &[Balancer], rings: &[KeyRing], partial: bool) -> Result<(), Failure> {
    for (host, ring) in hosts.iter().zip(rings) {
        for (other, that) in hosts.iter().zip(rings) {
            if !ring.keys.contains(&that.sealing) {
                return Err(Failure::failed(format_args!(
                    "{host} does not have key {}, which {other} sends with: they are no cluster, or one of them was left \
                     behind; give both the same file of keys first",
                    that.sealing
                )));
            }
        }
        if let Some(other) = ring.others.iter().find(|other| rings.iter().all(|ring| ring.member != **other))
            && !partial
        {
            return Err(Failure::failed(format_args!(
                "member {other} is there, as {host} sees it, and not among the hosts: it would be cut off; name it too, or \
                 say --partial"
            )));
        }
    }
    Ok(())
}

/// Returns a number greater than all known ones: the draw depends on the key with the lowest.
fn next(rings: &[KeyRing]) -> Option<u32> {
    let all = rings.iter().flat_map(|ring| ring.keys.iter().chain(&ring.client_keys));
    let most = all.copied().max().unwrap_or(0);
    Some(incarnation().max(most.checked_add(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(member: u16, keys: &[u32], others: &[u16]) -> KeyRing {
        KeyRing {
            member,
            sealing: keys[0],
            keys: keys.to_vec(),
            client_keys: vec![5],
            others: others.to_vec(),
        }
    }

    #[test]
    fn who_would_be_cut_off_is_said() {
        let hosts: Vec<Balancer> = (1..=2).map(|port| Balancer::Http(format!("a:{port}"))).collect();
        let fits =
            |rings: &[KeyRing], partial| fit(&hosts, rings, partial).map_err(|why| why.line().to_owned());
        assert_eq!(fits(&[ring(1, &[7], &[2]), ring(2, &[7, 8], &[1])], false), Ok(()));
        // A change that broke off in the second step.
        assert_eq!(fits(&[ring(1, &[7, 8], &[2]), ring(2, &[8, 7], &[1])], false), Ok(()));
        let apart = fits(&[ring(1, &[7], &[]), ring(2, &[8, 7], &[])], false).unwrap_err();
        assert!(apart.contains("a:1 does not have key 8"), "{apart}");
        let third = [ring(1, &[7], &[2, 3]), ring(2, &[7], &[1, 3])];
        assert!(fits(&third, false).unwrap_err().contains("member 3 is there"));
        assert_eq!(fits(&third, true), Ok(()));
    }

    #[test]
    fn a_new_key_has_the_greatest_number() {
        assert!(next(&[ring(1, &[7, 9], &[])]).unwrap() >= incarnation() - 1);
        assert_eq!(next(&[ring(1, &[4_294_967_000], &[])]), Some(4_294_967_001));
        assert_eq!(next(&[ring(1, &[7, u32::MAX], &[])]), None);
        let theirs = KeyRing { client_keys: vec![4_294_967_001], ..ring(1, &[4_294_967_000], &[]) };
        assert_eq!(next(&[theirs]), Some(4_294_967_002), "no two have the same");
    }
}
