//! Where members on this machine serve, and what stands for that in a command.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Addresses of members on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where they listen.
    pub ip: IpAddr,
    /// First and last of the ports that are theirs; any that the kernel has free where there are none.
    pub ports: Option<(u16, u16)>,
}

impl Place {
    /// A free port, which none of `taken` has. Between this and a server that listens there it may be somebody else's: then that server
    /// ends, and another is started.
    pub(super) fn free(&self, taken: &BTreeSet<SocketAddr>) -> Result<SocketAddr, String> {
        let listens = |port: u16| TcpListener::bind((self.ip, port)).and_then(|socket| socket.local_addr());
        let Some((first, last)) = self.ports else {
            // The kernel gives no port twice in a row.
            let found = (0..TRIES).filter_map(|_| listens(0).ok()).find(|found| !taken.contains(found));
            return found.ok_or_else(|| format!("no port of {} is free", self.ip));
        };
        let mut wanted =
            (first..=last).map(|port| SocketAddr::new(self.ip, port)).filter(|one| !taken.contains(one));
        let found = wanted.find(|one| listens(one.port()).is_ok());
        found.ok_or_else(|| format!("no port of {} from {first} to {last} is free", self.ip))
    }
}

/// Addresses that were given away.
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<BTreeSet<SocketAddr>>);

impl Taken {
    /// One that is free, and nobody else's from now on.
    pub(super) fn take(&self, place: &Place) -> Result<SocketAddr, String> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = place.free(&taken)?;
        taken.insert(found);
        Ok(found)
    }

    pub(super) fn keep(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    pub(super) fn give_back(&self, address: &SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}

/// A word of a command with `{port}`, `{host}`, `{address}`, `{index}` and `{group}` replaced.
pub(super) fn filled(word: &str, address: SocketAddr, index: u32, group: &str) -> String {
    word.replace("{port}", &address.port().to_string())
        .replace("{host}", &address.ip().to_string())
        .replace("{address}", &address.to_string())
        .replace("{index}", &index.to_string())
        .replace("{group}", group)
}

const TRIES: usize = 16;
