//! The assignment of cores, and timestamps of answers. The measured delays should be the daemon's, without
//! waits for a core of a machine that also runs a hundred daemons and a client.

use std::fmt;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

/// Returns the time of the clock that the kernel uses for timestamps.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The last core for the measured thread, and the others for the rest; `None` if there is only one core.
pub(crate) struct Cores(Option<(CpuSet, CpuSet)>);

impl Cores {
    /// Puts the calling thread, and those that it will start, on all cores but the last.
    pub(crate) fn split() -> Self {
        let mut beside = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rev().find(|core| beside.is_set(*core)).unwrap();
        if beside.count() < 2 {
            return Self(None);
        }
        let mut alone = CpuSet::new();
        alone.set(last);
        beside.unset(last);
        sched_setaffinity(None, &beside).unwrap();
        Self(Some((alone, beside)))
    }

    /// Gives a thread the last core.
    pub(crate) fn alone(&self, thread: &str) {
        self.put(thread, |(alone, _)| alone);
    }

    /// Puts a thread back on the other cores.
    pub(crate) fn beside(&self, thread: &str) {
        self.put(thread, |(_, beside)| beside);
    }

    fn put(&self, thread: &str, which: impl FnOnce(&(CpuSet, CpuSet)) -> &CpuSet) {
        if let Some(sets) = &self.0 {
            sched_setaffinity(Pid::from_raw(thread.parse().unwrap()), which(sets)).unwrap();
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((_, beside)) => write!(f, "a core for it, {} for all others", beside.count()),
            None => f.write_str("one core for all"),
        }
    }
}

/// Raises the priority of the calling thread, if the system allows.
pub(crate) fn first() {
    let _ = setpriority_process(Some(gettid()), -15);
}

/// A socket whose datagrams have the kernel's timestamps of arrival.
pub(crate) struct Stamped {
    socket: UdpSocket,
    room: Vec<u8>,
}

impl Stamped {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).unwrap();
        Self { socket, room: cmsg_space!(TimeSpec) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Sends a datagram. Returns `false` if the buffer is full.
    pub(crate) fn send(&self, bytes: &[u8]) -> bool {
        self.socket.send(bytes).is_ok()
    }

    /// Returns the next datagram's length and its time of arrival, if one has arrived.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Duration)> {
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut self.room), MsgFlags::MSG_DONTWAIT) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN) => return None,
            Err(error) => panic!("{error}"),
        };
        let came = message.cmsgs().unwrap().find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        });
        Some((message.bytes, came.unwrap()))
    }

    /// Waits until a datagram arrives, for at most this time.
    pub(crate) fn wait(&self, most: Duration) {
        let mut one = [PollFd::new(&self.socket, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        poll(&mut one, Some(&wait)).unwrap();
    }
}
