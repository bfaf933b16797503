//! A stream with a write timeout.
//!
//! A peer that stops reading would leave its response in memory and occupy its slot for any time. With this
//! stream a write without progress for the given time fails, which ends the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream with a limit on the time that a write may stall.
pub(crate) struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    /// The timer of a stalled write.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stall_timer: None }
    }

    fn check_stall<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stall_timer = None;
            return poll;
        }
        let limit = self.limit;
        let stall_timer = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        stall_timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_stall(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_stall(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_stops_is_given_up() {
        let (writer, mut peer) = duplex(16);
        let mut writer = WriteTimeout::new(writer, Duration::from_secs(5));
        let mut read_buffer = [0; 8];
        writer.write_all(&[0; 16]).await.unwrap();
        peer.read_exact(&mut read_buffer).await.unwrap();
        let started_at = tokio::time::Instant::now();
        let error = writer.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started_at.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not() {
        let (writer, mut peer) = duplex(16);
        let mut writer = WriteTimeout::new(writer, Duration::from_secs(5));
        let reader = tokio::spawn(async move {
            let mut read_buffer = [0; 16];
            for _ in 0..4 {
                // sleeps: by a clock that the runtime advances
                tokio::time::sleep(Duration::from_secs(4)).await;
                peer.read_exact(&mut read_buffer).await.unwrap();
            }
        });
        writer.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
