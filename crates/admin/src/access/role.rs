//! What somebody may do: verbs, for all groups or for some.

use std::collections::BTreeSet;

use crate::verb::{Nature, ROUTES, Verb};

/// The roles that are always there: look; look and operate; everything.
pub const BUILT_IN: &[&str] = &["viewer", "operator", "admin"];

/// A set of verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// What grants call it.
    pub name: String,
    /// What it may do.
    pub verbs: BTreeSet<Verb>,
    /// With which groups; `None` for all.
    pub groups: Option<BTreeSet<String>>,
}

impl Role {
    /// The one of this name; without verbs if there is none.
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
