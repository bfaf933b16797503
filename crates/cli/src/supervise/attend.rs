//! Watches one process: passes on what it says, and tells when and how it ended.

use std::pin::pin;

use plimsoll_brain::ward::Ending;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};

use super::child::Wait;
use super::lines::{Lines, Scribe};

/// Read at once of what a process says, bytes.
const READ: usize = 4 * 1024;
/// Read at most of what is left when it has ended: others may go on writing there.
const REST: usize = 1 << 20;

/// A process has ended, or says that another one has taken over.
pub(super) struct Ended {
    /// Which of those that were started or found.
    pub(super) number: u64,
    pub(super) how: How,
}

pub(super) enum How {
    Ended(Ending),
    /// What both say comes by this; it is to be given back if there is nobody who took over.
    HandedOver(Receiver, oneshot::Sender<Receiver>),
}

/// What a balancer says when another has taken over, with a number behind it.
const HANDED_OVER: &[u8] = b"handed over to pid ";

/// Passes on what a process says until it has ended.
pub(super) async fn attend(
    number: u64,
    wait: Wait,
    stderr: Option<Receiver>,
    scribe: Scribe,
    end: mpsc::Sender<Ended>,
) {
    let (mut lines, mut buffer, mut stderr) = (Lines::default(), vec![0; READ], stderr);
    let mut ended = pin!(wait.ended());
    let ending = loop {
        let said = async {
            match &mut stderr {
                Some(stderr) => stderr.read(&mut buffer).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ending = &mut ended => break ending,
            said = said => match said {
                Ok(0) | Err(_) => stderr = None,
                Ok(read) => {
                    lines.feed(&buffer[..read], &scribe);
                    let told = buffer[..read].windows(HANDED_OVER.len()).any(|words| words == HANDED_OVER);
                    if told && let Some(pipe) = stderr.take() {
                        let (back, again) = oneshot::channel();
                        let how = How::HandedOver(pipe, back);
                        if end.send(Ended { number, how }).await.is_ok() {
                            stderr = again.await.ok();
                        }
                    }
                }
            }
        }
    };
    // What it said last says why. The pipe itself is asked: tokio may not have heard of it yet.
    let mut left = REST;
    while let Some(pipe) = &stderr
        && let Ok(read @ 1..) = rustix::io::read(pipe, &mut buffer)
        && left > 0
    {
        lines.feed(&buffer[..read], &scribe);
        left = left.saturating_sub(read);
    }
    lines.end(&scribe);
    // Whoever waited for it may have gone.
    let _ = end.send(Ended { number, how: How::Ended(ending) }).await;
}
