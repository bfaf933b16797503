//! The audit log: a JSON line for each change, and for each rejected attempt.
//!
//! A change has two lines with the same `id`. `begun` is on the disk before the change is made; the second
//! line has its outcome and is written before the response is sent. If the log cannot be written, changes are
//! therefore rejected, and a single `begun` means that the process ended during the change. Queries are not
//! logged, nor are secrets. Rejections are logged up to [`REJECTION_BURST`] at once and [`REJECTION_RATE`]
//! per second, so that unauthenticated clients cannot fill the disk; the next line counts the omitted ones.
//! The file is only appended to; if it was moved or removed, a new one is created.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use crate::access::Caller;

/// The result in the first line of a change.
const RESULT_BEGUN: &str = "begun";
/// The maximum burst of logged rejections.
const REJECTION_BURST: f64 = 50.0;
/// The maximum rate of logged rejections per second.
const REJECTION_RATE: f64 = 5.0;
/// The maximum length of externally determined text in a line, in characters.
const MAX_TEXT_LENGTH: usize = 400;

/// The log.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    state: Mutex<AuditState>,
}

#[derive(Debug)]
struct AuditState {
    file: File,
    /// The ID of the last change.
    id: u64,
    /// The number of rejections that may be logged now.
    rejection_tokens: f64,
    refilled: Instant,
    /// The number of omitted rejections.
    omitted_rejections: u64,
}

/// A request.
#[derive(Clone, Debug)]
pub struct AuditedRequest {
    /// The caller and its credential.
    pub caller: Caller,
    /// The origin: an address, or the process at the other end of a unix socket.
    pub from: String,
    /// The operation's name, or `connect`.
    pub verb: &'static str,
    /// The target: a group and member, or nothing.
    pub target: Option<String>,
    /// The other arguments.
    pub arguments: Value,
}

#[derive(Serialize)]
struct AuditLine<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    pid: u32,
    kind: &'static str,
    who: &'a str,
    from: &'a str,
    verb: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    arguments: &'a Value,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The number of rejections omitted before this line.
    #[serde(skip_serializing_if = "Option::is_none")]
    unwritten: Option<u64>,
}

impl AuditLog {
    /// Opens the file, or creates it (mode 0600).
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_for_append(path)?;
        let state = AuditState {
            file,
            id: 0,
            rejection_tokens: REJECTION_BURST,
            refilled: Instant::now(),
            omitted_rejections: 0,
        };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Logs the beginning of a change and returns its ID.
    ///
    /// # Errors
    /// The line is not on the disk: the change must not be made.
    pub fn begin_change(&self, request: &AuditedRequest) -> Result<u64, String> {
        let mut state = self.lock();
        let id = state.id + 1;
        self.write(&mut state, Some(id), request, RESULT_BEGUN, None)
            .map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
        state.id = id;
        Ok(id)
    }

    /// Logs the outcome of a change.
    pub fn end_change(&self, id: u64, request: &AuditedRequest, outcome: Result<(), &str>) {
        let mut state = self.lock();
        let (result, reason) = match outcome {
            Ok(()) => ("done", None),
            Err(reason) => ("failed", Some(reason)),
        };
        if let Err(error) = self.write(&mut state, Some(id), request, result, reason) {
            tracing::error!("cannot write {}: {error}: {} is {result}", self.path.display(), request.verb);
        }
    }

    /// Logs a rejection.
    pub fn log_rejection(&self, request: &AuditedRequest, reason: &str) {
        let mut state = self.lock();
        let now = Instant::now();
        let gained_tokens = now.duration_since(state.refilled).as_secs_f64() * REJECTION_RATE;
        state.rejection_tokens = (state.rejection_tokens + gained_tokens).min(REJECTION_BURST);
        state.refilled = now;
        if state.rejection_tokens < 1.0 {
            state.omitted_rejections += 1;
            return;
        }
        state.rejection_tokens -= 1.0;
        self.write_or_warn(&mut state, request, "refused", Some(reason));
    }

    /// Logs a change without a request: reloaded rules.
    pub fn log_change(&self, request: &AuditedRequest, outcome: Result<(), &str>) {
        let (result, reason) = match outcome {
            Ok(()) => ("done", None),
            Err(reason) => ("refused", Some(reason)),
        };
        self.write_or_warn(&mut self.lock(), request, result, reason);
    }

    fn write_or_warn(
        &self,
        state: &mut AuditState,
        request: &AuditedRequest,
        result: &'static str,
        reason: Option<&str>,
    ) {
        if let Err(error) = self.write(state, None, request, result, reason) {
            tracing::error!("cannot write {}: {error}", self.path.display());
        }
    }

    fn write(
        &self,
        state: &mut AuditState,
        id: Option<u64>,
        request: &AuditedRequest,
        result: &'static str,
        reason: Option<&str>,
    ) -> io::Result<()> {
        if !is_same_file(&state.file, &self.path) {
            state.file = open_for_append(&self.path)?;
        }
        let line = AuditLine {
            time: now(),
            id,
            pid: std::process::id(),
            kind: request.caller.kind.name(),
            who: &shorten(&request.caller.name),
            from: &request.from,
            verb: request.verb,
            target: request.target.as_deref().map(shorten),
            arguments: &request.arguments,
            result,
            why: reason.map(shorten),
            unwritten: Some(state.omitted_rejections).filter(|unwritten| *unwritten > 0),
        };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        // The previous line may be incomplete after a full disk or a crash.
        if is_last_line_torn(&state.file) {
            text.insert(0, '\n');
        }
        // A single write, so that lines of two processes do not mix.
        state.file.write_all(text.as_bytes())?;
        if result == RESULT_BEGUN {
            state.file.sync_data()?;
        }
        state.omitted_rejections = 0;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, AuditState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if the last line is incomplete.
fn is_last_line_torn(file: &File) -> bool {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut last_byte = [b'\n'];
    // A file that cannot be read back, such as a pipe, counts as complete.
    length > 0 && file.read_at(&mut last_byte, length - 1).is_ok() && last_byte != [b'\n']
}

fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).read(true).create(true).mode(0o600).open(path)
}

/// Returns `true` if the open file is the one at that path.
fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(at_path)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (opened.dev(), opened.ino()) == (at_path.dev(), at_path.ino())
}

/// Returns the time as `2026-11-22T08:26:33.042Z`.
fn now() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(0);
    let datetime = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = datetime.to_calendar_date();
    let (hour, minute, second) = datetime.to_hms();
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z", u8::from(month))
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_TEXT_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn audited_request() -> AuditedRequest {
        AuditedRequest {
            caller: Caller::spiffe("spiffe://example.org/ops/a"),
            from: "10.0.0.9:5".into(),
            verb: "drain",
            target: Some("web a:80".into()),
            arguments: json!({"member": "a:80"}),
        }
    }

    fn temp_directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("plimsoll-audit-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_change_has_two_lines_and_a_refusal_one() {
        let directory = temp_directory("lines");
        let path = directory.join("audit.log");
        let audit = AuditLog::open(&path).unwrap();
        let id = audit.begin_change(&audited_request()).unwrap();
        assert_eq!(lines(&path).len(), 1, "before anything is done");
        audit.end_change(id, &audited_request(), Err("no such member"));
        audit.log_rejection(&audited_request(), "no grant\ngives it");
        let lines = lines(&path);
        let results: Vec<_> = lines.iter().map(|line| line["result"].as_str().unwrap()).collect();
        assert_eq!(results, ["begun", "failed", "refused"]);
        assert_eq!((&lines[0]["id"], &lines[1]["id"], &lines[2]["id"]), (&json!(1), &json!(1), &Value::Null));
        assert_eq!(lines[2]["why"], "no grant\ngives it");
        assert_eq!(lines[0]["who"], "spiffe://example.org/ops/a");
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_log_that_was_moved_is_made_anew_and_one_that_cannot_be_refuses() {
        let directory = temp_directory("moved");
        let path = directory.join("audit.log");
        let audit = AuditLog::open(&path).unwrap();
        audit.begin_change(&audited_request()).unwrap();
        std::fs::rename(&path, directory.join("audit.log.1")).unwrap();
        audit.begin_change(&audited_request()).unwrap();
        assert_eq!((lines(&path).len(), lines(&directory.join("audit.log.1")).len()), (1, 1));
        std::fs::remove_dir_all(&directory).unwrap();
        let reason = audit.begin_change(&audited_request()).unwrap_err();
        assert!(reason.contains("audit.log"), "{reason}");
    }

    #[test]
    fn a_line_after_half_a_line_is_one_of_its_own() {
        let directory = temp_directory("torn");
        let path = directory.join("audit.log");
        std::fs::write(&path, "{\"time\":\"2026").unwrap();
        let audit = AuditLog::open(&path).unwrap();
        audit.begin_change(&audited_request()).unwrap();
        // The state after a full disk.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"time\"").unwrap();
        audit.begin_change(&audited_request()).unwrap();
        audit.log_rejection(&audited_request(), "no");
        let text = std::fs::read_to_string(&path).unwrap();
        let complete_lines = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
        assert_eq!((text.lines().count(), complete_lines), (5, 3), "{text}");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_stranger_cannot_fill_the_disk() {
        let directory = temp_directory("flood");
        let path = directory.join("audit.log");
        let audit = AuditLog::open(&path).unwrap();
        let started_at = Instant::now();
        (0..10_000).for_each(|_| audit.log_rejection(&audited_request(), "no"));
        let id = audit.begin_change(&audited_request()).unwrap();
        let lines = lines(&path);
        // bound: what may be written at once and in the time that it took, and the line of the change
        let max_lines = REJECTION_BURST + REJECTION_RATE * started_at.elapsed().as_secs_f64() + 1.0;
        assert!((50..=max_lines as usize).contains(&lines.len()), "{}", lines.len());
        let unwritten: u64 = lines.iter().filter_map(|line| line["unwritten"].as_u64()).sum();
        assert_eq!(unwritten as usize + lines.len() - 1, 10_000);
        assert_eq!(id, 1);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
