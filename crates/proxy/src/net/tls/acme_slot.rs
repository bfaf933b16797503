//! A certificate that arrives and is replaced while the process runs, obtained from a certificate authority
//! (ACME).
//!
//! Listeners hold a slot for the certificate, and present its content to each client. So a new one is in
//! force from the next handshake on. Open connections and resumed sessions are not affected.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::server::certified_key;

/// A slot for a certificate. There is one per ID while it is in use, so that a reload finds its content.
#[derive(Default)]
pub struct AcmeSlot {
    id: Box<str>,
    key: ArcSwapOption<CertifiedKey>,
}

impl AcmeSlot {
    /// Returns the slot with this ID, which is empty unless it was filled.
    pub fn with_id(id: &str) -> Arc<Self> {
        type SlotRegistry = BTreeMap<Box<str>, Weak<AcmeSlot>>;
        static SLOTS: LazyLock<Mutex<SlotRegistry>> = LazyLock::new(Mutex::default);
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, slot| slot.strong_count() > 0);
        if let Some(slot) = slots.get(id).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Self { id: id.into(), key: ArcSwapOption::empty() });
        slots.insert(id.into(), Arc::downgrade(&slot));
        slot
    }

    /// Fills the slot: clients get this certificate with its intermediates (PEM), and its key (PEM).
    ///
    /// # Errors
    /// They are invalid or do not match; the previous certificate stays in force.
    pub fn fill(&self, chain: &[u8], key: &[u8]) -> Result<(), String> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        self.key.store(Some(Arc::new(certified_key(chain, key, &provider)?)));
        Ok(())
    }

    /// Returns the slot's ID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the current certificate.
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.key.load().as_ref()?.cert.first().cloned()
    }

    pub(super) fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}

impl Debug for AcmeSlot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Issued").field(&self.id).finish()
    }
}
