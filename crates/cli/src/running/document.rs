//! The file that is read again, with the groups and listeners that the store has for all balancers beside it.

use std::path::Path;

use plimsoll_cluster::store::{Store, View};
use sd_notify::NotifyState;

use super::kept::Again;
use super::{Running, lock, notify};
use crate::config::{self, File, ReadError};

/// The key under which the store has them.
pub(crate) const DOCUMENT: &str = "config";

/// What the store has, if anything.
fn text(view: &View) -> Option<&str> {
    view.entries.get(DOCUMENT).map(|entry| &*entry.value)
}

/// A file that was read, with what the store has if it says so; then also the number of the change that wrote that.
///
/// # Errors
/// The two do not go together.
pub(crate) fn with_document(
    file: File,
    path: &Path,
    store: &dyn Store,
) -> Result<(File, Option<i64>), ReadError> {
    if !file.config.shares() {
        return Ok((file, None));
    }
    let view = store.view();
    let file = match text(&view) {
        Some(text) => config::read_with(path, text)?,
        None => file,
    };
    Ok((file, Some(view.revision_of(DOCUMENT))))
}

impl Running {
    /// Reads the file as it is now, with what the store has.
    pub(super) fn read_file(&self) -> Result<File, ReadError> {
        let view = self.store.view();
        let mut document = lock(&self.document);
        let Some(revision) = &mut *document else { return config::read(&self.file) };
        // Whatever comes of it, it was tried.
        *revision = view.revision_of(DOCUMENT);
        match text(&view) {
            Some(text) => config::read_with(&self.file, text),
            None => config::read(&self.file),
        }
    }

    /// The store may have other groups and listeners: then they are put in force. What operators set stays.
    pub(crate) fn follow_document(&self) {
        let now = self.store.view().revision_of(DOCUMENT);
        if lock(&self.document).is_some_and(|known| known != now) {
            // What came of it is an event, and so in the log.
            drop(self.read_again(false));
        }
    }

    /// Reads the file and puts it in force; what changes. If `forget`, what operators set until then is over, at all balancers.
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
