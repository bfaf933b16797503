//! The keys, and the file that they are read from again when it changes: so keys are rotated while a client runs.
//!
//! The file is looked at when something is to be sent, once a second at most. One that cannot be read or has something else
//! in it changes nothing: it may be half written, and is looked at again.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_wire::rfs::Keys;

use crate::OpenError;

/// Where the keys come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// These, for ever.
    Fixed(Keys),
    /// What stands in this file, also when it changes.
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

/// What of a file changes when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of a file of keys at the most, comments included.
const MOST: u64 = 1 << 16;

impl Ring {
    /// The keys of a source as they are.
    ///
    /// # Errors
    /// The file cannot be read, or has something else in it.
    pub fn open(source: KeySource, now: Instant) -> Result<Self, OpenError> {
        match source {
            KeySource::Fixed(keys) => Ok(Self { keys, file: None }),
            KeySource::File(path) => {
                // First the stamp: what is written meanwhile is then read again.
                let stamp = stamp(&path);
                match read(&path) {
                    Ok(keys) => Ok(Self { keys, file: Some(Watched { path, stamp, looked: now }) }),
                    Err(why) => Err(OpenError::Keys { path, why }),
                }
            }
        }
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Reads them again if the file has changed; looks once a second at most. Has it been read again?
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

    /// A file that goes away.
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
        // Of another length: the clock of a file system may be slow.
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
