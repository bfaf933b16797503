//! HAProxy's configuration: `global`, `defaults`, `frontend`, `backend`, `listen`.
//!
//! Lines are split into words ([`tokenizer`]) and gathered into sections, each on top of the defaults that
//! are in force where it begins ([`section`]). Words without a meaning here have their reasons in one place
//! ([`unsupported`]). Then each bind becomes a listener ([`bind`]) and each section with servers a group
//! ([`server`]).

mod bind;
mod health_check;
mod section;
mod server;
mod tokenizer;
pub(super) mod unsupported;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ImportSource;
use super::intermediate::{DraftGroup, DraftProtocol, ImportDraft};
use super::value;
use section::{HaproxySection, HaproxySections};

/// The unit of a number alone: milliseconds.
const UNIT: Duration = Duration::from_millis(1);

/// The reason for rules that Plimsoll does not have.
const NO_RULES: &str = "there are no rules on single requests here";

/// The settings of backends that belong to listeners here, by the group.
#[derive(Debug, Default)]
struct FrontendSettings {
    cookies: BTreeMap<String, String>,
    /// The groups whose members get the client's address.
    forwarded: BTreeSet<String>,
}

/// Reads a text.
pub(super) fn read(text: &str) -> ImportDraft {
    let mut draft = ImportDraft::new(ImportSource::Haproxy);
    let sections = section::read(text, &mut draft);
    let groups = names(&sections);
    let mut frontend_settings = FrontendSettings::default();
    for section in sections.sections.iter().filter(|section| section.kind.has_servers()) {
        if let Some(group) = server::group(section, &sections, &groups, &mut draft, &mut frontend_settings) {
            draft.groups.push(DraftGroup { access_rules: section.access_rules.clone(), ..group });
        }
    }
    // Backends that refuse some clients, or all: a client that is not sent there any more may get more than
    // before.
    let refusing_sections: BTreeSet<&str> = sections
        .sections
        .iter()
        .filter(|section| {
            section.kind.has_servers() && (section.servers.is_empty() || !section.access_rules.is_empty())
        })
        .map(|section| section.name.as_str())
        .collect();
    for section in sections.sections.iter().filter(|section| section.kind.has_binds()) {
        bind::listeners(section, &groups, &frontend_settings, &refusing_sections, &mut draft);
    }
    prefix_folders(&sections, &mut draft);
    sections.note_unused(&mut draft);
    draft
}

/// Puts files without a whole path into the folders that `global` names.
fn prefix_folders(sections: &HaproxySections, draft: &mut ImportDraft) {
    let prefix_folder = |folder: &Option<String>, file: &mut String| {
        if let Some(folder) = folder
            && !file.is_empty()
            && !file.starts_with('/')
        {
            *file = format!("{}/{file}", folder.trim_end_matches('/'));
        }
    };
    for tls in
        draft.listeners.iter_mut().chain(&mut draft.restricted).filter_map(|listener| listener.tls.as_mut())
    {
        for (certificate, key) in &mut tls.certificates {
            prefix_folder(&sections.crt_base, certificate);
            prefix_folder(&sections.crt_base, key);
        }
        tls.client_ca.iter_mut().for_each(|file| prefix_folder(&sections.ca_base, file));
    }
    for tls in draft.groups.iter_mut().filter_map(|group| group.tls.as_mut()) {
        tls.ca.iter_mut().for_each(|file| prefix_folder(&sections.ca_base, file));
        if let Some((certificate, key)) = &mut tls.client_certificate {
            prefix_folder(&sections.crt_base, certificate);
            prefix_folder(&sections.crt_base, key);
        }
    }
}

/// Returns the names of groups here, by the names of backends there.
fn names(sections: &HaproxySections) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for section in sections.sections.iter().filter(|section| section.kind.has_servers()) {
        names.entry(section.name.clone()).or_insert_with(|| value::name(&section.name));
    }
    names
}

fn protocol(section: &HaproxySection) -> DraftProtocol {
    if section.http() { DraftProtocol::Http } else { DraftProtocol::Tcp }
}
