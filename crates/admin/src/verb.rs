//! The operations of a balancer, a lottery daemon and a Supervisor: one named operation for each path, in one
//! table.
//!
//! The table is the single definition. Requests are matched with it, permissions are looked up by operation,
//! and the audit log contains its names. The index, the OpenAPI document and the tests of permissions are
//! generated from it. A new path is a variant of [`Verb`], its line in [`ROUTES`] and its implementation. If
//! several kinds of processes serve a path, it has the same meaning for each.

use std::fmt;
use std::str::FromStr;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
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
    Household,
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
pub enum By {
    /// A load balancer: `plimsoll up`.
    Balancer,
    /// A lottery daemon: `plimsoll lottery`.
    Lottery,
    /// A Supervisor: `plimsoll supervise`.
    Supervisor,
}

impl By {
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
pub enum Nature {
    /// An operation that changes nothing.
    Look,
    /// An operation of programs rather than people: agents report loads, clients request leases.
    Tell,
    /// Day-to-day operation.
    Operate,
    /// A change of the process itself.
    Administer,
}

/// The scope of an operation. Groups stand for the services of a lottery daemon, and for the processes of a
/// Supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The whole process: a role that is limited to groups cannot have it.
    Process,
    /// All groups, filtered by the caller's permissions.
    Groups,
    /// One group.
    Group,
}

/// The contents of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// `group` in the query, once for each requested group.
    Groups,
    /// `since` and `follow` in the query.
    Since,
    /// A report, as a form or JSON.
    Report,
    /// `{"key", "lease_seconds", "exclude"}`, or nothing.
    Wish,
    /// `{"lease_seconds", "exclude"}`, or nothing.
    Renewal,
    /// `{"member", "from"}`, or nothing.
    Lessees,
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
    Children,
}

/// The contents of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
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
pub struct Route {
    /// The operation.
    pub verb: Verb,
    /// Its name in configurations and in the audit log.
    pub name: &'static str,
    /// The kind, which determines its built-in roles.
    pub nature: Nature,
    /// The scope.
    pub reach: Reach,
    /// The kinds of processes that serve it.
    pub by: &'static [By],
    /// `GET` (which implies `HEAD`), `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// The path. `{group}` stands for the name of a group, `{process}` for that of a process, `{lease}` for
    /// the number of a lease, and `{member}` for the name of a member.
    pub path: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The contents of the request.
    pub takes: Takes,
    /// The status of a successful response, and its contents.
    pub gives: (u16, Gives),
}

use Gives::{Html, Object, Page, Shed, Stream, Text};
use Nature::{Administer, Look, Operate, Tell};
use Reach::{Group, Groups, Process};

const ALL: &[By] = &[By::Balancer, By::Lottery, By::Supervisor];
const BALANCER: &[By] = &[By::Balancer];
const CARRIERS: &[By] = &[By::Balancer, By::Lottery];
const LOTTERY: &[By] = &[By::Lottery];
const SUPERVISOR: &[By] = &[By::Supervisor];

/// All operations, in the order of [`Verb`].
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    Route { verb: Verb::Index, name: "index", nature: Look, reach: Groups, by: ALL, method: "GET", path: "/", about: "what is here", takes: Takes::Nothing, gives: (200, Text) },
    Route { verb: Verb::Document, name: "document", nature: Look, reach: Groups, by: ALL, method: "GET", path: "/v1/openapi.json", about: "this, as an OpenAPI document", takes: Takes::Nothing, gives: (200, Object("Document")) },
    Route { verb: Verb::Health, name: "health", nature: Look, reach: Groups, by: ALL, method: "GET", path: "/healthz", about: "200 ok; 503 while it stops; ?group=NAME also 503 where the group has no usable member or refuses requests", takes: Takes::Groups, gives: (200, Text) },
    Route { verb: Verb::Status, name: "status", nature: Look, reach: Groups, by: BALANCER, method: "GET", path: "/status", about: "listeners, groups and members", takes: Takes::Nothing, gives: (200, Object("Status")) },
    Route { verb: Verb::Metrics, name: "metrics", nature: Look, reach: Groups, by: ALL, method: "GET", path: "/metrics", about: "Prometheus text format", takes: Takes::Nothing, gives: (200, Page) },
    Route { verb: Verb::Events, name: "events", nature: Look, reach: Groups, by: BALANCER, method: "GET", path: "/events", about: "what was decided and why, as server-sent events; ?since=SEQ (or Last-Event-ID) resumes, ?follow=0 gives a JSON array", takes: Takes::Since, gives: (200, Stream) },
    Route { verb: Verb::Explain, name: "explain", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/explain", about: "what is known of each member and what the strategy makes of it", takes: Takes::Nothing, gives: (200, Object("GroupExplanation")) },
    Route { verb: Verb::Capacity, name: "capacity", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/capacity", about: "how much the group can carry, how far below that it is, what is predicted and how good that was", takes: Takes::Nothing, gives: (200, Object("LoadLine")) },
    Route { verb: Verb::Recent, name: "recent", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/recent", about: "what the group did in the last ten seconds, and each member of late: rates, times, marks", takes: Takes::Nothing, gives: (200, Object("Recent")) },
    Route { verb: Verb::Scale, name: "scale", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/scale", about: "how many members the group is to have, why, and what is done about it", takes: Takes::Nothing, gives: (200, Object("Scaler")) },
    Route { verb: Verb::Reference, name: "reference", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/ior", about: "the object reference of a group with an iiop listener", takes: Takes::Nothing, gives: (200, Object("Reference")) },
    Route { verb: Verb::Report, name: "report", nature: Tell, reach: Group, by: CARRIERS, method: "POST", path: "/v1/report", about: "member=10.0.0.1:80&name=cpu&value=0.4, or JSON; a lottery daemon needs no member", takes: Takes::Report, gives: (204, Shed) },
    Route { verb: Verb::Bind, name: "bind", nature: Tell, reach: Group, by: BALANCER, method: "POST", path: "/v1/groups/{group}/bind", about: "a member for a client that reaches it by itself, and a lease of it", takes: Takes::Wish, gives: (200, Object("Lease")) },
    Route { verb: Verb::Renew, name: "renew", nature: Tell, reach: Group, by: BALANCER, method: "POST", path: "/v1/groups/{group}/bind/{lease}", about: "a lease is prolonged; the answer says whether its client stays or goes to another member", takes: Takes::Renewal, gives: (200, Object("Lease")) },
    Route { verb: Verb::Release, name: "release", nature: Tell, reach: Group, by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/bind/{lease}", about: "a lease ends before its time", takes: Takes::Nothing, gives: (204, Gives::Nothing) },
    Route { verb: Verb::Leases, name: "leases", nature: Look, reach: Group, by: BALANCER, method: "GET", path: "/v1/groups/{group}/leases", about: "who has leases of the group: of which member, from where, how many", takes: Takes::Nothing, gives: (200, Object("Leases")) },
    Route { verb: Verb::EndLeases, name: "end-leases", nature: Operate, reach: Group, by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/leases", about: "leases end: of a member, of clients at an address, or all of the group", takes: Takes::Lessees, gives: (200, Object("LeasesEnded")) },
    Route { verb: Verb::Register, name: "register", nature: Tell, reach: Group, by: BALANCER, method: "PUT", path: "/v1/groups/{group}/members/{member}", about: "a member joins the group, or says that it is still there: with ttl_seconds it goes if that is not said again", takes: Takes::Registration, gives: (200, Object("Registered")) },
    Route { verb: Verb::Deregister, name: "deregister", nature: Tell, reach: Group, by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/members/{member}", about: "a member that was registered leaves the group", takes: Takes::Nothing, gives: (200, Object("Deregistered")) },
    Route { verb: Verb::Drain, name: "drain", nature: Operate, reach: Group, by: CARRIERS, method: "POST", path: "/v1/drain", about: "a member gets nothing new; group may be left out. A lottery daemon is drained as a whole, and takes no body", takes: Takes::Member, gives: (200, Object("Drained")) },
    Route { verb: Verb::Undrain, name: "undrain", nature: Operate, reach: Group, by: CARRIERS, method: "POST", path: "/v1/undrain", about: "a drained member, or daemon, is taken back", takes: Takes::Member, gives: (200, Object("Undrained")) },
    Route { verb: Verb::Disable, name: "disable", nature: Operate, reach: Group, by: CARRIERS, method: "POST", path: "/v1/disable", about: "a member, a listener or the balancing of a group is taken out of use; of a lottery daemon one of its services, or without a body all", takes: Takes::Switch, gives: (200, Object("Changes")) },
    Route { verb: Verb::Enable, name: "enable", nature: Operate, reach: Group, by: CARRIERS, method: "POST", path: "/v1/enable", about: "it is put back", takes: Takes::Switch, gives: (200, Object("Changes")) },
    Route { verb: Verb::Set, name: "set", nature: Operate, reach: Group, by: CARRIERS, method: "POST", path: "/v1/set", about: "a setting of a group, until the next reload; of a lottery daemon ttl, slow_start or rate, and of a service (group) its capacity", takes: Takes::Setting, gives: (200, Object("Changes")) },
    Route { verb: Verb::Reload, name: "reload", nature: Administer, reach: Process, by: ALL, method: "POST", path: "/v1/reload", about: "the configuration is read again", takes: Takes::Nothing, gives: (200, Object("Changes")) },
    Route { verb: Verb::Upgrade, name: "upgrade", nature: Administer, reach: Process, by: BALANCER, method: "POST", path: "/v1/upgrade", about: "a new process takes over the sockets and all that is known, and this one ends when its connections have; by the control socket another binary may be named", takes: Takes::Upgrade, gives: (200, Object("Upgraded")) },
    Route { verb: Verb::Stop, name: "stop", nature: Administer, reach: Process, by: CARRIERS, method: "POST", path: "/v1/stop", about: "work in flight may end, then the process does", takes: Takes::Nothing, gives: (202, Object("Stopping")) },
    Route { verb: Verb::Lottery, name: "lottery", nature: Look, reach: Groups, by: LOTTERY, method: "GET", path: "/v1/lottery", about: "services, states and loads, other members, what waits, what is counted", takes: Takes::Nothing, gives: (200, Object("Daemon")) },
    Route { verb: Verb::Keys, name: "keys", nature: Look, reach: Process, by: LOTTERY, method: "GET", path: "/v1/keys", about: "the numbers of the daemon's keys", takes: Takes::Nothing, gives: (200, Object("Keys")) },
    Route { verb: Verb::KeyAccept, name: "key-accept", nature: Administer, reach: Process, by: LOTTERY, method: "POST", path: "/v1/keys/accept", about: "a further key counts, and is not sent with yet", takes: Takes::Secret, gives: (200, Object("Keys")) },
    Route { verb: Verb::KeySeal, name: "key-seal", nature: Administer, reach: Process, by: LOTTERY, method: "POST", path: "/v1/keys/seal", about: "a key that counts is sent with", takes: Takes::KeyId, gives: (200, Object("Keys")) },
    Route { verb: Verb::KeyRetire, name: "key-retire", nature: Administer, reach: Process, by: LOTTERY, method: "POST", path: "/v1/keys/retire", about: "a key that is not sent with counts no more", takes: Takes::KeyId, gives: (200, Object("Keys")) },
    Route { verb: Verb::Processes, name: "processes", nature: Look, reach: Groups, by: SUPERVISOR, method: "GET", path: "/v1/processes", about: "all processes", takes: Takes::Nothing, gives: (200, Object("Household")) },
    Route { verb: Verb::Process, name: "process", nature: Look, reach: Group, by: SUPERVISOR, method: "GET", path: "/v1/processes/{process}", about: "one process", takes: Takes::Nothing, gives: (200, Object("Process")) },
    Route { verb: Verb::Household, name: "household", nature: Look, reach: Groups, by: SUPERVISOR, method: "GET", path: "/v1/status", about: "all processes, with what each says of itself", takes: Takes::Nothing, gives: (200, Object("Household")) },
    Route { verb: Verb::ProcessStart, name: "process-start", nature: Operate, reach: Group, by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/start", about: "start it, unless it runs", takes: Takes::Nothing, gives: (200, Object("Process")) },
    Route { verb: Verb::ProcessStop, name: "process-stop", nature: Operate, reach: Group, by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/stop", about: "stop it, for good", takes: Takes::Nothing, gives: (200, Object("Process")) },
    Route { verb: Verb::ProcessRestart, name: "process-restart", nature: Operate, reach: Group, by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/restart", about: "stop it and start it again", takes: Takes::Nothing, gives: (200, Object("Process")) },
    Route { verb: Verb::ProcessReload, name: "process-reload", nature: Operate, reach: Group, by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/reload", about: "have it read its configuration again", takes: Takes::Nothing, gives: (200, Object("Process")) },
    Route { verb: Verb::Shutdown, name: "shutdown", nature: Administer, reach: Process, by: SUPERVISOR, method: "POST", path: "/v1/shutdown", about: "end the Supervisor; ?children=stop (the default) or ?children=leave", takes: Takes::Children, gives: (202, Object("Ending")) },
    Route { verb: Verb::Dashboard, name: "dashboard", nature: Look, reach: Groups, by: ALL, method: "GET", path: "/dashboard", about: "pages for people, with all below it; what they show and do takes the verbs of that", takes: Takes::Nothing, gives: (200, Html) },
];

impl Verb {
    /// Returns its line in the table.
    pub fn route(self) -> &'static Route {
        &ROUTES[self as usize]
    }

    /// Returns its name in configurations and the audit log.
    pub fn name(self) -> &'static str {
        self.route().name
    }

    /// Returns the operation as part of a message to a caller without the permission.
    pub(crate) fn deed(self) -> String {
        match self.route().nature {
            Look => format!("see {self}"),
            Tell | Operate | Administer => self.to_string(),
        }
    }

    /// Returns `true` if the operation changes something.
    pub fn acts(self) -> bool {
        matches!(self.route().nature, Operate | Administer)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ROUTES.iter().find(|route| route.name == text);
        found.map(|route| route.verb).ok_or_else(|| {
            let names: Vec<&str> = ROUTES.iter().map(|route| route.name).collect();
            format!("is not a verb; there are: {}", names.join(", "))
        })
    }
}

impl Route {
    /// Returns `true` if that kind of process serves it.
    pub fn served(&self, by: By) -> bool {
        self.by.contains(&by)
    }

    /// Returns the placeholders in the path: `group`, `process`, `lease`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Returns the first placeholder: the object of the operation.
    pub fn named(&self) -> Option<&'static str> {
        self.names().next()
    }

    /// Matches `path` with the line, and returns the values of its placeholders.
    pub(crate) fn fits<'p>(&self, path: &'p str) -> Option<Named<'p>> {
        let mut named = Named::default();
        let (mut own, mut theirs) = (self.path.split('/'), path.split('/'));
        loop {
            match (own.next(), theirs.next()) {
                (None, None) => return Some(named),
                // These names contain no characters that need escapes.
                (Some("{lease}"), Some(word)) if !word.is_empty() => named.lease = Some(word),
                (Some("{member}"), Some(word)) if !word.is_empty() => named.member = Some(word),
                (Some(part), Some(word)) if part.starts_with('{') && !word.is_empty() => {
                    named.of = Some(word);
                }
                (Some(part), Some(word)) if part == word => {}
                _ => return None,
            }
        }
    }
}

/// The names in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named<'p> {
    /// A group, or a process.
    pub(crate) of: Option<&'p str>,
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
        for (place, route) in ROUTES.iter().enumerate() {
            assert_eq!(route.verb as usize, place, "{}", route.name);
            assert_eq!(route.name.parse(), Ok(route.verb));
            assert_eq!(route.verb.acts(), route.method != "GET" && route.nature != Tell, "{}", route.name);
        }
        assert!("look".parse::<Verb>().unwrap_err().contains("status, metrics"));
    }

    #[test]
    fn paths_name_groups() {
        let of = |name| Named { of: Some(name), lease: None, member: None };
        let route = Verb::Explain.route();
        assert_eq!(route.fits("/v1/groups/web/explain"), Some(of("web")));
        for path in ["/v1/groups//explain", "/v1/groups/a/b/explain", "/v1/groups/web", "/v1/groups/web/ior"]
        {
            assert_eq!(route.fits(path), None, "{path}");
        }
        assert_eq!(Verb::Index.route().fits("/"), Some(Named::default()));
        let lease = Named { of: Some("web"), lease: Some("0a"), member: None };
        assert_eq!(Verb::Release.route().fits("/v1/groups/web/bind/0a"), Some(lease));
        assert_eq!(Verb::Bind.route().fits("/v1/groups/web/bind"), Some(of("web")));
        for path in ["/v1/groups/web/bind/", "/v1/groups/web/bind/0a/1", "/v1/groups//bind/0a"] {
            assert_eq!(Verb::Renew.route().fits(path), None, "{path}");
        }
        let member = Named { of: Some("web"), lease: None, member: Some("[::1]:80") };
        assert_eq!(Verb::Register.route().fits("/v1/groups/web/members/[::1]:80"), Some(member));
        let found = |path: &'static str| {
            let fits = |route: &'static Route| Some((route.name, route.fits(path)?));
            ROUTES.iter().filter_map(fits).collect::<Vec<_>>()
        };
        assert_eq!(found("/v1/processes"), [("processes", Named::default())]);
        assert_eq!(found("/v1/processes/web"), [("process", of("web"))]);
        assert_eq!(found("/v1/processes/stop/stop"), [("process-stop", of("stop"))]);
        for path in ["", "/v1/processes/", "/v1/processes//stop", "/v1/processes/a/b/stop", "/v1/status/"] {
            assert!(found(path).is_empty(), "{path}");
        }
    }

    #[test]
    fn who_serves_a_path_is_said_and_paths_are_not_two_things() {
        for route in ROUTES {
            assert!(!route.by.is_empty(), "{}", route.name);
            let same = |other: &&Route| other.method == route.method && other.path == route.path;
            assert_eq!(ROUTES.iter().filter(same).count(), 1, "{}", route.path);
            assert_eq!(route.named().is_some(), route.path.contains('{'), "{}", route.path);
        }
        assert_eq!(Verb::Process.route().named(), Some("process"));
        assert_eq!(Verb::Process.route().by, [By::Supervisor]);
    }
}
