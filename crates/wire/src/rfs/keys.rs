//! The trailer: a key's id and a tag, HMAC-SHA-256 over all before the tag, cut to 128 bits (RFC 2104, FIPS 180-4).
//!
//! Every language has this one, and a daemon's processor has instructions for it. A cut tag is as hard to guess as 128
//! coins; that it cannot be compared byte by byte from outside is the comparison's business, which takes as long for a
//! tag that is nearly right as for any other.
//!
//! While a key is rotated up to three are valid. All hosts first learn the new one beside the old, then seal with it, then
//! forget the old one: at each step every host opens what every other seals.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{HEADER, LONGEST_REPORT, Refused, TRAILER};

/// Bytes of a secret.
pub const SECRET: usize = 32;
/// How many keys may be valid at once: the one that seals, the one before and the one after it.
pub const MOST_KEYS: usize = 3;

const TAG: usize = 16;
/// Bytes that HMAC makes of a secret: the block of SHA-256.
const BLOCK: usize = 64;

/// A secret and its public number.
#[derive(Clone)]
pub struct Key {
    id: u32,
    /// What HMAC does with the secret before it sees a byte is done once.
    keyed: Hmac<Sha256>,
}

impl Key {
    /// A secret that was drawn at random, under a number that no other key of the cluster has.
    pub fn new(id: u32, secret: &[u8; SECRET]) -> Self {
        // As RFC 2104 has it: a key shorter than a block is followed by zeros.
        let mut block = [0; BLOCK];
        block[..SECRET].copy_from_slice(secret);
        Self { id, keyed: Hmac::new(&block.into()) }
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
    sealing: Key,
    others: Vec<Key>,
}

impl Keys {
    /// Only this key.
    pub fn new(sealing: Key) -> Self {
        Self { sealing, others: Vec::new() }
    }

    /// With one more that opens.
    ///
    /// # Errors
    /// There is a key of that number, or there are [`MOST_KEYS`] already. The text says which.
    pub fn also(mut self, key: Key) -> Result<Self, &'static str> {
        if self.ids().any(|id| id == key.id) {
            return Err("two keys have the same number");
        }
        if self.ids().count() == MOST_KEYS {
            return Err("more than three keys");
        }
        self.others.push(key);
        Ok(self)
    }

    /// The numbers of all, that of the key that seals first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        [self.sealing.id].into_iter().chain(self.others.iter().map(Key::id))
    }

    /// Secret bytes for a purpose, the same for all who have these keys, whichever of them seals: they come from the key with
    /// the lowest number, by HMAC-SHA-256 of `purpose`. That begins otherwise than a datagram.
    pub fn derive(&self, purpose: &[u8]) -> [u8; SECRET] {
        let lowest =
            self.others.iter().fold(&self.sealing, |low, key| if key.id < low.id { key } else { low });
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
        let mut all = [&self.sealing].into_iter().chain(&self.others);
        let key = all.find(|key| key.id == id).ok_or(Refused::UnknownKey(id))?;
        match key.keyed.clone().chain_update(tagged).verify_truncated_left(tag) {
            Ok(()) => Ok(Opened { bytes, key: id }),
            Err(_) => Err(Refused::Forged),
        }
    }
}

/// A datagram that was made by somebody who has a key.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'b> {
    bytes: &'b [u8],
    key: u32,
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

/// A file of keys: a line for each, its number and its secret as 64 hexadecimal digits. The first seals. Empty lines, and
/// what follows `#`, are left out, and the mark that some editors begin a file with.
impl FromStr for Keys {
    type Err = BadKeys;

    fn from_str(text: &str) -> Result<Self, BadKeys> {
        let mut keys: Option<Self> = None;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
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
            if words.next().is_some() {
                return Err(bad("something follows the secret"));
            }
            let key = Key::new(id, &secret);
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
