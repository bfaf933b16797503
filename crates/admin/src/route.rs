//! From a request to its answer: what is asked for, who asks, may they, and then it is shown or done.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;

use crate::access::{Caller, Kind, Permit};
use crate::act::Order;
use crate::audit::Deed;
use crate::plane::{Arrival, Behind, Plane, Powers};
use crate::reply::{Body, error, not_allowed, whole};
use crate::verb::{Named, ROUTES, Route, Verb};
use crate::{act, lottery, show, supervisor};

/// Answers one request.
pub(crate) async fn answer(
    plane: Arc<Plane>,
    arrival: Arc<Arrival>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut answer = respond(&plane, &arrival, request).await;
    if plane.powers == Powers::Report {
        // Agents are many, and none needs a place for long.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

/// Who else has a path.
fn elsewhere(plane: &Plane, path: &str) -> Option<&'static str> {
    let by = plane.behind.by();
    let mut others = ROUTES.iter().filter(|route| !route.served(by) && route.fits(path).is_some());
    Some(others.next()?.by.first()?.name())
}

async fn respond(plane: &Arc<Plane>, arrival: &Arrival, request: Request<Incoming>) -> Response<Body> {
    let path = match request.uri().path() {
        // As Supervisors had it before there was one table.
        "/v1/healthz" => "/healthz".to_owned(),
        path => path.to_owned(),
    };
    let fits = |route: &'static Route| Some((route, route.fits(&path)?));
    // A path may have several lines, one for each method.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let found = ROUTES.iter().filter(|route| plane.has(route) && route.method == method).find_map(fits);
    let found = found.or_else(|| ROUTES.iter().filter(|route| plane.has(route)).find_map(fits));
    let mut ask = Ask { plane, caller: arrival.caller.clone(), from: &arrival.from, verb: "unknown" };
    if let Some((route, _)) = found {
        ask.verb = route.name;
    }
    let known = match plane.shown(arrival, request.headers()) {
        Ok(shown) => shown.judge().await,
        Err(why) => Err(why),
    };
    let proof = match known {
        Ok((caller, proof)) => {
            if caller.kind != Kind::None {
                arrival.guest.prove();
            }
            ask.caller = caller;
            proof
        }
        Err(why) => {
            let _ = whole(request).await;
            return ask.stranger(why);
        }
    };
    let mut answer = obey(ask, &path, found, request).await;
    if let Some(proof) = proof {
        proof.add(&mut answer);
    }
    answer
}

/// It is known who asks.
async fn obey(
    ask: Ask<'_>,
    path: &str,
    found: Option<(&'static Route, Named<'_>)>,
    request: Request<Incoming>,
) -> Response<Body> {
    let plane = ask.plane;
    if found.is_none()
        && plane.powers != Powers::Report
        && let Some(other) = elsewhere(plane, path)
    {
        let by = plane.behind.by().name();
        let why = format!("a {by} has no {path}: a {other} does; see / for what there is");
        return error(StatusCode::NOT_FOUND, why);
    }
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    match found {
        Some((route, named)) if route.method == "GET" && reads => look(&ask, route, named.of, &request).await,
        Some((route, named)) if route.method != "GET" && request.method().as_str() == route.method => {
            perform(ask, route.verb, named, request).await
        }
        Some((_, Named { lease: Some(_), .. })) => {
            not_allowed("POST, DELETE", "use POST to renew the lease, DELETE to release it")
        }
        Some((Route { verb: Verb::Leases | Verb::EndLeases, .. }, _)) if plane.powers == Powers::Act => {
            not_allowed("GET, HEAD, DELETE", "use GET to see who has leases, DELETE to end them")
        }
        Some((route, _)) if route.method == "POST" => not_allowed("POST", "use POST"),
        _ if plane.powers == Powers::Report => {
            let lends = if plane.lends() { ", POST /v1/groups/NAME/bind" } else { "" };
            let why = format!("there is nothing here but POST /v1/report{lends} and GET /v1/groups/NAME/ior");
            error(StatusCode::NOT_FOUND, why)
        }
        _ if reads => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
        _ if plane.powers == Powers::Act => not_allowed("GET, HEAD", "use GET here, POST on /v1/…: see /"),
        _ => not_allowed("GET, HEAD", "this listener only shows; act over the control socket"),
    }
}

/// Who asks for what.
struct Ask<'a> {
    plane: &'a Arc<Plane>,
    caller: Caller,
    from: &'a str,
    verb: &'static str,
}

impl Ask<'_> {
    fn deed(&self, target: Option<String>, arguments: Value) -> Deed {
        Deed { caller: self.caller.clone(), from: self.from.to_owned(), verb: self.verb, target, arguments }
    }

    /// Nobody knows who it is.
    fn stranger(&self, why: String) -> Response<Body> {
        self.plane.refused(&self.deed(None, Value::Null), &why);
        let mut answer = error(StatusCode::UNAUTHORIZED, why);
        for scheme in self.plane.schemes() {
            answer.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        answer
    }

    /// It is known who it is, and that is not enough.
    fn refuse(&self, target: Option<String>, arguments: Value, why: String) -> Response<Body> {
        self.plane.refused(&self.deed(target, arguments), &why);
        error(StatusCode::FORBIDDEN, why)
    }

    fn ungranted(&self, group: Option<&str>) -> String {
        let to = group.map_or_else(String::new, |group| format!(" in group {group}"));
        format!("{} may not {}{to}: no grant in [admin.access] gives it", self.caller, self.verb)
    }
}

async fn look(
    ask: &Ask<'_>,
    route: &Route,
    name: Option<&str>,
    request: &Request<Incoming>,
) -> Response<Body> {
    let permit = ask.plane.permit(&ask.caller, route.verb);
    let may = name.map_or(permit != Permit::Nothing, |name| permit.admits(name));
    if !may {
        return ask.refuse(name.map(str::to_owned), Value::Null, ask.ungranted(name));
    }
    let caller = ask.caller.clone();
    if let Some(answer) = show::of_all(ask.plane, route.verb) {
        return answer;
    }
    match &ask.plane.behind {
        Behind::Balancer(subject) => {
            show::answer(ask.plane, subject, caller, route.verb, name, permit, request)
        }
        Behind::Lottery(daemon) => lottery::show(ask.plane, daemon, route.verb, &permit).await,
        Behind::Supervisor(supervisor) => {
            supervisor::show(ask.plane, supervisor, &caller, route.verb, name, &permit).await
        }
    }
}

async fn perform(ask: Ask<'_>, verb: Verb, named: Named<'_>, request: Request<Incoming>) -> Response<Body> {
    let permit = ask.plane.permit(&ask.caller, verb);
    // Any page on the web could have a browser in this network send a form.
    let foreign = request.headers().contains_key(ORIGIN);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = match whole(request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    if permit == Permit::Nothing {
        return ask.refuse(named.of.map(str::to_owned), Value::Null, ask.ungranted(None));
    }
    if foreign {
        let verb = match verb {
            Verb::Report | Verb::Bind | Verb::Renew | Verb::Release => verb.name(),
            _ => "act",
        };
        return error(StatusCode::FORBIDDEN, format!("web pages may not {verb}"));
    }
    let order = match Order::read(ask.plane.behind.by(), verb, named, &query, &body) {
        Ok(order) => order,
        Err(why) => return error(StatusCode::BAD_REQUEST, why),
    };
    let group = order.group().unwrap_or_default();
    if permit != Permit::All && (group.is_empty() || !permit.admits(group)) {
        let why = match (group, order.of_no_group()) {
            ("", Some(what)) => format!(
                "{} may {verb} in some groups only, and {what} is of none: that takes a role with groups = \"all\"",
                ask.caller
            ),
            ("", None) => format!("{} may {verb} in some groups only: name the group", ask.caller),
            (group, _) => ask.ungranted(Some(group)),
        };
        return ask.refuse(order.target(), order.arguments(), why);
    }
    let deed = ask.deed(order.target(), order.arguments());
    act::answer(ask.plane, order, deed).await
}
