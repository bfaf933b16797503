//! The thread of a fleet: processes received datagrams, does the work that is due, sends, waits.

use std::sync::{Arc, Mutex};

use plimsoll_brain::status::FleetStatus;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::desk::Desk;
use super::{Local, Notice, Word, seeds};
use crate::lock;
use crate::lottery::socket::{BATCH, Inbox, Outbox};

/// Serves until it receives the command to stop.
pub(super) async fn serve(
    mut desk: Desk,
    seeds: Vec<(String, u16)>,
    socket: UdpSocket,
    mut notices: mpsc::Receiver<Notice>,
    mut words: mpsc::Receiver<Word>,
    local: Arc<dyn Local>,
    view: Arc<Mutex<FleetStatus>>,
) {
    let (found, seeds_found) = watch::channel(Vec::new());
    let looks = tokio::spawn(seeds::look(seeds, desk.address(), found));
    let (mut inbox, mut outbox) = (Inbox::new(), Outbox::default());
    let mut version = None;
    loop {
        let now = local.now();
        let more = inbox.receive(&socket, |_, _, bytes| desk.take(now, bytes)) == BATCH;
        while let Ok(notice) = notices.try_recv() {
            desk.notice(&notice, now);
        }
        if version != Some(local.version()) {
            // The version is read first: a concurrent change is seen the next time.
            version = Some(local.version());
            desk.list(local.groups(), now);
        }
        let known = seeds_found.borrow().clone();
        if desk.wake(now, &known, &mut outbox) {
            for (group, waiting) in local.waiting() {
                desk.fleet.waits(&group, waiting);
            }
            *lock(&view) = desk.status(now);
        }
        send(&mut desk, &mut outbox, &socket);
        while let Some((news, by)) = desk.poll_news() {
            local.news(&news, &by);
        }
        let changes = desk.changes();
        if !changes.is_empty() {
            // The status is up to date before the change is reported.
            *lock(&view) = desk.status(now);
        }
        changes.iter().for_each(|change| local.change(change));
        if more {
            continue;
        }
        let wait = desk.due().since(local.now());
        tokio::select! {
            biased;
            word = words.recv() => match word {
                Some(Word::Pause(reply)) => {
                    // The receiver may have timed out.
                    let _ = reply.send(desk.past(local.now()));
                    match words.recv().await {
                        None => break,
                        Some(Word::Vanish) => {
                            looks.abort();
                            return desk.fleet.leave();
                        }
                        Some(Word::Pause(_) | Word::Resume) => {}
                    }
                }
                Some(Word::Vanish) => {
                    looks.abort();
                    return desk.fleet.leave();
                }
                Some(Word::Resume) => {}
                None => break,
            },
            _ = socket.readable() => {}
            Some(notice) = notices.recv() => desk.notice(&notice, local.now()),
            () = sleep(wait) => {}
        }
    }
    looks.abort();
    desk.leave(local.now(), &mut outbox);
    send(&mut desk, &mut outbox, &socket);
}

fn send(desk: &mut Desk, outbox: &mut Outbox, socket: &UdpSocket) {
    let count = outbox.len();
    if count > 0 {
        let sent = outbox.send(socket);
        desk.counts.sent += sent as u64;
        desk.counts.unsent += (count - sent) as u64;
    }
}
