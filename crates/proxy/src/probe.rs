//! Active health checks: one task per member on the control thread, which sleeps, asks and reports.
//!
//! The first probe of a member is made at once; where there are many members, first probes are spread so that
//! they do not come as one burst. Waits are jittered by a tenth, so that members and balancers do not fall
//! into step. A member that hangs costs its own task and one of the places in the gate for the time of one
//! probe, nobody else's probes. Connections end with a reset: thousands of probes a second would otherwise
//! leave tens of thousands of sockets in TIME_WAIT, here or at the members.
//!
//! Where several balancers act together each member is probed by one or two of them, which tell the others what they find (`duty`).
//!
//! What is found in a few milliseconds is taken in together, because each change of a member's state makes a
//! new plan, which costs as much as the group is large.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::MemberId;
use plimsoll_brain::hash;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::control::{Control, Finding};
use crate::iiop::question;
use crate::inner::{Inner, lock};
use crate::{Addresses, GroupSettings, MemberTls, Object, ProbeKind, ProbeSettings};

mod ask;
mod duty;
mod second;

pub(crate) use duty::Duty;

/// Most probes at once.
const GATE: usize = 256;
/// Findings that may wait to be taken in, and that are taken in at once.
const FINDINGS: usize = 1024;
/// How long findings gather after some were taken in.
const GATHER: Duration = Duration::from_millis(10);
/// First probes are this far apart, as long as all fit into an interval.
const APART: Duration = Duration::from_micros(100);

/// The probes that run.
pub(crate) struct Probes {
    runtime: Handle,
    running: BTreeMap<Arc<str>, Group>,
    findings: mpsc::Sender<Finding>,
    gate: Arc<Semaphore>,
}

/// Those of a group.
struct Group {
    /// What they were begun by.
    settings: Arc<GroupSettings>,
    members: BTreeMap<MemberId, Running>,
}

struct Running {
    target: Arc<Target>,
    duty: Arc<Duty>,
    task: JoinHandle<()>,
}

/// Who is probed, and how.
#[derive(PartialEq)]
struct Target {
    address: SocketAddr,
    /// All of them, if it has several.
    addresses: Option<Arc<Addresses>>,
    settings: ProbeSettings,
    /// By TLS, and as what.
    tls: Option<(MemberTls, Box<str>)>,
    /// By HTTP/2.
    http2: bool,
    /// The member's name.
    name: Box<str>,
    /// What is sent once a connection is made, before TLS.
    preface: Vec<u8>,
    /// What is sent then; nothing if there is no more to find out.
    request: Vec<u8>,
}

impl Probes {
    /// None, and where they will report to. They run on `runtime`.
    pub(crate) fn new(runtime: Handle) -> (Self, mpsc::Receiver<Finding>) {
        let (findings, inbox) = mpsc::channel(FINDINGS);
        let gate = Arc::new(Semaphore::new(GATE));
        (Self { runtime, running: BTreeMap::new(), findings, gate }, inbox)
    }

    /// Starts and ends probes so that they are those of the groups in force. A member whose address and
    /// probes are the same is probed on without a break.
    pub(crate) fn follow(&mut self, control: &Control) {
        let mut before = std::mem::take(&mut self.running);
        // By group, member and whose duty it was.
        let mut fresh = Vec::new();
        for (name, ruled) in &control.groups {
            let known = before.remove(name);
            let Some(probe) = &ruled.settings.probe else {
                known.into_iter().for_each(Group::stop);
                continue;
            };
            let mut group = match known {
                // The members of a group are others only if its settings are.
                Some(known) if Arc::ptr_eq(&known.settings, &ruled.settings) => {
                    self.running.insert(Arc::clone(name), known);
                    continue;
                }
                known => known.map_or_else(BTreeMap::new, |known| known.members),
            };
            let mut members = BTreeMap::new();
            // Where nobody is there is nobody to be asked.
            let placed = ruled.analyzer.members().filter(|(_, spec, _)| spec.address.port() != 0);
            for (member, spec, _) in placed {
                let target = Target::new(probe, &ruled.settings, &spec.name, spec.address);
                match group.remove(&member) {
                    Some(running) if *running.target == target => {
                        members.insert(member, running);
                    }
                    running => {
                        let duty = running.map(|running| {
                            running.task.abort();
                            running.duty
                        });
                        fresh.push((Arc::clone(name), member, target, duty.unwrap_or_default()));
                    }
                }
            }
            group.into_values().for_each(|running| running.task.abort());
            let settings = Arc::clone(&ruled.settings);
            self.running.insert(Arc::clone(name), Group { settings, members });
        }
        before.into_values().for_each(Group::stop);
        let many = u32::try_from(fresh.len()).unwrap_or(u32::MAX);
        for (name, member, target, duty) in fresh {
            let spread = (APART * many).min(target.settings.interval);
            let target = Arc::new(target);
            let task = self.runtime.spawn(watch(
                (Arc::clone(&name), member),
                Arc::clone(&target),
                Arc::clone(&duty),
                spread.mul_f64(chance()),
                Arc::clone(&self.gate),
                self.findings.clone(),
            ));
            if let Some(group) = self.running.get_mut(&name) {
                group.members.insert(member, Running { target, duty, task });
            }
        }
    }

    /// Whose business it is to check a member; `None` if nobody does.
    pub(crate) fn duty(&self, group: &Arc<str>, member: MemberId) -> Option<Arc<Duty>> {
        Some(Arc::clone(&self.running.get(group)?.members.get(&member)?.duty))
    }

    /// Ends all.
    pub(crate) fn stop(&mut self) {
        std::mem::take(&mut self.running).into_values().for_each(Group::stop);
    }
}

impl Group {
    fn stop(self) {
        self.members.into_values().for_each(|running| running.task.abort());
    }
}

/// Takes in what probes find, for as long as there are probes.
pub(crate) async fn report(inner: &Inner, mut findings: mpsc::Receiver<Finding>) {
    let mut batch = Vec::new();
    while findings.recv_many(&mut batch, FINDINGS).await > 0 {
        lock(&inner.control).probed(&batch, inner.clock.now());
        inner.wake.notify_one();
        inner.checked.notify_waiters();
        batch.clear();
        sleep(GATHER).await;
    }
}

/// Probes one member for ever, unless another balancer does so and says what it finds.
async fn watch(
    (group, member): (Arc<str>, MemberId),
    target: Arc<Target>,
    duty: Arc<Duty>,
    wait: Duration,
    gate: Arc<Semaphore>,
    findings: mpsc::Sender<Finding>,
) {
    let name: Arc<str> = Arc::from(&*target.name);
    let interval = target.settings.interval;
    sleep(wait).await;
    loop {
        if duty.rests(interval, target.settings.timeout, Instant::now()) {
            duty.called(Instant::now() + interval.mul_f64(0.9 + 0.2 * chance())).await;
            continue;
        }
        let Ok(place) = gate.acquire().await else { return };
        let begun = Instant::now();
        let outcome = target.ask().await;
        drop(place);
        match outcome {
            Ok(outcome) => {
                let (group, name) = (Arc::clone(&group), Arc::clone(&name));
                if findings.send(Finding { group, member, name, outcome }).await.is_err() {
                    return;
                }
            }
            // The member stays as it was known: it is asked again after the usual interval.
            Err(error) => unable(&error),
        }
        // However often it is called to check at once, it does not much oftener than usual.
        sleep_until(begun + interval / 2).await;
        duty.called(begun + interval.mul_f64(0.9 + 0.2 * chance())).await;
    }
}

/// Says that this process cannot probe, at most once a second over all members.
#[cold]
fn unable(error: &io::Error) {
    static SAID: Mutex<Option<Instant>> = Mutex::new(None);
    let mut said = lock(&SAID);
    if said.is_none_or(|said| said.elapsed() >= Duration::from_secs(1)) {
        *said = Some(Instant::now());
        tracing::warn!("health checks cannot be made: {error}; members stay as they were known");
    }
}

/// Asks once, as members of a group are asked in clear, whether the server at `address` is there; why it is not, for people. Takes no
/// longer than `probe` allows. `name` is what the server is called where `probe` names no host. One of CORBA has no object here to be
/// asked for, so nothing is asked and it fails.
///
/// # Errors
/// It did not answer in time, or not as it should.
pub async fn ask_once(probe: &ProbeSettings, name: &str, address: SocketAddr) -> Result<(), String> {
    let (request, http2) = (asked(&probe.kind, name), matches!(probe.kind, ProbeKind::Grpc { .. }));
    let (settings, name) = (probe.clone(), name.into());
    let target =
        Target { address, addresses: None, settings, tls: None, http2, name, preface: Vec::new(), request };
    target.ask().await.unwrap_or_else(|error| Err(format!("this process cannot ask: {error}")))
}

/// What is sent to a server of this name that is asked for no object.
fn asked(kind: &ProbeKind, name: &str) -> Vec<u8> {
    match kind {
        ProbeKind::Tcp | ProbeKind::Iiop => Vec::new(),
        ProbeKind::Grpc { service, .. } => second::question(service),
        ProbeKind::Http { path, host, .. } => ask::request(path, host.as_deref().unwrap_or(name)),
    }
}

impl Target {
    fn new(probe: &ProbeSettings, group: &GroupSettings, name: &str, address: SocketAddr) -> Self {
        let request = match &probe.kind {
            ProbeKind::Iiop => {
                let object = group.iiop.as_ref().and_then(|iiop| iiop.objects.get(name));
                question::locate(object.map_or(&[], Object::key))
            }
            kind => asked(kind, name),
        };
        let tls = group.tls.clone().map(|tls| (tls, name.into()));
        let preface = match probe.kind {
            ProbeKind::Http { .. } | ProbeKind::Grpc { .. } => ask::preface(group.send_proxy),
            // What follows is a handshake: nothing may be sent before the preface.
            ProbeKind::Tcp if tls.is_some() => ask::preface(group.send_proxy),
            ProbeKind::Tcp | ProbeKind::Iiop => Vec::new(),
        };
        let http2 = group.http2 || matches!(probe.kind, ProbeKind::Grpc { .. });
        let addresses = group.addresses.get(name).cloned();
        Self { address, addresses, settings: probe.clone(), tls, http2, name: name.into(), preface, request }
    }

    /// Once, for as long as it may take at each of its addresses; why the member failed, for people.
    ///
    /// # Errors
    /// This process has no file, memory or port left for a probe.
    async fn ask(&self) -> io::Result<Result<(), String>> {
        let patience = self.settings.timeout;
        let late = |_| Ok(Err(format!("no answer within {} s", patience.as_secs_f64())));
        let Some(addresses) = &self.addresses else {
            return timeout(patience, ask::ask(self, self.address)).await.unwrap_or_else(late);
        };
        let mut first = None;
        for place in addresses.turns() {
            match timeout(patience, ask::ask(self, addresses.at(place))).await.unwrap_or_else(late)? {
                Ok(()) => {
                    addresses.passed(place);
                    return Ok(Ok(()));
                }
                Err(why) => drop(first.get_or_insert(why)),
            }
        }
        Ok(Err(first.unwrap_or_else(|| "its name has no address".to_owned())))
    }
}

/// A number from 0 to 1. The standard library's hasher is seeded anew each time: chance enough for this.
fn chance() -> f64 {
    (hash(&RandomState::new().hash_one(0).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
