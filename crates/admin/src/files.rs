//! What is made of files, and made anew when they change.
//!
//! Whoever needs it asks each time; the files are then read, which for a few kilobytes that the kernel holds in memory
//! takes some microseconds, and only if they are not what they were is anything made of them. So there is no moment at
//! which a change goes unseen, and no thread that looks. If they cannot be read or are wrong, what was made before
//! stays.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Larger files are taken for mistakes, bytes.
const LARGEST: u64 = 1 << 20;

type Make<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// Files and what was last made of them.
pub(crate) struct Files<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    bytes: Vec<Vec<u8>>,
    value: Arc<T>,
    /// What is wrong with what is there now, so that it is said once.
    wrong: Option<String>,
}

/// What a look at files found.
pub(crate) struct Look<T> {
    /// What to go by.
    pub(crate) value: Arc<T>,
    /// Something else than the last time: what is new holds, or this is why it does not.
    pub(crate) news: Option<Result<(), String>>,
}

impl<T> Files<T> {
    /// Reads the files and makes something of them.
    ///
    /// # Errors
    /// What is wrong, with the name of the file where it is known.
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        make: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let bytes = read(&paths)?;
        let value = Arc::new(make(&bytes)?);
        Ok(Self { paths, make: Box::new(make), held: Mutex::new(Held { bytes, value, wrong: None }) })
    }

    /// What holds now.
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

    /// What holds now; what is new is logged as `what`.
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
        // What is in them may be secret.
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
