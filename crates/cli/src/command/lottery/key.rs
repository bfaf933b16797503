//! The file of keys: read, or made with a new key where there is none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use plimsoll_cluster::lottery::incarnation;
use plimsoll_wire::rfs::{Keys, SECRET};
use rustix::rand::{GetRandomFlags, getrandom};

use super::super::{Exit, Failure};

/// The keys of a file; makes it if there is none.
///
/// # Errors
/// It cannot be read or made, or has something else in it.
pub(super) fn open(path: &Path) -> Result<Keys, Failure> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => make(file).map_err(|error| {
            Failure::failed(format_args!("cannot write a key to {}: {error}", path.display()))
        })?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return read(path),
        // In a folder that may only be read.
        Err(_) if path.exists() => return read(path),
        Err(error) => {
            return Err(Failure::new(
                Exit::Usage,
                format_args!("there is no file of keys {}, and it cannot be made: {error}", path.display()),
            ));
        }
    }
    tracing::warn!(
        "made {} with a new key: copy this file to the other hosts of the cluster and to its clients, which cannot \
         speak with this one without it",
        path.display()
    );
    read(path)
}

/// The keys of a file.
///
/// # Errors
/// It cannot be read, or has something else in it.
pub(in crate::command) fn read(path: &Path) -> Result<Keys, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, format_args!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| {
        usage(format!("cannot be read: {error}; it is the file that `plimsoll lottery --keys` made"))
    })?;
    if let Ok(about) = fs::metadata(path)
        && about.permissions().mode() & 0o077 != 0
    {
        tracing::warn!("{} can be read by others than its owner: chmod 600 it", path.display());
    }
    text.parse().map_err(|bad: plimsoll_wire::rfs::BadKeys| usage(bad.to_string()))
}

/// A key whose number is that of the second, so that a newer one has a greater number.
fn make(mut file: File) -> io::Result<()> {
    let mut secret = [0; SECRET];
    let drawn = getrandom(&mut secret, GetRandomFlags::empty())?;
    if drawn != SECRET {
        return Err(io::Error::other("the system gives no random numbers"));
    }
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    write!(file, "# number, secret; the first line seals, all of them open\n{} {digits}\n", incarnation())?;
    file.sync_all()
}
