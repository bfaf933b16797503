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
pub(crate) async fn handle(
    endpoint: Arc<AdminEndpoint>,
    peer: Arc<PeerConnection>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let mut response = respond(&endpoint, &peer, request).await;
    if endpoint.capability == EndpointCapability::Report {
        // Agents are many, and none needs a connection for long.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Returns the kind of process that serves the path, if it is another one.
fn serving_process_kind(endpoint: &AdminEndpoint, path: &str) -> Option<&'static str> {
    let process_kind = endpoint.backend.process_kind();
    let mut other_routes =
        ROUTES.iter().filter(|route| !route.is_served_by(process_kind) && route.match_path(path).is_some());
    Some(other_routes.next()?.served_by.first()?.name())
}

async fn respond(
    endpoint: &Arc<AdminEndpoint>,
    peer: &PeerConnection,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let path = match request.uri().path() {
        // An alias that Supervisors also accept.
        "/v1/healthz" => "/healthz".to_owned(),
        path => path.to_owned(),
    };
    let match_route = |route: &'static ApiRoute| Some((route, route.match_path(&path)?));
    // A path may have several lines, one for each method.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let matched =
        ROUTES.iter().filter(|route| endpoint.serves(route) && route.method == method).find_map(match_route);
    let matched =
        matched.or_else(|| ROUTES.iter().filter(|route| endpoint.serves(route)).find_map(match_route));
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    let is_dashboard = dashboard::is_dashboard_path(&path) && endpoint.serves(Operation::Dashboard.route());
    let matched =
        if is_dashboard { Some((Operation::Dashboard.route(), PathNames::default())) } else { matched };
    if let Err(reason) = endpoint.check_host(&request, matched.as_ref().map(|(route, _)| route.operation)) {
        let _ = read_body(request).await;
        return if is_dashboard {
            dashboard::wrong_host(&reason)
        } else {
            error(StatusCode::MISDIRECTED_REQUEST, reason)
        };
    }
    if path == "/" && is_read && dashboard::wants_html(endpoint, request.headers()) {
        return dashboard::redirect_home();
    }
    let mut caller_request =
        CallerRequest { plane: endpoint, caller: peer.caller.clone(), from: &peer.origin, verb: "unknown" };
    if let Some((route, _)) = matched {
        caller_request.verb = route.name;
    }
    let request = match is_dashboard {
        true => match dashboard::open(endpoint, peer, &path, request).await {
            Ok(request) => request,
            Err(response) => return response,
        },
        false => request,
    };
    let cookie_token = if is_dashboard { dashboard::cookie_token(request.headers()) } else { None };
    let verified = match endpoint.credential(peer, request.headers(), cookie_token) {
        Ok(credential) => credential.verify().await,
        Err(reason) => Err(reason),
    };
    let proof = match verified {
        Ok((caller, proof)) => {
            if caller.kind != CredentialKind::None {
                peer.slot.mark_authenticated();
            }
            caller_request.caller = caller;
            proof
        }
        Err(reason) => {
            let _ = read_body(request).await;
            let response = caller_request.unauthenticated(reason.clone());
            return if is_dashboard {
                dashboard::unauthenticated(endpoint, response, reason)
            } else {
                response
            };
        }
    };
    let mut response = handle_authenticated(caller_request, &path, matched, request).await;
    if let Some(proof) = proof {
        proof.add_to(&mut response);
    }
    response
}

/// Handles a request of an authenticated caller.
async fn handle_authenticated(
    caller_request: CallerRequest<'_>,
    path: &str,
    matched: Option<(&'static ApiRoute, PathNames<'_>)>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let endpoint = caller_request.plane;
    if matched.is_none()
        && endpoint.capability != EndpointCapability::Report
        && let Some(other_kind) = serving_process_kind(endpoint, path)
    {
        let process_kind = endpoint.backend.process_kind().name();
        let reason = format!("a {process_kind} has no {path}: a {other_kind} does; see / for what there is");
        return error(StatusCode::NOT_FOUND, reason);
    }
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match matched {
        Some((ApiRoute { operation: Operation::Dashboard, .. }, _))
            if request.method() == Method::POST && dashboard::is_form_path(path) =>
        {
            submit_form(caller_request, request).await
        }
        Some((route, path_names)) if route.method == "GET" && is_read => {
            answer_query(&caller_request, route, path_names.object, &request).await
        }
        Some((route, path_names)) if route.method != "GET" && request.method().as_str() == route.method => {
            perform(caller_request, route.operation, path_names, request).await
        }
        Some((_, PathNames { lease: Some(_), .. })) => {
            not_allowed("POST, DELETE", "use POST to renew the lease, DELETE to release it")
        }
        Some((_, PathNames { member: Some(_), .. })) => {
            not_allowed("PUT, DELETE", "use PUT to register the member, DELETE to take it away")
        }
        Some((ApiRoute { operation: Operation::Leases | Operation::EndLeases, .. }, _))
            if endpoint.capability == EndpointCapability::Command =>
        {
            not_allowed("GET, HEAD, DELETE", "use GET to see who has leases, DELETE to end them")
        }
        Some((route, _)) if route.method == "POST" => not_allowed("POST", "use POST"),
        _ if endpoint.capability == EndpointCapability::Report => {
            let lease_hint = if endpoint.grants_leases() { ", POST /v1/groups/NAME/bind" } else { "" };
            let registration_hint =
                if endpoint.registers_members() { ", PUT /v1/groups/NAME/members/MEMBER" } else { "" };
            let reason = format!(
                "there is nothing here but POST /v1/report{lease_hint}{registration_hint} and GET \
                 /v1/groups/NAME/ior"
            );
            error(StatusCode::NOT_FOUND, reason)
        }
        _ if is_read => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
        _ if endpoint.capability == EndpointCapability::Command => {
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
    fn unauthenticated(&self, reason: String) -> Response<ResponseBody> {
        self.plane.log_rejection(&self.audited(None, Value::Null), &reason);
        let mut response = error(StatusCode::UNAUTHORIZED, reason);
        for scheme in self.plane.schemes() {
            response.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
        response
    }

    /// Rejects an authenticated caller without the permission.
    fn reject(&self, target: Option<String>, arguments: Value, reason: String) -> (StatusCode, String) {
        self.plane.log_rejection(&self.audited(target, arguments), &reason);
        (StatusCode::FORBIDDEN, reason)
    }

    fn denial_message(&self, operation: Operation, group: Option<&str>) -> String {
        let scope_text = group.map_or_else(String::new, |group| format!(" in group {group}"));
        format!(
            "{} may not {}{scope_text}: no grant in [admin.access] gives it",
            self.caller,
            operation.description()
        )
    }
}

async fn answer_query(
    caller_request: &CallerRequest<'_>,
    route: &ApiRoute,
    name: Option<&str>,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let scope = caller_request.plane.granted_scope(&caller_request.caller, route.operation);
    let is_allowed = name.map_or(scope != GrantedScope::Denied, |name| scope.covers(name));
    if !is_allowed {
        let (status, reason) = caller_request.reject(
            name.map(str::to_owned),
            Value::Null,
            caller_request.denial_message(route.operation, name),
        );
        return match route.operation {
            Operation::Dashboard => {
                dashboard::forbidden(caller_request.plane, &caller_request.caller, status, reason)
            }
            _ => error(status, reason),
        };
    }
    let caller = caller_request.caller.clone();
    if route.operation == Operation::Dashboard {
        return dashboard::show_page(caller_request.plane, caller, request).await;
    }
    if let Some(response) = queries::respond_common(caller_request.plane, route.operation) {
        return response;
    }
    if route.operation == Operation::Health
        && let Some(group) = queries::queried_groups(request).next()
        && caller_request.plane.backend.process_kind() != ProcessKind::Balancer
    {
        let process_kind = caller_request.plane.backend.process_kind().name();
        return error(StatusCode::NOT_FOUND, format!("there is no group {group}: a {process_kind} has none"));
    }
    match &caller_request.plane.backend {
        AdminBackend::Balancer(balancer) => {
            if let Some(response) = queries::full_response(balancer, route.operation, &scope).await {
                return response;
            }
            queries::respond(caller_request.plane, balancer, caller, route.operation, name, scope, request)
        }
        AdminBackend::Lottery(daemon) => {
            lottery::respond(caller_request.plane, daemon, route.operation, &scope).await
        }
        AdminBackend::Supervisor(supervisor) => {
            supervisor::respond(caller_request.plane, supervisor, &caller, route.operation, name, &scope)
                .await
        }
    }
}

async fn perform(
    caller_request: CallerRequest<'_>,
    operation: Operation,
    path_names: PathNames<'_>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    // Any page on the web could make a browser in this network send a form.
    let is_cross_origin = request.headers().contains_key(ORIGIN);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = match read_body(request).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    match authorize_command(&caller_request, operation, path_names, (&query, &body), is_cross_origin) {
        Ok((command, audited_request)) => {
            commands::respond(caller_request.plane, command, audited_request).await
        }
        Err((status, reason)) => error(status, reason),
    }
}

/// Parses the command and checks the permission; rejected attempts are logged.
fn authorize_command(
    caller_request: &CallerRequest<'_>,
    operation: Operation,
    path_names: PathNames<'_>,
    (query, body): (&str, &[u8]),
    is_cross_origin: bool,
) -> Result<(AdminCommand, AuditedRequest), (StatusCode, String)> {
    let scope = caller_request.plane.granted_scope(&caller_request.caller, operation);
    if scope == GrantedScope::Denied {
        return Err(caller_request.reject(
            path_names.object.map(str::to_owned),
            Value::Null,
            caller_request.denial_message(operation, None),
        ));
    }
    if is_cross_origin {
        let operation_name = match operation {
            Operation::Report
            | Operation::Bind
            | Operation::Renew
            | Operation::Release
            | Operation::Register
            | Operation::Deregister => operation.name(),
            _ => "act",
        };
        return Err((StatusCode::FORBIDDEN, format!("web pages may not {operation_name}")));
    }
    let command =
        AdminCommand::parse(caller_request.plane.backend.process_kind(), operation, path_names, query, body)
            .map_err(|reason| (StatusCode::BAD_REQUEST, reason))?;
    let group = command.group().unwrap_or_default();
    if scope != GrantedScope::All && (group.is_empty() || !scope.covers(group)) {
        let reason = match (group, command.object_without_group()) {
            ("", Some(object_description)) => format!(
                "{} may {operation} in some groups only, and {object_description} is of none: that takes a \
                 role with groups = \"all\"",
                caller_request.caller
            ),
            ("", None) => {
                format!("{} may {operation} in some groups only: name the group", caller_request.caller)
            }
            (group, _) => caller_request.denial_message(operation, Some(group)),
        };
        return Err(caller_request.reject(command.target(), command.arguments(), reason));
    }
    let audited_request = caller_request.audited(command.target(), command.arguments());
    Ok((command, audited_request))
}

/// Handles a form of the dashboard, which has described the effect.
async fn submit_form(
    caller_request: CallerRequest<'_>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let endpoint = caller_request.plane;
    let action = match dashboard::read_form(endpoint, &caller_request.caller, request).await {
        Ok(action) => action,
        Err(response) => return response,
    };
    let caller_request = CallerRequest { verb: action.operation.name(), ..caller_request };
    let body = action.body().to_string();
    let outcome = match authorize_command(
        &caller_request,
        action.operation,
        PathNames::default(),
        ("", body.as_bytes()),
        false,
    ) {
        Ok((command, audited_request)) => commands::execute_logged(endpoint, command, audited_request).await,
        Err(rejection) => Err(rejection),
    };
    dashboard::outcome_page(endpoint, &caller_request.caller, &action, &outcome)
}
