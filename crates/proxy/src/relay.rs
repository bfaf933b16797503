//! Bytes both ways between two streams until both have ended: what is left of HTTP after an upgrade.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::Core;
use crate::group::Stripe;
use crate::residue::Residue;
use crate::wheel::Timer;

/// Bytes that are moved in one direction before other tasks get their turn.
const TURN: usize = 1 << 20;

/// One direction.
#[derive(Default)]
struct Flow {
    residue: Residue,
    ended: bool,
    shut: bool,
}

/// Relays until both sides have ended, one fails, or nothing moved for `idle`. `ahead` are bytes of the client
/// that were read before.
pub(crate) async fn copy<C, M>(
    core: &Core,
    timer: &Timer,
    idle: Duration,
    (client, member): (&mut C, &mut M),
    ahead: Vec<u8>,
    stripe: &Stripe,
) where
    C: AsyncRead + AsyncWrite + Unpin,
    M: AsyncRead + AsyncWrite + Unpin,
{
    let (mut up, mut down) = (Flow::default(), Flow::default());
    let mut ahead = Some(ahead);
    timer.set(core.now() + idle);
    poll_fn(|cx| {
        if timer.fired() {
            return Poll::Ready(());
        }
        if let Some(ahead) = ahead.take()
            && up.residue.send_or_keep(cx, member, &ahead, &[]).is_err()
        {
            return Poll::Ready(());
        }
        let moved = core.lend(|buffer, _| {
            let out = up.poll(cx, client, member, buffer)?;
            let back = down.poll(cx, member, client, buffer)?;
            stripe.bytes_out.add(out.unwrap_or(0) as u64);
            stripe.bytes_in.add(back.unwrap_or(0) as u64);
            io::Result::Ok(out.is_some() || back.is_some())
        });
        match moved {
            Ok(true) => timer.set(core.tick() + idle),
            Ok(false) => {}
            Err(_) => return Poll::Ready(()),
        }
        if up.shut && down.shut { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Flow {
    /// Moves what can be moved; the bytes read, or `None` if nothing happened.
    fn poll<F, T>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut F,
        to: &mut T,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>>
    where
        F: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        let (mut moved, mut total) = (false, 0);
        loop {
            if !self.residue.is_empty() {
                match self.residue.poll_send(cx, to) {
                    Poll::Ready(sent) => {
                        sent?;
                        moved = true;
                        continue;
                    }
                    Poll::Pending => break,
                }
            }
            if self.ended {
                if !self.shut {
                    match Pin::new(&mut *to).poll_shutdown(cx) {
                        Poll::Ready(Ok(())) => {
                            self.shut = true;
                            moved = true;
                        }
                        Poll::Ready(Err(error)) => return Err(error),
                        Poll::Pending => {}
                    }
                }
                break;
            }
            if total >= TURN {
                cx.waker().wake_by_ref();
                break;
            }
            let mut space = ReadBuf::new(buffer);
            match Pin::new(&mut *from).poll_read(cx, &mut space) {
                Poll::Ready(Ok(())) if space.filled().is_empty() => self.ended = true,
                Poll::Ready(Ok(())) => {
                    total += space.filled().len();
                    self.residue.send_or_keep(cx, to, space.filled(), &[])?;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            moved = true;
        }
        Ok(moved.then_some(total))
    }
}
