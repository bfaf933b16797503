//! The Supervisor: starts processes of Plimsoll's own binary, watches over them, and starts again those that
//! fail.
//!
//! A value for each process (`plimsoll_brain::ward`) decides; this module carries the decisions out. One
//! thread does it all, and waits for the kernel: the end of a process (pidfd), its output (pipe), the change
//! of a file (inotify), a signal, a command, or the end of a pause. Beside it a thread for each balancer
//! receives the sockets that are held for its next process. While nothing happens nothing runs.

mod attend;
mod charge;
mod child;
mod clock;
mod desk;
mod holding;
mod lines;
mod reload;
mod state;
mod watch;

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use plimsoll_admin::{Act, Audit, Children, Denied, Household, Rules};
use plimsoll_brain::ward::{Ending, Order, Phase};
use sd_notify::NotifyState;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use crate::config::{self, SuperviseFile};
use crate::doors::note;
use crate::failure::{Exit, Failure};
use crate::running::notify;
use attend::{Ended, How, attend};
use charge::Charge;
use clock::{chance, now, unix_ms};
use desk::Asked;
use holding::Told;
use lines::Scribe;
use state::State;
use watch::Watch;

pub(crate) use desk::Desk;

/// The number of ends of processes that may wait; more wait where they are.
const ENDS: usize = 64;
/// The number of requests of balancers about their sockets that may wait.
const TOLD: usize = 16;

/// A Supervisor and its processes.
pub(crate) struct Supervisor {
    path: PathBuf,
    file: SuperviseFile,
    /// The program of its processes.
    program: PathBuf,
    /// Whether its log is JSON.
    json: bool,
    charges: Vec<Charge>,
    ends: mpsc::Receiver<Ended>,
    /// The sender for the watchers of processes.
    end: mpsc::Sender<Ended>,
    asked: mpsc::Receiver<Asked>,
    /// The requests of balancers about their sockets; and the sender for the threads that receive them.
    told: mpsc::Receiver<Told>,
    tell: mpsc::Sender<Told>,
    /// The socket for balancers, if there is one.
    holder: Option<PathBuf>,
    desk: Arc<Desk>,
    /// The rights of clients over TLS.
    rules: Arc<Rules>,
    audit: Option<Arc<Audit>>,
    watch: Watch,
    reload_error: Option<String>,
    started_unix_ms: u64,
    /// The children to end; set once the Supervisor is to end.
    ending: Option<Children>,
    /// The number of children started so far, which identifies the child that ended.
    count: u64,
    /// The last state written, and the last notification of systemd.
    written: String,
    said: String,
}

/// Signals to the Supervisor.
pub(crate) struct Signals {
    /// Reads the file again.
    pub(crate) hangup: Signal,
    /// Ends the Supervisor.
    pub(crate) terminate: Signal,
    /// Ends the Supervisor.
    pub(crate) interrupt: Signal,
}

/// An event.
enum News {
    Ended(Ended),
    Asked(Asked),
    Told(Told),
    Changed,
    Due,
    HangUp,
    /// The end by a signal of this name.
    Terminate(&'static str),
}

impl Supervisor {
    /// Returns a Supervisor that has not begun. It must be called within a tokio runtime; `asked` are the
    /// commands that come over `desk`.
    ///
    /// # Errors
    /// Fails if the system does not give the needed resources.
    pub(crate) fn new(
        path: PathBuf,
        file: SuperviseFile,
        json: bool,
        (desk, asked): (Arc<Desk>, mpsc::Receiver<Asked>),
        rules: Arc<Rules>,
        audit: Option<Arc<Audit>>,
    ) -> io::Result<Self> {
        let (end, ends) = mpsc::channel(ENDS);
        let (tell, told) = mpsc::channel(TOLD);
        let mut supervisor = Self {
            path,
            program: child::program()?,
            json,
            charges: Vec::new(),
            ends,
            end,
            asked,
            told,
            tell,
            holder: None,
            desk,
            rules,
            audit,
            watch: Watch::new()?,
            reload_error: None,
            started_unix_ms: unix_ms(),
            ending: None,
            count: 0,
            written: String::new(),
            said: String::new(),
            file,
        };
        for process in supervisor.file.supervise.processes.clone() {
            let scribe = supervisor.scribe(&process.name.0)?;
            let rules = supervisor.file.rules(&process);
            supervisor.charges.push(Charge::new(&process, rules, scribe, now()));
        }
        supervisor.desk.publish(supervisor.household());
        Ok(supervisor)
    }

    /// Runs the processes until the Supervisor is stopped.
    ///
    /// # Errors
    /// Fails if it had to end at once, and killed the running processes.
    pub(crate) async fn run(mut self, mut signals: Signals) -> Result<(), Failure> {
        self.take_over();
        self.hear_balancers();
        for charge in &mut self.charges {
            charge.begin(now());
        }
        self.settle();
        notify(&[NotifyState::Ready]);
        loop {
            match self.news(&mut signals).await {
                News::Ended(ended) => self.ended(ended),
                News::Asked(asked) => self.answer(asked),
                News::Told(told) => self.told(told),
                News::Changed => self.changed(),
                News::Due => self.charges.iter_mut().for_each(|charge| charge.due(now())),
                News::HangUp => {
                    let outcome = self.reload();
                    let outcome = outcome.as_ref().map(drop).map_err(String::as_str);
                    note(self.audit.as_deref(), "SIGHUP", "reload", outcome);
                }
                News::Terminate(signal) if self.ending.is_some() => {
                    note(self.audit.as_deref(), signal, "shutdown", Ok(()));
                    self.leave_nothing();
                    self.charges
                        .iter()
                        .filter_map(|charge| charge.child.as_ref())
                        .for_each(|child| child.kill());
                    return Err(Failure::new(Exit::Interrupted, "stopped at once"));
                }
                News::Terminate(signal) => {
                    note(self.audit.as_deref(), signal, "shutdown", Ok(()));
                    self.shut_down(Children::Stop);
                }
            }
            self.settle();
            match self.ending {
                Some(Children::Leave) => {
                    tracing::info!("ended; the processes go on");
                    return Ok(());
                }
                Some(Children::Stop) if self.charges.iter().all(|charge| charge.child.is_none()) => {
                    self.leave_nothing();
                    tracing::info!("stopped");
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    async fn news(&mut self, signals: &mut Signals) -> News {
        let due = self.charges.iter().filter_map(Charge::poll_timeout).min();
        let pause = due.map(|due| tokio::time::sleep(due.since(now())));
        let pause = pin!(async {
            match pause {
                Some(pause) => pause.await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            // The channels never end: their senders are held as long as this is.
            Some(ended) = self.ends.recv() => News::Ended(ended),
            Some(asked) = self.asked.recv() => News::Asked(asked),
            Some(told) = self.told.recv() => News::Told(told),
            () = self.watch.changed() => News::Changed,
            () = pause => News::Due,
            _ = signals.hangup.recv() => News::HangUp,
            _ = signals.terminate.recv() => News::Terminate("SIGTERM"),
            _ = signals.interrupt.recv() => News::Terminate("SIGINT"),
        }
    }

    /// Takes the sockets of balancers from now on.
    fn hear_balancers(&mut self) {
        let path = self.file.sockets();
        let opened = std::path::absolute(&path).and_then(|whole| {
            holding::open(&whole, self.tell.clone())?;
            Ok(whole)
        });
        match opened {
            Ok(whole) => self.holder = Some(whole),
            Err(error) => tracing::warn!(
                "{}: {error}; while a balancer that failed is started again its clients are refused",
                path.display()
            ),
        }
    }

    /// Handles a balancer's request for its sockets, or to hold them.
    fn told(&mut self, Told { pid, wish, reply }: Told) {
        let place = self.charges.iter().position(|charge| charge.is(pid));
        let place = place.or_else(|| self.charges.iter().position(|charge| charge.is_followed_by(pid)));
        if let Some(place) = place {
            // The balancer may have ended.
            let _ = reply.send(self.charges[place].grant(wish));
        }
    }

    /// Removes the files, so that the next Supervisor finds nothing.
    fn leave_nothing(&self) {
        let _ = std::fs::remove_file(self.file.state());
        if let Some(path) = &self.holder {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Takes over the processes that a Supervisor before this one left.
    fn take_over(&mut self) {
        let path = self.file.state();
        let state = match State::read(&path) {
            Ok(Some(state)) => state,
            Ok(None) => return,
            Err(error) => {
                let path = path.display();
                return tracing::warn!("cannot read {path}: {error}; processes that still run are not found");
            }
        };
        for kept in state.processes {
            let found = self.charges.iter().position(|charge| charge.name == kept.name);
            let adopted = kept.running.as_ref().and_then(|(identity, launch, _)| {
                let heir = child::heir(identity, &launch.command);
                heir.and_then(child::Child::adopt).or_else(|| child::Child::adopt(*identity))
            });
            let Some((child, wait, stderr)) = adopted else {
                if let Some(place) = found {
                    self.charges[place].recall(&kept, chance(), now());
                }
                continue;
            };
            let place = match found {
                Some(place) => place,
                None => match self.scribe(&kept.name) {
                    Ok(scribe) => {
                        self.charges.push(Charge::stray(&kept, scribe, now()));
                        self.charges.len() - 1
                    }
                    Err(error) => {
                        tracing::warn!("{}: it runs, and cannot be watched: {error}", kept.name);
                        continue;
                    }
                },
            };
            let pid = child.identity.pid;
            if stderr.is_none() {
                tracing::warn!("{}: what it says cannot be read", kept.name);
            }
            tracing::info!("{}: found running, pid {pid}", kept.name);
            self.count += 1;
            let charge = &mut self.charges[place];
            charge.adopt(&kept, child, self.count, now());
            tokio::spawn(attend(self.count, wait, stderr, charge.scribe.clone(), self.end.clone()));
        }
    }

    /// Carries out all orders, and publishes the state.
    fn settle(&mut self) {
        // The sockets come before any process is ended.
        self.charges.iter_mut().for_each(|charge| charge.look_at_sockets(now()));
        for place in 0..self.charges.len() {
            while let Some(order) = self.charges[place].ward.poll_order() {
                self.carry_out(place, order);
            }
        }
        self.charges.retain(|charge| !charge.gone());
        let waiting = self.charges.iter().filter(|charge| charge.ward.phase() == Phase::Failed);
        self.watch.follow(waiting.filter_map(|charge| charge.file.as_deref()));
        // A file that changed after a process read it may have changed before it was watched.
        self.changed_before();
        let household = self.household();
        self.tell_systemd(&household);
        self.desk.publish(household);
        self.write_down();
    }

    fn carry_out(&mut self, place: usize, order: Order) {
        let to_files = self.file.supervise.supervise.log_dir.is_some();
        let charge = &mut self.charges[place];
        match order {
            Order::Start => {
                charge.prepare();
                match child::Child::start(&self.program, &charge.launch, to_files, self.holder.as_deref()) {
                    Ok((child, wait, stderr)) => {
                        self.count += 1;
                        let pid = child.identity.pid;
                        tracing::info!("{}: started, pid {pid}: {}", charge.name, charge.why);
                        let (scribe, end) = (charge.scribe.clone(), self.end.clone());
                        charge.started(child, self.count);
                        tokio::spawn(attend(self.count, wait, Some(stderr), scribe, end));
                    }
                    Err(error) => {
                        let reason = format!("{} cannot be started: {error}", self.program.display());
                        charge.ended(Ending::Unstarted, reason, chance(), now());
                    }
                }
            }
            Order::Terminate => {
                tracing::info!("{}: told to end: {}", charge.name, charge.why);
                charge.terminate();
            }
            Order::Kill => {
                let patience = config::TimeSpan(charge.patience());
                tracing::warn!("{}: killed: it was told to end {patience} ago", charge.name);
                charge.child.iter().for_each(child::Child::kill);
            }
        }
    }

    fn ended(&mut self, Ended { number, how }: Ended) {
        let Some(place) = self.charges.iter().position(|charge| charge.number == Some(number)) else {
            return;
        };
        let (ending, pipe) = match how {
            How::Ended(ending) => (Some(ending), None),
            How::HandedOver(pipe, back) => (None, Some((pipe, back))),
        };
        let hold = self.file.supervise.supervise.hold_sockets.0;
        let charge = &mut self.charges[place];
        match (charge.heir(), ending, pipe) {
            (Some((child, wait, own)), _, pipe) => {
                let stderr = pipe.map(|(pipe, _)| pipe).or(own);
                self.count += 1;
                tracing::info!("{}: pid {} has taken over", charge.name, child.identity.pid);
                charge.follow(child, self.count);
                tokio::spawn(attend(self.count, wait, stderr, charge.scribe.clone(), self.end.clone()));
            }
            (None, Some(ending), _) => {
                charge.hold_for(hold, now());
                charge.ended(ending, charge::reason(ending), chance(), now());
            }
            (None, None, Some((pipe, back))) => drop(back.send(pipe)),
            (None, None, None) => {}
        }
    }

    /// Handles a change of files, for which a process may have failed.
    fn changed(&mut self) {
        self.charges.iter_mut().for_each(|charge| charge.look(now()));
    }

    fn changed_before(&mut self) {
        self.changed();
        for place in 0..self.charges.len() {
            while let Some(order) = self.charges[place].ward.poll_order() {
                self.carry_out(place, order);
            }
        }
    }

    fn answer(&mut self, asked: Asked) {
        match asked {
            Asked::Tell { process, act, reply } => {
                let told = self.tell(&process, act);
                self.settle();
                let told = told.map(|()| self.household());
                let own =
                    |household: Household| household.processes.into_iter().find(|one| one.name == process);
                let gone =
                    || Denied::Impossible(format!("{process} is gone: it is not in the file any more"));
                // The client may have gone.
                let _ = reply.send(told.and_then(|household| own(household).ok_or_else(gone)));
            }
            Asked::Reload { reply } => {
                let changes = self.reload();
                self.settle();
                let _ = reply.send(changes);
            }
            Asked::ShutDown(children) => self.shut_down(children),
        }
    }

    fn tell(&mut self, process: &str, act: Act) -> Result<(), Denied> {
        let Some(place) = self.charges.iter().position(|charge| charge.name == process) else {
            let names: Vec<&str> = self.charges.iter().map(|charge| &*charge.name).collect();
            return Err(Denied::Unknown(format!(
                "there is no process {process}; there are: {}",
                names.join(", ")
            )));
        };
        if self.ending.is_some() {
            return Err(Denied::Impossible("the Supervisor is ending".into()));
        }
        self.charges[place].tell(act, now()).map_err(Denied::Impossible)
    }

    fn shut_down(&mut self, children: Children) {
        notify(&[NotifyState::Stopping]);
        if children == Children::Stop {
            let why = "the Supervisor is ending";
            self.charges.iter_mut().for_each(|charge| charge.stop(why, now()));
        }
        self.ending = Some(children);
    }

    fn scribe(&self, name: &str) -> io::Result<Scribe> {
        let folder = self.file.supervise.supervise.log_dir.as_ref();
        Scribe::open(name, folder.map(|folder| folder.0.as_path()), self.json)
    }

    fn household(&self) -> Household {
        Household {
            schema: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ms: self.started_unix_ms,
            stopping: self.ending.is_some(),
            reload_error: self.reload_error.clone(),
            processes: self.charges.iter().map(|charge| charge.status(now())).collect(),
        }
    }

    /// Writes the state, if anything differs from what was written last.
    fn write_down(&mut self) {
        let processes = self.charges.iter().map(|charge| charge.kept(now())).collect();
        let state = State { boot: state::boot(), processes };
        // The mark has no times, as those move by a millisecond each time.
        let text = self.charges.iter().map(Charge::mark).collect();
        if text != self.written {
            match state.write(&self.file.state()) {
                Ok(()) => self.written = text,
                Err(error) => {
                    let path = self.file.state();
                    tracing::warn!(
                        "cannot write {}: {error}; a Supervisor that is started again will not find the processes",
                        path.display()
                    );
                }
            }
        }
    }

    fn tell_systemd(&mut self, household: &Household) {
        let running = household.processes.iter().filter(|process| process.state == Phase::Running).count();
        let status = format!("{running} of {} processes run", household.processes.len());
        if status != self.said {
            notify(&[NotifyState::Status(&status)]);
            self.said = status;
        }
    }
}
