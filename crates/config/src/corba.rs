//! `[group.iiop]` and members' object references (CORBA).

use std::fmt;
use std::fs;
use std::str::FromStr;

use plimsoll_wire::giop::{Corbaloc, Ior};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::root::count;
use super::text::{TextValue, text};
use super::{FilePath, MemberAddress};

/// The object that clients of a group's iiop listeners ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IiopConfig {
    /// Its type, such as `IDL:Bank/Account:1.0`. Default: that of the first member whose reference says one.
    /// Some clients need it to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_id: Option<RepositoryId>,

    /// Its object key: what clients name it by. Default: the group's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,

    /// A file to which its reference (`IOR:…`) is written when the balancer starts and when it reads this
    /// file again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ior_file: Option<FilePath>,

    /// Most bytes of a message, its fragments together. One that is relayed is held in memory until it is
    /// complete.
    #[schemars(range(min = 4096, max = 1_073_741_824))]
    pub max_message: usize,

    /// Connections to a member and thread above which requests that are relayed share one.
    #[schemars(range(min = 1, max = 65_536))]
    pub connections: usize,
}

impl Default for IiopConfig {
    fn default() -> Self {
        Self {
            type_id: None,
            key: None,
            ior_file: None,
            max_message: count::<{ 1 << 20 }>(),
            connections: count::<16>(),
        }
    }
}

/// A repository id of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryId(pub String);

text! {
    RepositoryId,
    format: "plimsoll-type-id",
    what: "the repository id of a type",
    example: "IDL:Bank/Account:1.0",
}

impl FromStr for RepositoryId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(':') || text.len() > 1024 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is not a repository id: write it as \"IDL:Module/Interface:1.0\"".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for RepositoryId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The key of an object at its server: text, with `%xx` for other bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    original: String,
    /// The decoded key.
    pub bytes: Vec<u8>,
}

text! {
    ObjectKey,
    format: "plimsoll-object-key",
    what: "an object key",
    example: "Bank/Account",
}

impl FromStr for ObjectKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The rules are those of a corbaloc's key.
        let parsed: Result<Corbaloc, _> = format!("corbaloc::host/{text}").parse();
        match parsed {
            Ok(corbaloc) if !corbaloc.key.is_empty() && corbaloc.key.len() <= 4096 => {
                Ok(Self { original: text.into(), bytes: corbaloc.key })
            }
            _ => Err("is not an object key: text, with %xx for bytes that are none".into()),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.original)
    }
}

/// The name of a member's location, as monitors use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberLocation(pub String);

text! {
    MemberLocation,
    format: "plimsoll-location",
    what: "a location",
    example: "host1",
}

impl FromStr for MemberLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("is empty".into()),
            _ if text.len() > 255 => Err("is too long: a location has at most 255 bytes".into()),
            _ if text.chars().any(char::is_control) => Err("has a character that cannot be shown".into()),
            _ => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for MemberLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The reference of a member's object: `IOR:…`, `corbaloc:…`, or `file:` and the path of a file that holds
/// one of them, which is read whenever this file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    original: String,
    /// The address of its first IIOP profile.
    pub address: MemberAddress,
    /// The reference itself.
    pub ior: Ior,
}

text! {
    ObjectReference,
    format: "plimsoll-reference",
    what: "an object reference",
    example: "file:/run/account.ior",
    pattern: "^(IOR|ior|corbaloc|file):.+$",
}

impl FromStr for ObjectReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let original = text.to_owned();
        let file_text;
        let reference = match text.strip_prefix("file:") {
            Some(path) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                file_text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
                file_text.trim()
            }
            None => text.trim(),
        };
        let ior = read(reference)?;
        let profile = ior.first_iiop_profile().ok_or("leads nowhere: it has no IIOP profile")?;
        let address_text =
            profile.addresses().next().map(|address_text| address_text.to_string()).unwrap_or_default();
        let address =
            address_text.parse().map_err(|cause| format!("leads to {address_text}, which {cause}"))?;
        Ok(Self { original, address, ior })
    }
}

/// Reads a reference in one of its two written forms.
fn read(text: &str) -> Result<Ior, String> {
    if text.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("corbaloc:")) {
        let corbaloc: Corbaloc =
            text.parse().map_err(|parse_error| format!("is no corbaloc: {parse_error}"))?;
        return Ok(corbaloc.ior());
    }
    text.parse().map_err(|parse_error| format!("is no object reference: {parse_error}"))
}

impl fmt::Display for ObjectReference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.original)
    }
}
