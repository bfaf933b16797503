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
const NAME: usize = 16;

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
    name: [u8; NAME],
    secret: [u8; 32],
}

static KNOWN: LazyLock<Mutex<BTreeMap<u64, Arc<TicketCodec>>>> = LazyLock::new(Mutex::default);

/// Encrypts and decrypts tickets.
pub(super) struct TicketCodec(Mutex<RotatingKeys>);

/// Returns the tickets for listeners with these requirements on clients.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn ticket_codec(clients: Option<ClientVerification<'_>>) -> Result<Arc<TicketCodec>, String> {
    let mut asked = DefaultHasher::new();
    clients.hash(&mut asked);
    let mut known = lock(&KNOWN);
    let asked = asked.finish();
    if let Some(kept) = known.get(&asked) {
        return Ok(Arc::clone(kept));
    }
    let keys = RotatingKeys { now: TicketKey::new()?, before: None, since: unix_seconds() };
    let fresh = Arc::new(TicketCodec(Mutex::new(keys)));
    known.insert(asked, Arc::clone(&fresh));
    Ok(fresh)
}

/// Returns all keys.
pub(crate) fn ticket_keys() -> TicketKeys {
    lock(&KNOWN).iter().map(|(asked, tickets)| (*asked, lock(&tickets.0).clone())).collect()
}

/// Continues with the keys of another process.
pub(crate) fn restore_ticket_keys(keys: TicketKeys) {
    let mut known = lock(&KNOWN);
    for (asked, keys) in keys {
        known.insert(asked, Arc::new(TicketCodec(Mutex::new(keys))));
    }
}

impl TicketKey {
    fn new() -> Result<Self, String> {
        let mut key = Self { name: [0; NAME], secret: [0; 32] };
        let unlucky = |_| "the system gives no random numbers".to_owned();
        aws_lc_rs::rand::fill(&mut key.name).map_err(unlucky)?;
        aws_lc_rs::rand::fill(&mut key.secret).map_err(unlucky)?;
        Ok(key)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, &self.secret).ok()?))
    }

    /// Returns the name, the nonce and the encrypted bytes.
    fn seal(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let nonced = Nonce::assume_unique_for_key(nonce);
        self.cipher()?.seal_in_place_append_tag(nonced, Aad::from(&self.name), &mut sealed).ok()?;
        Some([&self.name[..], &nonce, &sealed].concat())
    }

    fn open(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = ticket.get(NAME..)?.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.cipher()?.open_in_place(nonce, Aad::from(&self.name), &mut sealed).ok()?;
        Some(plain.to_vec())
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
            let before = std::mem::replace(&mut self.now, key);
            // A key that was unused for that long is as old as the previous one would be.
            self.before = (age < 2 * u64::from(LIFETIME)).then_some(before);
            self.since = now;
        }
    }
}

impl TicketCodec {
    fn seal_at(&self, plain: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = {
            let mut keys = lock(&self.0);
            keys.rotate(now);
            keys.now.clone()
        };
        key.seal(plain)
    }

    fn open_at(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = {
            let mut keys = lock(&self.0);
            keys.rotate(now);
            let mut all = std::iter::once(&keys.now).chain(&keys.before);
            all.find(|key| ticket.starts_with(&key.name))?.clone()
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

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal_at(plain, unix_seconds())
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

    fn fresh() -> TicketCodec {
        TicketCodec(Mutex::new(RotatingKeys { now: TicketKey::new().unwrap(), before: None, since: 1000 }))
    }

    #[test]
    fn a_ticket_is_opened_by_whoever_has_the_key_and_unchanged_only() {
        let (tickets, other) = (fresh(), fresh());
        let ticket = tickets.seal_at(b"secrets", 1000).unwrap();
        assert_eq!(tickets.open_at(&ticket, 1000).unwrap(), b"secrets");
        assert!(other.open_at(&ticket, 1000).is_none());
        for place in 0..ticket.len() {
            let mut bent = ticket.clone();
            bent[place] ^= 1;
            assert!(tickets.open_at(&bent, 1000).is_none(), "byte {place}");
            assert!(tickets.open_at(&ticket[..place], 1000).is_none());
        }
        let text = serde_json::to_string(&*lock(&tickets.0)).unwrap();
        let heir = TicketCodec(Mutex::new(serde_json::from_str(&text).unwrap()));
        assert_eq!(heir.open_at(&ticket, 1000).unwrap(), b"secrets");
    }

    #[test]
    fn keys_change_and_the_one_before_opens_for_as_long_again() {
        let tickets = fresh();
        let six = u64::from(LIFETIME);
        let ticket = tickets.seal_at(b"a", 1000).unwrap();
        assert!(tickets.open_at(&ticket, 1000 + six).is_some());
        let later = tickets.seal_at(b"b", 1000 + six).unwrap();
        assert_ne!(ticket[..NAME], later[..NAME]);
        assert!(tickets.open_at(&ticket, 1000 + 2 * six).is_none());
        assert!(tickets.open_at(&later, 1000 + 2 * six).is_some());
        assert!(tickets.open_at(&later, 1000 + 9 * six).is_none());
    }
}
