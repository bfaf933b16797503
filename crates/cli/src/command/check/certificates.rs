//! The ends of certificates: those of listeners, and that of control over TLS.

use std::path::Path;
use std::time::SystemTime;

use plimsoll_acme::Leaf;
use plimsoll_brain::status::Status;

use super::finding::{Part, See};
use crate::config::{File, LogPath};
use crate::control::text::ago;

/// Checks the ends. A running balancer reports those of its certificates; without one the files are read.
pub(super) fn ends(file: Option<&File>, seen: Option<&Status>) -> Part {
    let mut part = Part::new("certificates");
    if let Some(status) = seen {
        for one in &status.certificates {
            let failure = one.failure.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            told(&mut part, &format!("{}{failure}", one.name), one.expires_seconds, one.ends_soon);
        }
    } else if let Some(file) = file {
        let tls = file.config.listeners.iter().flat_map(|listener| &listener.tls);
        for certificate in tls.flat_map(|tls| &tls.certificates) {
            read(&mut part, &certificate.certificate.0);
        }
    }
    if let Some(LogPath(path)) =
        file.and_then(|file| file.config.admin.tls.as_ref()).map(|tls| &tls.certificate)
    {
        read(&mut part, path);
    }
    part
}

fn read(part: &mut Part, path: &Path) {
    let leaf = std::fs::read(path).ok().and_then(|pem| Leaf::first(&pem));
    let now = SystemTime::now();
    match leaf {
        None => part.fail(
            format!("{}: no certificate can be read from it", path.display()),
            "it has to be PEM, with the server's own certificate first",
            See::Certificates,
        ),
        Some(leaf) if leaf.from > now => part.fail(
            format!("{} is not good yet: it begins after now", path.display()),
            "see whether the clock is right",
            See::Clock,
        ),
        Some(leaf) => {
            let left = leaf.seconds_left(now);
            told(part, &path.display().to_string(), Some(left), leaf.ends_soon(now));
        }
    }
}

fn told(part: &mut Part, name: &str, left: Option<f64>, soon: bool) {
    match left {
        None => part.fail(
            format!("{name}: there is no certificate yet"),
            "plimsoll events says why the authority gave none",
            See::Certificates,
        ),
        Some(left) if left <= 0.0 => part.fail(
            format!("{name} is over since {}", ago(-left)),
            "put a new one in its place, then plimsoll reload",
            See::Certificates,
        ),
        Some(left) if soon => part.warn(
            format!("{name} ends in {}", ago(left)),
            "put a new one in its place, then plimsoll reload",
            See::Certificates,
        ),
        Some(left) => part.ok(format!("{name} ends in {}", ago(left))),
    }
}
