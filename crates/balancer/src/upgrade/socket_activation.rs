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
    let mut listen_fds = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let mut sockets = InheritedSockets::default();
    for index in 0..listen_fds.len() {
        let name = names.get(index).filter(|name| !name.is_empty()).copied().unwrap_or("unknown");
        let description = || format!("socket {} of the service manager ({name})", index + 3);
        let socket = take_socket(&mut listen_fds, index).ok_or_else(|| {
            format!(
                "{} is none for TCP, UDP or a unix stream that listens: mend its .socket unit",
                description()
            )
        })?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(|error| format!("{}: {error}", description()))?;
        sockets.add(socket).map_err(|cause| format!("{} {cause}", description()))?;
    }
    Ok(sockets)
}

fn take_socket(listen_fds: &mut ListenFd, index: usize) -> Option<OwnedFd> {
    if let Ok(Some(socket)) = listen_fds.take_tcp_listener(index) {
        return Some(socket.into());
    }
    if let Ok(Some(socket)) = listen_fds.take_udp_socket(index) {
        return Some(socket.into());
    }
    if let Ok(Some(socket)) = listen_fds.take_unix_listener(index) {
        return Some(socket.into());
    }
    None
}

impl InheritedSockets {
    fn add(&mut self, socket: OwnedFd) -> Result<(), String> {
        let (local_address, datagrams) = {
            let socket = SockRef::from(&socket);
            let local_address = socket.local_addr().map_err(|error| error.to_string())?;
            (local_address, socket.r#type().is_ok_and(|kind| kind == Type::DGRAM))
        };
        let Some(address) = local_address.as_socket() else {
            self.admin.push(("control", socket));
            self.keeps_control = true;
            return Ok(());
        };
        let is_same = |listener_sockets: &&mut ListenerSockets| {
            listener_sockets.address == address && listener_sockets.datagrams == datagrams
        };
        match self.listeners.iter_mut().find(is_same) {
            Some(listener_sockets) => listener_sockets.sockets.push(socket),
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
    pub(crate) fn assign(
        &mut self,
        admin: &AdminConfig,
        known_addresses: &[(SocketAddr, bool)],
    ) -> Result<(), String> {
        let secured_address = admin.tls.as_ref().map(|(tls, ..)| tls.address);
        let manager = admin.load_manager.as_ref().map(|(address, _)| *address);
        let admin_addresses =
            [("listen", admin.listen), ("reports", admin.reports), ("secured", secured_address)];
        for listener_sockets in std::mem::take(&mut self.listeners) {
            let is_address = |address: Option<SocketAddr>| {
                !listener_sockets.datagrams && address == Some(listener_sockets.address)
            };
            let admin_name = admin_addresses
                .iter()
                .find(|(_, address)| is_address(*address))
                .map(|(admin_name, _)| *admin_name);
            if known_addresses.contains(&(listener_sockets.address, listener_sockets.datagrams))
                || listener_sockets.disabled
            {
                self.listeners.push(listener_sockets);
            } else if let Some(admin_name) = admin_name {
                self.admin
                    .extend(listener_sockets.sockets.into_iter().take(1).map(|socket| (admin_name, socket)));
            } else if is_address(manager) {
                self.load_manager = listener_sockets.sockets.into_iter().next();
            } else {
                let transport = if listener_sockets.datagrams { "udp" } else { "tcp" };
                return Err(format!(
                    "the service manager gives a socket for {transport} {}, where the configuration has \
                     nothing: add a \
                     listener, or take it out of the .socket unit",
                    listener_sockets.address
                ));
            }
        }
        for (_, socket) in self.admin.iter().filter(|(admin_name, _)| *admin_name == "control") {
            let socket = std::os::unix::net::UnixListener::from(
                socket.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?,
            );
            let path = socket
                .local_addr()
                .ok()
                .and_then(|local_address| local_address.as_pathname().map(PathBuf::from));
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
