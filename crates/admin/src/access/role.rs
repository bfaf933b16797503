//! Roles: operations, for all groups or for some.

use std::collections::BTreeSet;

use crate::verb::{Nature, ROUTES, Verb};

/// The built-in roles: queries; queries and operation; everything.
pub const BUILT_IN: &[&str] = &["viewer", "operator", "admin"];

/// A set of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name in grants.
    pub name: String,
    /// The operations.
    pub verbs: BTreeSet<Verb>,
    /// The groups; `None` for all.
    pub groups: Option<BTreeSet<String>>,
}

impl Role {
    /// Returns the built-in role with this name; without operations if there is none.
    pub(super) fn built_in(name: &str) -> Self {
        let has = |nature: Nature| match name {
            "viewer" => nature == Nature::Look,
            "operator" => matches!(nature, Nature::Look | Nature::Operate),
            "admin" => true,
            _ => false,
        };
        let verbs = ROUTES.iter().filter(|route| has(route.nature)).map(|route| route.verb).collect();
        Self { name: name.to_owned(), verbs, groups: None }
    }
}
