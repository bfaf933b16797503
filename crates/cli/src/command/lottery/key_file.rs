//! The file of keys: read, or made with a new key if there is none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use plimsoll_cluster::lottery::incarnation;
use plimsoll_wire::rfs::{KeyRing, KeyRole, SECRET_LEN};
use rustix::rand::{GetRandomFlags, getrandom};

use super::super::{CliError, CliExitCode};

/// The first line of a file of keys.
pub(super) const FILE_HEADER: &str =
    "# number, secret; the first line seals, all of them open; `client` behind those for clients\n";

/// Returns the keys of a file; makes it if there is none and `may` allows that. A daemon that is to join
/// others cannot do so with a key of its own: if their file was lost, another one would cut it off silently.
///
/// # Errors
/// Fails if it cannot be read or made, or has something else in it.
pub(super) fn open_or_create(path: &Path, may_create: bool) -> Result<KeyRing, CliError> {
    if path.exists() {
        if is_exposed(path) {
            tracing::warn!("{} can be read by others than its owner: chmod 600 it", path.display());
        }
        return read(path);
    }
    if !may_create {
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!(
                "there is no file of keys {}: copy it from another host of the cluster; for the first host \
                 of a new \
                 cluster say --new-keys",
                path.display()
            ),
        ));
    }
    if let Err(error) = create(path) {
        // Another daemon may have been faster.
        if error.kind() == io::ErrorKind::AlreadyExists {
            return read(path);
        }
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!("there is no file of keys {}, and it cannot be made: {error}", path.display()),
        ));
    }
    tracing::warn!(
        "made {} with a new key: copy this file to the other hosts of the cluster and to its clients, which \
         cannot \
         speak with this one without it",
        path.display()
    );
    read(path)
}

/// Returns the keys of a file, one of which is for daemons.
///
/// # Errors
/// Fails if it cannot be read, or has something else in it.
pub(super) fn read(path: &Path) -> Result<KeyRing, CliError> {
    let usage =
        |reason: String| CliError::new(CliExitCode::Usage, format_args!("{}: {reason}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| {
        usage(format!("cannot be read: {error}; it is the file that `plimsoll lottery --keys` made"))
    })?;
    let keys: KeyRing =
        text.parse().map_err(|error: plimsoll_wire::rfs::KeyFileError| usage(error.to_string()))?;
    if keys.role() == KeyRole::Client {
        return Err(usage("its keys are for clients, with which nobody is a daemon".into()));
    }
    Ok(keys)
}

/// Makes a file with a key whose number is that of the second, so that a newer one has a greater number. It
/// appears whole or not at all: another daemon may look for it at the same moment.
fn create(path: &Path) -> io::Result<()> {
    let digits = secret()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary_path = path.with_file_name(name);
    let result = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_path).and_then(
        |mut file| {
            writeln!(file, "{FILE_HEADER}{} {digits}", incarnation())?;
            file.sync_all()?;
            fs::hard_link(&temporary_path, path)
        },
    );
    // No other process knows the draft.
    let _ = fs::remove_file(&temporary_path);
    result
}

/// Returns a new secret, as 64 hexadecimal digits.
pub(super) fn secret() -> io::Result<String> {
    let mut secret = [0; SECRET_LEN];
    let filled_len = getrandom(&mut secret, GetRandomFlags::empty())?;
    if filled_len != SECRET_LEN {
        return Err(io::Error::other("the system gives no random numbers"));
    }
    Ok(secret.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns `true` if users other than its owner may access a file.
pub(in crate::command) fn is_exposed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}
