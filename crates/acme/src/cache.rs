//! The folder of accounts and certificates, readable by its owner only, with atomic writes and one lock.
//!
//! A certificate is one file in PEM form, the private key before the chain, so that both change at once.
//! Processes may share a folder: the one that holds the lock orders, the others load the files that it
//! writes.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The number of bytes after which a read stops.
const MAX_FILE: u64 = 1 << 20;

/// A folder of accounts and certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateCache(PathBuf);

/// The right to order, held until this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct CacheLock(#[expect(dead_code, reason = "held, not read")] File);

impl CertificateCache {
    /// Uses `folder`, which need not exist yet.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Reads a file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            open_result => open_result?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Writes a file atomically. Only the owner can read it from the moment it exists; concurrent readers see
    /// the previous version until it is replaced.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.join(name);
        let temporary_path = path.with_added_extension("new");
        match std::fs::remove_file(&temporary_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary_path, &path)?;
        // Sync the folder too, so that the new name survives a power failure.
        File::open(&self.0)?.sync_all()
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Creates the folder if necessary and takes its lock; returns `None` if another process holds it. Called
    /// before each order, because authorities limit the rate: a certificate that cannot be stored must not be
    /// ordered.
    pub(crate) fn lock(&self) -> io::Result<Option<CacheLock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let path = self.0.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(CacheLock(file))),
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

    /// A temporary folder, removed when it is dropped.
    pub(crate) struct TempFolder(pub(crate) PathBuf);

    impl TempFolder {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("plimsoll-acme-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TempFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_the_owners_alone() {
        let folder = TempFolder::new();
        let cache = CertificateCache::new(&folder.0.join("deep"));
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
