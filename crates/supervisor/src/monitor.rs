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
    pub(super) child_number: u64,
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
    child_number: u64,
    exit_waiter: ExitWaiter,
    stderr: Option<Receiver>,
    process_log: ProcessLog,
    exit_sender: mpsc::Sender<ProcessExit>,
) {
    let (mut splitter, mut buffer, mut stderr) = (LineSplitter::default(), vec![0; READ_SIZE], stderr);
    let mut exit_future = pin!(exit_waiter.wait());
    let exit_cause = loop {
        let read_result = async {
            match &mut stderr {
                Some(stderr) => stderr.read(&mut buffer).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ending = &mut exit_future => break ending,
            said = read_result => match said {
                Ok(0) | Err(_) => stderr = None,
                Ok(read) => {
                    splitter.feed(&buffer[..read], &process_log);
                    let told = buffer[..read].windows(HANDED_OVER.len()).any(|words| words == HANDED_OVER);
                    if told && let Some(pipe) = stderr.take() {
                        let (back, again) = oneshot::channel();
                        let how = ProcessOutcome::HandedOver(pipe, back);
                        if exit_sender.send(ProcessExit { child_number, outcome: how }).await.is_ok() {
                            stderr = again.await.ok();
                        }
                    }
                }
            }
        }
    };
    // Its last output has the reason. The pipe itself is read: tokio may not have noticed it yet.
    let mut remaining_bytes = MAX_TAIL;
    while let Some(pipe) = &stderr
        && let Ok(byte_count @ 1..) = rustix::io::read(pipe, &mut buffer)
        && remaining_bytes > 0
    {
        splitter.feed(&buffer[..byte_count], &process_log);
        remaining_bytes = remaining_bytes.saturating_sub(byte_count);
    }
    splitter.finish(&process_log);
    // The receiver may have gone.
    let _ = exit_sender.send(ProcessExit { child_number, outcome: ProcessOutcome::Exited(exit_cause) }).await;
}
