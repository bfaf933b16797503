//! What every end-to-end test stands on: processes that end with their test, waiting with a bound, folders that
//! go away, clients and members that do exactly as told.
//!
//! Nothing waits for a fixed time in the hope that something has happened by then: [`until`] looks again and
//! again until it has, for [`PATIENCE`] at most. A fact that must last is watched by [`throughout`]. Ports are the kernel's
//! choice, or held by the process that chose them (`tests/ports.rs`).

mod balancer;
mod curl;
mod etcd;
mod golang;
mod load;
mod manager;
mod member;
mod orb;
mod orb_group;
mod pebble;
mod peers;
mod pki;
mod process;
mod shell;
mod told;
mod walk;
mod wire;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use crate::ports::free_port;
pub(crate) use balancer::{Balancer, Run, binary, groups, listening, members_list, web};
pub(crate) use curl::{Curled, curl, curl_status};
pub(crate) use etcd::Etcd;
pub(crate) use golang::{InteropServer, go_run, go_tool};
pub(crate) use load::Load;
pub(crate) use manager::Manager;
pub(crate) use member::{Member, Script, deaf, refusing};
pub(crate) use orb::{Call, Orb, OrbClient, OrbMember};
pub(crate) use orb_group::{OrbGroup, notes, shedding, shown};
pub(crate) use pebble::{Pebble, Wish};
pub(crate) use peers::{Haproxy, Nginx, part};
pub(crate) use pki::Authority;
pub(crate) use process::Process;
pub(crate) use told::Told;
pub(crate) use walk::Walk;
pub(crate) use wire::{Answer, Wire, get};

/// Bound of every wait: longer than anything takes on a machine with other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Least and longest time between two looks.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Looks again and again until `look` finds something or `end` is over. A look that takes long, such as a command, is repeated
/// less often: waiting tests leave the machine to those that work.
fn watch<T>(end: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let begun = Instant::now();
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep((2 * begun.elapsed()).clamp(LOOK.0, LOOK.1)); // sleeps: polls
    }
}

/// Looks again and again until `look` finds something.
#[track_caller]
pub(crate) fn found<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    watch(Instant::now() + PATIENCE, look).unwrap_or_else(|| panic!("in {PATIENCE:?}: not {what}"))
}

/// Looks again and again until `holds` does; false if it never did.
pub(crate) fn patiently(mut holds: impl FnMut() -> bool) -> bool {
    watch(Instant::now() + PATIENCE, || holds().then_some(())).is_some()
}

/// Looks again and again until `holds` does.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    found(what, || holds().then_some(()));
}

/// Looks again and again for `length` and fails as soon as `holds` does not. A slow machine looks less often, and so cannot fail it.
#[track_caller]
pub(crate) fn throughout(what: &str, length: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    let broken = watch(begun + length, || (!holds()).then(|| begun.elapsed()));
    assert!(broken.is_none(), "after {broken:?}: not {what}");
}

/// A folder that goes away with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("plimsoll-e2e-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Reads a file.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap()
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes an executable script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let source = self.write(&format!("{name}.source"), text);
        self.install(&source, name)
    }

    /// Copies a program. Another process does so: the kernel runs no file that is open for writing anywhere (ETXTBSY), and
    /// children that other tests start meanwhile would inherit ours until they are programs of their own.
    pub(crate) fn install(&self, program: &Path, name: &str) -> PathBuf {
        let path = self.join(name);
        let made = Command::new("install").args(["-D", "-m", "755"]).args([program, &path]).status().unwrap();
        assert!(made.success(), "install {}", path.display());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An address that nobody listens at, as long as the socket is kept: it has the port.
pub(crate) fn nobody() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Does anybody accept connections there?
pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// So many bytes that no compression and no accident makes alike (splitmix64).
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = length as u64;
    let words = std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).to_le_bytes()
    });
    words.take(length.div_ceil(8)).flatten().take(length).collect()
}
