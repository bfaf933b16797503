//! Keeps certificates valid: one thread that orders them one after the other and checks when each is due.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, oneshot};

use crate::account::{self, is_stale, is_unknown};
use crate::client::RetryAfter;
use crate::leaf::LeafCertificate;
use crate::order::{OrderFailure, order};
use crate::schedule::{ari_interval, retry_delay};
use crate::{AcmeHandler, CertificateCache, CertificateSettings};

/// The longest sleep between two checks: the clock may be set, and the machine may be suspended.
const MAX_SLEEP: Duration = Duration::from_secs(600);
/// The delay before the folder's lock is tried again when another process holds it.
const LOCK_RETRY_DELAY: Duration = Duration::from_secs(15);

/// The state of a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateState {
    /// The certificate's identifier, [`CertificateSettings::id`].
    pub id: String,
    /// The names that the certificate is wanted for.
    pub domains: Vec<String>,
    /// The time of the next renewal; `None` if there is no certificate yet.
    pub renewal: Option<SystemTime>,
    /// The reason why the last attempt to obtain or renew it failed.
    pub failure: Option<String>,
}

/// Keeps certificates valid until it is dropped.
pub struct CertificateKeeper {
    inner: Arc<KeeperState>,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

struct KeeperState {
    handler: Arc<dyn AcmeHandler>,
    /// The wanted certificates, each with the one that its folder held.
    targets: Mutex<Vec<(CertificateSettings, Option<LeafCertificate>)>>,
    changed: Notify,
    states: Mutex<BTreeMap<String, CertificateState>>,
}

impl std::fmt::Debug for CertificateKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl CertificateKeeper {
    /// Starts to keep the certificates in `wanted`. Passes those that are in the folders to the
    /// [`AcmeHandler`] before it returns.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(settings: Vec<CertificateSettings>, handler: Arc<dyn AcmeHandler>) -> io::Result<Self> {
        let state = Arc::new(KeeperState {
            handler,
            targets: Mutex::default(),
            changed: Notify::new(),
            states: Mutex::default(),
        });
        let keeper = Self { inner: state, thread: Mutex::default() };
        keeper.update(settings)?;
        Ok(keeper)
    }

    /// Replaces the set of certificates. Retries at once those whose last attempt failed.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started; no certificate is renewed then.
    pub fn update(&self, new_settings: Vec<CertificateSettings>) -> io::Result<()> {
        let has_certificates = !new_settings.is_empty();
        let previous = lock(&self.inner.targets).clone();
        let now = SystemTime::now();
        let find_or_load =
            |settings: CertificateSettings| match previous.iter().find(|(other, _)| *other == settings) {
                Some(certificate) => certificate.clone(),
                None => {
                    let leaf = self.inner.install_stored(&settings);
                    self.inner.publish_state(&ManagedCertificate::new(settings.clone(), leaf.clone(), now));
                    (settings, leaf)
                }
            };
        let targets: Vec<_> = new_settings.into_iter().map(find_or_load).collect();
        lock(&self.inner.states).retain(|id, _| targets.iter().any(|(settings, _)| settings.id() == *id));
        *lock(&self.inner.targets) = targets;
        self.inner.changed.notify_one();
        let mut thread = lock(&self.thread);
        if has_certificates && thread.is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (stop_sender, stop_receiver) = oneshot::channel();
            let state = Arc::clone(&self.inner);
            let handle = std::thread::Builder::new().name("acme".into()).spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = run(&state) => {}
                        _ = stop_receiver => {}
                    }
                });
                // Do not wait for DNS lookups that are still running.
                runtime.shutdown_background();
            })?;
            *thread = Some((stop_sender, handle));
        }
        Ok(())
    }

    /// Returns the state of each certificate, sorted by `id`.
    pub fn states(&self) -> Vec<CertificateState> {
        lock(&self.inner.states).values().cloned().collect()
    }
}

impl Drop for CertificateKeeper {
    fn drop(&mut self) {
        if let Some((stop_sender, thread)) = lock(&self.thread).take() {
            let _ = stop_sender.send(());
            // The panic message of the thread is already on stderr.
            let _ = thread.join();
        }
    }
}

impl KeeperState {
    /// Loads a certificate from the folder and passes it to the handler; `None` if it is missing or unusable.
    fn install_stored(&self, settings: &CertificateSettings) -> Option<LeafCertificate> {
        let pem = match CertificateCache::new(&settings.cache).read(&settings.certificate_file()) {
            Ok(pem) => pem?,
            Err(error) => {
                self.handler
                    .certificate_failed(format!("cannot read the certificate {}: {error}", settings.id()));
                return None;
            }
        };
        let install_result = match LeafCertificate::first_in_pem(&pem) {
            Some(leaf) => self.handler.install(&settings.id(), &pem).map(|()| leaf),
            None => Err("no certificate is in it".to_owned()),
        };
        install_result
            .map_err(|error| {
                self.handler
                    .certificate_failed(format!("cannot use the certificate {}: {error}", settings.id()))
            })
            .ok()
    }

    fn publish_state(&self, certificate: &ManagedCertificate) {
        let state = CertificateState {
            id: certificate.settings.id(),
            domains: certificate.settings.domains.clone(),
            renewal: certificate.leaf.as_ref().map(|_| certificate.renewal),
            failure: certificate.failure.clone(),
        };
        lock(&self.states).insert(state.id.clone(), state);
    }
}

/// A certificate and its schedule.
struct ManagedCertificate {
    settings: CertificateSettings,
    leaf: Option<LeafCertificate>,
    /// A random number from 0 to 1, drawn once per certificate: the point in the renewal window.
    window_point: f64,
    /// The time at which this process obtained the certificate.
    obtained_at: Option<SystemTime>,
    renewal: SystemTime,
    /// The time of the next request for renewal information (ARI).
    next_ari_check: SystemTime,
    /// The number of failed attempts in a row.
    failures: u32,
    failure: Option<String>,
    /// The time before which nothing is retried after a failure.
    retry_at: Option<SystemTime>,
}

impl ManagedCertificate {
    fn new(settings: CertificateSettings, leaf: Option<LeafCertificate>, now: SystemTime) -> Self {
        let mut certificate = Self {
            settings,
            leaf: None,
            window_point: 0.0,
            obtained_at: None,
            renewal: now,
            next_ari_check: now,
            failures: 0,
            failure: None,
            retry_at: None,
        };
        if let Some(leaf) = leaf {
            certificate.replace_leaf(leaf, now);
        }
        certificate
    }

    /// Adopts a new certificate, ordered by this or by another process.
    fn replace_leaf(&mut self, leaf: LeafCertificate, now: SystemTime) {
        self.window_point = random_fraction();
        let validity = leaf.validity();
        // A certificate that lacks wanted names is used, and renewed at once.
        self.renewal =
            if leaf.covers(&self.settings.domains) { validity.renewal(self.window_point) } else { now };
        self.next_ari_check = now;
        self.obtained_at = None;
        self.leaf = Some(leaf);
        (self.failures, self.failure, self.retry_at) = (0, None, None);
    }

    /// Returns the time at which `process_due` has something to do.
    fn next_due(&self) -> SystemTime {
        match self.retry_at {
            Some(retry_at) => retry_at,
            None if self.leaf.is_none() => self.renewal,
            None => self.renewal.min(self.next_ari_check),
        }
    }

    fn record_failure(&mut self, reason: String, retry_after: Option<Duration>, now: SystemTime) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(reason);
        let validity = self.leaf.as_ref().map(LeafCertificate::validity);
        let pause = retry_delay(self.failures, retry_after, validity, random_fraction());
        self.retry_at = Some(now + pause);
        pause
    }
}

async fn run(state: &KeeperState) {
    let mut certificates: Vec<ManagedCertificate> = Vec::new();
    loop {
        let now = SystemTime::now();
        update_certificates(state, &mut certificates, now);
        let next_due = certificates.iter().map(ManagedCertificate::next_due).min();
        let wait =
            next_due.map_or(MAX_SLEEP, |due| due.duration_since(now).unwrap_or_default().min(MAX_SLEEP));
        tokio::select! {
            biased;
            () = state.changed.notified() => {
                // The operator may have fixed the cause: make the failed attempts due at once.
                for certificate in &mut certificates {
                    certificate.retry_at = certificate.retry_at.map(|_| SystemTime::UNIX_EPOCH);
                }
                continue;
            }
            () = tokio::time::sleep(wait) => {}
        }
        for certificate in &mut certificates {
            if certificate.next_due() <= SystemTime::now() {
                process_due(state, certificate).await;
                state.publish_state(certificate);
            }
        }
    }
}

/// Removes the certificates that are no longer wanted and adds the new ones.
fn update_certificates(state: &KeeperState, certificates: &mut Vec<ManagedCertificate>, now: SystemTime) {
    let targets = lock(&state.targets).clone();
    certificates.retain(|certificate| targets.iter().any(|(settings, _)| *settings == certificate.settings));
    for (settings, leaf) in targets {
        if certificates.iter().all(|certificate| certificate.settings != settings) {
            certificates.push(ManagedCertificate::new(settings, leaf, now));
        }
    }
}

/// Performs the due work of one certificate: loads a newer one, asks for renewal information, renews it.
async fn process_due(state: &KeeperState, certificate: &mut ManagedCertificate) {
    let now = SystemTime::now();
    let settings = certificate.settings.clone();
    let cache = CertificateCache::new(&settings.cache);
    // Of the processes that share the folder only one may order.
    let _lock = match cache.lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            certificate.retry_at = Some(now + LOCK_RETRY_DELAY);
            return;
        }
        Err(error) => {
            let reason = format!("cannot write to {}: {error}", settings.cache.display());
            return handle_failure(state, certificate, reason, None);
        }
    };
    certificate.retry_at = None;
    if has_newer(certificate, &cache)
        && let Some(leaf) = state.install_stored(&settings)
    {
        certificate.replace_leaf(leaf, now);
        tracing::info!("certificate for {}: another process has renewed it", settings.names_text());
        return;
    }
    let (account, retry_after) = match account::open(&settings, &cache).await {
        Ok(account_and_retry) => account_and_retry,
        Err((retry_after, reason)) if certificate.leaf.is_none() || certificate.renewal <= now => {
            return handle_failure(state, certificate, reason, take_retry_after(&retry_after));
        }
        // The account was needed for renewal information only.
        Err(_) => return schedule_ari_check(certificate, None, now),
    };
    let replaced_id = certificate.leaf.as_ref().and_then(LeafCertificate::identifier);
    let mut supports_ari = false;
    if let (Some(leaf), Some(old_id)) = (&certificate.leaf, &replaced_id) {
        match account.renewal_info(old_id).await {
            Ok((renewal_info, retry_after)) => {
                supports_ari = true;
                let window = (renewal_info.suggested_window.start, renewal_info.suggested_window.end);
                let window = (SystemTime::from(window.0), SystemTime::from(window.1));
                let validity = leaf.validity();
                if leaf.covers(&settings.domains) {
                    let earliest =
                        certificate.obtained_at.map_or(now, |obtained| validity.earliest_renewal(obtained));
                    certificate.renewal =
                        validity.renewal_in_window(window, certificate.window_point).max(earliest);
                }
                schedule_ari_check(certificate, Some(retry_after), now);
            }
            Err(_) => schedule_ari_check(certificate, None, now),
        }
    } else {
        // Without an identifier, no renewal information can be requested for the certificate.
        schedule_ari_check(certificate, None, now);
    }
    if certificate.leaf.is_some() && certificate.renewal > now {
        return;
    }
    let replaces = replaced_id.filter(|_| supports_ari);
    let mut outcome = order(&settings, &account, &*state.handler, replaces.clone()).await;
    // The library gives up after three rejected nonces in a row, which is neither party's fault: try once
    // more.
    if matches!(&outcome, Err(OrderFailure::Acme(error)) if is_stale(error)) {
        outcome = order(&settings, &account, &*state.handler, replaces).await;
    }
    if matches!(&outcome, Err(OrderFailure::Acme(error)) if is_unknown(error)) {
        account::remove_account(&settings, &cache);
        match account::open(&settings, &cache).await {
            Ok((account, _)) => outcome = order(&settings, &account, &*state.handler, None).await,
            Err((retry_after, reason)) => {
                return handle_failure(state, certificate, reason, take_retry_after(&retry_after));
            }
        }
    }
    match outcome {
        Ok(pem) => handle_obtained(state, certificate, &cache, &pem),
        Err(failure) => handle_failure(state, certificate, failure.explain(), take_retry_after(&retry_after)),
    }
}

/// Returns `true` if another process has stored a certificate that is valid for longer and covers all names.
fn has_newer(certificate: &ManagedCertificate, cache: &CertificateCache) -> bool {
    let stored_leaf = cache
        .read(&certificate.settings.certificate_file())
        .ok()
        .flatten()
        .and_then(|pem| LeafCertificate::first_in_pem(&pem));
    let current_until = certificate.leaf.as_ref().map(|leaf| leaf.until);
    stored_leaf.is_some_and(|stored| {
        Some(stored.until) > current_until && stored.covers(&certificate.settings.domains)
    })
}

fn schedule_ari_check(certificate: &mut ManagedCertificate, retry_after: Option<Duration>, now: SystemTime) {
    if let Some(leaf) = &certificate.leaf {
        certificate.next_ari_check = now + ari_interval(retry_after, leaf.validity());
    }
}

fn take_retry_after(retry_after: &RetryAfter) -> Option<Duration> {
    *retry_after.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle_obtained(
    state: &KeeperState,
    certificate: &mut ManagedCertificate,
    cache: &CertificateCache,
    pem: &str,
) {
    let names = certificate.settings.names_text();
    let Some(leaf) = LeafCertificate::first_in_pem(pem.as_bytes()) else {
        return handle_failure(state, certificate, "the authority gave no certificate".to_owned(), None);
    };
    if let Err(error) = state.handler.install(&certificate.settings.id(), pem.as_bytes()) {
        return handle_failure(
            state,
            certificate,
            format!("what the authority gave cannot be used: {error}"),
            None,
        );
    }
    // The file is replaced only after the handler has accepted the new certificate.
    let write_result = cache.write(&certificate.settings.certificate_file(), pem.as_bytes());
    let obtained_verb = if certificate.leaf.is_some() { "renewed" } else { "obtained" };
    let validity_text = duration_text(leaf.until.duration_since(SystemTime::now()).unwrap_or_default());
    certificate.replace_leaf(leaf, SystemTime::now());
    certificate.obtained_at = Some(SystemTime::now());
    let directory_host = certificate.settings.directory.host();
    state.handler.certificate_obtained(format!(
        "certificate for {names} {obtained_verb} from {directory_host}: good for {validity_text}"
    ));
    if let Err(error) = write_result {
        let file = certificate.settings.id();
        state.handler.certificate_failed(format!(
            "the certificate for {names} cannot be kept: cannot write {file}: {error}"
        ));
    }
}

fn handle_failure(
    state: &KeeperState,
    certificate: &mut ManagedCertificate,
    reason: String,
    retry_after: Option<Duration>,
) {
    let now = SystemTime::now();
    let pause_text = duration_text(certificate.record_failure(reason.clone(), retry_after, now));
    let current_status = match &certificate.leaf {
        Some(leaf) if leaf.until > now => {
            format!(
                "the one before is good for {}",
                duration_text(leaf.until.duration_since(now).unwrap_or_default())
            )
        }
        Some(_) => "the one before is over".to_owned(),
        None => "there is none".to_owned(),
    };
    let (names, directory_host) = (certificate.settings.names_text(), certificate.settings.directory.host());
    state.handler.certificate_failed(format!(
        "no certificate for {names} from {directory_host}: {reason}; next try in {pause_text}; \
         {current_status}"
    ));
}

/// Formats a duration in its largest fitting unit: `89d`, `6h`, `12m`, `30s`.
fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        172_800.. => format!("{}d", seconds / 86_400),
        7_200.. => format!("{}h", seconds / 3600),
        120.. => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

/// Returns a random number from 0 to 1. The system seeds the standard library's hasher, which is random
/// enough to spread renewals.
fn random_fraction() -> f64 {
    let random_bits = RandomState::new().build_hasher().finish();
    random_bits as f64 / u64::MAX as f64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
