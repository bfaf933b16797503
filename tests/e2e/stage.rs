//! The stage of every end-to-end test: processes that end with their test, waits with a bound, temporary
//! folders, and scripted clients and members.
//!
//! No test waits for a fixed time in the hope that something has happened by then: [`until`] polls until it
//! has, for [`PATIENCE`] at most. [`throughout`] watches a fact that must last. Ports are the kernel's
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

/// The bound of every wait, longer than any operation on a machine with several times more work than cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The least and the longest time between two looks.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Polls until `look` returns a value or `end` is over. A slow look, such as a command, is repeated less
/// often: waiting tests leave the machine to those that work.
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

/// Polls until `look` returns a value.
#[track_caller]
pub(crate) fn found<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    watch(Instant::now() + PATIENCE, look).unwrap_or_else(|| panic!("in {PATIENCE:?}: not {what}"))
}

/// Polls until `holds` returns `true`; returns `false` if it never did.
pub(crate) fn patiently(mut holds: impl FnMut() -> bool) -> bool {
    watch(Instant::now() + PATIENCE, || holds().then_some(())).is_some()
}

/// Polls until `holds` returns `true`.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    found(what, || holds().then_some(()));
}

/// Polls for `length` and fails as soon as `holds` returns `false`. A slow machine looks less often, and so
/// cannot fail it.
#[track_caller]
pub(crate) fn throughout(what: &str, length: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    let broken = watch(begun + length, || (!holds()).then(|| begun.elapsed()));
    assert!(broken.is_none(), "after {broken:?}: not {what}");
}

/// A folder that is deleted with its test.
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

    /// Copies a program by another process: the kernel runs no file that is open for writing anywhere
    /// (ETXTBSY). Children that other tests start meanwhile would inherit the file of this process until
    /// their exec.
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

/// Returns an address that no process listens at, as long as the socket is kept: it has the port.
pub(crate) fn nobody() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Returns `true` if a process accepts connections there.
pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// Returns so many bytes that cannot be compressed and are not alike by accident (splitmix64).
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
