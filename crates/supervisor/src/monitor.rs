//! The watch on one process: passes on its output, and reports when and how it ended.

use std::pin::pin;

use plimsoll_brain::supervision::ExitCause;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};

use super::log_capture::{LineSplitter, ProcessLog};
use super::os_process::ExitWaiter;

/// The bytes of a process's output that are read at once.
const READ_SIZE: usize = 4 * 1024;
/// The maximum bytes of the rest that are read when it has ended: others may go on writing there.
const MAX_TAIL: usize = 1 << 20;

/// The end of a process, or its report that another one has taken over.
pub(super) struct ProcessExit {
    /// The number of the process among those that were started or found.
    pub(super) number: u64,
    pub(super) outcome: ProcessOutcome,
}

pub(super) enum ProcessOutcome {
    Exited(ExitCause),
    /// The pipe has the output of both; it must be given back if no process took over.
    HandedOver(Receiver, oneshot::Sender<Receiver>),
}

/// The report of a balancer that another has taken over, with a number behind it.
const HANDED_OVER: &[u8] = b"handed over to pid ";

/// Passes on the output of a process until it has ended.
pub(super) async fn monitor_child(
    number: u64,
    wait: ExitWaiter,
    stderr: Option<Receiver>,
    scribe: ProcessLog,
    end: mpsc::Sender<ProcessExit>,
) {
    let (mut lines, mut buffer, mut stderr) = (LineSplitter::default(), vec![0; READ_SIZE], stderr);
    let mut ended = pin!(wait.wait());
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
                        let how = ProcessOutcome::HandedOver(pipe, back);
                        if end.send(ProcessExit { number, outcome: how }).await.is_ok() {
                            stderr = again.await.ok();
                        }
                    }
                }
            }
        }
    };
    // Its last output has the reason. The pipe itself is read: tokio may not have noticed it yet.
    let mut left = MAX_TAIL;
    while let Some(pipe) = &stderr
        && let Ok(read @ 1..) = rustix::io::read(pipe, &mut buffer)
        && left > 0
    {
        lines.feed(&buffer[..read], &scribe);
        left = left.saturating_sub(read);
    }
    lines.finish(&scribe);
    // The receiver may have gone.
    let _ = end.send(ProcessExit { number, outcome: ProcessOutcome::Exited(ending) }).await;
}
