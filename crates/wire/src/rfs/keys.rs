//! The trailer: a key's id and a tag, HMAC-SHA-256 over all before the tag, cut to 128 bits (RFC 2104, FIPS 180-4).
//!
//! Every language has this one, and a daemon's processor has instructions for it. A cut tag is as hard to guess as 128
//! coins; that it cannot be compared byte by byte from outside is the comparison's business, which takes as long for a
//! tag that is nearly right as for any other.
//!
//! A key is for daemons, who may say everything with it, or for clients, who may only ask, and are answered, with theirs: a client that
//! has no other key cannot pass for a daemon. Who has keys of both kinds seals with one for daemons.
//!
//! While a key is rotated up to three of its kind are valid. All hosts first learn the new one beside the old, then seal with it, then
//! forget the old one: at each step every host opens what every other seals.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::bytes::Reader;
use super::header::Header;
use super::{HEADER, Kind, LONGEST_REPORT, Refused, TRAILER};

/// Bytes of a secret.
pub const SECRET: usize = 32;
/// How many keys of a kind may be valid at once: the one that seals, the one before and the one after it.
pub const MOST_KEYS: usize = 3;

const TAG: usize = 16;
/// Bytes that HMAC makes of a secret: the block of SHA-256.
const BLOCK: usize = 64;

/// Whom a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Daemons, and clients that are trusted as these are: whatever is said with it is believed.
    #[default]
    Daemon,
    /// Clients only: with it one asks, and is answered.
    Client,
}

/// A secret and its public number.
#[derive(Clone)]
pub struct Key {
    id: u32,
    role: Role,
    /// What HMAC does with the secret before it sees a byte is done once.
    keyed: Hmac<Sha256>,
}

impl Key {
    /// A secret that was drawn at random, under a number that no other key of the cluster has; for daemons.
    pub fn new(id: u32, secret: &[u8; SECRET]) -> Self {
        Self::of(Role::Daemon, id, secret)
    }

    /// The same for whom it is for.
    pub fn of(role: Role, id: u32, secret: &[u8; SECRET]) -> Self {
        // As RFC 2104 has it: a key shorter than a block is followed by zeros.
        let mut block = [0; BLOCK];
        block[..SECRET].copy_from_slice(secret);
        Self { id, role, keyed: Hmac::new(&block.into()) }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Without the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The keys that are valid: one seals, all of them open.
#[derive(Clone, Debug)]
pub struct Keys {
    /// One for daemons if there is any.
    sealing: Key,
    /// Those for daemons first.
    others: Vec<Key>,
}

impl Keys {
    /// Only this key.
    pub fn new(sealing: Key) -> Self {
        Self { sealing, others: Vec::new() }
    }

    /// With one more that opens; it seals if it is the first for daemons.
    ///
    /// # Errors
    /// There is a key of that number, or there are [`MOST_KEYS`] of its kind already. The text says which.
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

    /// The numbers of all, that of the key that seals first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.all().map(Key::id)
    }

    /// The numbers of those for whom they are, in the order of their file.
    pub fn ids_of(&self, role: Role) -> impl Iterator<Item = u32> {
        self.all().filter(move |key| key.role == role).map(Key::id)
    }

    /// Whom the key that seals is for: with one for clients nobody is a daemon.
    pub fn role(&self) -> Role {
        self.sealing.role
    }

    /// The key for clients of this number alone: it seals what answers what was sealed with it.
    pub fn answering(&self, id: u32) -> Option<Self> {
        self.all().find(|key| key.id == id && key.role == Role::Client).cloned().map(Self::new)
    }

    fn all(&self) -> impl Iterator<Item = &Key> {
        [&self.sealing].into_iter().chain(&self.others)
    }

    /// Secret bytes for a purpose, the same for all who have these keys, whichever of them seals: they come from the key with
    /// the lowest number, of those for daemons if there are any, by HMAC-SHA-256 of `purpose`. That begins otherwise than a datagram.
    pub fn derive(&self, purpose: &[u8]) -> [u8; SECRET] {
        let own = self.others.iter().filter(|key| key.role == self.sealing.role);
        let lowest = own.fold(&self.sealing, |low, key| if key.id < low.id { key } else { low });
        lowest.keyed.clone().chain_update(purpose).finalize().into_bytes().into()
    }

    /// Appends the trailer of the datagram that begins at `start` of `out`. The messages do this themselves; other
    /// protocols of the same hosts may use it, whose datagrams [`open`](Self::open) then opens.
    pub fn seal(&self, start: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sealing.id.to_be_bytes());
        let tagged = out.get(start..).unwrap_or_default();
        let tag = self.sealing.keyed.clone().chain_update(tagged).finalize().into_bytes();
        out.extend_from_slice(&tag[..TAG]);
    }

    /// Checks the tag of a datagram. Until that is right only its length and the number of its key were looked at.
    ///
    /// # Errors
    /// It is too short or too long, its key is not valid here, or its tag is wrong.
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

    /// Opens what may answer something that these sealed: it is sealed with a key of the same kind. Whoever may only ask cannot
    /// answer one who asks with a key for daemons.
    ///
    /// # Errors
    /// As of [`open`](Self::open), or it is sealed with a key of the other kind.
    pub fn open_answer<'b>(&self, datagram: &'b [u8]) -> Result<Opened<'b>, Refused> {
        self.open(datagram).and_then(|opened| {
            if opened.role == self.sealing.role { Ok(opened) } else { Err(Refused::Misused) }
        })
    }
}

/// A datagram that was made by somebody who has a key.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'b> {
    bytes: &'b [u8],
    key: u32,
    role: Role,
}

impl<'b> Opened<'b> {
    /// All of it but the trailer.
    pub fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// The number of the key that it was sealed with.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The same, if it is one for clients.
    pub fn client(&self) -> Option<u32> {
        (self.role == Role::Client).then_some(self.key)
    }

    /// May a daemon listen to it? One that is sealed with a key for clients asks, or is not heard.
    ///
    /// # Errors
    /// It is not entitled to what it says, or cannot be understood.
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

/// What is wrong in a file of keys; it never says what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadKeys {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

/// A file of keys: a line for each, its number, its secret as 64 hexadecimal digits, and `client` if it is for clients. The first for
/// daemons seals, or the first if there are none. Empty lines, and what follows `#`, are left out, and so is a mark of the byte order that an editor left at the beginning.
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
        // Two digits of four bits are a byte.
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(secret)
}
