//! Asks monitors: one task per member, each with its own waits, so that one that hangs delays no other. To members that report
//! by themselves it listens (`oob.rs`).
//!
//! The first look at a member comes at a random moment of the first interval, and each wait is varied by a tenth,
//! so that members are not asked in step. A look is one connection, one GET and one answer of at most [`BODY`]
//! bytes, within the timeout as a whole.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use plimsoll_brain::hash;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::answer::Seen;
use crate::expression::names_of;
use crate::facts::Figure;
use crate::watch::PER_SECOND;
use crate::{GroupSettings, Inner, Source, answer, oob};

/// Longest answer, bytes: a large page of metrics.
pub(crate) const BODY: usize = 4 << 20;

/// The looks that are taken.
#[derive(Default)]
pub(crate) struct Pulls(BTreeMap<(Arc<str>, Arc<str>), Running>);

struct Running {
    aim: Arc<Aim>,
    task: JoinHandle<()>,
}

/// Whom to ask, and for what.
#[derive(Debug, PartialEq)]
pub(crate) struct Aim {
    /// Where the member is, with the port that is asked.
    pub(crate) address: SocketAddr,
    /// Who answers in its place, with the port.
    instead: Option<(String, u16)>,
    /// As whoever is asked is called, port included.
    pub(crate) host: String,
    path: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    what: What,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
enum What {
    /// An agent's answer.
    Agent,
    /// Off a page of metrics the names that are wanted.
    Page(Vec<String>),
    /// A stream of load reports (`oob.rs`).
    Reports,
}

/// What a monitor said.
pub(crate) type Answer = Result<Vec<Figure>, String>;

impl Pulls {
    /// Starts and ends tasks so that they are those of the settings. A member that is asked the same way is asked
    /// on without a break.
    pub(crate) fn follow<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a GroupSettings>,
        runtime: &Handle,
        inner: &Weak<Inner>,
    ) {
        let mut wanted = BTreeMap::new();
        for group in groups {
            for (name, aim) in aims(group) {
                wanted.insert((group.name.clone(), name), aim);
            }
        }
        self.0.retain(|key, running| {
            let same = wanted.get(key) == Some(&*running.aim);
            if same {
                wanted.remove(key);
            } else {
                running.task.abort();
            }
            same
        });
        for (key, aim) in wanted {
            let aim = Arc::new(aim);
            let task = match aim.what {
                What::Reports => runtime.spawn(oob::watch(key.clone(), Arc::clone(&aim), inner.clone())),
                What::Agent | What::Page(_) => {
                    runtime.spawn(watch(key.clone(), Arc::clone(&aim), inner.clone()))
                }
            };
            self.0.insert(key, Running { aim, task });
        }
    }
}

impl Drop for Pulls {
    fn drop(&mut self) {
        self.0.values().for_each(|running| running.task.abort());
    }
}

/// Each member of a group with whom to ask for it; none if nobody is asked.
pub(crate) fn aims(group: &GroupSettings) -> Vec<(Arc<str>, Aim)> {
    let monitor = group.monitor.as_ref();
    let Some(monitor) = monitor else { return Vec::new() };
    let what = match monitor.source {
        Source::Push | Source::Passive | Source::Orca => return Vec::new(),
        Source::Pull => What::Agent,
        Source::Prometheus => {
            let read = names_of(group.expressions());
            let counters = read.iter().filter_map(|name| name.strip_suffix(PER_SECOND)).map(str::to_owned);
            let mut wanted: Vec<String> = counters.chain(read.iter().cloned()).collect();
            wanted.sort_unstable();
            wanted.dedup();
            What::Page(wanted)
        }
        Source::OrcaOob => What::Reports,
    };
    let aim = |member: &crate::MemberSettings| {
        let mut address = member.address;
        address.set_port(monitor.target.port.unwrap_or_else(|| address.port()));
        let instead = monitor.target.host.clone().map(|host| (host, address.port()));
        let named = member.name.rsplit_once(':').map_or(&*member.name, |(host, _)| host);
        let named = match &instead {
            Some((host, _)) if host.contains(':') => &format!("[{host}]"),
            Some((host, _)) => host,
            None => named,
        };
        let aim = Aim {
            address,
            host: format!("{named}:{}", address.port()),
            path: monitor.target.path.replace("{member}", &member.name),
            instead,
            interval: monitor.interval,
            timeout: monitor.target.timeout,
            what: what.clone(),
        };
        (member.name.clone(), aim)
    };
    group.members.iter().map(aim).collect()
}

/// Asks for one member for ever.
async fn watch((group, member): (Arc<str>, Arc<str>), aim: Arc<Aim>, inner: Weak<Inner>) {
    sleep(aim.interval.min(FIRST).mul_f64(chance())).await;
    let mut seen = Seen::default();
    loop {
        let begun = Instant::now();
        let outcome = match timeout(aim.timeout, ask(&aim, &mut seen)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {} s", aim.timeout.as_secs_f64())),
        };
        let outcome = outcome.map_err(|why| format!("http://{}{}: {why}", aim.host, aim.path));
        let Some(inner) = inner.upgrade() else { return };
        inner.pulled(&group, &member, outcome);
        drop(inner);
        sleep_until(begun + aim.interval.mul_f64(0.9 + 0.2 * chance())).await;
    }
}

/// Asks once. Takes as long as it takes.
async fn ask(aim: &Aim, seen: &mut Seen) -> Answer {
    let stream = match &aim.instead {
        Some((host, port)) => TcpStream::connect((host.as_str(), *port)).await,
        None => TcpStream::connect(aim.address).await,
    };
    let stream = stream.map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Ends with the look, however that ends.
    let _driver = Ends(tokio::spawn(connection).abort_handle());
    let request = Request::get(&aim.path)
        .header(HOST, &aim.host)
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, if aim.what == What::Agent { "application/json" } else { "text/plain;version=0.0.4" })
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("answered {}", response.status().as_u16()));
    }
    let body = Limited::new(response.into_body(), BODY).collect().await.map_err(|error| error.to_string())?;
    let body = body.to_bytes();
    match &aim.what {
        What::Page(wanted) => answer::page(&body, wanted, seen),
        What::Agent | What::Reports => answer::agent(&body),
    }
}

/// Aborts a task when dropped.
pub(crate) struct Ends(pub(crate) AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first look is not put off for longer.
pub(crate) const FIRST: Duration = Duration::from_secs(1);

/// A number from 0 to 1. The standard library's hasher is seeded anew each time: chance enough for this.
pub(crate) fn chance() -> f64 {
    (hash(&RandomState::new().hash_one(0).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
