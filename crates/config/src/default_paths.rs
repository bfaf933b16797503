//! The default control socket of a balancer: one place for root, a private one for every other user. The
//! process that starts a balancer and the one that looks for it find the same place, whatever their
//! environments.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The common socket, for users that may write its folder.
const COMMON_SOCKET: &str = "/run/plimsoll.sock";

/// Returns the place at which a balancer of this user makes its control socket.
pub fn default_control() -> PathBuf {
    control_path(Path::new(COMMON_SOCKET), &runtime_folders(), private_folder())
}

/// Returns the places of a balancer's control socket, the likeliest first: this user's own, then the common
/// one, to which an administrator may grant access.
pub fn default_controls() -> Vec<PathBuf> {
    let mut controls = vec![default_control()];
    // Another shell of the same user may have had another environment.
    controls.extend(runtime_folders().into_iter().map(|folder| folder.join("plimsoll.sock")));
    controls.push(private_folder().join("control.sock"));
    controls.retain(|path| path != Path::new(COMMON_SOCKET) && path.parent().is_some_and(is_private));
    controls.dedup();
    controls.push(COMMON_SOCKET.into());
    controls
}

/// Makes the folder of this user's own place, if that is where the socket is to be.
pub fn create_folder(control: &Path) {
    if control.parent() == Some(&private_folder()) {
        // `is_usable` judges an existing folder.
        let _ = DirBuilder::new().mode(0o700).create(private_folder());
    }
}

/// Returns `true` if the socket can be made there, and no other user could make it in this user's place.
pub fn is_usable(control: &Path) -> bool {
    let Some(folder) = control.parent() else { return false };
    if folder == private_folder() {
        return is_private(folder) || folder.symlink_metadata().is_err();
    }
    access(folder, Access::WRITE_OK).is_ok()
}

fn control_path(common_socket: &Path, runtime: &[PathBuf], private_folder: PathBuf) -> PathBuf {
    if common_socket.parent().is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok()) {
        return common_socket.into();
    }
    let folder = runtime.iter().find(|folder| is_private(folder));
    folder.map_or_else(|| private_folder.join("control.sock"), |folder| folder.join("plimsoll.sock"))
}

/// Returns the folders that a login makes for its user's programs.
fn runtime_folders() -> Vec<PathBuf> {
    let runtime_folder =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let login = PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    runtime_folder.into_iter().chain([login]).collect()
}

/// Returns the folder of a user without a login, such as one of a service.
fn private_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/plimsoll-{}", rustix::process::geteuid().as_raw()))
}

/// Returns `true` if a folder exists that is this user's, and that no other user may write. Its content is
/// then this user's.
fn is_private(folder: &Path) -> bool {
    folder.symlink_metadata().is_ok_and(|metadata| {
        metadata.is_dir()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o022 == 0
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_common_place_is_for_whoever_may_write_there() {
        let folder = std::env::temp_dir().join(format!("plimsoll-usual-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let set_mode =
            |set_mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(set_mode)).unwrap();
        let (common_socket, own_folder) = (folder.join("common.sock"), PathBuf::from("/tmp/own"));
        assert_eq!(control_path(&common_socket, &[], own_folder.clone()), common_socket);
        let missing_path = Path::new("/nowhere/at/all/plimsoll.sock");
        set_mode(0o700);
        assert_eq!(
            control_path(missing_path, std::slice::from_ref(&folder), own_folder.clone()),
            folder.join("plimsoll.sock")
        );
        // Other users could put a socket of theirs into a folder that they can write.
        set_mode(0o777);
        assert_eq!(
            control_path(missing_path, std::slice::from_ref(&folder), own_folder.clone()),
            Path::new("/tmp/own/control.sock")
        );
        assert_eq!(
            control_path(missing_path, &["/nowhere/at/all".into()], own_folder),
            Path::new("/tmp/own/control.sock")
        );
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn who_looks_looks_first_where_it_would_be_made() {
        let controls = default_controls();
        assert!(
            controls.contains(&default_control()) || !default_control().parent().is_some_and(is_private),
            "{controls:?}"
        );
        assert_eq!(controls.last().unwrap(), Path::new(COMMON_SOCKET));
    }
}
