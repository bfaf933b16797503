//! A certificate that comes while the process runs, and that others follow: obtained from an authority (ACME).
//!
//! Listeners have the place where it will be, and show what is there when a client comes. So a new one is in force with
//! the next handshake; connections that are open, and sessions that are resumed, notice nothing.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::server::certified;

/// The place of a certificate. There is one for each name that they go by, as long as somebody has it: a reload finds what is
/// there.
#[derive(Default)]
pub struct Issued {
    id: Box<str>,
    key: ArcSwapOption<CertifiedKey>,
}

impl Issued {
    /// The place that goes by this name, empty unless something was put there.
    pub fn named(id: &str) -> Arc<Self> {
        type Known = BTreeMap<Box<str>, Weak<Issued>>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, place| place.strong_count() > 0);
        if let Some(place) = known.get(id).and_then(Weak::upgrade) {
            return place;
        }
        let place = Arc::new(Self { id: id.into(), key: ArcSwapOption::empty() });
        known.insert(id.into(), Arc::downgrade(&place));
        place
    }

    /// From now on clients are shown this certificate, with those between it and its authority (PEM), and its key (PEM).
    ///
    /// # Errors
    /// They cannot be read, or do not fit; what was shown before is shown on.
    pub fn show(&self, chain: &[u8], key: &[u8]) -> Result<(), String> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        self.key.store(Some(Arc::new(certified(chain, key, &provider)?)));
        Ok(())
    }

    /// What it goes by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The certificate that is shown now.
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.key.load().as_ref()?.cert.first().cloned()
    }

    pub(super) fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}

impl Debug for Issued {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Issued").field(&self.id).finish()
    }
}
