//! CORBA over IIOP (GIOP 1.0 to 1.2): clients of a group's object are redirected to a member, or their
//! requests are relayed to members one by one.
//!
//! Clients hold the group's object reference: this listener's address and the group's key, which survive
//! restarts. The listener's binding decides about a request for that key:
//!
//! - *per session* and *on demand* ([`redirect`]): the response is LOCATION_FORWARD with a member's own
//!   reference. The client connects there, and stays until the member fails or forwards it back; then it asks
//!   here again. Its calls bypass the balancer, at no cost. A oneway cannot be answered: it is relayed.
//! - *per request* ([`relay`]): a member for each request, over connections that requests share
//!   ([`connection`]).
//!
//! One task for each client connection reads its messages ([`session`]); any task may write replies
//! ([`write_queue`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::listener::Listener;
use crate::net::socket::ReactorSocket;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;
use liveness::MemberLiveness;
use pool::GiopPool;
use reassembly::MessageReassembler;
use redirect_rate::RedirectBucket;
use session::GiopSession;
use write_queue::WriteQueue;

mod call;
mod connection;
mod liveness;
pub(crate) mod locate;
mod pool;
mod reassembly;
mod redirect;
mod redirect_rate;
pub(crate) mod reference;
mod relay;
mod session;
mod write_queue;

/// One core's state of a group whose members speak GIOP.
#[derive(Default)]
pub(crate) struct GiopGroupState {
    liveness: MemberLiveness,
    pool: Rc<GiopPool>,
    /// The redirect rates of clients by address while members are under alert: some clients open a new
    /// connection each time.
    redirect_buckets: RefCell<BTreeMap<IpAddr, RedirectBucket>>,
}

impl GiopGroupState {
    /// Closes the connections to members that have no requests in flight.
    pub(crate) fn close_idle(&self) {
        self.pool.close_idle();
    }
}

/// Serves one client connection until it ends. `unread` are bytes that were already read from it.
pub(crate) async fn serve(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    client: ReactorSocket,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let pool = listener.pool();
    let Some(max_message) = pool.view().published.settings.iiop.as_ref().map(|iiop| iiop.max_message) else {
        return;
    };
    drop(pool);
    let inbound = MessageReassembler::new(unread, max_message);
    GiopSession::new(core, listener, peer, WriteQueue::new(client), max_message).serve(inbound, &timer).await;
}
