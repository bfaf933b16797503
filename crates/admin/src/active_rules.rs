//! The access rules in force: those of the configuration, or those of a file that is reloaded when it
//! changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::AccessRules;
use crate::reload::{FileValue, WatchedFiles};

/// The source of the rules.
#[derive(Debug)]
pub struct ActiveRules(Mutex<RulesSource>);

#[derive(Debug)]
enum RulesSource {
    Fixed(Arc<AccessRules>),
    File(WatchedFiles<AccessRules>),
}

impl ActiveRules {
    /// Uses these rules.
    pub fn fixed(access: AccessRules) -> Self {
        Self(Mutex::new(RulesSource::Fixed(Arc::new(access))))
    }

    /// Uses the rules of a file, which `read` parses.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub fn file(
        path: PathBuf,
        read: impl Fn(&[u8]) -> Result<AccessRules, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // There is one file.
        let files =
            WatchedFiles::open(vec![path], move |bytes| read(bytes.first().map_or(&[], Vec::as_slice)))?;
        Ok(Self(Mutex::new(RulesSource::File(files))))
    }

    /// Puts other rules in force.
    pub fn replace(&self, rules: Self) {
        let rules = rules.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Returns the current rules.
    pub(crate) fn current(&self) -> FileValue<AccessRules> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            RulesSource::Fixed(access) => FileValue { value: Arc::clone(access), change: None },
            RulesSource::File(files) => files.current(),
        }
    }
}
