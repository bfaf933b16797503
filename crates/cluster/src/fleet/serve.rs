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
    mut node: FleetNode,
    seeds: Vec<(String, u16)>,
    socket: UdpSocket,
    mut notices: mpsc::Receiver<MemberNotice>,
    mut commands: mpsc::Receiver<FleetCommand>,
    local: Arc<dyn LocalBalancer>,
    status: Arc<Mutex<FleetStatus>>,
) {
    let (seed_sender, seed_receiver) = watch::channel(Vec::new());
    let seed_task = tokio::spawn(seeds::resolve_seeds(seeds, node.address(), seed_sender));
    let (mut inbox, mut outbox) = (ReceiveBuffers::new(), SendQueue::default());
    let mut version = None;
    loop {
        let now = local.now();
        let has_more = inbox.receive(&socket, |_, _, bytes| node.receive(now, bytes)) == MAX_BATCH;
        while let Ok(notice) = notices.try_recv() {
            node.record_action(&notice, now);
        }
        if version != Some(local.version()) {
            // The version is read first: a concurrent change is seen the next time.
            version = Some(local.version());
            node.set_groups(local.groups(), now);
        }
        let seed_addresses = seed_receiver.borrow().clone();
        if node.run_due(now, &seed_addresses, &mut outbox) {
            for (group, waiting) in local.queue_lengths() {
                node.fleet.set_waiting(&group, waiting);
            }
            *lock(&status) = node.status(now);
        }
        send_queued(&mut node, &mut outbox, &socket);
        while let Some((update, reporter)) = node.poll_update() {
            local.receive_update(&update, &reporter);
        }
        let changes = node.take_changes();
        if !changes.is_empty() {
            // The status is up to date before the change is reported.
            *lock(&status) = node.status(now);
        }
        changes.iter().for_each(|change| local.receive_change(change));
        if has_more {
            continue;
        }
        let wait = node.next_due().since(local.now());
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(FleetCommand::Pause(reply)) => {
                    // The receiver may have timed out.
                    let _ = reply.send(node.handoff_state(local.now()));
                    match commands.recv().await {
                        None => break,
                        Some(FleetCommand::HandOff) => {
                            seed_task.abort();
                            return node.fleet.leave();
                        }
                        Some(FleetCommand::Pause(_) | FleetCommand::Resume) => {}
                    }
                }
                Some(FleetCommand::HandOff) => {
                    seed_task.abort();
                    return node.fleet.leave();
                }
                Some(FleetCommand::Resume) => {}
                None => break,
            },
            _ = socket.readable() => {}
            Some(notice) = notices.recv() => node.record_action(&notice, local.now()),
            () = sleep(wait) => {}
        }
    }
    seed_task.abort();
    node.leave(local.now(), &mut outbox);
    send_queued(&mut node, &mut outbox, &socket);
}

fn send_queued(node: &mut FleetNode, outbox: &mut SendQueue, socket: &UdpSocket) {
    let count = outbox.len();
    if count > 0 {
        let sent = outbox.send(socket);
        node.counts.sent += sent as u64;
        node.counts.unsent += (count - sent) as u64;
    }
}
