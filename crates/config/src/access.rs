//! `[admin.access]`: the rights of clients that come over TLS ([`super::auth`]). The rules may be in a
//! file of their own, `access.toml`, which is checked against a schema like every other.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;

use plimsoll_admin::{
    self as admin, AccessRules, ActiveRules, BUILT_IN, CallerPattern, Grant, OperationScope, Role,
};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::diagnostic::quoted;
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{
    CheckedValue, ConfigDiagnostic, ConfigDiagnostics, ConfigName, FilePath, ReadError, bytes_of,
    read_checked, suggest, titled,
};

/// Authorization of clients over TLS. Anything that no grant permits is refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// File with `[[role]]` and `[[grant]]` tables, used instead of those here. Reloaded when it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePath>,

    /// Custom roles, in addition to `viewer` (read only), `operator` (read, and operate groups) and `admin`
    /// (everything).
    #[serde(rename = "role", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleConfig>,

    /// Grants, each of which gives a role to an identity.
    #[serde(rename = "grant", skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<GrantConfig>,
}

/// The file that `[admin.access] file` names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AccessFile {
    /// Custom roles.
    #[serde(rename = "role")]
    roles: Vec<RoleConfig>,

    /// Grants, each of which gives a role to an identity.
    #[serde(rename = "grant")]
    grants: Vec<GrantConfig>,
}

/// A set of verbs, for all groups or for some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleConfig {
    /// Name of the role, by which grants refer to it.
    pub name: ConfigName,

    /// Operations that the role permits: verbs of the OpenAPI document, such as `status` and `drain`.
    #[schemars(length(min = 1))]
    pub verbs: Vec<VerbName>,

    /// Groups that the role covers, the only ones visible to it, or `"all"`. For a lottery daemon these are
    /// services, for a Supervisor processes. There is no default, so that an incomplete file never permits
    /// more than a complete one.
    pub groups: GroupSelection,
}

/// Some groups, or all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GroupSelection {
    /// The groups with these names.
    These(Vec<ConfigName>),
    /// All groups.
    All(AllGroups),
}

/// The word for all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllGroups;

text! {
    AllGroups,
    format: "plimsoll-all",
    what: "\"all\"",
    example: "all",
    pattern: "^all$",
}

impl FromStr for AllGroups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Self) } else { Err("is neither \"all\" nor a list of names".into()) }
    }
}

impl fmt::Display for AllGroups {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("all")
    }
}

/// A role given to an identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantConfig {
    /// Identity of the client: `spiffe://DOMAIN/PATH` of a client certificate (a trailing `*` matches
    /// everything below), `jwt:SUBJECT` or `jwt:CLAIM=VALUE` of a token, or `krb5:NAME@REALM` of a Kerberos
    /// ticket.
    pub identity: IdentityPattern,

    /// Name of the role.
    pub role: ConfigName,
}

/// A pattern of identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityPattern(pub CallerPattern);

text! {
    IdentityPattern,
    format: "plimsoll-identity",
    what: "who: an SPIFFE id, jwt:SUBJECT, or krb5:NAME@REALM",
    example: "spiffe://example.org/ops/*",
}

impl FromStr for IdentityPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for IdentityPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The name of an act or a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbName(pub admin::Operation);

text! {
    VerbName,
    format: "plimsoll-verb",
    what: "a verb",
    example: "drain",
}

impl FromStr for VerbName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for VerbName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Returns the rules that a configuration names: its own, or those of a file.
///
/// # Errors
/// Fails with one line if the file cannot be read, or is wrong.
pub(crate) fn rules(table: &AccessConfig) -> Result<ActiveRules, String> {
    match &table.file {
        Some(FilePath(path)) => {
            let name = path.clone();
            ActiveRules::file(path.clone(), move |bytes| {
                read(&name, bytes.to_vec()).map_err(|problems| problems.headline())
            })
        }
        None => Ok(ActiveRules::fixed(build_access(&table.roles, &table.grants))),
    }
}

/// Checks the file of rules that a configuration names.
///
/// # Errors
/// Fails if it cannot be read, or is wrong.
pub fn check_file(path: &Path) -> Result<AccessRules, ReadError> {
    let (_, bytes) = bytes_of(path)?;
    read(path, bytes).map_err(ReadError::Wrong)
}

fn read(path: &Path, bytes: Vec<u8>) -> Result<AccessRules, ConfigDiagnostics> {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| titled(schemars::schema_for!(AccessFile), "access.toml"));
    let name = path.display().to_string();
    let CheckedValue { value, spans: root_spans, problems: mut diagnostics, source } =
        read_checked::<AccessFile>(&SCHEMA, &name, bytes)?;
    check_roles(&value.roles, &value.grants, &root_spans, &mut diagnostics);
    let problems = ConfigDiagnostics::new(source, diagnostics);
    if problems.has_errors() { Err(problems) } else { Ok(build_access(&value.roles, &value.grants)) }
}

/// Returns the rules of checked tables.
fn build_access(roles: &[RoleConfig], grants: &[GrantConfig]) -> AccessRules {
    let groups = |groups: &GroupSelection| match groups {
        GroupSelection::These(names) => {
            Some(names.iter().map(|name| name.0.clone()).collect::<BTreeSet<_>>())
        }
        GroupSelection::All(_) => None,
    };
    let role = |table: &RoleConfig| Role {
        name: table.name.0.clone(),
        operations: table.verbs.iter().map(|verb| verb.0).collect(),
        groups: groups(&table.groups),
    };
    let grant = |table: &GrantConfig| Grant { pattern: table.identity.0.clone(), role: table.role.0.clone() };
    let access_rules = AccessRules::new(roles.iter().map(role).collect(), grants.iter().map(grant).collect());
    // A checked table names no missing role; in doubt there are no rights.
    access_rules.unwrap_or_default()
}

/// Checks roles and grants against one another.
pub(super) fn check_roles(
    roles: &[RoleConfig],
    grants: &[GrantConfig],
    root_spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let mut known_roles: HashMap<&str, usize> = HashMap::new();
    for (index, role) in roles.iter().enumerate() {
        let spans = root_spans.key("role").item(index);
        if BUILT_IN.contains(&role.name.0.as_str()) {
            let message = format!("there is a role `{}` already", role.name);
            diagnostics.push(
                ConfigDiagnostic::error(spans.key("name").value_span(), message).hint("give it another name"),
            );
        }
        if let Some(first) = known_roles.insert(&role.name.0, index) {
            let first_span = root_spans.key("role").item(first).key("name").value_span();
            let message = format!("a second role named `{}`", role.name);
            diagnostics.push(
                ConfigDiagnostic::error(spans.key("name").value_span(), message)
                    .with_related(first_span, "the first is here"),
            );
        }
        for (verb_index, verb) in role.verbs.iter().enumerate() {
            if matches!(role.groups, GroupSelection::These(_))
                && verb.0.route().scope == OperationScope::Process
                && !spans.is_broken("verbs")
            {
                let message = format!(
                    "{} is about the whole process, and the role about some groups",
                    quoted(verb.0.name())
                );
                let hint = "take it out, or make it a role of its own with groups = \"all\"";
                diagnostics.push(
                    ConfigDiagnostic::error(spans.key("verbs").item(verb_index).value_span(), message)
                        .hint(hint),
                );
            }
        }
    }
    for (index, grant) in grants.iter().enumerate() {
        let role = grant.role.0.as_str();
        if known_roles.contains_key(role) || BUILT_IN.contains(&role) || root_spans.is_broken("role") {
            continue;
        }
        let role_names: Vec<&str> =
            BUILT_IN.iter().copied().chain(roles.iter().map(|role| role.name.0.as_str())).collect();
        let span = root_spans.key("grant").item(index).key("role").value_span();
        let hint = suggest::hint(role, &role_names).replace("allowed:", "roles:");
        diagnostics
            .push(ConfigDiagnostic::error(span, format!("there is no role named `{role}`")).hint(hint));
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_admin::{Caller, GrantedScope, Operation};

    use super::*;

    const GOOD: &str = r#"[[role]]
name = "web-drainers"
verbs = ["status", "drain"]
groups = ["web"]
[[grant]]
identity = "spiffe://example.org/web/*"
role = "web-drainers"
[[grant]]
identity = "jwt:groups=sre"
role = "admin"
"#;

    fn parse_rules(text: &str) -> Result<AccessRules, String> {
        read(Path::new("access.toml"), text.into()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_file_of_rules() {
        let access = parse_rules(GOOD).unwrap();
        let granted = access.granted_scope(&Caller::spiffe("spiffe://example.org/web/a"), Operation::Drain);
        assert!(granted.covers("web") && !granted.covers("mail"));
        assert_eq!(
            access.granted_scope(&Caller::spiffe("spiffe://example.org/web/a"), Operation::Stop),
            GrantedScope::Denied
        );
        assert_eq!(parse_rules("").unwrap().grant_count(), 0);
        let unscoped = parse_rules(&GOOD.replace("[\"web\"]", "\"all\"")).unwrap();
        assert_eq!(
            unscoped.granted_scope(&Caller::spiffe("spiffe://example.org/web/a"), Operation::Drain),
            GrantedScope::All
        );
    }

    #[test]
    fn half_a_file_gives_no_more_than_the_whole() {
        let whole_rules = parse_rules(GOOD).unwrap();
        let callers = [
            Caller::spiffe("spiffe://example.org/web/a"),
            Caller::jwt("a", [("groups".to_owned(), vec!["sre".to_owned()])].into()),
        ];
        for length in 0..GOOD.len() {
            let Ok(partial_rules) = parse_rules(&GOOD[..length]) else { continue };
            for caller in &callers {
                for verb in [Operation::Status, Operation::Drain, Operation::Stop] {
                    let (partial_scope, whole_scope) =
                        (partial_rules.granted_scope(caller, verb), whole_rules.granted_scope(caller, verb));
                    assert!(
                        partial_scope == GrantedScope::Denied || partial_scope == whole_scope,
                        "{}",
                        &GOOD[..length]
                    );
                }
            }
        }
        let error = parse_rules(&GOOD.replace("groups = [\"web\"]\n", "")).unwrap_err();
        assert!(error.contains("missing key `groups`") && error.contains("add groups = "), "{error}");
        let error = parse_rules(&GOOD.replace("[\"web\"]", "\"every\"")).unwrap_err();
        assert!(error.contains("neither \"all\" nor"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_rules_is_placed() {
        let extra_text = "[[role]]\nname = \"admin\"\nverbs = [\"stop\"]\n\
            groups = \"all\"\n[[grant]]\nidentity = \"jwt:a\"\nrole = \"veiwer\"\n";
        let error =
            parse_rules(&format!("{}{extra_text}", GOOD.replace("\"drain\"]", "\"drain\", \"stop\"]")))
                .unwrap_err();
        for expected in [
            "access.toml:3:29: `stop` is about the whole process",
            "access.toml:12:8: there is a role `admin` already",
            "access.toml:17:8: there is no role named `veiwer`",
            "did you mean `viewer`?",
            "roles: viewer, operator, admin, web-drainers",
            "3 errors",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert!(
            parse_rules("[[grant]]\nidentity = \"alice\"\nrole = \"admin\"\n")
                .unwrap_err()
                .contains("neither spiffe://")
        );
    }
}
