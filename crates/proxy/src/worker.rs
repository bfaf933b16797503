//! One data-plane thread.

pub(crate) mod accept;
pub(crate) mod event_loop_lag;

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

use crate::listener::{Listener, ListenerShared};
use crate::net::socket::ListenSocket;
use crate::protocol::dns;
use crate::protocol::udp;
use crate::protocol::udp::ResumableFlow;
use crate::runtime::clock::Clock;
use crate::runtime::reactor::ReactorWakeup;
use crate::runtime::resource_limits::ResourceLimits;
use crate::runtime::timer_fd::TimerFd;
use crate::upstream::access_log::AccessLogSender;
use crate::upstream::group::SharedGroup;
use crate::upstream::pool::GroupPool;
use crate::upstream::thread_context::ThreadContext;
use crate::upstream::trace;
use crate::worker::accept::accept;
use crate::worker::event_loop_lag::LagMeter;
use crate::{ListenerSettings, Protocol};

/// The number of orders that may wait for a worker.
const COMMAND_QUEUE: usize = 4096;
/// The interval of checking idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// An order to a worker. Listeners are identified by the control plane's numbers.
pub(crate) enum WorkerCommand {
    Listen {
        id: u64,
        shared: Arc<ListenerShared>,
        /// The sockets, one as a rule; see [`distribute`](crate::control::bind::distribute). Each comes with
        /// the flows to resume here.
        sockets: Vec<(Socket, Vec<ResumableFlow>)>,
        settings: ListenerSettings,
        groups: ListenerGroups,
    },
    Update {
        id: u64,
        settings: ListenerSettings,
        groups: ListenerGroups,
    },
    Close {
        id: u64,
    },
    /// Closes datagram sockets of closed listeners at once, if they have this port. The sender is dropped
    /// when it is done.
    Vacate {
        port: u16,
        released: std_mpsc::Sender<()>,
    },
    /// Sets the groups in force.
    Groups(Arc<[Arc<str>]>),
    AccessLog(Option<AccessLogSender>),
    Tracing(Option<trace::TraceSender>),
    /// Lists all datagram flows, and stops reading until they are taken back.
    Lend(std_mpsc::Sender<Vec<(u64, usize, ResumableFlow)>>),
    /// Resumes these flows.
    TakeBack,
    /// Closes the listeners and ends connections between requests.
    Stop {
        idle_grace: Duration,
        /// Whether the sockets continue in another process, to which waiting clients are left.
        handed_off: bool,
    },
    /// Records the time at which this was received.
    MeasureLag(Arc<LagMeter>),
    /// Ends the thread now.
    Exit,
}

/// The groups that a listener leads to.
#[derive(Clone)]
pub(crate) struct ListenerGroups {
    pub(crate) default: Arc<SharedGroup>,
    /// The groups by the name that clients request (TLS, xDS).
    pub(crate) alternates: Arc<[Arc<SharedGroup>]>,
}

/// The control plane's handle of a worker.
pub(crate) struct WorkerHandle {
    commands: mpsc::Sender<WorkerCommand>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    /// Starts a worker, pinned to a core if there is one for each.
    ///
    /// # Errors
    /// The system refuses another thread or an epoll instance.
    pub(crate) fn start(
        index: usize,
        clock: Clock,
        limits: Arc<ResourceLimits>,
        cpu: Option<usize>,
    ) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            match Builder::new_current_thread().enable_io().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime.block_on(run(index, clock, limits, inbox)),
                Err(error) => tracing::error!("worker {index}: {error}"),
            }
        })?;
        Ok(Self { commands, thread })
    }

    /// Sends an order; returns `false` if the worker has ended or is far behind.
    pub(crate) fn send(&self, command: WorkerCommand) -> bool {
        self.commands.try_send(command).is_ok()
    }

    pub(crate) fn join(self) {
        drop(self.commands);
        // The panic of a worker was already reported on stderr.
        let _ = self.thread.join();
    }
}

/// Returns the processors that this process may use, if there is one for each of the workers.
pub(crate) fn processors(workers: usize) -> Option<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    (workers > 1 && cpus.len() >= workers).then_some(cpus)
}

fn pin_to(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    // The thread runs even if pinning is not permitted.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

async fn run(
    index: usize,
    clock: Clock,
    limits: Arc<ResourceLimits>,
    mut inbox: mpsc::Receiver<WorkerCommand>,
) {
    let core = match start_context(index, clock, limits) {
        Ok(core) => core,
        Err(error) => return tracing::error!("worker {index}: {error}"),
    };
    tokio::task::spawn_local(sweep(Rc::clone(&core)));
    let mut listeners: BTreeMap<u64, Rc<Listener>> = BTreeMap::new();
    // Datagram services whose listeners are closed while there are flows.
    let mut closing: Vec<Weak<udp::UdpService>> = Vec::new();
    while let Some(command) = inbox.recv().await {
        match command {
            WorkerCommand::Listen { id, shared, sockets, settings, groups } => {
                let protocol = settings.protocol;
                let (pool, alternates) = pools_of(&core, &groups);
                let listener = Listener::new(shared, index, settings, pool, alternates);
                for (socket, flows) in sockets {
                    if let Err(error) = open(&core, &listener, protocol, socket, flows) {
                        tracing::error!("{}: {error}", listener.shared.address);
                    }
                }
                listeners.insert(id, listener);
            }
            WorkerCommand::Update { id, settings, groups } => {
                if let Some(listener) = listeners.get(&id) {
                    let (pool, alternates) = pools_of(&core, &groups);
                    listener.update(settings, pool, alternates);
                }
            }
            WorkerCommand::Close { id } => {
                if let Some(listener) = listeners.remove(&id) {
                    listener.close();
                    core.wheel.wake_all();
                    closing.retain(|service| service.strong_count() > 0);
                    closing.append(&mut listener.services.borrow_mut());
                }
            }
            WorkerCommand::Vacate { port, released } => closing
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|service| service.port() == port)
                .for_each(|service| service.release_address(released.clone())),
            WorkerCommand::Groups(names) => {
                core.retain_pools(|name| names.iter().any(|candidate| **candidate == *name))
            }
            WorkerCommand::AccessLog(sender) => {
                core.access_log.connect(sender);
                core.update_recording();
            }
            WorkerCommand::Tracing(sender) => {
                core.tracer.connect(sender);
                core.update_recording();
            }
            WorkerCommand::Lend(reply) => {
                let lend_flows = |(id, listener): (&u64, &Rc<Listener>)| {
                    let (id, cores) = (*id, listener.shared.counts.len());
                    let services = listener.services.borrow();
                    let flows = services.iter().enumerate().filter_map(|(position, service)| {
                        // As in the distribution of sockets.
                        let socket_index = index + position * cores;
                        Some(
                            service
                                .upgrade()?
                                .hand_off_flows()
                                .into_iter()
                                .map(move |flow| (id, socket_index, flow)),
                        )
                    });
                    flows.flatten().collect::<Vec<_>>()
                };
                // The requester may have given up.
                let _ = reply.send(listeners.iter().flat_map(lend_flows).collect());
            }
            WorkerCommand::TakeBack => {
                for listener in listeners.values() {
                    listener
                        .services
                        .borrow()
                        .iter()
                        .filter_map(Weak::upgrade)
                        .for_each(|service| service.resume_flows());
                }
            }
            WorkerCommand::Stop { idle_grace, handed_off } => {
                core.stopping.set(true);
                core.idle_grace.set(idle_grace);
                listeners
                    .values()
                    .for_each(|listener| if handed_off { listener.hand_off() } else { listener.close() });
                core.wheel.wake_all();
            }
            WorkerCommand::MeasureLag(meter) => meter.answer(index, clock.now()),
            WorkerCommand::Exit => break,
        }
    }
    core.access_log.connect(None);
    core.tracer.connect(None);
}

/// Creates a thread's core, and starts the tasks that drive it.
pub(crate) fn start_context(
    index: usize,
    clock: Clock,
    limits: Arc<ResourceLimits>,
) -> io::Result<Rc<ThreadContext>> {
    let core = ThreadContext::new(index, clock, limits)?;
    let (timer_fd, wakeup) = (TimerFd::new(clock)?, ReactorWakeup::new(Rc::clone(&core.sessions.readiness))?);
    let sessions = Rc::clone(&core.sessions);
    let complete_round = async move || {
        sessions.complete_round().await;
        // After the sockets that tokio watches were polled, too, and the tasks that were woken by then have
        // run.
        tokio::task::yield_now().await;
    };
    tokio::task::spawn_local(Rc::clone(&core.wheel).drive(timer_fd, complete_round));
    tokio::task::spawn_local(Rc::clone(&core.sessions).drive(wakeup));
    Ok(core)
}

fn pools_of(core: &ThreadContext, groups: &ListenerGroups) -> (Rc<GroupPool>, Vec<Rc<GroupPool>>) {
    (core.pool(&groups.default), groups.alternates.iter().map(|group| core.pool(group)).collect())
}

fn open(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    protocol: Protocol,
    socket: Socket,
    flows: Vec<ResumableFlow>,
) -> io::Result<()> {
    match protocol {
        Protocol::Http | Protocol::Tcp | Protocol::Iiop | Protocol::DnsStream | Protocol::Xds => {
            let listen_socket = ListenSocket::new(&core.sessions.readiness, socket.into());
            tokio::task::spawn_local(accept(Rc::clone(core), Rc::clone(listener), listen_socket));
        }
        Protocol::Udp => {
            let socket = UdpSocket::from_std(socket.into())?;
            tokio::task::spawn_local(udp::serve(Rc::clone(core), Rc::clone(listener), socket, flows));
        }
        Protocol::Dns => {
            let socket = UdpSocket::from_std(socket.into())?;
            tokio::task::spawn_local(dns::serve_udp(Rc::clone(core), Rc::clone(listener), socket));
        }
    }
    Ok(())
}

async fn sweep(core: Rc<ThreadContext>) {
    loop {
        core.wheel.sleep(SWEEP_INTERVAL).await;
        core.sweep();
        core.access_log.flush();
        core.tracer.flush();
    }
}
