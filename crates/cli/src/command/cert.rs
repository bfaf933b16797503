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
    if let Err(error) = plimsoll_admin::trust_domain(&args.trust_domain) {
        return Err(usage_error(format_args!("--trust-domain {} {error}", sanitize(&args.trust_domain))));
    }
    let dir = &args.folder.dir;
    let root = CertificateAuthority::create(dir, &args.trust_domain, now(), days_duration(args.days))
        .map_err(usage_error)?;
    let ca = dir.join("ca.pem");
    let summary =
        json!({"trust_domain": args.trust_domain, "ca": ca, "not_after": unix_seconds(root.expires_at)});
    print_result(
        globals,
        &summary,
        &format!(
            "{}: the authority of {}: give it to all hosts and clients\n{}: its key: keep it here\n",
            ca.display(),
            args.trust_domain,
            dir.join("ca.key").display()
        ),
    )
}

fn issue(args: &CertIssueArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let authority = CertificateAuthority::open(&args.folder.dir).map_err(usage_error)?;
    let id_prefix = format!("spiffe://{}/", authority.trust_domain());
    let path = args.path.strip_prefix(&id_prefix).unwrap_or(&args.path).trim_start_matches('/');
    let id = format!("{id_prefix}{path}");
    plimsoll_admin::spiffe_id(&id).map_err(|error| usage_error(format_args!("{} {error}", sanitize(&id))))?;
    let names = args.server.iter().map(|name| parse_subject_name(name)).collect::<Result<Vec<_>, _>>()?;
    let name = args.name.as_deref().unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path));
    if name.contains('/') || name.starts_with('.') {
        return Err(usage_error(format_args!("--name {}: give the name of a file", sanitize(name))));
    }
    // The path must not become ./NAME.pem.
    let out = if args.out == Path::new(".") { Path::new("") } else { &args.out };
    let (file, key) = (out.join(format!("{name}.pem")), out.join(format!("{name}.key")));
    check_replaceable(&file, &key, &id)?;
    let issued = authority.issue(&id, &names, now(), days_duration(args.days)).map_err(CliError::failed)?;
    std::fs::create_dir_all(&args.out)
        .and_then(|()| pem::write_private(&key, &issued.key))
        .and_then(|()| pem::write(&file, &issued.chain))
        .map_err(|error| CliError::failed(format_args!("cannot write {}: {error}", args.out.display())))?;
    let summary =
        json!({"id": id, "certificate": file, "key": key, "not_after": unix_seconds(issued.expires_at)});
    print_result(
        globals,
        &summary,
        &format!(
            "{}: {id}, until {}\n{}: its key\n",
            file.display(),
            format_date(issued.expires_at),
            key.display()
        ),
    )
}

/// Checks that a certificate may be written: an existing one may be replaced only by a newer one of the same
/// id.
fn check_replaceable(file: &Path, key: &Path, id: &str) -> Result<(), CliError> {
    let existing = match std::fs::read(file) {
        Ok(bytes) => {
            ParsedCertificate::parse_all(&bytes).ok().and_then(|certificates| certificates.into_iter().next())
        }
        Err(_) if key.exists() => None,
        Err(_) => return Ok(()),
    };
    match existing.and_then(|certificate| certificate.id) {
        Some(existing_id) if existing_id == id => Ok(()),
        _ => Err(usage_error(format_args!(
            "{} or {} is there, and not a certificate of {id}: give --out or --name",
            file.display(),
            key.display()
        ))),
    }
}

fn rotate(args: &CertRotateArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let authority = CertificateAuthority::open(&args.folder.dir).map_err(usage_error)?;
    let ca = args.folder.dir.join("ca.pem");
    if args.finish {
        let retired = authority.finish_rotation().map_err(usage_error)?;
        let summary = json!({"ca": ca, "retired": retired});
        return print_result(
            globals,
            &summary,
            &format!("{}: {retired} retired: give it to all hosts and clients\n", ca.display()),
        );
    }
    let root = authority.rotate(now(), days_duration(args.days)).map_err(usage_error)?;
    let summary = json!({"ca": ca, "not_after": unix_seconds(root.expires_at)});
    print_result(
        globals,
        &summary,
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
    let (mut rows, mut descriptions, mut all_valid) = (Vec::new(), Vec::new(), true);
    for file in &files {
        let bytes = std::fs::read(file)
            .map_err(|error| usage_error(format_args!("cannot read {}: {error}", file.display())))?;
        let certificates = ParsedCertificate::parse_all(&bytes)
            .map_err(|error| usage_error(format_args!("{}: {error}", file.display())))?;
        for certificate in certificates {
            all_valid &= certificate.state(now) == "valid";
            descriptions.push(certificate_json(file, &certificate, now));
            rows.push(certificate_row(file, &certificate, now));
        }
    }
    globals.print_result(&descriptions, || {
        let heading = |text: &&str| TableCell::text(text).style(TextStyle::Strong);
        let mut table_rows =
            vec![["FILE", "ID", "NAMES", "UNTIL", "STATE", "ISSUER"].iter().map(heading).collect()];
        table_rows.extend(rows);
        table(&table_rows, globals.stdout_has_color())
    })?;
    Ok(if all_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn certificate_json(file: &Path, certificate: &ParsedCertificate, now: OffsetDateTime) -> Value {
    json!({
        "file": file,
        "id": certificate.id,
        "names": certificate.names,
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "serial": certificate.serial,
        "authority": certificate.is_authority,
        "not_before": unix_seconds(certificate.not_before),
        "not_after": unix_seconds(certificate.not_after),
        "state": certificate.state(now),
    })
}

fn certificate_row(file: &Path, certificate: &ParsedCertificate, now: OffsetDateTime) -> Vec<TableCell> {
    let state = certificate.state(now);
    let style = if state == "valid" { TextStyle::Good } else { TextStyle::Bad };
    let state = if certificate.is_authority { format!("{state}, authority") } else { state.to_owned() };
    vec![
        TableCell::text(&file.display().to_string()),
        TableCell::text(certificate.id.as_deref().unwrap_or("-")).style(TextStyle::Strong),
        TableCell::text(&if certificate.names.is_empty() {
            "-".into()
        } else {
            certificate.names.join(", ")
        }),
        TableCell::text(&format_date(certificate.not_after)),
        TableCell::text(&state).style(style),
        TableCell::text(&certificate.issuer).style(TextStyle::Faint),
    ]
}

fn parse_subject_name(name: &str) -> Result<SubjectName, CliError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SubjectName::Address(address));
    }
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(is_name_byte);
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(usage_error(format_args!(
            "--server {}: give a DNS name or an IP address",
            sanitize(name)
        )));
    }
    Ok(SubjectName::Host(name.to_ascii_lowercase()))
}

fn print_result(globals: &GlobalArgs, summary: &Value, text: &str) -> Result<ExitCode, CliError> {
    if globals.is_json() {
        globals.print_result(summary, String::new)?;
    } else {
        globals.print_message(text);
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn days_duration(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

fn unix_seconds(time: OffsetDateTime) -> i64 {
    time.unix_timestamp()
}

/// Returns a date: `2026-12-22 08:35Z`
fn format_date(time: OffsetDateTime) -> String {
    let text = utc_time(u64::try_from(time.unix_timestamp()).unwrap_or(0) * 1000);
    text.get(..16).map_or_else(|| text.clone(), |minutes| format!("{minutes}Z"))
}

fn usage_error(message: impl std::fmt::Display) -> CliError {
    CliError::new(CliExitCode::Usage, message)
}
