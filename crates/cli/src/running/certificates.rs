//! The certificates of listeners from authorities, which change while the process runs, with their origin and
//! their end.

use std::any::Any;
use std::collections::BTreeSet;
use std::time::SystemTime;

use plimsoll_acme::{Answer, Front, Leaf, Settings, State};
use plimsoll_brain::EventKind;
use plimsoll_brain::status::CertificateStatus;
use plimsoll_proxy::{self as proxy, Challenge, Engine, Issued};

/// The data plane from the view of the keeper of certificates.
pub(super) struct Window(pub(super) Engine);

impl Front for Window {
    fn answer(&self, answer: &Answer<'_>) -> Result<Box<dyn Any + Send>, String> {
        Ok(Box::new(match *answer {
            Answer::Http { token, text } => Challenge::http(token, text),
            Answer::Tls { name, certificate, key } => {
                Challenge::tls(name, certificate.as_bytes(), key.as_bytes())?
            }
        }))
    }

    fn show(&self, id: &str, pem: &[u8]) -> Result<(), String> {
        Issued::named(id).show(pem, pem)
    }

    fn obtained(&self, why: String) {
        self.0.note(EventKind::CertificateObtained, "", why);
    }

    fn failed(&self, why: String) {
        self.0.note(EventKind::CertificateFailed, "", why);
    }
}

/// Loads the certificates of the folders before a client can come, for settings that exist already.
pub(crate) fn preload(wanted: &[Settings]) {
    for certificate in wanted {
        let place = Issued::named(&certificate.id());
        if place.leaf().is_none()
            && let Some(pem) = certificate.kept()
        {
            // The keeper reports its faults.
            let _ = place.show(&pem, &pem);
        }
    }
}

/// Returns the status of the certificates of these settings, each once.
pub(super) fn statuses(
    settings: &proxy::Settings,
    kept: &[State],
    now: SystemTime,
) -> Vec<CertificateStatus> {
    let mut seen = BTreeSet::new();
    let shown = settings.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let shown = shown.flat_map(proxy::ListenerTls::certificates);
    let shown = shown.filter(|certificate| seen.insert(certificate.source.clone()));
    shown.map(|certificate| status(&certificate, kept, now)).collect()
}

fn status(shown: &proxy::ShownCertificate, kept: &[State], now: SystemTime) -> CertificateStatus {
    let leaf = shown.leaf.as_ref().and_then(|leaf| Leaf::of(leaf));
    let state = kept.iter().find(|state| shown.issued && *state.id == *shown.source);
    let names = match (&leaf, state) {
        (Some(leaf), _) => leaf.names.clone(),
        (None, Some(state)) => state.domains.clone(),
        (None, None) => Vec::new(),
    };
    let renewal = state.and_then(|state| state.renewal);
    CertificateStatus {
        name: names.first().cloned().unwrap_or_else(|| shown.source.to_string()),
        names,
        source: shown.source.to_string(),
        acme: shown.issued,
        expires_seconds: leaf.as_ref().map(|leaf| leaf.seconds_left(now)),
        ends_soon: leaf.as_ref().is_some_and(|leaf| leaf.ends_soon(now)),
        renewal_seconds: renewal.map(|renewal| match renewal.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(over) => -over.duration().as_secs_f64(),
        }),
        failure: state.and_then(|state| state.failure.clone()),
    }
}
