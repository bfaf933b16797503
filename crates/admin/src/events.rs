//! The event log as server-sent events.
//!
//! A stream is a cursor over the entries that the subject keeps. It reads the entries above the cursor, sends
//! them, and waits for more. There is no queue per subscriber, so a slow one costs no memory. It continues
//! from its cursor; if the log has meanwhile dropped entries, the stream reports their number:
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

use crate::access::{Caller, GrantedScope};
use crate::api::Operation;
use crate::endpoint::AdminEndpoint;
use crate::{BalancerBackend, EventEntry};

/// The interval of keep-alive messages on a stream without news.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The minimum interval of reads of the log: a storm of events is read in batches.
const READ_INTERVAL: Duration = Duration::from_millis(50);
/// The number of entries in one piece of the body.
const BATCH: usize = 64;

/// Removes the entries that a caller may not see. The text of entries about the whole process may quote any
/// group, so callers with some groups see only that they occurred.
pub(crate) fn retain_visible(entries: &mut Vec<EventEntry>, scope: &GrantedScope) {
    entries.retain(|entry| scope.covers(&entry.group));
    if *scope != GrantedScope::All {
        entries.iter_mut().filter(|entry| entry.group.is_empty()).for_each(|entry| entry.why.clear());
    }
}

/// Sends the entries above `since` (all kept ones, if it is `None`) and then each new one that `caller` may
/// see. The stream ends when the client disconnects, has no permission left, or the admin plane ends.
pub(crate) async fn stream(
    endpoint: Arc<AdminEndpoint>,
    balancer: Arc<dyn BalancerBackend>,
    caller: Caller,
    since_seq: Option<u64>,
    mut sender: Sender<Bytes>,
    _slot: OwnedSemaphorePermit,
) {
    // An error means that the client has disconnected.
    let _ = send_entries(&endpoint, &*balancer, &caller, since_seq, &mut sender).await;
}

async fn send_entries(
    endpoint: &AdminEndpoint,
    balancer: &dyn BalancerBackend,
    caller: &Caller,
    since_seq: Option<u64>,
    sender: &mut Sender<Bytes>,
) -> Result<(), SendError> {
    sender.send_data("retry: 2000\n\n".into()).await?;
    let mut cursor = since_seq;
    let mut heartbeat = Instant::now() + HEARTBEAT;
    loop {
        // Called before the read, so that no event is missed between the two.
        let next_change = balancer.next_change();
        let has_ended = endpoint.has_ended();
        let mut entries = balancer.events(cursor.unwrap_or(0));
        // The rules may have changed since the stream began.
        let scope = endpoint.granted_scope(caller, Operation::Events);
        if scope == GrantedScope::Denied {
            return Ok(());
        }
        if let (Some(cursor), Some(first_entry)) = (cursor, entries.first())
            && first_entry.seq > cursor + 1
        {
            let missed = first_entry.seq - cursor - 1;
            sender.send_data(format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n").into()).await?;
        }
        cursor = entries.last().map(|entry| entry.seq).or(cursor).or(Some(0));
        retain_visible(&mut entries, &scope);
        for batch in entries.chunks(BATCH) {
            sender.send_data(batch.iter().map(format_event).collect::<String>().into()).await?;
            heartbeat = Instant::now() + HEARTBEAT;
        }
        if has_ended {
            return Ok(());
        }
        let next_entries = async {
            next_change.await;
            sleep(READ_INTERVAL).await;
        };
        tokio::select! {
            () = next_entries => {}
            () = endpoint.wait_for_end() => {}
            () = sleep_until(heartbeat) => {
                sender.send_data(": alive\n\n".into()).await?;
                heartbeat = Instant::now() + HEARTBEAT;
            }
        }
    }
}

fn format_event(entry: &EventEntry) -> String {
    // An entry has only text and finite numbers, and JSON has no raw line break that could end the message
    // early.
    let data = serde_json::to_string(entry).unwrap_or_default();
    format!("id: {}\ndata: {data}\n\n", entry.seq)
}
