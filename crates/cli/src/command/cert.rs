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

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, table, utc_time};
use authority::{CertificateAuthority, SubjectName};
use certificate::ParsedCertificate;

/// Create, issue and show certificates for control over TLS
///
/// A small certificate authority (CA) in a folder. Keep the folder on one secure machine; distribute only
/// ca.pem, and to each host or client its own certificate and key.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Create a CA: a key, and the certificate ca.pem for all hosts and clients
    Init(CertInitArgs),
    /// Issue a certificate with its own key, or renew it before it expires
    Issue(CertIssueArgs),
    /// Rotate the key of the CA without downtime: both keys are valid until the rotation is finished
    ///
    /// Certificates issued from now on chain to the new key and, by a cross-certificate that they include, to
    /// the old key. Distribute the new ca.pem to all, reissue all certificates, then run rotate --finish.
    Rotate(CertRotateArgs),
    /// Show the identities, names and expiry of the certificates in files; exit code 1 if one is not valid
    /// now
    Show(CertShowArgs),
}

#[derive(clap::Args, Debug)]
struct AuthorityFolder {
    /// Folder of the CA
    #[arg(long, value_name = "FOLDER", default_value = "ca")]
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
struct CertInitArgs {
    /// Trust domain of the SPIFFE ids, such as example.org
    #[arg(long, value_name = "NAME")]
    trust_domain: String,

    /// Validity of the CA certificate in days
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,

    #[command(flatten)]
    folder: AuthorityFolder,
}

#[derive(clap::Args, Debug)]
struct CertIssueArgs {
    /// Path of the SPIFFE id: ops/alice becomes spiffe://TRUST-DOMAIN/ops/alice
    #[arg(value_name = "SPIFFE-PATH")]
    path: String,

    /// DNS name or IP address by which clients reach the server, for a server's certificate; repeatable, or
    /// comma-separated
    #[arg(long, value_name = "DNS|IP", value_delimiter = ',')]
    server: Vec<String>,

    /// Validity of the certificate in days
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,

    /// Output folder for NAME.pem and NAME.key
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,

    /// Base name of the files [default: the last component of the path]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    folder: AuthorityFolder,
}

#[derive(clap::Args, Debug)]
struct CertRotateArgs {
    /// Invalidate the old key: remove it from ca.pem
    #[arg(long)]
    finish: bool,

    /// Validity of the new CA certificate in days
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,

    #[command(flatten)]
    folder: AuthorityFolder,
}

#[derive(clap::Args, Debug)]
struct CertShowArgs {
    /// Certificate files in PEM form [default: ca.pem of the CA]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    folder: AuthorityFolder,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        CertCommand::Init(args) => init(args, globals),
        CertCommand::Issue(args) => issue(args, globals),
        CertCommand::Rotate(args) => rotate(args, globals),
        CertCommand::Show(args) => show(args, globals),
    }
}

fn init(args: &CertInitArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    if let Err(why) = plimsoll_admin::trust_domain(&args.trust_domain) {
        return Err(usage(format_args!("--trust-domain {} {why}", sanitize(&args.trust_domain))));
    }
    let dir = &args.folder.dir;
    let made =
        CertificateAuthority::create(dir, &args.trust_domain, now(), days(args.days)).map_err(usage)?;
    let ca = dir.join("ca.pem");
    let said = json!({"trust_domain": args.trust_domain, "ca": ca, "not_after": unix(made.expires_at)});
    print_result(
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

fn issue(args: &CertIssueArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let authority = CertificateAuthority::open(&args.folder.dir).map_err(usage)?;
    let whole = format!("spiffe://{}/", authority.trust_domain());
    let path = args.path.strip_prefix(&whole).unwrap_or(&args.path).trim_start_matches('/');
    let id = format!("{whole}{path}");
    plimsoll_admin::spiffe_id(&id).map_err(|why| usage(format_args!("{} {why}", sanitize(&id))))?;
    let names = args.server.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?;
    let name = args.name.as_deref().unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path));
    if name.contains('/') || name.starts_with('.') {
        return Err(usage(format_args!("--name {}: give the name of a file", sanitize(name))));
    }
    // The path must not become ./NAME.pem.
    let out = if args.out == Path::new(".") { Path::new("") } else { &args.out };
    let (file, key) = (out.join(format!("{name}.pem")), out.join(format!("{name}.key")));
    check_replaceable(&file, &key, &id)?;
    let issued = authority.issue(&id, &names, now(), days(args.days)).map_err(CliError::failed)?;
    std::fs::create_dir_all(&args.out)
        .and_then(|()| pem::write_private(&key, &issued.key))
        .and_then(|()| pem::write(&file, &issued.chain))
        .map_err(|error| CliError::failed(format_args!("cannot write {}: {error}", args.out.display())))?;
    let said = json!({"id": id, "certificate": file, "key": key, "not_after": unix(issued.expires_at)});
    print_result(
        globals,
        &said,
        &format!("{}: {id}, until {}\n{}: its key\n", file.display(), date(issued.expires_at), key.display()),
    )
}

/// Checks that a certificate may be written: an existing one may be replaced only by a newer one of the same
/// id.
fn check_replaceable(file: &Path, key: &Path, id: &str) -> Result<(), CliError> {
    let there = match std::fs::read(file) {
        Ok(bytes) => ParsedCertificate::parse_all(&bytes).ok().and_then(|found| found.into_iter().next()),
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

fn rotate(args: &CertRotateArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let authority = CertificateAuthority::open(&args.folder.dir).map_err(usage)?;
    let ca = args.folder.dir.join("ca.pem");
    if args.finish {
        let gone = authority.finish_rotation().map_err(usage)?;
        let said = json!({"ca": ca, "retired": gone});
        return print_result(
            globals,
            &said,
            &format!("{}: {gone} retired: give it to all hosts and clients\n", ca.display()),
        );
    }
    let made = authority.rotate(now(), days(args.days)).map_err(usage)?;
    let said = json!({"ca": ca, "not_after": unix(made.expires_at)});
    print_result(
        globals,
        &said,
        &format!(
            "{}: has the new authority and the old one: give it to all, issue all certificates anew, then \
         rotate \
         --finish\n",
            ca.display()
        ),
    )
}

fn show(args: &CertShowArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let files = if args.files.is_empty() { vec![args.folder.dir.join("ca.pem")] } else { args.files.clone() };
    let now = now();
    let (mut rows, mut list, mut well) = (Vec::new(), Vec::new(), true);
    for file in &files {
        let bytes = std::fs::read(file)
            .map_err(|error| usage(format_args!("cannot read {}: {error}", file.display())))?;
        let found = ParsedCertificate::parse_all(&bytes)
            .map_err(|why| usage(format_args!("{}: {why}", file.display())))?;
        for certificate in found {
            well &= certificate.state(now) == "valid";
            list.push(described(file, &certificate, now));
            rows.push(row(file, &certificate, now));
        }
    }
    globals.print_result(&list, || {
        let heading = |text: &&str| TableCell::text(text).tone(TextStyle::Strong);
        let mut all = vec![["FILE", "ID", "NAMES", "UNTIL", "STATE", "ISSUER"].iter().map(heading).collect()];
        all.extend(rows);
        table(&all, globals.stdout_has_color())
    })?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn described(file: &Path, certificate: &ParsedCertificate, now: OffsetDateTime) -> Value {
    json!({
        "file": file,
        "id": certificate.id,
        "names": certificate.names,
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "serial": certificate.serial,
        "authority": certificate.is_authority,
        "not_before": unix(certificate.not_before),
        "not_after": unix(certificate.not_after),
        "state": certificate.state(now),
    })
}

fn row(file: &Path, certificate: &ParsedCertificate, now: OffsetDateTime) -> Vec<TableCell> {
    let state = certificate.state(now);
    let tone = if state == "valid" { TextStyle::Good } else { TextStyle::Bad };
    let state = if certificate.is_authority { format!("{state}, authority") } else { state.to_owned() };
    vec![
        TableCell::text(&file.display().to_string()),
        TableCell::text(certificate.id.as_deref().unwrap_or("-")).tone(TextStyle::Strong),
        TableCell::text(&if certificate.names.is_empty() {
            "-".into()
        } else {
            certificate.names.join(", ")
        }),
        TableCell::text(&date(certificate.not_after)),
        TableCell::text(&state).tone(tone),
        TableCell::text(&certificate.issuer).tone(TextStyle::Faint),
    ]
}

fn named(name: &str) -> Result<SubjectName, CliError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SubjectName::Address(address));
    }
    let plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let word = |word: &str| !word.is_empty() && word.len() <= 63 && word.bytes().all(plain_byte);
    if name.len() > 253 || !name.split('.').all(word) {
        return Err(usage(format_args!("--server {}: give a DNS name or an IP address", sanitize(name))));
    }
    Ok(SubjectName::Host(name.to_ascii_lowercase()))
}

fn print_result(globals: &GlobalArgs, said: &Value, text: &str) -> Result<ExitCode, CliError> {
    if globals.is_json() {
        globals.print_result(said, String::new)?;
    } else {
        globals.print_message(text);
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
    let text = utc_time(u64::try_from(at.unix_timestamp()).unwrap_or(0) * 1000);
    text.get(..16).map_or_else(|| text.clone(), |minutes| format!("{minutes}Z"))
}

fn usage(what: impl std::fmt::Display) -> CliError {
    CliError::new(CliExitCode::Usage, what)
}
