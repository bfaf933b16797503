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
    wanted: Mutex<Vec<(CertificateSettings, Option<LeafCertificate>)>>,
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
    pub fn start(wanted: Vec<CertificateSettings>, front: Arc<dyn AcmeHandler>) -> io::Result<Self> {
        let inner = Arc::new(KeeperState {
            handler: front,
            wanted: Mutex::default(),
            changed: Notify::new(),
            states: Mutex::default(),
        });
        let keeper = Self { inner, thread: Mutex::default() };
        keeper.update(wanted)?;
        Ok(keeper)
    }

    /// Replaces the set of certificates. Retries at once those whose last attempt failed.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started; no certificate is renewed then.
    pub fn update(&self, wanted: Vec<CertificateSettings>) -> io::Result<()> {
        let any = !wanted.is_empty();
        let before = lock(&self.inner.wanted).clone();
        let now = SystemTime::now();
        let found = |settings: CertificateSettings| match before.iter().find(|(other, _)| *other == settings)
        {
            Some(known) => known.clone(),
            None => {
                let leaf = self.inner.install_stored(&settings);
                self.inner.publish_state(&ManagedCertificate::new(settings.clone(), leaf.clone(), now));
                (settings, leaf)
            }
        };
        let wanted: Vec<_> = wanted.into_iter().map(found).collect();
        lock(&self.inner.states).retain(|id, _| wanted.iter().any(|(settings, _)| settings.id() == *id));
        *lock(&self.inner.wanted) = wanted;
        self.inner.changed.notify_one();
        let mut thread = lock(&self.thread);
        if any && thread.is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (stop, stopped) = oneshot::channel();
            let inner = Arc::clone(&self.inner);
            let handle = std::thread::Builder::new().name("acme".into()).spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = run(&inner) => {}
                        _ = stopped => {}
                    }
                });
                // Do not wait for DNS lookups that are still running.
                runtime.shutdown_background();
            })?;
            *thread = Some((stop, handle));
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
        if let Some((stop, thread)) = lock(&self.thread).take() {
            let _ = stop.send(());
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
        let shown = match LeafCertificate::first_in_pem(&pem) {
            Some(leaf) => self.handler.install(&settings.id(), &pem).map(|()| leaf),
            None => Err("no certificate is in it".to_owned()),
        };
        shown
            .map_err(|why| {
                self.handler
                    .certificate_failed(format!("cannot use the certificate {}: {why}", settings.id()))
            })
            .ok()
    }

    fn publish_state(&self, kept: &ManagedCertificate) {
        let state = CertificateState {
            id: kept.settings.id(),
            domains: kept.settings.domains.clone(),
            renewal: kept.leaf.as_ref().map(|_| kept.renewal),
            failure: kept.failure.clone(),
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
        let mut kept = Self {
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
            kept.replace_leaf(leaf, now);
        }
        kept
    }

    /// Adopts a new certificate, ordered by this or by another process.
    fn replace_leaf(&mut self, leaf: LeafCertificate, now: SystemTime) {
        self.window_point = random_fraction();
        let life = leaf.validity();
        // A certificate that lacks wanted names is used, and renewed at once.
        self.renewal =
            if leaf.covers(&self.settings.domains) { life.renewal(self.window_point) } else { now };
        self.next_ari_check = now;
        self.obtained_at = None;
        self.leaf = Some(leaf);
        (self.failures, self.failure, self.retry_at) = (0, None, None);
    }

    /// Returns the time at which `process_due` has something to do.
    fn next_due(&self) -> SystemTime {
        match self.retry_at {
            Some(again) => again,
            None if self.leaf.is_none() => self.renewal,
            None => self.renewal.min(self.next_ari_check),
        }
    }

    fn record_failure(&mut self, why: String, told: Option<Duration>, now: SystemTime) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(why);
        let life = self.leaf.as_ref().map(LeafCertificate::validity);
        let pause = retry_delay(self.failures, told, life, random_fraction());
        self.retry_at = Some(now + pause);
        pause
    }
}

async fn run(inner: &KeeperState) {
    let mut all: Vec<ManagedCertificate> = Vec::new();
    loop {
        let now = SystemTime::now();
        update_certificates(inner, &mut all, now);
        let next = all.iter().map(ManagedCertificate::next_due).min();
        let wait = next.map_or(MAX_SLEEP, |due| due.duration_since(now).unwrap_or_default().min(MAX_SLEEP));
        tokio::select! {
            biased;
            () = inner.changed.notified() => {
                // The operator may have fixed the cause: make the failed attempts due at once.
                all.iter_mut().for_each(|kept| kept.retry_at = kept.retry_at.map(|_| SystemTime::UNIX_EPOCH));
                continue;
            }
            () = tokio::time::sleep(wait) => {}
        }
        for kept in &mut all {
            if kept.next_due() <= SystemTime::now() {
                process_due(inner, kept).await;
                inner.publish_state(kept);
            }
        }
    }
}

/// Removes the certificates that are no longer wanted and adds the new ones.
fn update_certificates(inner: &KeeperState, all: &mut Vec<ManagedCertificate>, now: SystemTime) {
    let wanted = lock(&inner.wanted).clone();
    all.retain(|kept| wanted.iter().any(|(settings, _)| *settings == kept.settings));
    for (settings, leaf) in wanted {
        if all.iter().all(|kept| kept.settings != settings) {
            all.push(ManagedCertificate::new(settings, leaf, now));
        }
    }
}

/// Performs the due work of one certificate: loads a newer one, asks for renewal information, renews it.
async fn process_due(inner: &KeeperState, kept: &mut ManagedCertificate) {
    let now = SystemTime::now();
    let settings = kept.settings.clone();
    let cache = CertificateCache::new(&settings.cache);
    // Of the processes that share the folder only one may order.
    let _lock = match cache.lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            kept.retry_at = Some(now + LOCK_RETRY_DELAY);
            return;
        }
        Err(error) => {
            let why = format!("cannot write to {}: {error}", settings.cache.display());
            return handle_failure(inner, kept, why, None);
        }
    };
    kept.retry_at = None;
    if has_newer(kept, &cache)
        && let Some(leaf) = inner.install_stored(&settings)
    {
        kept.replace_leaf(leaf, now);
        tracing::info!("certificate for {}: another process has renewed it", settings.names_text());
        return;
    }
    let (account, told) = match account::open(&settings, &cache).await {
        Ok(opened) => opened,
        Err((told, why)) if kept.leaf.is_none() || kept.renewal <= now => {
            return handle_failure(inner, kept, why, take_retry_after(&told));
        }
        // The account was needed for renewal information only.
        Err(_) => return schedule_ari_check(kept, None, now),
    };
    let before = kept.leaf.as_ref().and_then(LeafCertificate::identifier);
    let mut heeds = false;
    if let (Some(leaf), Some(before)) = (&kept.leaf, &before) {
        match account.renewal_info(before).await {
            Ok((advice, again)) => {
                heeds = true;
                let window = (advice.suggested_window.start, advice.suggested_window.end);
                let window = (SystemTime::from(window.0), SystemTime::from(window.1));
                let life = leaf.validity();
                if leaf.covers(&settings.domains) {
                    let soonest = kept.obtained_at.map_or(now, |obtained| life.earliest_renewal(obtained));
                    kept.renewal = life.renewal_in_window(window, kept.window_point).max(soonest);
                }
                schedule_ari_check(kept, Some(again), now);
            }
            Err(_) => schedule_ari_check(kept, None, now),
        }
    } else {
        // Without an identifier, no renewal information can be requested for the certificate.
        schedule_ari_check(kept, None, now);
    }
    if kept.leaf.is_some() && kept.renewal > now {
        return;
    }
    let replaces = before.filter(|_| heeds);
    let mut outcome = order(&settings, &account, &*inner.handler, replaces.clone()).await;
    // The library gives up after three rejected nonces in a row, which is neither party's fault: try once
    // more.
    if matches!(&outcome, Err(OrderFailure::Acme(error)) if is_stale(error)) {
        outcome = order(&settings, &account, &*inner.handler, replaces).await;
    }
    if matches!(&outcome, Err(OrderFailure::Acme(error)) if is_unknown(error)) {
        account::remove_account(&settings, &cache);
        match account::open(&settings, &cache).await {
            Ok((account, _)) => outcome = order(&settings, &account, &*inner.handler, None).await,
            Err((told, why)) => return handle_failure(inner, kept, why, take_retry_after(&told)),
        }
    }
    match outcome {
        Ok(pem) => handle_obtained(inner, kept, &cache, &pem),
        Err(failure) => handle_failure(inner, kept, failure.explain(), take_retry_after(&told)),
    }
}

/// Returns `true` if another process has stored a certificate that is valid for longer and covers all names.
fn has_newer(kept: &ManagedCertificate, cache: &CertificateCache) -> bool {
    let there = cache
        .read(&kept.settings.certificate_file())
        .ok()
        .flatten()
        .and_then(|pem| LeafCertificate::first_in_pem(&pem));
    let until = kept.leaf.as_ref().map(|leaf| leaf.until);
    there.is_some_and(|there| Some(there.until) > until && there.covers(&kept.settings.domains))
}

fn schedule_ari_check(kept: &mut ManagedCertificate, told: Option<Duration>, now: SystemTime) {
    if let Some(leaf) = &kept.leaf {
        kept.next_ari_check = now + ari_interval(told, leaf.validity());
    }
}

fn take_retry_after(told: &RetryAfter) -> Option<Duration> {
    *told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle_obtained(inner: &KeeperState, kept: &mut ManagedCertificate, cache: &CertificateCache, pem: &str) {
    let names = kept.settings.names_text();
    let Some(leaf) = LeafCertificate::first_in_pem(pem.as_bytes()) else {
        return handle_failure(inner, kept, "the authority gave no certificate".to_owned(), None);
    };
    if let Err(why) = inner.handler.install(&kept.settings.id(), pem.as_bytes()) {
        return handle_failure(inner, kept, format!("what the authority gave cannot be used: {why}"), None);
    }
    // The file is replaced only after the handler has accepted the new certificate.
    let written = cache.write(&kept.settings.certificate_file(), pem.as_bytes());
    let renewed = if kept.leaf.is_some() { "renewed" } else { "obtained" };
    let lives = duration_text(leaf.until.duration_since(SystemTime::now()).unwrap_or_default());
    kept.replace_leaf(leaf, SystemTime::now());
    kept.obtained_at = Some(SystemTime::now());
    let of = kept.settings.directory.host();
    inner
        .handler
        .certificate_obtained(format!("certificate for {names} {renewed} from {of}: good for {lives}"));
    if let Err(error) = written {
        let file = kept.settings.id();
        inner.handler.certificate_failed(format!(
            "the certificate for {names} cannot be kept: cannot write {file}: {error}"
        ));
    }
}

fn handle_failure(inner: &KeeperState, kept: &mut ManagedCertificate, why: String, told: Option<Duration>) {
    let now = SystemTime::now();
    let pause = duration_text(kept.record_failure(why.clone(), told, now));
    let meanwhile = match &kept.leaf {
        Some(leaf) if leaf.until > now => {
            format!(
                "the one before is good for {}",
                duration_text(leaf.until.duration_since(now).unwrap_or_default())
            )
        }
        Some(_) => "the one before is over".to_owned(),
        None => "there is none".to_owned(),
    };
    let (names, of) = (kept.settings.names_text(), kept.settings.directory.host());
    inner.handler.certificate_failed(format!(
        "no certificate for {names} from {of}: {why}; next try in {pause}; {meanwhile}"
    ));
}

/// Formats a duration in its largest fitting unit: `89d`, `6h`, `12m`, `30s`.
fn duration_text(span: Duration) -> String {
    let seconds = span.as_secs();
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
    let drawn = RandomState::new().build_hasher().finish();
    drawn as f64 / u64::MAX as f64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
