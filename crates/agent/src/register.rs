//! A server that registers itself as a member of a group, with each balancer, for as long as it is there.
//!
//! It says so again three times in the time after which it would be forgotten: one that dies is gone by itself. One that is told to end is
//! drained first: it gets nothing new, and leaves when what it has has ended at all balancers, or after a while.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::chance::Chance;
use crate::link::{Link, Trouble, Url};
use crate::push::refusal;

/// After the first failure; doubled each time.
const FIRST: Duration = Duration::from_millis(500);
/// Between two looks while work ends.
const LOOK: Duration = Duration::from_millis(200);
/// For a balancer to hear that a member is gone, at the least.
const PARTING: Duration = Duration::from_secs(2);
/// Of an answer, bytes.
const ANSWER: usize = 64 * 1024;

/// What balancers are told.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// The group to be a member of.
    pub group: String,
    /// Relative to the others.
    pub capacity: f64,
    /// Requests, connections or flows at once; the group's if `None`.
    pub max_connections: Option<u32>,
    /// After which balancers forget a member that says nothing: 2 s to an hour.
    pub ttl: Duration,
    /// For how long work may take to end when the server leaves.
    pub drain: Duration,
}

/// Registers members until they leave. Cheap to clone.
#[derive(Clone)]
pub struct Registrar(Arc<Inner>);

struct Inner {
    registration: Registration,
    /// Members, each at each balancer.
    places: Vec<Place>,
    leaving: watch::Sender<bool>,
}

#[derive(Clone)]
struct Place {
    member: String,
    balancer: Url,
    url: Url,
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar").field("registration", &self.0.registration).finish_non_exhaustive()
    }
}

impl Registrar {
    pub(crate) fn new(registration: Registration, members: &[String], balancers: &[Url]) -> Self {
        let group = &registration.group;
        let place = |member: &String, balancer: &Url| Place {
            member: member.clone(),
            balancer: balancer.clone(),
            url: balancer.at(&format!("/v1/groups/{group}/members/{member}")),
        };
        let each = |member| balancers.iter().map(move |balancer| place(member, balancer));
        let places = members.iter().flat_map(each).collect();
        Self(Arc::new(Inner { registration, places, leaving: watch::Sender::new(false) }))
    }

    /// Says that they are there, until they leave.
    pub(crate) async fn keep(self) {
        let mut tasks = JoinSet::new();
        for place in self.0.places.iter().cloned() {
            tasks.spawn(keep(Arc::clone(&self.0), place));
        }
        tasks.join_all().await;
    }

    /// Gives them nothing new, waits until their work has ended, for a bounded time, and takes them away. Balancers that do not answer are
    /// not waited for: they forget by themselves.
    pub async fn leave(&self) {
        if self.0.leaving.send_replace(true) {
            return;
        }
        let end = Instant::now() + self.0.registration.drain;
        let mut tasks = JoinSet::new();
        for place in self.0.places.iter().cloned() {
            tasks.spawn(drain(Arc::clone(&self.0), place, end));
        }
        tasks.join_all().await;
        // Balancers may have one store together: not before all have ended.
        let mut tasks = JoinSet::new();
        for place in self.0.places.iter().cloned() {
            tasks.spawn(depart(place, end));
        }
        tasks.join_all().await;
    }
}

/// Takes it away at one balancer, which may be busy for a moment: another process takes over there, or its store is away.
async fn depart(place: Place, end: Instant) {
    let end = end.max(Instant::now() + PARTING);
    let mut link = Link::new(place.url);
    loop {
        let why = match link.ask(Method::DELETE, None, ANSWER).await {
            // Another balancer has done it where they have one store.
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return,
            Ok((status, answer)) if passing(status) => refusal(status.as_u16(), &answer),
            Err(trouble @ (Trouble::Late | Trouble::Broken(_))) => trouble.to_string(),
            Ok((status, answer)) => {
                let why = refusal(status.as_u16(), &answer);
                tracing::warn!("{} does not let {} go: {why}", place.balancer, place.member);
                return;
            }
            Err(trouble @ Trouble::Connect(_)) => {
                tracing::warn!("{} was not told that {} is gone: {trouble}", place.balancer, place.member);
                return;
            }
        };
        if Instant::now() >= end {
            tracing::warn!("{} was not told that {} is gone: {why}", place.balancer, place.member);
            return;
        }
        sleep(LOOK).await;
    }
}

/// Is it a refusal that may not be one a moment later?
fn passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT)
}

impl Inner {
    fn body(&self, draining: bool) -> Bytes {
        let Registration { capacity, max_connections, ttl, .. } = self.registration;
        let said = json!({
            "capacity": capacity, "max_connections": max_connections, "ttl_seconds": ttl.as_secs_f64(), "draining": draining,
        });
        said.to_string().into()
    }

    /// Between two times that it is said.
    fn beat(&self) -> Duration {
        self.registration.ttl / 3
    }
}

/// Says it to one balancer, again and again.
async fn keep(inner: Arc<Inner>, place: Place) {
    let (mut link, mut chance) = (Link::new(place.url.clone()), Chance::new());
    let mut leaving = inner.leaving.subscribe();
    let body = inner.body(false);
    // What was told last: nothing, that it is one, or why it is not.
    let (mut told, mut wait) = (None::<Result<(), String>>, FIRST);
    loop {
        let said = match link.ask(Method::PUT, Some(body.clone()), ANSWER).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, answer)) => Err(refusal(status.as_u16(), &answer)),
            Err(trouble) => Err(trouble.to_string()),
        };
        let (member, group, balancer) = (&place.member, &inner.registration.group, &place.balancer);
        match (&said, &told) {
            (Ok(()), Some(Ok(()))) => {}
            (Ok(()), _) => tracing::info!("{member} is a member of group {group} at {balancer}"),
            (Err(why), Some(Err(before))) if why == before => {}
            (Err(why), _) => tracing::warn!(
                "{member} cannot be registered as a member of group {group} at {balancer}: {why}; trying again until it can"
            ),
        }
        let pause = if said.is_ok() {
            wait = FIRST;
            inner.beat()
        } else {
            let pause = wait.min(inner.beat());
            wait = (wait * 2).min(inner.beat());
            pause
        };
        told = Some(said);
        tokio::select! {
            () = sleep(chance.about(pause, 0.8, 1.0)) => {}
            _ = leaving.wait_for(|leaving| *leaving) => return,
        }
    }
}

/// Gives it nothing new at one balancer, and waits until it has nothing left, or the time is over.
async fn drain(inner: Arc<Inner>, place: Place, end: Instant) {
    let mut link = Link::new(place.url);
    let body = inner.body(true);
    // What was chosen just before may be on its way to it.
    let mut nothing = 0;
    loop {
        let asked = link.ask(Method::PUT, Some(body.clone()), ANSWER).await;
        let left = match asked {
            Ok((status, answer)) if status.is_success() => {
                let said = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
                Ok(said["in_flight"].as_u64().unwrap_or(0))
            }
            Ok((status, answer)) if passing(status) => Err(refusal(status.as_u16(), &answer)),
            Err(trouble @ (Trouble::Late | Trouble::Broken(_))) => Err(trouble.to_string()),
            // It has no such member, or nobody is there.
            _ => return,
        };
        nothing = if left == Ok(0) { nothing + 1 } else { 0 };
        if nothing == 2 {
            return;
        }
        if Instant::now() >= end {
            let (member, balancer) = (&place.member, &place.balancer);
            match left {
                Ok(left) => tracing::warn!(
                    "{member} still has work of {balancer} ({left} at once): leaving all the same"
                ),
                Err(why) => tracing::warn!("{balancer} was not told that {member} drains: {why}"),
            }
            return;
        }
        sleep(LOOK).await;
    }
}
