//! The way from a request to its response: finds the operation, authenticates the caller, checks the
//! permission, and executes it.

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
use crate::verb::{By, Named, ROUTES, Route, Verb};
use crate::{act, dashboard, lottery, show, supervisor};

/// Responds to one request.
pub(crate) async fn answer(
    plane: Arc<Plane>,
    arrival: Arc<Arrival>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut answer = respond(&plane, &arrival, request).await;
    if plane.powers == Powers::Report {
        // Agents are many, and none needs a connection for long.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

/// Returns the kind of process that serves the path, if it is another one.
fn elsewhere(plane: &Plane, path: &str) -> Option<&'static str> {
    let by = plane.behind.by();
    let mut others = ROUTES.iter().filter(|route| !route.served(by) && route.fits(path).is_some());
    Some(others.next()?.by.first()?.name())
}

async fn respond(plane: &Arc<Plane>, arrival: &Arrival, request: Request<Incoming>) -> Response<Body> {
    let path = match request.uri().path() {
        // An alias that Supervisors also accept.
        "/v1/healthz" => "/healthz".to_owned(),
        path => path.to_owned(),
    };
    let fits = |route: &'static Route| Some((route, route.fits(&path)?));
    // A path may have several lines, one for each method.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let found = ROUTES.iter().filter(|route| plane.has(route) && route.method == method).find_map(fits);
    let found = found.or_else(|| ROUTES.iter().filter(|route| plane.has(route)).find_map(fits));
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    let pages = dashboard::has(&path) && plane.has(Verb::Dashboard.route());
    let found = if pages { Some((Verb::Dashboard.route(), Named::default())) } else { found };
    if let Err(why) = plane.check_host(&request, found.as_ref().map(|(route, _)| route.verb)) {
        let _ = whole(request).await;
        return if pages {
            dashboard::misdirected(&why)
        } else {
            error(StatusCode::MISDIRECTED_REQUEST, why)
        };
    }
    if path == "/" && reads && dashboard::wanted(plane, request.headers()) {
        return dashboard::there();
    }
    let mut ask = Ask { plane, caller: arrival.caller.clone(), from: &arrival.from, verb: "unknown" };
    if let Some((route, _)) = found {
        ask.verb = route.name;
    }
    let request = match pages {
        true => match dashboard::open(plane, arrival, &path, request).await {
            Ok(request) => request,
            Err(answer) => return answer,
        },
        false => request,
    };
    let kept = if pages { dashboard::token(request.headers()) } else { None };
    let known = match plane.shown(arrival, request.headers(), kept) {
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
            let answer = ask.stranger(why.clone());
            return if pages { dashboard::stranger(plane, answer, why) } else { answer };
        }
    };
    let mut answer = obey(ask, &path, found, request).await;
    if let Some(proof) = proof {
        proof.add(&mut answer);
    }
    answer
}

/// Handles a request of an authenticated caller.
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
        Some((Route { verb: Verb::Dashboard, .. }, _))
            if request.method() == Method::POST && dashboard::acts(path) =>
        {
            submit(ask, request).await
        }
        Some((route, named)) if route.method == "GET" && reads => look(&ask, route, named.of, &request).await,
        Some((route, named)) if route.method != "GET" && request.method().as_str() == route.method => {
            perform(ask, route.verb, named, request).await
        }
        Some((_, Named { lease: Some(_), .. })) => {
            not_allowed("POST, DELETE", "use POST to renew the lease, DELETE to release it")
        }
        Some((_, Named { member: Some(_), .. })) => {
            not_allowed("PUT, DELETE", "use PUT to register the member, DELETE to take it away")
        }
        Some((Route { verb: Verb::Leases | Verb::EndLeases, .. }, _)) if plane.powers == Powers::Act => {
            not_allowed("GET, HEAD, DELETE", "use GET to see who has leases, DELETE to end them")
        }
        Some((route, _)) if route.method == "POST" => not_allowed("POST", "use POST"),
        _ if plane.powers == Powers::Report => {
            let lends = if plane.lends() { ", POST /v1/groups/NAME/bind" } else { "" };
            let registers = if plane.registers() { ", PUT /v1/groups/NAME/members/MEMBER" } else { "" };
            let why = format!(
                "there is nothing here but POST /v1/report{lends}{registers} and GET /v1/groups/NAME/ior"
            );
            error(StatusCode::NOT_FOUND, why)
        }
        _ if reads => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
        _ if plane.powers == Powers::Act => not_allowed("GET, HEAD", "use GET here, POST on /v1/…: see /"),
        _ if path == "/v1/report" => not_allowed(
            "GET, HEAD",
            "this listener only shows: reports go to the address of [admin] reports, or over the control socket",
        ),
        _ => not_allowed("GET, HEAD", "this listener only shows; act over the control socket"),
    }
}

/// A caller and its operation.
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

    /// Responds to an unauthenticated caller.
    fn stranger(&self, why: String) -> Response<Body> {
        self.plane.refused(&self.deed(None, Value::Null), &why);
        let mut answer = error(StatusCode::UNAUTHORIZED, why);
        for scheme in self.plane.schemes() {
            answer.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        answer
    }

    /// Rejects an authenticated caller without the permission.
    fn refuse(&self, target: Option<String>, arguments: Value, why: String) -> (StatusCode, String) {
        self.plane.refused(&self.deed(target, arguments), &why);
        (StatusCode::FORBIDDEN, why)
    }

    fn ungranted(&self, verb: Verb, group: Option<&str>) -> String {
        let to = group.map_or_else(String::new, |group| format!(" in group {group}"));
        format!("{} may not {}{to}: no grant in [admin.access] gives it", self.caller, verb.deed())
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
        let (status, why) = ask.refuse(name.map(str::to_owned), Value::Null, ask.ungranted(route.verb, name));
        return match route.verb {
            Verb::Dashboard => dashboard::refused(ask.plane, &ask.caller, status, why),
            _ => error(status, why),
        };
    }
    let caller = ask.caller.clone();
    if route.verb == Verb::Dashboard {
        return dashboard::look(ask.plane, caller, request).await;
    }
    if let Some(answer) = show::of_all(ask.plane, route.verb) {
        return answer;
    }
    if route.verb == Verb::Health
        && let Some(group) = show::asked(request).next()
        && ask.plane.behind.by() != By::Balancer
    {
        let by = ask.plane.behind.by().name();
        return error(StatusCode::NOT_FOUND, format!("there is no group {group}: a {by} has none"));
    }
    match &ask.plane.behind {
        Behind::Balancer(subject) => {
            if let Some(shown) = show::whole(subject, route.verb, &permit).await {
                return shown;
            }
            show::answer(ask.plane, subject, caller, route.verb, name, permit, request)
        }
        Behind::Lottery(daemon) => lottery::show(ask.plane, daemon, route.verb, &permit).await,
        Behind::Supervisor(supervisor) => {
            supervisor::show(ask.plane, supervisor, &caller, route.verb, name, &permit).await
        }
    }
}

async fn perform(ask: Ask<'_>, verb: Verb, named: Named<'_>, request: Request<Incoming>) -> Response<Body> {
    // Any page on the web could make a browser in this network send a form.
    let foreign = request.headers().contains_key(ORIGIN);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = match whole(request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match allowed(&ask, verb, named, (&query, &body), foreign) {
        Ok((order, deed)) => act::answer(ask.plane, order, deed).await,
        Err((status, why)) => error(status, why),
    }
}

/// Parses the command and checks the permission; rejected attempts are logged.
fn allowed(
    ask: &Ask<'_>,
    verb: Verb,
    named: Named<'_>,
    (query, body): (&str, &[u8]),
    foreign: bool,
) -> Result<(Order, Deed), (StatusCode, String)> {
    let permit = ask.plane.permit(&ask.caller, verb);
    if permit == Permit::Nothing {
        return Err(ask.refuse(named.of.map(str::to_owned), Value::Null, ask.ungranted(verb, None)));
    }
    if foreign {
        let verb = match verb {
            Verb::Report | Verb::Bind | Verb::Renew | Verb::Release | Verb::Register | Verb::Deregister => {
                verb.name()
            }
            _ => "act",
        };
        return Err((StatusCode::FORBIDDEN, format!("web pages may not {verb}")));
    }
    let order = Order::read(ask.plane.behind.by(), verb, named, query, body)
        .map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let group = order.group().unwrap_or_default();
    if permit != Permit::All && (group.is_empty() || !permit.admits(group)) {
        let why = match (group, order.of_no_group()) {
            ("", Some(what)) => format!(
                "{} may {verb} in some groups only, and {what} is of none: that takes a role with groups = \"all\"",
                ask.caller
            ),
            ("", None) => format!("{} may {verb} in some groups only: name the group", ask.caller),
            (group, _) => ask.ungranted(verb, Some(group)),
        };
        return Err(ask.refuse(order.target(), order.arguments(), why));
    }
    let deed = ask.deed(order.target(), order.arguments());
    Ok((order, deed))
}

/// Handles a form of the dashboard, which has described the effect.
async fn submit(ask: Ask<'_>, request: Request<Incoming>) -> Response<Body> {
    let plane = ask.plane;
    let wanted = match dashboard::form(plane, &ask.caller, request).await {
        Ok(wanted) => wanted,
        Err(answer) => return answer,
    };
    let ask = Ask { verb: wanted.verb.name(), ..ask };
    let body = wanted.body().to_string();
    let outcome = match allowed(&ask, wanted.verb, Named::default(), ("", body.as_bytes()), false) {
        Ok((order, deed)) => act::outcome(plane, order, deed).await,
        Err(refused) => Err(refused),
    };
    dashboard::done(plane, &ask.caller, &wanted, &outcome)
}
