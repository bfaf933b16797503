//! The state file of the Supervisor, by which the next one finds the processes.
//!
//! It is written whole and renamed into place at each change. It holds for one run of the machine: process
//! ids mean nothing in the next.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use plimsoll_admin::LastExit;
use plimsoll_brain::supervision::ProcessPhase;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::os_process::{LaunchSpec, ProcessIdentity};

/// The content of the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SupervisorState {
    /// The run of the machine.
    pub(super) boot: String,
    pub(super) processes: Vec<SavedProcess>,
}

/// One process.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedProcess {
    pub(super) name: String,
    pub(super) phase: ProcessPhase,
    /// Whether it is to run.
    pub(super) wanted: bool,
    pub(super) failures: u32,
    pub(super) restarts: u64,
    /// The running process, and the time of its start (milliseconds since 1970).
    pub(super) running: Option<(ProcessIdentity, LaunchSpec, u64)>,
    pub(super) last_exit: Option<LastExit>,
}

impl SupervisorState {
    /// Reads the state since the start of the machine; `None` if there is none.
    ///
    /// # Errors
    /// Fails if there is a file that cannot be read.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let no_follow_flag = OFlags::NOFOLLOW.bits() as i32;
        let mut file = match OpenOptions::new().read(true).custom_flags(no_follow_flag).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // The processes in it are killed some day: no other user may write it.
        let metadata = file.metadata()?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "others may have written it: take it away",
            ));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let state: Self = serde_json::from_slice(&text)?;
        Ok((state.boot == boot_id()).then_some(state))
    }

    /// Writes it.
    ///
    /// # Errors
    /// Fails with the system's error.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let temporary_path = path.with_added_extension("new");
        match fs::remove_file(&temporary_path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_path)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        fs::rename(&temporary_path, path)
    }
}

/// Returns the run of the machine.
pub(super) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use plimsoll_brain::supervision::ExitCause;

    use super::*;

    #[test]
    fn what_is_written_is_read_in_the_same_run_only() {
        let path = std::env::temp_dir().join(format!("plimsoll-state-{}", std::process::id()));
        assert_eq!(SupervisorState::read(&path).unwrap(), None);
        let exit = LastExit {
            ending: ExitCause::Signal(9),
            reason: "a".into(),
            unix_ms: 5,
            lines: vec!["b".into()],
        };
        let launch = LaunchSpec { command: vec!["up".into()], environment: vec![("A".into(), "b".into())] };
        let process = SavedProcess {
            name: "web".into(),
            phase: ProcessPhase::BackingOff,
            wanted: true,
            failures: 3,
            restarts: 4,
            running: Some((ProcessIdentity { pid: 7, start: 8, group: 7 }, launch, 9)),
            last_exit: Some(exit),
        };
        let mut state = SupervisorState { boot: boot_id(), processes: vec![process] };
        state.write(&path).unwrap();
        assert_eq!(SupervisorState::read(&path).unwrap().as_ref(), Some(&state));
        state.boot = "another".into();
        state.write(&path).unwrap();
        assert_eq!(SupervisorState::read(&path).unwrap(), None);
        state.boot = boot_id();
        state.write(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(
            SupervisorState::read(&path).unwrap_err().kind(),
            ErrorKind::PermissionDenied,
            "anybody's"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "{").unwrap();
        assert!(SupervisorState::read(&path).is_err());
        fs::remove_file(&path).unwrap();
    }
}
