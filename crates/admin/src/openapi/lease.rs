//! Leases in the OpenAPI document.

use serde_json::{Value, json};

use crate::balancer::LEASE_SECONDS;

/// Returns the schema of a lease.
pub(super) fn lease() -> Value {
    let text = || json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["member", "address", "lease", "lease_seconds", "moved", "why"],
        "properties": {
            "member": text(), "address": text(), "lease": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "lease_seconds": {"type": "number"}, "moved": {"type": "boolean"}, "why": text(),
        },
    })
}

/// Returns the schema of a request for a lease.
pub(super) fn request() -> Value {
    let mut wish = renewal();
    wish["properties"]["key"] = json!({"type": ["string", "null"], "maxLength": 256});
    wish
}

/// Returns the schema of a renewal.
pub(super) fn renewal() -> Value {
    let seconds = json!({
        "type": ["number", "null"], "minimum": LEASE_SECONDS.start(), "maximum": LEASE_SECONDS.end(),
    });
    let exclude = json!({"type": "array", "items": {"type": "string", "maxLength": 256}, "maxItems": 64});
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {"lease_seconds": seconds, "exclude": exclude},
    })
}

/// Returns the schema of the holders of a group's leases.
pub(super) fn list() -> Value {
    let count = || json!({"type": "integer", "minimum": 0});
    let lessee = json!({
        "type": "object",
        "required": ["member", "from", "leases", "left_seconds"],
        "properties": {
            "member": {"type": ["string", "null"]}, "from": {"type": ["string", "null"]},
            "leases": count(), "left_seconds": {"type": "number"},
        },
    });
    json!({
        "type": "object",
        "required": ["schema", "group", "leases", "lessees"],
        "properties": {
            "schema": count(), "group": {"type": "string"}, "leases": count(),
            "lessees": {"type": "array", "items": lessee},
        },
    })
}

/// Returns the schema of the leases to end.
pub(super) fn end_request() -> Value {
    let from = json!({"anyOf": [
        {"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}, {"type": "null"},
    ]});
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {"member": {"type": ["string", "null"]}, "from": from},
    })
}

/// Returns the schema of the number of ended leases.
pub(super) fn ended() -> Value {
    json!({
        "type": "object",
        "required": ["ended"],
        "properties": {"ended": {"type": "integer", "minimum": 0}},
    })
}
