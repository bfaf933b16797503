//! Sockets of tcp whose thread knows itself when they are ready ([`crate::readiness`]).

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags, SocketType,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::readiness::{Place, Readiness, Way};
use crate::stream::Stream;

/// A connected socket.
pub(crate) struct Socket {
    // Goes first: then nothing is told of it any more that another is taken for.
    place: Place,
    stream: TcpStream,
}

impl Socket {
    /// A connection that was made: it takes what is sent, and something may have come. `stream` does not block.
    ///
    /// # Errors
    /// The system watches no more.
    pub(crate) fn new(readiness: &Rc<Readiness>, stream: OwnedFd) -> io::Result<Self> {
        let place = readiness.watch(&stream, &[Way::Read, Way::Write])?;
        Ok(Self { place, stream: stream.into() })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// It cannot be reached, or the system has no more sockets.
    pub(crate) async fn connect(readiness: &Rc<Readiness>, address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let stream = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => return Self::new(readiness, stream),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let place = readiness.watch(&stream, &[])?;
        poll_fn(|cx| place.poll_ready(Way::Write, cx)).await;
        let stream = TcpStream::from(stream);
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(Self { place, stream }),
        }
    }

    /// Does something once the socket is ready for it; what comes of `act` is how many bytes it moved, `room` at most: fewer
    /// have exhausted it.
    #[inline]
    pub(crate) fn attempt(
        &self,
        way: Way,
        room: usize,
        mut act: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if !self.place.is_ready(way) {
            return None;
        }
        match rustix::io::retry_on_intr(&mut act) {
            Ok(moved) => {
                if moved < room {
                    self.place.exhausted(way);
                }
                Some(Ok(moved))
            }
            Err(Errno::WOULDBLOCK) => {
                self.place.blocked(way);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    /// What [`Stream::poll_recv`] does, for those that share the socket.
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let room = buffer.len();
        let came = self.attempt(Way::Read, room, || {
            // Being ready, it has woken the task and forgotten it.
            *watched = false;
            rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::empty()).map(|(bytes, _)| bytes)
        });
        match came {
            Some(came) => Poll::Ready(came),
            None => {
                if !*watched {
                    self.place.wait(Way::Read, cx);
                    *watched = true;
                }
                Poll::Pending
            }
        }
    }

    /// Sends what the socket takes at this moment; `None` if it takes nothing.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        self.attempt(Way::Write, bytes.len(), || rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL))
    }

    /// The same of several pieces, one after the other.
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let all = parts.iter().map(|part| part.len()).sum();
        let mut none = SendAncillaryBuffer::default();
        self.attempt(Way::Write, all, || {
            rustix::net::sendmsg(&self.stream, parts, &mut none, SendFlags::NOSIGNAL)
        })
    }

    /// Which of our addresses it came to, or goes out from.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Lets nothing wait for more to be sent with it.
    pub(crate) fn hurry(&self) {
        // A socket that is gone already need not.
        let _ = self.stream.set_nodelay(true);
    }

    /// Ready when the socket may be.
    pub(crate) fn poll_ready(&self, way: Way, cx: &Context<'_>) -> Poll<()> {
        self.place.poll_ready(way, cx)
    }
}

/// A peer is asked after a minute, and has another one to answer.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// Of all sockets.
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A socket that connections come to.
pub(crate) struct Entrance {
    place: Place,
    socket: OwnedFd,
}

impl Entrance {
    /// Of a socket that listens, and does not block.
    ///
    /// # Errors
    /// The system watches no more.
    pub(crate) fn new(readiness: &Rc<Readiness>, socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { place: readiness.watch(&socket, &[Way::Read])?, socket })
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system has no more descriptors, or the client has gone already.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        // Where many come, others are to have their turns, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        ready!(self.place.poll_ready(Way::Read, cx));
        let Some(accepted) = self.accept() else {
            self.place.wait(Way::Read, cx);
            return Poll::Pending;
        };
        coop.made_progress();
        Poll::Ready(accepted)
    }

    /// A connection that waits, if there is one.
    pub(crate) fn accept(&self) -> Option<io::Result<(Socket, SocketAddr)>> {
        let accepted = rustix::io::retry_on_intr(|| rustix::net::acceptfrom_with(&self.socket, FLAGS));
        if matches!(accepted, Err(Errno::WOULDBLOCK)) {
            self.place.blocked(Way::Read);
            return None;
        }
        let greet = |(stream, client): (OwnedFd, Option<SocketAddrAny>)| {
            let client = client.and_then(|client| client.try_into().ok()).ok_or(Errno::AFNOSUPPORT)?;
            Ok((Socket::new(self.place.readiness(), stream)?, client))
        };
        Some(accepted.map_err(io::Error::from).and_then(greet))
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        // Another process may go on with it.
        self.place.leave(&self.socket);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Stream for Socket {
    fn socket(&self) -> Option<&Socket> {
        Some(self)
    }

    /// Costs no system call when nothing has come: the kernel is asked only if it said that there is something.
    #[inline]
    fn quiet(&mut self) -> bool {
        let mut space = [0];
        self.attempt(Way::Read, 1, || {
            rustix::net::recv(&self.stream, &mut space, RecvFlags::empty()).map(|(bytes, _)| bytes)
        })
        .is_none()
    }

    #[inline]
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        Self::poll_recv(self, cx, buffer, watched)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.send(bytes) {
            Some(sent) => Poll::Ready(sent),
            None => {
                self.place.wait(Way::Write, cx);
                Poll::Pending
            }
        }
    }

    fn abort(&self) {
        // A socket that is gone already needs none.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn keepalive(&self) {
        // A socket that is gone already needs none.
        let _ = SockRef::from(&self.stream).set_tcp_keepalive(&KEEPALIVE);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Others are to have their turns, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        let came = ready!(self.poll_recv(cx, space.initialize_unfilled(), &mut false))?;
        coop.made_progress();
        space.advance(came);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.send_parts(pieces) {
            Some(sent) => Poll::Ready(sent),
            None => {
                self.place.wait(Way::Write, cx);
                Poll::Pending
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Wake, Waker};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    impl Count {
        fn since(&self) -> usize {
            self.0.swap(0, Relaxed)
        }
    }

    /// A socket that is watched and the other end of it.
    fn pair(readiness: &Rc<Readiness>) -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (Socket::new(readiness, stream.into()).unwrap(), other)
    }

    /// Looks until something is found: loopback takes no time, but a machine may.
    fn look(readiness: &Readiness) {
        for _ in 0..10_000 {
            if readiness.look() > 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nothing comes");
    }

    #[test]
    fn who_waits_is_woken_once_for_what_comes() {
        let readiness = Readiness::new().unwrap();
        let (mut socket, mut other) = pair(&readiness);
        let (count, mut watched, mut buffer) = (Arc::new(Count::default()), false, [0; 100]);
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        for round in 0..3 {
            assert!(socket.poll_recv(&mut cx, &mut buffer, &mut watched).is_pending() && watched, "{round}");
            assert!(socket.quiet());
            watched = false;
            assert!(socket.poll_recv(&mut cx, &mut buffer, &mut watched).is_pending());
            other.write_all(b"more").unwrap();
            look(&readiness);
            assert_eq!((count.since(), readiness.look(), count.since()), (1, 0, 0));
            let came = socket.poll_recv(&mut cx, &mut buffer, &mut watched);
            assert!(matches!(came, Poll::Ready(Ok(4))) && !watched, "{came:?}");
        }
    }

    #[test]
    fn the_end_is_not_missed_that_comes_with_the_last_bytes() {
        let readiness = Readiness::new().unwrap();
        let (socket, mut other) = pair(&readiness);
        let (mut cx, mut buffer) = (Context::from_waker(Waker::noop()), [0; 100]);
        assert!(socket.poll_recv(&mut cx, &mut buffer, &mut false).is_pending());
        other.write_all(b"last").unwrap();
        drop(other);
        // Both may be told of at once.
        std::thread::sleep(Duration::from_millis(20));
        look(&readiness);
        assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(4))));
        for _ in 0..3 {
            assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(0))));
        }
    }

    #[test]
    fn a_reset_is_an_error_and_wakes_both_sides() {
        let readiness = Readiness::new().unwrap();
        let (socket, other) = pair(&readiness);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        assert!(socket.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
        let full = vec![1; 1 << 20];
        while socket.send(&full).is_some() {}
        assert!(socket.poll_ready(Way::Write, &cx).is_pending());
        SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
        drop(other);
        look(&readiness);
        assert_eq!(count.since(), 2);
        let came = socket.poll_recv(&mut cx, &mut [0; 8], &mut false);
        assert!(
            matches!(&came, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset),
            "{came:?}"
        );
    }

    #[test]
    fn who_sends_more_than_is_taken_is_woken_when_more_is() {
        let readiness = Readiness::new().unwrap();
        let (socket, mut other) = pair(&readiness);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        let (head, full) = ([7; 10], vec![1; 1 << 20]);
        let parts = [IoSlice::new(&head), IoSlice::new(&full)];
        let mut sent = 0;
        while let Some(more) = socket.send_parts(&parts) {
            sent += more.unwrap();
        }
        assert!(sent > 10 && socket.poll_ready(Way::Write, &cx).is_pending());
        let mut received = vec![0; sent];
        other.read_exact(&mut received).unwrap();
        assert_eq!(received[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1]);
        look(&readiness);
        assert_eq!(count.since(), 1);
        assert!(socket.send(&head).is_some());
    }

    #[test]
    fn what_is_told_of_one_that_is_gone_does_no_harm_to_others() {
        let readiness = Readiness::new().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            let (socket, mut other) = pair(&readiness);
            // Somebody else holds the connection open, as a process does that is about to be another program.
            let held = socket.stream.try_clone().unwrap();
            drop(socket);
            let (next, _kept) = pair(&readiness);
            assert!(next.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
            other.write_all(b"late").unwrap();
            look(&readiness);
            assert!(next.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
            drop(held);
        }
    }

    #[tokio::test]
    async fn connections_are_made_and_taken_or_refused() {
        let readiness = Readiness::new().unwrap();
        let looks = async {
            loop {
                readiness.look();
                tokio::task::yield_now().await;
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let entrance = Entrance::new(&readiness, listener.into()).unwrap();
        let talk = async {
            let mut clients = Vec::new();
            for _ in 0..3 {
                clients.push(Socket::connect(&readiness, address).await.unwrap());
            }
            for mut client in clients {
                let (member, peer) = poll_fn(|cx| entrance.poll_accept(cx)).await.unwrap();
                assert_eq!((peer, member.local_addr().unwrap()), (client.local_addr().unwrap(), address));
                assert!(matches!(client.send(b"hello"), Some(Ok(5))));
                let mut buffer = [0; 8];
                let came = poll_fn(|cx| member.poll_recv(cx, &mut buffer, &mut false)).await.unwrap();
                assert!(buffer[..came] == *b"hello" && client.quiet());
            }
            assert!(entrance.accept().is_none());
            // In another process it goes on, and nobody here hears of it.
            let heir = entrance.socket.try_clone().unwrap();
            drop(entrance);
            let client = TcpStream::connect(address).unwrap();
            assert!(rustix::net::acceptfrom_with(&heir, FLAGS).is_ok());
            assert_eq!(readiness.look(), 0);
            drop((client, heir));
            let refused = Socket::connect(&readiness, address).await.err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        };
        tokio::select! {
            () = talk => {}
            () = looks => {}
        }
    }
}
