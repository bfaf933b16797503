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
use plimsoll_admin::{KeyHolder, KeyRing, KeyStep};
use plimsoll_cluster::lottery::incarnation;
use plimsoll_config::{TimeSpan, pluralize};
use plimsoll_wire::rfs::{KeyRole, MAX_KEYS};
use serde_json::{Value, json};

use super::super::{CliError, CliExitCode, GlobalArgs};
use super::{key_file, key_ring};
use crate::control::format::sanitize;
use crate::control::{
    self, CommandOutput, ControlEndpoint, DaemonSelector, EndpointSelector as _, PeerClient,
};

/// Show and rotate the keys of daemons
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    what: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    Show(KeysShowArgs),
    Rotate(KeysRotateArgs),
}

/// Show the numbers of the keys of daemons, that of the sending key first
#[derive(clap::Args, Debug)]
struct KeysShowArgs {
    #[command(flatten)]
    at: DaemonSelector,
}

/// Rotate to a new key without downtime: name all daemons of the cluster
///
/// The new key is distributed to all daemons, then all send with it, then the old keys are removed. The
/// rotation stops before any step that not all hosts are ready for; run the command again to continue.
/// Clients with a key file of their own need the new key in it before the second step: see --file.
#[derive(clap::Args, Debug)]
struct KeysRotateArgs {
    /// Rotate the key for clients, which only permits queries, and keep those for daemons. The first client
    /// key is created in the same way
    #[arg(long)]
    clients: bool,

    /// Key file to update in the same steps, such as that of the clients of this host
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Pause between two steps; clients check their files once per second
    #[arg(long, value_name = "TIME", default_value = "5s")]
    settle: TimeSpan,

    /// Continue although some running daemons are not named; they are cut off until they have the key
    #[arg(long)]
    partial: bool,

    #[command(flatten)]
    at: DaemonSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        KeysCommand::Show(args) => control::run_each(&args.at, globals, |at, _| {
            let ring: KeyRing = PeerClient::daemon(at).get("/v1/keys")?;
            let table = shown(&ring);
            Ok(CommandOutput::from_view(json!(ring), table))
        }),
        KeysCommand::Rotate(args) => rotate(args, globals),
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

fn rotate(args: &KeysRotateArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let hosts = match args.at.remote_endpoints()? {
        Some(hosts) => hosts,
        None => vec![args.at.local_endpoint()?],
    };
    let whose = if args.clients { KeyHolder::Client } else { KeyHolder::Daemon };
    let change = KeyRotation { hosts: &hosts, files: &args.file, whose, globals };
    change.check_files()?;
    let rings = change.fetch_rings()?;
    check_rings(&hosts, &rings, args.partial)?;
    change.clear(&rings)?;

    let id = next(&rings).ok_or_else(|| {
        CliError::failed(
            "a key has the greatest number that there is: give all hosts a file with others first",
        )
    })?;
    let secret = key_file::secret()
        .and_then(|digits| digits.parse().map_err(std::io::Error::other))
        .map_err(|error| CliError::failed(format_args!("no new key: {error}")))?;
    let again = "no host sends with the new key yet; say it again when all hosts answer";
    change.apply_step(&KeyStep::Accept(id, secret, whose), &format!("key {id} is accepted"), again)?;
    sleep(args.settle.0);
    let again = "some send with the new key, which all accept; say it again when all hosts answer";
    let rings = change.apply_step(&KeyStep::Seal(id), &format!("key {id} is sent with"), again)?;
    sleep(args.settle.0);
    let old: BTreeSet<u32> =
        rings.iter().flat_map(|ring| change.key_ids(ring)).copied().filter(|key| *key != id).collect();
    let mut rings = rings;
    for key in old {
        let again = "all send with the new key; say it again, and what was left is forgotten then";
        rings = change.apply_step(&KeyStep::Retire(key), &format!("key {key} is forgotten"), again)?;
    }
    let outcomes: Vec<Result<CommandOutput, CliError>> =
        rings.iter().map(|ring| Ok(CommandOutput::from_view(json!(ring), shown(ring)))).collect();
    control::print_all(&hosts, &outcomes, globals)?;
    Ok(control::exit_code(&outcomes))
}

/// A change of keys at these hosts, and in these files.
struct KeyRotation<'c> {
    hosts: &'c [ControlEndpoint],
    files: &'c [PathBuf],
    whose: KeyHolder,
    globals: &'c GlobalArgs,
}

impl KeyRotation<'_> {
    /// Returns those of the kind that is changed; the first is the sealing one.
    fn key_ids<'r>(&self, ring: &'r KeyRing) -> &'r [u32] {
        match self.whose {
            KeyHolder::Daemon => &ring.keys,
            KeyHolder::Client => &ring.client_keys,
        }
    }

    /// Checks that no client's file without a key for daemons would get one.
    fn check_files(&self) -> Result<(), CliError> {
        for file in self.files.iter().filter(|_| self.whose == KeyHolder::Daemon) {
            if key_ring::keys_by_role(file).map_err(CliError::failed)?.role() == KeyRole::Client {
                return Err(CliError::failed(format_args!(
                    "{} has keys for clients only: change these by --clients; nothing was changed",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns the keys of all hosts.
    fn fetch_rings(&self) -> Result<Vec<KeyRing>, CliError> {
        let rings = control::ask_all(self.hosts, |host| -> Result<KeyRing, CliError> {
            Ok(PeerClient::daemon(host).get("/v1/keys")?)
        });
        self.all_or_fail(rings, "nothing was changed")
    }

    /// Takes a step everywhere, first in the files: a key that clients know too early does no harm, unless
    /// they seal with it.
    fn apply_step(&self, step: &KeyStep, done: &str, again: &str) -> Result<Vec<KeyRing>, CliError> {
        let seals = matches!(step, KeyStep::Seal(_));
        if !seals {
            self.write(step, again)?;
        }
        let (target, body) = request(step);
        let rings = control::ask_all(self.hosts, |host| -> Result<KeyRing, CliError> {
            parse_ring(PeerClient::daemon(host).post(target, &body)?)
        });
        let rings = self.all_or_fail(rings, again)?;
        if seals {
            self.write(step, again)?;
        }
        self.globals.print_message(&format!("{done} by {}\n", pluralize(rings.len(), "host")));
        Ok(rings)
    }

    fn write(&self, step: &KeyStep, again: &str) -> Result<(), CliError> {
        for file in self.files {
            key_ring::apply_step(file, step)
                .map_err(|why| CliError::failed(format_args!("{why}; {again}")))?;
        }
        Ok(())
    }

    /// Removes the rest of a change that broke off, if there is no room for a further key.
    fn clear(&self, rings: &[KeyRing]) -> Result<(), CliError> {
        let sealing: BTreeSet<u32> =
            rings.iter().filter_map(|ring| self.key_ids(ring).first()).copied().collect();
        let full = |ring: &KeyRing| self.key_ids(ring).len() >= MAX_KEYS;
        for (host, ring) in self.hosts.iter().zip(rings).filter(|(_, ring)| full(ring)) {
            for id in self.key_ids(ring).iter().filter(|id| !sealing.contains(id)) {
                PeerClient::daemon(host).post("/v1/keys/retire", &json!({"id": id}))?;
                self.globals
                    .print_message(&format!("{host}: key {id}, which nobody sends with, is forgotten\n"));
            }
        }
        Ok(())
    }

    /// Returns all results, or fails after printing the errors.
    fn all_or_fail<T>(&self, outcomes: Vec<Result<T, CliError>>, again: &str) -> Result<Vec<T>, CliError> {
        let lost = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        for (host, outcome) in self.hosts.iter().zip(&outcomes) {
            if let Err(failure) = outcome {
                let why = sanitize(failure.one_line());
                // Most errors name the host themselves.
                let host = host.to_string();
                let at = if why.contains(&host) { String::new() } else { format!("{host}: ") };
                self.globals.print_always(&format!("error: {at}{why}\n"));
            }
        }
        let none = lost == outcomes.len() && outcomes.iter().all(is_unreachable);
        match lost {
            0 => Ok(outcomes.into_iter().flatten().collect()),
            lost => Err(CliError::new(
                if none { CliExitCode::Unreachable } else { CliExitCode::Failed },
                format_args!(
                    "not gone on: {lost} of {} did not take it; {again}",
                    pluralize(outcomes.len(), "host")
                ),
            )),
        }
    }
}

fn is_unreachable<T>(outcome: &Result<T, CliError>) -> bool {
    matches!(outcome, Err(failure) if failure.exit == CliExitCode::Unreachable)
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

fn parse_ring(said: Value) -> Result<KeyRing, CliError> {
    let what = "it does not answer as a daemon of this version does";
    serde_json::from_value(said)
        .map_err(|error| CliError::new(CliExitCode::Unreachable, format_args!("{what}: {error}")))
}

/// Checks that the keys can be changed without a gap, with these daemons as they are.
fn check_rings(hosts: &[ControlEndpoint], rings: &[KeyRing], partial: bool) -> Result<(), CliError> {
    for (host, ring) in hosts.iter().zip(rings) {
        for (other, that) in hosts.iter().zip(rings) {
            if !ring.keys.contains(&that.sealing) {
                return Err(CliError::failed(format_args!(
                    "{host} does not have key {}, which {other} sends with: they are no cluster, or one of \
                     them was left \
                     behind; give both the same file of keys first",
                    that.sealing
                )));
            }
        }
        if let Some(other) = ring.others.iter().find(|other| rings.iter().all(|ring| ring.member != **other))
            && !partial
        {
            return Err(CliError::failed(format_args!(
                "member {other} is there, as {host} sees it, and not among the hosts: it would be cut off; \
                 name it too, or \
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
        let hosts: Vec<ControlEndpoint> =
            (1..=2).map(|port| ControlEndpoint::Http(format!("a:{port}"))).collect();
        let fits = |rings: &[KeyRing], partial| {
            check_rings(&hosts, rings, partial).map_err(|why| why.one_line().to_owned())
        };
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
