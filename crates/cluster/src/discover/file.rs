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
const MAX_FILE_SIZE: u64 = 4 << 20;

/// The time limit for the file system, and for lookups of the names in the file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The attempts to read a file that changes meanwhile, and the pause between two.
const READ_ATTEMPTS: usize = 5;
const READ_RETRY_PAUSE: Duration = Duration::from_millis(20);

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
        Ok(read_if_changed(self, None)?.map_or(0, |(_, unresolved_members)| unresolved_members.len()))
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
            let (settings, last_reported) = (Arc::clone(&self.settings), self.last_reported);
            let result = spawn_blocking(move || read_if_changed(&settings, last_reported)).await;
            let members = match result.map_err(|error| error.to_string())?? {
                None => None,
                Some((fingerprint, unresolved_members)) => {
                    let resolved_members = resolve_members(unresolved_members).await?;
                    self.last_reported = Some(fingerprint);
                    Some(resolved_members)
                }
            };
            let list = MemberList { members, note: None };
            Ok(QueryOutcome { list, valid_for: self.settings.interval })
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
        let metadata = file.metadata()?;
        Ok(Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

type ChangedMembers = Option<(FileFingerprint, Vec<super::UnresolvedMember>)>;

/// Reads the members, unless the file is in the state `seen`.
fn read_if_changed(
    settings: &FileSettings,
    last_reported: Option<FileFingerprint>,
) -> Result<ChangedMembers, String> {
    for _ in 0..READ_ATTEMPTS {
        let read_error = |error: io::Error| format!("cannot read it: {error}");
        let mut file = File::open(&settings.path).map_err(read_error)?;
        let fingerprint = FileFingerprint::of(&file).map_err(read_error)?;
        if last_reported == Some(fingerprint) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.by_ref().take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > MAX_FILE_SIZE {
            return Err(format!("it is larger than {} MiB", MAX_FILE_SIZE >> 20));
        }
        if FileFingerprint::of(&file).map_err(read_error)? == fingerprint {
            let unresolved_members = (settings.read.0)(&display_path(&settings.path), &bytes)?;
            return Ok(Some((fingerprint, unresolved_members)));
        }
        std::thread::sleep(READ_RETRY_PAUSE);
    }
    Err("it changes while it is read: write another file and rename it".into())
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}
