//! Polls monitors: one task per member with its own timer, so one that hangs delays no other. Members that
//! report on a stream are handled by `orca_stream.rs`.
//!
//! Members are not polled in step: the first poll is at a random moment of the first interval, and each pause
//! has a jitter of a tenth. A poll is one connection, one GET and one response of at most [`MAX_BODY`] bytes,
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

use crate::expression::names_of;
use crate::load_tracker::PER_SECOND;
use crate::observations::MetricSample;
use crate::scrape_parser::CounterHistory;
use crate::{GroupSettings, MetricSource, ObserverShared, orca_stream, scrape_parser};

/// The maximum length of a response, in bytes: a large page of metrics.
pub(crate) const MAX_BODY: usize = 4 << 20;

/// The running poll tasks.
#[derive(Default)]
pub(crate) struct ScrapeTasks(BTreeMap<(Arc<str>, Arc<str>), RunningScrape>);

struct RunningScrape {
    target: Arc<ScrapeTarget>,
    task: JoinHandle<()>,
}

/// The target of a poll.
#[derive(Debug, PartialEq)]
pub(crate) struct ScrapeTarget {
    /// The member's address with the polled port.
    pub(crate) address: SocketAddr,
    /// The host that responds for the member, with the port.
    responder: Option<(String, u16)>,
    /// The value of the Host field, with the port.
    pub(crate) host: String,
    path: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    format: ScrapeFormat,
}

/// The kind of response.
#[derive(Clone, Debug, PartialEq)]
enum ScrapeFormat {
    /// An agent's response.
    AgentJson,
    /// A page of metrics, and the wanted names.
    MetricsPage(Vec<String>),
    /// A stream of load reports (`orca_stream.rs`).
    OrcaStream,
}

/// The result of a poll.
pub(crate) type ScrapeResult = Result<Vec<MetricSample>, String>;

impl ScrapeTasks {
    /// Starts and ends tasks to match the settings. A member with an unchanged target is polled without
    /// interruption.
    pub(crate) fn sync<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a GroupSettings>,
        runtime: &Handle,
        inner: &Weak<ObserverShared>,
    ) {
        let mut targets = BTreeMap::new();
        for group in groups {
            for (name, target) in scrape_targets(group) {
                targets.insert((group.name.clone(), name), target);
            }
        }
        self.0.retain(|key, running| {
            let is_unchanged = targets.get(key) == Some(&*running.target);
            if is_unchanged {
                targets.remove(key);
            } else {
                running.task.abort();
            }
            is_unchanged
        });
        for (key, target) in targets {
            let target = Arc::new(target);
            let task = match target.format {
                ScrapeFormat::OrcaStream => {
                    runtime.spawn(orca_stream::watch(key.clone(), Arc::clone(&target), inner.clone()))
                }
                ScrapeFormat::AgentJson | ScrapeFormat::MetricsPage(_) => {
                    runtime.spawn(poll_monitor(key.clone(), Arc::clone(&target), inner.clone()))
                }
            };
            self.0.insert(key, RunningScrape { target, task });
        }
    }
}

impl Drop for ScrapeTasks {
    fn drop(&mut self) {
        self.0.values().for_each(|running| running.task.abort());
    }
}

/// Returns each member of a group with its target; none if there is nothing to poll.
pub(crate) fn scrape_targets(group: &GroupSettings) -> Vec<(Arc<str>, ScrapeTarget)> {
    let monitor = group.monitor.as_ref();
    let Some(monitor) = monitor else { return Vec::new() };
    let format = match monitor.source {
        MetricSource::Push | MetricSource::Passive | MetricSource::Orca => return Vec::new(),
        MetricSource::Pull => ScrapeFormat::AgentJson,
        MetricSource::Prometheus => {
            let names = names_of(group.expressions());
            let counters = names.iter().filter_map(|name| name.strip_suffix(PER_SECOND)).map(str::to_owned);
            let mut metric_names: Vec<String> = counters.chain(names.iter().cloned()).collect();
            metric_names.sort_unstable();
            metric_names.dedup();
            ScrapeFormat::MetricsPage(metric_names)
        }
        MetricSource::OrcaOob => ScrapeFormat::OrcaStream,
    };
    let target_of = |member: &crate::MemberSettings| {
        let mut address = member.address;
        address.set_port(monitor.target.port.unwrap_or_else(|| address.port()));
        let responder = monitor.target.host.clone().map(|host| (host, address.port()));
        let host_name = member.name.rsplit_once(':').map_or(&*member.name, |(host, _)| host);
        let host_name = match &responder {
            Some((host, _)) if host.contains(':') => &format!("[{host}]"),
            Some((host, _)) => host,
            None => host_name,
        };
        let target = ScrapeTarget {
            address,
            host: format!("{host_name}:{}", address.port()),
            path: monitor.target.path.replace("{member}", &member.name),
            responder,
            interval: monitor.interval,
            timeout: monitor.target.timeout,
            format: format.clone(),
        };
        (member.name.clone(), target)
    };
    group.members.iter().map(target_of).collect()
}

/// Polls the monitor of one member forever.
async fn poll_monitor(
    (group, member): (Arc<str>, Arc<str>),
    target: Arc<ScrapeTarget>,
    inner: Weak<ObserverShared>,
) {
    sleep(target.interval.min(MAX_FIRST_DELAY).mul_f64(random_unit())).await;
    let mut history = CounterHistory::default();
    loop {
        let started_at = Instant::now();
        let outcome = match timeout(target.timeout, scrape_once(&target, &mut history)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {} s", target.timeout.as_secs_f64())),
        };
        let outcome = outcome.map_err(|error| format!("http://{}{}: {error}", target.host, target.path));
        let Some(inner) = inner.upgrade() else { return };
        inner.record_scrape(&group, &member, outcome);
        drop(inner);
        sleep_until(started_at + target.interval.mul_f64(0.9 + 0.2 * random_unit())).await;
    }
}

/// Polls once, without a time limit.
async fn scrape_once(target: &ScrapeTarget, history: &mut CounterHistory) -> ScrapeResult {
    let stream = match &target.responder {
        Some((host, port)) => TcpStream::connect((host.as_str(), *port)).await,
        None => TcpStream::connect(target.address).await,
    };
    let stream = stream.map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Ends with the poll, on success and on failure.
    let _driver = AbortOnDrop(tokio::spawn(connection).abort_handle());
    let request = Request::get(&target.path)
        .header(HOST, &target.host)
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .header(
            ACCEPT,
            if target.format == ScrapeFormat::AgentJson {
                "application/json"
            } else {
                "text/plain;version=0.0.4"
            },
        )
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("answered {}", response.status().as_u16()));
    }
    let body =
        Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(|error| error.to_string())?;
    let body = body.to_bytes();
    match &target.format {
        ScrapeFormat::MetricsPage(metric_names) => {
            scrape_parser::parse_metrics_page(&body, metric_names, history)
        }
        ScrapeFormat::AgentJson | ScrapeFormat::OrcaStream => scrape_parser::parse_agent(&body),
    }
}

/// Aborts a task when dropped.
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The maximum delay of the first poll.
pub(crate) const MAX_FIRST_DELAY: Duration = Duration::from_secs(1);

/// Returns a number from 0 to 1. The standard library's hasher has a new seed each time, which is random
/// enough here.
pub(crate) fn random_unit() -> f64 {
    (hash(&RandomState::new().hash_one(0).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
