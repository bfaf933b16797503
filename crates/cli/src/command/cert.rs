//! `plimsoll cert`: a small authority for operators without one. It makes the certificates that control over
//! TLS asks for: X509-SVIDs, whose only valid name is an SPIFFE id.

mod authority;
mod certificate;
mod pem;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{Exit, Failure, Globals};
use crate::control::text::{Cell, Tone, plain, table, utc};
use authority::{Authority, Name};
use certificate::Certificate;

/// Make and look at certificates for control over TLS
///
/// A small authority in a folder: keep the folder on one safe machine, and give others only ca.pem, and to each the
/// certificate and key that are its own.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an authority: a key, and the certificate ca.pem that all hosts and clients are given
    Init(Init),
    /// Issue a certificate with a key of its own, or issue it anew before it expires
    Issue(Issue),
    /// Give the authority a new key, without a gap: both count until the change is finished
    ///
    /// Certificates issued from now on lead to the new key and, by a cross certificate that they carry, to the old one. Give
    /// the new ca.pem to all, issue all certificates anew, then rotate --finish.
    Rotate(Rotate),
    /// Say whose certificates are in files, for whom and until when; exit code 1 if one does not count now
    Show(Show),
}

#[derive(clap::Args, Debug)]
struct Folder {
    /// Folder of the authority
    #[arg(long, value_name = "FOLDER", default_value = "ca")]
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
struct Init {
    /// The domain that ids are of, such as example.org
    #[arg(long, value_name = "NAME")]
    trust_domain: String,

    /// How long the authority lasts
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,

    #[command(flatten)]
    folder: Folder,
}

#[derive(clap::Args, Debug)]
struct Issue {
    /// Path of the id: ops/alice becomes spiffe://TRUST-DOMAIN/ops/alice
    #[arg(value_name = "SPIFFE-PATH")]
    path: String,

    /// It is for a server: a DNS name or IP address by which clients reach it; repeat it, or separate them by commas
    #[arg(long, value_name = "DNS|IP", value_delimiter = ',')]
    server: Vec<String>,

    /// How long it lasts
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,

    /// Folder that NAME.pem and NAME.key go to
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,

    /// What the files are called [default: the last word of the path]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    folder: Folder,
}

#[derive(clap::Args, Debug)]
struct Rotate {
    /// The old key no longer counts: take it out of ca.pem
    #[arg(long)]
    finish: bool,

    /// How long the new key lasts
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,

    #[command(flatten)]
    folder: Folder,
}

#[derive(clap::Args, Debug)]
struct Show {
    /// Files with certificates in PEM form [default: ca.pem of the authority]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Init(args) => init(args, globals),
        Command::Issue(args) => issue(args, globals),
        Command::Rotate(args) => rotate(args, globals),
        Command::Show(args) => show(args, globals),
    }
}

fn init(args: &Init, globals: &Globals) -> Result<ExitCode, Failure> {
    if let Err(why) = plimsoll_admin::trust_domain(&args.trust_domain) {
        return Err(usage(format_args!("--trust-domain {} {why}", plain(&args.trust_domain))));
    }
    let dir = &args.folder.dir;
    let made = Authority::make(dir, &args.trust_domain, now(), days(args.days)).map_err(usage)?;
    let ca = dir.join("ca.pem");
    let said = json!({"trust_domain": args.trust_domain, "ca": ca, "not_after": unix(made.until)});
    told(
        globals,
        &said,
        &format!(
            "{}: the authority of {}: give it to all hosts and clients\n{}: its key: keep it here\n",
            ca.display(),
            args.trust_domain,
            dir.join("ca.key").display()
        ),
    )
}

fn issue(args: &Issue, globals: &Globals) -> Result<ExitCode, Failure> {
    let authority = Authority::open(&args.folder.dir).map_err(usage)?;
    let whole = format!("spiffe://{}/", authority.trust_domain());
    let path = args.path.strip_prefix(&whole).unwrap_or(&args.path).trim_start_matches('/');
    let id = format!("{whole}{path}");
    plimsoll_admin::spiffe_id(&id).map_err(|why| usage(format_args!("{} {why}", plain(&id))))?;
    let names = args.server.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?;
    let name = args.name.as_deref().unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path));
    if name.contains('/') || name.starts_with('.') {
        return Err(usage(format_args!("--name {}: give the name of a file", plain(name))));
    }
    // The path must not become ./NAME.pem.
    let out = if args.out == Path::new(".") { Path::new("") } else { &args.out };
    let (file, key) = (out.join(format!("{name}.pem")), out.join(format!("{name}.key")));
    free(&file, &key, &id)?;
    let issued = authority.issue(&id, &names, now(), days(args.days)).map_err(Failure::failed)?;
    std::fs::create_dir_all(&args.out)
        .and_then(|()| pem::write_private(&key, &issued.key))
        .and_then(|()| pem::write(&file, &issued.chain))
        .map_err(|error| Failure::failed(format_args!("cannot write {}: {error}", args.out.display())))?;
    let said = json!({"id": id, "certificate": file, "key": key, "not_after": unix(issued.until)});
    told(
        globals,
        &said,
        &format!("{}: {id}, until {}\n{}: its key\n", file.display(), date(issued.until), key.display()),
    )
}

/// Checks that a certificate may be written: an existing one may be replaced only by a newer one of the same
/// id.
fn free(file: &Path, key: &Path, id: &str) -> Result<(), Failure> {
    let there = match std::fs::read(file) {
        Ok(bytes) => Certificate::all(&bytes).ok().and_then(|found| found.into_iter().next()),
        Err(_) if key.exists() => None,
        Err(_) => return Ok(()),
    };
    match there.and_then(|there| there.id) {
        Some(found) if found == id => Ok(()),
        _ => Err(usage(format_args!(
            "{} or {} is there, and not a certificate of {id}: give --out or --name",
            file.display(),
            key.display()
        ))),
    }
}

fn rotate(args: &Rotate, globals: &Globals) -> Result<ExitCode, Failure> {
    let authority = Authority::open(&args.folder.dir).map_err(usage)?;
    let ca = args.folder.dir.join("ca.pem");
    if args.finish {
        let gone = authority.finish().map_err(usage)?;
        let said = json!({"ca": ca, "retired": gone});
        return told(
            globals,
            &said,
            &format!("{}: {gone} retired: give it to all hosts and clients\n", ca.display()),
        );
    }
    let made = authority.rotate(now(), days(args.days)).map_err(usage)?;
    let said = json!({"ca": ca, "not_after": unix(made.until)});
    told(
        globals,
        &said,
        &format!(
            "{}: has the new authority and the old one: give it to all, issue all certificates anew, then rotate \
         --finish\n",
            ca.display()
        ),
    )
}

fn show(args: &Show, globals: &Globals) -> Result<ExitCode, Failure> {
    let files = if args.files.is_empty() { vec![args.folder.dir.join("ca.pem")] } else { args.files.clone() };
    let now = now();
    let (mut rows, mut list, mut well) = (Vec::new(), Vec::new(), true);
    for file in &files {
        let bytes = std::fs::read(file)
            .map_err(|error| usage(format_args!("cannot read {}: {error}", file.display())))?;
        let found =
            Certificate::all(&bytes).map_err(|why| usage(format_args!("{}: {why}", file.display())))?;
        for certificate in found {
            well &= certificate.state(now) == "valid";
            list.push(described(file, &certificate, now));
            rows.push(row(file, &certificate, now));
        }
    }
    globals.show(&list, || {
        let heading = |text: &&str| Cell::text(text).tone(Tone::Strong);
        let mut all = vec![["FILE", "ID", "NAMES", "UNTIL", "STATE", "ISSUER"].iter().map(heading).collect()];
        all.extend(rows);
        table(&all, globals.color())
    })?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn described(file: &Path, certificate: &Certificate, now: OffsetDateTime) -> Value {
    json!({
        "file": file,
        "id": certificate.id,
        "names": certificate.names,
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "serial": certificate.serial,
        "authority": certificate.authority,
        "not_before": unix(certificate.from),
        "not_after": unix(certificate.until),
        "state": certificate.state(now),
    })
}

fn row(file: &Path, certificate: &Certificate, now: OffsetDateTime) -> Vec<Cell> {
    let state = certificate.state(now);
    let tone = if state == "valid" { Tone::Good } else { Tone::Bad };
    let state = if certificate.authority { format!("{state}, authority") } else { state.to_owned() };
    vec![
        Cell::text(&file.display().to_string()),
        Cell::text(certificate.id.as_deref().unwrap_or("-")).tone(Tone::Strong),
        Cell::text(&if certificate.names.is_empty() { "-".into() } else { certificate.names.join(", ") }),
        Cell::text(&date(certificate.until)),
        Cell::text(&state).tone(tone),
        Cell::text(&certificate.issuer).tone(Tone::Faint),
    ]
}

fn named(name: &str) -> Result<Name, Failure> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(Name::Address(address));
    }
    let plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let word = |word: &str| !word.is_empty() && word.len() <= 63 && word.bytes().all(plain_byte);
    if name.len() > 253 || !name.split('.').all(word) {
        return Err(usage(format_args!("--server {}: give a DNS name or an IP address", plain(name))));
    }
    Ok(Name::Host(name.to_ascii_lowercase()))
}

fn told(globals: &Globals, said: &Value, text: &str) -> Result<ExitCode, Failure> {
    if globals.json() {
        globals.show(said, String::new)?;
    } else {
        globals.say(text);
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn days(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

fn unix(at: OffsetDateTime) -> i64 {
    at.unix_timestamp()
}

/// Returns a date: `2026-12-22 08:35Z`
fn date(at: OffsetDateTime) -> String {
    let text = utc(u64::try_from(at.unix_timestamp()).unwrap_or(0) * 1000);
    text.get(..16).map_or_else(|| text.clone(), |minutes| format!("{minutes}Z"))
}

fn usage(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, what)
}
