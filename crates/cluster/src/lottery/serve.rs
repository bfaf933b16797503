//! A daemon's thread: processes received datagrams, does the work that is due, sends, waits.
//!
//! Received datagrams are processed in batches until none are left. Between two batches due work is done and
//! responses are sent, so that neither waits for more than one batch of the other.

use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::sleep_until;

use super::Order;
use super::desk::Desk;
use super::socket::{BATCH, Inbox, Sockets};

/// Serves until all senders of commands are gone.
pub(super) async fn serve(mut desk: Desk, sockets: Sockets, mut orders: mpsc::Receiver<Order>) {
    let begin = Instant::now();
    let now = || Time(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut inbox = Inbox::stamped();
    loop {
        let at = now();
        desk.wake(at);
        let mut take = |from, waited: Option<Duration>, bytes: &[u8]| {
            if let Some(waited) = waited {
                desk.late(at, waited);
            }
            desk.take(at, from, bytes);
        };
        let mut more = inbox.receive(&sockets.one, &mut take) == BATCH;
        if let Some(group) = &sockets.group {
            more |= inbox.receive(group, &mut take) == BATCH;
        }
        desk.tend(at);
        desk.flush(&sockets.one);
        loop {
            match orders.try_recv() {
                Ok(order) => desk.obey(at, order),
                Err(TryRecvError::Empty) => break,
                // Checked even while requests arrive faster than they are answered.
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if more {
            continue;
        }
        desk.flush(&sockets.one);
        let due = desk.due().map(|due| begin + Duration::from_nanos(due.0));
        let due = due.unwrap_or_else(Instant::now);
        tokio::select! {
            _ = sockets.one.readable() => {}
            () = heard(sockets.group.as_ref()) => {}
            () = sleep_until(due.into()) => {}
            order = orders.recv() => match order {
                Some(order) => desk.obey(now(), order),
                None => return,
            }
        }
    }
}

/// Waits for a datagram to the multicast group.
async fn heard(group: Option<&UdpSocket>) {
    match group {
        Some(group) => drop(group.readable().await),
        None => std::future::pending().await,
    }
}
