//! The thread of a fleet: processes received datagrams, does the work that is due, sends, waits.

use std::sync::{Arc, Mutex};

use plimsoll_brain::status::FleetStatus;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::node::FleetNode;
use super::{FleetCommand, LocalBalancer, MemberNotice, seeds};
use crate::lock;
use crate::lottery::socket::{MAX_BATCH, ReceiveBuffers, SendQueue};

/// Serves until it receives the command to stop.
pub(super) async fn serve(
    mut desk: FleetNode,
    seeds: Vec<(String, u16)>,
    socket: UdpSocket,
    mut notices: mpsc::Receiver<MemberNotice>,
    mut words: mpsc::Receiver<FleetCommand>,
    local: Arc<dyn LocalBalancer>,
    view: Arc<Mutex<FleetStatus>>,
) {
    let (found, seeds_found) = watch::channel(Vec::new());
    let looks = tokio::spawn(seeds::resolve_seeds(seeds, desk.address(), found));
    let (mut inbox, mut outbox) = (ReceiveBuffers::new(), SendQueue::default());
    let mut version = None;
    loop {
        let now = local.now();
        let more = inbox.receive(&socket, |_, _, bytes| desk.receive(now, bytes)) == MAX_BATCH;
        while let Ok(notice) = notices.try_recv() {
            desk.record_action(&notice, now);
        }
        if version != Some(local.version()) {
            // The version is read first: a concurrent change is seen the next time.
            version = Some(local.version());
            desk.set_groups(local.groups(), now);
        }
        let known = seeds_found.borrow().clone();
        if desk.run_due(now, &known, &mut outbox) {
            for (group, waiting) in local.queue_lengths() {
                desk.fleet.set_waiting(&group, waiting);
            }
            *lock(&view) = desk.status(now);
        }
        send_queued(&mut desk, &mut outbox, &socket);
        while let Some((news, by)) = desk.poll_news() {
            local.receive_news(&news, &by);
        }
        let changes = desk.take_changes();
        if !changes.is_empty() {
            // The status is up to date before the change is reported.
            *lock(&view) = desk.status(now);
        }
        changes.iter().for_each(|change| local.receive_change(change));
        if more {
            continue;
        }
        let wait = desk.next_due().since(local.now());
        tokio::select! {
            biased;
            word = words.recv() => match word {
                Some(FleetCommand::Pause(reply)) => {
                    // The receiver may have timed out.
                    let _ = reply.send(desk.handoff_state(local.now()));
                    match words.recv().await {
                        None => break,
                        Some(FleetCommand::HandOff) => {
                            looks.abort();
                            return desk.fleet.leave();
                        }
                        Some(FleetCommand::Pause(_) | FleetCommand::Resume) => {}
                    }
                }
                Some(FleetCommand::HandOff) => {
                    looks.abort();
                    return desk.fleet.leave();
                }
                Some(FleetCommand::Resume) => {}
                None => break,
            },
            _ = socket.readable() => {}
            Some(notice) = notices.recv() => desk.record_action(&notice, local.now()),
            () = sleep(wait) => {}
        }
    }
    looks.abort();
    desk.leave(local.now(), &mut outbox);
    send_queued(&mut desk, &mut outbox, &socket);
}

fn send_queued(desk: &mut FleetNode, outbox: &mut SendQueue, socket: &UdpSocket) {
    let count = outbox.len();
    if count > 0 {
        let sent = outbox.send(socket);
        desk.counts.sent += sent as u64;
        desk.counts.unsent += (count - sent) as u64;
    }
}
