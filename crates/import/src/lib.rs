//! Imports of other load balancers' configurations: `plimsoll config import`.
//!
//! A reader (`haproxy`, `nginx`) takes the text apart and fills an
//! `ImportDraft`. For a part that it cannot carry over it makes a note with the
//! line and the reason. Each line, or directive, is marked when it is used; the rest without a mark and a
//! note gets a note at the end. So nothing is passed over in silence except words that a list names as
//! without effect on traffic (`HARMLESS`, in each reader).
//!
//! The draft is then put in order (`normalize`) and written (`toml_output`). No text makes a reader
//! panic, and nothing is looked up or opened.

mod haproxy;
mod intermediate;
mod loss;
mod nginx;
mod normalize;
mod toml_output;
mod value;

use plimsoll_config as config;

pub use intermediate::ImportNote;
pub use loss::LossClass;

/// The program whose configuration is imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImportSource {
    /// HAProxy.
    #[default]
    Haproxy,
    /// NGINX: http and stream.
    Nginx,
}

/// The result of an import.
#[derive(Debug)]
pub struct ImportResult {
    /// The TOML, which `plimsoll config check` accepts, if the files that it names are there.
    pub text: String,
    /// The parts that were not carried over: access rules first, then in the order of the lines.
    pub notes: Vec<ImportNote>,
}

/// Imports a text; `name` is its name in messages. Listeners with access rules that cannot be carried over
/// become comments of the result, unless `open`.
///
/// # Errors
/// Fails if it has nothing to carry over, or is incomplete: with the missing part, and the notes.
pub fn import(
    source: ImportSource,
    name: &str,
    text: &str,
    keeps_exposed: bool,
) -> Result<ImportResult, (String, Vec<ImportNote>)> {
    let (draft, program_name) = match source {
        ImportSource::Haproxy => (haproxy::read(text), "HAProxy"),
        ImportSource::Nginx => (nginx::read(text), "NGINX"),
    };
    if let Some(ImportNote { line, subject, reason, .. }) = &draft.incomplete {
        return Err((format!("line {line}: {subject}: {reason}: the text is not whole"), Vec::new()));
    }
    let draft = normalize::normalize(draft, keeps_exposed);
    let mut notes = draft.notes.clone();
    notes.sort_by_key(|note| (note.class != LossClass::Security, note.line));
    if draft.listeners.is_empty() && draft.omitted_listeners.is_empty() {
        let subject = "no listener could be carried over: nothing would be served".to_owned();
        return Err((subject, notes));
    }
    let text = toml_output::toml(&draft, name, program_name);
    if draft.listeners.is_empty() {
        // All of it is comments.
        return Ok(ImportResult { text, notes });
    }
    match config::parse("the result", text.clone().into_bytes()) {
        Ok(_) => Ok(ImportResult { text, notes }),
        Err(problems) => Err((format!("the result would be refused: {}", problems.headline()), notes)),
    }
}

#[cfg(test)]
mod tests;
