//! `[[listener.route]]`: the group, or the balancer's own response, for requests that meet conditions.

mod check;
mod lower;
mod pattern;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use check::{check, groups};
pub(super) use lower::of_listener;
pub use pattern::{ContentType, FieldText, MethodName, PathPatternText, RouteHost, RoutePath, RouteRegex};

use super::{ConfigName, FilePath, HostName, ListenerConfig};

/// A route of a listener: requests that meet all of its conditions are handled by it. If several routes match
/// a request, the most specific one takes it: an exact host before a wildcard, an exact path before the
/// longest prefix before a regular expression, then a method, then the number of headers and cookies, then
/// the number of query parameters, then the order in the file. This is the precedence of Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RouteConfig {
    /// Name in logs, metrics and events, unique in the listener. Default: made of host and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ConfigName>,

    /// Hosts, any of which matches: `api.example.org`, or `*.example.org` for all names below it. Without it
    /// every host matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<OneOrMany<RouteHost>>,

    /// Path prefixes by whole segments, any of which matches: `/v1` and `/v1/` match `/v1` and `/v1/x`, not
    /// `/v10`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<OneOrMany<RoutePath>>,

    /// Paths that match as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_exact: Option<OneOrMany<RoutePath>>,

    /// Regular expressions for the whole path, any of which matches. Matching takes linear time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<OneOrMany<PathPatternText>>,

    /// Methods, any of which matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<OneOrMany<MethodName>>,

    /// Headers that must all match, by name: a value, `{ regex = "…" }` for the whole value, or
    /// `{ present = true }`. If a request has a header several times, its first value counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, FieldMatch>,

    /// Query parameters that must all match, by name, in the same form.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, FieldMatch>,

    /// Cookies that must all match, by name, in the same form.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cookies: BTreeMap<String, FieldMatch>,

    /// Group that serves the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<ConfigName>,

    /// Groups that share the requests by weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<SplitGroup>,

    /// Redirects the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<RedirectConfig>,

    /// Responds without a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub respond: Option<RespondConfig>,
}

/// One value, or a list of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One value.
    One(T),
    /// A list of values.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns the values.
    pub fn values(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

/// A condition on the value of a header, a query parameter or a cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FieldMatch {
    /// This value.
    Exact(FieldText),
    /// Another test.
    Test(FieldTestConfig),
}

/// A test of the value of a header, a query parameter or a cookie.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1, "x-noun" = "test"))]
pub struct FieldTestConfig {
    /// Regular expression for the whole value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<RouteRegex>,

    /// `true`: any value, also an empty one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// A group with its share of a route's requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitGroup {
    /// Name of the group.
    pub group: ConfigName,

    /// Weight: the group's share is its weight divided by the sum of all. 0 for no requests.
    #[schemars(range(max = 1_000_000))]
    #[serde(default = "super::root::count::<1>")]
    pub weight: usize,
}

/// A redirect to the request's own URL with other parts. The query is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedirectConfig {
    /// Status: 301, 302, 303, 307 or 308.
    #[schemars(range(max = 999))]
    pub status: usize,

    /// Scheme of the new URL. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<UrlScheme>,

    /// Host of the new URL. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostName>,

    /// Port of the new URL. Default: that of the request, or none if `scheme` or `host` is given.
    #[schemars(range(min = 1, max = 65_535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<usize>,

    /// Path of the new URL. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<RoutePath>,

    /// Replaces the prefix that the route's `path` matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<RoutePath>,
}

impl Default for RedirectConfig {
    fn default() -> Self {
        Self { status: 302, scheme: None, host: None, port: None, path: None, prefix: None }
    }
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UrlScheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl UrlScheme {
    /// Returns the scheme as written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A response of the balancer's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RespondConfig {
    /// Status, 200 to 599.
    #[schemars(range(min = 200, max = 599))]
    pub status: usize,

    /// Body as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,

    /// File with the body, at most 1 MiB. It is read at start and with each reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePath>,

    /// Type of the body.
    pub content_type: ContentType,
}

impl Default for RespondConfig {
    fn default() -> Self {
        let content_type = ContentType("text/plain; charset=utf-8".to_owned());
        Self { status: 200, body: None, file: None, content_type }
    }
}

impl RouteConfig {
    /// Returns the groups that it leads to.
    pub fn target_groups(&self) -> impl Iterator<Item = &ConfigName> {
        self.group.iter().chain(self.groups.iter().map(|split| &split.group))
    }
}

impl ListenerConfig {
    /// Returns the group of the listener: its own, or else the first that a route or a server name leads to.
    /// `None` if all of its requests are answered without a member.
    pub fn main_group(&self) -> Option<&ConfigName> {
        let named = self.tls.iter().flat_map(|tls| &tls.names).map(|server_name| &server_name.group);
        self.group
            .as_ref()
            .or_else(|| self.routes.iter().flat_map(RouteConfig::target_groups).chain(named).next())
    }

    /// Returns the group of the listener for messages: empty if there is none.
    pub fn main_group_name(&self) -> &str {
        self.main_group().map_or("", |group| &group.0)
    }
}
