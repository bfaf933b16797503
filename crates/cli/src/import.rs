//! Imports of other load balancers' configurations: `plimsoll config import`.
//!
//! A reader ([`haproxy`], [`nginx`]) takes the text apart and fills a [`Draft`](draft::Draft). For a part
//! that it cannot carry over it makes a note with the line and the reason. Each line, or directive, is marked
//! when it is used; the rest without a mark and a note gets a note at the end. So nothing is passed over in
//! silence except words that a list names as without effect on traffic (`HARMLESS`, in each reader).
//!
//! The draft is then put in order ([`mod@fit`]) and written ([`mod@write`]). No text makes a reader panic,
//! and nothing is looked up or opened.

mod draft;
mod fit;
mod haproxy;
mod loss;
mod nginx;
mod value;
mod write;

use crate::config;

pub(crate) use draft::Note;
pub(crate) use loss::Class;

/// Whose configuration it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum From {
    /// HAProxy.
    #[default]
    Haproxy,
    /// NGINX: http and stream.
    Nginx,
}

/// The result of an import.
#[derive(Debug)]
pub(crate) struct Imported {
    /// The TOML, which `plimsoll config check` accepts, if the files that it names are there.
    pub(crate) text: String,
    /// The parts that were not carried over: access rules first, then in the order of the lines.
    pub(crate) notes: Vec<Note>,
}

/// Imports a text; `name` is its name in messages. Listeners with access rules that cannot be carried over
/// become comments of the result, unless `open`.
///
/// # Errors
/// Fails if it has nothing to carry over, or is incomplete: with the missing part, and the notes.
pub(crate) fn import(
    from: From,
    name: &str,
    text: &str,
    open: bool,
) -> Result<Imported, (String, Vec<Note>)> {
    let (draft, program) = match from {
        From::Haproxy => (haproxy::read(text), "HAProxy"),
        From::Nginx => (nginx::read(text), "NGINX"),
    };
    if let Some(Note { line, what, why, .. }) = &draft.broken {
        return Err((format!("line {line}: {what}: {why}: the text is not whole"), Vec::new()));
    }
    let draft = fit::fit(draft, open);
    let mut notes = draft.notes.clone();
    notes.sort_by_key(|note| (note.class != Class::Security, note.line));
    if draft.listeners.is_empty() && draft.left.is_empty() {
        let what = "no listener could be carried over: nothing would be served".to_owned();
        return Err((what, notes));
    }
    let text = write::toml(&draft, name, program);
    if draft.listeners.is_empty() {
        // All of it is comments.
        return Ok(Imported { text, notes });
    }
    match config::parse("the result", text.clone().into_bytes()) {
        Ok(_) => Ok(Imported { text, notes }),
        Err(problems) => Err((format!("the result would be refused: {}", problems.headline()), notes)),
    }
}

#[cfg(test)]
mod tests;
