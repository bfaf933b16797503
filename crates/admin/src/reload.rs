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
        make: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let bytes = read(&paths)?;
        let value = Arc::new(make(&bytes)?);
        Ok(Self {
            paths,
            parse: Box::new(make),
            cache: Mutex::new(FileCache { bytes, value, current_error: None }),
        })
    }

    /// Returns the current value.
    pub(crate) fn current(&self) -> FileValue<T> {
        let mut held = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match read(&self.paths) {
            Ok(bytes) if bytes == held.bytes => {
                held.current_error = None;
                None
            }
            Ok(bytes) => Some((self.parse)(&bytes).map(|value| (bytes, value))),
            Err(why) => Some(Err(why)),
        };
        let news = match made {
            None => None,
            Some(Ok((bytes, value))) => {
                *held = FileCache { bytes, value: Arc::new(value), current_error: None };
                Some(Ok(()))
            }
            Some(Err(why)) if held.current_error.as_ref() == Some(&why) => None,
            Some(Err(why)) => {
                held.current_error = Some(why.clone());
                Some(Err(why))
            }
        };
        FileValue { value: Arc::clone(&held.value), change: news }
    }

    /// Returns the current value; changes are logged as `what`.
    pub(crate) fn current_or_log(&self, what: &str) -> Arc<T> {
        let FileValue { value, change: news } = self.current();
        match news {
            None => {}
            Some(Ok(())) => tracing::info!("{what} were read anew"),
            Some(Err(why)) => tracing::warn!("{what}: {why}; what was read before stays"),
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
    let one = |path: &Path| {
        let mut bytes = Vec::new();
        let got = File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut bytes));
        match got {
            Ok(_) if bytes.len() as u64 > MAX_SIZE => {
                Err(format!("{} is larger than {} MiB", path.display(), MAX_SIZE >> 20))
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
        let files = WatchedFiles::open(vec![path.clone()], number).unwrap();
        let look = || {
            let FileValue { value, change: news } = files.current();
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
        assert!(WatchedFiles::open(vec![path], number).is_err());
    }
}
