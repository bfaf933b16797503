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
const MAX_SIZE: u64 = 1 << 20;

type FileParser<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// Files and the value last derived from them.
pub(crate) struct WatchedFiles<T> {
    paths: Vec<PathBuf>,
    parse: FileParser<T>,
    cache: Mutex<FileCache<T>>,
}

struct FileCache<T> {
    bytes: Vec<Vec<u8>>,
    value: Arc<T>,
    /// The current error of the files, so that it is reported once.
    current_error: Option<String>,
}

/// The result of reading the files.
pub(crate) struct FileValue<T> {
    /// The value in force.
    pub(crate) value: Arc<T>,
    /// A change since the last read: a new value, or the reason why the new contents are invalid.
    pub(crate) change: Option<Result<(), String>>,
}

impl<T> WatchedFiles<T> {
    /// Reads the files and derives the value.
    ///
    /// # Errors
    /// The reason, with the name of the file where it is known.
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let bytes = read(&paths)?;
        let value = Arc::new(parse(&bytes)?);
        Ok(Self {
            paths,
            parse: Box::new(parse),
            cache: Mutex::new(FileCache { bytes, value, current_error: None }),
        })
    }

    /// Returns the current value.
    pub(crate) fn current(&self) -> FileValue<T> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let parsed = match read(&self.paths) {
            Ok(bytes) if bytes == cache.bytes => {
                cache.current_error = None;
                None
            }
            Ok(bytes) => Some((self.parse)(&bytes).map(|value| (bytes, value))),
            Err(error) => Some(Err(error)),
        };
        let change = match parsed {
            None => None,
            Some(Ok((bytes, value))) => {
                *cache = FileCache { bytes, value: Arc::new(value), current_error: None };
                Some(Ok(()))
            }
            Some(Err(error)) if cache.current_error.as_ref() == Some(&error) => None,
            Some(Err(error)) => {
                cache.current_error = Some(error.clone());
                Some(Err(error))
            }
        };
        FileValue { value: Arc::clone(&cache.value), change }
    }

    /// Returns the current value; changes are logged as `what`.
    pub(crate) fn current_or_log(&self, description: &str) -> Arc<T> {
        let FileValue { value, change } = self.current();
        match change {
            None => {}
            Some(Ok(())) => tracing::info!("{description} were read anew"),
            Some(Err(error)) => tracing::warn!("{description}: {error}; what was read before stays"),
        }
        value
    }
}

impl<T> fmt::Debug for WatchedFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The contents may be secret.
        f.debug_tuple("Files").field(&self.paths).finish()
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        let read_result = File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut bytes));
        match read_result {
            Ok(_) if bytes.len() as u64 > MAX_SIZE => {
                Err(format!("{} is larger than {} MiB", path.display(), MAX_SIZE >> 20))
            }
            Ok(_) => Ok(bytes),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    };
    paths.iter().map(|path| read_file(path)).collect()
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
        let files = WatchedFiles::open(vec![path.clone()], number).unwrap();
        let current_value = || {
            let FileValue { value, change } = files.current();
            (*value, change)
        };
        assert_eq!(current_value(), (1, None));
        std::fs::write(&path, "2").unwrap();
        assert_eq!(current_value(), (2, Some(Ok(()))));
        assert_eq!(current_value(), (2, None));
        std::fs::write(&path, "x").unwrap();
        assert_eq!(current_value(), (2, Some(Err("x is not a number".into()))));
        assert_eq!(current_value(), (2, None), "said once");
        std::fs::remove_file(&path).unwrap();
        assert!(current_value().1.unwrap().unwrap_err().contains("cannot read"));
        std::fs::write(&path, "2").unwrap();
        assert_eq!(current_value(), (2, None), "as it was");
        std::fs::remove_file(&path).unwrap();
        assert!(WatchedFiles::open(vec![path], number).is_err());
    }
}
