//! Which control group (version 2) is the server's.
//!
//! An agent cannot know what the server is called. In a container with a name space of its own the question answers
//! itself: the group that looks like the root, and has limits, which a true root has not, is the container's. Elsewhere
//! the agent's own group would say how busy the agent is; so the group has to be named.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// Where control groups are mounted if nothing else is known.
const MOUNT: &str = "/sys/fs/cgroup";

/// Which control group to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cgroup {
    /// The container's, if the agent is in one with a name space of its own.
    #[default]
    Auto,
    /// None.
    Off,
    /// This folder; relative to where control groups are mounted, such as `system.slice/nginx.service`.
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
    /// Its folder.
    pub(crate) fn folder(&self, proc: &Path) -> Result<Option<PathBuf>, Error> {
        let mount = || {
            let table = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
            mounted(&table).map_or_else(|| PathBuf::from(MOUNT), PathBuf::from)
        };
        match self {
            Self::Off => Ok(None),
            Self::Auto => {
                let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
                let folder = mount();
                let limited = ["cpu.max", "memory.max"].iter().any(|file| folder.join(file).exists());
                Ok((is_root(&own) && limited).then_some(folder))
            }
            Self::At(path) => {
                let folder = if path.is_absolute() { path.clone() } else { mount().join(path) };
                match fs::metadata(&folder) {
                    Ok(found) if found.is_dir() => Ok(Some(folder)),
                    Ok(_) => Err(Error::Cgroup { folder, why: "it is no folder".into() }),
                    Err(error) => Err(Error::Cgroup { folder, why: error.to_string() }),
                }
            }
        }
    }
}

/// Does /proc/self/cgroup say that the group of version 2 looks like the root?
fn is_root(text: &str) -> bool {
    text.lines().any(|line| line == "0::/")
}

/// Where /proc/self/mountinfo says that control groups of version 2 are.
fn mounted(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_say() {
        let hybrid = "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(hybrid), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mounted("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate"), Some(MOUNT));
        assert_eq!(mounted("22 27 0:21 / /proc rw - proc proc rw"), None);
        assert_eq!(mounted(" - cgroup2 x"), None);
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
