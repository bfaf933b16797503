//! Session tickets, by which clients resume TLS sessions without the handshake's public-key operations.
//!
//! No state of sessions is kept here. A ticket contains its session's secrets, encrypted with a key of this
//! process, by AES-256-GCM-SIV (RFC 8452: even two tickets with the same nonce would only show whether they
//! are equal). Keys change every six hours, and the previous one decrypts tickets for six more hours.
//!
//! Keys survive a reload and, by handoff, the process, so that clients can continue. A session with a client
//! certificate is resumed only by listeners with the same requirements.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::server::ProducesTickets;
use serde::{Deserialize, Serialize};

use super::ClientVerification;
use crate::runtime::sync::lock;

/// The time for which a key encrypts, in seconds; it decrypts for as long again.
const LIFETIME: u32 = 6 * 3600;
/// The size of a key's name, with which a ticket begins, in bytes.
const NAME_LEN: usize = 16;

/// The keys, by the requirements on clients.
pub(crate) type TicketKeys = BTreeMap<u64, RotatingKeys>;

/// The secret keys of one kind of listener.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RotatingKeys {
    now: TicketKey,
    before: Option<TicketKey>,
    /// The time since which `now` encrypts, in seconds since 1970.
    since: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct TicketKey {
    name: [u8; NAME_LEN],
    secret: [u8; 32],
}

static CODECS: LazyLock<Mutex<BTreeMap<u64, Arc<TicketCodec>>>> = LazyLock::new(Mutex::default);

/// Encrypts and decrypts tickets.
pub(super) struct TicketCodec(Mutex<RotatingKeys>);

/// Returns the tickets for listeners with these requirements on clients.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn ticket_codec(
    client_verification: Option<ClientVerification<'_>>,
) -> Result<Arc<TicketCodec>, String> {
    let mut hasher = DefaultHasher::new();
    client_verification.hash(&mut hasher);
    let mut codecs = lock(&CODECS);
    let config_hash = hasher.finish();
    if let Some(codec) = codecs.get(&config_hash) {
        return Ok(Arc::clone(codec));
    }
    let keys = RotatingKeys { now: TicketKey::new()?, before: None, since: unix_seconds() };
    let codec = Arc::new(TicketCodec(Mutex::new(keys)));
    codecs.insert(config_hash, Arc::clone(&codec));
    Ok(codec)
}

/// Returns all keys.
pub(crate) fn ticket_keys() -> TicketKeys {
    lock(&CODECS).iter().map(|(config_hash, codec)| (*config_hash, lock(&codec.0).clone())).collect()
}

/// Continues with the keys of another process.
pub(crate) fn restore_ticket_keys(keys: TicketKeys) {
    let mut codecs = lock(&CODECS);
    for (config_hash, keys) in keys {
        codecs.insert(config_hash, Arc::new(TicketCodec(Mutex::new(keys))));
    }
}

impl TicketKey {
    fn new() -> Result<Self, String> {
        let mut key = Self { name: [0; NAME_LEN], secret: [0; 32] };
        let no_random = |_| "the system gives no random numbers".to_owned();
        aws_lc_rs::rand::fill(&mut key.name).map_err(no_random)?;
        aws_lc_rs::rand::fill(&mut key.secret).map_err(no_random)?;
        Ok(key)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, &self.secret).ok()?))
    }

    /// Returns the name, the nonce and the encrypted bytes.
    fn seal(&self, plaintext: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = plaintext.to_vec();
        let nonce_for_key = Nonce::assume_unique_for_key(nonce);
        self.cipher()?.seal_in_place_append_tag(nonce_for_key, Aad::from(&self.name), &mut sealed).ok()?;
        Some([&self.name[..], &nonce, &sealed].concat())
    }

    fn open(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = ticket.get(NAME_LEN..)?.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plaintext = self.cipher()?.open_in_place(nonce, Aad::from(&self.name), &mut sealed).ok()?;
        Some(plaintext.to_vec())
    }
}

impl RotatingKeys {
    /// Changes keys if it is time.
    fn rotate(&mut self, now: u64) {
        let age = now.saturating_sub(self.since);
        if age < u64::from(LIFETIME) {
            return;
        }
        if let Ok(key) = TicketKey::new() {
            let previous = std::mem::replace(&mut self.now, key);
            // A key that was unused for that long is as old as the previous one would be.
            self.before = (age < 2 * u64::from(LIFETIME)).then_some(previous);
            self.since = now;
        }
    }
}

impl TicketCodec {
    fn seal_at(&self, plaintext: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = {
            let mut keys = lock(&self.0);
            keys.rotate(now);
            keys.now.clone()
        };
        key.seal(plaintext)
    }

    fn open_at(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = {
            let mut keys = lock(&self.0);
            keys.rotate(now);
            let mut keys_in_use = std::iter::once(&keys.now).chain(&keys.before);
            keys_in_use.find(|key| ticket.starts_with(&key.name))?.clone()
        };
        key.open(ticket)
    }
}

impl ProducesTickets for TicketCodec {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plaintext: &[u8]) -> Option<Vec<u8>> {
        self.seal_at(plaintext, unix_seconds())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open_at(ticket, unix_seconds())
    }
}

impl std::fmt::Debug for TicketCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_codec() -> TicketCodec {
        TicketCodec(Mutex::new(RotatingKeys { now: TicketKey::new().unwrap(), before: None, since: 1000 }))
    }

    #[test]
    fn a_ticket_is_opened_by_whoever_has_the_key_and_unchanged_only() {
        let (codec, other) = (new_codec(), new_codec());
        let ticket = codec.seal_at(b"secrets", 1000).unwrap();
        assert_eq!(codec.open_at(&ticket, 1000).unwrap(), b"secrets");
        assert!(other.open_at(&ticket, 1000).is_none());
        for index in 0..ticket.len() {
            let mut tampered = ticket.clone();
            tampered[index] ^= 1;
            assert!(codec.open_at(&tampered, 1000).is_none(), "byte {index}");
            assert!(codec.open_at(&ticket[..index], 1000).is_none());
        }
        let text = serde_json::to_string(&*lock(&codec.0)).unwrap();
        let restored = TicketCodec(Mutex::new(serde_json::from_str(&text).unwrap()));
        assert_eq!(restored.open_at(&ticket, 1000).unwrap(), b"secrets");
    }

    #[test]
    fn keys_change_and_the_one_before_opens_for_as_long_again() {
        let codec = new_codec();
        let lifetime = u64::from(LIFETIME);
        let ticket = codec.seal_at(b"a", 1000).unwrap();
        assert!(codec.open_at(&ticket, 1000 + lifetime).is_some());
        let later_ticket = codec.seal_at(b"b", 1000 + lifetime).unwrap();
        assert_ne!(ticket[..NAME_LEN], later_ticket[..NAME_LEN]);
        assert!(codec.open_at(&ticket, 1000 + 2 * lifetime).is_none());
        assert!(codec.open_at(&later_ticket, 1000 + 2 * lifetime).is_some());
        assert!(codec.open_at(&later_ticket, 1000 + 9 * lifetime).is_none());
    }
}
