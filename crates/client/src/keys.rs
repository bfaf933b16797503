//! The keys, and the file that they are reloaded from when it changes, for key rotation while a client runs.
//!
//! The file is checked before sending, at most once per second. A file that cannot be read or parsed changes
//! nothing: it may be half written, and is checked again.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_wire::rfs::KeyRing;

use crate::OpenError;

/// The source of the keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// Fixed keys.
    Fixed(KeyRing),
    /// A file, reloaded when it changes.
    File(PathBuf),
}

/// The keys that are valid now.
#[derive(Debug)]
pub struct ReloadableKeys {
    keys: KeyRing,
    file: Option<WatchedFile>,
}

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    stamp: Option<FileStamp>,
    checked_at: Instant,
}

/// The metadata that changes when a file is modified or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// The least interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The largest size of a key file in bytes, including comments.
const MAX_FILE: u64 = 1 << 16;

impl ReloadableKeys {
    /// Loads the keys.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub fn open(source: KeySource, now: Instant) -> Result<Self, OpenError> {
        match source {
            KeySource::Fixed(keys) => Ok(Self { keys, file: None }),
            KeySource::File(path) => {
                // Take the stamp before reading, so that a concurrent write causes a reload.
                let stamp = file_stamp(&path);
                match read(&path) {
                    Ok(keys) => Ok(Self { keys, file: Some(WatchedFile { path, stamp, checked_at: now }) }),
                    Err(error) => Err(OpenError::Keys { path, why: error }),
                }
            }
        }
    }

    /// Returns the keys.
    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// Reloads the keys if the file has changed; checks at most once per second. Returns `true` if they were
    /// reloaded.
    pub fn reload_if_changed(&mut self, now: Instant) -> bool {
        let Some(file) = &mut self.file else { return false };
        if now.duration_since(file.checked_at) < CHECK_INTERVAL {
            return false;
        }
        file.checked_at = now;
        let stamp = file_stamp(&file.path);
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

fn file_stamp(path: &Path) -> Option<FileStamp> {
    let metadata = fs::metadata(path).ok()?;
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    Some(FileStamp { file: (metadata.dev(), metadata.ino()), size: metadata.size(), changed })
}

fn read(path: &Path) -> Result<KeyRing, String> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    file.map_err(|error| {
        format!("cannot be read: {error}; it is the file that `plimsoll lottery --keys` made")
    })?;
    text.parse().map_err(|error: plimsoll_wire::rfs::KeyFileError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary file, removed when it is dropped.
    struct TempFile(PathBuf);

    impl Drop for TempFile {
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
        let file = TempFile(path.clone());
        let start = Instant::now();
        let time_after = |seconds: u64| start + Duration::from_secs(seconds);
        fs::write(&file.0, line(1)).unwrap();
        let mut keys = ReloadableKeys::open(KeySource::File(path.clone()), start).unwrap();
        let key_ids = |keys: &ReloadableKeys| keys.keys().ids().collect::<Vec<_>>();
        // The length differs, because the file system's clock may be coarse.
        fs::write(&file.0, line(1) + &line(2)).unwrap();
        assert!(!keys.reload_if_changed(start + CHECK_INTERVAL / 2));
        assert_eq!(key_ids(&keys), [1], "too early to look");
        assert!(
            keys.reload_if_changed(time_after(1)) && !keys.reload_if_changed(time_after(1) + CHECK_INTERVAL)
        );
        assert_eq!(key_ids(&keys), [1, 2]);
        fs::write(&file.0, "2 5a5a").unwrap();
        assert!(!keys.reload_if_changed(time_after(3)));
        assert_eq!(key_ids(&keys), [1, 2], "half written");
        fs::remove_file(&file.0).unwrap();
        assert!(!keys.reload_if_changed(time_after(4)));
        fs::write(&file.0, line(22)).unwrap();
        assert!(keys.reload_if_changed(time_after(5)));
        assert_eq!(key_ids(&keys), [22]);
        fs::remove_file(&file.0).unwrap();
        let Err(OpenError::Keys { why, .. }) = ReloadableKeys::open(KeySource::File(path), start) else {
            panic!()
        };
        assert!(why.starts_with("cannot be read"), "{why}");
    }
}
