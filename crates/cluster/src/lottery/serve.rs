//! A daemon's thread: processes received datagrams, does the work that is due, sends, waits.
//!
//! Received datagrams are processed in batches until none are left. Between two batches due work is done and
//! responses are sent, so that neither waits for more than one batch of the other.

use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::sleep_until;

use super::DaemonCommand;
use super::node::DaemonNode;
use super::socket::{AsyncSockets, MAX_BATCH, ReceiveBuffers};

/// Serves until all senders of commands are gone.
pub(super) async fn serve(
    mut desk: DaemonNode,
    sockets: AsyncSockets,
    mut orders: mpsc::Receiver<DaemonCommand>,
) {
    let begin = Instant::now();
    let now = || Time(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut inbox = ReceiveBuffers::with_timestamps();
    loop {
        let at = now();
        desk.run_due(at);
        let mut take = |from, waited: Option<Duration>, bytes: &[u8]| {
            if let Some(waited) = waited {
                desk.record_delay(at, waited);
            }
            desk.receive(at, from, bytes);
        };
        let mut more = inbox.receive(&sockets.unicast, &mut take) == MAX_BATCH;
        if let Some(group) = &sockets.multicast {
            more |= inbox.receive(group, &mut take) == MAX_BATCH;
        }
        desk.maintain(at);
        desk.flush(&sockets.unicast);
        loop {
            match orders.try_recv() {
                Ok(order) => desk.execute(at, order),
                Err(TryRecvError::Empty) => break,
                // Checked even while requests arrive faster than they are answered.
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if more {
            continue;
        }
        desk.flush(&sockets.unicast);
        let due = desk.next_due().map(|due| begin + Duration::from_nanos(due.0));
        let due = due.unwrap_or_else(Instant::now);
        tokio::select! {
            _ = sockets.unicast.readable() => {}
            () = multicast_readable(sockets.multicast.as_ref()) => {}
            () = sleep_until(due.into()) => {}
            order = orders.recv() => match order {
                Some(order) => desk.execute(now(), order),
                None => return,
            }
        }
    }
}

/// Waits for a datagram to the multicast group.
async fn multicast_readable(group: Option<&UdpSocket>) {
    match group {
        Some(group) => drop(group.readable().await),
        None => std::future::pending().await,
    }
}
