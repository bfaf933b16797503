//! The rules in force: those of the configuration, or those of a file that is read again when it changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Access;
use crate::files::{Files, Look};

/// Where the rules are.
#[derive(Debug)]
pub struct Rules(Mutex<Source>);

#[derive(Debug)]
enum Source {
    Fixed(Arc<Access>),
    File(Files<Access>),
}

impl Rules {
    /// These.
    pub fn fixed(access: Access) -> Self {
        Self(Mutex::new(Source::Fixed(Arc::new(access))))
    }

    /// Those of a file, which `read` makes of its bytes.
    ///
    /// # Errors
    /// It cannot be read, or is wrong.
    pub fn file(
        path: PathBuf,
        read: impl Fn(&[u8]) -> Result<Access, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // There is one of them.
        let files = Files::open(vec![path], move |bytes| read(bytes.first().map_or(&[], Vec::as_slice)))?;
        Ok(Self(Mutex::new(Source::File(files))))
    }

    /// Puts others in force.
    pub fn replace(&self, other: Self) {
        let other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = other;
    }

    /// What holds now.
    pub(crate) fn look(&self) -> Look<Access> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::Fixed(access) => Look { value: Arc::clone(access), news: None },
            Source::File(files) => files.look(),
        }
    }
}
