//! A lottery daemon's status and requests in the OpenAPI document.

use serde_json::{Value, json};

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn closed(required: &[&str], properties: Value) -> Value {
    let mut schema = object(required, properties);
    schema["additionalProperties"] = false.into();
    schema
}

fn text() -> Value {
    json!({"type": "string"})
}

fn numbers() -> Value {
    json!({"type": "array", "items": {"type": "integer"}})
}

/// Returns the schema of the status.
pub(super) fn daemon() -> Value {
    let service = json!({
        "name": text(), "id": {"type": "integer"}, "server": text(), "capacity": {"type": "integer"},
        "ready": {"type": "boolean"}, "enabled": {"type": "boolean"}, "load": {"type": ["number", "null"]},
        "in_flight": {"type": "integer"},
        "weight": {"type": "number"},
    });
    let seen = json!({
        "member": {"type": "integer"}, "address": text(), "state": text(),
        "suspect": {"type": "boolean"}, "differs": {"type": "boolean"}, "services": {"type": "array"},
    });
    let service = object(&["name", "id", "server", "capacity", "ready", "in_flight", "weight"], service);
    let seen = object(&["member", "address", "state", "suspect", "differs", "services"], seen);
    let daemon = json!({
        "schema": {"type": "integer"}, "version": text(), "pid": {"type": "integer"},
        "member": {"type": "integer"}, "address": text(), "state": text(), "stopping": {"type": "boolean"},
        "services": {"type": "array", "items": service}, "members": {"type": "array", "items": seen},
        "pending": {"type": "integer"}, "queued": {"type": "integer"},
        "sealing_key": {"type": "integer"}, "keys": numbers(), "client_keys": numbers(),
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "duplicate_share": {"type": "number"}, "digest_disagreement": {"type": "number"},
        "commit_delay_seconds": {"type": ["number", "null"]}, "step_seconds": {"type": "number"},
        "lag_seconds": {"type": "number"}, "prefer_referral": {"type": "boolean"},
        "remembers": {"type": "integer"}, "ttl_seconds": {"type": "number"},
        "slow_start_seconds": {"type": "number"}, "rate": {"type": "integer"},
    });
    object(
        &[
            "schema", "version", "pid", "member", "address", "state", "services", "members", "pending",
            "counts",
        ],
        daemon,
    )
}

fn id() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32})
}

/// Returns the schema of a new key.
pub(super) fn key() -> Value {
    let secret = json!({"type": "string", "pattern": "^[0-9a-fA-F]{64}$", "writeOnly": true});
    let role = json!({"type": "string", "enum": ["daemon", "client"], "default": "daemon"});
    closed(&["id", "secret"], json!({"id": id(), "secret": secret, "role": role}))
}

/// Returns the schema of a key's number.
pub(super) fn key_id() -> Value {
    closed(&["id"], json!({"id": id()}))
}

/// Returns the schema of the daemon's keys.
pub(super) fn keys() -> Value {
    object(
        &["member", "sealing", "keys", "others"],
        json!({
            "member": {"type": "integer"}, "sealing": id(), "keys": numbers(), "client_keys": numbers(),
            "others": numbers(),
        }),
    )
}

/// Returns the schema of a setting of the daemon, or of one of its services.
pub(super) fn setting() -> Value {
    let group = json!({"type": ["string", "null"]});
    closed(&["key", "value"], json!({"group": group, "key": text(), "value": text()}))
}

/// Returns the schema of one of its services, or all.
pub(super) fn switch() -> Value {
    let mut schema = closed(&[], json!({"balancing": {"type": ["string", "null"]}}));
    schema["type"] = json!(["object", "null"]);
    schema
}
