//! Configurations of other load balancers, read into ours: `plimsoll config import`.
//!
//! A reader ([`haproxy`], [`nginx`]) takes the text apart and fills a [`Draft`](draft::Draft); what it cannot carry over it notes with its line and
//! the reason. Each line, or directive, is marked when it is taken; what nobody took and nobody noted is noted at the end. So nothing is passed
//! over in silence but what a list names as without effect on traffic (`HARMLESS`, in each reader). The draft is then put in order
//! ([`mod@fit`]) and written ([`mod@write`]). No text makes a reader panic, and nothing is looked up or opened.

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

/// What came of it.
#[derive(Debug)]
pub(crate) struct Imported {
    /// TOML that `plimsoll config check` accepts, if the files that it names are there.
    pub(crate) text: String,
    /// What was not carried over: access rules first, then in the order of the lines.
    pub(crate) notes: Vec<Note>,
}

/// Reads a text; `name` is what it is called. Listeners of which access rules cannot be carried over are comments of the result, unless
/// `open`.
///
/// # Errors
/// There is nothing in it to carry over, or it is not whole: what is missing, and what was noted.
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
