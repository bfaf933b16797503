//! Finds the server's control group (version 2).
//!
//! An agent cannot know the name of the server's group. In a container with its own namespace, the group that
//! appears as the root and has limits is the container's: the true root has no limits. Elsewhere the agent's
//! own group would show the agent's load, so the group has to be configured.

use std::fs;
use std::path::{Path, PathBuf};

use crate::AgentError;

/// The default mount point of control groups.
const DEFAULT_MOUNT: &str = "/sys/fs/cgroup";

/// The control group to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cgroup {
    /// The container's group, if the agent is in a container with its own namespace.
    #[default]
    Auto,
    /// No group.
    Off,
    /// A folder, relative to the mount point of control groups, such as `system.slice/nginx.service`.
    At(PathBuf),
}

impl std::str::FromStr for Cgroup {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            path => Self::At(path.into()),
        })
    }
}

impl Cgroup {
    /// Returns the group's folder.
    pub(crate) fn folder(&self, proc: &Path) -> Result<Option<PathBuf>, AgentError> {
        let mount = || {
            let mountinfo = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
            mount_point(&mountinfo).map_or_else(|| PathBuf::from(DEFAULT_MOUNT), PathBuf::from)
        };
        match self {
            Self::Off => Ok(None),
            Self::Auto => {
                let own_cgroup = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
                let folder = mount();
                let has_limits = ["cpu.max", "memory.max"].iter().any(|file| folder.join(file).exists());
                Ok((is_root(&own_cgroup) && has_limits).then_some(folder))
            }
            Self::At(path) => {
                let folder = if path.is_absolute() { path.clone() } else { mount().join(path) };
                match fs::metadata(&folder) {
                    Ok(metadata) if metadata.is_dir() => Ok(Some(folder)),
                    Ok(_) => Err(AgentError::Cgroup { folder, why: "it is no folder".into() }),
                    Err(error) => Err(AgentError::Cgroup { folder, why: error.to_string() }),
                }
            }
        }
    }
}

/// Returns `true` if /proc/self/cgroup shows the version 2 group as the root.
fn is_root(text: &str) -> bool {
    text.lines().any(|line| line == "0::/")
}

/// Returns the mount point of control groups (version 2) in /proc/self/mountinfo.
fn mount_point(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let (mount_fields, filesystem_fields) = line.split_once(" - ")?;
        filesystem_fields.starts_with("cgroup2 ").then(|| mount_fields.split(' ').nth(4)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_say() {
        let hybrid = "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(hybrid), Some("/sys/fs/cgroup/unified"));
        assert_eq!(
            mount_point("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate"),
            Some(DEFAULT_MOUNT)
        );
        assert_eq!(mount_point("22 27 0:21 / /proc rw - proc proc rw"), None);
        assert_eq!(mount_point(" - cgroup2 x"), None);
        assert!(is_root("9:name=systemd:/\n0::/\n"));
        assert!(!is_root("0::/system.slice/plimsoll-agent.service\n"));
        assert!(!is_root(""));
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let error = Cgroup::At("/no/such/group".into()).folder(Path::new("/proc")).unwrap_err();
        assert!(error.to_string().contains("/no/such/group"), "{error}");
        assert!(matches!(Cgroup::At("/proc".into()).folder(Path::new("/proc")), Ok(Some(_))));
        assert!(matches!(Cgroup::Off.folder(Path::new("/proc")), Ok(None)));
    }
}
