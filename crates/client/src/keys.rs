//! The keys, and the file that they are reloaded from when it changes, for key rotation while a client runs.
//!
//! The file is checked before sending, at most once per second. A file that cannot be read or parsed changes
//! nothing: it may be half written, and is checked again.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_wire::rfs::Keys;

use crate::OpenError;

/// The source of the keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// Fixed keys.
    Fixed(Keys),
    /// A file, reloaded when it changes.
    File(PathBuf),
}

/// The keys that are valid now.
#[derive(Debug)]
pub struct Ring {
    keys: Keys,
    file: Option<Watched>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    looked: Instant,
}

/// The metadata that changes when a file is modified or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// The least interval between two checks.
const LOOK: Duration = Duration::from_secs(1);

/// The largest size of a key file in bytes, including comments.
const MOST: u64 = 1 << 16;

impl Ring {
    /// Loads the keys.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub fn open(source: KeySource, now: Instant) -> Result<Self, OpenError> {
        match source {
            KeySource::Fixed(keys) => Ok(Self { keys, file: None }),
            KeySource::File(path) => {
                // Take the stamp before reading, so that a concurrent write causes a reload.
                let stamp = stamp(&path);
                match read(&path) {
                    Ok(keys) => Ok(Self { keys, file: Some(Watched { path, stamp, looked: now }) }),
                    Err(why) => Err(OpenError::Keys { path, why }),
                }
            }
        }
    }

    /// Returns the keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Reloads the keys if the file has changed; checks at most once per second. Returns `true` if they were
    /// reloaded.
    pub fn look(&mut self, now: Instant) -> bool {
        let Some(file) = &mut self.file else { return false };
        if now.duration_since(file.looked) < LOOK {
            return false;
        }
        file.looked = now;
        let stamp = stamp(&file.path);
        if stamp.is_some()
            && stamp != file.stamp
            && let Ok(keys) = read(&file.path)
        {
            (self.keys, file.stamp) = (keys, stamp);
            return true;
        }
        false
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    let changed = (about.ctime(), about.ctime_nsec());
    Some(Stamp { file: (about.dev(), about.ino()), size: about.size(), changed })
}

fn read(path: &Path) -> Result<Keys, String> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(MOST).read_to_string(&mut text));
    file.map_err(|error| {
        format!("cannot be read: {error}; it is the file that `plimsoll lottery --keys` made")
    })?;
    text.parse().map_err(|bad: plimsoll_wire::rfs::BadKeys| bad.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary file, removed when it is dropped.
    struct Draft(PathBuf);

    impl Drop for Draft {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn line(number: u32) -> String {
        format!("{number} {}\n", "5a".repeat(32))
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_bad_one_is_not_taken() {
        let path = std::env::temp_dir().join(format!("plimsoll-client-keys-{}", std::process::id()));
        let file = Draft(path.clone());
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        fs::write(&file.0, line(1)).unwrap();
        let mut ring = Ring::open(KeySource::File(path.clone()), begin).unwrap();
        let ids = |ring: &Ring| ring.keys().ids().collect::<Vec<_>>();
        // The length differs, because the file system's clock may be coarse.
        fs::write(&file.0, line(1) + &line(2)).unwrap();
        assert!(!ring.look(begin + LOOK / 2));
        assert_eq!(ids(&ring), [1], "too early to look");
        assert!(ring.look(after(1)) && !ring.look(after(1) + LOOK));
        assert_eq!(ids(&ring), [1, 2]);
        fs::write(&file.0, "2 5a5a").unwrap();
        assert!(!ring.look(after(3)));
        assert_eq!(ids(&ring), [1, 2], "half written");
        fs::remove_file(&file.0).unwrap();
        assert!(!ring.look(after(4)));
        fs::write(&file.0, line(22)).unwrap();
        assert!(ring.look(after(5)));
        assert_eq!(ids(&ring), [22]);
        fs::remove_file(&file.0).unwrap();
        let Err(OpenError::Keys { why, .. }) = Ring::open(KeySource::File(path), begin) else { panic!() };
        assert!(why.starts_with("cannot be read"), "{why}");
    }
}
