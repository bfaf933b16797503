//! The choice among the addresses of a name.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time-out of an unresponsive address.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the first of these that accepts a connection, like a client that tries them in order: `localhost`
/// usually has two addresses, and most servers listen on one. If none accepts, the first is returned; a
/// single address is not tried.
pub(super) fn first_reachable(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first = *addresses.first()?;
    if addresses.len() == 1 {
        return Some(first);
    }
    let takes = |address: &&SocketAddr| TcpStream::connect_timeout(address, PATIENCE).is_ok();
    Some(addresses.iter().find(takes).copied().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_server_at_the_second_address_of_its_name_is_found() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = server.local_addr().unwrap();
        // Bound without listening: connections are refused, and no other process gets the port meanwhile.
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        let nobody = silent.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(first_reachable([nobody, there].into_iter()), Some(there));
        assert_eq!(first_reachable([nobody, nobody].into_iter()), Some(nobody));
        assert_eq!(first_reachable([nobody].into_iter()), Some(nobody));
        assert_eq!(first_reachable(std::iter::empty()), None);
    }
}
