//! Access control: values, evaluated anew for each request.
//!
//! A *caller* is the identity that a credential proves: a unix socket's peer, a client certificate's SPIFFE
//! ID, or a token's subject and claims. A *role* is a set of operations, for all groups or for some; three
//! are built in. A *grant* gives a role to the callers that match its pattern. Everything else is denied.
//! There are no rules that deny, so the order of grants has no effect.

mod caller;
mod pattern;
mod role;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use caller::{Caller, CredentialKind};
pub use pattern::{CallerPattern, spiffe_id, trust_domain};
pub use role::{BUILT_IN, Role};

use crate::api::{Operation, OperationScope};

/// A grant of a role to the callers that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The pattern.
    pub pattern: CallerPattern,
    /// The name of a role: a built-in one or one of the same rules.
    pub role: String,
}

/// The rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    grants: Vec<(CallerPattern, Arc<Role>)>,
}

/// The extent of a caller's permission for one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantedScope {
    /// Nothing.
    Denied,
    /// These groups.
    Groups(BTreeSet<String>),
    /// Everything.
    All,
}

impl AccessRules {
    /// Creates rules from custom roles and grants.
    ///
    /// # Errors
    /// The index of the first grant with an unknown role.
    pub fn new(roles: Vec<Role>, grants: Vec<Grant>) -> Result<Self, usize> {
        let custom_roles = roles.into_iter().map(|role| (role.name.clone(), Arc::new(role)));
        let mut roles_by_name: BTreeMap<String, Arc<Role>> =
            BUILT_IN.iter().map(|name| ((*name).to_owned(), Arc::new(Role::built_in(name)))).collect();
        roles_by_name.extend(custom_roles);
        let grant = |(index, grant): (usize, Grant)| {
            roles_by_name.get(&grant.role).map(|role| (grant.pattern, Arc::clone(role))).ok_or(index)
        };
        let grants = grants.into_iter().enumerate().map(grant).collect::<Result<_, _>>()?;
        Ok(Self { grants })
    }

    /// Returns the permission of `caller` for `verb`.
    pub fn granted_scope(&self, caller: &Caller, operation: Operation) -> GrantedScope {
        if caller.is_owner() {
            return GrantedScope::All;
        }
        let mut scope = GrantedScope::Denied;
        for (_, role) in self.grants.iter().filter(|(pattern, _)| pattern.matches(caller)) {
            if role.operations.contains(&operation) {
                scope = scope.union(role.groups.as_ref());
            }
        }
        match scope {
            // Roles with some groups and an operation of the whole process cannot be created; in doubt they
            // grant nothing.
            GrantedScope::Groups(_) if operation.route().scope == OperationScope::Process => {
                GrantedScope::Denied
            }
            scope => scope,
        }
    }

    /// Returns the number of grants.
    pub fn grant_count(&self) -> usize {
        self.grants.len()
    }
}

impl GrantedScope {
    /// Adds a further role's groups.
    fn union(self, groups: Option<&BTreeSet<String>>) -> Self {
        match (self, groups) {
            (Self::All, _) | (_, None) => Self::All,
            (Self::Denied, Some(groups)) => Self::Groups(groups.clone()),
            (Self::Groups(mut group_names), Some(groups)) => {
                group_names.extend(groups.iter().cloned());
                Self::Groups(group_names)
            }
        }
    }

    /// Returns `true` if the permission covers this group. The empty name stands for the process, which every
    /// caller with any permission may see.
    pub fn covers(&self, group: &str) -> bool {
        match self {
            Self::Denied => false,
            Self::Groups(groups) => group.is_empty() || groups.contains(group),
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{OperationClass, ROUTES};

    fn rules() -> AccessRules {
        let web_role = Role {
            name: "web-drainers".into(),
            operations: [Operation::Status, Operation::Drain].into(),
            groups: Some(["web".to_owned()].into()),
        };
        let mail_role =
            Role { name: "mail".into(), groups: Some(["mail".to_owned()].into()), ..web_role.clone() };
        let grant =
            |pattern: &str, role: &str| Grant { pattern: pattern.parse().unwrap(), role: role.into() };
        let grants = vec![
            grant("spiffe://example.org/view/*", "viewer"),
            grant("spiffe://example.org/ops/*", "operator"),
            grant("jwt:groups=root", "admin"),
            grant("jwt:web", "web-drainers"),
            grant("jwt:team=mail", "mail"),
        ];
        AccessRules::new(vec![web_role, mail_role], grants).unwrap()
    }

    fn spiffe(path: &str) -> Caller {
        Caller::spiffe(&format!("spiffe://example.org/{path}"))
    }

    fn token(name: &str, claims: &[(&str, &str)]) -> Caller {
        let claims = claims.iter().map(|(key, value)| ((*key).into(), vec![(*value).to_owned()]));
        Caller::jwt(name, claims.collect())
    }

    #[test]
    fn roles_have_the_verbs_of_their_nature_and_no_others() {
        let rules = rules();
        for route in ROUTES {
            let has_all = |caller: &Caller| rules.granted_scope(caller, route.operation) == GrantedScope::All;
            assert_eq!(has_all(&spiffe("view/a")), route.class == OperationClass::Query, "{}", route.name);
            let is_operator_class = matches!(route.class, OperationClass::Query | OperationClass::Operate);
            assert_eq!(has_all(&spiffe("ops/a")), is_operator_class, "{}", route.name);
            assert!(has_all(&token("x", &[("groups", "root")])), "{}", route.name);
            assert!(has_all(&Caller::unix(1000)), "{}", route.name);
            for unknown_caller in
                [spiffe("else/a"), spiffe("ops"), token("ops", &[]), Caller::unauthenticated()]
            {
                assert_eq!(
                    rules.granted_scope(&unknown_caller, route.operation),
                    GrantedScope::Denied,
                    "{} {unknown_caller:?}",
                    route.name
                );
            }
        }
    }

    #[test]
    fn without_a_grant_nobody_may_do_anything() {
        for route in ROUTES {
            assert_eq!(
                AccessRules::default().granted_scope(&spiffe("ops/a"), route.operation),
                GrantedScope::Denied
            );
        }
    }

    #[test]
    fn groups_add_up() {
        let rules = rules();
        let web_scope = rules.granted_scope(&token("web", &[]), Operation::Drain);
        assert!(web_scope.covers("web") && !web_scope.covers("mail") && web_scope.covers(""));
        let both_scopes = rules.granted_scope(&token("web", &[("team", "mail")]), Operation::Drain);
        assert!(both_scopes.covers("web") && both_scopes.covers("mail") && !both_scopes.covers("x"));
        let all_scope = rules.granted_scope(&token("web", &[("groups", "root")]), Operation::Drain);
        assert_eq!(all_scope, GrantedScope::All);
        assert_eq!(rules.granted_scope(&token("web", &[]), Operation::Undrain), GrantedScope::Denied);
    }

    #[test]
    fn a_role_that_there_is_not_is_placed() {
        let grant = |role: &str| Grant { pattern: "jwt:a".parse().unwrap(), role: role.into() };
        assert_eq!(AccessRules::new(vec![], vec![grant("viewer"), grant("veiwer")]), Err(1));
    }

    #[test]
    fn a_role_of_some_groups_never_reaches_the_process() {
        let role = Role {
            name: "odd".into(),
            operations: [Operation::Stop].into(),
            groups: Some(["web".to_owned()].into()),
        };
        let grants = vec![Grant { pattern: "jwt:a".parse().unwrap(), role: "odd".into() }];
        let rules = AccessRules::new(vec![role], grants).unwrap();
        assert_eq!(rules.granted_scope(&token("a", &[]), Operation::Stop), GrantedScope::Denied);
    }
}
