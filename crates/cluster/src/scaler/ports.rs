//! The addresses of members on this machine, and the placeholders in commands.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// The addresses for members on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The IP address to listen on.
    pub ip: IpAddr,
    /// The first and the last port to use; any free port if `None`.
    pub ports: Option<(u16, u16)>,
}

impl AddressRange {
    /// Returns a free address that is not in `taken`. Another process may bind it before the server does;
    /// then the server ends, and another one is started.
    pub(super) fn find_free(&self, taken: &BTreeSet<SocketAddr>) -> Result<SocketAddr, String> {
        let try_bind = |port: u16| TcpListener::bind((self.ip, port)).and_then(|socket| socket.local_addr());
        let Some((first, last)) = self.ports else {
            // The kernel does not return one port twice in a row.
            let address =
                (0..TRIES).filter_map(|_| try_bind(0).ok()).find(|address| !taken.contains(address));
            return address.ok_or_else(|| format!("no port of {} is free", self.ip));
        };
        let mut candidates = (first..=last)
            .map(|port| SocketAddr::new(self.ip, port))
            .filter(|candidate| !taken.contains(candidate));
        let address = candidates.find(|candidate| try_bind(candidate.port()).is_ok());
        address.ok_or_else(|| format!("no port of {} from {first} to {last} is free", self.ip))
    }
}

/// The addresses in use.
#[derive(Debug, Default)]
pub(super) struct ReservedAddresses(Mutex<BTreeSet<SocketAddr>>);

impl ReservedAddresses {
    /// Reserves a free address.
    pub(super) fn reserve(&self, range: &AddressRange) -> Result<SocketAddr, String> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = range.find_free(&taken)?;
        taken.insert(address);
        Ok(address)
    }

    pub(super) fn mark_used(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    pub(super) fn release(&self, address: &SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}

/// Replaces `{port}`, `{host}`, `{address}`, `{index}` and `{group}` in an argument of a command.
pub(super) fn fill_placeholders(template: &str, address: SocketAddr, index: u32, group: &str) -> String {
    template
        .replace("{port}", &address.port().to_string())
        .replace("{host}", &address.ip().to_string())
        .replace("{address}", &address.to_string())
        .replace("{index}", &index.to_string())
        .replace("{group}", group)
}

const TRIES: usize = 16;
