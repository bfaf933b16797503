//! The reload of the file, with the groups and listeners that the store has for all balancers beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_cluster::store::{Store, View};
use sd_notify::NotifyState;

use super::kept::Again;
use super::{Running, lock, notify};
use crate::config::{self, File, ReadError};

/// The key of those in the store.
pub(crate) const DOCUMENT: &str = "config";

/// The document as known here.
#[derive(Debug)]
pub(crate) struct Document {
    /// The revision of the document that was read last; 0 if there was none.
    revision: i64,
    /// The text of that document.
    text: Option<Arc<str>>,
    /// The time since when the store has no document any more.
    ///
    /// More often than the end of all groups that is a key that was removed by mistake, so the last document
    /// stays. An operator who means it pushes an empty file.
    gone: Option<Instant>,
}

impl Document {
    /// Returns the document of a store.
    fn of(view: &View) -> Self {
        let entry = view.entries.get(DOCUMENT);
        let text = entry.map(|entry| Arc::clone(&entry.value));
        Self { revision: view.revision_of(DOCUMENT), text, gone: None }
    }

    /// Looks at the present document of a store; returns `true` if it must be read again.
    fn look(&mut self, view: &View, now: Instant) -> bool {
        match view.entries.get(DOCUMENT) {
            None => {
                if self.text.is_some() {
                    self.gone.get_or_insert(now);
                }
                false
            }
            Some(entry) => {
                self.gone = None;
                // A store that lost it shows the last one (revision 0).
                entry.revision != self.revision
                    && (entry.revision != 0 || self.text.as_ref() != Some(&entry.value))
            }
        }
    }

    /// Takes the present document, if there is one; returns the text to read with the file.
    fn take(&mut self, view: &View, now: Instant) -> Option<Arc<str>> {
        self.look(view, now);
        if view.entries.contains_key(DOCUMENT) {
            *self = Self::of(view);
        }
        self.text.clone()
    }
}

/// Returns a file with the document of the store, if the file asks for one; returns the document, too.
///
/// # Errors
/// Fails if the two do not go together.
pub(crate) fn with_document(
    file: File,
    path: &Path,
    store: &dyn Store,
) -> Result<(File, Option<Document>), ReadError> {
    if !file.config.shares() {
        return Ok((file, None));
    }
    let document = Document::of(&store.view());
    let file = match &document.text {
        Some(text) => config::read_with(path, text)?,
        None => file,
    };
    Ok((file, Some(document)))
}

impl Running {
    /// Reads the file as it is now, with the present or last document of the store.
    pub(super) fn read_file(&self) -> Result<File, ReadError> {
        let view = self.store.view();
        // The attempt counts, whatever its result.
        let text = lock(&self.document).as_mut().and_then(|document| document.take(&view, Instant::now()));
        match text {
            Some(text) => config::read_with(&self.file, &text),
            None => config::read(&self.file),
        }
    }

    /// Puts other groups and listeners of the store in force. Operators' settings stay.
    pub(crate) fn follow_document(&self) {
        let view = self.store.view();
        let again =
            lock(&self.document).as_mut().is_some_and(|document| document.look(&view, Instant::now()));
        if again {
            // The result is an event, and so in the log.
            drop(self.read_again(false));
        }
    }

    /// Returns the reason why the missing document is doubted, to be read behind the store's name, and since
    /// when; `None` if it is there, or never was.
    pub(super) fn document_gone(&self) -> Option<(String, Instant)> {
        let gone = lock(&self.document).as_ref()?.gone?;
        let why = format!(
            "has no groups and listeners for all balancers any more (key `{DOCUMENT}`): those that it had stay in force; \
             plimsoll config push FILE puts some there, of an empty file if there are to be none"
        );
        Some((why, gone))
    }

    /// Reads the file and puts it in force; returns the changes. With `forget` operators' settings end, at
    /// all balancers.
    pub(super) fn read_again(&self, forget: bool) -> Result<Vec<String>, String> {
        let mut kept = self.kept_in_charge()?;
        let one = lock(&self.reloading);
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now().ok());
        notify(&states);
        let mut outcome = self.apply();
        drop(one);
        if let Ok(changes) = &mut outcome {
            lock(&self.own).clear();
            if forget {
                changes.extend(self.forget_settings(&mut kept));
            }
            self.follow(&mut kept, Again::All);
        }
        let status = match &outcome {
            Ok(_) => format!("running {}", self.file.display()),
            Err(why) => format!("the last reload was refused: {why}"),
        };
        notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_cluster::store::Entry;

    use super::*;

    fn view(text: Option<&str>, revision: i64) -> View {
        let entry = |text: &str| (DOCUMENT.to_owned(), Entry { value: text.into(), revision, lease: 0 });
        View { revision: 50, entries: text.map(entry).into_iter().collect() }
    }

    #[test]
    fn what_is_gone_is_not_believed() {
        let now = Instant::now();
        let mut document = Document::of(&view(None, 0));
        // There never was a document.
        assert!(!document.look(&view(None, 0), now) && document.gone.is_none());
        assert!(document.look(&view(Some("a"), 7), now));
        assert_eq!(document.take(&view(Some("a"), 7), now).as_deref(), Some("a"));
        assert!(!document.look(&view(Some("a"), 7), now));
        // The document was removed: its last text counts, also for a reload of the file.
        assert!(!document.look(&view(None, 0), now));
        assert_eq!(document.take(&view(None, 0), now).as_deref(), Some("a"));
        assert_eq!(document.gone, Some(now));
        // A store that lost everything shows the last document.
        assert!(!document.look(&view(Some("a"), 0), now) && document.gone.is_none());
        assert!(document.look(&view(Some("b"), 0), now));
        // An empty document is intended.
        assert!(document.look(&view(Some(""), 9), now));
        assert_eq!(document.take(&view(Some(""), 9), now).as_deref(), Some(""));
        // The same text once more is another change.
        assert!(document.look(&view(Some(""), 10), now));
    }
}
