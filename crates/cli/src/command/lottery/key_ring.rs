//! The steps from one key to the next in a file of keys. A repeated step changes nothing, so that a change of
//! keys that broke off is begun again without harm. The file is whole at any moment, and several daemons of a
//! host may share it.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use plimsoll_admin::{KeyHolder, KeyStep};
use plimsoll_wire::rfs::{KeyRing, MAX_KEYS};

use super::key_file::FILE_HEADER;

/// Takes a step in a file; returns its keys then.
///
/// # Errors
/// Fails if the file cannot be read or written, or the step cannot be taken: the file stays unchanged. No
/// error contains a secret.
pub(super) fn apply_step(path: &Path, step: &KeyStep) -> Result<KeyRing, String> {
    let with_path = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let path = fs::canonicalize(path).map_err(|error| with_path(&error))?;
    let _lock =
        lock(&path).map_err(|error| with_path(&format_args!("its folder cannot be locked: {error}")))?;
    let text = fs::read_to_string(&path).map_err(|error| with_path(&error))?;
    // The parser checks the rules of a file of keys.
    text.parse::<KeyRing>().map_err(|error| with_path(&error))?;
    let old_lines = lines(&text);
    let mut new_lines = old_lines.clone();
    apply_to_lines(&mut new_lines, step).map_err(|error| with_path(&error))?;
    let text = render_file(&new_lines);
    let keys = text.parse::<KeyRing>().map_err(|error| with_path(&error))?;
    if new_lines != old_lines {
        replace(&path, &text).map_err(|error| with_path(&format_args!("cannot be written: {error}")))?;
    }
    Ok(keys)
}

/// Returns the keys in a file with their kinds.
///
/// # Errors
/// Fails if it cannot be read, or has something else in it.
pub(super) fn keys_by_role(path: &Path) -> Result<KeyRing, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse().map_err(|error| format!("{}: {error}", path.display()))
}

/// Numbers, secrets and kinds; the first of its kind seals.
type KeyLines = Vec<(u32, String, KeyHolder)>;

fn lines(text: &str) -> KeyLines {
    let line = |line: &str| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let (id, secret) = (words.next()?.parse().ok()?, words.next()?.to_ascii_lowercase());
        // There is no other word in a valid file of keys.
        Some((id, secret, if words.next().is_some() { KeyHolder::Client } else { KeyHolder::Daemon }))
    };
    text.trim_start_matches('\u{feff}').lines().filter_map(line).collect()
}

fn apply_to_lines(keys: &mut KeyLines, step: &KeyStep) -> Result<(), String> {
    let index_of = |keys: &KeyLines, id: u32| keys.iter().position(|(key_id, ..)| *key_id == id);
    let first_of_holder =
        |keys: &KeyLines, holder| keys.iter().position(|(.., key_holder)| *key_holder == holder);
    match step {
        KeyStep::Accept(id, secret, holder) => match index_of(keys, *id) {
            Some(index) if keys[index].1 == secret.digits() && keys[index].2 == *holder => {}
            Some(_) => return Err(format!("there is another key with the number {id}")),
            None if keys.iter().filter(|(.., key_holder)| key_holder == holder).count() >= MAX_KEYS => {
                return Err(format!("there are {MAX_KEYS} keys already: retire one"));
            }
            None => keys.push((*id, secret.digits().to_owned(), *holder)),
        },
        KeyStep::Seal(id) => match index_of(keys, *id) {
            // The key moves before all others of its kind, which keep their order.
            Some(index) => {
                let first_index = first_of_holder(keys, keys[index].2).unwrap_or(index);
                keys[first_index..=index].rotate_right(1);
            }
            None => return Err(format!("there is no key with the number {id}")),
        },
        KeyStep::Retire(id) => match index_of(keys, *id) {
            Some(index) if first_of_holder(keys, keys[index].2) == Some(index) => {
                return Err(format!("key {id} is the one that is sent with"));
            }
            Some(index) => drop(keys.remove(index)),
            None => {}
        },
    }
    Ok(())
}

fn render_file(keys: &KeyLines) -> String {
    let mut text = FILE_HEADER.to_owned();
    for (id, secret, holder) in keys {
        let role = if *holder == KeyHolder::Client { " client" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{id} {secret}{role}");
    }
    text
}

/// Replaces a file by another one, for the same owner and with the same mode.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary_path = path.with_file_name(name);
    let result = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_path).and_then(
        |mut file| {
            if (metadata.uid(), metadata.gid()) != (file.metadata()?.uid(), file.metadata()?.gid()) {
                fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
            }
            file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o777))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary_path, path)
        },
    );
    if result.is_err() {
        // The draft has secrets in it.
        let _ = fs::remove_file(&temporary_path);
    }
    result
}

/// Locks the folder, so that others wait with a step in a file of it.
fn lock(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or_else(|| Path::new(".")))?;
    folder.lock()?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::rfs::KeyRole;

    use super::*;

    fn secret(digit: char) -> plimsoll_admin::KeySecret {
        digit.to_string().repeat(64).parse().unwrap()
    }

    #[test]
    fn a_key_is_accepted_then_seals_then_is_alone() {
        let path = std::env::temp_dir().join(format!("plimsoll-ring-{}", std::process::id()));
        fs::write(&path, format!("# ours\n7 {} # old\n", "A".repeat(64))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let ids = |step: &KeyStep| apply_step(&path, step).map(|keys| keys.ids().collect::<Vec<_>>());
        let accept = KeyStep::Accept(9, secret('b'), KeyHolder::Daemon);
        for (step, expected) in [
            (&accept, vec![7, 9]),
            (&accept, vec![7, 9]),
            (&KeyStep::Seal(9), vec![9, 7]),
            (&KeyStep::Seal(9), vec![9, 7]),
            (&KeyStep::Retire(7), vec![9]),
            (&KeyStep::Retire(7), vec![9]),
            (&KeyStep::Accept(10, secret('c'), KeyHolder::Daemon), vec![9, 10]),
            (&KeyStep::Accept(11, secret('d'), KeyHolder::Daemon), vec![9, 10, 11]),
            (&KeyStep::Seal(11), vec![11, 9, 10]),
        ] {
            assert_eq!(ids(step), Ok(expected), "{step:?}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        }
        let unchanged = fs::read_to_string(&path).unwrap();
        for (step, expected) in [
            (KeyStep::Accept(9, secret('e'), KeyHolder::Daemon), "another key with the number 9"),
            (KeyStep::Accept(12, secret('e'), KeyHolder::Daemon), "there are 3 keys already"),
            (KeyStep::Seal(12), "there is no key with the number 12"),
            (KeyStep::Retire(11), "is the one that is sent with"),
        ] {
            let error = ids(&step).unwrap_err();
            assert!(error.contains(expected) && !error.contains("eee"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), unchanged);
        fs::remove_file(&path).unwrap();
        assert!(ids(&accept).unwrap_err().contains("plimsoll-ring"));
    }

    #[test]
    fn keys_for_clients_are_changed_apart_from_those_for_daemons() {
        let path = std::env::temp_dir().join(format!("plimsoll-ring-both-{}", std::process::id()));
        fs::write(&path, format!("7 {}\n", "a".repeat(64))).unwrap();
        let accept = |id, digit| KeyStep::Accept(id, secret(digit), KeyHolder::Client);
        let ids = |step: &KeyStep| {
            let keys = apply_step(&path, step)?;
            Ok::<_, String>(
                [KeyRole::Daemon, KeyRole::Client].map(|role| keys.ids_for_role(role).collect::<Vec<_>>()),
            )
        };
        for (step, daemons, clients) in [
            (accept(8, 'b'), vec![7], vec![8]),
            (accept(9, 'c'), vec![7], vec![8, 9]),
            (KeyStep::Accept(10, secret('d'), KeyHolder::Daemon), vec![7, 10], vec![8, 9]),
            (KeyStep::Seal(9), vec![7, 10], vec![9, 8]),
            (KeyStep::Seal(10), vec![10, 7], vec![9, 8]),
            (KeyStep::Retire(8), vec![10, 7], vec![9]),
            (KeyStep::Retire(7), vec![10], vec![9]),
            (KeyStep::Accept(11, secret('e'), KeyHolder::Daemon), vec![10, 11], vec![9]),
            (KeyStep::Accept(12, secret('f'), KeyHolder::Daemon), vec![10, 11, 12], vec![9]),
            (accept(13, '1'), vec![10, 11, 12], vec![9, 13]),
        ] {
            assert_eq!(ids(&step), Ok([daemons, clients]), "{step:?}");
        }
        for (step, expected) in [
            (accept(10, 'd'), "another key with the number 10"),
            (accept(14, 'd'), "the secret of one for daemons"),
            (KeyStep::Retire(9), "is the one that is sent with"),
            (KeyStep::Accept(15, secret('2'), KeyHolder::Daemon), "there are 3 keys already"),
        ] {
            let error = ids(&step).unwrap_err();
            assert!(error.contains(expected) && !error.contains("ddd"), "{error}");
        }
        fs::remove_file(&path).unwrap();
    }
}
