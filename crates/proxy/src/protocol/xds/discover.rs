//! One client's discovery stream: its requests and the updates.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_brain::EventKind;
use plimsoll_wire::xds::{DiscoveryRequest, Node, ProtobufAny};

use super::ads::{AdsSession, RequestEffect, ResourceSource};
use super::cache::{EndpointCache, GroupEndpoints};
use super::grpc_call::{CallStatus, IncomingMessages, OutgoingMessages};
use super::resource::{self, ResourceKind};
use crate::listener::Listener;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;

/// Serves the stream to its end.
pub(super) async fn discover(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    peer: PeerAddresses,
    incoming: IncomingMessages,
    mut out: OutgoingMessages,
) {
    let end = run_stream(&core, &listener, peer, incoming, &mut out).await;
    out.finish(end);
}

async fn run_stream(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    peer: PeerAddresses,
    mut incoming: IncomingMessages,
    out: &mut OutgoingMessages,
) -> CallStatus {
    let board = listener.xds.cache();
    let mut session = AdsSession::default();
    let mut shelf = ClientResources { listener, entries: BTreeMap::new() };
    let mut client = peer.client.to_string();
    let mut changed = true;
    loop {
        let mut rings = pin!(board.changed.notified());
        // Later changes are not missed.
        rings.as_mut().enable();
        // Messages are short, and many may arrive at once: other tasks run after each.
        tokio::task::yield_now().await;
        if std::mem::replace(&mut changed, true) {
            shelf.retain_groups(core, &board, session.names(ResourceKind::Endpoints));
            while let Some(answer) = session.next_response(&shelf) {
                let patience = listener.settings().timeouts.body;
                if let Err(end) = out.send(core, patience, &answer).await {
                    return end;
                }
            }
        }
        let request: DiscoveryRequest = tokio::select! {
            biased;
            () = listener.until_closed() => return CallStatus::Unavailable,
            () = rings => continue,
            request = incoming.next_message() => match request {
                Ok(Some(request)) => request,
                Ok(None) => return CallStatus::Ok,
                Err(end) => return end,
            },
        };
        if let Some(node) = &request.node {
            client = client_label(peer, node);
        }
        match session.handle_request(&request) {
            RequestEffect::Accepted => {}
            RequestEffect::Unchanged => changed = false,
            RequestEffect::Rejected(kind, why) => {
                let group = &listener.pool().group;
                let told = kind.label();
                group.send_event(
                    EventKind::Refused,
                    format!("{client} refuses what it is told (xds, {told}): {why}"),
                );
            }
            RequestEffect::OverLimit => return CallStatus::TooLarge,
        }
    }
}

/// Returns the description of a client for people.
fn client_label(peer: PeerAddresses, node: &Node) -> String {
    match super::printable(&node.id) {
        id if id.is_empty() => peer.client.to_string(),
        id => format!("{} ({id})", peer.client),
    }
}

/// The resources that one client may get.
struct ClientResources<'a> {
    listener: &'a Rc<Listener>,
    /// The groups whose endpoints it requested.
    entries: BTreeMap<Arc<str>, Rc<GroupEndpoints>>,
}

impl ClientResources<'_> {
    /// Keeps the requested entries, and no others.
    fn retain_groups<'n>(
        &mut self,
        core: &Rc<ThreadContext>,
        board: &Rc<EndpointCache>,
        names: impl Iterator<Item = &'n Arc<str>>,
    ) {
        let mut before = std::mem::take(&mut self.entries);
        for name in names {
            let kept = before.remove(name);
            // There is no entry for an unknown group: when the groups change, all clients' tasks check again.
            let there =
                || self.listener.pool_of(name).map(|_| board.group_endpoints(core, self.listener, name));
            if let Some(entry) = kept.or_else(there) {
                self.entries.insert(Arc::clone(name), entry);
            }
        }
    }
}

impl ResourceSource for ClientResources<'_> {
    fn names(&self) -> Vec<Arc<str>> {
        self.listener.groups()
    }

    fn resource_version(&self, kind: ResourceKind, name: &str) -> Option<u64> {
        match kind {
            ResourceKind::Endpoints => self.entries.get(name)?.resource_version(),
            _ => self.listener.pool_of(name).map(|_| 1),
        }
    }

    fn resource(&self, kind: ResourceKind, name: &str) -> Option<ProtobufAny> {
        match kind {
            ResourceKind::Endpoints => Some(self.entries.get(name)?.resource()),
            _ => resource::for_group(kind, name),
        }
    }
}
