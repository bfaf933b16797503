//! The process that takes over: it gets ready with its setup, and begins when it has the handoff state.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_cluster::fleet::FleetHandoff;
use plimsoll_config::{AdminConfig, restore_cookie_key};
use plimsoll_proxy::{CounterSnapshot, Engine, HandoffFlow, ListenerSettings, ListenerSockets};
use sd_notify::NotifyState;

use super::channel::HandoffChannel;
use super::{
    COUNTS, ESTATE, FAILED, FailedMessage, FinalHandoff, InheritedSockets, LEGACY, PAST,
    PREDECESSOR_VARIABLE, READY, ReadyMessage, SERVING, SharedStoreView, SocketDescription, SocketSet,
    StoreContent, SuccessorSetup, TAKEN, socket_activation, socket_holder,
};
use crate::error::BalancerError;
use crate::runtime::discovery_state::SourceAnswers;
use crate::runtime::{BalancerRuntime, notify_systemd};

/// The time for the first message of the predecessor; and for the handoff state, once this process is ready.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The names of sockets of the admin plane.
const ADMIN_SOCKETS: [&str; 4] = ["listen", "control", "reports", "secured"];

/// The inheritance of this process from the one before it, or from the service manager.
#[derive(Default)]
pub(crate) struct ProcessInheritance {
    /// The process before and the channel to it, if the inheritance is from it.
    predecessor: Option<(u32, HandoffChannel)>,
    /// Whether the sockets come from the Supervisor.
    from_supervisor: bool,
    /// The reason why they do not.
    hold_error: Option<String>,
    /// The zero of the predecessor's time.
    pub time_zero: Option<u64>,
    /// The predecessor's sockets.
    pub sockets: InheritedSockets,
    /// The content of the predecessor's store, if that ended with it.
    pub store_content: StoreContent,
    /// The predecessor's last view of a store that others share.
    pub store_view: SharedStoreView,
    /// The last answers of the predecessor's sources of members.
    pub source_answers: Vec<SourceAnswers>,
}

/// The link to the process before this one, if there is one.
pub(crate) struct PredecessorLink {
    predecessor: Option<(u32, HandoffChannel)>,
    /// The past of this balancer among others.
    pub fleet: Option<FleetHandoff>,
}

impl ProcessInheritance {
    /// Returns the inheritance of this process. `admin` are the addresses of the admin plane, by name.
    ///
    /// # Errors
    /// Fails if it was started to take over, and gets no setup; or if the service manager's sockets cannot
    /// be used.
    pub(crate) fn for_process() -> Result<Self, BalancerError> {
        // Children of the intended process inherit the variable, too.
        let predecessor = std::env::var(PREDECESSOR_VARIABLE).ok().and_then(|pid| pid.parse::<u32>().ok());
        let parent =
            rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        match predecessor.filter(|predecessor| Some(*predecessor) == parent) {
            Some(predecessor) => Self::of(predecessor).map_err(|error| {
                BalancerError::failed(format_args!("cannot take over from process {predecessor}: {error}"))
            }),
            None => {
                let sockets = socket_activation::sockets().map_err(BalancerError::failed)?;
                let inherited = Self { sockets, ..Self::default() };
                let held_sockets = socket_holder::take_held_sockets().and_then(|socket_set| {
                    socket_set
                        .map(|SocketSet { descriptions, sockets }| sort_sockets(&descriptions, sockets))
                        .transpose()
                });
                Ok(match held_sockets {
                    Ok(Some(sockets)) => Self { sockets, from_supervisor: true, ..inherited },
                    Ok(None) => inherited,
                    Err(error) => Self { hold_error: Some(error), ..inherited },
                })
            }
        }
    }

    fn of(predecessor: u32) -> Result<Self, String> {
        let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let mut channel = HandoffChannel::new(UnixStream::from(stream));
        channel
            .set_timeout(Some(MESSAGE_TIMEOUT))
            .map_err(|error| format!("its standard input is no socket: {error}"))?;
        let (message, received_sockets) = match channel.receive() {
            Ok(Some((message, received_sockets))) if message.is == ESTATE => (message, received_sockets),
            Ok(Some((message, _))) => return Err(format!("it said `{}` first", message.is)),
            Ok(None) => return Err("it has ended".into()),
            Err(error) => return Err(error.to_string()),
        };
        // The standard input is not read any more, and children of this process are no successors.
        let null_device = File::open("/dev/null").map_err(|error| error.to_string())?;
        rustix::stdio::dup2_stdin(&null_device).map_err(|error| error.to_string())?;
        let setup: SuccessorSetup = message.body();
        Engine::resume_ticket_keys(setup.ticket_keys);
        if let Some(key) = setup.cookie_key {
            restore_cookie_key(key);
        }
        let mut sockets = sort_sockets(&setup.sockets, received_sockets)?;
        sockets.keeps_control = setup.stays;
        let clock_start = (setup.begin > 0).then_some(setup.begin);
        Ok(Self {
            predecessor: Some((predecessor, channel)),
            time_zero: clock_start,
            sockets,
            store_content: setup.kept,
            store_view: setup.seen,
            source_answers: setup.found,
            ..Self::default()
        })
    }

    /// Assigns the sockets to the parts of this process, by the present configuration.
    ///
    /// # Errors
    /// Fails if the service manager gives one without a use.
    pub(crate) fn assign(
        &mut self,
        admin: &AdminConfig,
        listeners: &[ListenerSettings],
        fleet: Option<SocketAddr>,
    ) -> Result<(), BalancerError> {
        if let Some((pid, _)) = &self.predecessor {
            tracing::info!("taking over from process {pid}");
        }
        if let Some(reason) = &self.hold_error {
            tracing::warn!("{reason}");
        }
        if self.predecessor.is_some() || self.from_supervisor {
            self.sockets.retain_matching(admin, fleet);
            return Ok(());
        }
        let known_addresses: Vec<_> =
            listeners.iter().map(|listener| (listener.address, listener.protocol.is_datagram())).collect();
        self.sockets.assign(admin, &known_addresses).map_err(BalancerError::Setup)
    }

    /// Reports to the process before why this one does not take over.
    pub(crate) fn report_failure(&mut self, reason: &BalancerError) {
        if let Some((_, channel)) = &mut self.predecessor {
            let why = reason.headline();
            // The process before finds it out by itself, too.
            let _ = channel.send(FAILED, &FailedMessage { why }, &[]);
        }
    }

    /// Takes the handoff state, as everything is ready. No client is served yet. A death of the process
    /// before is no error. `fleet` means that it goes on by the socket that other balancers know.
    ///
    /// # Errors
    /// Fails if the process before sends nothing.
    pub(crate) fn take_over(
        self,
        runtime: &BalancerRuntime,
        has_fleet: bool,
    ) -> Result<PredecessorLink, BalancerError> {
        let Some((pid, mut channel)) = self.predecessor else {
            return Ok(PredecessorLink { predecessor: None, fleet: None });
        };
        let ready_message =
            ReadyMessage { version: env!("CARGO_PKG_VERSION").into(), fleet: has_fleet, later: true };
        let mut fleet_handoff = None;
        let reply = channel.send(READY, &ready_message, &[]).and_then(|()| channel.receive());
        match reply {
            Ok(Some((message, sockets))) if message.is == LEGACY => {
                let mut handoff = FinalHandoff::read(message.body);
                let flows = std::mem::take(&mut handoff.flows).into_iter().zip(sockets);
                runtime.engine().resume_flows(
                    flows.map(|(description, socket)| HandoffFlow { description, socket }).collect(),
                );
                fleet_handoff = handoff.fleet.take();
                let is_later = handoff.later;
                runtime.inherit(handoff);
                if is_later {
                    fleet_handoff = receive_fleet_state(pid, &mut channel)?;
                }
            }
            Ok(Some((message, _))) => {
                tracing::warn!("process {pid} said `{}`: what it knows is lost", message.is)
            }
            Ok(None) => tracing::warn!("process {pid} has ended: what it knew is lost"),
            Err(error) if is_disconnect(&error) => {
                tracing::warn!("process {pid} has died: what it knew is lost")
            }
            Err(error) => return Err(no_answer_error(pid, &error)),
        }
        Ok(PredecessorLink { predecessor: Some((pid, channel)), fleet: fleet_handoff.filter(|_| has_fleet) })
    }
}

impl PredecessorLink {
    /// Returns `true` if no process served before. Else the service manager does not listen to this process
    /// yet.
    pub(crate) fn is_first(&self) -> bool {
        self.predecessor.is_none()
    }

    /// Reports that this process serves, so that the one before can leave. `status` is for the service
    /// manager.
    pub(crate) fn report_serving(self, runtime: &Arc<BalancerRuntime>, status: String) {
        let Some((pid, mut channel)) = self.predecessor else { return };
        let engine = runtime.engine().clone();
        let reason = format!("took over from pid {pid}, which ends when its connections have");
        engine.write_upgrade_event(EventKind::Upgraded, reason);
        // A process before that has died needs no message.
        let _ = channel.send(SERVING, &serde_json::json!({}), &[]);
        runtime.set_predecessor(true);
        let runtime_handle = Arc::downgrade(runtime);
        let thread_result = std::thread::Builder::new().name("predecessor".into()).spawn(move || {
            let mut is_first = true;
            let _ = channel.set_timeout(None);
            while let Ok(Some((message, _))) = channel.receive() {
                if message.is != COUNTS {
                    continue;
                }
                engine.add_counts(&message.body::<CounterSnapshot>());
                // By now the service manager knows the main process.
                if std::mem::take(&mut is_first) {
                    notify_systemd(&[NotifyState::Ready, NotifyState::Status(&status)]);
                }
            }
            engine.predecessor_ended();
            if let Some(runtime) = runtime_handle.upgrade() {
                runtime.set_predecessor(false);
            }
            tracing::info!("process {pid} has ended");
        });
        if let Err(error) = thread_result {
            runtime.set_predecessor(false);
            tracing::warn!("what process {pid} still counts is lost: {error}");
        }
    }
}

/// Takes the last message, after all else: the past of this balancer among others, if there are any.
fn receive_fleet_state(
    pid: u32,
    channel: &mut HandoffChannel,
) -> Result<Option<FleetHandoff>, BalancerError> {
    match channel.send(TAKEN, &serde_json::json!({}), &[]).and_then(|()| channel.receive()) {
        Ok(Some((message, _))) if message.is == PAST => Ok(message.body()),
        Ok(Some((message, _))) => {
            tracing::warn!("process {pid} said `{}`: other balancers take this one for another", message.is);
            Ok(None)
        }
        Ok(None) => Ok(None),
        Err(error) if is_disconnect(&error) => Ok(None),
        Err(error) => Err(no_answer_error(pid, &error)),
    }
}

fn no_answer_error(pid: u32, error: &std::io::Error) -> BalancerError {
    BalancerError::failed(format_args!("process {pid} does not say what it knows: {error}"))
}

/// Sorts the sockets by their purposes.
fn sort_sockets(
    descriptions: &[SocketDescription],
    sockets: Vec<OwnedFd>,
) -> Result<InheritedSockets, String> {
    let mut sockets = sockets.into_iter();
    let mut inherited = InheritedSockets::default();
    for description in descriptions {
        let mut own_sockets: Vec<OwnedFd> = sockets.by_ref().take(description.count).collect();
        if own_sockets.len() < description.count {
            return Err("there are fewer sockets than it said".into());
        }
        let admin_name = ADMIN_SOCKETS.iter().find(|admin_name| **admin_name == description.is);
        match (&*description.is, description.address, description.bound, admin_name) {
            ("listener", Some(address), Some(bound_address), _) => {
                inherited.listeners.push(ListenerSockets {
                    address,
                    bound: bound_address,
                    datagrams: description.datagrams,
                    disabled: description.disabled,
                    sockets: own_sockets,
                })
            }
            ("load_manager", ..) => inherited.load_manager = own_sockets.pop(),
            ("fleet", ..) => inherited.fleet = own_sockets.pop(),
            (.., Some(admin_name)) => {
                inherited.admin.extend(own_sockets.pop().map(|socket| (*admin_name, socket)))
            }
            // The socket is of a later version: this one has no use for it.
            _ => {}
        }
    }
    Ok(inherited)
}

fn is_disconnect(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}
