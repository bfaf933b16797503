//! From a request to its answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, ORIGIN,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, watch};

use crate::{Refused, Subject, Switch, events, metrics, report};

/// Longest body of a request, bytes.
const BODY: usize = 16 * 1024;
/// For a body to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Where reports go.
const REPORT: &str = "/v1/report";

const INDEX: &str = "plimsoll

/healthz   200 ok; 503 while it stops
/status    listeners, groups and members, JSON
/metrics   Prometheus text format
/events    what was decided and why, as server-sent events
           ?since=SEQ (or Last-Event-ID) resumes, ?follow=0 gives a JSON array
/v1/groups/NAME/explain
           what is known of each member and what the strategy makes of it, JSON
/v1/groups/NAME/ior
           the object reference of a group with an iiop listener, JSON
";
const INDEX_ACTS: &str = "
POST /v1/report   member=10.0.0.1:80&name=cpu&value=0.4, or JSON
POST /v1/set      {\"group\": \"web\", \"key\": \"strategy\", \"value\": \"random\"}
POST /v1/drain    {\"group\": \"web\", \"member\": \"10.0.0.1:80\"}; group may be left out
POST /v1/undrain  the same
POST /v1/disable  {\"member\": \"10.0.0.1:80\", \"group\": \"web\"}, {\"listener\": \"0.0.0.0:80\"} or {\"balancing\": \"web\"}
POST /v1/enable   the same
POST /v1/reload
POST /v1/stop
";

pub(crate) type Body = Either<Full<Bytes>, Channel<Bytes>>;

/// What can be done through a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Powers {
    /// Look.
    Show,
    /// Look and act.
    Act,
    /// Hand in reports, see the object references of groups, and no more: a side-car of a CORBA server sends its
    /// clients there.
    Report,
}

/// One door's view of the subject.
pub(crate) struct Plane {
    pub(crate) subject: Arc<dyn Subject>,
    powers: Powers,
    /// One at a time: a reload during a drain is nobody's friend.
    turn: Mutex<()>,
    /// Slots for event streams.
    streams: Arc<Semaphore>,
    /// True once the admin plane ends.
    ended: watch::Receiver<bool>,
}

impl Plane {
    pub(crate) fn new(
        subject: Arc<dyn Subject>,
        powers: Powers,
        streams: Arc<Semaphore>,
        ended: watch::Receiver<bool>,
    ) -> Self {
        Self { subject, powers, turn: Mutex::default(), streams, ended }
    }

    /// Has the admin plane ended?
    pub(crate) fn ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves when it ends.
    pub(crate) async fn end(&self) {
        // An error says that the sender is gone, which is an end too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

/// Answers one request.
pub(crate) async fn answer(
    plane: Arc<Plane>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    let acts = plane.powers == Powers::Act;
    if request.uri().path() == REPORT && plane.powers != Powers::Show {
        let answer = if request.method() != Method::POST {
            not_allowed("POST", "use POST")
        } else if request.headers().contains_key(ORIGIN) {
            // Any page on the web could have a browser in this network send a form.
            error(StatusCode::FORBIDDEN, "web pages may not report".into())
        } else {
            take_report(&plane, request).await
        };
        return Ok(parting(&plane, answer));
    }
    if plane.powers == Powers::Report {
        let reference = matches!(group_of(request.uri().path()), Some((_, What::Reference)));
        let answer = if reference && reads {
            show(&plane, &request)
        } else {
            let why = format!("there is nothing here but POST {REPORT} and GET /v1/groups/NAME/ior");
            error(StatusCode::NOT_FOUND, why)
        };
        return Ok(parting(&plane, answer));
    }
    let act = Act::named(request.uri().path()).filter(|_| acts);
    Ok(match act {
        Some(_) if request.method() != Method::POST => not_allowed("POST", "use POST"),
        Some(act) => act.perform(plane, request).await,
        None if reads => show(&plane, &request),
        None if acts => not_allowed("GET, HEAD", "use GET here, POST on /v1/…: see /"),
        None => not_allowed("GET, HEAD", "this listener only shows; act over the control socket"),
    })
}

fn show(plane: &Arc<Plane>, request: &Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/" => text(
            StatusCode::OK,
            if plane.powers == Powers::Act { [INDEX, INDEX_ACTS].concat() } else { INDEX.into() },
        ),
        "/healthz" if plane.subject.status().stopping => {
            text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into())
        }
        "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/status" => to_json(StatusCode::OK, &plane.subject.status()),
        "/metrics" => {
            // Buckets after status: the count can then only be behind them, which is put right there.
            let status = plane.subject.status();
            let page = metrics::page(&status, |group| plane.subject.buckets(group));
            full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
        }
        "/events" => log(plane, request),
        path if group_of(path).is_some() => {
            let (group, what) = group_of(path).unwrap_or_default();
            let subject = &plane.subject;
            let found = match what {
                What::Explanation => subject.explain(group).map(|found| to_json(StatusCode::OK, &found)),
                What::Reference => subject.reference(group).map(|found| to_json(StatusCode::OK, &found)),
            };
            found.unwrap_or_else(|| {
                let status = subject.status();
                let names: Vec<&str> = status.groups.iter().map(|group| &*group.name).collect();
                let why = match names.contains(&group) {
                    true => format!("group {group} has no iiop listener"),
                    false => format!("there is no group {group}; there are: {}", names.join(", ")),
                };
                error(StatusCode::NOT_FOUND, why)
            })
        }
        path => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
    }
}

/// What can be asked of one group.
#[derive(Clone, Copy, Default)]
enum What {
    #[default]
    Explanation,
    Reference,
}

/// Which group is asked about, and what. Names of groups need no escapes.
fn group_of(path: &str) -> Option<(&str, What)> {
    let (group, what) = path.strip_prefix("/v1/groups/")?.split_once('/')?;
    match what {
        "explain" => Some((group, What::Explanation)),
        "ior" => Some((group, What::Reference)),
        _ => None,
    }
}

/// Takes a report. Many come, and each is done in microseconds: none waits for its turn, none is logged.
async fn take_report(plane: &Arc<Plane>, request: Request<Incoming>) -> Response<Body> {
    let report = match whole(request).await {
        Ok(body) => report::read(&body).map_err(|why| error(StatusCode::BAD_REQUEST, why)),
        Err(refused) => Err(refused),
    };
    let outcome = match report {
        Ok(report) => plane.subject.report(report),
        Err(refused) => return refused,
    };
    match outcome {
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Ok(Some(shed)) => {
            let shed = json!({"share": shed.share, "epoch": shed.epoch});
            to_json(StatusCode::OK, &json!({"shed": shed}))
        }
        Err(Refused::Unknown(why)) => error(StatusCode::NOT_FOUND, why),
        Err(Refused::Wrong(why)) => error(StatusCode::UNPROCESSABLE_ENTITY, why),
        Err(Refused::TooFast(why)) => error(StatusCode::TOO_MANY_REQUESTS, why),
    }
}

/// At the door for reports a connection ends with its answer: agents are many, and none needs a place for long.
fn parting(plane: &Plane, mut answer: Response<Body>) -> Response<Body> {
    if plane.powers == Powers::Report {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// All of a request's body, or the answer to one that cannot be had.
pub(crate) async fn whole(request: Request<Incoming>) -> Result<Vec<u8>, Response<Body>> {
    match tokio::time::timeout(BODY_TIME, body(request.into_body())).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(error(StatusCode::PAYLOAD_TOO_LARGE, format!("give at most {BODY} bytes"))),
        Ok(Err(why)) => Err(error(StatusCode::BAD_REQUEST, format!("the body cannot be read: {why}"))),
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive".into())),
    }
}

fn log(plane: &Arc<Plane>, request: &Request<Incoming>) -> Response<Body> {
    let mut since = None;
    let mut follow = !header(request.headers(), ACCEPT).is_some_and(|accept| accept.contains("/json"));
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("since", seq) => match seq.parse::<u64>() {
                Ok(seq) => since = Some(seq),
                Err(_) => {
                    return error(
                        StatusCode::BAD_REQUEST,
                        "since: give the sequence number of an event".into(),
                    );
                }
            },
            ("follow", "0") => follow = false,
            ("follow", "1") => follow = true,
            (name, _) => {
                let what = format!("{name}: give since=SEQ, follow=0 or follow=1");
                return error(StatusCode::BAD_REQUEST, what);
            }
        }
    }
    if !follow {
        return to_json(StatusCode::OK, &plane.subject.events(since.unwrap_or(0)));
    }
    // A browser that comes back repeats the address and adds this: it is the newer of the two.
    if let Some(last) = header(request.headers(), HeaderName::from_static("last-event-id"))
        && let Ok(last) = last.parse::<u64>()
    {
        // Numbers start again with the process; one from the process before means nothing here.
        let newest = plane.subject.events(last.saturating_sub(1)).last().map_or(0, |entry| entry.seq);
        since = Some(if last <= newest { last } else { 0 });
    }
    let Ok(slot) = plane.streams.clone().try_acquire_owned() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "too many event streams: close some".into());
    };
    let (sender, body) = Channel::new(1);
    if request.method() != Method::HEAD {
        tokio::spawn(events::stream(plane.clone(), since, sender, slot));
    }
    response(StatusCode::OK, "text/event-stream", Either::Right(body))
}

/// What an operator can have done.
#[derive(Clone, Copy)]
enum Act {
    Drain,
    Undrain,
    Disable,
    Enable,
    Set,
    Reload,
    Stop,
}

impl Act {
    fn named(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/drain" => Self::Drain,
            "/v1/undrain" => Self::Undrain,
            "/v1/disable" => Self::Disable,
            "/v1/enable" => Self::Enable,
            "/v1/set" => Self::Set,
            "/v1/reload" => Self::Reload,
            "/v1/stop" => Self::Stop,
            _ => return None,
        })
    }

    async fn perform(self, plane: Arc<Plane>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let body = match whole(request).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let _turn = plane.turn.lock().await;
        let subject = plane.subject.clone();
        let done = tokio::task::spawn_blocking(move || self.done(&*subject, &body)).await;
        match done {
            Ok(Ok((status, value))) => {
                tracing::info!("{path} over the control socket: {value}");
                to_json(status, &value)
            }
            Ok(Err((status, why))) => {
                tracing::warn!("{path} over the control socket refused: {why}");
                error(status, why)
            }
            Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("{path}: {why}")),
        }
    }

    fn done(self, subject: &dyn Subject, body: &[u8]) -> Result<(StatusCode, Value), (StatusCode, String)> {
        let refused = |why| (StatusCode::UNPROCESSABLE_ENTITY, why);
        match self {
            Self::Drain => {
                let Target { group, member } = Target::read(body)?;
                subject.drain(group.as_deref(), &member).map_err(refused)?;
                Ok((StatusCode::OK, json!({"draining": member})))
            }
            Self::Undrain => {
                let Target { group, member } = Target::read(body)?;
                subject.undrain(group.as_deref(), &member).map_err(refused)?;
                Ok((StatusCode::OK, json!({"undrained": member})))
            }
            Self::Disable | Self::Enable => {
                let what = Switched::read(body)?;
                let changes = subject.switch(&what, matches!(self, Self::Enable)).map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Set => {
                let Setting { group, key, value } = Setting::read(body)?;
                let changes = subject.set(&group, &key, &value).map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Reload => {
                let changes = subject.reload().map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Stop => {
                subject.stop();
                Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
            }
        }
    }
}

/// The body of a drain or undrain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    group: Option<String>,
    member: String,
}

impl Target {
    fn read(body: &[u8]) -> Result<Self, (StatusCode, String)> {
        serde_json::from_slice(body).map_err(|why| {
            (StatusCode::BAD_REQUEST, format!("the body: {why}; give {{\"group\": …, \"member\": …}}"))
        })
    }
}

/// The body of a disable or enable: one of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switched {
    group: Option<String>,
    member: Option<String>,
    listener: Option<String>,
    balancing: Option<String>,
}

impl Switched {
    fn read(body: &[u8]) -> Result<Switch, (StatusCode, String)> {
        let give = "give {\"member\": …, \"group\": …}, {\"listener\": …} or {\"balancing\": …}";
        let wrong = |why: String| (StatusCode::BAD_REQUEST, format!("the body: {why}; {give}"));
        let read: Self = serde_json::from_slice(body).map_err(|why| wrong(why.to_string()))?;
        match read {
            Self { group, member: Some(name), listener: None, balancing: None } => {
                Ok(Switch::Member { group, name })
            }
            Self { group: None, member: None, listener: Some(address), balancing: None } => {
                Ok(Switch::Listener(address))
            }
            Self { group: None, member: None, listener: None, balancing: Some(group) } => {
                Ok(Switch::Balancing(group))
            }
            _ => Err(wrong("it names more than one thing, or none".into())),
        }
    }
}

/// The body of a set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    group: String,
    key: String,
    /// As in the configuration.
    value: String,
}

impl Setting {
    fn read(body: &[u8]) -> Result<Self, (StatusCode, String)> {
        serde_json::from_slice(body).map_err(|why| {
            let give = "give {\"group\": …, \"key\": …, \"value\": …}";
            (StatusCode::BAD_REQUEST, format!("the body: {why}; {give}"))
        })
    }
}

/// All of a body, or `None` if it is too long. Even then it is read to its end: a socket closed over unread
/// bytes resets the connection, and the client would not see the answer.
async fn body(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut kept = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            kept = kept.filter(|kept| kept.len() + data.len() <= BODY);
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&data);
            }
        }
    }
    Ok(kept)
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(crate) fn not_allowed(allow: &'static str, why: &str) -> Response<Body> {
    let mut refused = error(StatusCode::METHOD_NOT_ALLOWED, why.into());
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    refused
}

pub(crate) fn error(status: StatusCode, why: String) -> Response<Body> {
    to_json(status, &json!({"error": why}))
}

pub(crate) fn to_json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(mut body) => {
            body.push('\n');
            full(status, "application/json", body)
        }
        Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<Body> {
    full(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn full(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    response(status, kind, Either::Left(Full::new(body.into())))
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
