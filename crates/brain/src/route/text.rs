//! Normal forms of hosts and paths.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::{FieldCondition, HostPattern, PathPattern, RouteRule};

impl RouteRule {
    /// Brings the conditions into the form in which rules that say the same are equal.
    pub(super) fn normalise(&mut self) {
        self.hosts.iter_mut().for_each(HostPattern::normalise);
        self.paths.iter_mut().for_each(PathPattern::normalise);
        if self.paths.is_empty() {
            self.paths = vec![PathPattern::Prefix(Box::from("/"))];
        }
        for FieldCondition { name, .. } in &mut self.headers {
            name.make_ascii_lowercase();
        }
        sort_once(&mut self.hosts);
        sort_once(&mut self.paths);
        sort_once(&mut self.methods);
        sort_once(&mut self.headers);
        sort_once(&mut self.queries);
        sort_once(&mut self.cookies);
    }
}

impl HostPattern {
    fn normalise(&mut self) {
        match self {
            Self::Exact(name) => {
                let bare_name = name.strip_suffix('.').unwrap_or(name);
                *name = bare_name.to_ascii_lowercase().into_boxed_str();
            }
            Self::Suffix(suffix) => {
                let bare_suffix = suffix.strip_suffix('.').unwrap_or(suffix);
                let mut dotted_suffix = String::with_capacity(bare_suffix.len() + 1);
                if !bare_suffix.starts_with('.') {
                    dotted_suffix.push('.');
                }
                dotted_suffix.push_str(&bare_suffix.to_ascii_lowercase());
                *suffix = dotted_suffix.into_boxed_str();
            }
        }
    }
}

impl PathPattern {
    fn normalise(&mut self) {
        if let Self::Prefix(prefix) = self {
            let text = prefix_text(prefix);
            *prefix = Box::from(if text.is_empty() { "/" } else { text });
        }
    }
}

/// Returns the text that the paths of a prefix begin with: without final slashes, so empty for `/`.
pub(super) fn prefix_text(prefix: &str) -> &str {
    prefix.trim_end_matches('/')
}

/// Returns a host without its port and without its final dot.
pub(super) fn strip_port(host: &[u8]) -> &[u8] {
    let mut name = host;
    let mut before_digits = host;
    while let [before @ .., b'0'..=b'9'] = before_digits {
        before_digits = before;
    }
    if let [before @ .., b':'] = before_digits {
        name = before;
    }
    name.strip_suffix(b".").unwrap_or(name)
}

/// Returns whether a host, in any case, is a suffix in normal form with something before it.
pub(super) fn is_suffix_of_host(suffix: &[u8], host: &[u8]) -> bool {
    let Some(length_before) = host.len().checked_sub(suffix.len()) else { return false };
    length_before > 0 && host[length_before..].eq_ignore_ascii_case(suffix)
}

fn sort_once<T: Ord>(items: &mut Vec<T>) {
    items.sort_unstable();
    items.dedup();
}
