//! Requests, rules written as short texts, and a second implementation of the table: filter all, sort.

use std::borrow::Cow;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use plimsoll_brain::route::{
    FieldCondition, FieldTest, HostPattern, PathPattern, RequestFields, RouteRule, ValueRegex,
};

/// A request in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeRequest {
    pub(crate) host: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) method: Vec<u8>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) queries: Vec<(String, Vec<u8>)>,
    pub(crate) cookies: Vec<(String, Vec<u8>)>,
}

impl RequestFields for FakeRequest {
    fn host(&self) -> &[u8] {
        &self.host
    }

    fn path(&self) -> &[u8] {
        &self.path
    }

    fn method(&self) -> &[u8] {
        &self.method
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_slice())
    }

    fn query(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        value_of(&self.queries, name).map(Cow::Borrowed)
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        value_of(&self.cookies, name)
    }
}

fn value_of<'f>(fields: &'f [(String, Vec<u8>)], name: &str) -> Option<&'f [u8]> {
    fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_slice())
}

/// Reads a rule: `/prefix`, `=/exact`, `~regex`, `*.wildcard`, `METHOD`, `h:header`, `q:query`, `c:cookie`
/// (each with `=value` or `~regex` or nothing), and any other word is a host.
pub(crate) fn rule(text: &str) -> RouteRule {
    let mut rule = RouteRule::default();
    for word in text.split_whitespace() {
        if let Some(header) = word.strip_prefix("h:") {
            rule.headers.push(condition(header));
        } else if let Some(query) = word.strip_prefix("q:") {
            rule.queries.push(condition(query));
        } else if let Some(cookie) = word.strip_prefix("c:") {
            rule.cookies.push(condition(cookie));
        } else if let Some(exact) = word.strip_prefix('=') {
            rule.paths.push(PathPattern::Exact(exact.into()));
        } else if let Some(regex) = word.strip_prefix('~') {
            rule.paths.push(PathPattern::Regex(ValueRegex::new(regex).unwrap()));
        } else if word.starts_with('/') {
            rule.paths.push(PathPattern::Prefix(word.into()));
        } else if let Some(suffix) = word.strip_prefix('*') {
            rule.hosts.push(HostPattern::Suffix(suffix.into()));
        } else if word.bytes().all(|byte| byte.is_ascii_uppercase()) {
            rule.methods.push(word.into());
        } else {
            rule.hosts.push(HostPattern::Exact(word.into()));
        }
    }
    rule
}

fn condition(text: &str) -> FieldCondition {
    let (name, test) = match text.split_once(['=', '~']) {
        Some((name, value)) if text[name.len()..].starts_with('=') => (name, FieldTest::Exact(value.into())),
        Some((name, regex)) => (name, FieldTest::Regex(ValueRegex::new(regex).unwrap())),
        None => (text, FieldTest::Present),
    };
    FieldCondition { name: name.into(), test }
}

pub(crate) fn rules(texts: &[&str]) -> Vec<RouteRule> {
    texts.iter().map(|text| rule(text)).collect()
}

/// Reads a request: `METHOD host/path`, then fields as in a rule, each with `=value`.
pub(crate) fn request(text: &str) -> FakeRequest {
    let mut words = text.split_whitespace();
    let method = words.next().unwrap();
    let target = words.next().unwrap();
    let (host, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let mut request =
        FakeRequest { host: host.into(), path: path.into(), method: method.into(), ..Default::default() };
    for word in words {
        let (name, value) = word[2..].split_once('=').unwrap();
        let field = (name.to_owned(), value.as_bytes().to_vec());
        match &word[..2] {
            "h:" => request.headers.push(field),
            "q:" => request.queries.push(field),
            "c:" => request.cookies.push(field),
            other => panic!("{other}"),
        }
    }
    request
}

/// A rank among rules; the smallest comes first.
pub(crate) type NaiveRank =
    ((u8, Reverse<usize>), (u8, Reverse<usize>), bool, Reverse<usize>, Reverse<usize>, usize);

/// Returns the rule that takes a request.
pub(crate) fn find(rules: &[RouteRule], request: &FakeRequest) -> Option<usize> {
    let ranks = rules.iter().enumerate().filter_map(|(index, rule)| rank(index, rule, request));
    ranks.min().map(|rank| rank.5)
}

/// Returns the rank of a rule whose conditions all hold.
pub(crate) fn rank(index: usize, rule: &RouteRule, request: &FakeRequest) -> Option<NaiveRank> {
    let place = place(index, rule, request)?;
    (has_method(rule, request) && has_fields(rule, request)).then_some(place)
}

/// Returns the rank of a rule that has the host and the path, if its other conditions hold or not.
pub(crate) fn place(index: usize, rule: &RouteRule, request: &FakeRequest) -> Option<NaiveRank> {
    let distinct = |conditions: &[FieldCondition], any_case: bool| {
        let name = |text: &str| if any_case { text.to_lowercase() } else { text.to_owned() };
        let texts =
            conditions.iter().map(|condition| (name(&condition.name), format!("{:?}", condition.test)));
        texts.collect::<BTreeSet<_>>().len()
    };
    Some((
        best_host(rule, request)?,
        best_path(rule, request)?,
        rule.methods.is_empty(),
        Reverse(distinct(&rule.headers, true) + distinct(&rule.cookies, false)),
        Reverse(distinct(&rule.queries, false)),
        index,
    ))
}

pub(crate) fn best_host(rule: &RouteRule, request: &FakeRequest) -> Option<(u8, Reverse<usize>)> {
    if rule.hosts.is_empty() {
        return Some((2, Reverse(0)));
    }
    let host = bare_host(&request.host);
    let ranks = rule.hosts.iter().filter_map(|pattern| match pattern {
        HostPattern::Exact(name) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_lowercase();
            (name.as_bytes() == host).then_some((0, Reverse(0)))
        }
        HostPattern::Suffix(suffix) => {
            let is_longer = host.len() > suffix.len();
            (is_longer && host.ends_with(suffix.to_lowercase().as_bytes()))
                .then_some((1, Reverse(suffix.len())))
        }
    });
    ranks.min()
}

fn bare_host(host: &[u8]) -> Vec<u8> {
    let colon = host.iter().rposition(|byte| *byte == b':');
    let end = colon.filter(|colon| host[colon + 1..].iter().all(u8::is_ascii_digit)).unwrap_or(host.len());
    let mut bare = host[..end].to_ascii_lowercase();
    if bare.last() == Some(&b'.') {
        bare.pop();
    }
    bare
}

pub(crate) fn best_path(rule: &RouteRule, request: &FakeRequest) -> Option<(u8, Reverse<usize>)> {
    if rule.paths.is_empty() {
        return Some((3, Reverse(0)));
    }
    let path = &request.path;
    let ranks = rule.paths.iter().filter_map(|pattern| match pattern {
        PathPattern::Exact(text) => (text.as_bytes() == path).then_some((0, Reverse(0))),
        PathPattern::Regex(regex) => regex.matches(path).then_some((2, Reverse(0))),
        PathPattern::Prefix(text) => {
            let text = text.trim_end_matches('/');
            let with_slash = format!("{text}/");
            let is_prefix =
                text.is_empty() || path == text.as_bytes() || path.starts_with(with_slash.as_bytes());
            is_prefix.then_some(if text.is_empty() { (3, Reverse(0)) } else { (1, Reverse(text.len())) })
        }
    });
    ranks.min()
}

pub(crate) fn has_method(rule: &RouteRule, request: &FakeRequest) -> bool {
    rule.methods.is_empty() || rule.methods.iter().any(|method| method.as_bytes() == request.method)
}

fn has_fields(rule: &RouteRule, request: &FakeRequest) -> bool {
    rule.headers.iter().all(|condition| holds(&condition.test, request.header(&condition.name)))
        && rule
            .queries
            .iter()
            .all(|condition| holds(&condition.test, request.query(&condition.name).as_deref()))
        && rule.cookies.iter().all(|condition| holds(&condition.test, request.cookie(&condition.name)))
}

pub(crate) fn holds(test: &FieldTest, value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| match test {
        FieldTest::Present => true,
        FieldTest::Exact(text) => text.as_bytes() == value,
        FieldTest::Regex(regex) => regex.matches(value),
    })
}
