//! The admin plane as an OpenAPI 3.1 document, generated from the table of operations.
//!
//! Objects are described as far as programs may rely on them: fields may be added.

use serde_json::{Map, Value, json};

use crate::api::{ApiRoute, OperationClass, OperationScope, ProcessKind, ROUTES, RequestKind, ResponseKind};

mod lease;
mod load_line;
mod lottery;
mod member;
mod scaler;
mod store;
mod upgrade;

/// Returns the whole document: the paths of balancers, lottery daemons and Supervisors, with the servers of
/// each (`x-served-by`).
pub fn document() -> Value {
    build_document(None)
}

/// Returns the document of one kind of process.
pub fn document_of(process_kind: ProcessKind) -> Value {
    build_document(Some(process_kind))
}

fn build_document(process_kind: Option<ProcessKind>) -> Value {
    let mut paths = Map::new();
    for route in
        ROUTES.iter().filter(|route| process_kind.is_none_or(|process_kind| route.is_served_by(process_kind)))
    {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.to_ascii_lowercase()] = operation(route, process_kind);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll",
            "summary": "What a running balancer, lottery daemon or Supervisor shows, and what can be done \
             with it.",
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": "https://127.0.0.1:9905", "description": "[admin] control = \"tls://…\": everything, \
                with a credential"},
            {"url": "http://127.0.0.1:9900", "description": "[admin] listen: what only looks, without"},
        ],
        "security": [{"certificate": []}, {"token": []}, {"ticket": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "certificate": {"type": "mutualTLS", "description": "a client certificate with an SPIFFE id"},
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "ticket": {"type": "http", "scheme": "negotiate", "description": "a Kerberos ticket, bound \
                 to the connection by tls-exporter, where [admin.kerberos] is set"},
            },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &ApiRoute, process_kind: Option<ProcessKind>) -> Value {
    let (status, response_kind) = route.response;
    let mut responses = Map::new();
    responses.insert(status.to_string(), response(route, response_kind));
    let mut error_responses = vec![
        (401, "no credential, or one that does not count (control over TLS)"),
        (403, "the caller has no role with this verb (control over TLS)"),
    ];
    match route.request {
        RequestKind::Nothing => {}
        RequestKind::Groups => error_responses.push((404, "there is no such group")),
        RequestKind::ShutdownMode => error_responses.push((400, "the query is malformed")),
        RequestKind::Since => {
            error_responses.extend([(400, "the query is malformed"), (503, "too many event streams")])
        }
        RequestKind::Report => error_responses.extend([
            (400, "the body is malformed"),
            (404, "there is no such group or member"),
            (413, "the body is longer than 16 KiB"),
            (422, "a value cannot be used"),
            (429, "reports of this member come too fast"),
        ]),
        RequestKind::LeaseRequest | RequestKind::Renewal | RequestKind::Registration => {
            error_responses.extend([(400, "the body is malformed"), (413, "the body is longer than 16 KiB")])
        }
        RequestKind::EndLeases
        | RequestKind::Member
        | RequestKind::Switch
        | RequestKind::Setting
        | RequestKind::Secret
        | RequestKind::KeyId
        | RequestKind::Upgrade => {
            error_responses.extend([(400, "the body is malformed"), (413, "the body is longer than 16 KiB")])
        }
    }
    if route.request == RequestKind::Upgrade {
        error_responses.push((409, "an upgrade or another command is under way"));
    }
    if route.request == RequestKind::LeaseRequest {
        error_responses.push((429, "every member has as much to do as it can, or there are too many leases"));
        error_responses.push((503, "there is no member that could be used"));
    }
    if matches!(route.name, "register" | "deregister") {
        error_responses.push((400, "the body is malformed"));
        error_responses.push((422, "it cannot be so; nothing has changed"));
        error_responses.push((503, "where it would be kept is away, or the audit log cannot be written"));
    }
    if route.operation.changes_state() {
        error_responses.push((422, "it cannot be done; nothing has changed"));
        error_responses.push((503, "the audit log cannot be written; nothing has changed"));
    }
    match route.object_placeholder() {
        Some("group") if route.placeholders().any(|name| name == "lease") => {
            error_responses.push((400, "there is a body, and it is malformed"));
            error_responses.push((404, "there is no such group, or it has no such lease any more"));
        }
        Some("group") => error_responses.push((404, "there is no such group, or it has none")),
        Some(_) => {
            error_responses.push((404, "there is no such process"));
            if route.operation.changes_state() {
                error_responses.push((400, "the query is malformed"));
            }
        }
        None => {}
    }
    if route.name == "health" {
        responses.insert("503".into(), response(route, ResponseKind::Text));
    }
    for (status, description) in error_responses {
        let content = match response_kind {
            ResponseKind::Html => json!({"text/html": {"schema": {"type": "string"}}}),
            _ => json!({"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}),
        };
        responses.insert(status.to_string(), json!({"description": description, "content": content}));
    }
    if let RequestKind::Report = route.request {
        let content = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Shed"}}});
        let description = "taken; the member is under alert and is to let go this part of its sessions";
        responses.insert("200".into(), json!({"description": description, "content": content}));
    }
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.summary,
        "description": required_permission(route),
        "x-verb": route.name,
        "x-served-by": route.served_by.iter().map(|by| by.name()).collect::<Vec<_>>(),
        "responses": responses,
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = request_body(route, process_kind) {
        operation["requestBody"] = body;
    }
    operation
}

fn required_permission(route: &ApiRoute) -> String {
    let roles = match route.class {
        OperationClass::Query => "viewer, operator or admin",
        OperationClass::Operate => "operator or admin",
        OperationClass::Administer | OperationClass::Automate => "admin",
    };
    let scope_text = match route.scope {
        OperationScope::Process => "It is about the whole process.",
        OperationScope::Groups => "A role of some groups sees those.",
        OperationScope::Group => "A role of some groups has it for those.",
    };
    let served_by: Vec<&str> = route.served_by.iter().map(|served_by| served_by.name()).collect();
    format!(
        "Verb `{}`: role {roles}, or one of your own. {scope_text} Served by: {}.",
        route.name,
        served_by.join(", ")
    )
}

fn parameters(route: &ApiRoute) -> Vec<Value> {
    let mut parameters = Vec::new();
    for name in route.placeholders() {
        let schema = json!({"type": "string"});
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if route.request == RequestKind::ShutdownMode {
        let children = json!({"type": "string", "enum": ["stop", "leave"], "default": "stop"});
        parameters.push(json!({"name": "children", "in": "query", "schema": children}));
    }
    if route.request == RequestKind::Groups {
        let description =
            "a balancer's group that has to have a usable member and refuse no requests; may be repeated";
        let schema = json!({"type": "array", "items": {"type": "string"}});
        parameters.push(json!({
            "name": "group", "in": "query", "schema": schema, "explode": true, "description": description,
        }));
    }
    if route.request == RequestKind::Since {
        let since = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
        let follow = json!({"type": "string", "enum": ["0", "1"]});
        let id = json!({"type": "string"});
        parameters.push(json!({"name": "since", "in": "query", "schema": since}));
        parameters.push(json!({"name": "follow", "in": "query", "schema": follow}));
        parameters.push(json!({"name": "Last-Event-ID", "in": "header", "schema": id}));
    }
    parameters
}

/// Returns the bodies that daemons take in another form than balancers; `None` if there is no difference.
fn of_daemon(request_kind: RequestKind) -> Option<(bool, Option<&'static str>)> {
    match request_kind {
        // Drains the daemon as a whole.
        RequestKind::Member => Some((false, None)),
        RequestKind::Switch => Some((false, Some("ServiceSwitch"))),
        RequestKind::Setting => Some((true, Some("ServiceSetting"))),
        RequestKind::Report => Some((true, Some("OwnReport"))),
        _ => None,
    }
}

fn request_body(route: &ApiRoute, process_kind: Option<ProcessKind>) -> Option<Value> {
    let request_kind = route.request;
    let daemon_body = of_daemon(request_kind)
        .filter(|_| route.is_served_by(ProcessKind::Lottery) && process_kind != Some(ProcessKind::Balancer));
    let Some((required, name)) = daemon_body else { return balancer_body(request_kind) };
    let daemon_schema = name.map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
    if process_kind == Some(ProcessKind::Lottery) {
        let content = json!({"application/json": {"schema": daemon_schema?}});
        return Some(json!({"required": required, "content": content}));
    }
    // The whole document contains both forms.
    let mut body = balancer_body(request_kind)?;
    let schema = body["content"]["application/json"]["schema"].take();
    let schemas: Vec<Value> = [schema].into_iter().chain(daemon_schema).collect();
    body["content"]["application/json"]["schema"] = match schemas.as_slice() {
        [only_schema] => only_schema.clone(),
        _ => json!({"anyOf": schemas}),
    };
    body["required"] = required.into();
    Some(body)
}

fn balancer_body(request_kind: RequestKind) -> Option<Value> {
    let schema_ref = |name: &str| json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
    let name = match request_kind {
        RequestKind::LeaseRequest => Some("Wish"),
        RequestKind::Renewal => Some("Renewal"),
        RequestKind::EndLeases => Some("Lessees"),
        RequestKind::Registration => Some("Registration"),
        RequestKind::Upgrade => Some("Upgrade"),
        _ => None,
    };
    if let Some(name) = name {
        return Some(json!({"required": false, "content": {"application/json": schema_ref(name)}}));
    }
    let content = match request_kind {
        RequestKind::LeaseRequest
        | RequestKind::Renewal
        | RequestKind::EndLeases
        | RequestKind::Registration
        | RequestKind::Upgrade => return None,
        RequestKind::Nothing | RequestKind::Groups | RequestKind::Since | RequestKind::ShutdownMode => {
            return None;
        }
        RequestKind::Secret => json!({"application/json": schema_ref("Key")}),
        RequestKind::KeyId => json!({"application/json": schema_ref("KeyId")}),
        RequestKind::Report => json!({"application/json": schema_ref("Report")}),
        RequestKind::Member => json!({"application/json": schema_ref("Target")}),
        RequestKind::Switch => json!({"application/json": schema_ref("Switch")}),
        RequestKind::Setting => json!({"application/json": schema_ref("Setting")}),
    };
    Some(json!({"required": true, "content": content}))
}

fn response(route: &ApiRoute, response_kind: ResponseKind) -> Value {
    let text = json!({"schema": {"type": "string"}});
    let content = match response_kind {
        ResponseKind::Text => json!({"text/plain": text}),
        ResponseKind::Page => json!({"text/plain": text}),
        ResponseKind::Html => json!({"text/html": text}),
        ResponseKind::Object(name) => {
            json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}})
        }
        ResponseKind::Stream => {
            let entries = json!({"type": "array", "items": {"$ref": "#/components/schemas/Entry"}});
            json!({"text/event-stream": text, "application/json": {"schema": entries}})
        }
        ResponseKind::Shed => return json!({"description": "taken"}),
        ResponseKind::Nothing => return json!({"description": route.summary}),
    };
    json!({"description": route.summary, "content": content})
}

fn schemas() -> Value {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "array", "items": {"type": "string"}});
    let object = |required: &[&str], properties: Value| {
        json!({
            "type": "object", "required": required, "properties": properties,
        })
    };
    let closed_object = |required: &[&str], properties: Value| {
        let mut schema = object(required, properties);
        schema["additionalProperties"] = false.into();
        schema
    };
    let member = || {
        let properties = json!({
            "name": {"type": "string"}, "address": {"type": "string"}, "state": {"type": "string"},
            "why": {"type": "string"}, "capacity": {"type": "number"}, "weight": {"type": "number"},
            "in_flight": {"type": "integer"},
            "requests": {"type": "integer"}, "failures": {"type": "integer"},
            "slow_seconds": {"type": ["number", "null"]},
            "refused": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
            "load_line": {"anyOf": [{"$ref": "#/components/schemas/MemberLoadLine"}, {"type": "null"}]},
        });
        object(&["name", "address", "state", "why", "capacity", "in_flight", "requests"], properties)
    };
    let source = json!({
        "kind": {"type": "string"}, "what": {"type": "string"}, "members": {"type": "integer"},
        "age_seconds": {"type": ["number", "null"]}, "failures": {"type": "integer"},
        "error": {"type": ["string", "null"]}, "failing_seconds": {"type": ["number", "null"]},
    });
    let source = object(&["kind", "what", "members", "failures"], source);
    let group = json!({
        "name": {"type": "string"}, "strategy": {"type": "string"}, "verdict": {"type": "string"},
        "healthy": {"type": "boolean"}, "shedding_seconds": {"type": ["number", "null"]},
        "shedding_share": {"type": ["number", "null"]}, "shedding_reason": {"type": ["string", "null"]},
        "members": {"type": "array", "items": member()},
        "discovery": {"type": "array", "items": source},
        "scaler": {"anyOf": [{"$ref": "#/components/schemas/Scaler"}, {"type": "null"}]},
        "load_line": {"anyOf": [{"$ref": "#/components/schemas/LoadLine"}, {"type": "null"}]},
    });
    let listener = json!({
        "address": {"type": "string"}, "protocol": {"type": "string"}, "group": {"type": "string"},
        "others": {"type": "array", "items": {"type": "string"}},
        "connections": {"type": "integer"}, "accepted": {"type": "integer"}, "refused": {"type": "integer"},
    });
    let group = object(&["name", "strategy", "verdict", "healthy", "members"], group);
    let listener = object(&["address", "protocol", "group"], listener);
    let status = json!({
        "schema": {"type": "integer"}, "version": {"type": "string"}, "pid": {"type": "integer"},
        "uptime_seconds": {"type": "number"}, "stopping": {"type": "boolean"},
        "memory": {"type": "object", "properties": {
            "budget_bytes": {"type": "integer"}, "kept_bytes": {"type": "integer"},
            "refused": {"type": "integer"},
        }},
        "last_reload_successful": {"type": "boolean"}, "store": store::status(),
        "listeners": {"type": "array", "items": listener}, "groups": {"type": "array", "items": group},
    });
    let entry = json!({
        "seq": {"type": "integer"}, "unix_ms": {"type": "integer"}, "kind": {"type": "string"},
        "group": {"type": "string"}, "member": {"type": ["string", "null"]}, "why": {"type": "string"},
        "inputs": {"type": "object", "additionalProperties": {"type": "number"}},
    });
    let reference = json!({
        "group": {"type": "string"}, "type_id": {"type": "string"},
        "ior": {"type": "string"}, "corbaloc": {"type": "string"},
    });
    // One value with its name, or several under their names, or both.
    let report = |min_properties: usize, name: Value, value: Value| {
        let values = json!({
            "type": "object", "additionalProperties": number(json!("number")),
            "minProperties": min_properties,
        });
        let mut age = number(json!(["number", "null"]));
        age["minimum"] = 0.into();
        json!({
            "group": {"type": ["string", "null"]}, "member": {"type": "string", "minLength": 1},
            "name": {"type": name}, "value": number(value), "values": values,
            "age_seconds": age,
        })
    };
    let lottery_document = |min_properties: usize, name: Value, value: Value| {
        let mut properties = report(min_properties, name, value);
        properties["member"] = json!({"type": ["string", "null"]});
        properties
    };
    let own_report = json!({"anyOf": [
        closed_object(&["name", "value"], lottery_document(0, json!("string"), json!("number"))),
        closed_object(&["values"], lottery_document(1, json!("null"), json!("null"))),
    ]});
    let report = json!({"anyOf": [
        closed_object(&["member", "name", "value"], report(0, json!("string"), json!("number"))),
        closed_object(&["member", "values"], report(1, json!("null"), json!("null"))),
    ]});
    let shed =
        object(&["share", "epoch"], json!({"share": {"type": "number"}, "epoch": {"type": "integer"}}));
    let target = json!({
        "group": {"type": ["string", "null"]}, "member": {"type": "string", "minLength": 1},
    });
    let process = json!({
        "name": text(), "command": texts(), "state": text(), "why": text(),
        "since_unix_ms": {"type": "integer"}, "pid": {"type": ["integer", "null"]},
        "outdated": {"type": "boolean"}, "restarts": {"type": "integer"}, "failures": {"type": "integer"},
    });
    let supervisor_status = json!({
        "schema": {"type": "integer"}, "version": text(), "pid": {"type": "integer"},
        "stopping": {"type": "boolean"}, "reload_error": {"type": ["string", "null"]},
        "processes": {"type": "array", "items": {"$ref": "#/components/schemas/Process"}},
    });
    json!({
        "Changes": object(&["changes"], json!({"changes": texts()})),
        "Daemon": lottery::daemon(),
        "Deregistered": member::deregistered(),
        "Document": object(&["openapi", "paths"], json!({"openapi": text()})),
        "Drained": object(&["draining"], json!({"draining": text()})),
        "Ending": object(
            &["stopping", "children"],
            json!({"stopping": {"type": "boolean"}, "children": text()}),
        ),
        "Entry": object(&["seq", "unix_ms", "kind", "group", "why"], entry),
        "Error": object(&["error"], json!({"error": text()})),
        "GroupExplanation": object(
            &["name", "members"],
            json!({"name": text(), "members": {"type": "array"}}),
        ),
        "Household": object(&["schema", "version", "pid", "stopping", "processes"], supervisor_status),
        "Key": lottery::key(),
        "KeyId": lottery::key_id(),
        "Keys": lottery::keys(),
        "Lease": lease::lease(),
        "Leases": lease::list(),
        "LeasesEnded": lease::ended(),
        "Lessees": lease::end_request(),
        "LoadLine": load_line::group(),
        "Scaler": scaler::group(),
        "MemberLoadLine": load_line::member(),
        "Process": object(&["name", "command", "state", "why", "restarts", "failures"], process),
        "Recent": member::recent(),
        "Registered": member::registered(),
        "Registration": member::registration(),
        "Reference": object(&["group", "type_id", "ior", "corbaloc"], reference),
        "Renewal": lease::renewal(),
        "Report": report,
        "OwnReport": own_report,
        "ServiceSetting": lottery::setting(),
        "ServiceSwitch": lottery::switch(),
        "Setting": closed_object(
            &["group", "key", "value"],
            json!({"group": text(), "key": text(), "value": text()}),
        ),
        "Shed": object(&["shed"], json!({"shed": shed})),
        "Status": object(&["schema", "version", "pid", "listeners", "groups"], status),
        "Stopping": object(&["stopping"], json!({"stopping": {"type": "boolean"}})),
        "Switch": json!({"oneOf": [
            closed_object(&["member"], target.clone()),
            closed_object(&["listener"], json!({"listener": text()})),
            closed_object(&["balancing"], json!({"balancing": text()})),
        ]}),
        "Target": closed_object(&["member"], target),
        "Upgrade": upgrade::request(),
        "Upgraded": upgrade::result(),
        "Undrained": object(&["undrained"], json!({"undrained": text()})),
        "Wish": lease::request(),
    })
}

/// Returns the schema of a double.
fn number(kind: Value) -> Value {
    json!({"type": kind, "minimum": f64::MIN, "maximum": f64::MAX})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_refers_to_is_there_and_every_verb_is_in_it() {
        let document = document();
        let text = document.to_string();
        let mut reference_count = 0;
        for fragment in text.split("\"#").skip(1) {
            let pointer = fragment.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            reference_count += 1;
        }
        assert!(reference_count > 20, "{reference_count}");
        for route in ROUTES {
            let operation = &document["paths"][route.path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["x-verb"], route.name);
            assert_eq!(operation["x-served-by"].as_array().unwrap().len(), route.served_by.len());
        }
        let lottery_document = document_of(ProcessKind::Lottery);
        assert!(lottery_document["paths"]["/v1/drain"]["post"]["requestBody"].is_null());
        let schema_pointer = "/paths/~1v1~1set/post/requestBody/content/application~1json/schema";
        let schema = |process_kind: Option<ProcessKind>| {
            build_document(process_kind).pointer(schema_pointer).unwrap().clone()
        };
        assert_eq!(
            schema(Some(ProcessKind::Lottery)),
            json!({"$ref": "#/components/schemas/ServiceSetting"})
        );
        assert_eq!(schema(Some(ProcessKind::Balancer)), json!({"$ref": "#/components/schemas/Setting"}));
        assert_eq!(
            schema(None),
            json!({"anyOf": [schema(Some(ProcessKind::Balancer)), schema(Some(ProcessKind::Lottery))]})
        );
        assert!(
            lottery_document["paths"]["/v1/keys/accept"].is_object()
                && lottery_document["paths"]["/v1/shutdown"].is_null()
        );
    }

    /// The document is written by `plimsoll config openapi > docs/schema/openapi.json`.
    #[test]
    fn the_committed_one_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let generated = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        assert!(committed == generated, "{path} is old: plimsoll config openapi > docs/schema/openapi.json");
    }
}
