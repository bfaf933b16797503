//! CORBA over IIOP (GIOP 1.0 to 1.2): clients of a group's object are redirected to a member, or their
//! requests are relayed to members one by one.
//!
//! Clients hold the group's object reference: this listener's address and the group's key, which survive
//! restarts. The listener's binding decides about a request for that key:
//!
//! - *per session* and *on demand* ([`redirect`]): the response is LOCATION_FORWARD with a member's own
//!   reference. The client connects there, and stays until the member fails or forwards it back; then it asks
//!   here again. Its calls bypass the balancer, at no cost. A oneway cannot be answered: it is relayed.
//! - *per request* ([`relay`]): a member for each request, over connections that requests share ([`line`]).
//!
//! One task for each client connection reads its messages ([`session`]); any task may write replies
//! ([`outbox`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::connect::Peer;
use crate::core::Core;
use crate::listener::Listener;
use crate::socket::Socket;
use inbound::Inbound;
use lines::Lines;
use outbox::Outbox;
use pace::Pace;
use proof::Proofs;
use session::Session;

mod call;
mod inbound;
mod line;
mod lines;
mod outbox;
mod pace;
mod proof;
pub(crate) mod question;
mod redirect;
pub(crate) mod reference;
mod relay;
mod session;

/// One core's state of a group whose members speak GIOP.
#[derive(Default)]
pub(crate) struct Side {
    proofs: Proofs,
    lines: Rc<Lines>,
    /// The redirect rates of clients by address while members are under alert: some clients open a new
    /// connection each time.
    paces: RefCell<BTreeMap<IpAddr, Pace>>,
}

impl Side {
    /// Closes the connections to members that have no requests in flight.
    pub(crate) fn close(&self) {
        self.lines.close();
    }
}

/// Serves one client connection until it ends. `unread` are bytes that were already read from it.
pub(crate) async fn serve(
    core: Rc<Core>,
    listener: Rc<Listener>,
    client: Socket,
    peer: Peer,
    unread: Vec<u8>,
) {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let pool = listener.pool();
    let Some(most) = pool.view().published.settings.iiop.as_ref().map(|iiop| iiop.max_message) else {
        return;
    };
    drop(pool);
    let inbound = Inbound::new(unread, most);
    Session::new(core, listener, peer, Outbox::new(client), most).serve(inbound, &timer).await;
}
