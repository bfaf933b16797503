//! The watch on configurations without polling: the kernel reports changes of their folders. Editors replace
//! files, others write into them, and in containers a link is turned. Each is an event in the folder, after
//! which the file itself is examined.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The print of a file; all zero if there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileFingerprint([i64; 5]);

impl FileFingerprint {
    /// Returns the present print.
    pub(super) fn of(file: &Path) -> Self {
        let fingerprint = |data: fs::Metadata| {
            let size = i64::try_from(data.len()).unwrap_or(i64::MAX);
            Self([data.dev() as i64, data.ino() as i64, data.mtime(), data.mtime_nsec(), size])
        };
        fs::metadata(file).map(fingerprint).unwrap_or_default()
    }
}

/// The folders that are watched.
pub(super) struct ConfigWatch {
    inotify: AsyncFd<OwnedFd>,
    folders: Vec<(PathBuf, i32)>,
}

impl ConfigWatch {
    pub(super) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "sound with an OwnedFd, which stays open and the same; its heir is unsafe"
        )]
        let inotify = AsyncFd::with_interest(inotify, Interest::READABLE)?;
        Ok(Self { inotify, folders: Vec::new() })
    }

    /// Watches the folders of these files, and no others.
    pub(super) fn watch_files<'f>(&mut self, files: impl Iterator<Item = &'f Path>) {
        let mut watched_folders: Vec<PathBuf> = files.map(folder).collect();
        watched_folders.sort();
        watched_folders.dedup();
        let inotify = self.inotify.get_ref();
        self.folders.retain(|(folder, watch_descriptor)| {
            let is_watched = watched_folders.contains(folder);
            if !is_watched {
                let _ = inotify::remove_watch(inotify, *watch_descriptor);
            }
            is_watched
        });
        for folder in watched_folders {
            if self.folders.iter().any(|(watched_folder, _)| *watched_folder == folder) {
                continue;
            }
            let events = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
            match inotify::add_watch(inotify, &folder, events) {
                Ok(watch_descriptor) => self.folders.push((folder, watch_descriptor)),
                Err(error) => tracing::warn!("cannot watch {}: {error}", folder.display()),
            }
        }
    }

    /// Returns when something happened in one of the folders.
    pub(super) async fn changed(&mut self) {
        loop {
            let Ok(mut guard) = self.inotify.readable().await else { return std::future::pending().await };
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(self.inotify.get_ref(), &mut buffer);
            let mut is_relevant = false;
            while reader.next().is_ok() {
                is_relevant = true;
            }
            guard.clear_ready();
            if is_relevant {
                return;
            }
        }
    }
}

fn folder(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Takes events until there are no more.
    async fn drain_events(config_watch: &mut ConfigWatch) {
        while timeout(Duration::from_millis(50), config_watch.changed()).await.is_ok() {}
    }

    #[tokio::test]
    async fn a_change_is_noticed_however_it_is_made() {
        let folder_path = std::env::temp_dir().join(format!("plimsoll-watch-{}", std::process::id()));
        fs::create_dir_all(&folder_path).unwrap();
        let file = folder_path.join("a.toml");
        let mut config_watch = ConfigWatch::new().unwrap();
        config_watch.watch_files([&*file].into_iter());
        let mut fingerprint = FileFingerprint::of(&file);
        assert_eq!(fingerprint, FileFingerprint::default());
        let steps: [&dyn Fn(); 3] = [
            &|| fs::write(&file, "one").unwrap(),
            &|| {
                fs::write(folder_path.join("new"), "another").unwrap();
                fs::rename(folder_path.join("new"), &file).unwrap();
            },
            &|| {
                fs::write(folder_path.join("b"), "linked to").unwrap();
                fs::remove_file(&file).unwrap();
                std::os::unix::fs::symlink("b", &file).unwrap();
            },
        ];
        for step in steps {
            step();
            timeout(Duration::from_secs(60), config_watch.changed()).await.expect("an event");
            drain_events(&mut config_watch).await;
            assert_ne!(FileFingerprint::of(&file), fingerprint);
            fingerprint = FileFingerprint::of(&file);
        }
        config_watch.watch_files([].into_iter());
        // The end of the watch is an event, too.
        drain_events(&mut config_watch).await;
        fs::write(&file, "nobody looks").unwrap();
        assert!(timeout(Duration::from_millis(50), config_watch.changed()).await.is_err());
        fs::remove_dir_all(folder_path).unwrap();
    }
}
