//! Polls monitors: one task per member with its own timer, so one that hangs delays no other. Members that
//! report on a stream are handled by `oob.rs`.
//!
//! Members are not polled in step: the first poll is at a random moment of the first interval, and each pause
//! has a jitter of a tenth. A poll is one connection, one GET and one response of at most [`BODY`] bytes,
//! within the timeout as a whole.

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

/// The maximum length of a response, in bytes: a large page of metrics.
pub(crate) const BODY: usize = 4 << 20;

/// The running poll tasks.
#[derive(Default)]
pub(crate) struct Pulls(BTreeMap<(Arc<str>, Arc<str>), Running>);

struct Running {
    aim: Arc<Aim>,
    task: JoinHandle<()>,
}

/// The target of a poll.
#[derive(Debug, PartialEq)]
pub(crate) struct Aim {
    /// The member's address with the polled port.
    pub(crate) address: SocketAddr,
    /// The host that responds for the member, with the port.
    instead: Option<(String, u16)>,
    /// The value of the Host field, with the port.
    pub(crate) host: String,
    path: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    what: What,
}

/// The kind of response.
#[derive(Clone, Debug, PartialEq)]
enum What {
    /// An agent's response.
    Agent,
    /// A page of metrics, and the wanted names.
    Page(Vec<String>),
    /// A stream of load reports (`oob.rs`).
    Reports,
}

/// The result of a poll.
pub(crate) type Answer = Result<Vec<Figure>, String>;

impl Pulls {
    /// Starts and ends tasks to match the settings. A member with an unchanged target is polled without
    /// interruption.
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

/// Returns each member of a group with its target; none if there is nothing to poll.
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

/// Polls the monitor of one member forever.
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

/// Polls once, without a time limit.
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
    // Ends with the poll, on success and on failure.
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

/// The maximum delay of the first poll.
pub(crate) const FIRST: Duration = Duration::from_secs(1);

/// Returns a number from 0 to 1. The standard library's hasher has a new seed each time, which is random
/// enough here.
pub(crate) fn chance() -> f64 {
    (hash(&RandomState::new().hash_one(0).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
