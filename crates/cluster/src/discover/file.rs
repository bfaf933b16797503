//! A file of members. Its metadata is checked every second or so, and the file is read if its inode, size or
//! times have changed. This works on every file system, also on network file systems without change
//! notifications.
//!
//! Writers should write another file and rename it. A file that is written in place is read only if it does
//! not change meanwhile. A partial list is invalid, and the members stay.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::resolve_hosts::resolve_members;
use super::{ListParser, MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig};

/// The maximum size; larger files are taken for mistakes.
const LARGEST: u64 = 4 << 20;

/// The time limit for the file system, and for lookups of the names in the file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The attempts to read a file that changes meanwhile, and the pause between two.
const READ_ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// A file of members.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSettings {
    /// The path.
    pub path: PathBuf,
    /// The interval of checks.
    pub interval: Duration,
    /// The parser of the contents.
    pub read: ListParser,
}

impl FileSettings {
    /// Returns the current number of members in the file. It resolves no names.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid: one line.
    pub fn member_count(&self) -> Result<usize, String> {
        Ok(read_if_changed(self, None)?.map_or(0, |(_, stated)| stated.len()))
    }
}

impl SourceConfig for FileSettings {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn target(&self) -> String {
        self.path.display().to_string()
    }

    fn query_timeout(&self) -> Duration {
        READ_TIMEOUT
    }

    fn retry_delay(&self, _: u32) -> Duration {
        self.interval
    }

    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(FileSource { settings: Arc::new(self.clone()), last_reported: None })
    }
}

struct FileSource {
    settings: Arc<FileSettings>,
    /// The state of the file whose members were last reported.
    last_reported: Option<FileFingerprint>,
}

impl MemberSource for FileSource {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let (settings, seen) = (Arc::clone(&self.settings), self.last_reported);
            let looked = spawn_blocking(move || read_if_changed(&settings, seen)).await;
            let members = match looked.map_err(|error| error.to_string())?? {
                None => None,
                Some((stamp, stated)) => {
                    let listed = resolve_members(stated).await?;
                    self.last_reported = Some(stamp);
                    Some(listed)
                }
            };
            let told = MemberList { members, note: None };
            Ok(QueryOutcome { list: told, valid_for: self.settings.interval })
        })
    }
}

/// The properties that identify a state of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FileFingerprint {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileFingerprint {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            file: (found.dev(), found.ino()),
            size: found.size(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

type ChangedMembers = Option<(FileFingerprint, Vec<super::UnresolvedMember>)>;

/// Reads the members, unless the file is in the state `seen`.
fn read_if_changed(settings: &FileSettings, seen: Option<FileFingerprint>) -> Result<ChangedMembers, String> {
    for _ in 0..READ_ATTEMPTS {
        let wrong = |error: io::Error| format!("cannot read it: {error}");
        let mut file = File::open(&settings.path).map_err(wrong)?;
        let before = FileFingerprint::of(&file).map_err(wrong)?;
        if seen == Some(before) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.by_ref().take(LARGEST + 1).read_to_end(&mut bytes).map_err(wrong)?;
        if bytes.len() as u64 > LARGEST {
            return Err(format!("it is larger than {} MiB", LARGEST >> 20));
        }
        if FileFingerprint::of(&file).map_err(wrong)? == before {
            let stated = (settings.read.0)(&display_path(&settings.path), &bytes)?;
            return Ok(Some((before, stated)));
        }
        std::thread::sleep(PAUSE);
    }
    Err("it changes while it is read: write another file and rename it".into())
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}
