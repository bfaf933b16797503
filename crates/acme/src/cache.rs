//! The folder that has accounts and certificates, for the owner alone: files that appear whole or not at all, and one lock.
//!
//! A certificate is one file, its private key first and then the chain (PEM), so that both change in one moment. Processes may
//! share a folder: one of them orders, the others take what it put there.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Larger files are none of ours.
const LARGEST: u64 = 1 << 20;

/// A folder of accounts and certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache(PathBuf);

/// Whoever has it may order. It ends with this, or with the process.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

impl Cache {
    /// Of a folder that may not be there yet.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// What a file holds; `None` if there is none.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Writes a file that only the owner may read, from its first moment. Whoever reads it meanwhile reads the one before.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.join(name);
        let beside = path.with_added_extension("new");
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        // So that the name outlives a loss of power as well.
        File::open(&self.0)?.sync_all()
    }

    /// Takes a file out, if it is there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Makes the folder if it is not there, and takes its lock; `None` if somebody else has it. Nothing is ordered that could not
    /// be kept: authorities count.
    pub(crate) fn lock(&self) -> io::Result<Option<Lock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let path = self.0.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// A folder that goes away with its test.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("plimsoll-acme-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_the_owners_alone() {
        let folder = Folder::new();
        let cache = Cache::new(&folder.0.join("deep"));
        assert_eq!(cache.read("a.pem").unwrap(), None);
        let lock = cache.lock().unwrap().expect("nobody has it");
        assert!(cache.lock().unwrap().is_none(), "somebody has it");
        drop(lock);
        assert!(cache.lock().unwrap().is_some());
        cache.write("a.pem", b"one").unwrap();
        cache.write("a.pem", b"two").unwrap();
        assert_eq!(cache.read("a.pem").unwrap().unwrap(), b"two");
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.0.join("deep/a.pem")), 0o600);
        assert_eq!(mode(folder.0.join("deep")), 0o700);
        cache.remove("a.pem").unwrap();
        cache.remove("a.pem").unwrap();
        assert_eq!(cache.read("a.pem").unwrap(), None);
    }
}
