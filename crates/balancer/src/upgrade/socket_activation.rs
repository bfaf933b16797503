//! The sockets that the service manager bound (`sd_listen_fds(3)`). They exist before the process and after
//! its end, so no client is refused while it is started again.
//!
//! Each is recognised by its address: the control socket by its path, those of the admin plane and of
//! listeners by address and kind. Names (`LISTEN_FDNAMES`) are only for messages. Several for one listener
//! (`ReusePort=`) are divided among the threads like Plimsoll's own.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use listenfd::ListenFd;
use plimsoll_config::AdminConfig;
use plimsoll_proxy::ListenerSockets;
use rustix::io::{FdFlags, fcntl_setfd};
use socket2::{SockRef, Type};

use super::InheritedSockets;

/// Returns the sockets, if this process was given any.
///
/// # Errors
/// Fails if one of them is no socket that can be served.
pub(super) fn sockets() -> Result<InheritedSockets, String> {
    let mut given = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let mut sockets = InheritedSockets::default();
    for place in 0..given.len() {
        let name = names.get(place).filter(|name| !name.is_empty()).copied().unwrap_or("unknown");
        let what = || format!("socket {} of the service manager ({name})", place + 3);
        let socket = take_socket(&mut given, place).ok_or_else(|| {
            format!("{} is none for TCP, UDP or a unix stream that listens: mend its .socket unit", what())
        })?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(|error| format!("{}: {error}", what()))?;
        sockets.add(socket).map_err(|why| format!("{} {why}", what()))?;
    }
    Ok(sockets)
}

fn take_socket(given: &mut ListenFd, place: usize) -> Option<OwnedFd> {
    if let Ok(Some(socket)) = given.take_tcp_listener(place) {
        return Some(socket.into());
    }
    if let Ok(Some(socket)) = given.take_udp_socket(place) {
        return Some(socket.into());
    }
    if let Ok(Some(socket)) = given.take_unix_listener(place) {
        return Some(socket.into());
    }
    None
}

impl InheritedSockets {
    fn add(&mut self, socket: OwnedFd) -> Result<(), String> {
        let (local, datagrams) = {
            let socket = SockRef::from(&socket);
            let local = socket.local_addr().map_err(|error| error.to_string())?;
            (local, socket.r#type().is_ok_and(|kind| kind == Type::DGRAM))
        };
        let Some(address) = local.as_socket() else {
            self.admin.push(("control", socket));
            self.keeps_control = true;
            return Ok(());
        };
        let same = |bound: &&mut ListenerSockets| bound.address == address && bound.datagrams == datagrams;
        match self.listeners.iter_mut().find(same) {
            Some(bound) => bound.sockets.push(socket),
            None => {
                let sockets = vec![socket];
                self.listeners.push(ListenerSockets {
                    address,
                    bound: address,
                    datagrams,
                    disabled: false,
                    sockets,
                });
            }
        }
        Ok(())
    }

    /// Assigns the admin plane its sockets; `known` are the addresses of the listeners.
    ///
    /// # Errors
    /// Fails with the sockets that have no use: a client there would wait for ever.
    pub(crate) fn assign(&mut self, admin: &AdminConfig, known: &[(SocketAddr, bool)]) -> Result<(), String> {
        let secured = admin.tls.as_ref().map(|(tls, ..)| tls.address);
        let manager = admin.load_manager.as_ref().map(|(address, _)| *address);
        let doors = [("listen", admin.listen), ("reports", admin.reports), ("secured", secured)];
        for bound in std::mem::take(&mut self.listeners) {
            let is = |address: Option<SocketAddr>| !bound.datagrams && address == Some(bound.address);
            let door = doors.iter().find(|(_, address)| is(*address)).map(|(door, _)| *door);
            if known.contains(&(bound.address, bound.datagrams)) || bound.disabled {
                self.listeners.push(bound);
            } else if let Some(door) = door {
                self.admin.extend(bound.sockets.into_iter().take(1).map(|socket| (door, socket)));
            } else if is(manager) {
                self.load_manager = bound.sockets.into_iter().next();
            } else {
                let transport = if bound.datagrams { "udp" } else { "tcp" };
                return Err(format!(
                    "the service manager gives a socket for {transport} {}, where the configuration has \
                     nothing: add a \
                     listener, or take it out of the .socket unit",
                    bound.address
                ));
            }
        }
        for (_, socket) in self.admin.iter().filter(|(door, _)| *door == "control") {
            let socket = std::os::unix::net::UnixListener::from(
                socket.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?,
            );
            let path = socket.local_addr().ok().and_then(|local| local.as_pathname().map(PathBuf::from));
            if path.is_none() || path != admin.control {
                let path = path.unwrap_or_default();
                return Err(format!(
                    "the service manager gives a socket at {}, where the configuration has nothing: set \
                     [admin] control to it",
                    path.display()
                ));
            }
        }
        Ok(())
    }
}
