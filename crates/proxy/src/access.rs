//! The access log: one JSON line per request (or a sample of them), off by default.
//!
//! Cores format lines and hand them over in batches; one thread writes. A slow or full disk costs lines,
//! which are counted, never time on the data path.

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
use plimsoll_wire::http1::Request;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::AccessLogSettings;
use crate::account::Try;
use crate::core::Core;

/// Batches that may wait for the writer; more are dropped.
const QUEUE: usize = 256;
/// Bytes of a batch.
const BATCH: usize = 16 * 1024;
/// How long the writer may take for the last batches: a pipe that nobody reads would take for ever.
const LAST: Duration = Duration::from_secs(2);

/// What is remembered of a request until it ends.
pub(crate) struct Line {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) host: String,
    pub(crate) agent: String,
}

/// The member that a request got, and the trace that it belongs to.
#[derive(Default)]
pub(crate) struct Way<'a> {
    /// The trace, and our span in it, if it is traced here.
    pub(crate) ids: Option<(String, Option<String>)>,
    /// Members that were asked, in their order.
    pub(crate) tries: &'a [Try],
    /// When the request came.
    pub(crate) begun: Time,
}

/// How a request ended.
pub(crate) struct Outcome {
    /// 0 if the client got no whole answer.
    pub(crate) status: u16,
    pub(crate) reason: Option<&'static str>,
    pub(crate) took: Duration,
}

impl Line {
    /// A line for a request that is not told as HTTP/1.1, if it is to have one.
    pub(crate) fn told(core: &Core, told: impl FnOnce() -> Self) -> Option<Self> {
        core.access.wanted(core).then(told)
    }

    /// A line for this request.
    pub(crate) fn of(request: &Request<'_, '_>) -> Self {
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        Self {
            method: text(Some(request.method_name)),
            target: text(Some(request.target)),
            host: text(Some(request.host)),
            agent: text(request.field("user-agent")),
        }
    }
}

/// One core's end of the log.
#[derive(Default)]
pub(crate) struct Access {
    log: RefCell<Option<Sender>>,
    /// Lines with random bits up to this are written.
    sample: Cell<u64>,
    batch: RefCell<Vec<u8>>,
    lines: Cell<u64>,
}

/// Where batches go.
#[derive(Clone)]
pub(crate) struct Sender {
    batches: SyncSender<Batch>,
    dropped: Arc<AtomicU64>,
    sample: u64,
}

struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

impl Access {
    pub(crate) fn connect(&self, sender: Option<Sender>) {
        self.flush();
        self.sample.set(sender.as_ref().map_or(0, |sender| sender.sample));
        *self.log.borrow_mut() = sender;
    }

    /// Is a request to have a line?
    pub(crate) fn wanted(&self, core: &Core) -> bool {
        match self.sample.get() {
            0 => false,
            u64::MAX => true,
            most => core.chance() <= most,
        }
    }

    /// Is any to have one?
    pub(crate) fn is_on(&self) -> bool {
        self.sample.get() > 0
    }

    /// Hands over what has gathered.
    pub(crate) fn flush(&self) {
        let lines = self.lines.replace(0);
        if lines == 0 {
            return;
        }
        let bytes = std::mem::take(&mut *self.batch.borrow_mut());
        if let Some(log) = &*self.log.borrow()
            && log.batches.try_send(Batch { bytes, lines }).is_err()
        {
            log.dropped.fetch_add(lines, Relaxed);
        }
    }
}

impl Core {
    /// Appends a line.
    pub(crate) fn log(&self, line: &Line, client: &str, group: &str, outcome: &Outcome, way: &Way<'_>) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (trace, span) =
            way.ids.as_ref().map_or((None, None), |(trace, span)| (Some(trace), span.as_ref()));
        let last = way.tries.last();
        let figures: Option<serde_json::Map<_, _>> =
            last.filter(|last| !last.figures.is_empty()).map(|last| {
                last.figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
            });
        let record = serde_json::json!({
            "time": unix.as_micros() as f64 / 1e6,
            "client": client,
            "method": line.method,
            "host": line.host,
            "target": line.target,
            "user_agent": line.agent,
            "group": group,
            "status": outcome.status,
            "reason": outcome.reason,
            "member": last.map(|last| &*last.member),
            "strategy": last.map(|last| last.strategy),
            "choice": last.map(|last| last.choice.label()),
            "figures": figures,
            "tries": way.tries.len(),
            "waited": way.tries.first().map_or(0.0, |first| first.begun.since(way.begun).as_secs_f64()),
            "trace_id": trace,
            "span_id": span,
            "seconds": outcome.took.as_nanos() as f64 / 1e9,
        });
        let access = &self.access;
        let mut batch = access.batch.borrow_mut();
        // Writing to a vector cannot fail.
        let _ = writeln!(batch, "{record}");
        let full = batch.len() >= BATCH;
        drop(batch);
        access.lines.set(access.lines.get() + 1);
        if full {
            access.flush();
        }
    }
}

/// The file, and the thread that writes it.
pub(crate) struct AccessLog {
    sender: Sender,
    /// Hears of nothing but the writer's end.
    ended: Receiver<Infallible>,
}

impl AccessLog {
    /// Opens the file for appending and starts the writer.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(settings: &AccessLogSettings, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let file = open(&settings.path)?;
        let (batches, queue) = sync_channel(QUEUE);
        let lost = Arc::clone(&dropped);
        let (end, ended) = sync_channel(0);
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            write(file, &queue, &lost);
            drop(end);
        })?;
        let sample =
            if settings.sample >= 1.0 { u64::MAX } else { (settings.sample * u64::MAX as f64) as u64 };
        Ok(Self { sender: Sender { batches, dropped, sample }, ended })
    }

    pub(crate) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Ends the writer after it wrote what it was given, or leaves it behind if it cannot; every other sender
    /// must be gone.
    pub(crate) fn close(self) {
        drop(self.sender);
        // A writer that panicked has nothing left to write.
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(LAST) {
            tracing::warn!("access log: its last lines cannot be written; they are dropped");
        }
    }
}

/// Opens without waiting: a pipe that nobody reads is an error rather than the end of all orders. A file that is made is read by its owner
/// and group alone: it names clients, and what they asked for.
fn open(path: &Path) -> io::Result<File> {
    let wait_not = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(wait_not).open(path)?;
    // Writing may wait, so that lines stay whole.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn write(mut file: File, queue: &Receiver<Batch>, dropped: &AtomicU64) {
    let mut complained = false;
    for batch in queue {
        if let Err(error) = file.write_all(&batch.bytes) {
            dropped.fetch_add(batch.lines, Relaxed);
            if !complained {
                tracing::warn!("access log: {error}; lines are dropped until it can be written again");
            }
            complained = true;
        } else {
            complained = false;
        }
    }
}
