//! The event log as server-sent events.
//!
//! A stream is a cursor over the entries that the subject keeps: read what is above the cursor, send it,
//! wait until there is more. Nothing is queued for a subscriber, so a slow one costs nobody memory; it reads
//! on from where it is, and where the log has meanwhile forgotten entries it is told how many:
//!
//! ```text
//! id: 7
//! data: {"seq":7,"unix_ms":…,"kind":"ejected","group":"web","member":"10.0.0.3:80","why":"…","inputs":{…}}
//!
//! event: lagged
//! data: {"missed":120}
//! ```

use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::{SendError, Sender};
use hyper::body::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};

use crate::access::{Caller, Permit};
use crate::plane::Plane;
use crate::verb::Verb;
use crate::{Entry, Subject};

/// A stream without news says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// At least so long between two looks at the log: a storm of events is read in batches.
const PACE: Duration = Duration::from_millis(50);
/// Entries in one piece of the body.
const BATCH: usize = 64;

/// Leaves the entries that somebody may see. Of what concerns the whole process, which may quote any group, one who may
/// see some groups learns that it happened.
pub(crate) fn seen(entries: &mut Vec<Entry>, permit: &Permit) {
    entries.retain(|entry| permit.admits(&entry.group));
    if *permit != Permit::All {
        entries.iter_mut().filter(|entry| entry.group.is_empty()).for_each(|entry| entry.why.clear());
    }
}

/// Sends the entries above `since` (the kept ones, if none is given) and then each new one, as far as `caller` may see
/// them, until the client goes, may see none any more, or the admin plane ends.
pub(crate) async fn stream(
    plane: Arc<Plane>,
    subject: Arc<dyn Subject>,
    caller: Caller,
    since: Option<u64>,
    mut out: Sender<Bytes>,
    _slot: OwnedSemaphorePermit,
) {
    // An error is a client that went.
    let _ = follow(&plane, &*subject, &caller, since, &mut out).await;
}

async fn follow(
    plane: &Plane,
    subject: &dyn Subject,
    caller: &Caller,
    since: Option<u64>,
    out: &mut Sender<Bytes>,
) -> Result<(), SendError> {
    out.send_data("retry: 2000\n\n".into()).await?;
    let mut cursor = since;
    let mut heartbeat = Instant::now() + HEARTBEAT;
    loop {
        // Asked before the look, so that nothing happens unseen between the two.
        let changed = subject.changed();
        let last = plane.ended();
        let mut fresh = subject.events(cursor.unwrap_or(0));
        // The rules may have changed since the stream began.
        let permit = plane.permit(caller, Verb::Events);
        if permit == Permit::Nothing {
            return Ok(());
        }
        if let (Some(cursor), Some(first)) = (cursor, fresh.first())
            && first.seq > cursor + 1
        {
            let missed = first.seq - cursor - 1;
            out.send_data(format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n").into()).await?;
        }
        cursor = fresh.last().map(|entry| entry.seq).or(cursor).or(Some(0));
        seen(&mut fresh, &permit);
        for batch in fresh.chunks(BATCH) {
            out.send_data(batch.iter().map(message).collect::<String>().into()).await?;
            heartbeat = Instant::now() + HEARTBEAT;
        }
        if last {
            return Ok(());
        }
        let news = async {
            changed.await;
            sleep(PACE).await;
        };
        tokio::select! {
            () = news => {}
            () = plane.end() => {}
            () = sleep_until(heartbeat) => {
                out.send_data(": alive\n\n".into()).await?;
                heartbeat = Instant::now() + HEARTBEAT;
            }
        }
    }
}

fn message(entry: &Entry) -> String {
    // It has only text and finite numbers, and JSON has no raw line break that could end the message early.
    let data = serde_json::to_string(entry).unwrap_or_default();
    format!("id: {}\ndata: {data}\n\n", entry.seq)
}
