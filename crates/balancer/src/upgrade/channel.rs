//! Messages with sockets over a unix socket: a length, JSON, and then the sockets, each batch behind one byte
//! of its own.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;

use super::HandoffMessage;

/// The number of sockets that go at once; the kernel takes 253.
const SOCKETS_PER_BATCH: usize = 200;
/// The maximum bytes of a message, more than a hundred thousand members take.
const MAX_MESSAGE: u32 = 512 << 20;
/// The maximum number of sockets with one message: more than a process may have open.
const MAX_SOCKETS: u32 = 1 << 20;

/// One end.
pub(super) struct HandoffChannel {
    stream: UnixStream,
}

impl HandoffChannel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Returns another handle of the same end.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()? })
    }

    /// Ends it in both directions, for all handles.
    pub(super) fn hang_up(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sets the timeout of both directions; `None` for no limit.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        // A timeout of zero is not possible; the least one is over at once all the same.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        self.stream.set_read_timeout(timeout)?;
        self.stream.set_write_timeout(timeout)
    }

    /// Sends a message.
    pub(super) fn send(
        &mut self,
        message_type: &str,
        body: &impl Serialize,
        sockets: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = serde_json::to_vec(&HandoffMessage::new(message_type, body)?)?;
        let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_MESSAGE);
        let length = length.ok_or_else(|| io::Error::other("the message is too long"))?;
        let count = u32::try_from(sockets.len()).map_err(io::Error::other)?;
        self.stream.write_all(&[length.to_le_bytes(), count.to_le_bytes()].concat())?;
        self.stream.write_all(&text)?;
        for batch in sockets.chunks(SOCKETS_PER_BATCH) {
            let mut control_space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_BATCH))];
            let mut ancillary = SendAncillaryBuffer::new(&mut control_space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(batch)) {
                return Err(io::Error::other("there is no room for sockets"));
            }
            let byte = [IoSlice::new(b"+")];
            retry_on_intr(|| sendmsg(&self.stream, &byte, &mut ancillary, SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }

    /// Receives a message of the other end; `None` if it has ended.
    pub(super) fn receive(&mut self) -> io::Result<Option<(HandoffMessage, Vec<OwnedFd>)>> {
        let mut head = [0; 8];
        // With a timeout the kernel does not repeat the call by itself when the process was stopped and goes
        // on.
        match retry_on_intr(|| rustix::io::read(&self.stream, &mut head[..1]))? {
            0 => return Ok(None),
            _ => self.stream.read_exact(&mut head[1..])?,
        }
        let [a, b, c, d, e, f, g, h] = head;
        let (length, count) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if length > MAX_MESSAGE || count > MAX_SOCKETS {
            return Err(io::Error::other("that is no message"));
        }
        let mut text = Vec::new();
        (&self.stream).take(u64::from(length)).read_to_end(&mut text)?;
        if text.len() < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut sockets = Vec::new();
        while sockets.len() < count as usize {
            self.receive_batch(&mut sockets)?;
        }
        Ok(Some((serde_json::from_slice(&text)?, sockets)))
    }

    fn receive_batch(&mut self, sockets: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut control_space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut control_space);
        let mut byte = [0];
        let mut io_slices = [IoSliceMut::new(&mut byte)];
        let received =
            retry_on_intr(|| recvmsg(&self.stream, &mut io_slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
        let socket_count = sockets.len();
        for control_message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(batch) = control_message {
                sockets.extend(batch);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if sockets.len() == socket_count || received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("sockets did not come: perhaps there are no more files"));
        }
        Ok(())
    }

    /// Waits until the other end has closed, for `patience` at most; returns `true` if it has.
    pub(super) fn wait_closed(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut rest = [0; 64];
        while Instant::now() < deadline {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if self.set_timeout(Some(remaining)).is_err() {
                return false;
            }
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }
}
