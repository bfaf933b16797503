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
    mut node: DaemonNode,
    sockets: AsyncSockets,
    mut commands: mpsc::Receiver<DaemonCommand>,
) {
    let started_at = Instant::now();
    let now = || Time(u64::try_from(started_at.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut receive_buffers = ReceiveBuffers::with_timestamps();
    loop {
        let round_start = now();
        node.run_due(round_start);
        let mut on_datagram = |from, delay: Option<Duration>, bytes: &[u8]| {
            if let Some(delay) = delay {
                node.record_delay(round_start, delay);
            }
            node.receive(round_start, from, bytes);
        };
        let mut has_more = receive_buffers.receive(&sockets.unicast, &mut on_datagram) == MAX_BATCH;
        if let Some(group) = &sockets.multicast {
            has_more |= receive_buffers.receive(group, &mut on_datagram) == MAX_BATCH;
        }
        node.maintain(round_start);
        node.flush(&sockets.unicast);
        loop {
            match commands.try_recv() {
                Ok(command) => node.execute(round_start, command),
                Err(TryRecvError::Empty) => break,
                // Checked even while requests arrive faster than they are answered.
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if has_more {
            continue;
        }
        node.flush(&sockets.unicast);
        let due = node.next_due().map(|due| started_at + Duration::from_nanos(due.0));
        let due = due.unwrap_or_else(Instant::now);
        tokio::select! {
            _ = sockets.unicast.readable() => {}
            () = multicast_readable(sockets.multicast.as_ref()) => {}
            () = sleep_until(due.into()) => {}
            command = commands.recv() => match command {
                Some(order) => node.execute(now(), order),
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
