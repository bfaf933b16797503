//! The access rules of a server, none of which is carried over.

use super::super::ImportSource;
use super::super::loss::{self, AccessRule, LossClass};
use super::tokenizer::NginxDirective;

/// The blocks with directives for some requests of a server.
const INNER: [&str; 3] = ["location", "if", "limit_except"];

/// Returns the rules of a server with all of its places, and those around it that it does not replace by its
/// own.
pub(super) fn of_server(block: &[&NginxDirective], around: &[&NginxDirective]) -> Vec<AccessRule> {
    let mut rules = Vec::new();
    for one in around {
        let replaced = block.iter().any(|own| own.name == one.name);
        if !replaced && one.block.is_none() {
            gather(one, &mut rules);
        }
    }
    block.iter().for_each(|one| gather(one, &mut rules));
    rules
}

/// Returns the rules in the block of a directive.
pub(super) fn block_rules(one: &NginxDirective) -> Vec<AccessRule> {
    let mut rules = Vec::new();
    one.block.iter().flatten().for_each(|inside| gather(inside, &mut rules));
    rules
}

/// Returns the class of a directive that is lost with its block.
pub(super) fn class(one: &NginxDirective) -> LossClass {
    let mut rules = Vec::new();
    gather(one, &mut rules);
    if rules.is_empty() { loss::class(ImportSource::Nginx, &one.text()) } else { LossClass::Security }
}

fn gather(one: &NginxDirective, rules: &mut Vec<AccessRule>) {
    rules.extend(AccessRule::of(ImportSource::Nginx, one.line, &one.text()));
    if INNER.contains(&&*one.name) {
        one.block.iter().flatten().for_each(|inside| gather(inside, rules));
    }
}
