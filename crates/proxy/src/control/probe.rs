//! Active health checks: one task per member on the control thread, which sleeps, checks and reports.
//!
//! The first check of a member is made at once. With many members, first checks are spread so that they are
//! no burst. Intervals are jittered by a tenth, so that members and balancers do not fall into step. A member
//! that hangs delays only its own task, and takes one of the permits for the time of one check. Connections
//! end with a reset: thousands of checks per second would otherwise leave tens of thousands of sockets in
//! TIME_WAIT, here or at the members.
//!
//! In a fleet of balancers, one or two of them check each member and send the others their results
//! (`ownership`).
//!
//! Results within a few milliseconds are handled together. Each change of a member's state makes a new plan,
//! whose cost grows with the group.

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

use crate::control::engine_shared::EngineShared;
use crate::control::{ControlPlane, ProbeResult};
use crate::protocol::iiop::locate;
use crate::runtime::sync::lock;
use crate::{CorbaObject, GroupSettings, MemberAddresses, MemberTls, ProbeKind, ProbeSettings};

mod check;
mod http2_probe;
mod ownership;

pub(crate) use ownership::ProbeOwnership;

/// The maximum number of concurrent checks.
const MAX_CONCURRENT: usize = 256;
/// The maximum number of results that wait, and that are handled at once.
const MAX_RESULTS: usize = 1024;
/// The time for which results collect after some were handled.
const GATHER_TIME: Duration = Duration::from_millis(10);
/// The interval between first checks, as long as all fit into one check interval.
const START_SPACING: Duration = Duration::from_micros(100);

/// The running checks.
pub(crate) struct ProbeRunner {
    runtime: Handle,
    groups: BTreeMap<Arc<str>, GroupProbes>,
    results: mpsc::Sender<ProbeResult>,
    permits: Arc<Semaphore>,
}

/// The checks of a group.
struct GroupProbes {
    /// The settings with which they were started.
    settings: Arc<GroupSettings>,
    members: BTreeMap<MemberId, ProbeTask>,
}

struct ProbeTask {
    target: Arc<ProbeTarget>,
    ownership: Arc<ProbeOwnership>,
    task: JoinHandle<()>,
}

/// The target and the kind of a check.
#[derive(PartialEq)]
struct ProbeTarget {
    address: SocketAddr,
    /// All addresses, if the member has several.
    addresses: Option<Arc<MemberAddresses>>,
    settings: ProbeSettings,
    /// The TLS settings and the server name, with TLS.
    tls: Option<(MemberTls, Box<str>)>,
    /// Whether the check uses HTTP/2.
    http2: bool,
    /// The member's name.
    name: Box<str>,
    /// The bytes sent on a new connection, before TLS.
    proxy_header: Vec<u8>,
    /// The bytes sent then; empty if connecting is enough.
    request: Vec<u8>,
}

impl ProbeRunner {
    /// Returns no checks, and the receiver of their results. Checks will run on `runtime`.
    pub(crate) fn new(runtime: Handle) -> (Self, mpsc::Receiver<ProbeResult>) {
        let (results, receiver) = mpsc::channel(MAX_RESULTS);
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
        (Self { runtime, groups: BTreeMap::new(), results, permits }, receiver)
    }

    /// Starts and stops checks in line with the groups in force. Checks of members with an unchanged address
    /// and settings continue without a break.
    pub(crate) fn update(&mut self, control: &ControlPlane) {
        let mut previous_groups = std::mem::take(&mut self.groups);
        // New checks, each with its group, its member and the previous duty.
        let mut new_targets = Vec::new();
        for (name, group_state) in &control.groups {
            let previous_probes = previous_groups.remove(name);
            let Some(probe) = &group_state.settings.probe else {
                previous_probes.into_iter().for_each(GroupProbes::stop);
                continue;
            };
            let mut previous_tasks = match previous_probes {
                // The members of a group change only with its settings.
                Some(previous) if Arc::ptr_eq(&previous.settings, &group_state.settings) => {
                    self.groups.insert(Arc::clone(name), previous);
                    continue;
                }
                previous => previous.map_or_else(BTreeMap::new, |known| known.members),
            };
            let mut members = BTreeMap::new();
            // A member without an address cannot be checked.
            let resolved = group_state.analyzer.members().filter(|(_, spec, _)| spec.address.port() != 0);
            for (member, spec, _) in resolved {
                let target = ProbeTarget::new(probe, &group_state.settings, &spec.name, spec.address);
                match previous_tasks.remove(&member) {
                    Some(probe_task) if *probe_task.target == target => {
                        members.insert(member, probe_task);
                    }
                    previous_task => {
                        let ownership = previous_task.map(|probe_task| {
                            probe_task.task.abort();
                            probe_task.ownership
                        });
                        new_targets.push((Arc::clone(name), member, target, ownership.unwrap_or_default()));
                    }
                }
            }
            previous_tasks.into_values().for_each(|probe_task| probe_task.task.abort());
            let settings = Arc::clone(&group_state.settings);
            self.groups.insert(Arc::clone(name), GroupProbes { settings, members });
        }
        previous_groups.into_values().for_each(GroupProbes::stop);
        let target_count = u32::try_from(new_targets.len()).unwrap_or(u32::MAX);
        for (name, member, target, ownership) in new_targets {
            let max_delay = (START_SPACING * target_count).min(target.settings.interval);
            let target = Arc::new(target);
            let task = self.runtime.spawn(check_forever(
                (Arc::clone(&name), member),
                Arc::clone(&target),
                Arc::clone(&ownership),
                max_delay.mul_f64(random_fraction()),
                Arc::clone(&self.permits),
                self.results.clone(),
            ));
            if let Some(group) = self.groups.get_mut(&name) {
                group.members.insert(member, ProbeTask { target, ownership, task });
            }
        }
    }

    /// Returns the duty to check a member; `None` if no balancer does.
    pub(crate) fn ownership(&self, group: &Arc<str>, member: MemberId) -> Option<Arc<ProbeOwnership>> {
        Some(Arc::clone(&self.groups.get(group)?.members.get(&member)?.ownership))
    }

    /// Stops all checks.
    pub(crate) fn stop(&mut self) {
        std::mem::take(&mut self.groups).into_values().for_each(GroupProbes::stop);
    }
}

impl GroupProbes {
    fn stop(self) {
        self.members.into_values().for_each(|probe_task| probe_task.task.abort());
    }
}

/// Handles the results of checks while there are checks.
pub(crate) async fn handle_results(inner: &EngineShared, mut results: mpsc::Receiver<ProbeResult>) {
    let mut batch = Vec::new();
    while results.recv_many(&mut batch, MAX_RESULTS).await > 0 {
        lock(&inner.control).record_probes(&batch, inner.clock.now());
        inner.wake.notify_one();
        inner.probes_finished.notify_waiters();
        batch.clear();
        sleep(GATHER_TIME).await;
    }
}

/// Checks one member forever, unless another balancer does so and sends its results.
async fn check_forever(
    (group, member): (Arc<str>, MemberId),
    target: Arc<ProbeTarget>,
    ownership: Arc<ProbeOwnership>,
    delay: Duration,
    permits: Arc<Semaphore>,
    results: mpsc::Sender<ProbeResult>,
) {
    let name: Arc<str> = Arc::from(&*target.name);
    let interval = target.settings.interval;
    sleep(delay).await;
    loop {
        if ownership.is_covered(interval, target.settings.timeout, Instant::now()) {
            ownership.until_requested(Instant::now() + interval.mul_f64(0.9 + 0.2 * random_fraction())).await;
            continue;
        }
        let Ok(permit) = permits.acquire().await else { return };
        let started_at = Instant::now();
        let outcome = target.run_check().await;
        drop(permit);
        match outcome {
            Ok(outcome) => {
                let (group, name) = (Arc::clone(&group), Arc::clone(&name));
                if results.send(ProbeResult { group, member, name, outcome }).await.is_err() {
                    return;
                }
            }
            // The member's state stays as it is: the next check follows after the usual interval.
            Err(error) => warn_unable(&error),
        }
        // However often an immediate check is requested, checks are hardly more frequent than usual.
        sleep_until(started_at + interval / 2).await;
        ownership.until_requested(started_at + interval.mul_f64(0.9 + 0.2 * random_fraction())).await;
    }
}

/// Warns that this process cannot run checks, at most once per second over all members.
#[cold]
fn warn_unable(error: &io::Error) {
    static LAST_WARNING: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last_warning = lock(&LAST_WARNING);
    if last_warning.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
        *last_warning = Some(Instant::now());
        tracing::warn!("health checks cannot be made: {error}; members stay as they were known");
    }
}

/// Checks the server at `address` once, as members of a group without TLS are checked, within the time limit
/// of `probe`. `name` is the server's name if `probe` names no host. For CORBA there is no object to ask for,
/// so nothing is sent and the check fails.
///
/// # Errors
/// The server did not respond in time, or not as it should: the reason, for people.
pub async fn check_once(probe: &ProbeSettings, name: &str, address: SocketAddr) -> Result<(), String> {
    let (request, http2) = (request_bytes(&probe.kind, name), matches!(probe.kind, ProbeKind::Grpc { .. }));
    let (settings, name) = (probe.clone(), name.into());
    let target = ProbeTarget {
        address,
        addresses: None,
        settings,
        tls: None,
        http2,
        name,
        proxy_header: Vec::new(),
        request,
    };
    target.run_check().await.unwrap_or_else(|error| Err(format!("this process cannot ask: {error}")))
}

/// Returns the bytes sent to a server with this name, without an object.
fn request_bytes(kind: &ProbeKind, name: &str) -> Vec<u8> {
    match kind {
        ProbeKind::Tcp | ProbeKind::Iiop => Vec::new(),
        ProbeKind::Grpc { service, .. } => http2_probe::health_request(service),
        ProbeKind::Http { path, host, .. } => check::request(path, host.as_deref().unwrap_or(name)),
    }
}

impl ProbeTarget {
    fn new(probe: &ProbeSettings, group: &GroupSettings, name: &str, address: SocketAddr) -> Self {
        let request = match &probe.kind {
            ProbeKind::Iiop => {
                let object = group.iiop.as_ref().and_then(|iiop| iiop.objects.get(name));
                locate::locate_request(object.map_or(&[], CorbaObject::key))
            }
            kind => request_bytes(kind, name),
        };
        let tls = group.tls.clone().map(|tls| (tls, name.into()));
        let proxy_header = match probe.kind {
            ProbeKind::Http { .. } | ProbeKind::Grpc { .. } => check::encode_proxy_header(group.send_proxy),
            // A TLS handshake follows: nothing may be sent before the preface.
            ProbeKind::Tcp if tls.is_some() => check::encode_proxy_header(group.send_proxy),
            ProbeKind::Tcp | ProbeKind::Iiop => Vec::new(),
        };
        let http2 = group.http2 || matches!(probe.kind, ProbeKind::Grpc { .. });
        let addresses = group.addresses.get(name).cloned();
        Self {
            address,
            addresses,
            settings: probe.clone(),
            tls,
            http2,
            name: name.into(),
            proxy_header,
            request,
        }
    }

    /// Runs one check, with the time limit for each of the member's addresses. The inner error is the reason
    /// why the member failed, for people.
    ///
    /// # Errors
    /// This process has no file descriptor, memory or port left for a check.
    async fn run_check(&self) -> io::Result<Result<(), String>> {
        let time_limit = self.settings.timeout;
        let timed_out = |_| Ok(Err(format!("no answer within {} s", time_limit.as_secs_f64())));
        let Some(addresses) = &self.addresses else {
            return timeout(time_limit, check::check_member(self, self.address))
                .await
                .unwrap_or_else(timed_out);
        };
        let mut first_error = None;
        for index in addresses.check_order() {
            match timeout(time_limit, check::check_member(self, addresses.at(index)))
                .await
                .unwrap_or_else(timed_out)?
            {
                Ok(()) => {
                    addresses.record_passed(index);
                    return Ok(Ok(()));
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Ok(Err(first_error.unwrap_or_else(|| "its name has no address".to_owned())))
    }
}

/// Returns a number from 0 to 1. The standard library's hasher has a new seed each time: random enough for
/// this.
fn random_fraction() -> f64 {
    (hash(&RandomState::new().hash_one(0).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
