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

use super::byte_reader::ByteReader;
use super::header::DatagramHeader;
use super::{DatagramDecodeError, DatagramKind, HEADER_LEN, MAX_REPORT_LEN, TRAILER_LEN};

/// The length of a secret, in bytes.
pub const SECRET_LEN: usize = 32;
/// The maximum number of valid keys of a kind: the one that seals, its predecessor and its successor.
pub const MAX_KEYS: usize = 3;

const TAG: usize = 16;
/// The length of the key block of HMAC, in bytes: the block size of SHA-256.
const BLOCK: usize = 64;

/// The holders that a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRole {
    /// Daemons, and equally trusted clients: the key permits every kind of datagram.
    #[default]
    Daemon,
    /// Clients only: the key permits requests and opens their responses.
    Client,
}

/// A secret and its public number.
#[derive(Clone)]
pub struct DatagramKey {
    id: u32,
    role: KeyRole,
    /// The HMAC state after the key block, computed once.
    keyed: Hmac<Sha256>,
}

impl DatagramKey {
    /// Creates a key for daemons from a random secret, with a number that is unique in the cluster.
    pub fn new(id: u32, secret: &[u8; SECRET_LEN]) -> Self {
        Self::for_role(KeyRole::Daemon, id, secret)
    }

    /// Creates a key for `role`.
    pub fn for_role(role: KeyRole, id: u32, secret: &[u8; SECRET_LEN]) -> Self {
        // RFC 2104 pads a key that is shorter than a block with zeros.
        let mut block = [0; BLOCK];
        block[..SECRET_LEN].copy_from_slice(secret);
        Self { id, role, keyed: Hmac::new(&block.into()) }
    }

    /// Returns the key's number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Omits the secret.
impl fmt::Debug for DatagramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The valid keys: one seals, all of them open.
#[derive(Clone, Debug)]
pub struct KeyRing {
    /// The key that seals: one for daemons if there is any.
    sealing: DatagramKey,
    /// The other keys, those for daemons first.
    others: Vec<DatagramKey>,
}

impl KeyRing {
    /// Creates a set with this key only.
    pub fn new(sealing: DatagramKey) -> Self {
        Self { sealing, others: Vec::new() }
    }

    /// Adds a key that opens. It seals if it is the first for daemons.
    ///
    /// # Errors
    /// Another key has this number, or there are already [`MAX_KEYS`] of its kind. The text states which.
    pub fn with_key(mut self, key: DatagramKey) -> Result<Self, &'static str> {
        if self.ids().any(|id| id == key.id) {
            return Err("two keys have the same number");
        }
        if self.ids_for_role(key.role).count() == MAX_KEYS {
            return Err(match key.role {
                KeyRole::Daemon => "more than three keys",
                KeyRole::Client => "more than three keys for clients",
            });
        }
        match (key.role, self.sealing.role) {
            (KeyRole::Client, _) => self.others.push(key),
            (KeyRole::Daemon, KeyRole::Client) => {
                let client = std::mem::replace(&mut self.sealing, key);
                self.others.insert(0, client);
            }
            (KeyRole::Daemon, KeyRole::Daemon) => {
                let index = self.others.iter().position(|other| other.role == KeyRole::Client);
                self.others.insert(index.unwrap_or(self.others.len()), key);
            }
        }
        Ok(self)
    }

    /// Returns the numbers of all keys, that of the sealing key first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.all_keys().map(DatagramKey::id)
    }

    /// Returns the numbers of the keys for `role`, in the order of their file.
    pub fn ids_for_role(&self, role: KeyRole) -> impl Iterator<Item = u32> {
        self.all_keys().filter(move |key| key.role == role).map(DatagramKey::id)
    }

    /// Returns the role of the sealing key: a holder of client keys only is never a daemon.
    pub fn role(&self) -> KeyRole {
        self.sealing.role
    }

    /// Returns the client key with this number alone: it seals the responses to requests that were sealed
    /// with it.
    pub fn client_key(&self, id: u32) -> Option<Self> {
        self.all_keys().find(|key| key.id == id && key.role == KeyRole::Client).cloned().map(Self::new)
    }

    fn all_keys(&self) -> impl Iterator<Item = &DatagramKey> {
        [&self.sealing].into_iter().chain(&self.others)
    }

    /// Derives secret bytes for a purpose, equal for all holders of these keys, whichever key seals. They are
    /// the HMAC-SHA-256 of `purpose` under the key with the lowest number, among those for daemons if there
    /// are any. `purpose` must not begin like a datagram.
    pub fn derive(&self, purpose: &[u8]) -> [u8; SECRET_LEN] {
        let same_role = self.others.iter().filter(|key| key.role == self.sealing.role);
        let lowest_key = same_role.fold(&self.sealing, |best, key| if key.id < best.id { key } else { best });
        lowest_key.keyed.clone().chain_update(purpose).finalize().into_bytes().into()
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
    pub fn open<'b>(&self, datagram: &'b [u8]) -> Result<OpenedDatagram<'b>, DatagramDecodeError> {
        let size_error = DatagramDecodeError::Size(datagram.len());
        if !(HEADER_LEN + TRAILER_LEN..=MAX_REPORT_LEN).contains(&datagram.len()) {
            return Err(size_error);
        }
        let (tagged, tag) = datagram.split_last_chunk::<TAG>().ok_or(size_error)?;
        let (bytes, id) = tagged.split_last_chunk::<4>().ok_or(size_error)?;
        let id = u32::from_be_bytes(*id);
        let key = self.all_keys().find(|key| key.id == id).ok_or(DatagramDecodeError::UnknownKey(id))?;
        match key.keyed.clone().chain_update(tagged).verify_truncated_left(tag) {
            Ok(()) => Ok(OpenedDatagram { bytes, key: id, role: key.role }),
            Err(_) => Err(DatagramDecodeError::Forged),
        }
    }

    /// Opens a response to a datagram that these keys sealed: it must be sealed with a key of the same role.
    /// Holders of client keys therefore cannot answer a request under a daemon key.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open), or the datagram is sealed with a key of the other role.
    pub fn open_answer<'b>(&self, datagram: &'b [u8]) -> Result<OpenedDatagram<'b>, DatagramDecodeError> {
        self.open(datagram).and_then(|opened| {
            if opened.role == self.sealing.role { Ok(opened) } else { Err(DatagramDecodeError::NotPermitted) }
        })
    }
}

/// A datagram that a holder of a key created.
#[derive(Clone, Copy, Debug)]
pub struct OpenedDatagram<'b> {
    bytes: &'b [u8],
    key: u32,
    role: KeyRole,
}

impl<'b> OpenedDatagram<'b> {
    /// Returns the datagram without the trailer.
    pub fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// Returns the number of the key that sealed the datagram.
    pub fn key_id(&self) -> u32 {
        self.key
    }

    /// Returns the number of the key that sealed the datagram, if it is one for clients.
    pub fn client(&self) -> Option<u32> {
        (self.role == KeyRole::Client).then_some(self.key)
    }

    /// Checks that a daemon may process the datagram. Under a key for clients only requests are permitted.
    ///
    /// # Errors
    /// The key does not permit this kind, or the header is malformed.
    pub fn check_permission(&self) -> Result<(), DatagramDecodeError> {
        if self.role == KeyRole::Daemon {
            return Ok(());
        }
        let DatagramHeader { kind, .. } =
            DatagramHeader::read(&mut ByteReader::new(self.bytes), self.bytes.len() + TRAILER_LEN)?;
        match kind {
            DatagramKind::Request | DatagramKind::Fetch | DatagramKind::Look => Ok(()),
            DatagramKind::Answer
            | DatagramKind::Commit
            | DatagramKind::Report
            | DatagramKind::Table
            | DatagramKind::Gossip
            | DatagramKind::Drum => Err(DatagramDecodeError::NotPermitted),
        }
    }
}

/// The error of a key file; it never contains the file's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct KeyFileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

/// Parses a key file. Each line has a number, a secret of 64 hexadecimal digits, and `client` for a client
/// key. The first key for daemons seals, or the first key if there are none. Empty lines, comments after `#`
/// and a byte order mark at the beginning are ignored.
impl FromStr for KeyRing {
    type Err = KeyFileError;

    fn from_str(text: &str) -> Result<Self, KeyFileError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut keys: Option<Self> = None;
        let mut secrets: Vec<(KeyRole, [u8; SECRET_LEN])> = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let error = |reason| KeyFileError { line: index + 1, why: reason };
            let without_comment = text.split('#').next().unwrap_or_default();
            let mut words = without_comment.split_ascii_whitespace();
            let Some(id) = words.next() else { continue };
            let is_numeric = id.bytes().all(|byte| byte.is_ascii_digit());
            let id = id
                .parse()
                .ok()
                .filter(|_| is_numeric)
                .ok_or_else(|| error("the number of the key is not one"))?;
            let secret = words.next().ok_or_else(|| error("the secret is missing"))?;
            let secret =
                parse_secret(secret).ok_or_else(|| error("the secret is not 64 hexadecimal digits"))?;
            let role = match words.next() {
                None => KeyRole::Daemon,
                Some("client") if words.next().is_none() => KeyRole::Client,
                Some(_) => return Err(error("something follows the secret")),
            };
            if secrets.iter().any(|(other_role, other_secret)| *other_role != role && *other_secret == secret)
            {
                return Err(error("a key for clients has the secret of one for daemons"));
            }
            secrets.push((role, secret));
            let key = DatagramKey::for_role(role, id, &secret);
            keys = Some(match keys {
                None => Self::new(key),
                Some(keys) => keys.with_key(key).map_err(error)?,
            });
        }
        keys.ok_or_else(|| KeyFileError { line: text.lines().count().max(1), why: NO_KEY })
    }
}

const NO_KEY: &str = "no key up to here, where the file ends";

fn parse_secret(text: &str) -> Option<[u8; SECRET_LEN]> {
    let digits: &[u8; 2 * SECRET_LEN] = text.as_bytes().try_into().ok()?;
    let mut secret = [0; SECRET_LEN];
    for (byte, pair) in secret.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        // Two digits of four bits form a byte.
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(secret)
}
