//! The file of a store. Each version is written to another file, synced, and renamed over the previous one,
//! so that a complete file always exists.
//!
//! It is JSON with a checksum of its contents:
//! `{"plimsoll_store":1,"sha256":"…","state":{"revision":…,"entries":{…}}}`. A damaged or foreign file is
//! renamed and never used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{MAX_ENTRIES, StoreEntry, StoreSnapshot};

const HEADER_START: &str = "{\"plimsoll_store\":1,\"sha256\":\"";
const HEADER_END: &str = "\",\"state\":";
const FOOTER: &str = "}\n";

/// The maximum size; larger files are not stores.
const MAX_SIZE: u64 = 1 << 30;

/// The identity of a version of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreFingerprint(u64, u64, i64, i64);

/// The contents of the store's path.
#[derive(Debug, PartialEq)]
pub(super) enum FileContents {
    /// There is no file.
    Missing,
    /// There is a valid store.
    Valid(StoreFingerprint, StoreSnapshot),
    /// There is something else, for this reason.
    Invalid(String),
}

/// Returns the identity of the current file; `None` if there is none.
pub(super) fn fingerprint(path: &Path) -> Option<StoreFingerprint> {
    Some(fingerprint_of(&fs::metadata(path).ok()?))
}

fn fingerprint_of(metadata: &fs::Metadata) -> StoreFingerprint {
    StoreFingerprint(metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// Reads the file.
///
/// # Errors
/// The system denies reading it.
pub(super) fn read(path: &Path) -> io::Result<FileContents> {
    // Opening something other than a file could block forever.
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileContents::Missing),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    let fingerprint = fingerprint_of(&metadata);
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    Ok(match parse(&bytes) {
        Ok(snapshot) => FileContents::Valid(fingerprint, snapshot),
        Err(error) => FileContents::Invalid(error),
    })
}

/// Renames an invalid file. Returns its new path.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let backup_path = path.with_added_extension(format!("bad-{timestamp}"));
    fs::rename(path, &backup_path)?;
    Ok(backup_path)
}

/// The error of saving a file.
#[derive(Debug)]
pub(super) struct SaveError {
    /// Whether the file is in place nevertheless, but may not be durable.
    pub(super) is_in_place: bool,
    pub(super) why: io::Error,
}

/// Writes another file, syncs it, and renames it over the previous one.
pub(super) fn save(path: &Path, snapshot: &StoreSnapshot) -> Result<StoreFingerprint, SaveError> {
    let temporary_path = path.with_added_extension("new");
    let fingerprint = write_and_rename(&temporary_path, path, &encode(snapshot)).map_err(|error| {
        // A partial file takes space that may be scarce.
        let _ = fs::remove_file(&temporary_path);
        SaveError { is_in_place: false, why: error }
    })?;
    // Otherwise the name may refer to the previous file after a power failure.
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let sync_result =
        File::open(directory.unwrap_or_else(|| Path::new("."))).and_then(|directory| directory.sync_all());
    sync_result.map_err(|error| SaveError { is_in_place: true, why: error })?;
    Ok(fingerprint)
}

/// Writes a file and renames it to `path`.
fn write_and_rename(temporary_path: &Path, path: &Path, contents: &[u8]) -> io::Result<StoreFingerprint> {
    let mut options = OpenOptions::new();
    // Its contents may reveal the addresses of all servers.
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(temporary_path)?;
    file.write_all(contents)?;
    file.sync_all()?;
    let fingerprint = fingerprint_of(&file.metadata()?);
    fs::rename(temporary_path, path)?;
    Ok(fingerprint)
}

/// Prevents other processes from changing the store while the lock is held.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let lock = path.with_added_extension("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn encode(snapshot: &StoreSnapshot) -> Vec<u8> {
    let entry = |(key, entry): (&String, &StoreEntry)| {
        let mut object = json!({"value": &*entry.value, "revision": entry.revision});
        if entry.lease != 0 {
            object["ttl_ms"] = entry.lease.into();
        }
        (key.clone(), object)
    };
    let entries: Map<String, Value> = snapshot.entries.iter().map(entry).collect();
    let state = json!({"revision": snapshot.revision, "entries": entries}).to_string();
    [HEADER_START, &checksum(state.as_bytes()), HEADER_END, &state, FOOTER].concat().into_bytes()
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(bytes: &[u8]) -> Result<StoreSnapshot, String> {
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    let foreign_error = || "it is no store of plimsoll's".to_owned();
    let rest = bytes.strip_prefix(HEADER_START.as_bytes()).ok_or_else(foreign_error)?;
    let torn_error = || "it is torn: its checksum is not that of what it says".to_owned();
    let (expected_checksum, rest) = rest.split_at_checked(64).ok_or_else(torn_error)?;
    let state = rest.strip_prefix(HEADER_END.as_bytes()).ok_or_else(torn_error)?;
    let state = state.strip_suffix(FOOTER.as_bytes()).ok_or_else(torn_error)?;
    if checksum(state).as_bytes() != expected_checksum {
        return Err(torn_error());
    }
    let state: Value = serde_json::from_slice(state).map_err(|error| format!("it is no JSON: {error}"))?;
    parse_snapshot(&state).ok_or_else(|| "it does not say what a store says".to_owned())
}

fn parse_snapshot(state: &Value) -> Option<StoreSnapshot> {
    let revision = state["revision"].as_i64()?;
    let entry = |(key, entry): (&String, &Value)| {
        let value = entry["value"].as_str()?.into();
        let lease = entry.get("ttl_ms").map_or(Some(0), Value::as_i64)?;
        Some((key.clone(), StoreEntry { value, revision: entry["revision"].as_i64()?, lease }))
    };
    let entries = state["entries"].as_object()?;
    let entries = entries.iter().map(entry).collect::<Option<_>>()?;
    Some(StoreSnapshot { revision, entries }).filter(|snapshot| snapshot.entries.len() <= MAX_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_snapshot() -> StoreSnapshot {
        let entry = |value: &str, revision, lease| StoreEntry { value: value.into(), revision, lease };
        let entries =
            [("drain/web/a:1".to_owned(), entry("{}", 3, 0)), ("m\"".to_owned(), entry("ü\n", 7, 5000))];
        StoreSnapshot { revision: 7, entries: entries.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let encoded = encode(&sample_snapshot());
        assert_eq!(parse(&encoded), Ok(sample_snapshot()));
        assert!(serde_json::from_slice::<Value>(&encoded).is_ok(), "it is JSON as a whole");
    }

    #[test]
    fn no_byte_can_be_another_and_none_missing() {
        let encoded = encode(&sample_snapshot());
        for index in 0..encoded.len() {
            let mut changed = encoded.clone();
            changed[index] ^= 1;
            assert!(parse(&changed).is_err(), "{index}");
            assert!(parse(&encoded[..index]).is_err(), "cut at {index}");
        }
        for foreign_text in ["", "{}", "members = []", "\0\0\0\0"] {
            assert!(parse(foreign_text.as_bytes()).is_err(), "{foreign_text:?}");
        }
    }
}
