//! Whom to ask, and how; names of daemons and of services.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use plimsoll_brain::lottery::Mode;
use plimsoll_wire::rfs::service_id;

use crate::KeySource;

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// The group and port by which all are reached at once, where there is multicast. Of IPv6 with its scope.
    pub multicast: Option<SocketAddr>,
    /// Of the interface by which a group of IPv4 is reached; `None` for the one that the routes say.
    pub interface: Option<Ipv4Addr>,
    /// Of the cluster.
    pub keys: KeySource,
    /// How to ask first.
    pub mode: Mode,
    /// How often it asks before it gives up; eight times take 1.3 s where round trips are short.
    pub attempts: u8,
}

impl Settings {
    /// Referrals by these daemons, no multicast, eight attempts.
    pub fn new(daemons: Vec<SocketAddr>, keys: KeySource) -> Self {
        Self { daemons, multicast: None, interface: None, keys, mode: Mode::Referral, attempts: 8 }
    }

    /// What is wrong in itself.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        match self.multicast {
            Some(group) if !group.ip().is_multicast() => Err(OpenError::Unicast(group.ip())),
            None if self.daemons.is_empty() => Err(OpenError::Nobody),
            _ => Ok(()),
        }
    }
}

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is neither a daemon nor a group.
    #[error("no daemon to ask: name one, or a multicast group")]
    Nobody,
    /// The group is none.
    #[error("{0} is not a multicast address: those are 224.0.0.0 to 239.255.255.255, and of IPv6 ff00::/8")]
    Unicast(IpAddr),
    /// The file of keys cannot be read, or has something else in it.
    #[error("{}: {why}", path.display())]
    Keys {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with the line.
        why: String,
    },
    /// No daemon's name is known.
    #[error("{0}")]
    LookUp(String),
    /// The system gives no socket.
    #[error("cannot open a socket: {0}")]
    System(#[from] io::Error),
}

/// The number of a service: that of its name, or the one in `id:NUMBER`.
///
/// # Errors
/// `text` is empty, or what follows `id:` is not a number from 0 to 4294967295.
pub fn service(text: &str) -> Result<u32, &'static str> {
    match text.strip_prefix("id:") {
        Some(number) => number.parse().map_err(|_| "expected id: and a number from 0 to 4294967295"),
        None if text.is_empty() => Err("the name of a service is empty"),
        None => Ok(service_id(text)),
    }
}

/// The addresses of daemons, `HOST:PORT` each, with commas between them. Of a host with several addresses it is the first. Those
/// that are not known are left out if there is another.
///
/// # Errors
/// None of them is known; why the last one is not.
pub fn look_up(daemons: &str) -> Result<Vec<SocketAddr>, OpenError> {
    let (mut known, mut unknown) = (Vec::new(), None);
    for daemon in daemons.split(',').map(str::trim).filter(|daemon| !daemon.is_empty()) {
        match daemon.to_socket_addrs().map(|mut all| all.next()) {
            Ok(Some(address)) => known.push(address),
            Ok(None) => unknown = Some(format!("cannot look up `{daemon}`: it has no address")),
            Err(error) => unknown = Some(format!("cannot look up `{daemon}`: {error}")),
        }
    }
    match unknown {
        Some(why) if known.is_empty() => Err(OpenError::LookUp(why)),
        _ => Ok(known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_names_or_numbers() {
        assert_eq!(service("web"), Ok(service_id("web")));
        assert_eq!(service("id:4294967295"), Ok(u32::MAX));
        for wrong in ["", "id:", "id:-1", "id:4294967296", "id:web"] {
            assert!(service(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_daemon_that_is_known_is_enough() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let both = look_up(" 127.0.0.1:7447, [::1]:7448,").unwrap();
        assert_eq!(both, [address("127.0.0.1:7447"), address("[::1]:7448")]);
        assert_eq!(look_up("127.0.0.1,127.0.0.1:1").unwrap(), [address("127.0.0.1:1")]);
        assert!(matches!(look_up("127.0.0.1"), Err(OpenError::LookUp(why)) if why.contains("`127.0.0.1`")));
        assert!(look_up("").unwrap().is_empty());
    }
}
