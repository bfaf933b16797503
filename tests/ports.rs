//! Ports and loopback addresses that no other test has at the same time.
//!
//! A process claims numbers by binding abstract unix sockets: the kernel gives each name to one process of a
//! network namespace and takes it back when that process ends, however it ends.

use std::ops::Range;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

/// The range of ports, outside of that which the kernel assigns by itself (32768 to 60999).
const PORTS: Range<u16> = 18_000..32_000;

/// The number of ports that a process claims at once.
const BLOCK: u16 = 50;

/// Returns a port for a program that cannot take port 0. No socket of this machine had it, and it belongs to
/// this process until that ends; it is returned once.
///
/// The kernel's tables show which ports are free. A socket that tried it could be inherited for a moment by a
/// process that another test starts, and would be in the way.
#[track_caller]
pub(crate) fn free_port() -> u16 {
    static LEFT: Mutex<Range<u16>> = Mutex::new(0..0);
    let mut left = LEFT.lock().unwrap();
    loop {
        let Some(port) = left.next() else {
            let block = claim("ports", (PORTS.end - PORTS.start) / BLOCK);
            let first = PORTS.start + block * BLOCK;
            *left = first..first + BLOCK;
            continue;
        };
        if !is_in_use(port) {
            return port;
        }
    }
}

/// Returns `true` if a socket of this network namespace has that local port.
fn is_in_use(port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6", "udp", "udp6"].iter().any(|table| {
        let text = match std::fs::read_to_string(format!("/proc/net/{table}")) {
            Ok(text) => text,
            // A kernel without IPv6.
            Err(error) if table.ends_with('6') && error.kind() == std::io::ErrorKind::NotFound => {
                return false;
            }
            Err(error) => panic!("/proc/net/{table}: {error}"),
        };
        text.lines().skip(1).any(|line| {
            line.split_ascii_whitespace().nth(1).is_some_and(|address| address.ends_with(&suffix))
        })
    })
}

/// Claims a number below `count` until this process ends.
///
/// # Panics
/// Panics if all are claimed.
#[track_caller]
pub(crate) fn claim(kind: &str, count: u16) -> u16 {
    // Processes that follow each other get different numbers, so that connections of the one before do not
    // linger on them.
    let first = (std::process::id() % u32::from(count)) as u16;
    let numbers = (0..count).map(|step| (first + step) % count);
    let mut free = numbers.filter(|number| {
        let name = SocketAddr::from_abstract_name(format!("plimsoll-test-{kind}-{number}")).unwrap();
        // The socket is kept open for as long as the process runs.
        UnixListener::bind_addr(&name).map(std::mem::forget).is_ok()
    });
    free.next().unwrap_or_else(|| panic!("all {count} {kind} of tests are claimed"))
}
