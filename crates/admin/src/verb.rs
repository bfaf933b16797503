//! What can be asked of a balancer: one named verb for each path, in one table.
//!
//! The table is all there is: a request is found in it, what its caller may do is looked up by its verb, the audit log
//! names the verb, and the index, the OpenAPI document and the tests of who may do what are made of it. A new path is a
//! variant of [`Verb`], its line in [`ROUTES`] and what it does.

use std::fmt;
use std::str::FromStr;

/// One thing that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// What is here.
    Index,
    /// The OpenAPI document.
    Document,
    /// Is it alive?
    Health,
    /// The read model.
    Status,
    /// The Prometheus page.
    Metrics,
    /// The event log.
    Events,
    /// What is known of a group's members.
    Explain,
    /// The object reference of a group.
    Reference,
    /// Numbers of a member are handed in.
    Report,
    /// A member gets nothing new.
    Drain,
    /// A drained member is taken back.
    Undrain,
    /// A member, a listener or the balancing of a group is taken out of use.
    Disable,
    /// It is put back.
    Enable,
    /// A setting of a group is changed.
    Set,
    /// The configuration is read again.
    Reload,
    /// The process ends.
    Stop,
}

/// What kind of thing a verb is: which of the built-in roles have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Changes nothing.
    Look,
    /// Tells the load of a member: for agents.
    Tell,
    /// Day-to-day operation.
    Operate,
    /// Changes what the process is.
    Administer,
}

/// What a verb is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The whole process: a role that is limited to groups cannot have it.
    Process,
    /// All groups, shown as far as the caller may see them.
    Groups,
    /// One group.
    Group,
}

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// `since` and `follow` in the query.
    Since,
    /// A report, as a form or JSON.
    Report,
    /// `{"group", "member"}`.
    Member,
    /// `{"member", "group"}`, `{"listener"}` or `{"balancing"}`.
    Switch,
    /// `{"group", "key", "value"}`.
    Setting,
}

/// What the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// Text for people.
    Text,
    /// The Prometheus text format.
    Page,
    /// An object that the document describes by this name.
    Object(&'static str),
    /// Server-sent events, or an array of them.
    Stream,
    /// Nothing, or what a member is to shed.
    Shed,
}

/// A line of the table.
#[derive(Debug)]
pub struct Route {
    /// What it asks for.
    pub verb: Verb,
    /// Its name in configurations and in the audit log.
    pub name: &'static str,
    /// Which roles have it.
    pub nature: Nature,
    /// What it is about.
    pub reach: Reach,
    /// `GET` (then `HEAD`, too) or `POST`.
    pub method: &'static str,
    /// `{group}` stands for the name of a group.
    pub path: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// What the request carries.
    pub takes: Takes,
    /// Status of the answer if all is well, and what it holds.
    pub gives: (u16, Gives),
}

use Gives::{Object, Page, Shed, Stream, Text};
use Nature::{Administer, Look, Operate, Tell};
use Reach::{Group, Groups, Process};

/// All there is, in the order of [`Verb`].
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    Route { verb: Verb::Index, name: "index", nature: Look, reach: Groups, method: "GET", path: "/", about: "what is here", takes: Takes::Nothing, gives: (200, Text) },
    Route { verb: Verb::Document, name: "document", nature: Look, reach: Groups, method: "GET", path: "/v1/openapi.json", about: "this, as an OpenAPI document", takes: Takes::Nothing, gives: (200, Object("Document")) },
    Route { verb: Verb::Health, name: "health", nature: Look, reach: Groups, method: "GET", path: "/healthz", about: "200 ok; 503 while it stops", takes: Takes::Nothing, gives: (200, Text) },
    Route { verb: Verb::Status, name: "status", nature: Look, reach: Groups, method: "GET", path: "/status", about: "listeners, groups and members", takes: Takes::Nothing, gives: (200, Object("Status")) },
    Route { verb: Verb::Metrics, name: "metrics", nature: Look, reach: Groups, method: "GET", path: "/metrics", about: "Prometheus text format", takes: Takes::Nothing, gives: (200, Page) },
    Route { verb: Verb::Events, name: "events", nature: Look, reach: Groups, method: "GET", path: "/events", about: "what was decided and why, as server-sent events; ?since=SEQ (or Last-Event-ID) resumes, ?follow=0 gives a JSON array", takes: Takes::Since, gives: (200, Stream) },
    Route { verb: Verb::Explain, name: "explain", nature: Look, reach: Group, method: "GET", path: "/v1/groups/{group}/explain", about: "what is known of each member and what the strategy makes of it", takes: Takes::Nothing, gives: (200, Object("GroupExplanation")) },
    Route { verb: Verb::Reference, name: "reference", nature: Look, reach: Group, method: "GET", path: "/v1/groups/{group}/ior", about: "the object reference of a group with an iiop listener", takes: Takes::Nothing, gives: (200, Object("Reference")) },
    Route { verb: Verb::Report, name: "report", nature: Tell, reach: Group, method: "POST", path: "/v1/report", about: "member=10.0.0.1:80&name=cpu&value=0.4, or JSON", takes: Takes::Report, gives: (204, Shed) },
    Route { verb: Verb::Drain, name: "drain", nature: Operate, reach: Group, method: "POST", path: "/v1/drain", about: "a member gets nothing new; group may be left out", takes: Takes::Member, gives: (200, Object("Drained")) },
    Route { verb: Verb::Undrain, name: "undrain", nature: Operate, reach: Group, method: "POST", path: "/v1/undrain", about: "a drained member is taken back", takes: Takes::Member, gives: (200, Object("Undrained")) },
    Route { verb: Verb::Disable, name: "disable", nature: Operate, reach: Group, method: "POST", path: "/v1/disable", about: "a member, a listener or the balancing of a group is taken out of use", takes: Takes::Switch, gives: (200, Object("Changes")) },
    Route { verb: Verb::Enable, name: "enable", nature: Operate, reach: Group, method: "POST", path: "/v1/enable", about: "it is put back", takes: Takes::Switch, gives: (200, Object("Changes")) },
    Route { verb: Verb::Set, name: "set", nature: Operate, reach: Group, method: "POST", path: "/v1/set", about: "a setting of a group, until the next reload", takes: Takes::Setting, gives: (200, Object("Changes")) },
    Route { verb: Verb::Reload, name: "reload", nature: Administer, reach: Process, method: "POST", path: "/v1/reload", about: "the configuration is read again", takes: Takes::Nothing, gives: (200, Object("Changes")) },
    Route { verb: Verb::Stop, name: "stop", nature: Administer, reach: Process, method: "POST", path: "/v1/stop", about: "work in flight may end, then the process does", takes: Takes::Nothing, gives: (202, Object("Stopping")) },
];

impl Verb {
    /// Its line in the table.
    pub fn route(self) -> &'static Route {
        &ROUTES[self as usize]
    }

    /// As configurations and the audit log call it.
    pub fn name(self) -> &'static str {
        self.route().name
    }

    /// Does it change something?
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
    /// The group that `path` names if it is a path of this line: `Some(None)` where the line names none.
    pub(crate) fn fits<'p>(&self, path: &'p str) -> Option<Option<&'p str>> {
        match self.path.split_once("{group}") {
            None => (self.path == path).then_some(None),
            Some((before, after)) => {
                // Names of groups need no escapes.
                let group = path.strip_prefix(before)?.strip_suffix(after)?;
                (!group.is_empty() && !group.contains('/')).then_some(Some(group))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_verbs() {
        for (place, route) in ROUTES.iter().enumerate() {
            assert_eq!(route.verb as usize, place, "{}", route.name);
            assert_eq!(route.name.parse(), Ok(route.verb));
            assert_eq!(route.verb.acts(), route.method == "POST" && route.nature != Tell, "{}", route.name);
        }
        assert!("look".parse::<Verb>().unwrap_err().contains("status, metrics"));
    }

    #[test]
    fn paths_name_groups() {
        let route = Verb::Explain.route();
        assert_eq!(route.fits("/v1/groups/web/explain"), Some(Some("web")));
        for path in ["/v1/groups//explain", "/v1/groups/a/b/explain", "/v1/groups/web", "/v1/groups/web/ior"]
        {
            assert_eq!(route.fits(path), None, "{path}");
        }
        assert_eq!(Verb::Index.route().fits("/"), Some(None));
    }
}
