//! Keeps certificates: a thread that orders them one after the other, and looks at the clock.

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

/// Between two looks at the clock: it may be set, and the machine may sleep.
const LOOK: Duration = Duration::from_secs(600);
/// Until somebody else who orders is looked at again.
const ELSEWHERE: Duration = Duration::from_secs(15);

/// How a certificate that is kept is.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// What it goes by.
    pub id: String,
    /// The names that are wanted.
    pub domains: Vec<String>,
    /// When it is to be renewed; `None` while it is not there.
    pub renewal: Option<SystemTime>,
    /// Why it could not be obtained or renewed the last time.
    pub failure: Option<String>,
}

/// Keeps certificates until it is dropped.
pub struct Keeper {
    inner: Arc<Inner>,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

struct Inner {
    front: Arc<dyn Front>,
    /// With what the folders had of them.
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
    /// Keeps these. What the folders have of them is shown before this returns.
    ///
    /// # Errors
    /// The system gives no thread.
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

    /// From now on keeps these. What failed is tried again at once.
    ///
    /// # Errors
    /// The system gives no thread; then none is kept.
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
                // Whoever still looks a name up is not waited for.
                runtime.shutdown_background();
            })?;
            *thread = Some((stop, handle));
        }
        Ok(())
    }

    /// How they are, in the order of what they go by.
    pub fn states(&self) -> Vec<State> {
        lock(&self.inner.states).values().cloned().collect()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((stop, thread)) = lock(&self.thread).take() {
            let _ = stop.send(());
            // One that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// What the folder has of a certificate, if that can be used, from now on.
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

/// A certificate that is kept.
struct Kept {
    settings: Settings,
    leaf: Option<Leaf>,
    /// Drawn once for each certificate, 0 to 1: where in a window it is renewed.
    chance: f64,
    /// When it was ordered by this process.
    obtained: Option<SystemTime>,
    renewal: SystemTime,
    /// When to look at what the authority advises.
    look: SystemTime,
    /// In a row.
    failures: u32,
    failure: Option<String>,
    /// After a failure: not before.
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

    /// This is the certificate from now on, whoever ordered it.
    fn take(&mut self, leaf: Leaf, now: SystemTime) {
        self.chance = chance();
        let life = leaf.life();
        // One for too few names is renewed at once, and shown meanwhile.
        self.renewal = if leaf.covers(&self.settings.domains) { life.renewal(self.chance) } else { now };
        self.look = now;
        self.obtained = None;
        self.leaf = Some(leaf);
        (self.failures, self.failure, self.again) = (0, None, None);
    }

    /// When something is to be done.
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
                // Somebody may have mended what failed.
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

/// Brings what is kept to what is wanted.
fn adopt(inner: &Inner, all: &mut Vec<Kept>, now: SystemTime) {
    let wanted = lock(&inner.wanted).clone();
    all.retain(|kept| wanted.iter().any(|(settings, _)| *settings == kept.settings));
    for (settings, leaf) in wanted {
        if all.iter().all(|kept| kept.settings != settings) {
            all.push(Kept::new(settings, leaf, now));
        }
    }
}

/// Does what is due of one.
async fn work(inner: &Inner, kept: &mut Kept) {
    let now = SystemTime::now();
    let settings = kept.settings.clone();
    let cache = Cache::new(&settings.cache);
    // Only one orders, though several may share the folder.
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
        // It was only to be asked for advice.
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
        // One that does not say whose it is nobody gives advice of.
        look_later(kept, None, now);
    }
    if kept.leaf.is_some() && kept.renewal > now {
        return;
    }
    let replaces = before.filter(|_| heeds);
    let mut outcome = order(&settings, &account, &*inner.front, replaces.clone()).await;
    // What the library has given up after three nonces in a row was neither party's fault.
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

/// Has somebody put a certificate there that lives longer than ours?
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
    // Only what can be used takes the place of the one before.
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

/// `89d`, `6h`, `12m`, `30s`
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        172_800.. => format!("{}d", seconds / 86_400),
        7_200.. => format!("{}h", seconds / 3600),
        120.. => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

/// From 0 to 1. The standard library's hasher is seeded by the system: chance enough to keep certificates apart.
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    drawn as f64 / u64::MAX as f64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
