//! The access rules of a server, none of which is carried over.

use super::super::ImportSource;
use super::super::loss::{self, AccessRule, LossClass};
use super::tokenizer::NginxDirective;

/// The blocks with directives for some requests of a server.
const INNER: [&str; 3] = ["location", "if", "limit_except"];

/// Returns the rules of a server with all of its places, and those around it that it does not replace by its
/// own.
pub(super) fn of_server(block: &[&NginxDirective], outer_directives: &[&NginxDirective]) -> Vec<AccessRule> {
    let mut rules = Vec::new();
    for directive in outer_directives {
        let is_replaced = block.iter().any(|block_directive| block_directive.name == directive.name);
        if !is_replaced && directive.block.is_none() {
            collect_rules(directive, &mut rules);
        }
    }
    block.iter().for_each(|directive| collect_rules(directive, &mut rules));
    rules
}

/// Returns the rules in the block of a directive.
pub(super) fn block_rules(directive: &NginxDirective) -> Vec<AccessRule> {
    let mut rules = Vec::new();
    directive.block.iter().flatten().for_each(|nested| collect_rules(nested, &mut rules));
    rules
}

/// Returns the class of a directive that is lost with its block.
pub(super) fn class(directive: &NginxDirective) -> LossClass {
    let mut rules = Vec::new();
    collect_rules(directive, &mut rules);
    if rules.is_empty() { loss::class(ImportSource::Nginx, &directive.text()) } else { LossClass::Security }
}

fn collect_rules(directive: &NginxDirective, rules: &mut Vec<AccessRule>) {
    rules.extend(AccessRule::of(ImportSource::Nginx, directive.line, &directive.text()));
    if INNER.contains(&&*directive.name) {
        directive.block.iter().flatten().for_each(|nested| collect_rules(nested, rules));
    }
}
