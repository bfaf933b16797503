//! The process that takes over: it gets ready with its estate, and begins when it has the legacy.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_cluster::fleet::Past;
use plimsoll_proxy::{Bound, Counts, Engine, LentFlow, ListenerSettings};
use sd_notify::NotifyState;

use super::channel::Channel;
use super::{
    COUNTS, ELDER, ESTATE, Estate, FAILED, Failed, Kept, LEGACY, Left, PAST, Passed, READY, Ready, SERVING,
    Seen, SocketSet, Sockets, TAKEN, activated, holder,
};
use crate::config::{AdminConfig, recall_cookie_key};
use crate::failure::{Exit, Failure};
use crate::running::discovered::Found;
use crate::running::{Running, notify};

/// The time for the first message of the elder; and for the legacy, once this process is ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// The names of sockets of the admin plane.
const DOORS: [&str; 4] = ["listen", "control", "reports", "secured"];

/// The inheritance of this process from the one before it, or from the service manager.
#[derive(Default)]
pub(crate) struct Heir {
    /// The process before and the channel to it, if the inheritance is from it.
    elder: Option<(u32, Channel)>,
    /// Whether the sockets come from the Supervisor.
    held: bool,
    /// The reason why they do not.
    unheld: Option<String>,
    /// The zero of the elder's time.
    pub(crate) begin: Option<u64>,
    /// The elder's sockets.
    pub(crate) sockets: Sockets,
    /// The content of the elder's store, if that ended with it.
    pub(crate) kept: Kept,
    /// The elder's last view of a store that others share.
    pub(crate) seen: Seen,
    /// The last answers of the elder's sources of members.
    pub(crate) found: Vec<Found>,
}

/// The link to the process before this one, if there is one.
pub(crate) struct Successor {
    elder: Option<(u32, Channel)>,
    /// The past of this balancer among others.
    pub(crate) fleet: Option<Past>,
}

impl Heir {
    /// Returns the inheritance of this process. `admin` are the addresses of the admin plane, by name.
    ///
    /// # Errors
    /// Fails if it was started to take over, and gets no estate; or if the service manager's sockets cannot
    /// be used.
    pub(crate) fn here() -> Result<Self, Failure> {
        // Children of the intended process inherit the variable, too.
        let elder = std::env::var(ELDER).ok().and_then(|pid| pid.parse::<u32>().ok());
        let parent =
            rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        match elder.filter(|elder| Some(*elder) == parent) {
            Some(elder) => Self::of(elder)
                .map_err(|why| Failure::failed(format_args!("cannot take over from process {elder}: {why}"))),
            None => {
                let sockets = activated::sockets().map_err(Failure::failed)?;
                let heir = Self { sockets, ..Self::default() };
                let given = holder::take().and_then(|set| {
                    set.map(|SocketSet { passed, sockets }| sorted(&passed, sockets)).transpose()
                });
                Ok(match given {
                    Ok(Some(sockets)) => Self { sockets, held: true, ..heir },
                    Ok(None) => heir,
                    Err(why) => Self { unheld: Some(why), ..heir },
                })
            }
        }
    }

    fn of(elder: u32) -> Result<Self, String> {
        let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let mut channel = Channel::new(UnixStream::from(stream));
        channel
            .patience(Some(PATIENCE))
            .map_err(|error| format!("its standard input is no socket: {error}"))?;
        let (message, passed) = match channel.receive() {
            Ok(Some((message, passed))) if message.is == ESTATE => (message, passed),
            Ok(Some((message, _))) => return Err(format!("it said `{}` first", message.is)),
            Ok(None) => return Err("it has ended".into()),
            Err(error) => return Err(error.to_string()),
        };
        // The standard input is not read any more, and children of this process are no heirs.
        let nothing = File::open("/dev/null").map_err(|error| error.to_string())?;
        rustix::stdio::dup2_stdin(&nothing).map_err(|error| error.to_string())?;
        let estate: Estate = message.body();
        Engine::recall_ticket_keys(estate.ticket_keys);
        if let Some(key) = estate.cookie_key {
            recall_cookie_key(key);
        }
        let mut sockets = sorted(&estate.sockets, passed)?;
        sockets.stays = estate.stays;
        let begin = (estate.begin > 0).then_some(estate.begin);
        Ok(Self {
            elder: Some((elder, channel)),
            begin,
            sockets,
            kept: estate.kept,
            seen: estate.seen,
            found: estate.found,
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
    ) -> Result<(), Failure> {
        if let Some((pid, _)) = &self.elder {
            tracing::info!("taking over from process {pid}");
        }
        if let Some(why) = &self.unheld {
            tracing::warn!("{why}");
        }
        if self.elder.is_some() || self.held {
            self.sockets.fit(admin, fleet);
            return Ok(());
        }
        let known: Vec<_> =
            listeners.iter().map(|listener| (listener.address, listener.protocol.datagrams())).collect();
        self.sockets.assign(admin, &known).map_err(|why| Failure::new(Exit::Usage, why))
    }

    /// Reports to the process before why this one does not take over.
    pub(crate) fn failed(&mut self, why: &Failure) {
        if let Some((_, channel)) = &mut self.elder {
            let why = why.line().to_owned();
            // The process before finds it out by itself, too.
            let _ = channel.say(FAILED, &Failed { why }, &[]);
        }
    }

    /// Takes the legacy, as everything is ready. No client is served yet. A death of the process before is no
    /// error. `fleet` means that it goes on by the socket that other balancers know.
    ///
    /// # Errors
    /// Fails if the process before sends nothing.
    pub(crate) fn take_over(self, running: &Running, fleet: bool) -> Result<Successor, Failure> {
        let Some((pid, mut channel)) = self.elder else { return Ok(Successor { elder: None, fleet: None }) };
        let ready = Ready { version: env!("CARGO_PKG_VERSION").into(), fleet, later: true };
        let mut past = None;
        let told = channel.say(READY, &ready, &[]).and_then(|()| channel.receive());
        match told {
            Ok(Some((message, sockets))) if message.is == LEGACY => {
                let mut left = Left::read(message.body);
                let flows = std::mem::take(&mut left.flows).into_iter().zip(sockets);
                running
                    .engine()
                    .recall_flows(flows.map(|(about, socket)| LentFlow { about, socket }).collect());
                past = left.fleet.take();
                let later = left.later;
                running.inherit(left);
                if later {
                    past = last_word(pid, &mut channel)?;
                }
            }
            Ok(Some((message, _))) => {
                tracing::warn!("process {pid} said `{}`: what it knows is lost", message.is)
            }
            Ok(None) => tracing::warn!("process {pid} has ended: what it knew is lost"),
            Err(error) if gone(&error) => tracing::warn!("process {pid} has died: what it knew is lost"),
            Err(error) => return Err(dumb(pid, &error)),
        }
        Ok(Successor { elder: Some((pid, channel)), fleet: past.filter(|_| fleet) })
    }
}

impl Successor {
    /// Returns `true` if no process served before. Else the service manager does not listen to this process
    /// yet.
    pub(crate) fn is_first(&self) -> bool {
        self.elder.is_none()
    }

    /// Reports that this process serves, so that the one before can leave. `status` is for the service
    /// manager.
    pub(crate) fn serve(self, running: &Arc<Running>, status: String) {
        let Some((pid, mut channel)) = self.elder else { return };
        let engine = running.engine().clone();
        let why = format!("took over from pid {pid}, which ends when its connections have");
        engine.upgraded(EventKind::Upgraded, why);
        // A process before that has died needs no message.
        let _ = channel.say(SERVING, &serde_json::json!({}), &[]);
        running.predecessor(true);
        let own = Arc::downgrade(running);
        let listens = std::thread::Builder::new().name("predecessor".into()).spawn(move || {
            let mut first = true;
            let _ = channel.patience(None);
            while let Ok(Some((message, _))) = channel.receive() {
                if message.is != COUNTS {
                    continue;
                }
                engine.add_counts(&message.body::<Counts>());
                // By now the service manager knows the main process.
                if std::mem::take(&mut first) {
                    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
                }
            }
            engine.predecessor_ended();
            if let Some(running) = own.upgrade() {
                running.predecessor(false);
            }
            tracing::info!("process {pid} has ended");
        });
        if let Err(error) = listens {
            running.predecessor(false);
            tracing::warn!("what process {pid} still counts is lost: {error}");
        }
    }
}

/// Takes the last message, after all else: the past of this balancer among others, if there are any.
fn last_word(pid: u32, channel: &mut Channel) -> Result<Option<Past>, Failure> {
    match channel.say(TAKEN, &serde_json::json!({}), &[]).and_then(|()| channel.receive()) {
        Ok(Some((message, _))) if message.is == PAST => Ok(message.body()),
        Ok(Some((message, _))) => {
            tracing::warn!("process {pid} said `{}`: other balancers take this one for another", message.is);
            Ok(None)
        }
        Ok(None) => Ok(None),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(dumb(pid, &error)),
    }
}

fn dumb(pid: u32, error: &std::io::Error) -> Failure {
    Failure::failed(format_args!("process {pid} does not say what it knows: {error}"))
}

/// Sorts the sockets by their purposes.
fn sorted(passed: &[Passed], sockets: Vec<OwnedFd>) -> Result<Sockets, String> {
    let mut sockets = sockets.into_iter();
    let mut sorted = Sockets::default();
    for one in passed {
        let mut own: Vec<OwnedFd> = sockets.by_ref().take(one.count).collect();
        if own.len() < one.count {
            return Err("there are fewer sockets than it said".into());
        }
        let door = DOORS.iter().find(|door| **door == one.is);
        match (&*one.is, one.address, one.bound, door) {
            ("listener", Some(address), Some(bound), _) => sorted.listeners.push(Bound {
                address,
                bound,
                datagrams: one.datagrams,
                disabled: one.disabled,
                sockets: own,
            }),
            ("load_manager", ..) => sorted.load_manager = own.pop(),
            ("fleet", ..) => sorted.fleet = own.pop(),
            (.., Some(door)) => sorted.doors.extend(own.pop().map(|socket| (*door, socket))),
            // The socket is of a later version: this one has no use for it.
            _ => {}
        }
    }
    Ok(sorted)
}

fn gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}
