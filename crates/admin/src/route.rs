//! The way from a request to its response: finds the operation, authenticates the caller, checks the
//! permission, and executes it.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;

use crate::access::{Caller, CredentialKind, GrantedScope};
use crate::api::{ApiRoute, Operation, PathNames, ProcessKind, ROUTES};
use crate::audit::AuditedRequest;
use crate::commands::AdminCommand;
use crate::endpoint::{AdminBackend, AdminEndpoint, EndpointCapability, PeerConnection};
use crate::reply::{ResponseBody, error, not_allowed, read_body};
use crate::{commands, dashboard, lottery, queries, supervisor};

/// Responds to one request.
pub(crate) async fn answer(
    plane: Arc<AdminEndpoint>,
    arrival: Arc<PeerConnection>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let mut answer = respond(&plane, &arrival, request).await;
    if plane.capability == EndpointCapability::Report {
        // Agents are many, and none needs a connection for long.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

/// Returns the kind of process that serves the path, if it is another one.
fn serving_process_kind(plane: &AdminEndpoint, path: &str) -> Option<&'static str> {
    let by = plane.backend.process_kind();
    let mut others =
        ROUTES.iter().filter(|route| !route.is_served_by(by) && route.match_path(path).is_some());
    Some(others.next()?.served_by.first()?.name())
}

async fn respond(
    plane: &Arc<AdminEndpoint>,
    arrival: &PeerConnection,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let path = match request.uri().path() {
        // An alias that Supervisors also accept.
        "/v1/healthz" => "/healthz".to_owned(),
        path => path.to_owned(),
    };
    let fits = |route: &'static ApiRoute| Some((route, route.match_path(&path)?));
    // A path may have several lines, one for each method.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let found = ROUTES.iter().filter(|route| plane.serves(route) && route.method == method).find_map(fits);
    let found = found.or_else(|| ROUTES.iter().filter(|route| plane.serves(route)).find_map(fits));
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    let pages = dashboard::is_dashboard_path(&path) && plane.serves(Operation::Dashboard.route());
    let found = if pages { Some((Operation::Dashboard.route(), PathNames::default())) } else { found };
    if let Err(why) = plane.check_host(&request, found.as_ref().map(|(route, _)| route.operation)) {
        let _ = read_body(request).await;
        return if pages { dashboard::wrong_host(&why) } else { error(StatusCode::MISDIRECTED_REQUEST, why) };
    }
    if path == "/" && reads && dashboard::wants_html(plane, request.headers()) {
        return dashboard::redirect_home();
    }
    let mut ask =
        CallerRequest { plane, caller: arrival.caller.clone(), from: &arrival.origin, verb: "unknown" };
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
    let kept = if pages { dashboard::cookie_token(request.headers()) } else { None };
    let known = match plane.credential(arrival, request.headers(), kept) {
        Ok(shown) => shown.verify().await,
        Err(why) => Err(why),
    };
    let proof = match known {
        Ok((caller, proof)) => {
            if caller.kind != CredentialKind::None {
                arrival.slot.mark_authenticated();
            }
            ask.caller = caller;
            proof
        }
        Err(why) => {
            let _ = read_body(request).await;
            let answer = ask.unauthenticated(why.clone());
            return if pages { dashboard::unauthenticated(plane, answer, why) } else { answer };
        }
    };
    let mut answer = handle_authenticated(ask, &path, found, request).await;
    if let Some(proof) = proof {
        proof.add_to(&mut answer);
    }
    answer
}

/// Handles a request of an authenticated caller.
async fn handle_authenticated(
    ask: CallerRequest<'_>,
    path: &str,
    found: Option<(&'static ApiRoute, PathNames<'_>)>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let plane = ask.plane;
    if found.is_none()
        && plane.capability != EndpointCapability::Report
        && let Some(other) = serving_process_kind(plane, path)
    {
        let by = plane.backend.process_kind().name();
        let why = format!("a {by} has no {path}: a {other} does; see / for what there is");
        return error(StatusCode::NOT_FOUND, why);
    }
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    match found {
        Some((ApiRoute { operation: Operation::Dashboard, .. }, _))
            if request.method() == Method::POST && dashboard::is_form_path(path) =>
        {
            submit_form(ask, request).await
        }
        Some((route, named)) if route.method == "GET" && reads => {
            answer_query(&ask, route, named.object, &request).await
        }
        Some((route, named)) if route.method != "GET" && request.method().as_str() == route.method => {
            perform(ask, route.operation, named, request).await
        }
        Some((_, PathNames { lease: Some(_), .. })) => {
            not_allowed("POST, DELETE", "use POST to renew the lease, DELETE to release it")
        }
        Some((_, PathNames { member: Some(_), .. })) => {
            not_allowed("PUT, DELETE", "use PUT to register the member, DELETE to take it away")
        }
        Some((ApiRoute { operation: Operation::Leases | Operation::EndLeases, .. }, _))
            if plane.capability == EndpointCapability::Command =>
        {
            not_allowed("GET, HEAD, DELETE", "use GET to see who has leases, DELETE to end them")
        }
        Some((route, _)) if route.method == "POST" => not_allowed("POST", "use POST"),
        _ if plane.capability == EndpointCapability::Report => {
            let lends = if plane.grants_leases() { ", POST /v1/groups/NAME/bind" } else { "" };
            let registers =
                if plane.registers_members() { ", PUT /v1/groups/NAME/members/MEMBER" } else { "" };
            let why = format!(
                "there is nothing here but POST /v1/report{lends}{registers} and GET /v1/groups/NAME/ior"
            );
            error(StatusCode::NOT_FOUND, why)
        }
        _ if reads => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
        _ if plane.capability == EndpointCapability::Command => {
            not_allowed("GET, HEAD", "use GET here, POST on /v1/…: see /")
        }
        _ if path == "/v1/report" => not_allowed(
            "GET, HEAD",
            "this listener only shows: reports go to the address of [admin] reports, or over the control \
             socket",
        ),
        _ => not_allowed("GET, HEAD", "this listener only shows; act over the control socket"),
    }
}

/// A caller and its operation.
struct CallerRequest<'a> {
    plane: &'a Arc<AdminEndpoint>,
    caller: Caller,
    from: &'a str,
    verb: &'static str,
}

impl CallerRequest<'_> {
    fn audited(&self, target: Option<String>, arguments: Value) -> AuditedRequest {
        AuditedRequest {
            caller: self.caller.clone(),
            from: self.from.to_owned(),
            verb: self.verb,
            target,
            arguments,
        }
    }

    /// Responds to an unauthenticated caller.
    fn unauthenticated(&self, why: String) -> Response<ResponseBody> {
        self.plane.log_rejection(&self.audited(None, Value::Null), &why);
        let mut answer = error(StatusCode::UNAUTHORIZED, why);
        for scheme in self.plane.schemes() {
            answer.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        answer
    }

    /// Rejects an authenticated caller without the permission.
    fn reject(&self, target: Option<String>, arguments: Value, why: String) -> (StatusCode, String) {
        self.plane.log_rejection(&self.audited(target, arguments), &why);
        (StatusCode::FORBIDDEN, why)
    }

    fn denial_message(&self, verb: Operation, group: Option<&str>) -> String {
        let to = group.map_or_else(String::new, |group| format!(" in group {group}"));
        format!("{} may not {}{to}: no grant in [admin.access] gives it", self.caller, verb.description())
    }
}

async fn answer_query(
    ask: &CallerRequest<'_>,
    route: &ApiRoute,
    name: Option<&str>,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let permit = ask.plane.granted_scope(&ask.caller, route.operation);
    let may = name.map_or(permit != GrantedScope::Denied, |name| permit.covers(name));
    if !may {
        let (status, why) =
            ask.reject(name.map(str::to_owned), Value::Null, ask.denial_message(route.operation, name));
        return match route.operation {
            Operation::Dashboard => dashboard::forbidden(ask.plane, &ask.caller, status, why),
            _ => error(status, why),
        };
    }
    let caller = ask.caller.clone();
    if route.operation == Operation::Dashboard {
        return dashboard::show_page(ask.plane, caller, request).await;
    }
    if let Some(answer) = queries::respond_common(ask.plane, route.operation) {
        return answer;
    }
    if route.operation == Operation::Health
        && let Some(group) = queries::queried_groups(request).next()
        && ask.plane.backend.process_kind() != ProcessKind::Balancer
    {
        let by = ask.plane.backend.process_kind().name();
        return error(StatusCode::NOT_FOUND, format!("there is no group {group}: a {by} has none"));
    }
    match &ask.plane.backend {
        AdminBackend::Balancer(subject) => {
            if let Some(shown) = queries::full_response(subject, route.operation, &permit).await {
                return shown;
            }
            queries::respond(ask.plane, subject, caller, route.operation, name, permit, request)
        }
        AdminBackend::Lottery(daemon) => lottery::respond(ask.plane, daemon, route.operation, &permit).await,
        AdminBackend::Supervisor(supervisor) => {
            supervisor::respond(ask.plane, supervisor, &caller, route.operation, name, &permit).await
        }
    }
}

async fn perform(
    ask: CallerRequest<'_>,
    verb: Operation,
    named: PathNames<'_>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    // Any page on the web could make a browser in this network send a form.
    let foreign = request.headers().contains_key(ORIGIN);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = match read_body(request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match authorize_command(&ask, verb, named, (&query, &body), foreign) {
        Ok((order, deed)) => commands::respond(ask.plane, order, deed).await,
        Err((status, why)) => error(status, why),
    }
}

/// Parses the command and checks the permission; rejected attempts are logged.
fn authorize_command(
    ask: &CallerRequest<'_>,
    verb: Operation,
    named: PathNames<'_>,
    (query, body): (&str, &[u8]),
    foreign: bool,
) -> Result<(AdminCommand, AuditedRequest), (StatusCode, String)> {
    let permit = ask.plane.granted_scope(&ask.caller, verb);
    if permit == GrantedScope::Denied {
        return Err(ask.reject(named.object.map(str::to_owned), Value::Null, ask.denial_message(verb, None)));
    }
    if foreign {
        let verb = match verb {
            Operation::Report
            | Operation::Bind
            | Operation::Renew
            | Operation::Release
            | Operation::Register
            | Operation::Deregister => verb.name(),
            _ => "act",
        };
        return Err((StatusCode::FORBIDDEN, format!("web pages may not {verb}")));
    }
    let order = AdminCommand::parse(ask.plane.backend.process_kind(), verb, named, query, body)
        .map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let group = order.group().unwrap_or_default();
    if permit != GrantedScope::All && (group.is_empty() || !permit.covers(group)) {
        let why = match (group, order.object_without_group()) {
            ("", Some(what)) => format!(
                "{} may {verb} in some groups only, and {what} is of none: that takes a role with groups = \
                 \"all\"",
                ask.caller
            ),
            ("", None) => format!("{} may {verb} in some groups only: name the group", ask.caller),
            (group, _) => ask.denial_message(verb, Some(group)),
        };
        return Err(ask.reject(order.target(), order.arguments(), why));
    }
    let deed = ask.audited(order.target(), order.arguments());
    Ok((order, deed))
}

/// Handles a form of the dashboard, which has described the effect.
async fn submit_form(ask: CallerRequest<'_>, request: Request<Incoming>) -> Response<ResponseBody> {
    let plane = ask.plane;
    let wanted = match dashboard::read_form(plane, &ask.caller, request).await {
        Ok(wanted) => wanted,
        Err(answer) => return answer,
    };
    let ask = CallerRequest { verb: wanted.operation.name(), ..ask };
    let body = wanted.body().to_string();
    let outcome =
        match authorize_command(&ask, wanted.operation, PathNames::default(), ("", body.as_bytes()), false) {
            Ok((order, deed)) => commands::execute_logged(plane, order, deed).await,
            Err(refused) => Err(refused),
        };
    dashboard::outcome_page(plane, &ask.caller, &wanted, &outcome)
}
