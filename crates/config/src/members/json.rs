//! Lists of members in JSON, of a file, of a server, and of one member in the value of a key of etcd.

use std::collections::BTreeSet;
use std::fmt;

use plimsoll_cluster::discover::UnresolvedMember;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::super::MemberAddress;
use super::super::root::one;

/// A member with further settings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberRecord {
    /// Host name or IP address, and port.
    address: MemberAddress,

    /// Weight relative to the other members.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default = "one")]
    capacity: f64,

    /// Maximum number of concurrent requests (http), connections (tcp) or flows (udp). Default: the group's.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default)]
    max_connections: Option<u32>,
}

impl MemberRecord {
    pub(super) fn into_stated(self) -> UnresolvedMember {
        let MemberAddress { host, port } = self.address;
        UnresolvedMember { host, port, capacity: self.capacity, limit: self.max_connections }
    }
}

pub(super) fn from_address(address: MemberAddress) -> UnresolvedMember {
    MemberRecord { address, capacity: 1.0, max_connections: None }.into_stated()
}

/// Reads a file of JSON: a list, or an object whose `members` are one. Unknown keys are errors.
///
/// # Errors
/// Fails with the mistake on one line, with its place.
pub(in super::super) fn json(name: &str, text: &[u8]) -> Result<Vec<UnresolvedMember>, String> {
    read(name, text, true)
}

/// Reads a server's answer: like [`json`], but unknown keys are ignored.
///
/// # Errors
/// Fails with the mistake on one line, with its place.
pub(in super::super) fn answer(name: &str, text: &[u8]) -> Result<Vec<UnresolvedMember>, String> {
    read(name, text, false)
}

/// Reads the value of a key of etcd: `host:port`, or one member as [`answer`] reads it; also as gRPC's
/// clients have it there (`{"Op":0,"Addr":"host:port"}`).
///
/// # Errors
/// Fails with the mistake on one line, with the key.
pub(in super::super) fn value(name: &str, text: &[u8]) -> Result<Vec<UnresolvedMember>, String> {
    let text = text.trim_ascii();
    if text.starts_with(b"{") || text.starts_with(b"\"") {
        return parse(name, text, MemberVisitor(false)).map(|member| vec![member]);
    }
    let text = String::from_utf8_lossy(text);
    let describe_error = |reason: String| {
        let excerpt: String = text.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{name}: `{excerpt}` {}", reason.replace(char::is_control, " "))
    };
    let address = text.parse::<MemberAddress>().map_err(describe_error)?;
    Ok(vec![from_address(address)])
}

fn read(name: &str, text: &[u8], is_strict: bool) -> Result<Vec<UnresolvedMember>, String> {
    let members = parse(name, text, ListDocument(is_strict))?;
    let mut seen_addresses = BTreeSet::new();
    match members.iter().find(|member| !seen_addresses.insert((&member.host, member.port))) {
        Some(member) => Err(format!("{name}: {}", duplicate_error(member))),
        None => Ok(members),
    }
}

/// Reads one value and nothing behind it.
fn parse<'de, S: DeserializeSeed<'de>>(name: &str, text: &'de [u8], seed: S) -> Result<S::Value, String> {
    let describe_error = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        // Names of fields may have any characters.
        format!("{name}:{line}:{column}: {}", message.replace(char::is_control, " "))
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = seed.deserialize(&mut deserializer).map_err(describe_error)?;
    deserializer.end().map_err(describe_error)?;
    Ok(value)
}

pub(super) fn duplicate_error(member: &UnresolvedMember) -> String {
    let address = MemberAddress { host: member.host.clone(), port: member.port };
    format!("member {address} is there twice")
}

/// The list, or the object that has it. It is read by hand, because an untagged enum of serde loses the
/// places.
struct ListDocument(bool);

impl<'de> DeserializeSeed<'de> for ListDocument {
    type Value = Vec<UnresolvedMember>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<UnresolvedMember>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListDocument {
    type Value = Vec<UnresolvedMember>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of members, or an object with `members`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<UnresolvedMember>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = sequence.next_element_seed(MemberVisitor(self.0))? {
            members.push(member);
        }
        Ok(members)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Vec<UnresolvedMember>, A::Error> {
        let mut members = None;
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "members" if members.is_none() => {
                    members = Some(object.next_value_seed(MemberListSeed(self.0))?)
                }
                "members" => return Err(A::Error::duplicate_field("members")),
                other_key if self.0 => return Err(A::Error::unknown_field(other_key, &["members"])),
                _ => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        members.ok_or_else(|| A::Error::missing_field("members"))
    }
}

/// The list, and nothing else.
struct MemberListSeed(bool);

impl<'de> DeserializeSeed<'de> for MemberListSeed {
    type Value = Vec<UnresolvedMember>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<UnresolvedMember>, D::Error> {
        deserializer.deserialize_seq(ListDocument(self.0))
    }
}

/// A member.
struct MemberVisitor(bool);

impl<'de> DeserializeSeed<'de> for MemberVisitor {
    type Value = UnresolvedMember;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<UnresolvedMember, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// A member in an answer, with other keys that are ignored.
#[derive(Deserialize)]
struct LenientMember {
    #[serde(alias = "Addr")]
    address: MemberAddress,
    #[serde(default = "one")]
    capacity: f64,
    #[serde(default)]
    max_connections: Option<u32>,
}

impl<'de> Visitor<'de> for MemberVisitor {
    type Value = UnresolvedMember;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member: \"host:port\", or an object with its `address`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<UnresolvedMember, E> {
        text.parse().map(from_address).map_err(|error| E::custom(format_args!("`{text}` {error}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<UnresolvedMember, A::Error> {
        let deserializer = MapAccessDeserializer::new(object);
        let table = if self.0 {
            MemberRecord::deserialize(deserializer)?
        } else {
            let LenientMember { address, capacity, max_connections } =
                LenientMember::deserialize(deserializer)?;
            MemberRecord { address, capacity, max_connections }
        };
        // The bounds are those of the schema.
        if !(0.001..=1e6).contains(&table.capacity) {
            return Err(A::Error::custom("`capacity` must be from 0.001 to 1000000"));
        }
        if !table.max_connections.is_none_or(|max| (1..=1_000_000).contains(&max)) {
            return Err(A::Error::custom("`max_connections` must be from 1 to 1000000"));
        }
        Ok(table.into_stated())
    }
}
