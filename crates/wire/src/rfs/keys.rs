//! The trailer: a key's ID and a tag, HMAC-SHA-256 over all bytes before the tag, truncated to 128 bits (RFC
//! 2104, FIPS 180-4).
//!
//! Every language implements HMAC-SHA-256, and processors have instructions for it. Guessing a truncated tag
//! is as hard as guessing 128 random bits. The comparison takes constant time, so that its duration reveals
//! nothing about the tag.
//!
//! A key is either for daemons, which may send every kind, or for clients, which may only send requests.
//! Responses to a client's request are sealed with its key. A client without another key therefore cannot
//! pose as a daemon. Holders of both kinds seal with a key for daemons.
//!
//! Up to three keys of a kind are valid at once, for key rotation. All hosts first add the new key after the
//! old one, then seal with it, then remove the old one. At each step every host opens the datagrams of every
//! other.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::bytes::Reader;
use super::header::Header;
use super::{HEADER, Kind, LONGEST_REPORT, Refused, TRAILER};

/// The length of a secret, in bytes.
pub const SECRET: usize = 32;
/// The maximum number of valid keys of a kind: the one that seals, its predecessor and its successor.
pub const MOST_KEYS: usize = 3;

const TAG: usize = 16;
/// The length of the key block of HMAC, in bytes: the block size of SHA-256.
const BLOCK: usize = 64;

/// The holders that a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Daemons, and equally trusted clients: the key permits every kind of datagram.
    #[default]
    Daemon,
    /// Clients only: the key permits requests and opens their responses.
    Client,
}

/// A secret and its public number.
#[derive(Clone)]
pub struct Key {
    id: u32,
    role: Role,
    /// The HMAC state after the key block, computed once.
    keyed: Hmac<Sha256>,
}

impl Key {
    /// Creates a key for daemons from a random secret, with a number that is unique in the cluster.
    pub fn new(id: u32, secret: &[u8; SECRET]) -> Self {
        Self::of(Role::Daemon, id, secret)
    }

    /// Creates a key for `role`.
    pub fn of(role: Role, id: u32, secret: &[u8; SECRET]) -> Self {
        // RFC 2104 pads a key that is shorter than a block with zeros.
        let mut block = [0; BLOCK];
        block[..SECRET].copy_from_slice(secret);
        Self { id, role, keyed: Hmac::new(&block.into()) }
    }

    /// Returns the key's number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Omits the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The valid keys: one seals, all of them open.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The key that seals: one for daemons if there is any.
    sealing: Key,
    /// The other keys, those for daemons first.
    others: Vec<Key>,
}

impl Keys {
    /// Creates a set with this key only.
    pub fn new(sealing: Key) -> Self {
        Self { sealing, others: Vec::new() }
    }

    /// Adds a key that opens. It seals if it is the first for daemons.
    ///
    /// # Errors
    /// Another key has this number, or there are already [`MOST_KEYS`] of its kind. The text states which.
    pub fn also(mut self, key: Key) -> Result<Self, &'static str> {
        if self.ids().any(|id| id == key.id) {
            return Err("two keys have the same number");
        }
        if self.ids_of(key.role).count() == MOST_KEYS {
            return Err(match key.role {
                Role::Daemon => "more than three keys",
                Role::Client => "more than three keys for clients",
            });
        }
        match (key.role, self.sealing.role) {
            (Role::Client, _) => self.others.push(key),
            (Role::Daemon, Role::Client) => {
                let client = std::mem::replace(&mut self.sealing, key);
                self.others.insert(0, client);
            }
            (Role::Daemon, Role::Daemon) => {
                let at = self.others.iter().position(|other| other.role == Role::Client);
                self.others.insert(at.unwrap_or(self.others.len()), key);
            }
        }
        Ok(self)
    }

    /// Returns the numbers of all keys, that of the sealing key first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.all().map(Key::id)
    }

    /// Returns the numbers of the keys for `role`, in the order of their file.
    pub fn ids_of(&self, role: Role) -> impl Iterator<Item = u32> {
        self.all().filter(move |key| key.role == role).map(Key::id)
    }

    /// Returns the role of the sealing key: a holder of client keys only is never a daemon.
    pub fn role(&self) -> Role {
        self.sealing.role
    }

    /// Returns the client key with this number alone: it seals the responses to requests that were sealed
    /// with it.
    pub fn answering(&self, id: u32) -> Option<Self> {
        self.all().find(|key| key.id == id && key.role == Role::Client).cloned().map(Self::new)
    }

    fn all(&self) -> impl Iterator<Item = &Key> {
        [&self.sealing].into_iter().chain(&self.others)
    }

    /// Derives secret bytes for a purpose, equal for all holders of these keys, whichever key seals. They are
    /// the HMAC-SHA-256 of `purpose` under the key with the lowest number, among those for daemons if there
    /// are any. `purpose` must not begin like a datagram.
    pub fn derive(&self, purpose: &[u8]) -> [u8; SECRET] {
        let own = self.others.iter().filter(|key| key.role == self.sealing.role);
        let lowest = own.fold(&self.sealing, |low, key| if key.id < low.id { key } else { low });
        lowest.keyed.clone().chain_update(purpose).finalize().into_bytes().into()
    }

    /// Appends the trailer of the datagram that begins at `start` of `out`. Messages do this themselves.
    /// Other protocols of the same hosts may use it; [`open`](Self::open) then opens their datagrams.
    pub fn seal(&self, start: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sealing.id.to_be_bytes());
        let tagged = out.get(start..).unwrap_or_default();
        let tag = self.sealing.keyed.clone().chain_update(tagged).finalize().into_bytes();
        out.extend_from_slice(&tag[..TAG]);
    }

    /// Verifies the tag of a datagram. Before that, only its length and its key number are read.
    ///
    /// # Errors
    /// The datagram is too short or too long, its key is not valid here, or its tag is wrong.
    pub fn open<'b>(&self, datagram: &'b [u8]) -> Result<Opened<'b>, Refused> {
        let size = Refused::Size(datagram.len());
        if !(HEADER + TRAILER..=LONGEST_REPORT).contains(&datagram.len()) {
            return Err(size);
        }
        let (tagged, tag) = datagram.split_last_chunk::<TAG>().ok_or(size)?;
        let (bytes, id) = tagged.split_last_chunk::<4>().ok_or(size)?;
        let id = u32::from_be_bytes(*id);
        let key = self.all().find(|key| key.id == id).ok_or(Refused::UnknownKey(id))?;
        match key.keyed.clone().chain_update(tagged).verify_truncated_left(tag) {
            Ok(()) => Ok(Opened { bytes, key: id, role: key.role }),
            Err(_) => Err(Refused::Forged),
        }
    }

    /// Opens a response to a datagram that these keys sealed: it must be sealed with a key of the same role.
    /// Holders of client keys therefore cannot answer a request under a daemon key.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open), or the datagram is sealed with a key of the other role.
    pub fn open_answer<'b>(&self, datagram: &'b [u8]) -> Result<Opened<'b>, Refused> {
        self.open(datagram).and_then(|opened| {
            if opened.role == self.sealing.role { Ok(opened) } else { Err(Refused::Misused) }
        })
    }
}

/// A datagram that a holder of a key created.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'b> {
    bytes: &'b [u8],
    key: u32,
    role: Role,
}

impl<'b> Opened<'b> {
    /// Returns the datagram without the trailer.
    pub fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// Returns the number of the key that sealed the datagram.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the number of the key that sealed the datagram, if it is one for clients.
    pub fn client(&self) -> Option<u32> {
        (self.role == Role::Client).then_some(self.key)
    }

    /// Checks that a daemon may process the datagram. Under a key for clients only requests are permitted.
    ///
    /// # Errors
    /// The key does not permit this kind, or the header is malformed.
    pub fn entitled(&self) -> Result<(), Refused> {
        if self.role == Role::Daemon {
            return Ok(());
        }
        let Header { kind, .. } = Header::read(&mut Reader::new(self.bytes), self.bytes.len() + TRAILER)?;
        match kind {
            Kind::Request | Kind::Fetch | Kind::Look => Ok(()),
            Kind::Answer | Kind::Commit | Kind::Report | Kind::Table | Kind::Gossip | Kind::Drum => {
                Err(Refused::Misused)
            }
        }
    }
}

/// The error of a key file; it never contains the file's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadKeys {
    /// The line, counted from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

/// Parses a key file. Each line has a number, a secret of 64 hexadecimal digits, and `client` for a client
/// key. The first key for daemons seals, or the first key if there are none. Empty lines, comments after `#`
/// and a byte order mark at the beginning are ignored.
impl FromStr for Keys {
    type Err = BadKeys;

    fn from_str(text: &str) -> Result<Self, BadKeys> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut keys: Option<Self> = None;
        let mut secrets: Vec<(Role, [u8; SECRET])> = Vec::new();
        for (at, text) in text.lines().enumerate() {
            let bad = |why| BadKeys { line: at + 1, why };
            let plain = text.split('#').next().unwrap_or_default();
            let mut words = plain.split_ascii_whitespace();
            let Some(id) = words.next() else { continue };
            let plain = id.bytes().all(|byte| byte.is_ascii_digit());
            let id =
                id.parse().ok().filter(|_| plain).ok_or_else(|| bad("the number of the key is not one"))?;
            let secret = words.next().ok_or_else(|| bad("the secret is missing"))?;
            let secret = secret_of(secret).ok_or_else(|| bad("the secret is not 64 hexadecimal digits"))?;
            let role = match words.next() {
                None => Role::Daemon,
                Some("client") if words.next().is_none() => Role::Client,
                Some(_) => return Err(bad("something follows the secret")),
            };
            if secrets.iter().any(|(other, same)| *other != role && *same == secret) {
                return Err(bad("a key for clients has the secret of one for daemons"));
            }
            secrets.push((role, secret));
            let key = Key::of(role, id, &secret);
            keys = Some(match keys {
                None => Self::new(key),
                Some(keys) => keys.also(key).map_err(bad)?,
            });
        }
        keys.ok_or_else(|| BadKeys { line: text.lines().count().max(1), why: NO_KEY })
    }
}

const NO_KEY: &str = "no key up to here, where the file ends";

fn secret_of(text: &str) -> Option<[u8; SECRET]> {
    let digits: &[u8; 2 * SECRET] = text.as_bytes().try_into().ok()?;
    let mut secret = [0; SECRET];
    for (byte, pair) in secret.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        // Two digits of four bits form a byte.
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(secret)
}
