//! The reload of the file, with the groups and listeners that the store has for all balancers beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_cluster::store::{Store, StoreSnapshot};
use plimsoll_config::{self as config, ConfigFile, ReadError};
use sd_notify::NotifyState;

use super::operator_state::Reapply;
use super::{BalancerRuntime, lock, notify_systemd};

/// The key of those in the store.
pub const SHARED_CONFIG_KEY: &str = "config";

/// The document as known here.
#[derive(Debug)]
pub(crate) struct SharedConfig {
    /// The revision of the document that was read last; 0 if there was none.
    revision: i64,
    /// The text of that document.
    text: Option<Arc<str>>,
    /// The time since when the store has no document any more.
    ///
    /// More often than the end of all groups that is a key that was removed by mistake, so the last document
    /// stays. An operator who means it pushes an empty file.
    missing_since: Option<Instant>,
}

impl SharedConfig {
    /// Returns the document of a store.
    fn of(snapshot: &StoreSnapshot) -> Self {
        let entry = snapshot.entries.get(SHARED_CONFIG_KEY);
        let text = entry.map(|entry| Arc::clone(&entry.value));
        Self { revision: snapshot.revision_of(SHARED_CONFIG_KEY), text, missing_since: None }
    }

    /// Looks at the present document of a store; returns `true` if it must be read again.
    fn check(&mut self, snapshot: &StoreSnapshot, now: Instant) -> bool {
        match snapshot.entries.get(SHARED_CONFIG_KEY) {
            None => {
                if self.text.is_some() {
                    self.missing_since.get_or_insert(now);
                }
                false
            }
            Some(entry) => {
                self.missing_since = None;
                // A store that lost it shows the last one (revision 0).
                entry.revision != self.revision
                    && (entry.revision != 0 || self.text.as_ref() != Some(&entry.value))
            }
        }
    }

    /// Takes the present document, if there is one; returns the text to read with the file.
    fn accept(&mut self, snapshot: &StoreSnapshot, now: Instant) -> Option<Arc<str>> {
        self.check(snapshot, now);
        if snapshot.entries.contains_key(SHARED_CONFIG_KEY) {
            *self = Self::of(snapshot);
        }
        self.text.clone()
    }
}

/// Returns a file with the document of the store, if the file asks for one; returns the document, too.
///
/// # Errors
/// Fails if the two do not go together.
pub(crate) fn read_with_shared(
    file: ConfigFile,
    path: &Path,
    store: &dyn Store,
) -> Result<(ConfigFile, Option<SharedConfig>), ReadError> {
    if !file.config.shares_config() {
        return Ok((file, None));
    }
    let document = SharedConfig::of(&store.snapshot());
    let file = match &document.text {
        Some(text) => config::read_with(path, text)?,
        None => file,
    };
    Ok((file, Some(document)))
}

impl BalancerRuntime {
    /// Reads the file as it is now, with the present or last document of the store.
    pub(super) fn read_file(&self) -> Result<ConfigFile, ReadError> {
        let snapshot = self.store.snapshot();
        // The attempt counts, whatever its result.
        let text = lock(&self.shared_config)
            .as_mut()
            .and_then(|document| document.accept(&snapshot, Instant::now()));
        match text {
            Some(text) => config::read_with(&self.config_path, &text),
            None => config::read(&self.config_path),
        }
    }

    /// Puts other groups and listeners of the store in force. Operators' settings stay.
    pub(crate) fn apply_shared_config(&self) {
        let snapshot = self.store.snapshot();
        let is_due = lock(&self.shared_config)
            .as_mut()
            .is_some_and(|document| document.check(&snapshot, Instant::now()));
        if is_due {
            // The result is an event, and so in the log.
            drop(self.reload_file(false));
        }
    }

    /// Returns the reason why the missing document is doubted, to be read behind the store's name, and since
    /// when; `None` if it is there, or never was.
    pub(super) fn missing_shared_config(&self) -> Option<(String, Instant)> {
        let missing_since = lock(&self.shared_config).as_ref()?.missing_since?;
        let reason = format!(
            "has no groups and listeners for all balancers any more (key `{SHARED_CONFIG_KEY}`): those that \
             it had stay in force; \
             plimsoll config push FILE puts some there, of an empty file if there are to be none"
        );
        Some((reason, missing_since))
    }

    /// Reads the file and puts it in force; returns the changes. With `forget` operators' settings end, at
    /// all balancers.
    pub(super) fn reload_file(&self, forget_settings: bool) -> Result<Vec<String>, String> {
        let mut actions = self.lock_actions()?;
        let reload_guard = lock(&self.reload_lock);
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now().ok());
        notify_systemd(&states);
        let mut outcome = self.apply();
        drop(reload_guard);
        if let Ok(changes) = &mut outcome {
            lock(&self.file_balancing).clear();
            if forget_settings {
                changes.extend(self.forget_settings(&mut actions));
            }
            self.sync_actions(&mut actions, Reapply::All);
        }
        let status = match &outcome {
            Ok(_) => format!("running {}", self.config_path.display()),
            Err(error) => format!("the last reload was refused: {error}"),
        };
        notify_systemd(&[NotifyState::Ready, NotifyState::Status(&status)]);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_cluster::store::StoreEntry;

    use super::*;

    fn view(text: Option<&str>, revision: i64) -> StoreSnapshot {
        let entry = |text: &str| {
            (SHARED_CONFIG_KEY.to_owned(), StoreEntry { value: text.into(), revision, lease: 0 })
        };
        StoreSnapshot { revision: 50, entries: text.map(entry).into_iter().collect() }
    }

    #[test]
    fn what_is_gone_is_not_believed() {
        let now = Instant::now();
        let mut document = SharedConfig::of(&view(None, 0));
        // There never was a document.
        assert!(!document.check(&view(None, 0), now) && document.missing_since.is_none());
        assert!(document.check(&view(Some("a"), 7), now));
        assert_eq!(document.accept(&view(Some("a"), 7), now).as_deref(), Some("a"));
        assert!(!document.check(&view(Some("a"), 7), now));
        // The document was removed: its last text counts, also for a reload of the file.
        assert!(!document.check(&view(None, 0), now));
        assert_eq!(document.accept(&view(None, 0), now).as_deref(), Some("a"));
        assert_eq!(document.missing_since, Some(now));
        // A store that lost everything shows the last document.
        assert!(!document.check(&view(Some("a"), 0), now) && document.missing_since.is_none());
        assert!(document.check(&view(Some("b"), 0), now));
        // An empty document is intended.
        assert!(document.check(&view(Some(""), 9), now));
        assert_eq!(document.accept(&view(Some(""), 9), now).as_deref(), Some(""));
        // The same text once more is another change.
        assert!(document.check(&view(Some(""), 10), now));
    }
}
