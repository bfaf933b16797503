//! The settings of a client; the names of daemons and services.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use plimsoll_brain::lottery::AnswerMode;
use plimsoll_wire::rfs::service_id;

use crate::KeySource;

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// The multicast group and port of the daemons, if any. An IPv6 group includes its scope.
    pub multicast: Option<SocketAddr>,
    /// The address of the interface for an IPv4 multicast group; `None` to use the routing table.
    pub interface: Option<Ipv4Addr>,
    /// The keys of the cluster.
    pub keys: KeySource,
    /// The mode of the first attempts.
    pub mode: AnswerMode,
    /// The number of attempts before giving up; eight take 1.3 s with short round trips.
    pub attempts: u8,
}

impl ClientSettings {
    /// Creates settings for referrals by these daemons, without multicast, with eight attempts.
    pub fn new(daemons: Vec<SocketAddr>, keys: KeySource) -> Self {
        Self { daemons, multicast: None, interface: None, keys, mode: AnswerMode::Referral, attempts: 8 }
    }

    /// Validates the settings.
    pub(crate) fn validate(&self) -> Result<(), OpenError> {
        match self.multicast {
            Some(group) if !group.ip().is_multicast() => Err(OpenError::NotMulticast(group.ip())),
            None if self.daemons.is_empty() => Err(OpenError::NoDaemons),
            _ => Ok(()),
        }
    }
}

/// The reason why a client cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is neither a daemon nor a multicast group.
    #[error("no daemon to ask: name one, or a multicast group")]
    NoDaemons,
    /// The address is not a multicast address.
    #[error("{0} is not a multicast address: those are 224.0.0.0 to 239.255.255.255, and of IPv6 ff00::/8")]
    NotMulticast(IpAddr),
    /// The key file cannot be read or parsed.
    #[error("{}: {why}", path.display())]
    Keys {
        /// The path of the file.
        path: PathBuf,
        /// The error, with the line.
        why: String,
    },
    /// No daemon's name could be resolved.
    #[error("{0}")]
    NameResolution(String),
    /// A socket could not be opened.
    #[error("cannot open a socket: {0}")]
    System(#[from] io::Error),
}

/// Returns the number of a service: the one in `id:NUMBER`, or else the hash of the name.
///
/// # Errors
/// Returns an error if `text` is empty, or if the part after `id:` is not a number from 0 to 4294967295.
pub fn service(text: &str) -> Result<u32, &'static str> {
    match text.strip_prefix("id:") {
        Some(number) => number.parse().map_err(|_| "expected id: and a number from 0 to 4294967295"),
        None if text.is_empty() => Err("the name of a service is empty"),
        None => Ok(service_id(text)),
    }
}

/// Resolves a comma-separated list of daemons, each `HOST:PORT`. Uses the first address of each host. Skips
/// names that cannot be resolved if at least one can.
///
/// # Errors
/// Returns the last error if no name can be resolved.
pub fn resolve_daemons(daemons: &str) -> Result<Vec<SocketAddr>, OpenError> {
    let (mut addresses, mut resolution_error) = (Vec::new(), None);
    for daemon in daemons.split(',').map(str::trim).filter(|daemon| !daemon.is_empty()) {
        match daemon.to_socket_addrs().map(|mut resolved| resolved.next()) {
            Ok(Some(address)) => addresses.push(address),
            Ok(None) => resolution_error = Some(format!("cannot look up `{daemon}`: it has no address")),
            Err(error) => resolution_error = Some(format!("cannot look up `{daemon}`: {error}")),
        }
    }
    match resolution_error {
        Some(error) if addresses.is_empty() => Err(OpenError::NameResolution(error)),
        _ => Ok(addresses),
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
        let addresses = resolve_daemons(" 127.0.0.1:7447, [::1]:7448,").unwrap();
        assert_eq!(addresses, [address("127.0.0.1:7447"), address("[::1]:7448")]);
        assert_eq!(resolve_daemons("127.0.0.1,127.0.0.1:1").unwrap(), [address("127.0.0.1:1")]);
        let without_port = resolve_daemons("127.0.0.1");
        assert!(
            matches!(without_port, Err(OpenError::NameResolution(message)) if message.contains("`127.0.0.1`"))
        );
        assert!(resolve_daemons("").unwrap().is_empty());
    }
}
