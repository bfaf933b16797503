//! Ports that stay free until a process listens there, and while a process that listened there is dead. The
//! kernel assigns other ports to outgoing connections, of which an experiment makes a thousand a second.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::LabError;

/// The range of these ports: services use those below, manual choices are often above.
const FIRST_PORT: u32 = 10_240;
const LAST_PORT: u32 = 17_999;
/// The default of the lowest port for outgoing connections.
const DEFAULT_FIRST_EPHEMERAL: u32 = 32_768;

/// Returns a port of this host that is free now, and that this process assigns only once.
pub(super) fn free_address(host: IpAddr) -> Result<SocketAddr, LabError> {
    static PORT_COUNTER: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(RandomState::new().build_hasher().finish() as u32));
    let port_range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let first_ephemeral = port_range
        .and_then(|text| text.split_whitespace().next()?.parse::<u32>().ok())
        .unwrap_or(DEFAULT_FIRST_EPHEMERAL);
    let width = LAST_PORT + 1 - FIRST_PORT;
    // If the kernel's range begins that low, the kernel may as well choose.
    for _ in 0..if first_ephemeral > LAST_PORT { width } else { 0 } {
        let port = (FIRST_PORT + PORT_COUNTER.fetch_add(1, Relaxed) % width) as u16;
        let address = SocketAddr::new(host, port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    let port = TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    port.map_err(|error| LabError::failed(format!("no port is free on {host}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn nobody_who_connects_is_given_one_and_none_is_given_twice() {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let addresses: Vec<SocketAddr> = (0..50).map(|_| free_address(host).unwrap()).collect();
        let mut ports: Vec<u16> = addresses.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
        // An outgoing connection has a port of another range.
        let listener = TcpListener::bind((host, 0)).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let min_ephemeral = client.local_addr().unwrap().port().min(listener.local_addr().unwrap().port());
        assert!(*ports.last().unwrap() < min_ephemeral, "{ports:?} {min_ephemeral}");
    }
}
