//! One data-plane thread.

use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::Socket;
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::accept::accept;
use crate::access::Sender;
use crate::alarm::Alarm;
use crate::clock::Clock;
use crate::core::{Census, Core};
use crate::group::Group;
use crate::lag::LagMeter;
use crate::listener::{Door, Listener};
use crate::pool::Pool;
use crate::readiness::Bell;
use crate::socket::Entrance;
use crate::trace;
use crate::udp::Lent;
use crate::{ListenerSettings, Protocol, dns, udp};

/// The number of orders that may wait for a worker.
const ORDERS: usize = 4096;
/// The interval of checking idle connections.
const SWEEP: Duration = Duration::from_secs(1);

/// An order to a worker. Listeners are identified by the control plane's numbers.
pub(crate) enum Order {
    Listen {
        id: u64,
        door: Arc<Door>,
        /// The sockets, one as a rule; see [`deal`](crate::bind::deal). Each comes with the flows to resume
        /// here.
        sockets: Vec<(Socket, Vec<Lent>)>,
        settings: ListenerSettings,
        groups: Groups,
    },
    Retune {
        id: u64,
        settings: ListenerSettings,
        groups: Groups,
    },
    Close {
        id: u64,
    },
    /// Closes datagram sockets of closed listeners at once, if they have this port. The sender is dropped
    /// when it is done.
    Vacate {
        port: u16,
        heir: std_mpsc::Sender<()>,
    },
    /// Sets the groups in force.
    Groups(Arc<[Arc<str>]>),
    AccessLog(Option<Sender>),
    Tracing(Option<trace::Sender>),
    /// Lists all datagram flows, and stops reading until they are taken back.
    Lend(std_mpsc::Sender<Vec<(u64, usize, Lent)>>),
    /// Resumes these flows.
    TakeBack,
    /// Closes the listeners and ends connections between requests.
    Stop {
        parting: Duration,
        /// Whether the sockets continue in another process, to which waiting clients are left.
        left: bool,
    },
    /// Records the time at which this was received.
    Answer(Arc<LagMeter>),
    /// Ends the thread now.
    Exit,
}

/// The groups that a listener leads to.
#[derive(Clone)]
pub(crate) struct Groups {
    pub(crate) own: Arc<Group>,
    /// The groups by the name that clients request (TLS, xDS).
    pub(crate) named: Arc<[Arc<Group>]>,
}

/// The control plane's handle of a worker.
pub(crate) struct Worker {
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker, pinned to a core if there is one for each.
    ///
    /// # Errors
    /// The system refuses another thread or an epoll instance.
    pub(crate) fn start(
        index: usize,
        clock: Clock,
        census: Arc<Census>,
        cpu: Option<usize>,
    ) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel(ORDERS);
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            match Builder::new_current_thread().enable_io().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime.block_on(run(index, clock, census, inbox)),
                Err(error) => tracing::error!("worker {index}: {error}"),
            }
        })?;
        Ok(Self { orders, thread })
    }

    /// Sends an order; returns `false` if the worker has ended or is far behind.
    pub(crate) fn order(&self, order: Order) -> bool {
        self.orders.try_send(order).is_ok()
    }

    pub(crate) fn join(self) {
        drop(self.orders);
        // The panic of a worker was already reported on stderr.
        let _ = self.thread.join();
    }
}

/// Returns the processors that this process may use, if there is one for each of the workers.
pub(crate) fn processors(workers: usize) -> Option<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let list: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    (workers > 1 && list.len() >= workers).then_some(list)
}

fn pin_to(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    // The thread runs even if pinning is not permitted.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

async fn run(index: usize, clock: Clock, census: Arc<Census>, mut inbox: mpsc::Receiver<Order>) {
    let core = match begin(index, clock, census) {
        Ok(core) => core,
        Err(error) => return tracing::error!("worker {index}: {error}"),
    };
    tokio::task::spawn_local(sweep(Rc::clone(&core)));
    let mut listeners: BTreeMap<u64, Rc<Listener>> = BTreeMap::new();
    // Datagram services whose listeners are closed while there are flows.
    let mut closing: Vec<Weak<udp::Service>> = Vec::new();
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Listen { id, door, sockets, settings, groups } => {
                let protocol = settings.protocol;
                let (pool, others) = pools(&core, &groups);
                let listener = Listener::new(door, index, settings, pool, others);
                for (socket, lent) in sockets {
                    if let Err(error) = open(&core, &listener, protocol, socket, lent) {
                        tracing::error!("{}: {error}", listener.door.address);
                    }
                }
                listeners.insert(id, listener);
            }
            Order::Retune { id, settings, groups } => {
                if let Some(listener) = listeners.get(&id) {
                    let (pool, others) = pools(&core, &groups);
                    listener.retune(settings, pool, others);
                }
            }
            Order::Close { id } => {
                if let Some(listener) = listeners.remove(&id) {
                    listener.close();
                    core.wheel.wake_all();
                    closing.retain(|service| service.strong_count() > 0);
                    closing.append(&mut listener.services.borrow_mut());
                }
            }
            Order::Vacate { port, heir } => closing
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|service| service.port() == port)
                .for_each(|service| service.vacate(heir.clone())),
            Order::Groups(names) => core.retain_pools(|name| names.iter().any(|kept| **kept == *name)),
            Order::AccessLog(sender) => {
                core.access.connect(sender);
                core.note();
            }
            Order::Tracing(sender) => {
                core.tracer.connect(sender);
                core.note();
            }
            Order::Lend(reply) => {
                let of = |(id, listener): (&u64, &Rc<Listener>)| {
                    let (id, cores) = (*id, listener.door.counts.len());
                    let services = listener.services.borrow();
                    let lent = services.iter().enumerate().filter_map(|(nth, service)| {
                        // As in the distribution of sockets.
                        let place = index + nth * cores;
                        Some(service.upgrade()?.lend().into_iter().map(move |lent| (id, place, lent)))
                    });
                    lent.flatten().collect::<Vec<_>>()
                };
                // The requester may have given up.
                let _ = reply.send(listeners.iter().flat_map(of).collect());
            }
            Order::TakeBack => {
                for listener in listeners.values() {
                    listener
                        .services
                        .borrow()
                        .iter()
                        .filter_map(Weak::upgrade)
                        .for_each(|service| service.take_back());
                }
            }
            Order::Stop { parting, left } => {
                core.stopping.set(true);
                core.parting.set(parting);
                listeners
                    .values()
                    .for_each(|listener| if left { listener.leave() } else { listener.close() });
                core.wheel.wake_all();
            }
            Order::Answer(meter) => meter.answer(index, clock.now()),
            Order::Exit => break,
        }
    }
    core.access.connect(None);
    core.tracer.connect(None);
}

/// Creates a thread's core, and starts the tasks that drive it.
pub(crate) fn begin(index: usize, clock: Clock, census: Arc<Census>) -> io::Result<Rc<Core>> {
    let core = Core::new(index, clock, census)?;
    let (alarm, bell) = (Alarm::new(clock)?, Bell::new(Rc::clone(&core.sessions.readiness))?);
    let sessions = Rc::clone(&core.sessions);
    let round = async move || {
        sessions.round().await;
        // After the sockets that tokio watches were polled, too, and the tasks that were woken by then have
        // run.
        tokio::task::yield_now().await;
    };
    tokio::task::spawn_local(Rc::clone(&core.wheel).drive(alarm, round));
    tokio::task::spawn_local(Rc::clone(&core.sessions).drive(bell));
    Ok(core)
}

fn pools(core: &Core, groups: &Groups) -> (Rc<Pool>, Vec<Rc<Pool>>) {
    (core.pool(&groups.own), groups.named.iter().map(|group| core.pool(group)).collect())
}

fn open(
    core: &Rc<Core>,
    listener: &Rc<Listener>,
    protocol: Protocol,
    socket: Socket,
    lent: Vec<Lent>,
) -> io::Result<()> {
    match protocol {
        Protocol::Http | Protocol::Tcp | Protocol::Iiop | Protocol::DnsStream | Protocol::Xds => {
            let entrance = Entrance::new(&core.sessions.readiness, socket.into());
            tokio::task::spawn_local(accept(Rc::clone(core), Rc::clone(listener), entrance));
        }
        Protocol::Udp => {
            let socket = UdpSocket::from_std(socket.into())?;
            tokio::task::spawn_local(udp::serve(Rc::clone(core), Rc::clone(listener), socket, lent));
        }
        Protocol::Dns => {
            let socket = UdpSocket::from_std(socket.into())?;
            tokio::task::spawn_local(dns::serve(Rc::clone(core), Rc::clone(listener), socket));
        }
    }
    Ok(())
}

async fn sweep(core: Rc<Core>) {
    loop {
        core.wheel.sleep(SWEEP).await;
        core.sweep();
        core.access.flush();
        core.tracer.flush();
    }
}
