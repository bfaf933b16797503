//! Roles: operations, for all groups or for some.

use std::collections::BTreeSet;

use crate::api::{Operation, OperationClass, ROUTES};

/// The built-in roles: queries; queries and operation; everything.
pub const BUILT_IN: &[&str] = &["viewer", "operator", "admin"];

/// A set of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name in grants.
    pub name: String,
    /// The operations.
    pub operations: BTreeSet<Operation>,
    /// The groups; `None` for all.
    pub groups: Option<BTreeSet<String>>,
}

impl Role {
    /// Returns the built-in role with this name; without operations if there is none.
    pub(super) fn built_in(name: &str) -> Self {
        let includes_class = |class: OperationClass| match name {
            "viewer" => class == OperationClass::Query,
            "operator" => matches!(class, OperationClass::Query | OperationClass::Operate),
            "admin" => true,
            _ => false,
        };
        let operations =
            ROUTES.iter().filter(|route| includes_class(route.class)).map(|route| route.operation).collect();
        Self { name: name.to_owned(), operations, groups: None }
    }
}
