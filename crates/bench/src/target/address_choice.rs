//! The choice among the addresses of a name.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time-out of an unresponsive address.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the first of these that accepts a connection, like a client that tries them in order: `localhost`
/// usually has two addresses, and most servers listen on one. If none accepts, the first is returned; a
/// single address is not tried.
pub(super) fn first_reachable(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first = *addresses.first()?;
    if addresses.len() == 1 {
        return Some(first);
    }
    let is_reachable = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok();
    Some(addresses.iter().find(is_reachable).copied().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_server_at_the_second_address_of_its_name_is_found() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let reachable = server.local_addr().unwrap();
        // Bound without listening: connections are refused, and no other process gets the port meanwhile.
        let silent_socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        silent_socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        let unreachable = silent_socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(first_reachable([unreachable, reachable].into_iter()), Some(reachable));
        assert_eq!(first_reachable([unreachable, unreachable].into_iter()), Some(unreachable));
        assert_eq!(first_reachable([unreachable].into_iter()), Some(unreachable));
        assert_eq!(first_reachable(std::iter::empty()), None);
    }
}
