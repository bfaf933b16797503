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

const BEGIN: &str = "{\"plimsoll_store\":1,\"sha256\":\"";
const MIDDLE: &str = "\",\"state\":";
const END: &str = "}\n";

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

fn fingerprint_of(found: &fs::Metadata) -> StoreFingerprint {
    StoreFingerprint(found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

/// Reads the file.
///
/// # Errors
/// The system denies reading it.
pub(super) fn read(path: &Path) -> io::Result<FileContents> {
    // Opening something other than a file could block forever.
    let wait_not = OFlags::NONBLOCK.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(wait_not).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileContents::Missing),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    let stamp = fingerprint_of(&found);
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    Ok(match parse(&bytes) {
        Ok(view) => FileContents::Valid(stamp, view),
        Err(why) => FileContents::Invalid(why),
    })
}

/// Renames an invalid file. Returns its new path.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let aside = path.with_added_extension(format!("bad-{unix}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// The error of saving a file.
#[derive(Debug)]
pub(super) struct SaveError {
    /// Whether the file is in place nevertheless, but may not be durable.
    pub(super) is_in_place: bool,
    pub(super) why: io::Error,
}

/// Writes another file, syncs it, and renames it over the previous one.
pub(super) fn save(path: &Path, view: &StoreSnapshot) -> Result<StoreFingerprint, SaveError> {
    let beside = path.with_added_extension("new");
    let stamp = write_and_rename(&beside, path, &text(view)).map_err(|why| {
        // A partial file takes space that may be scarce.
        let _ = fs::remove_file(&beside);
        SaveError { is_in_place: false, why }
    })?;
    // Otherwise the name may refer to the previous file after a power failure.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let safe = File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all());
    safe.map_err(|why| SaveError { is_in_place: true, why })?;
    Ok(stamp)
}

/// Writes a file and renames it to `path`.
fn write_and_rename(beside: &Path, path: &Path, text: &[u8]) -> io::Result<StoreFingerprint> {
    let mut options = OpenOptions::new();
    // Its contents may reveal the addresses of all servers.
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    let stamp = fingerprint_of(&file.metadata()?);
    fs::rename(beside, path)?;
    Ok(stamp)
}

/// Prevents other processes from changing the store while the lock is held.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let lock = path.with_added_extension("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn text(view: &StoreSnapshot) -> Vec<u8> {
    let entry = |(key, entry): (&String, &StoreEntry)| {
        let mut object = json!({"value": &*entry.value, "revision": entry.revision});
        if entry.lease != 0 {
            object["ttl_ms"] = entry.lease.into();
        }
        (key.clone(), object)
    };
    let entries: Map<String, Value> = view.entries.iter().map(entry).collect();
    let state = json!({"revision": view.revision, "entries": entries}).to_string();
    [BEGIN, &checksum(state.as_bytes()), MIDDLE, &state, END].concat().into_bytes()
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(bytes: &[u8]) -> Result<StoreSnapshot, String> {
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    let foreign = || "it is no store of plimsoll's".to_owned();
    let rest = bytes.strip_prefix(BEGIN.as_bytes()).ok_or_else(foreign)?;
    let torn = || "it is torn: its checksum is not that of what it says".to_owned();
    let (wanted, rest) = rest.split_at_checked(64).ok_or_else(torn)?;
    let state = rest.strip_prefix(MIDDLE.as_bytes()).ok_or_else(torn)?;
    let state = state.strip_suffix(END.as_bytes()).ok_or_else(torn)?;
    if checksum(state).as_bytes() != wanted {
        return Err(torn());
    }
    let state: Value = serde_json::from_slice(state).map_err(|why| format!("it is no JSON: {why}"))?;
    view(&state).ok_or_else(|| "it does not say what a store says".to_owned())
}

fn view(state: &Value) -> Option<StoreSnapshot> {
    let revision = state["revision"].as_i64()?;
    let entry = |(key, entry): (&String, &Value)| {
        let value = entry["value"].as_str()?.into();
        let lease = entry.get("ttl_ms").map_or(Some(0), Value::as_i64)?;
        Some((key.clone(), StoreEntry { value, revision: entry["revision"].as_i64()?, lease }))
    };
    let entries = state["entries"].as_object()?;
    let entries = entries.iter().map(entry).collect::<Option<_>>()?;
    Some(StoreSnapshot { revision, entries }).filter(|view| view.entries.len() <= MAX_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> StoreSnapshot {
        let entry = |value: &str, revision, lease| StoreEntry { value: value.into(), revision, lease };
        let entries =
            [("drain/web/a:1".to_owned(), entry("{}", 3, 0)), ("m\"".to_owned(), entry("ü\n", 7, 5000))];
        StoreSnapshot { revision: 7, entries: entries.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = text(&some());
        assert_eq!(parse(&text), Ok(some()));
        assert!(serde_json::from_slice::<Value>(&text).is_ok(), "it is JSON as a whole");
    }

    #[test]
    fn no_byte_can_be_another_and_none_missing() {
        let text = text(&some());
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert!(parse(&changed).is_err(), "{at}");
            assert!(parse(&text[..at]).is_err(), "cut at {at}");
        }
        for foreign in ["", "{}", "members = []", "\0\0\0\0"] {
            assert!(parse(foreign.as_bytes()).is_err(), "{foreign:?}");
        }
    }
}
