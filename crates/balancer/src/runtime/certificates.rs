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
    fn answer_challenge(
        &self,
        challenge_response: &ChallengeResponse<'_>,
    ) -> Result<Box<dyn Any + Send>, String> {
        Ok(Box::new(match *challenge_response {
            ChallengeResponse::Http { token, text } => AcmeChallenge::http(token, text),
            ChallengeResponse::Tls { name, certificate, key } => {
                AcmeChallenge::tls(name, certificate.as_bytes(), key.as_bytes())?
            }
        }))
    }

    fn install(&self, id: &str, pem: &[u8]) -> Result<(), String> {
        AcmeSlot::with_id(id).fill(pem, pem)
    }

    fn certificate_obtained(&self, reason: String) {
        self.0.write_group_event(EventKind::CertificateObtained, "", reason);
    }

    fn certificate_failed(&self, reason: String) {
        self.0.write_group_event(EventKind::CertificateFailed, "", reason);
    }
}

/// Loads the certificates of the folders before a client can come, for settings that exist already.
pub(crate) fn preload(certificates: &[CertificateSettings]) {
    for certificate in certificates {
        let slot = AcmeSlot::with_id(&certificate.id());
        if slot.leaf().is_none()
            && let Some(pem) = certificate.stored_pem()
        {
            // The keeper reports its faults.
            let _ = slot.fill(&pem, &pem);
        }
    }
}

/// Returns the status of the certificates of these settings, each once.
pub(super) fn statuses(
    settings: &proxy::Settings,
    states: &[CertificateState],
    now: SystemTime,
) -> Vec<CertificateStatus> {
    let mut seen_sources = BTreeSet::new();
    let listener_tls = settings.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let certificates = listener_tls.flat_map(proxy::ListenerTls::certificates);
    let certificates = certificates.filter(|certificate| seen_sources.insert(certificate.source.clone()));
    certificates.map(|certificate| status(&certificate, states, now)).collect()
}

fn status(
    certificate: &proxy::ListenerCertificate,
    states: &[CertificateState],
    now: SystemTime,
) -> CertificateStatus {
    let leaf_der = certificate.leaf.as_ref().and_then(|leaf_der| LeafCertificate::from_der(leaf_der));
    let state = states.iter().find(|state| certificate.issued && *state.id == *certificate.source);
    let names = match (&leaf_der, state) {
        (Some(leaf_certificate), _) => leaf_certificate.names.clone(),
        (None, Some(state)) => state.domains.clone(),
        (None, None) => Vec::new(),
    };
    let renewal = state.and_then(|state| state.renewal);
    CertificateStatus {
        name: names.first().cloned().unwrap_or_else(|| certificate.source.to_string()),
        names,
        source: certificate.source.to_string(),
        acme: certificate.issued,
        expires_seconds: leaf_der.as_ref().map(|leaf_certificate| leaf_certificate.seconds_left(now)),
        ends_soon: leaf_der.as_ref().is_some_and(|leaf_certificate| leaf_certificate.expires_soon(now)),
        renewal_seconds: renewal.map(|renewal| match renewal.duration_since(now) {
            Ok(remaining) => remaining.as_secs_f64(),
            Err(elapsed) => -elapsed.duration().as_secs_f64(),
        }),
        failure: state.and_then(|state| state.failure.clone()),
    }
}
