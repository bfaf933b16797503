//! A value derived from files, and derived again when they change.
//!
//! The files are read at each use. For a few kilobytes in the kernel's cache that takes some microseconds,
//! and the value is derived again only if they have changed. Changes thus take effect immediately, and no
//! thread polls the files. If they cannot be read or are invalid, the previous value stays.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum size in bytes; larger files are taken for mistakes.
const LARGEST: u64 = 1 << 20;

type Make<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// Files and the value last derived from them.
pub(crate) struct Files<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    bytes: Vec<Vec<u8>>,
    value: Arc<T>,
    /// The current error of the files, so that it is reported once.
    wrong: Option<String>,
}

/// The result of reading the files.
pub(crate) struct Look<T> {
    /// The value in force.
    pub(crate) value: Arc<T>,
    /// A change since the last read: a new value, or the reason why the new contents are invalid.
    pub(crate) news: Option<Result<(), String>>,
}

impl<T> Files<T> {
    /// Reads the files and derives the value.
    ///
    /// # Errors
    /// The reason, with the name of the file where it is known.
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        make: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let bytes = read(&paths)?;
        let value = Arc::new(make(&bytes)?);
        Ok(Self { paths, make: Box::new(make), held: Mutex::new(Held { bytes, value, wrong: None }) })
    }

    /// Returns the current value.
    pub(crate) fn look(&self) -> Look<T> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match read(&self.paths) {
            Ok(bytes) if bytes == held.bytes => {
                held.wrong = None;
                None
            }
            Ok(bytes) => Some((self.make)(&bytes).map(|value| (bytes, value))),
            Err(why) => Some(Err(why)),
        };
        let news = match made {
            None => None,
            Some(Ok((bytes, value))) => {
                *held = Held { bytes, value: Arc::new(value), wrong: None };
                Some(Ok(()))
            }
            Some(Err(why)) if held.wrong.as_ref() == Some(&why) => None,
            Some(Err(why)) => {
                held.wrong = Some(why.clone());
                Some(Err(why))
            }
        };
        Look { value: Arc::clone(&held.value), news }
    }

    /// Returns the current value; changes are logged as `what`.
    pub(crate) fn now(&self, what: &str) -> Arc<T> {
        let Look { value, news } = self.look();
        match news {
            None => {}
            Some(Ok(())) => tracing::info!("{what} were read anew"),
            Some(Err(why)) => tracing::warn!("{what}: {why}; what was read before stays"),
        }
        value
    }
}

impl<T> fmt::Debug for Files<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The contents may be secret.
        f.debug_tuple("Files").field(&self.paths).finish()
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let one = |path: &Path| {
        let mut bytes = Vec::new();
        let got = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
        match got {
            Ok(_) if bytes.len() as u64 > LARGEST => {
                Err(format!("{} is larger than {} MiB", path.display(), LARGEST >> 20))
            }
            Ok(_) => Ok(bytes),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    };
    paths.iter().map(|path| one(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[Vec<u8>]) -> Result<u32, String> {
        let text = String::from_utf8_lossy(&bytes[0]);
        text.trim().parse().map_err(|_| format!("{} is not a number", text.trim()))
    }

    #[test]
    fn what_changes_is_seen_and_what_is_wrong_changes_nothing() {
        let path = std::env::temp_dir().join(format!("plimsoll-files-{}", std::process::id()));
        std::fs::write(&path, "1").unwrap();
        let files = Files::open(vec![path.clone()], number).unwrap();
        let look = || {
            let Look { value, news } = files.look();
            (*value, news)
        };
        assert_eq!(look(), (1, None));
        std::fs::write(&path, "2").unwrap();
        assert_eq!(look(), (2, Some(Ok(()))));
        assert_eq!(look(), (2, None));
        std::fs::write(&path, "x").unwrap();
        assert_eq!(look(), (2, Some(Err("x is not a number".into()))));
        assert_eq!(look(), (2, None), "said once");
        std::fs::remove_file(&path).unwrap();
        assert!(look().1.unwrap().unwrap_err().contains("cannot read"));
        std::fs::write(&path, "2").unwrap();
        assert_eq!(look(), (2, None), "as it was");
        std::fs::remove_file(&path).unwrap();
        assert!(Files::open(vec![path], number).is_err());
    }
}
