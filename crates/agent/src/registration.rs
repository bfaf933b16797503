//! Registers a server as a member of a group with each balancer while the agent runs.
//!
//! The agent repeats the registration three times per time to live: a member that dies expires. On shutdown
//! the member is drained first. It gets no new work, and leaves when its work at all balancers has ended or
//! after a timeout.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http_client::{HttpClient, HttpFailure, ServerUrl};
use crate::jitter::JitterSource;
use crate::push::refusal_text;

/// The delay after the first failure; doubled each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The interval of polls while work ends.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The least time allowed for the deregistration at a balancer.
const MIN_LEAVE_TIME: Duration = Duration::from_secs(2);
/// The largest response body in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// The parameters of a registration.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// The group to join.
    pub group: String,
    /// The capacity relative to other members.
    pub capacity: f64,
    /// The largest number of requests, connections or flows at once; the group's limit if `None`.
    pub max_connections: Option<u32>,
    /// The time to live: balancers remove a member that is not registered again within it; 2 s to an hour.
    pub ttl: Duration,
    /// The longest time to wait for work to end when the server leaves.
    pub drain: Duration,
}

/// Registers members until they leave. It is cheap to clone.
#[derive(Clone)]
pub struct Registrar(Arc<RegistrarState>);

struct RegistrarState {
    registration: Registration,
    /// Each member at each balancer.
    targets: Vec<RegistrationTarget>,
    leaving: watch::Sender<bool>,
}

#[derive(Clone)]
struct RegistrationTarget {
    member: String,
    balancer: ServerUrl,
    url: ServerUrl,
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar").field("registration", &self.0.registration).finish_non_exhaustive()
    }
}

impl Registrar {
    pub(crate) fn new(registration: Registration, members: &[String], balancers: &[ServerUrl]) -> Self {
        let group = &registration.group;
        let target = |member: &String, balancer: &ServerUrl| RegistrationTarget {
            member: member.clone(),
            balancer: balancer.clone(),
            url: balancer.with_path(&format!("/v1/groups/{group}/members/{member}")),
        };
        let member_targets = |member| balancers.iter().map(move |balancer| target(member, balancer));
        let targets = members.iter().flat_map(member_targets).collect();
        Self(Arc::new(RegistrarState { registration, targets, leaving: watch::Sender::new(false) }))
    }

    /// Renews the registrations until the members leave.
    pub(crate) async fn run(self) {
        let mut tasks = JoinSet::new();
        for target in self.0.targets.iter().cloned() {
            tasks.spawn(renew(Arc::clone(&self.0), target));
        }
        tasks.join_all().await;
    }

    /// Drains the members, waits for their work to end within the drain timeout, and deregisters them. Does
    /// not wait for balancers that do not answer: their registrations expire.
    pub async fn leave(&self) {
        if self.0.leaving.send_replace(true) {
            return;
        }
        let deadline = Instant::now() + self.0.registration.drain;
        let mut tasks = JoinSet::new();
        for target in self.0.targets.iter().cloned() {
            tasks.spawn(drain(Arc::clone(&self.0), target, deadline));
        }
        tasks.join_all().await;
        // Balancers may share one store, so deregister only after the work at all of them has ended.
        let mut tasks = JoinSet::new();
        for target in self.0.targets.iter().cloned() {
            tasks.spawn(deregister(target, deadline));
        }
        tasks.join_all().await;
    }
}

/// Deregisters a member at one balancer. Retries while the balancer is temporarily unavailable, for example
/// during an upgrade or an outage of its store.
async fn deregister(target: RegistrationTarget, deadline: Instant) {
    let deadline = deadline.max(Instant::now() + MIN_LEAVE_TIME);
    let mut client = HttpClient::new(target.url);
    loop {
        let reason = match client.send_request(Method::DELETE, None, MAX_RESPONSE).await {
            // Another balancer has removed it from the store that they share.
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return,
            Ok((status, response_body)) if is_temporary(status) => {
                refusal_text(status.as_u16(), &response_body)
            }
            Err(failure @ (HttpFailure::TimedOut | HttpFailure::Broken(_))) => failure.to_string(),
            Ok((status, response_body)) => {
                let reason = refusal_text(status.as_u16(), &response_body);
                tracing::warn!("{} does not let {} go: {reason}", target.balancer, target.member);
                return;
            }
            Err(failure @ HttpFailure::Connect(_)) => {
                tracing::warn!(
                    "{} did not accept that {} is gone: {failure}",
                    target.balancer,
                    target.member
                );
                return;
            }
        };
        if Instant::now() >= deadline {
            tracing::warn!("{} did not accept that {} is gone: {reason}", target.balancer, target.member);
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns `true` if a retry of the refused request may succeed.
fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT)
}

impl RegistrarState {
    fn body(&self, draining: bool) -> Bytes {
        let Registration { capacity, max_connections, ttl, .. } = self.registration;
        let registration_json = json!({
            "capacity": capacity, "max_connections": max_connections, "ttl_seconds": ttl.as_secs_f64(),
            "draining": draining,
        });
        registration_json.to_string().into()
    }

    /// Returns the interval between two registrations.
    fn renew_interval(&self) -> Duration {
        self.registration.ttl / 3
    }
}

/// Renews the registration of a member at one balancer.
async fn renew(registrar: Arc<RegistrarState>, target: RegistrationTarget) {
    let (mut client, mut jitter) = (HttpClient::new(target.url.clone()), JitterSource::new());
    let mut leaving = registrar.leaving.subscribe();
    let body = registrar.body(false);
    // The outcome that was logged last: none, success or an error.
    let (mut last_outcome, mut backoff) = (None::<Result<(), String>>, FIRST_BACKOFF);
    loop {
        let outcome = match client.send_request(Method::PUT, Some(body.clone()), MAX_RESPONSE).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, response_body)) => Err(refusal_text(status.as_u16(), &response_body)),
            Err(failure) => Err(failure.to_string()),
        };
        let (member, group, balancer) = (&target.member, &registrar.registration.group, &target.balancer);
        match (&outcome, &last_outcome) {
            (Ok(()), Some(Ok(()))) => {}
            (Ok(()), _) => tracing::info!("{member} is a member of group {group} at {balancer}"),
            (Err(error), Some(Err(last_error))) if error == last_error => {}
            (Err(error), _) => tracing::warn!(
                "{member} cannot be registered as a member of group {group} at {balancer}: {error}; trying \
                again until it can"
            ),
        }
        let pause = if outcome.is_ok() {
            backoff = FIRST_BACKOFF;
            registrar.renew_interval()
        } else {
            let pause = backoff.min(registrar.renew_interval());
            backoff = (backoff * 2).min(registrar.renew_interval());
            pause
        };
        last_outcome = Some(outcome);
        tokio::select! {
            () = sleep(jitter.scale(pause, 0.8, 1.0)) => {}
            _ = leaving.wait_for(|leaving| *leaving) => return,
        }
    }
}

/// Drains a member at one balancer, and waits until it has no work left or the time is over.
async fn drain(registrar: Arc<RegistrarState>, target: RegistrationTarget, deadline: Instant) {
    let mut client = HttpClient::new(target.url);
    let body = registrar.body(true);
    // The balancer may have chosen the member for a request just before the drain, so its count must be zero
    // twice in a row.
    let mut idle_polls = 0;
    loop {
        let response = client.send_request(Method::PUT, Some(body.clone()), MAX_RESPONSE).await;
        let in_flight = match response {
            Ok((status, response_body)) if status.is_success() => {
                let status_json = serde_json::from_slice::<Value>(&response_body).unwrap_or_default();
                Ok(status_json["in_flight"].as_u64().unwrap_or(0))
            }
            Ok((status, response_body)) if is_temporary(status) => {
                Err(refusal_text(status.as_u16(), &response_body))
            }
            Err(failure @ (HttpFailure::TimedOut | HttpFailure::Broken(_))) => Err(failure.to_string()),
            // The balancer has no such member, or cannot be reached.
            _ => return,
        };
        idle_polls = if in_flight == Ok(0) { idle_polls + 1 } else { 0 };
        if idle_polls == 2 {
            return;
        }
        if Instant::now() >= deadline {
            let (member, balancer) = (&target.member, &target.balancer);
            match in_flight {
                Ok(in_flight) => tracing::warn!(
                    "{member} still has work of {balancer} ({in_flight} at once): leaving all the same"
                ),
                Err(error) => tracing::warn!("{balancer} did not accept that {member} drains: {error}"),
            }
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}
