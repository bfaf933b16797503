//! Sockets of listeners: bound once for each core.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol as Transport, Socket, Type};

use crate::{ListenerSettings, Protocol, udp};

/// Binds a listener's socket once for each core; the kernel spreads clients over them.
///
/// # Errors
/// The address is in use or not ours.
pub(crate) fn bind(settings: &ListenerSettings, cores: usize) -> io::Result<(SocketAddr, Vec<Socket>)> {
    // With SO_REUSEPORT a second process of the same user would quietly take a part of the clients: a socket
    // without it finds out whether the address is free.
    let probe = socket(settings)?;
    probe.bind(&settings.address.into())?;
    let bound = probe.local_addr()?.as_socket().unwrap_or(settings.address);
    drop(probe);
    let sockets = (0..cores)
        .map(|_| {
            let socket = socket(settings)?;
            socket.set_reuse_port(true)?;
            socket.bind(&bound.into())?;
            if !settings.protocol.datagrams() {
                socket.listen(settings.backlog.min(i32::MAX as u32) as i32)?;
            }
            Ok(socket)
        })
        .collect::<io::Result<Vec<Socket>>>()?;
    Ok((bound, sockets))
}

fn socket(settings: &ListenerSettings) -> io::Result<Socket> {
    let domain = Domain::for_address(settings.address);
    let socket = match settings.protocol {
        Protocol::Udp | Protocol::Dns => {
            let socket = Socket::new(domain, Type::DGRAM, Some(Transport::UDP))?;
            udp::prepare(&socket, &settings.address)?;
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
