//! Keeps certificates valid: one thread that orders them one after the other and checks when each is due.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, oneshot};

use crate::account::{self, is_stale, is_unknown};
use crate::client::Told;
use crate::leaf::Leaf;
use crate::order::{Failure, order};
use crate::schedule::{look_again, pause};
use crate::{Cache, Front, Settings};

/// The longest sleep between two checks: the clock may be set, and the machine may be suspended.
const LOOK: Duration = Duration::from_secs(600);
/// The delay before the folder's lock is tried again when another process holds it.
const ELSEWHERE: Duration = Duration::from_secs(15);

/// The state of a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The certificate's identifier, [`Settings::id`].
    pub id: String,
    /// The names that the certificate is wanted for.
    pub domains: Vec<String>,
    /// The time of the next renewal; `None` if there is no certificate yet.
    pub renewal: Option<SystemTime>,
    /// The reason why the last attempt to obtain or renew it failed.
    pub failure: Option<String>,
}

/// Keeps certificates valid until it is dropped.
pub struct Keeper {
    inner: Arc<Inner>,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

struct Inner {
    front: Arc<dyn Front>,
    /// The wanted certificates, each with the one that its folder held.
    wanted: Mutex<Vec<(Settings, Option<Leaf>)>>,
    changed: Notify,
    states: Mutex<BTreeMap<String, State>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts to keep the certificates in `wanted`. Passes those that are in the folders to the [`Front`]
    /// before it returns.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(wanted: Vec<Settings>, front: Arc<dyn Front>) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            front,
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
    pub fn update(&self, wanted: Vec<Settings>) -> io::Result<()> {
        let any = !wanted.is_empty();
        let before = lock(&self.inner.wanted).clone();
        let now = SystemTime::now();
        let found = |settings: Settings| match before.iter().find(|(other, _)| *other == settings) {
            Some(known) => known.clone(),
            None => {
                let leaf = self.inner.show_kept(&settings);
                self.inner.note(&Kept::new(settings.clone(), leaf.clone(), now));
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
                        () = keep(&inner) => {}
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
    pub fn states(&self) -> Vec<State> {
        lock(&self.inner.states).values().cloned().collect()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((stop, thread)) = lock(&self.thread).take() {
            let _ = stop.send(());
            // The panic message of the thread is already on stderr.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Loads a certificate from the folder and passes it to the front; `None` if it is missing or unusable.
    fn show_kept(&self, settings: &Settings) -> Option<Leaf> {
        let pem = match Cache::new(&settings.cache).read(&settings.file()) {
            Ok(pem) => pem?,
            Err(error) => {
                self.front.failed(format!("cannot read the certificate {}: {error}", settings.id()));
                return None;
            }
        };
        let shown = match Leaf::first(&pem) {
            Some(leaf) => self.front.show(&settings.id(), &pem).map(|()| leaf),
            None => Err("no certificate is in it".to_owned()),
        };
        shown
            .map_err(|why| self.front.failed(format!("cannot use the certificate {}: {why}", settings.id())))
            .ok()
    }

    fn note(&self, kept: &Kept) {
        let state = State {
            id: kept.settings.id(),
            domains: kept.settings.domains.clone(),
            renewal: kept.leaf.as_ref().map(|_| kept.renewal),
            failure: kept.failure.clone(),
        };
        lock(&self.states).insert(state.id.clone(), state);
    }
}

/// A certificate and its schedule.
struct Kept {
    settings: Settings,
    leaf: Option<Leaf>,
    /// A random number from 0 to 1, drawn once per certificate: the point in the renewal window.
    chance: f64,
    /// The time at which this process obtained the certificate.
    obtained: Option<SystemTime>,
    renewal: SystemTime,
    /// The time of the next request for renewal information (ARI).
    look: SystemTime,
    /// The number of failed attempts in a row.
    failures: u32,
    failure: Option<String>,
    /// The time before which nothing is retried after a failure.
    again: Option<SystemTime>,
}

impl Kept {
    fn new(settings: Settings, leaf: Option<Leaf>, now: SystemTime) -> Self {
        let mut kept = Self {
            settings,
            leaf: None,
            chance: 0.0,
            obtained: None,
            renewal: now,
            look: now,
            failures: 0,
            failure: None,
            again: None,
        };
        if let Some(leaf) = leaf {
            kept.take(leaf, now);
        }
        kept
    }

    /// Adopts a new certificate, ordered by this or by another process.
    fn take(&mut self, leaf: Leaf, now: SystemTime) {
        self.chance = chance();
        let life = leaf.life();
        // A certificate that lacks wanted names is used, and renewed at once.
        self.renewal = if leaf.covers(&self.settings.domains) { life.renewal(self.chance) } else { now };
        self.look = now;
        self.obtained = None;
        self.leaf = Some(leaf);
        (self.failures, self.failure, self.again) = (0, None, None);
    }

    /// Returns the time at which `work` has something to do.
    fn due(&self) -> SystemTime {
        match self.again {
            Some(again) => again,
            None if self.leaf.is_none() => self.renewal,
            None => self.renewal.min(self.look),
        }
    }

    fn fail(&mut self, why: String, told: Option<Duration>, now: SystemTime) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(why);
        let life = self.leaf.as_ref().map(Leaf::life);
        let pause = pause(self.failures, told, life, chance());
        self.again = Some(now + pause);
        pause
    }
}

async fn keep(inner: &Inner) {
    let mut all: Vec<Kept> = Vec::new();
    loop {
        let now = SystemTime::now();
        adopt(inner, &mut all, now);
        let next = all.iter().map(Kept::due).min();
        let wait = next.map_or(LOOK, |due| due.duration_since(now).unwrap_or_default().min(LOOK));
        tokio::select! {
            biased;
            () = inner.changed.notified() => {
                // The operator may have fixed the cause: make the failed attempts due at once.
                all.iter_mut().for_each(|kept| kept.again = kept.again.map(|_| SystemTime::UNIX_EPOCH));
                continue;
            }
            () = tokio::time::sleep(wait) => {}
        }
        for kept in &mut all {
            if kept.due() <= SystemTime::now() {
                work(inner, kept).await;
                inner.note(kept);
            }
        }
    }
}

/// Removes the certificates that are no longer wanted and adds the new ones.
fn adopt(inner: &Inner, all: &mut Vec<Kept>, now: SystemTime) {
    let wanted = lock(&inner.wanted).clone();
    all.retain(|kept| wanted.iter().any(|(settings, _)| *settings == kept.settings));
    for (settings, leaf) in wanted {
        if all.iter().all(|kept| kept.settings != settings) {
            all.push(Kept::new(settings, leaf, now));
        }
    }
}

/// Performs the due work of one certificate: loads a newer one, asks for renewal information, renews it.
async fn work(inner: &Inner, kept: &mut Kept) {
    let now = SystemTime::now();
    let settings = kept.settings.clone();
    let cache = Cache::new(&settings.cache);
    // Of the processes that share the folder only one may order.
    let _lock = match cache.lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            kept.again = Some(now + ELSEWHERE);
            return;
        }
        Err(error) => {
            let why = format!("cannot write to {}: {error}", settings.cache.display());
            return failed(inner, kept, why, None);
        }
    };
    kept.again = None;
    if newer(kept, &cache)
        && let Some(leaf) = inner.show_kept(&settings)
    {
        kept.take(leaf, now);
        tracing::info!("certificate for {}: another process has renewed it", settings.names());
        return;
    }
    let (account, told) = match account::open(&settings, &cache).await {
        Ok(opened) => opened,
        Err((told, why)) if kept.leaf.is_none() || kept.renewal <= now => {
            return failed(inner, kept, why, said(&told));
        }
        // The account was needed for renewal information only.
        Err(_) => return look_later(kept, None, now),
    };
    let before = kept.leaf.as_ref().and_then(Leaf::identifier);
    let mut heeds = false;
    if let (Some(leaf), Some(before)) = (&kept.leaf, &before) {
        match account.renewal_info(before).await {
            Ok((advice, again)) => {
                heeds = true;
                let window = (advice.suggested_window.start, advice.suggested_window.end);
                let window = (SystemTime::from(window.0), SystemTime::from(window.1));
                let life = leaf.life();
                if leaf.covers(&settings.domains) {
                    let soonest = kept.obtained.map_or(now, |obtained| life.soonest(obtained));
                    kept.renewal = life.advised(window, kept.chance).max(soonest);
                }
                look_later(kept, Some(again), now);
            }
            Err(_) => look_later(kept, None, now),
        }
    } else {
        // Without an identifier, no renewal information can be requested for the certificate.
        look_later(kept, None, now);
    }
    if kept.leaf.is_some() && kept.renewal > now {
        return;
    }
    let replaces = before.filter(|_| heeds);
    let mut outcome = order(&settings, &account, &*inner.front, replaces.clone()).await;
    // The library gives up after three rejected nonces in a row, which is neither party's fault: try once
    // more.
    if matches!(&outcome, Err(Failure::Acme(error)) if is_stale(error)) {
        outcome = order(&settings, &account, &*inner.front, replaces).await;
    }
    if matches!(&outcome, Err(Failure::Acme(error)) if is_unknown(error)) {
        account::forget(&settings, &cache);
        match account::open(&settings, &cache).await {
            Ok((account, _)) => outcome = order(&settings, &account, &*inner.front, None).await,
            Err((told, why)) => return failed(inner, kept, why, said(&told)),
        }
    }
    match outcome {
        Ok(pem) => obtained(inner, kept, &cache, &pem),
        Err(failure) => failed(inner, kept, failure.explain(), said(&told)),
    }
}

/// Returns `true` if another process has stored a certificate that is valid for longer and covers all names.
fn newer(kept: &Kept, cache: &Cache) -> bool {
    let there = cache.read(&kept.settings.file()).ok().flatten().and_then(|pem| Leaf::first(&pem));
    let until = kept.leaf.as_ref().map(|leaf| leaf.until);
    there.is_some_and(|there| Some(there.until) > until && there.covers(&kept.settings.domains))
}

fn look_later(kept: &mut Kept, told: Option<Duration>, now: SystemTime) {
    if let Some(leaf) = &kept.leaf {
        kept.look = now + look_again(told, leaf.life());
    }
}

fn said(told: &Told) -> Option<Duration> {
    *told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn obtained(inner: &Inner, kept: &mut Kept, cache: &Cache, pem: &str) {
    let names = kept.settings.names();
    let Some(leaf) = Leaf::first(pem.as_bytes()) else {
        return failed(inner, kept, "the authority gave no certificate".to_owned(), None);
    };
    if let Err(why) = inner.front.show(&kept.settings.id(), pem.as_bytes()) {
        return failed(inner, kept, format!("what the authority gave cannot be used: {why}"), None);
    }
    // The file is replaced only after the front has accepted the new certificate.
    let written = cache.write(&kept.settings.file(), pem.as_bytes());
    let renewed = if kept.leaf.is_some() { "renewed" } else { "obtained" };
    let lives = span(leaf.until.duration_since(SystemTime::now()).unwrap_or_default());
    kept.take(leaf, SystemTime::now());
    kept.obtained = Some(SystemTime::now());
    let of = kept.settings.directory.host();
    inner.front.obtained(format!("certificate for {names} {renewed} from {of}: good for {lives}"));
    if let Err(error) = written {
        let file = kept.settings.id();
        inner
            .front
            .failed(format!("the certificate for {names} cannot be kept: cannot write {file}: {error}"));
    }
}

fn failed(inner: &Inner, kept: &mut Kept, why: String, told: Option<Duration>) {
    let now = SystemTime::now();
    let pause = span(kept.fail(why.clone(), told, now));
    let meanwhile = match &kept.leaf {
        Some(leaf) if leaf.until > now => {
            format!("the one before is good for {}", span(leaf.until.duration_since(now).unwrap_or_default()))
        }
        Some(_) => "the one before is over".to_owned(),
        None => "there is none".to_owned(),
    };
    let (names, of) = (kept.settings.names(), kept.settings.directory.host());
    inner
        .front
        .failed(format!("no certificate for {names} from {of}: {why}; next try in {pause}; {meanwhile}"));
}

/// Formats a duration in its largest fitting unit: `89d`, `6h`, `12m`, `30s`.
fn span(span: Duration) -> String {
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
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    drawn as f64 / u64::MAX as f64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
