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
    let status = run_stream(&core, &listener, peer, incoming, &mut out).await;
    out.finish(status);
}

async fn run_stream(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    peer: PeerAddresses,
    mut incoming: IncomingMessages,
    out: &mut OutgoingMessages,
) -> CallStatus {
    let cache = listener.xds.cache();
    let mut session = AdsSession::default();
    let mut resources = ClientResources { listener, entries: BTreeMap::new() };
    let mut client = peer.client.to_string();
    let mut changed = true;
    loop {
        let mut change_notified = pin!(cache.changed.notified());
        // Later changes are not missed.
        change_notified.as_mut().enable();
        // Messages are short, and many may arrive at once: other tasks run after each.
        tokio::task::yield_now().await;
        if std::mem::replace(&mut changed, true) {
            resources.retain_groups(core, &cache, session.names(ResourceKind::Endpoints));
            while let Some(response) = session.next_response(&resources) {
                let timeout = listener.settings().timeouts.body;
                if let Err(status) = out.send(core, timeout, &response).await {
                    return status;
                }
            }
        }
        let request: DiscoveryRequest = tokio::select! {
            biased;
            () = listener.until_closed() => return CallStatus::Unavailable,
            () = change_notified => continue,
            request = incoming.next_message() => match request {
                Ok(Some(request)) => request,
                Ok(None) => return CallStatus::Ok,
                Err(status) => return status,
            },
        };
        if let Some(node) = &request.node {
            client = client_label(peer, node);
        }
        match session.handle_request(&request) {
            RequestEffect::Accepted => {}
            RequestEffect::Unchanged => changed = false,
            RequestEffect::Rejected(kind, message) => {
                let group = &listener.pool().group;
                let label = kind.label();
                group.send_event(
                    EventKind::Refused,
                    format!("{client} refuses what it is told (xds, {label}): {message}"),
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
        cache: &Rc<EndpointCache>,
        names: impl Iterator<Item = &'n Arc<str>>,
    ) {
        let mut previous = std::mem::take(&mut self.entries);
        for name in names {
            let existing = previous.remove(name);
            // There is no entry for an unknown group: when the groups change, all clients' tasks check again.
            let create =
                || self.listener.pool_of(name).map(|_| cache.group_endpoints(core, self.listener, name));
            if let Some(entry) = existing.or_else(create) {
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
