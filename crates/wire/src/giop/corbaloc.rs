//! Object references in readable form: `corbaloc:iiop:1.2@host:port/key`, and `corbaname:`, which adds a name
//! to resolve at that object, a naming service.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use super::profile::{IiopAddress, IiopProfile};
use super::{ByteOrder, GiopError, GiopVersion, Ior};

/// The maximum number of addresses, and the maximum length of a key and of a host. Each address becomes a
/// profile with a key of its own.
const MAX_ADDRESSES: usize = 16;
const MAX_KEY: usize = 4096;
const MAX_HOST: usize = 255;
/// The default port of a corbaloc.
const DEFAULT_PORT: u16 = 2809;
/// The default key of a corbaname.
const NAME_SERVICE: &[u8] = b"NameService";
/// The bytes of a key that need no escape, besides letters and digits.
const UNESCAPED: &[u8] = b";/:?@&=+$,-_.!~*'()";

/// An object's addresses and key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Corbaloc {
    /// The addresses; at least one.
    pub addresses: Vec<IiopAddress>,
    /// The object's key at these addresses.
    pub key: Vec<u8>,
}

/// A name in a naming service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Corbaname {
    /// The naming service.
    pub service: Corbaloc,
    /// The name, as `bank/teller.object`; empty for the service itself.
    pub name: String,
}

impl Corbaloc {
    /// Returns the equivalent reference: a profile for each address, and an unknown type.
    pub fn ior(&self) -> Ior {
        let profiles = self.addresses.iter().cloned().map(|IiopAddress { version, host, port }| {
            let key = self.key.clone();
            IiopProfile { version, host, port, key, components: Vec::new() }.to_tagged(ByteOrder::NATIVE)
        });
        Ior { type_id: Vec::new(), profiles: profiles.collect() }
    }

    /// Converts a reference: its first IIOP profile's key and the addresses with that key. Returns `None` if
    /// it has no IIOP profile.
    pub fn from_ior(ior: &Ior) -> Option<Self> {
        let key = ior.first_iiop_profile()?.key;
        let same_key = ior.iiop_profiles().filter(|profile| profile.key == key);
        let addresses = same_key.flat_map(|profile| profile.addresses().collect::<Vec<_>>()).collect();
        Some(Self { addresses, key })
    }

    fn parse(rest: &str, default_key: &[u8]) -> Result<Self, GiopError> {
        let (address_list, key) = match rest.split_once('/') {
            Some((address_list, key)) => (address_list, unescape(key)?),
            None => (rest, default_key.to_vec()),
        };
        let addresses: Vec<IiopAddress> =
            address_list.split(',').take(MAX_ADDRESSES + 1).map(parse_address).collect::<Result<_, _>>()?;
        if key.len() > MAX_KEY {
            return Err(GiopError::Malformed("the key of a corbaloc is longer than 4 KiB"));
        }
        if addresses.len() > MAX_ADDRESSES {
            return Err(GiopError::Malformed("a corbaloc has more than 16 addresses"));
        }
        Ok(Self { addresses, key })
    }
}

impl FromStr for Corbaloc {
    type Err = GiopError;

    fn from_str(text: &str) -> Result<Self, GiopError> {
        Self::parse(
            strip_scheme(text, "corbaloc:")
                .ok_or(GiopError::Malformed("it does not begin with corbaloc:"))?,
            b"",
        )
    }
}

impl FromStr for Corbaname {
    type Err = GiopError;

    fn from_str(text: &str) -> Result<Self, GiopError> {
        let rest = strip_scheme(text, "corbaname:")
            .ok_or(GiopError::Malformed("it does not begin with corbaname:"))?;
        let (service, name) = rest.split_once('#').unwrap_or((rest, ""));
        let name = String::from_utf8(unescape(name)?);
        let name = name.map_err(|_| GiopError::Malformed("the name of a corbaname is not UTF-8"))?;
        Ok(Self { service: Corbaloc::parse(service, NAME_SERVICE)?, name })
    }
}

impl fmt::Display for Corbaloc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("corbaloc:")?;
        for (number, address) in self.addresses.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(formatter, "{comma}iiop:1.{}@{address}", address.version.minor())?;
        }
        write!(formatter, "/{}", escape_key(&self.key))
    }
}

/// Formats a key as text, with `%xx` for bytes that need an escape.
pub fn escape_key(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for &byte in key {
        if byte.is_ascii_alphanumeric() || UNESCAPED.contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}"); // writing to a string cannot fail
        }
    }
    text
}

/// Returns the text after a scheme, whose case does not matter.
fn strip_scheme<'t>(text: &'t str, scheme: &str) -> Option<&'t str> {
    let (prefix, rest) = text.trim().split_at_checked(scheme.len())?;
    prefix.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Parses `[iiop]:[1.N@]HOST[:PORT]`.
fn parse_address(text: &str) -> Result<IiopAddress, GiopError> {
    if text == "rir:" {
        return Err(GiopError::Malformed(
            "rir: means a service of the program that reads it, and there is none here",
        ));
    }
    let Some(("" | "iiop", address)) = text.split_once(':') else {
        return Err(GiopError::Malformed("an address of a corbaloc is as iiop:1.2@host:port or :host"));
    };
    let (version, address) = match address.split_once('@') {
        None => (GiopVersion::V1_0, address),
        Some((version, address)) => {
            let minor = version.strip_prefix("1.").and_then(|minor| minor.parse().ok());
            (
                GiopVersion::up_to(
                    minor.ok_or(GiopError::Malformed("the version of a corbaloc is not 1.x"))?,
                ),
                address,
            )
        }
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or(GiopError::Malformed("an IPv6 address lacks its closing bracket"))?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")))
        }
        None => address.split_once(':').map_or((address, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some("") => Some(DEFAULT_PORT),
        Some(port) => port.parse().ok(),
        None => None,
    };
    let port = port.ok_or(GiopError::Malformed("the port of a corbaloc is not a number up to 65535"))?;
    if host.is_empty() {
        return Err(GiopError::Malformed("an address of a corbaloc has no host"));
    }
    if host.len() > MAX_HOST
        || host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]@".contains(c))
    {
        return Err(GiopError::Malformed("the host of a corbaloc is neither a name nor an address"));
    }
    Ok(IiopAddress { version, host: host.to_string(), port })
}

/// Decodes `%xx`.
fn unescape(text: &str) -> Result<Vec<u8>, GiopError> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let escaped = digit().zip(digit()).map(|(high, low)| high << 4 | low);
        out.push(escaped.ok_or(GiopError::Malformed("a % is not followed by two hexadecimal digits"))?);
    }
    Ok(out)
}
