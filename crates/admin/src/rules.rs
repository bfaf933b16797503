//! The access rules in force: those of the configuration, or those of a file that is reloaded when it
//! changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Access;
use crate::files::{Files, Look};

/// The source of the rules.
#[derive(Debug)]
pub struct Rules(Mutex<Source>);

#[derive(Debug)]
enum Source {
    Fixed(Arc<Access>),
    File(Files<Access>),
}

impl Rules {
    /// Uses these rules.
    pub fn fixed(access: Access) -> Self {
        Self(Mutex::new(Source::Fixed(Arc::new(access))))
    }

    /// Uses the rules of a file, which `read` parses.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub fn file(
        path: PathBuf,
        read: impl Fn(&[u8]) -> Result<Access, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // There is one file.
        let files = Files::open(vec![path], move |bytes| read(bytes.first().map_or(&[], Vec::as_slice)))?;
        Ok(Self(Mutex::new(Source::File(files))))
    }

    /// Puts other rules in force.
    pub fn replace(&self, other: Self) {
        let other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = other;
    }

    /// Returns the current rules.
    pub(crate) fn look(&self) -> Look<Access> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::Fixed(access) => Look { value: Arc::clone(access), news: None },
            Source::File(files) => files.look(),
        }
    }
}
