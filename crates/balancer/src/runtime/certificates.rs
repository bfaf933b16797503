//! The certificates of listeners from authorities, which change while the process runs, with their origin and
//! their end.

use std::any::Any;
use std::collections::BTreeSet;
use std::time::SystemTime;

use plimsoll_acme::{AcmeHandler, CertificateSettings, CertificateState, ChallengeResponse, LeafCertificate};
use plimsoll_brain::EventKind;
use plimsoll_brain::status::CertificateStatus;
use plimsoll_proxy::{self as proxy, AcmeChallenge, AcmeSlot, Engine};

/// The data plane from the view of the keeper of certificates.
pub(super) struct CertificateAdapter(pub(super) Engine);

impl AcmeHandler for CertificateAdapter {
    fn answer_challenge(&self, answer: &ChallengeResponse<'_>) -> Result<Box<dyn Any + Send>, String> {
        Ok(Box::new(match *answer {
            ChallengeResponse::Http { token, text } => AcmeChallenge::http(token, text),
            ChallengeResponse::Tls { name, certificate, key } => {
                AcmeChallenge::tls(name, certificate.as_bytes(), key.as_bytes())?
            }
        }))
    }

    fn install(&self, id: &str, pem: &[u8]) -> Result<(), String> {
        AcmeSlot::with_id(id).fill(pem, pem)
    }

    fn certificate_obtained(&self, why: String) {
        self.0.write_group_event(EventKind::CertificateObtained, "", why);
    }

    fn certificate_failed(&self, why: String) {
        self.0.write_group_event(EventKind::CertificateFailed, "", why);
    }
}

/// Loads the certificates of the folders before a client can come, for settings that exist already.
pub(crate) fn preload(wanted: &[CertificateSettings]) {
    for certificate in wanted {
        let place = AcmeSlot::with_id(&certificate.id());
        if place.leaf().is_none()
            && let Some(pem) = certificate.stored_pem()
        {
            // The keeper reports its faults.
            let _ = place.fill(&pem, &pem);
        }
    }
}

/// Returns the status of the certificates of these settings, each once.
pub(super) fn statuses(
    settings: &proxy::Settings,
    kept: &[CertificateState],
    now: SystemTime,
) -> Vec<CertificateStatus> {
    let mut seen = BTreeSet::new();
    let shown = settings.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let shown = shown.flat_map(proxy::ListenerTls::certificates);
    let shown = shown.filter(|certificate| seen.insert(certificate.source.clone()));
    shown.map(|certificate| status(&certificate, kept, now)).collect()
}

fn status(
    shown: &proxy::ListenerCertificate,
    kept: &[CertificateState],
    now: SystemTime,
) -> CertificateStatus {
    let leaf = shown.leaf.as_ref().and_then(|leaf| LeafCertificate::from_der(leaf));
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
        ends_soon: leaf.as_ref().is_some_and(|leaf| leaf.expires_soon(now)),
        renewal_seconds: renewal.map(|renewal| match renewal.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(over) => -over.duration().as_secs_f64(),
        }),
        failure: state.and_then(|state| state.failure.clone()),
    }
}
