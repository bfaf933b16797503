//! Sockets of listeners: bound once for each core, or inherited from another process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use socket2::{Domain, Protocol as Transport, Socket, Type};

use crate::control::ControlPlane;
use crate::protocol::udp;
use crate::worker::WorkerCommand;
use crate::{ListenerSettings, Protocol};

/// The time limit for workers to release a socket, far longer than they need.
const VACATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Binds a listener's socket once for each core; the kernel spreads clients over them.
///
/// # Errors
/// The address is in use or does not belong to this host.
fn bind(settings: &ListenerSettings, cores: usize) -> io::Result<(SocketAddr, Vec<Socket>)> {
    // With SO_REUSEPORT, a second process of the same user would silently take a part of the clients. A
    // socket without it shows whether the address is free.
    let probe = socket(settings)?;
    probe.bind(&settings.address.into())?;
    let bound = probe.local_addr()?.as_socket().unwrap_or(settings.address);
    drop(probe);
    let sockets = (0..cores).map(|_| bind_another(settings, bound)).collect::<io::Result<Vec<Socket>>>()?;
    Ok((bound, sockets))
}

impl ControlPlane {
    /// Binds as [`bind`]. If datagram flows of a closed listener still use the address, ends them first.
    ///
    /// # Errors
    /// The address is in use or does not belong to this host.
    pub(crate) fn bind_listener(&self, settings: &ListenerSettings) -> io::Result<(SocketAddr, Vec<Socket>)> {
        match bind(settings, self.cores) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && settings.protocol.is_datagram() => {
                let (release_sender, released) = mpsc::channel();
                let port = settings.address.port();
                self.send_to_workers(|| WorkerCommand::Vacate { port, released: release_sender.clone() });
                drop(release_sender);
                // Nothing is sent. The wait ends when the last sender is dropped, or at once if there was
                // nothing to release.
                let _ = released.recv_timeout(VACATE_TIMEOUT);
                bind(settings, self.cores)
            }
            result => result,
        }
    }
}

/// The sockets of a listener that another process bound, or none if it is closed.
#[derive(Debug)]
pub struct ListenerSockets {
    /// The address as configured, with port 0 if the system chose one; or as bound.
    pub address: SocketAddr,
    /// The address as bound.
    pub bound: SocketAddr,
    /// Whether the listener takes datagrams.
    pub datagrams: bool,
    /// Whether an operator has disabled the listener.
    pub disabled: bool,
    /// The sockets: all of one kind, and listening if they are for connections.
    pub sockets: Vec<OwnedFd>,
}

impl ListenerSockets {
    /// Returns the sockets, ready for the event loops.
    ///
    /// # Errors
    /// A socket does not match its description.
    pub(crate) fn into_core_sockets(self) -> io::Result<(SocketAddr, Vec<Socket>)> {
        let unusable = |reason| io::Error::other(format!("the socket that was handed over {reason}"));
        let prepare = |socket: OwnedFd| {
            let socket = Socket::from(socket);
            if (socket.r#type()? == Type::DGRAM) != self.datagrams {
                return Err(unusable("is of another kind"));
            }
            if self.datagrams {
                udp::enable_local_address(&socket, &self.bound)?;
            } else if !socket.is_listener()? {
                return Err(unusable("does not listen"));
            }
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok((self.bound, self.sockets.into_iter().map(prepare).collect::<io::Result<_>>()?))
    }
}

/// Distributes copies of a listener's `sockets` to the cores. A core may get several if there are fewer cores
/// than sockets. None is closed, since closing a socket resets the connections that wait in it.
///
/// With more cores than sockets, further sockets are bound, or cores share one if binding is not allowed.
/// With datagrams, a core may get no socket: an additional one would send flows to other cores than those
/// that have them.
///
/// # Errors
/// The process has no more file descriptors.
pub(crate) fn distribute(
    settings: &ListenerSettings,
    bound: SocketAddr,
    sockets: &mut Vec<Socket>,
    cores: usize,
) -> io::Result<Vec<Vec<Socket>>> {
    if !settings.protocol.is_datagram() && !sockets.is_empty() {
        while sockets.len() < cores {
            match bind_another(settings, bound) {
                Ok(socket) => sockets.push(socket),
                Err(_) => break,
            }
        }
    }
    let mut core_sockets: Vec<Vec<Socket>> = (0..cores).map(|_| Vec::new()).collect();
    for (index, socket) in sockets.iter().enumerate() {
        core_sockets[index % cores].push(socket.try_clone()?);
    }
    if !settings.protocol.is_datagram() && !sockets.is_empty() {
        for core in sockets.len()..cores {
            core_sockets[core].push(sockets[core % sockets.len()].try_clone()?);
        }
    }
    Ok(core_sockets)
}

fn bind_another(settings: &ListenerSettings, bound: SocketAddr) -> io::Result<Socket> {
    let socket = socket(settings)?;
    socket.set_reuse_port(true)?;
    socket.bind(&bound.into())?;
    if !settings.protocol.is_datagram() {
        socket.listen(settings.backlog.min(i32::MAX as u32) as i32)?;
    }
    Ok(socket)
}

fn socket(settings: &ListenerSettings) -> io::Result<Socket> {
    let domain = Domain::for_address(settings.address);
    let socket = match settings.protocol {
        Protocol::Udp | Protocol::Dns => {
            let socket = Socket::new(domain, Type::DGRAM, Some(Transport::UDP))?;
            udp::enable_local_address(&socket, &settings.address)?;
            socket
        }
        Protocol::Http | Protocol::Tcp | Protocol::Iiop | Protocol::DnsStream | Protocol::Xds => {
            let socket = Socket::new(domain, Type::STREAM, Some(Transport::TCP))?;
            socket.set_reuse_address(true)?;
            socket
        }
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}
