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
        let own = roles.into_iter().map(|role| (role.name.clone(), Arc::new(role)));
        let mut known: BTreeMap<String, Arc<Role>> =
            BUILT_IN.iter().map(|name| ((*name).to_owned(), Arc::new(Role::built_in(name)))).collect();
        known.extend(own);
        let grant = |(place, grant): (usize, Grant)| {
            known.get(&grant.role).map(|role| (grant.pattern, Arc::clone(role))).ok_or(place)
        };
        let grants = grants.into_iter().enumerate().map(grant).collect::<Result<_, _>>()?;
        Ok(Self { grants })
    }

    /// Returns the permission of `caller` for `verb`.
    pub fn granted_scope(&self, caller: &Caller, verb: Operation) -> GrantedScope {
        if caller.is_owner() {
            return GrantedScope::All;
        }
        let mut permit = GrantedScope::Denied;
        for (_, role) in self.grants.iter().filter(|(pattern, _)| pattern.matches(caller)) {
            if role.operations.contains(&verb) {
                permit = permit.union(role.groups.as_ref());
            }
        }
        match permit {
            // Roles with some groups and an operation of the whole process cannot be created; in doubt they
            // grant nothing.
            GrantedScope::Groups(_) if verb.route().scope == OperationScope::Process => GrantedScope::Denied,
            permit => permit,
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
            (Self::Groups(mut held), Some(groups)) => {
                held.extend(groups.iter().cloned());
                Self::Groups(held)
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
        let own = Role {
            name: "web-drainers".into(),
            operations: [Operation::Status, Operation::Drain].into(),
            groups: Some(["web".to_owned()].into()),
        };
        let other = Role { name: "mail".into(), groups: Some(["mail".to_owned()].into()), ..own.clone() };
        let grant =
            |pattern: &str, role: &str| Grant { pattern: pattern.parse().unwrap(), role: role.into() };
        let grants = vec![
            grant("spiffe://example.org/view/*", "viewer"),
            grant("spiffe://example.org/ops/*", "operator"),
            grant("jwt:groups=root", "admin"),
            grant("jwt:web", "web-drainers"),
            grant("jwt:team=mail", "mail"),
        ];
        AccessRules::new(vec![own, other], grants).unwrap()
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
            let all = |caller: &Caller| rules.granted_scope(caller, route.operation) == GrantedScope::All;
            assert_eq!(all(&spiffe("view/a")), route.class == OperationClass::Query, "{}", route.name);
            let operates = matches!(route.class, OperationClass::Query | OperationClass::Operate);
            assert_eq!(all(&spiffe("ops/a")), operates, "{}", route.name);
            assert!(all(&token("x", &[("groups", "root")])), "{}", route.name);
            assert!(all(&Caller::unix(1000)), "{}", route.name);
            for stranger in [spiffe("else/a"), spiffe("ops"), token("ops", &[]), Caller::unauthenticated()] {
                assert_eq!(
                    rules.granted_scope(&stranger, route.operation),
                    GrantedScope::Denied,
                    "{} {stranger:?}",
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
        let one = rules.granted_scope(&token("web", &[]), Operation::Drain);
        assert!(one.covers("web") && !one.covers("mail") && one.covers(""));
        let both = rules.granted_scope(&token("web", &[("team", "mail")]), Operation::Drain);
        assert!(both.covers("web") && both.covers("mail") && !both.covers("x"));
        let all = rules.granted_scope(&token("web", &[("groups", "root")]), Operation::Drain);
        assert_eq!(all, GrantedScope::All);
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
