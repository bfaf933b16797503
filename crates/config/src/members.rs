//! Lists of members of sources: a file of TOML, checked like the configuration and with the same messages, or
//! JSON, of a file or of a server ([`mod@json`]). Errors have line and column.

mod json;
#[cfg(any(test, fuzzing))]
pub(crate) mod law;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use plimsoll_cluster::discover::UnresolvedMember;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;

use super::diagnostic::{ConfigDiagnostic, ConfigDiagnostics};
use super::{CheckedValue, MemberAddress, read_checked, titled};
use json::{MemberRecord, duplicate_error, from_address};
pub(super) use json::{answer, json, value};

/// A file with a list of members.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MemberListFile {
    /// Servers of the group: `"host:port"`, or a table with further settings.
    members: Vec<MemberListEntry>,
}

/// A member: a server of the group.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum MemberListEntry {
    /// Address only.
    Address(MemberAddress),
    /// Address and further settings.
    Table(MemberRecord),
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| titled(schemars::schema_for!(MemberListFile), "members"));
    &SCHEMA
}

/// Reads a file of TOML.
///
/// # Errors
/// Fails with the mistake on one line, with its place.
pub(super) fn toml(name: &str, text: &[u8]) -> Result<Vec<UnresolvedMember>, String> {
    let checked = read_checked::<MemberListFile>(schema(), name, text.to_vec())
        .map_err(|problems| problems.headline())?;
    let CheckedValue { value, spans: root_spans, problems: mut diagnostics, source } = checked;
    let mut seen_addresses = BTreeSet::new();
    let mut members = Vec::new();
    for (index, entry) in value.members.into_iter().enumerate() {
        let (entry, span) = match entry {
            MemberListEntry::Address(address) => {
                (from_address(address), root_spans.key("members").item(index))
            }
            MemberListEntry::Table(table) => {
                (table.into_stated(), root_spans.key("members").item(index).key("address"))
            }
        };
        if !seen_addresses.insert((entry.host.clone(), entry.port)) {
            diagnostics.push(ConfigDiagnostic::error(span.value_span(), duplicate_error(&entry)));
        }
        members.push(entry);
    }
    let problems = ConfigDiagnostics::new(source, diagnostics);
    if problems.has_errors() { Err(problems.headline()) } else { Ok(members) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn describe(result: Result<Vec<UnresolvedMember>, String>) -> String {
        let describe_member = |member: &UnresolvedMember| {
            format!("{}:{}*{}/{:?}", member.host, member.port, member.capacity, member.limit)
        };
        result.unwrap().iter().map(describe_member).collect::<Vec<_>>().join(" ")
    }

    const EXPECTED: &str = "10.0.0.1:80*1/None b:81*2.5/Some(9)";

    #[test]
    fn lists_are_written_as_in_the_configuration() {
        let text = "# ours\nmembers = [\"10.0.0.1:80\", \
            { address = \"B:81\", capacity = 2.5, max_connections = 9 }]\n";
        assert_eq!(describe(toml("x", text.as_bytes())), EXPECTED);
        assert_eq!(describe(toml("x", b"members = []")), "");
    }

    #[test]
    fn lists_of_json() {
        let list_text = r#"["10.0.0.1:80", {"address": "B:81", "capacity": 2.5, "max_connections": 9}]"#;
        for parse_list in [json, answer] {
            assert_eq!(describe(parse_list("x", list_text.as_bytes())), EXPECTED);
            assert_eq!(
                describe(parse_list("x", format!("{{\"members\": {list_text}}}").as_bytes())),
                EXPECTED
            );
            assert_eq!(describe(parse_list("x", b" [] ")), "");
        }
        let with_other_keys =
            br#"{"index": [7], "members": [{"id": {"a": 1}, "address": "b:81", "capacity": 2}]}"#;
        assert_eq!(describe(answer("x", with_other_keys)), "b:81*2/None");
        assert!(json("x", with_other_keys).is_err());
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
            assert_eq!(describe(value("/web/1", text.as_bytes())), "a:1*1/None", "{text}");
        }
        assert_eq!(
            describe(value("k", b"{\"address\":\"a:1\",\"capacity\":2.5,\"max_connections\":9}")),
            "a:1*2.5/Some(9)"
        );
        for (text, expected) in [
            ("", "/web/1: `` has no port"),
            ("a", "/web/1: `a` has no port"),
            ("{\"Addr\": 7}", "/web/1:1:"),
            ("[\"a:1\"]", "/web/1: `[\"a:1\"]` "),
            ("<html>", "/web/1: `<html>` "),
        ] {
            let error = value("/web/1", text.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, expected) in [
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
            let error = toml("web", text.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
        for (text, expected) in [
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
            let error = json("web", text.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    proptest! {
        /// Any text is a list, or fails with one line.
        #[test]
        fn any_text(text in "(\\[|\\{|\\}|\\]|,|:|\"|members|address|capacity|a:1|[0-9.e-]|\\PC| \
            |\n){0,40}") {
            for read in [toml, json, answer, value] {
                if let Err(why) = read("x", text.as_bytes()) {
                    prop_assert!(!why.is_empty() && !why.contains('\n'), "{why}");
                }
            }
        }
    }
}
