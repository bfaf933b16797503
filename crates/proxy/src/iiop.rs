//! CORBA over IIOP (GIOP 1.0 to 1.2): clients that ask for a group's object are sent to a member of it, or their
//! requests are relayed to members one by one.
//!
//! A group has an object reference, which is what clients hold: this listener's address and the group's key, the same
//! after every restart. What is done with a request for that key is up to the listener's binding:
//!
//! - *per session* and *on demand* ([`redirect`]): the answer is LOCATION_FORWARD with a member's own reference. The
//!   client goes there, stays until that fails or forwards it back, and then asks here again. Nothing of its calls
//!   comes this way, so there is nothing to pay for them. A oneway cannot be answered: it is relayed.
//! - *per request* ([`relay`]): a member for each request, over connections that requests share ([`line`]).
//!
//! One task for each client's connection reads its messages ([`session`]); replies are written by whoever has them
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

/// What one core keeps of a group whose members speak GIOP.
#[derive(Default)]
pub(crate) struct Side {
    proofs: Proofs,
    lines: Rc<Lines>,
    /// How fast clients of an address are sent round while members are under alert: some connect anew each time.
    paces: RefCell<BTreeMap<IpAddr, Pace>>,
}

impl Side {
    /// Ends connections to members on which nothing is under way.
    pub(crate) fn close(&self) {
        self.lines.close();
    }
}

/// Serves one client connection until it ends. `unread` are bytes that were read from it already.
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
