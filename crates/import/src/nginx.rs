//! NGINX's configuration: upstreams and servers of `http` and `stream`.
//!
//! The text is split into directives ([`tokenizer`]), with those of included files in their places
//! ([`files`]). Upstreams become groups ([`upstream`]), and servers with one target for everything become
//! listeners ([`server`], [`merge_servers`]). Directives without a mark are noted in the end, with their
//! reasons ([`unsupported`]).

mod access_rules;
mod files;
mod inheritance;
mod merge_servers;
mod proxy_pass;
mod server;
mod tokenizer;
pub(super) mod unsupported;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ImportSource;
use super::intermediate::{DraftGroup, ImportDraft};
use tokenizer::NginxDirective;

/// The unit of a number alone: seconds.
const UNIT: Duration = Duration::from_secs(1);

/// The groups by their names in `proxy_pass`, and their settled settings.
#[derive(Debug, Default)]
struct UpstreamGroups {
    groups: BTreeMap<String, DraftGroup>,
    /// The groups whose connection settings a server has given.
    configured_keys: BTreeSet<String>,
}

/// Reads a text.
pub(super) fn read(text: &str) -> ImportDraft {
    let mut draft = ImportDraft::new(ImportSource::Nginx);
    let tree = files::read(text, &mut draft);
    let mut http = UpstreamGroups::default();
    let mut stream = UpstreamGroups::default();
    // Files of conf.d have servers at the top.
    let (top_level_blocks, top_directives): (Vec<NginxDirective>, Vec<NginxDirective>) =
        tree.into_iter().partition(|directive| {
            directive.block.is_some() && ["server", "upstream"].contains(&&*directive.name)
        });
    let mut contexts = Vec::new();
    for directive in top_directives {
        match (&*directive.name, &directive.block) {
            ("http" | "stream", Some(_)) => contexts.push(directive),
            _ => read_main(&directive, &mut draft),
        }
    }
    if !top_level_blocks.is_empty() {
        contexts.push(NginxDirective::new(0, "http".to_owned(), Vec::new(), Some(top_level_blocks)));
    }
    for context in &contexts {
        let http_directives = context.block.as_deref().unwrap_or_default();
        let streams = context.name == "stream";
        upstream::read(http_directives, streams, if streams { &mut stream } else { &mut http }, &mut draft);
    }
    for streams in [false, true] {
        let context_directives: Vec<&NginxDirective> = contexts
            .iter()
            .filter(|context| (context.name == "stream") == streams)
            .flat_map(|context| context.block.as_deref().unwrap_or_default())
            .collect();
        server::read(&context_directives, streams, if streams { &mut stream } else { &mut http }, &mut draft);
    }
    for context in &contexts {
        note_unread(context.block.as_deref().unwrap_or_default(), context.name == "stream", &mut draft);
    }
    // Two contexts may have upstreams of one name.
    for (name, mut group) in http.groups.into_iter().chain(stream.groups) {
        if draft.groups.iter().any(|other| other.name == group.name) {
            draft.note(group.line, name, "an upstream of this name is in the other context, too: rename one");
            group.name = format!("{}-stream", group.name);
        }
        draft.groups.push(group);
    }
    draft.groups.sort_by_key(|group| group.line);
    draft
}

/// Reads the directives of the process as a whole.
fn read_main(directive: &NginxDirective, draft: &mut ImportDraft) {
    match &*directive.name {
        "worker_processes" => match directive.first().parse() {
            Ok(threads @ 1..=1024) => draft.threads = Some(threads),
            // `auto` means as many as there are cores, like the default here.
            _ if directive.first() == "auto" => {}
            _ => draft.note(directive.line, directive.text(), "there is no such number here"),
        },
        "pid" | "daemon" | "master_process" | "user" => {
            draft.note(
                directive.line,
                directive.text(),
                "the unit of systemd says as whom it runs, and knows its number",
            );
        }
        "load_module" | "worker_rlimit_nofile" | "worker_cpu_affinity" | "pcre_jit" => {
            draft.note(directive.line, directive.text(), "it needs none of that");
        }
        "events" if directive.block.is_some() => {
            for nested in directive.block.iter().flatten() {
                let reason = match &*nested.name {
                    "worker_connections" => {
                        "max_connections is of the process and counts clients; by default as many as open \
                         files allow"
                    }
                    _ => "it needs none of that",
                };
                draft.note(nested.line, nested.text(), reason);
            }
        }
        "error_log" => draft.note(directive.line, directive.text(), "the log goes to standard error"),
        name if unsupported::HARMLESS.contains(&name) => {}
        name => draft.note(directive.line, directive.text(), unsupported::unused_reason(name, true)),
    }
}

/// Notes the directives without a mark.
fn note_unread(block: &[NginxDirective], streams: bool, draft: &mut ImportDraft) {
    for directive in block {
        if directive.is_used() {
            note_unread(directive.block.as_deref().unwrap_or_default(), streams, draft);
        } else if !unsupported::is_harmless(directive) {
            draft.note_as(
                access_rules::class(directive),
                directive.line,
                directive.text(),
                unsupported::unused_reason(&directive.name, streams),
            );
        }
    }
}
