//! Lists of members that sources have: a file of TOML, checked like the configuration and with the same words for what is wrong, or
//! JSON, of a file or of a server. Errors say line and column.

use std::collections::BTreeSet;
use std::fmt;

use plimsoll_cluster::discover::Stated;
use schemars::{JsonSchema, Schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;

use super::problem::{Problem, Problems};
use super::root::one;
use super::{Held, MemberAddress, hold, titled};

/// The file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// Who does the work: `"host:port"`, or a table with more.
    members: Vec<Entry>,
}

/// One of them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Entry {
    /// Only its address.
    Address(MemberAddress),
    /// Its address and more.
    Table(Table),
}

/// One of them, with more than its address.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Host name or IP address, and port.
    address: MemberAddress,

    /// How much it can do relative to the other members.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default = "one")]
    capacity: f64,

    /// Most requests (http), connections (tcp) or flows (udp) at once. Default: the group's.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default)]
    max_connections: Option<u32>,
}

impl Table {
    fn stated(self) -> Stated {
        let MemberAddress { host, port } = self.address;
        Stated { host, port, capacity: self.capacity, limit: self.max_connections }
    }
}

fn bare(address: MemberAddress) -> Stated {
    Table { address, capacity: 1.0, max_connections: None }.stated()
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| titled(schemars::schema_for!(Listed), "members"));
    &SCHEMA
}

/// Reads a file of TOML.
///
/// # Errors
/// What is wrong with it, on one line, with the place.
pub(super) fn toml(name: &str, text: &[u8]) -> Result<Vec<Stated>, String> {
    let held = hold::<Listed>(schema(), name, text.to_vec()).map_err(|problems| problems.headline())?;
    let Held { value, spots, problems: mut list, source } = held;
    let mut seen = BTreeSet::new();
    let mut stated = Vec::new();
    for (index, entry) in value.members.into_iter().enumerate() {
        let (entry, at) = match entry {
            Entry::Address(address) => (bare(address), spots.key("members").item(index)),
            Entry::Table(table) => (table.stated(), spots.key("members").item(index).key("address")),
        };
        if !seen.insert((entry.host.clone(), entry.port)) {
            list.push(Problem::error(at.value(), twice(&entry)));
        }
        stated.push(entry);
    }
    let problems = Problems::new(source, list);
    if problems.fatal() { Err(problems.headline()) } else { Ok(stated) }
}

/// Reads a file of JSON: a list, or an object whose `members` are one. What it does not know it refuses.
///
/// # Errors
/// What is wrong with it, on one line, with the place.
pub(super) fn json(name: &str, text: &[u8]) -> Result<Vec<Stated>, String> {
    read(name, text, true)
}

/// Reads what a server answers: like [`json`], but what else it tells is its own affair.
///
/// # Errors
/// What is wrong with it, on one line, with the place.
pub(super) fn answer(name: &str, text: &[u8]) -> Result<Vec<Stated>, String> {
    read(name, text, false)
}

/// Reads the value of a key of etcd: `host:port`, or what [`answer`] takes of one member; also as gRPC's clients have it there
/// (`{"Op":0,"Addr":"host:port"}`).
///
/// # Errors
/// What is wrong with it, on one line, with the key.
pub(super) fn value(name: &str, text: &[u8]) -> Result<Vec<Stated>, String> {
    let text = text.trim_ascii();
    if text.starts_with(b"{") || text.starts_with(b"\"") {
        return read(name, &[b"[", text, b"]"].concat(), false);
    }
    let text = String::from_utf8_lossy(text);
    let wrong = |why: String| {
        let shown: String = text.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{name}: `{shown}` {}", why.replace(char::is_control, " "))
    };
    let address = text.parse::<MemberAddress>().map_err(wrong)?;
    Ok(vec![bare(address)])
}

fn read(name: &str, text: &[u8], strict: bool) -> Result<Vec<Stated>, String> {
    let wrong = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let said = error.to_string();
        let said = said.split(" at line ").next().unwrap_or_default();
        format!("{name}:{line}:{column}: {said}")
    };
    let mut from = serde_json::Deserializer::from_slice(text);
    let stated = Whole(strict).deserialize(&mut from).map_err(wrong)?;
    from.end().map_err(wrong)?;
    let mut seen = BTreeSet::new();
    match stated.iter().find(|one| !seen.insert((&one.host, one.port))) {
        Some(one) => Err(format!("{name}: {}", twice(one))),
        None => Ok(stated),
    }
}

fn twice(one: &Stated) -> String {
    let address = MemberAddress { host: one.host.clone(), port: one.port };
    format!("member {address} is there twice")
}

/// The list, or the object that has it. Read by hand, because what serde derives for "one or the other" loses the places.
struct Whole(bool);

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = Vec<Stated>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Stated>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole {
    type Value = Vec<Stated>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of members, or an object with `members`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Stated>, A::Error> {
        let mut stated = Vec::new();
        while let Some(one) = list.next_element_seed(One(self.0))? {
            stated.push(one);
        }
        Ok(stated)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Vec<Stated>, A::Error> {
        let mut members = None;
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "members" if members.is_none() => members = Some(object.next_value_seed(List(self.0))?),
                "members" => return Err(A::Error::duplicate_field("members")),
                other if self.0 => return Err(A::Error::unknown_field(other, &["members"])),
                _ => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        members.ok_or_else(|| A::Error::missing_field("members"))
    }
}

/// The list, and nothing else.
struct List(bool);

impl<'de> DeserializeSeed<'de> for List {
    type Value = Vec<Stated>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Stated>, D::Error> {
        from.deserialize_seq(Whole(self.0))
    }
}

/// A member.
struct One(bool);

impl<'de> DeserializeSeed<'de> for One {
    type Value = Stated;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Stated, D::Error> {
        from.deserialize_any(self)
    }
}

/// A member in an answer, with whatever else the server tells of it.
#[derive(Deserialize)]
struct Loose {
    #[serde(alias = "Addr")]
    address: MemberAddress,
    #[serde(default = "one")]
    capacity: f64,
    #[serde(default)]
    max_connections: Option<u32>,
}

impl<'de> Visitor<'de> for One {
    type Value = Stated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member: \"host:port\", or an object with its `address`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Stated, E> {
        text.parse().map(bare).map_err(|why| E::custom(format_args!("`{text}` {why}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Stated, A::Error> {
        let from = MapAccessDeserializer::new(object);
        let table = if self.0 {
            Table::deserialize(from)?
        } else {
            let Loose { address, capacity, max_connections } = Loose::deserialize(from)?;
            Table { address, capacity, max_connections }
        };
        // As the schema has it.
        if !(0.001..=1e6).contains(&table.capacity) {
            return Err(A::Error::custom("`capacity` must be from 0.001 to 1000000"));
        }
        if !table.max_connections.is_none_or(|most| (1..=1_000_000).contains(&most)) {
            return Err(A::Error::custom("`max_connections` must be from 1 to 1000000"));
        }
        Ok(table.stated())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(list: Result<Vec<Stated>, String>) -> String {
        let one = |one: &Stated| format!("{}:{}*{}/{:?}", one.host, one.port, one.capacity, one.limit);
        list.unwrap().iter().map(one).collect::<Vec<_>>().join(" ")
    }

    const EXPECTED: &str = "10.0.0.1:80*1/None b:81*2.5/Some(9)";

    #[test]
    fn lists_are_written_as_in_the_configuration() {
        let text = "# ours\nmembers = [\"10.0.0.1:80\", { address = \"B:81\", capacity = 2.5, max_connections = 9 }]\n";
        assert_eq!(shown(toml("x", text.as_bytes())), EXPECTED);
        assert_eq!(shown(toml("x", b"members = []")), "");
    }

    #[test]
    fn lists_of_json() {
        let list = r#"["10.0.0.1:80", {"address": "B:81", "capacity": 2.5, "max_connections": 9}]"#;
        for read in [json, answer] {
            assert_eq!(shown(read("x", list.as_bytes())), EXPECTED);
            assert_eq!(shown(read("x", format!("{{\"members\": {list}}}").as_bytes())), EXPECTED);
            assert_eq!(shown(read("x", b" [] ")), "");
        }
        let more = br#"{"index": [7], "members": [{"id": {"a": 1}, "address": "b:81", "capacity": 2}]}"#;
        assert_eq!(shown(answer("x", more)), "b:81*2/None");
        assert!(json("x", more).is_err());
    }

    #[test]
    fn values_of_keys() {
        for text in [
            "a:1",
            " a:1\n",
            "\"a:1\"",
            "{\"address\": \"a:1\", \"zone\": 7}",
            "{\"Op\":0,\"Addr\":\"a:1\",\"Metadata\":null}",
        ] {
            assert_eq!(shown(value("/web/1", text.as_bytes())), "a:1*1/None", "{text}");
        }
        assert_eq!(
            shown(value("k", b"{\"address\":\"a:1\",\"capacity\":2.5,\"max_connections\":9}")),
            "a:1*2.5/Some(9)"
        );
        for (text, why) in [
            ("", "/web/1: `` has no port"),
            ("a", "/web/1: `a` has no port"),
            ("{\"Addr\": 7}", "/web/1:1:"),
            ("[\"a:1\"]", "/web/1: `[\"a:1\"]` "),
            ("<html>", "/web/1: `<html>` "),
        ] {
            let said = value("/web/1", text.as_bytes()).unwrap_err();
            assert!(said.contains(why) && !said.contains('\n'), "{text}: {said}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, why) in [
            ("members = [\n\"a:1\",\n  \"b\"]", "web:3:3: `members`: `b` has no port"),
            ("members = [{ address = \"a:1\", capacty = 2 }]", "web:1:31: unknown key `capacty`"),
            (
                "members = [{ address = \"a:1\", capacity = 0 }]",
                "web:1:42: `capacity` must be at least 0.001",
            ),
            ("members = [\"a:1\", \"A:1\"]", "web:1:19: member a:1 is there twice"),
            ("[members", "web:1:9: "),
            ("", "missing key `members`"),
        ] {
            let said = toml("web", text.as_bytes()).unwrap_err();
            assert!(said.contains(why) && !said.contains('\n'), "{text}: {said}");
        }
        for (text, why) in [
            ("[\n\"a:1\",\n  \"b\"]", "web:3:5: `b` has no port"),
            ("[{\"address\": \"a:1\", \"capacty\": 2}]", "web:1:29: unknown field `capacty`"),
            ("[{\"address\": \"a:1\", \"capacity\": 0}]", "`capacity` must be from 0.001"),
            ("[{\"address\": \"a:1\", \"max_connections\": 0}]", "`max_connections` must be from 1"),
            ("[\"a:1\", \"A:1\"]", "web: member a:1 is there twice"),
            ("[\"a:1\"", "web:1:6: EOF"),
            ("[\"a:1\"] x", "web:1:9: trailing"),
            ("{}", "missing field `members`"),
            ("{\"members\": {}}", "a list of members"),
            ("7", "a list of members"),
            ("[7]", "a member: "),
            ("<html>", "web:1:1: expected value"),
            ("", "web:1:0: EOF"),
        ] {
            let said = json("web", text.as_bytes()).unwrap_err();
            assert!(said.contains(why) && !said.contains('\n'), "{text}: {said}");
        }
    }

    proptest! {
        /// Whatever is in a file or an answer: it is a list, or it is told on one line what is wrong.
        #[test]
        fn any_text(text in "(\\[|\\{|\\}|\\]|,|:|\"|members|address|capacity|a:1|[0-9.e-]|\\PC| |\n){0,40}") {
            for read in [toml, json, answer, value] {
                if let Err(why) = read("x", text.as_bytes()) {
                    prop_assert!(!why.is_empty() && !why.contains('\n'), "{why}");
                }
            }
        }
    }
}
