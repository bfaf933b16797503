//! The operations of a balancer, a lottery daemon and a Supervisor: one named operation for each path, in one
//! table.
//!
//! The table is the single definition. Requests are matched with it, permissions are looked up by operation,
//! and the audit log contains its names. The index, the OpenAPI document and the tests of permissions are
//! generated from it. A new path is a variant of [`Operation`], its line in [`ROUTES`] and its
//! implementation. If several kinds of processes serve a path, it has the same meaning for each.

mod routes;

use std::fmt;
use std::str::FromStr;

use OperationClass::{Administer, Automate, Operate, Query};
pub use routes::ROUTES;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The index of paths.
    Index,
    /// The OpenAPI document.
    Document,
    /// The health of the process.
    Health,
    /// The status of listeners, groups and members.
    Status,
    /// The Prometheus page.
    Metrics,
    /// The event log.
    Events,
    /// The observations of a group's members.
    Explain,
    /// The capacity of a group.
    Capacity,
    /// The recent history of a group and its members.
    Recent,
    /// The number of members that a group should have.
    Scale,
    /// The object reference of a group.
    Reference,
    /// Reports the load of a member.
    Report,
    /// Grants a lease of a member to a client.
    Bind,
    /// Renews a lease, and returns the member to use.
    Renew,
    /// Ends a lease.
    Release,
    /// The holders of a group's leases.
    Leases,
    /// Ends leases by an operator's command.
    EndLeases,
    /// Registers a member of a group, or renews its registration.
    Register,
    /// Removes a registered member.
    Deregister,
    /// Drains a member.
    Drain,
    /// Undrains a member.
    Undrain,
    /// Disables a member, a listener or the balancing of a group.
    Disable,
    /// Enables a member, a listener or the balancing of a group.
    Enable,
    /// Changes a setting of a group.
    Set,
    /// Reloads the configuration.
    Reload,
    /// Hands over to another process.
    Upgrade,
    /// Stops the process.
    Stop,
    /// The status of a lottery daemon.
    Lottery,
    /// The keys of a daemon.
    Keys,
    /// Adds a key to a daemon, which does not seal with it yet.
    KeyAccept,
    /// Makes a daemon seal with one of its keys.
    KeySeal,
    /// Removes a key from a daemon that does not seal with it.
    KeyRetire,
    /// The processes of a Supervisor.
    Processes,
    /// One process of a Supervisor.
    Process,
    /// All processes of a Supervisor, each with its own status.
    ProcessDetails,
    /// Starts a process.
    ProcessStart,
    /// Stops a process permanently.
    ProcessStop,
    /// Restarts a process.
    ProcessRestart,
    /// Makes a process reload its configuration.
    ProcessReload,
    /// Stops the Supervisor.
    Shutdown,
    /// The web pages.
    Dashboard,
}

/// The kinds of processes that serve operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    /// A load balancer: `plimsoll up`.
    Balancer,
    /// A lottery daemon: `plimsoll lottery`.
    Lottery,
    /// A Supervisor: `plimsoll supervise`.
    Supervisor,
}

impl ProcessKind {
    /// Returns the name in documents and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Balancer => "balancer",
            Self::Lottery => "lottery daemon",
            Self::Supervisor => "Supervisor",
        }
    }
}

/// The kind of an operation, which determines its built-in roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationClass {
    /// An operation that changes nothing.
    Query,
    /// An operation of programs rather than people: agents report loads, clients request leases.
    Automate,
    /// Day-to-day operation.
    Operate,
    /// A change of the process itself.
    Administer,
}

/// The scope of an operation. Groups stand for the services of a lottery daemon, and for the processes of a
/// Supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationScope {
    /// The whole process: a role that is limited to groups cannot have it.
    Process,
    /// All groups, filtered by the caller's permissions.
    Groups,
    /// One group.
    Group,
}

/// The contents of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Nothing.
    Nothing,
    /// `group` in the query, once for each requested group.
    Groups,
    /// `since` and `follow` in the query.
    Since,
    /// A report, as a form or JSON.
    Report,
    /// `{"key", "lease_seconds", "exclude"}`, or nothing.
    LeaseRequest,
    /// `{"lease_seconds", "exclude"}`, or nothing.
    Renewal,
    /// `{"member", "from"}`, or nothing.
    EndLeases,
    /// `{"capacity", "max_connections", "ttl_seconds", "draining"}`, or nothing.
    Registration,
    /// `{"group", "member"}`.
    Member,
    /// `{"member", "group"}`, `{"listener"}` or `{"balancing"}`.
    Switch,
    /// `{"group", "key", "value"}`.
    Setting,
    /// `{"id", "secret"}`: a key of the lottery.
    Secret,
    /// `{"id"}`: the number of a key.
    KeyId,
    /// `{"binary", "timeout_seconds"}`, or nothing.
    Upgrade,
    /// `children` in the query.
    ShutdownMode,
}

/// The contents of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// Text for people.
    Text,
    /// The Prometheus text format.
    Page,
    /// An HTML page.
    Html,
    /// An object with this name in the document.
    Object(&'static str),
    /// Server-sent events, or an array of them.
    Stream,
    /// Nothing, or the share of sessions to shed.
    Shed,
    /// Nothing.
    Nothing,
}

/// A line of the table.
#[derive(Debug)]
pub struct ApiRoute {
    /// The operation.
    pub operation: Operation,
    /// Its name in configurations and in the audit log.
    pub name: &'static str,
    /// The kind, which determines its built-in roles.
    pub class: OperationClass,
    /// The scope.
    pub scope: OperationScope,
    /// The kinds of processes that serve it.
    pub served_by: &'static [ProcessKind],
    /// `GET` (which implies `HEAD`), `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// The path. `{group}` stands for the name of a group, `{process}` for that of a process, `{lease}` for
    /// the number of a lease, and `{member}` for the name of a member.
    pub path: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The contents of the request.
    pub request: RequestKind,
    /// The status of a successful response, and its contents.
    pub response: (u16, ResponseKind),
}

impl Operation {
    /// Returns its line in the table.
    pub fn route(self) -> &'static ApiRoute {
        &ROUTES[self as usize]
    }

    /// Returns its name in configurations and the audit log.
    pub fn name(self) -> &'static str {
        self.route().name
    }

    /// Returns the operation as part of a message to a caller without the permission.
    pub(crate) fn description(self) -> String {
        match self.route().class {
            Query => format!("see {self}"),
            Automate | Operate | Administer => self.to_string(),
        }
    }

    /// Returns `true` if the operation changes something.
    pub fn changes_state(self) -> bool {
        matches!(self.route().class, Operate | Administer)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let matching_routes = ROUTES.iter().find(|route| route.name == text);
        matching_routes.map(|route| route.operation).ok_or_else(|| {
            let names: Vec<&str> = ROUTES.iter().map(|route| route.name).collect();
            format!("is not a verb; there are: {}", names.join(", "))
        })
    }
}

impl ApiRoute {
    /// Returns `true` if that kind of process serves it.
    pub fn is_served_by(&self, process_kind: ProcessKind) -> bool {
        self.served_by.contains(&process_kind)
    }

    /// Returns the placeholders in the path: `group`, `process`, `lease`.
    pub fn placeholders(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Returns the first placeholder: the object of the operation.
    pub fn object_placeholder(&self) -> Option<&'static str> {
        self.placeholders().next()
    }

    /// Matches `path` with the line, and returns the values of its placeholders.
    pub(crate) fn match_path<'p>(&self, path: &'p str) -> Option<PathNames<'p>> {
        let mut names = PathNames::default();
        let (mut route_segments, mut path_segments) = (self.path.split('/'), path.split('/'));
        loop {
            match (route_segments.next(), path_segments.next()) {
                (None, None) => return Some(names),
                // These names contain no characters that need escapes.
                (Some("{lease}"), Some(segment)) if !segment.is_empty() => names.lease = Some(segment),
                (Some("{member}"), Some(segment)) if !segment.is_empty() => names.member = Some(segment),
                (Some(pattern), Some(segment)) if pattern.starts_with('{') && !segment.is_empty() => {
                    names.object = Some(segment);
                }
                (Some(pattern), Some(segment)) if pattern == segment => {}
                _ => return None,
            }
        }
    }
}

/// The names in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathNames<'p> {
    /// A group, or a process.
    pub(crate) object: Option<&'p str>,
    /// The number of a lease.
    pub(crate) lease: Option<&'p str>,
    /// A member of the group.
    pub(crate) member: Option<&'p str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_verbs() {
        for (index, route) in ROUTES.iter().enumerate() {
            assert_eq!(route.operation as usize, index, "{}", route.name);
            assert_eq!(route.name.parse(), Ok(route.operation));
            assert_eq!(
                route.operation.changes_state(),
                route.method != "GET" && route.class != Automate,
                "{}",
                route.name
            );
        }
        assert!("look".parse::<Operation>().unwrap_err().contains("status, metrics"));
    }

    #[test]
    fn paths_name_groups() {
        let with_object = |name| PathNames { object: Some(name), lease: None, member: None };
        let route = Operation::Explain.route();
        assert_eq!(route.match_path("/v1/groups/web/explain"), Some(with_object("web")));
        for path in ["/v1/groups//explain", "/v1/groups/a/b/explain", "/v1/groups/web", "/v1/groups/web/ior"]
        {
            assert_eq!(route.match_path(path), None, "{path}");
        }
        assert_eq!(Operation::Index.route().match_path("/"), Some(PathNames::default()));
        let lease = PathNames { object: Some("web"), lease: Some("0a"), member: None };
        assert_eq!(Operation::Release.route().match_path("/v1/groups/web/bind/0a"), Some(lease));
        assert_eq!(Operation::Bind.route().match_path("/v1/groups/web/bind"), Some(with_object("web")));
        for path in ["/v1/groups/web/bind/", "/v1/groups/web/bind/0a/1", "/v1/groups//bind/0a"] {
            assert_eq!(Operation::Renew.route().match_path(path), None, "{path}");
        }
        let member = PathNames { object: Some("web"), lease: None, member: Some("[::1]:80") };
        assert_eq!(Operation::Register.route().match_path("/v1/groups/web/members/[::1]:80"), Some(member));
        let matching_routes = |path: &'static str| {
            let match_route = |route: &'static ApiRoute| Some((route.name, route.match_path(path)?));
            ROUTES.iter().filter_map(match_route).collect::<Vec<_>>()
        };
        assert_eq!(matching_routes("/v1/processes"), [("processes", PathNames::default())]);
        assert_eq!(matching_routes("/v1/processes/web"), [("process", with_object("web"))]);
        assert_eq!(matching_routes("/v1/processes/stop/stop"), [("process-stop", with_object("stop"))]);
        for path in ["", "/v1/processes/", "/v1/processes//stop", "/v1/processes/a/b/stop", "/v1/status/"] {
            assert!(matching_routes(path).is_empty(), "{path}");
        }
    }

    #[test]
    fn who_serves_a_path_is_said_and_paths_are_not_two_things() {
        for route in ROUTES {
            assert!(!route.served_by.is_empty(), "{}", route.name);
            let is_same_route = |other: &&ApiRoute| other.method == route.method && other.path == route.path;
            assert_eq!(ROUTES.iter().filter(is_same_route).count(), 1, "{}", route.path);
            assert_eq!(route.object_placeholder().is_some(), route.path.contains('{'), "{}", route.path);
        }
        assert_eq!(Operation::Process.route().object_placeholder(), Some("process"));
        assert_eq!(Operation::Process.route().served_by, [ProcessKind::Supervisor]);
    }
}
