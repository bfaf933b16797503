//! From a request to a Supervisor to its answer.

use std::fmt;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use super::{Act, Children, Denied, Supervisor, metrics};
use crate::plane::Powers;
use crate::reply::{Body, error, full, not_allowed, text, to_json, whole};

/// What is done by a request, as whoever guards a door names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// See how processes are.
    Look,
    /// Start one.
    Start,
    /// Stop one.
    Stop,
    /// Stop one and start it again.
    Restart,
    /// Have a configuration read again.
    Reload,
    /// End the Supervisor.
    Shutdown,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look => "look",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
            Self::Shutdown => "shutdown",
        })
    }
}

/// One thing that can be asked.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `GET`, which `HEAD` goes with, or `POST`.
    pub method: &'static str,
    /// `NAME` stands for the name of a process.
    pub path: &'static str,
    /// What it is to whoever guards the door.
    pub verb: Verb,
    /// What it does, for a person.
    pub about: &'static str,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Index,
    Health,
    Metrics,
    Processes,
    View,
    Process,
    Tell(Act),
    Reload,
    Shutdown,
}

/// All that can be asked of a Supervisor.
pub const ROUTES: &[Route] = &[
    get("/", What::Index, "what is here"),
    get("/v1/healthz", What::Health, "200 ok; 503 while it ends"),
    get("/metrics", What::Metrics, "Prometheus text format"),
    get("/v1/processes", What::Processes, "all processes, JSON"),
    get("/v1/processes/NAME", What::Process, "one process, JSON"),
    get("/v1/status", What::View, "all processes, with what each says of itself, JSON"),
    post("/v1/processes/NAME/start", Verb::Start, What::Tell(Act::Start), "start it, unless it runs"),
    post("/v1/processes/NAME/stop", Verb::Stop, What::Tell(Act::Stop), "stop it, for good"),
    post("/v1/processes/NAME/restart", Verb::Restart, What::Tell(Act::Restart), "stop it and start it again"),
    post(
        "/v1/processes/NAME/reload",
        Verb::Reload,
        What::Tell(Act::Reload),
        "have it read its configuration again",
    ),
    post("/v1/reload", Verb::Reload, What::Reload, "read the Supervisor's own file again"),
    post(
        "/v1/shutdown",
        Verb::Shutdown,
        What::Shutdown,
        "end the Supervisor; ?children=stop (the default) or ?children=leave",
    ),
];

const fn get(path: &'static str, what: What, about: &'static str) -> Route {
    Route { method: "GET", path, verb: Verb::Look, about, what }
}

const fn post(path: &'static str, verb: Verb, what: What, about: &'static str) -> Route {
    Route { method: "POST", path, verb, about, what }
}

impl Route {
    /// Is this its path? With the name of the process, if it has one.
    fn fits<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.split_once("NAME") {
            None => (self.path == path).then_some(""),
            // Names of processes need no escapes.
            Some((before, after)) => {
                let name = path.strip_prefix(before)?.strip_suffix(after)?;
                (!name.is_empty() && !name.contains('/')).then_some(name)
            }
        }
    }
}

/// One door's view of a Supervisor.
pub(crate) struct Site {
    supervisor: Arc<dyn Supervisor>,
    powers: Powers,
    /// One act at a time.
    turn: Mutex<()>,
    /// True once the admin plane ends.
    ended: watch::Receiver<bool>,
}

impl Site {
    pub(crate) fn new(supervisor: Arc<dyn Supervisor>, powers: Powers, ended: watch::Receiver<bool>) -> Self {
        Self { supervisor, powers, turn: Mutex::default(), ended }
    }

    /// Resolves when the admin plane ends.
    pub(crate) async fn end(&self) {
        // An error says that the sender is gone, which is an end too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Answers one request.
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let acts = self.powers == Powers::Act;
        let reads = request.method() == Method::GET || request.method() == Method::HEAD;
        let mut here = ROUTES.iter().filter_map(|route| Some((route, route.fits(&path)?)));
        let Some((route, name)) = here.next().filter(|(route, _)| acts || route.verb == Verb::Look) else {
            return match reads || acts {
                true => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
                false => not_allowed("GET, HEAD", "this listener only shows; act over the control socket"),
            };
        };
        match route.method {
            "GET" if reads => self.show(route, name).await,
            "GET" => not_allowed("GET, HEAD", "use GET"),
            _ if request.method() == Method::POST => {
                let (route, name) = (*route, name.to_owned());
                self.perform(route, name, request).await
            }
            _ => not_allowed("POST", "use POST"),
        }
    }

    async fn show(self: Arc<Self>, route: &Route, name: &str) -> Response<Body> {
        let supervisor = &self.supervisor;
        match route.what {
            What::Index => text(StatusCode::OK, index(self.powers)),
            What::Health if supervisor.processes().stopping => {
                text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into())
            }
            What::Health => text(StatusCode::OK, "ok\n".into()),
            What::Metrics => {
                let page = metrics::page(&supervisor.processes());
                full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
            }
            What::Process => {
                let found = supervisor.processes().processes.into_iter().find(|one| one.name == name);
                match found {
                    Some(process) => to_json(StatusCode::OK, &process),
                    None => error(StatusCode::NOT_FOUND, self.unknown(name)),
                }
            }
            What::View => {
                // Those that are asked may take their time. One view at a time: each is a crowd of questions.
                let _turn = self.turn.lock().await;
                let supervisor = Arc::clone(supervisor);
                match tokio::task::spawn_blocking(move || supervisor.view()).await {
                    Ok(view) => to_json(StatusCode::OK, &view),
                    Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
                }
            }
            What::Processes | What::Tell(_) | What::Reload | What::Shutdown => {
                to_json(StatusCode::OK, &supervisor.processes())
            }
        }
    }

    async fn perform(
        self: Arc<Self>,
        route: Route,
        name: String,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().map(str::to_owned));
        // There is nothing in it that is asked for, but it is read away.
        if let Err(refused) = whole(request).await {
            return refused;
        }
        let _turn = self.turn.lock().await;
        let supervisor = Arc::clone(&self.supervisor);
        let done = move || done(&*supervisor, route.what, &name, query.as_deref());
        match tokio::task::spawn_blocking(done).await {
            Ok(Ok((status, value))) => {
                tracing::info!("{path} over the control socket");
                to_json(status, &value)
            }
            Ok(Err((status, why))) => {
                tracing::warn!("{path} over the control socket refused: {why}");
                error(status, why)
            }
            Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("{path}: {why}")),
        }
    }

    fn unknown(&self, name: &str) -> String {
        let household = self.supervisor.processes();
        let names: Vec<&str> = household.processes.iter().map(|process| &*process.name).collect();
        format!("there is no process {name}; there are: {}", names.join(", "))
    }
}

fn done(
    supervisor: &dyn Supervisor,
    what: What,
    name: &str,
    query: Option<&str>,
) -> Result<(StatusCode, Value), (StatusCode, String)> {
    if let Some(query) = query
        && !matches!(what, What::Shutdown)
    {
        return Err((StatusCode::BAD_REQUEST, format!("{query}: there is nothing to be said here")));
    }
    match what {
        What::Tell(act) => match supervisor.tell(name, act) {
            Ok(process) => Ok((StatusCode::OK, json!(process))),
            Err(Denied::Unknown(why)) => Err((StatusCode::NOT_FOUND, why)),
            Err(Denied::Impossible(why)) => Err((StatusCode::UNPROCESSABLE_ENTITY, why)),
        },
        What::Reload => {
            let changes = supervisor.reload().map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))?;
            Ok((StatusCode::OK, json!({"changes": changes})))
        }
        What::Shutdown => {
            let children = match query {
                None | Some("" | "children=stop") => Children::Stop,
                Some("children=leave") => Children::Leave,
                Some(other) => {
                    let why = format!("{other}: give children=stop or children=leave");
                    return Err((StatusCode::BAD_REQUEST, why));
                }
            };
            supervisor.shut_down(children);
            let word = if children == Children::Stop { "stopping" } else { "left" };
            Ok((StatusCode::ACCEPTED, json!({"stopping": true, "children": word})))
        }
        What::Index | What::Health | What::Metrics | What::Processes | What::View | What::Process => {
            Ok((StatusCode::OK, json!(supervisor.processes())))
        }
    }
}

fn index(powers: Powers) -> String {
    let shown = ROUTES.iter().filter(|route| powers == Powers::Act || route.verb == Verb::Look);
    let rows = shown.map(|route| format!("{:<4} {:<28} {}\n", route.method, route.path, route.about));
    "plimsoll supervise\n\n".to_owned() + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_at_most_one_route() {
        fn found(path: &str) -> Vec<(&str, &str)> {
            ROUTES.iter().filter_map(|route| Some((route.path, route.fits(path)?))).collect()
        }
        assert_eq!(found("/v1/processes"), [("/v1/processes", "")]);
        assert_eq!(found("/v1/processes/web"), [("/v1/processes/NAME", "web")]);
        assert_eq!(found("/v1/processes/web/stop"), [("/v1/processes/NAME/stop", "web")]);
        assert_eq!(found("/v1/processes/stop/stop"), [("/v1/processes/NAME/stop", "stop")]);
        for path in ["", "/v1/processes/", "/v1/processes//stop", "/v1/processes/a/b/stop", "/v1/status/"] {
            assert!(found(path).is_empty(), "{path}");
        }
        for route in ROUTES {
            let others = ROUTES.iter().filter(|other| other.path == route.path).count();
            assert_eq!(others, 1, "{}", route.path);
            assert_eq!(route.method == "GET", route.verb == Verb::Look, "who looks changes nothing");
        }
    }
}
