//! Listeners: sockets bound once for every core, accept loops on each.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol as Transport, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::connect::{Peer, exhausted};
use crate::core::{Core, Guest};
use crate::pool::Pool;
use crate::stats::Count;
use crate::{ListenerSettings, Protocol};
use crate::{http, preface, tcp, udp};

/// What cores count of a listener, and where it really listens.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// One for each core.
    pub(crate) counts: Box<[DoorCount]>,
}

/// One core's counts of a listener.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DoorCount {
    pub(crate) open: Count,
    pub(crate) accepted: Count,
    pub(crate) refused: Count,
}

/// One core's side of a listener.
pub(crate) struct Listener {
    pub(crate) door: Arc<Door>,
    core: usize,
    settings: RefCell<Rc<ListenerSettings>>,
    pool: RefCell<Rc<Pool>>,
    closed: Cell<bool>,
    close: Notify,
}

impl Listener {
    pub(crate) fn new(door: Arc<Door>, core: usize, settings: ListenerSettings, pool: Rc<Pool>) -> Rc<Self> {
        Rc::new(Self {
            door,
            core,
            settings: RefCell::new(Rc::new(settings)),
            pool: RefCell::new(pool),
            closed: Cell::new(false),
            close: Notify::new(),
        })
    }

    pub(crate) fn settings(&self) -> Rc<ListenerSettings> {
        Rc::clone(&self.settings.borrow())
    }

    pub(crate) fn pool(&self) -> Rc<Pool> {
        Rc::clone(&self.pool.borrow())
    }

    /// From now on, with these settings; connections see it at their next request.
    pub(crate) fn retune(&self, settings: ListenerSettings, pool: Rc<Pool>) {
        *self.settings.borrow_mut() = Rc::new(settings);
        *self.pool.borrow_mut() = pool;
    }

    /// Accepts nothing more.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.close.notify_waiters();
        self.close.notify_one();
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed.get()
    }

    /// Resolves when the listener is closed.
    pub(crate) async fn until_closed(&self) {
        if !self.closed.get() {
            self.close.notified().await;
        }
    }

    pub(crate) fn count(&self) -> &DoorCount {
        &self.door.counts[self.core]
    }
}

/// A client connection as its listener counts it.
pub(crate) struct Visit {
    listener: Rc<Listener>,
    _guest: Guest,
}

impl Visit {
    /// Lets a connection in, unless there are too many.
    pub(crate) fn enter(core: &Core, listener: &Rc<Listener>) -> Option<Self> {
        let Some(guest) = core.census.enter() else {
            listener.count().refused.add(1);
            return None;
        };
        listener.count().accepted.add(1);
        listener.count().open.add(1);
        Some(Self { listener: Rc::clone(listener), _guest: guest })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.listener.count().open.sub(1);
    }
}

/// Accepts connections until the listener is closed, then those that already wait.
pub(crate) async fn accept(core: Rc<Core>, listener: Rc<Listener>, socket: TcpListener) {
    loop {
        tokio::select! {
            biased;
            accepted = socket.accept() => match accepted {
                Ok((stream, client)) => admit(&core, &listener, stream, client),
                Err(error) if exhausted(&error) => {
                    tracing::warn!("{}: cannot accept: {error}; raise the limit on open files", listener.door.address);
                    core.wheel.sleep(Duration::from_millis(50)).await;
                }
                // A client that gave up while it waited.
                Err(_) => {}
            },
            () = listener.until_closed() => break,
        }
    }
    // What the kernel accepted already would be reset by closing.
    while let Some(Ok((stream, client))) = futures_now(socket.accept()).await {
        admit(&core, &listener, stream, client);
    }
}

/// The output of a future that is ready at once.
async fn futures_now<F: Future>(future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

fn admit(core: &Rc<Core>, listener: &Rc<Listener>, stream: TcpStream, client: SocketAddr) {
    let Some(visit) = Visit::enter(core, listener) else { return };
    let _ = stream.set_nodelay(true);
    let settings = listener.settings();
    let local = match listener.pool().view().published.settings.send_proxy {
        Some(_) => stream.local_addr().unwrap_or(listener.door.address),
        None => listener.door.address,
    };
    let peer = Peer { client, local };
    if !settings.accept_proxy {
        return begin(core, listener, visit, stream, peer, Vec::new());
    }
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    tokio::task::spawn_local(async move {
        let mut stream = stream;
        if let Some((peer, unread)) = preface::read(&core, &listener, &mut stream, peer).await {
            begin(&core, &listener, visit, stream, peer, unread);
        }
    });
}

/// Gives a connection to whoever speaks its protocol. `unread` are bytes that were read from it already.
fn begin(
    core: &Rc<Core>,
    listener: &Rc<Listener>,
    visit: Visit,
    stream: TcpStream,
    peer: Peer,
    unread: Vec<u8>,
) {
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    match listener.settings().protocol {
        Protocol::Http => {
            // It gives others their turn itself (`http`), at places that suit it: tokio would do it by saying that a
            // socket is not ready, which an idle connection to a member must not be mistaken about.
            tokio::task::spawn_local(tokio::task::unconstrained(async move {
                let _visit = visit;
                http::serve(core, listener, stream, peer, unread).await;
            }));
        }
        Protocol::Tcp => {
            tokio::task::spawn_local(async move {
                let _visit = visit;
                tcp::serve(core, listener, stream, peer, unread).await;
            });
        }
        // It has no connections.
        Protocol::Udp => {}
    }
}

/// Binds a listener's socket once for each core; the kernel spreads clients over them.
///
/// # Errors
/// The address is in use or not ours.
pub(crate) fn bind(settings: &ListenerSettings, cores: usize) -> io::Result<(SocketAddr, Vec<Socket>)> {
    // With SO_REUSEPORT a second process of the same user would quietly take a part of the clients: a socket
    // without it finds out whether the address is free.
    let probe = socket(settings)?;
    probe.bind(&settings.address.into())?;
    let bound = probe.local_addr()?.as_socket().unwrap_or(settings.address);
    drop(probe);
    let sockets = (0..cores)
        .map(|_| {
            let socket = socket(settings)?;
            socket.set_reuse_port(true)?;
            socket.bind(&bound.into())?;
            if settings.protocol != Protocol::Udp {
                socket.listen(settings.backlog.min(i32::MAX as u32) as i32)?;
            }
            Ok(socket)
        })
        .collect::<io::Result<Vec<Socket>>>()?;
    Ok((bound, sockets))
}

fn socket(settings: &ListenerSettings) -> io::Result<Socket> {
    let domain = Domain::for_address(settings.address);
    let socket = match settings.protocol {
        Protocol::Udp => {
            let socket = Socket::new(domain, Type::DGRAM, Some(Transport::UDP))?;
            udp::prepare(&socket, &settings.address)?;
            socket
        }
        Protocol::Http | Protocol::Tcp => {
            let socket = Socket::new(domain, Type::STREAM, Some(Transport::TCP))?;
            socket.set_reuse_address(true)?;
            socket
        }
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}
