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
        KeysCommand::Show(args) => control::run_each(&args.at, globals, |endpoint, _| {
            let ring: KeyRing = PeerClient::daemon(endpoint).get("/v1/keys")?;
            let table = render_ring(&ring);
            Ok(CommandOutput::from_view(json!(ring), table))
        }),
        KeysCommand::Rotate(args) => rotate(args, globals),
    }
}

fn render_ring(ring: &KeyRing) -> String {
    let accepted_keys: Vec<String> = ring.keys.iter().skip(1).map(u32::to_string).collect();
    let accepted = if accepted_keys.is_empty() {
        String::new()
    } else {
        format!(", accepts {}", accepted_keys.join(", "))
    };
    format!(
        "member {}: sends with {}{accepted}{}\n",
        ring.member,
        ring.sealing,
        client_keys_note(&ring.client_keys)
    )
}

/// Returns the keys for clients in words, if there are any.
pub(super) fn client_keys_note(keys: &[u32]) -> String {
    let keys: Vec<String> = keys.iter().map(u32::to_string).collect();
    if keys.is_empty() { String::new() } else { format!(", for clients {}", keys.join(", ")) }
}

fn rotate(args: &KeysRotateArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let hosts = match args.at.remote_endpoints()? {
        Some(hosts) => hosts,
        None => vec![args.at.local_endpoint()?],
    };
    let holder = if args.clients { KeyHolder::Client } else { KeyHolder::Daemon };
    let rotation = KeyRotation { hosts: &hosts, files: &args.file, holder, globals };
    rotation.check_files()?;
    let rings = rotation.fetch_rings()?;
    check_rings(&hosts, &rings, args.partial)?;
    rotation.retire_unused(&rings)?;

    let id = next_key_id(&rings).ok_or_else(|| {
        CliError::failed(
            "a key has the greatest number that there is: give all hosts a file with others first",
        )
    })?;
    let secret = key_file::secret()
        .and_then(|digits| digits.parse().map_err(std::io::Error::other))
        .map_err(|error| CliError::failed(format_args!("no new key: {error}")))?;
    let retry_hint = "no host sends with the new key yet; say it again when all hosts answer";
    rotation.apply_step(
        &KeyStep::Accept(id, secret, holder),
        &format!("key {id} is accepted"),
        retry_hint,
    )?;
    sleep(args.settle.0);
    let retry_hint = "some send with the new key, which all accept; say it again when all hosts answer";
    let rings = rotation.apply_step(&KeyStep::Seal(id), &format!("key {id} is sent with"), retry_hint)?;
    sleep(args.settle.0);
    let old_keys: BTreeSet<u32> =
        rings.iter().flat_map(|ring| rotation.key_ids(ring)).copied().filter(|key| *key != id).collect();
    let mut rings = rings;
    for key in old_keys {
        let retry_hint = "all send with the new key; say it again, and what was left is forgotten then";
        rings = rotation.apply_step(&KeyStep::Retire(key), &format!("key {key} is forgotten"), retry_hint)?;
    }
    let outcomes: Vec<Result<CommandOutput, CliError>> =
        rings.iter().map(|ring| Ok(CommandOutput::from_view(json!(ring), render_ring(ring)))).collect();
    control::print_all(&hosts, &outcomes, globals)?;
    Ok(control::exit_code(&outcomes))
}

/// A change of keys at these hosts, and in these files.
struct KeyRotation<'c> {
    hosts: &'c [ControlEndpoint],
    files: &'c [PathBuf],
    holder: KeyHolder,
    globals: &'c GlobalArgs,
}

impl KeyRotation<'_> {
    /// Returns those of the kind that is changed; the first is the sealing one.
    fn key_ids<'r>(&self, ring: &'r KeyRing) -> &'r [u32] {
        match self.holder {
            KeyHolder::Daemon => &ring.keys,
            KeyHolder::Client => &ring.client_keys,
        }
    }

    /// Checks that no client's file without a key for daemons would get one.
    fn check_files(&self) -> Result<(), CliError> {
        for file in self.files.iter().filter(|_| self.holder == KeyHolder::Daemon) {
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
    fn apply_step(&self, step: &KeyStep, outcome: &str, retry_hint: &str) -> Result<Vec<KeyRing>, CliError> {
        let is_seal = matches!(step, KeyStep::Seal(_));
        if !is_seal {
            self.write(step, retry_hint)?;
        }
        let (target, body) = request(step);
        let rings = control::ask_all(self.hosts, |host| -> Result<KeyRing, CliError> {
            parse_ring(PeerClient::daemon(host).post(target, &body)?)
        });
        let rings = self.all_or_fail(rings, retry_hint)?;
        if is_seal {
            self.write(step, retry_hint)?;
        }
        self.globals.print_message(&format!("{outcome} by {}\n", pluralize(rings.len(), "host")));
        Ok(rings)
    }

    fn write(&self, step: &KeyStep, retry_hint: &str) -> Result<(), CliError> {
        for file in self.files {
            key_ring::apply_step(file, step)
                .map_err(|error| CliError::failed(format_args!("{error}; {retry_hint}")))?;
        }
        Ok(())
    }

    /// Removes the rest of a change that broke off, if there is no room for a further key.
    fn retire_unused(&self, rings: &[KeyRing]) -> Result<(), CliError> {
        let sealing: BTreeSet<u32> =
            rings.iter().filter_map(|ring| self.key_ids(ring).first()).copied().collect();
        let is_full = |ring: &KeyRing| self.key_ids(ring).len() >= MAX_KEYS;
        for (host, ring) in self.hosts.iter().zip(rings).filter(|(_, ring)| is_full(ring)) {
            for id in self.key_ids(ring).iter().filter(|id| !sealing.contains(id)) {
                PeerClient::daemon(host).post("/v1/keys/retire", &json!({"id": id}))?;
                self.globals
                    .print_message(&format!("{host}: key {id}, which nobody sends with, is forgotten\n"));
            }
        }
        Ok(())
    }

    /// Returns all results, or fails after printing the errors.
    fn all_or_fail<T>(
        &self,
        outcomes: Vec<Result<T, CliError>>,
        retry_hint: &str,
    ) -> Result<Vec<T>, CliError> {
        let failed_count = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        for (host, outcome) in self.hosts.iter().zip(&outcomes) {
            if let Err(failure) = outcome {
                let reason = sanitize(failure.one_line());
                // Most errors name the host themselves.
                let host = host.to_string();
                let prefix = if reason.contains(&host) { String::new() } else { format!("{host}: ") };
                self.globals.print_always(&format!("error: {prefix}{reason}\n"));
            }
        }
        let all_unreachable = failed_count == outcomes.len() && outcomes.iter().all(is_unreachable);
        match failed_count {
            0 => Ok(outcomes.into_iter().flatten().collect()),
            failed_count => Err(CliError::new(
                if all_unreachable { CliExitCode::Unreachable } else { CliExitCode::Failed },
                format_args!(
                    "not gone on: {failed_count} of {} did not take it; {retry_hint}",
                    pluralize(outcomes.len(), "host")
                ),
            )),
        }
    }
}

fn is_unreachable<T>(outcome: &Result<T, CliError>) -> bool {
    matches!(outcome, Err(failure) if failure.exit_code == CliExitCode::Unreachable)
}

fn request(step: &KeyStep) -> (&'static str, Value) {
    match step {
        KeyStep::Accept(id, secret, holder) => {
            ("/v1/keys/accept", json!({"id": id, "secret": secret.digits(), "role": holder}))
        }
        KeyStep::Seal(id) => ("/v1/keys/seal", json!({"id": id})),
        KeyStep::Retire(id) => ("/v1/keys/retire", json!({"id": id})),
    }
}

fn parse_ring(response: Value) -> Result<KeyRing, CliError> {
    let message = "it does not answer as a daemon of this version does";
    serde_json::from_value(response)
        .map_err(|error| CliError::new(CliExitCode::Unreachable, format_args!("{message}: {error}")))
}

/// Checks that the keys can be changed without a gap, with these daemons as they are.
fn check_rings(hosts: &[ControlEndpoint], rings: &[KeyRing], partial: bool) -> Result<(), CliError> {
    for (host, ring) in hosts.iter().zip(rings) {
        for (other, other_ring) in hosts.iter().zip(rings) {
            if !ring.keys.contains(&other_ring.sealing) {
                return Err(CliError::failed(format_args!(
                    "{host} does not have key {}, which {other} sends with: they are no cluster, or one of \
                     them was left \
                     behind; give both the same file of keys first",
                    other_ring.sealing
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
fn next_key_id(rings: &[KeyRing]) -> Option<u32> {
    let key_ids = rings.iter().flat_map(|ring| ring.keys.iter().chain(&ring.client_keys));
    let max_id = key_ids.copied().max().unwrap_or(0);
    Some(incarnation().max(max_id.checked_add(1)?))
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
        let check = |rings: &[KeyRing], partial| {
            check_rings(&hosts, rings, partial).map_err(|error| error.one_line().to_owned())
        };
        assert_eq!(check(&[ring(1, &[7], &[2]), ring(2, &[7, 8], &[1])], false), Ok(()));
        // A change that broke off in the second step.
        assert_eq!(check(&[ring(1, &[7, 8], &[2]), ring(2, &[8, 7], &[1])], false), Ok(()));
        let error = check(&[ring(1, &[7], &[]), ring(2, &[8, 7], &[])], false).unwrap_err();
        assert!(error.contains("a:1 does not have key 8"), "{error}");
        let with_third = [ring(1, &[7], &[2, 3]), ring(2, &[7], &[1, 3])];
        assert!(check(&with_third, false).unwrap_err().contains("member 3 is there"));
        assert_eq!(check(&with_third, true), Ok(()));
    }

    #[test]
    fn a_new_key_has_the_greatest_number() {
        assert!(next_key_id(&[ring(1, &[7, 9], &[])]).unwrap() >= incarnation() - 1);
        assert_eq!(next_key_id(&[ring(1, &[4_294_967_000], &[])]), Some(4_294_967_001));
        assert_eq!(next_key_id(&[ring(1, &[7, u32::MAX], &[])]), None);
        let theirs = KeyRing { client_keys: vec![4_294_967_001], ..ring(1, &[4_294_967_000], &[]) };
        assert_eq!(next_key_id(&[theirs]), Some(4_294_967_002), "no two have the same");
    }
}
