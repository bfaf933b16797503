//! The ends of certificates: those of listeners, and that of control over TLS.

use std::path::Path;
use std::time::SystemTime;

use plimsoll_acme::LeafCertificate;
use plimsoll_brain::status::StatusReport;
use plimsoll_config::{ConfigFile, FilePath};

use super::diagnostic::{CheckSection, GuidePage};
use crate::control::format::short_duration;

/// Checks the ends. A running balancer reports those of its certificates; without one the files are read.
pub(super) fn check_expiry(file: Option<&ConfigFile>, seen: Option<&StatusReport>) -> CheckSection {
    let mut part = CheckSection::new("certificates");
    if let Some(status) = seen {
        for one in &status.certificates {
            let failure = one.failure.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            add_expiry(&mut part, &format!("{}{failure}", one.name), one.expires_seconds, one.ends_soon);
        }
    } else if let Some(file) = file {
        let tls = file.config.listeners.iter().flat_map(|listener| &listener.tls);
        for certificate in tls.flat_map(|tls| &tls.certificates) {
            read(&mut part, &certificate.certificate.0);
        }
    }
    if let Some(FilePath(path)) =
        file.and_then(|file| file.config.admin.tls.as_ref()).map(|tls| &tls.certificate)
    {
        read(&mut part, path);
    }
    part
}

fn read(part: &mut CheckSection, path: &Path) {
    let leaf = std::fs::read(path).ok().and_then(|pem| LeafCertificate::first_in_pem(&pem));
    let now = SystemTime::now();
    match leaf {
        None => part.fail(
            format!("{}: no certificate can be read from it", path.display()),
            "it has to be PEM, with the server's own certificate first",
            GuidePage::Certificates,
        ),
        Some(leaf) if leaf.from > now => part.fail(
            format!("{} is not good yet: it begins after now", path.display()),
            "see whether the clock is right",
            GuidePage::Clock,
        ),
        Some(leaf) => {
            let left = leaf.seconds_left(now);
            add_expiry(part, &path.display().to_string(), Some(left), leaf.expires_soon(now));
        }
    }
}

fn add_expiry(part: &mut CheckSection, name: &str, left: Option<f64>, soon: bool) {
    match left {
        None => part.fail(
            format!("{name}: there is no certificate yet"),
            "plimsoll events says why the authority gave none",
            GuidePage::Certificates,
        ),
        Some(left) if left <= 0.0 => part.fail(
            format!("{name} is over since {}", short_duration(-left)),
            "put a new one in its place, then plimsoll reload",
            GuidePage::Certificates,
        ),
        Some(left) if soon => part.warn(
            format!("{name} ends in {}", short_duration(left)),
            "put a new one in its place, then plimsoll reload",
            GuidePage::Certificates,
        ),
        Some(left) => part.ok(format!("{name} ends in {}", short_duration(left))),
    }
}
