//! A compiled table of HTTP routes: which rule takes a request.
//!
//! The rules and their precedence are those of the Gateway API's HTTPRoute
//! (<https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule>). Of all rules that match a request, the
//! first by these criteria takes it, each deciding only where the ones before it are equal:
//!
//! 1. an exact host before a wildcard, a longer wildcard before a shorter, any wildcard before no host;
//! 2. an exact path, then the longest prefix, then a regular expression, then the prefix `/`, which is the
//!    same as no path;
//! 3. a rule with a method before one without;
//! 4. more conditions on headers and cookies;
//! 5. more conditions on queries;
//! 6. the order of writing.
//!
//! A rule with several hosts or paths counts by the best pair that matches. The precedence is over all rules
//! that match: if no rule of the most specific host matches, those of less specific hosts have their turn.
//!
//! A table files each rule once for each pair of its hosts and paths. Exact hosts, wildcards, exact paths and
//! prefixes are found by hash, and lengths that no rule has are not tried. Regular expressions of a host, and
//! the rules of one host and path, are tried one after the other.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use self::build::{HostNode, Routing, RuleRange};
use self::text::{is_suffix_of_host, prefix_text, strip_port};
use self::text_index::HOST_SEED;

mod build;
mod conflict;
mod explain;
mod length_set;
mod pattern;
mod text;
mod text_index;

pub use self::conflict::RouteConflict;
pub use self::explain::{Mismatch, PrecedingRoute, RouteExplanation, TakenRoute};
pub use self::pattern::{MAX_AUTOMATON_BYTES, PathRegex, PatternError, ValueRegex};

/// The conditions of a route; all must hold. An empty list holds always.
///
/// [`RouteTable::new`] brings them into a normal form: hosts and names of headers in lower case, hosts
/// without a final dot, prefixes without a final slash, each list sorted and without repetition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteRule {
    /// The hosts, of which one must match.
    pub hosts: Vec<HostPattern>,
    /// The paths, of which one must match.
    pub paths: Vec<PathPattern>,
    /// The methods, of which one must be the request's; upper and lower case differ.
    pub methods: Vec<Box<str>>,
    /// Conditions on headers, whose names are compared without case.
    pub headers: Vec<FieldCondition>,
    /// Conditions on parameters of the query.
    pub queries: Vec<FieldCondition>,
    /// Conditions on cookies.
    pub cookies: Vec<FieldCondition>,
}

/// A set of hosts, compared without case. It has no port: a pattern with one matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPattern {
    /// One host, such as `example.org` or `[::1]`.
    Exact(Box<str>),
    /// The part behind the `*` of a wildcard: `.example.org` for `*.example.org`. At least one label comes
    /// before it. A first dot that is missing is added.
    Suffix(Box<str>),
}

/// A set of paths, compared byte by byte, as they come: nothing is decoded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathPattern {
    /// A prefix by whole segments. `/v1` and `/v1/` are the same; they match `/v1`, `/v1/` and `/v1/x`, not
    /// `/v10`. The prefix `/` matches everything, even `*` and an empty path.
    Prefix(Box<str>),
    /// One path.
    Exact(Box<str>),
    /// The paths that a regular expression matches from end to end.
    Regex(PathRegex),
}

/// A condition on a header, a parameter of the query or a cookie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldCondition {
    /// The field's name.
    pub name: Box<str>,
    /// The condition on its value. It fails if the field is absent.
    pub test: FieldTest,
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldTest {
    /// Any value, also an empty one.
    Present,
    /// This value, byte by byte.
    Exact(Box<str>),
    /// A value that a regular expression matches from end to end.
    Regex(ValueRegex),
}

/// The parts of a request that rules look at. None has to be valid UTF-8.
pub trait RequestFields {
    /// Returns the host, with or without a port and a final dot; empty if there is none.
    fn host(&self) -> &[u8];
    /// Returns the path without the query.
    fn path(&self) -> &[u8];
    /// Returns the method.
    fn method(&self) -> &[u8];
    /// Returns the value of a header. The name is in lower case and to be compared without case.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// Returns the decoded value of a parameter of the query.
    fn query(&self, name: &str) -> Option<Cow<'_, [u8]>>;
    /// Returns the value of a cookie.
    fn cookie(&self, name: &str) -> Option<&[u8]>;
}

/// The compiled rules. A route is named by its index among the rules given.
#[derive(Clone, Debug)]
pub struct RouteTable {
    /// The rules in normal form.
    rules: Vec<RouteRule>,
    routing: Routing,
}

impl RouteTable {
    /// Compiles rules, in time O(n log n) in the number of all pairs of a rule's hosts and paths.
    pub fn new(mut rules: Vec<RouteRule>) -> Self {
        rules.iter_mut().for_each(RouteRule::normalise);
        let routing = Routing::new(&rules);
        Self { rules, routing }
    }

    /// Returns the index of the rule that takes a request. Takes no lock and allocates nothing.
    pub fn find(&self, request: &impl RequestFields) -> Option<usize> {
        self.find_with_path(request, request.path())
    }

    /// Returns the rule that would take a request if it had another path, such as a decoded one.
    pub fn find_with_path(&self, request: &impl RequestFields, path: &[u8]) -> Option<usize> {
        if self.routing.has_hosts {
            let found = self.find_by_host(request, path);
            if found.is_some() {
                return found;
            }
        }
        self.find_in(&self.routing.any_host, request, path)
    }

    fn find_by_host(&self, request: &impl RequestFields, path: &[u8]) -> Option<usize> {
        let routing = &self.routing;
        let host = strip_port(request.host());
        if let Some(node) = routing.exact_hosts.find(HOST_SEED, host) {
            let found = self.find_in(&routing.nodes[node as usize], request, path);
            if found.is_some() {
                return found;
            }
        }
        let mut longest = host.len().checked_sub(1)?;
        while let Some(length) = routing.suffix_lengths.largest_up_to(longest) {
            let suffix = &host[host.len() - length..];
            if suffix.first() == Some(&b'.')
                && let Some(node) = routing.suffixes.find(HOST_SEED, suffix)
            {
                let found = self.find_in(&routing.nodes[node as usize], request, path);
                if found.is_some() {
                    return found;
                }
            }
            longest = length.checked_sub(1)?;
        }
        None
    }

    /// Returns the first of a host's rules that matches, apart from the host.
    #[inline]
    fn find_in(&self, node: &HostNode, request: &impl RequestFields, path: &[u8]) -> Option<usize> {
        if node.has_paths {
            let found = self.find_by_path(node, request, path);
            if found.is_some() {
                return found;
            }
        }
        self.find_among(node.any_path, request)
    }

    fn find_by_path(&self, node: &HostNode, request: &impl RequestFields, path: &[u8]) -> Option<usize> {
        let routing = &self.routing;
        if node.exact_lengths.contains(path.len())
            && let Some(range) = routing.exact_paths.find(node.seed, path)
        {
            let found = self.find_among(range, request);
            if found.is_some() {
                return found;
            }
        }
        let mut longest = Some(path.len());
        while let Some(length) = longest.and_then(|limit| node.prefix_lengths.largest_up_to(limit)) {
            if path.get(length).is_none_or(|byte| *byte == b'/')
                && let Some(range) = routing.prefixes.find(node.seed, &path[..length])
            {
                let found = self.find_among(range, request);
                if found.is_some() {
                    return found;
                }
            }
            longest = length.checked_sub(1);
        }
        let mut regex_rules =
            routing.candidates(node.regexes).iter().map(|candidate| candidate.rule as usize);
        regex_rules.find(|rule| {
            let rule = &self.rules[*rule];
            rule.failed_condition(request).is_none() && rule.has_regex_for(path)
        })
    }

    /// Returns the first of some rules that matches, apart from the host and the path.
    #[inline]
    fn find_among(&self, range: RuleRange, request: &impl RequestFields) -> Option<usize> {
        for candidate in self.routing.candidates(range) {
            let rule = candidate.rule as usize;
            if candidate.is_unconditional || self.rules[rule].failed_condition(request).is_none() {
                return Some(rule);
            }
        }
        None
    }
}

impl HostPattern {
    /// Returns whether a host without a port and in any case is one of these.
    fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Exact(name) => name.as_bytes().eq_ignore_ascii_case(host),
            Self::Suffix(suffix) => is_suffix_of_host(suffix.as_bytes(), host),
        }
    }
}

impl PathPattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => {
                let rest = path.strip_prefix(prefix_text(prefix).as_bytes());
                rest.is_some_and(|rest| {
                    rest.first().is_none_or(|byte| *byte == b'/') || prefix_text(prefix).is_empty()
                })
            }
            Self::Exact(exact) => exact.as_bytes() == path,
            Self::Regex(regex) => regex.matches(path),
        }
    }
}

impl FieldTest {
    fn holds(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value else { return false };
        match self {
            Self::Present => true,
            Self::Exact(exact) => exact.as_bytes() == value,
            Self::Regex(regex) => regex.matches(value),
        }
    }
}

impl RouteRule {
    /// Returns the first condition, apart from those on the host and the path, that does not hold.
    #[inline]
    fn failed_condition(&self, request: &impl RequestFields) -> Option<Mismatch<'_>> {
        if !self.methods.is_empty() {
            let method = request.method();
            if !self.methods.iter().any(|allowed| allowed.as_bytes() == method) {
                return Some(Mismatch::Method);
            }
        }
        if let Some(name) = first_failed(&self.headers, |name| request.header(name).map(Cow::Borrowed)) {
            return Some(Mismatch::Header(name));
        }
        if let Some(name) = first_failed(&self.queries, |name| request.query(name)) {
            return Some(Mismatch::Query(name));
        }
        first_failed(&self.cookies, |name| request.cookie(name).map(Cow::Borrowed)).map(Mismatch::Cookie)
    }

    fn has_regex_for(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pattern| matches!(pattern, PathPattern::Regex(regex) if regex.matches(path)))
    }
}

/// Returns the name of the first condition that a value, or its absence, fails.
fn first_failed<'rule, 'request>(
    conditions: &'rule [FieldCondition],
    value: impl Fn(&str) -> Option<Cow<'request, [u8]>>,
) -> Option<&'rule str> {
    let failed = conditions.iter().find(|condition| !condition.test.holds(value(&condition.name).as_deref()));
    failed.map(|condition| &*condition.name)
}
