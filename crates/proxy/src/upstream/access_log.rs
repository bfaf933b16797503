//! The access log: one JSON line per request (or per request of a sample), off by default.
//!
//! Cores format lines and send them in batches; one thread writes them. A slow or full disk costs lines,
//! which are counted, and never time on the data path.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::Time;
use plimsoll_wire::http1::RequestHead;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::AccessLogSettings;
use crate::upstream::request_record::RequestAttempt;
use crate::upstream::thread_context::ThreadContext;

/// The number of batches that may wait for the writer; more are dropped.
const QUEUE: usize = 256;
/// The size of a batch, in bytes.
const BATCH: usize = 16 * 1024;
/// The time limit for the last batches: writing to a pipe without a reader would never end.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The part of a request that is kept until it ends.
pub(crate) struct AccessLogEntry {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) host: String,
    pub(crate) agent: String,
}

/// The members that a request was sent to, and the trace that it belongs to.
#[derive(Default)]
pub(crate) struct LogContext<'a> {
    /// The trace, and the balancer's span in it if the balancer traces the request.
    pub(crate) ids: Option<(String, Option<String>)>,
    /// The name of the route, if a route took the request.
    pub(crate) route: Option<&'a str>,
    /// The members that were tried, in order.
    pub(crate) attempts: &'a [RequestAttempt],
    /// The time at which the request arrived.
    pub(crate) begun: Time,
}

/// The outcome of a request.
pub(crate) struct RequestOutcome {
    /// 0 if the client got no complete response.
    pub(crate) status: u16,
    pub(crate) reason: Option<&'static str>,
    pub(crate) duration: Duration,
}

impl AccessLogEntry {
    /// Returns a line for a request that is not parsed as HTTP/1.1, if it is to be logged.
    pub(crate) fn new_if_logged(core: &ThreadContext, entry: impl FnOnce() -> Self) -> Option<Self> {
        core.access_log.should_log(core).then(entry)
    }

    /// Creates a line for this request.
    pub(crate) fn from_request(request: &RequestHead<'_, '_>) -> Self {
        let owned_text =
            |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        Self {
            method: owned_text(Some(request.method_name)),
            target: owned_text(Some(request.target)),
            host: owned_text(Some(request.host)),
            agent: owned_text(request.field("user-agent")),
        }
    }
}

/// One core's side of the log.
#[derive(Default)]
pub(crate) struct AccessLogger {
    log: RefCell<Option<AccessLogSender>>,
    /// Lines whose random bits are at most this value are written.
    sample: Cell<u64>,
    batch: RefCell<Vec<u8>>,
    lines: Cell<u64>,
}

/// The channel to the writer.
#[derive(Clone)]
pub(crate) struct AccessLogSender {
    batches: SyncSender<LogBatch>,
    dropped: Arc<AtomicU64>,
    sample: u64,
}

struct LogBatch {
    bytes: Vec<u8>,
    lines: u64,
}

impl AccessLogger {
    pub(crate) fn connect(&self, sender: Option<AccessLogSender>) {
        self.flush();
        self.sample.set(sender.as_ref().map_or(0, |sender| sender.sample));
        *self.log.borrow_mut() = sender;
    }

    /// Returns `true` if a request is to be logged.
    pub(crate) fn should_log(&self, core: &ThreadContext) -> bool {
        match self.sample.get() {
            0 => false,
            u64::MAX => true,
            threshold => core.random_bits() <= threshold,
        }
    }

    /// Returns `true` if any request is to be logged.
    pub(crate) fn is_enabled(&self) -> bool {
        self.sample.get() > 0
    }

    /// Sends the collected lines to the writer.
    pub(crate) fn flush(&self) {
        let lines = self.lines.replace(0);
        if lines == 0 {
            return;
        }
        let bytes = std::mem::take(&mut *self.batch.borrow_mut());
        if let Some(log) = &*self.log.borrow()
            && log.batches.try_send(LogBatch { bytes, lines }).is_err()
        {
            log.dropped.fetch_add(lines, Relaxed);
        }
    }
}

impl ThreadContext {
    /// Appends a line.
    pub(crate) fn log(
        &self,
        entry: &AccessLogEntry,
        client: &str,
        group: &str,
        outcome: &RequestOutcome,
        context: &LogContext<'_>,
    ) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (trace, span) =
            context.ids.as_ref().map_or((None, None), |(trace, span)| (Some(trace), span.as_ref()));
        let last_attempt = context.attempts.last();
        let figures: Option<serde_json::Map<_, _>> =
            last_attempt.filter(|last| !last.figures.is_empty()).map(|last| {
                last.figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
            });
        let record = serde_json::json!({
            "time": unix.as_micros() as f64 / 1e6,
            "client": client,
            "method": entry.method,
            "host": entry.host,
            "target": entry.target,
            "user_agent": entry.agent,
            "group": group,
            "route": context.route,
            "status": outcome.status,
            "reason": outcome.reason,
            "member": last_attempt.map(|last| &*last.member),
            "strategy": last_attempt.map(|last| last.strategy),
            "choice": last_attempt.map(|last| last.choice.label()),
            "figures": figures,
            "tries": context.attempts.len(),
            "waited": context
                .attempts
                .first()
                .map_or(0.0, |first| first.begun.since(context.begun).as_secs_f64()),
            "trace_id": trace,
            "span_id": span,
            "seconds": outcome.duration.as_nanos() as f64 / 1e9,
        });
        let logger = &self.access_log;
        let mut batch = logger.batch.borrow_mut();
        // Writing to a vector cannot fail.
        let _ = writeln!(batch, "{record}");
        let batch_is_full = batch.len() >= BATCH;
        drop(batch);
        logger.lines.set(logger.lines.get() + 1);
        if batch_is_full {
            logger.flush();
        }
    }
}

/// The file, and the thread that writes it.
pub(crate) struct AccessLog {
    sender: AccessLogSender,
    /// Disconnected when the writer ends; nothing is ever sent on it.
    writer_ended: Receiver<Infallible>,
}

impl AccessLog {
    /// Opens the file for appending and starts the writer.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(settings: &AccessLogSettings, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let file = open(&settings.path)?;
        let (batches, queue) = sync_channel(QUEUE);
        let dropped_count = Arc::clone(&dropped);
        let (writer_guard, writer_ended) = sync_channel(0);
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            write(file, &queue, &dropped_count);
            drop(writer_guard);
        })?;
        let sample =
            if settings.sample >= 1.0 { u64::MAX } else { (settings.sample * u64::MAX as f64) as u64 };
        Ok(Self { sender: AccessLogSender { batches, dropped, sample }, writer_ended })
    }

    pub(crate) fn sender(&self) -> AccessLogSender {
        self.sender.clone()
    }

    /// Ends the writer after it has written all batches, or abandons it if it is blocked. All other senders
    /// must have been dropped.
    pub(crate) fn close(self) {
        drop(self.sender);
        // A writer that panicked has nothing left to write.
        if let Err(RecvTimeoutError::Timeout) = self.writer_ended.recv_timeout(FINAL_WRITE_TIMEOUT) {
            tracing::warn!("access log: its last lines cannot be written; they are dropped");
        }
    }
}

/// Opens the file without blocking: a pipe without a reader is an error and does not block all further
/// orders. A new file is readable by its owner and group only, as it contains clients' addresses and
/// requests.
fn open(path: &Path) -> io::Result<File> {
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(nonblock).open(path)?;
    // Writing may block, so that lines stay whole.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn write(mut file: File, queue: &Receiver<LogBatch>, dropped: &AtomicU64) {
    let mut has_warned = false;
    for batch in queue {
        if let Err(error) = file.write_all(&batch.bytes) {
            dropped.fetch_add(batch.lines, Relaxed);
            if !has_warned {
                tracing::warn!("access log: {error}; lines are dropped until it can be written again");
            }
            has_warned = true;
        } else {
            has_warned = false;
        }
    }
}
