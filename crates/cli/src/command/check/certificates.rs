//! The ends of certificates: those of listeners, and that of control over TLS.

use std::path::Path;
use std::time::SystemTime;

use plimsoll_acme::LeafCertificate;
use plimsoll_brain::status::StatusReport;
use plimsoll_config::{ConfigFile, FilePath};

use super::diagnostic::{CheckSection, GuidePage};
use crate::control::format::short_duration;

/// Checks the ends. A running balancer reports those of its certificates; without one the files are read.
pub(super) fn check_expiry(file: Option<&ConfigFile>, live_status: Option<&StatusReport>) -> CheckSection {
    let mut section = CheckSection::new("certificates");
    if let Some(status) = live_status {
        for certificate in &status.certificates {
            let failure = certificate.failure.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
            add_expiry(
                &mut section,
                &format!("{}{failure}", certificate.name),
                certificate.expires_seconds,
                certificate.ends_soon,
            );
        }
    } else if let Some(file) = file {
        let tls = file.config.listeners.iter().flat_map(|listener| &listener.tls);
        for certificate in tls.flat_map(|tls| &tls.certificates) {
            check_file(&mut section, &certificate.certificate.0);
        }
    }
    if let Some(FilePath(path)) =
        file.and_then(|file| file.config.admin.tls.as_ref()).map(|tls| &tls.certificate)
    {
        check_file(&mut section, path);
    }
    section
}

fn check_file(section: &mut CheckSection, path: &Path) {
    let leaf = std::fs::read(path).ok().and_then(|pem| LeafCertificate::first_in_pem(&pem));
    let now = SystemTime::now();
    match leaf {
        None => section.fail(
            format!("{}: no certificate can be read from it", path.display()),
            "it has to be PEM, with the server's own certificate first",
            GuidePage::Certificates,
        ),
        Some(leaf) if leaf.from > now => section.fail(
            format!("{} is not good yet: it begins after now", path.display()),
            "see whether the clock is right",
            GuidePage::Clock,
        ),
        Some(leaf) => {
            let seconds_left = leaf.seconds_left(now);
            add_expiry(section, &path.display().to_string(), Some(seconds_left), leaf.expires_soon(now));
        }
    }
}

fn add_expiry(section: &mut CheckSection, name: &str, seconds_left: Option<f64>, ends_soon: bool) {
    match seconds_left {
        None => section.fail(
            format!("{name}: there is no certificate yet"),
            "plimsoll events says why the authority gave none",
            GuidePage::Certificates,
        ),
        Some(seconds_left) if seconds_left <= 0.0 => section.fail(
            format!("{name} is over since {}", short_duration(-seconds_left)),
            "put a new one in its place, then plimsoll reload",
            GuidePage::Certificates,
        ),
        Some(seconds_left) if ends_soon => section.warn(
            format!("{name} ends in {}", short_duration(seconds_left)),
            "put a new one in its place, then plimsoll reload",
            GuidePage::Certificates,
        ),
        Some(seconds_left) => section.ok(format!("{name} ends in {}", short_duration(seconds_left))),
    }
}
