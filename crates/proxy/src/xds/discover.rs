//! One client's discovery stream: its requests and the updates.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_brain::EventKind;
use plimsoll_wire::xds::{Any, DiscoveryRequest, Node};

use super::board::{Board, Entry};
use super::resource::{self, Kind};
use super::session::{Catalogue, Heard, Session};
use super::stream::{End, Incoming, Outgoing};
use crate::connect::Peer;
use crate::core::Core;
use crate::listener::Listener;

/// Serves the stream to its end.
pub(super) async fn discover(
    core: Rc<Core>,
    listener: Rc<Listener>,
    peer: Peer,
    incoming: Incoming,
    mut out: Outgoing,
) {
    let end = converse(&core, &listener, peer, incoming, &mut out).await;
    out.end(end);
}

async fn converse(
    core: &Rc<Core>,
    listener: &Rc<Listener>,
    peer: Peer,
    mut incoming: Incoming,
    out: &mut Outgoing,
) -> End {
    let board = listener.xds.board();
    let mut session = Session::default();
    let mut shelf = Shelf { listener, entries: BTreeMap::new() };
    let mut client = peer.client.to_string();
    let mut changed = true;
    loop {
        let mut rings = pin!(board.bell.notified());
        // Later changes are not missed.
        rings.as_mut().enable();
        // Messages are short, and many may arrive at once: other tasks run after each.
        tokio::task::yield_now().await;
        if std::mem::replace(&mut changed, true) {
            shelf.follow(core, &board, session.names(Kind::Endpoints));
            while let Some(answer) = session.next(&shelf) {
                let patience = listener.settings().timeouts.body;
                if let Err(end) = out.send(core, patience, &answer).await {
                    return end;
                }
            }
        }
        let request: DiscoveryRequest = tokio::select! {
            biased;
            () = listener.until_closed() => return End::Unavailable,
            () = rings => continue,
            request = incoming.next() => match request {
                Ok(Some(request)) => request,
                Ok(None) => return End::Ok,
                Err(end) => return end,
            },
        };
        if let Some(node) = &request.node {
            client = described(peer, node);
        }
        match session.take(&request) {
            Heard::Fine => {}
            Heard::Nothing => changed = false,
            Heard::Refused(kind, why) => {
                let group = &listener.pool().group;
                let told = kind.label();
                group.note(
                    EventKind::Refused,
                    format!("{client} refuses what it is told (xds, {told}): {why}"),
                );
            }
            Heard::TooMuch => return End::TooMuch,
        }
    }
}

/// Returns the description of a client for people.
fn described(peer: Peer, node: &Node) -> String {
    match super::said(&node.id) {
        id if id.is_empty() => peer.client.to_string(),
        id => format!("{} ({id})", peer.client),
    }
}

/// The resources that one client may get.
struct Shelf<'a> {
    listener: &'a Rc<Listener>,
    /// The groups whose endpoints it requested.
    entries: BTreeMap<Arc<str>, Rc<Entry>>,
}

impl Shelf<'_> {
    /// Keeps the requested entries, and no others.
    fn follow<'n>(&mut self, core: &Rc<Core>, board: &Rc<Board>, names: impl Iterator<Item = &'n Arc<str>>) {
        let mut before = std::mem::take(&mut self.entries);
        for name in names {
            let kept = before.remove(name);
            // There is no entry for an unknown group: when the groups change, all clients' tasks check again.
            let there = || self.listener.pool_of(name).map(|_| board.entry(core, self.listener, name));
            if let Some(entry) = kept.or_else(there) {
                self.entries.insert(Arc::clone(name), entry);
            }
        }
    }
}

impl Catalogue for Shelf<'_> {
    fn names(&self) -> Vec<Arc<str>> {
        self.listener.groups()
    }

    fn number(&self, kind: Kind, name: &str) -> Option<u64> {
        match kind {
            Kind::Endpoints => self.entries.get(name)?.number(),
            _ => self.listener.pool_of(name).map(|_| 1),
        }
    }

    fn resource(&self, kind: Kind, name: &str) -> Option<Any> {
        match kind {
            Kind::Endpoints => Some(self.entries.get(name)?.resource()),
            _ => resource::of_name(kind, name),
        }
    }
}
