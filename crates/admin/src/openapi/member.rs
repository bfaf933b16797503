//! Registered members in the OpenAPI document.

use serde_json::{Value, json};

use crate::member::REGISTER_SECONDS;

/// Returns the schema of a registration.
pub(super) fn registration() -> Value {
    let seconds = json!({
        "type": ["number", "null"], "minimum": REGISTER_SECONDS.start(), "maximum": REGISTER_SECONDS.end(),
    });
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "capacity": {"type": "number", "minimum": 0.001, "maximum": 1_000_000},
            "max_connections": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
            "ttl_seconds": seconds, "draining": {"type": "boolean"},
        },
    })
}

/// Returns the schema of the result of a registration.
pub(super) fn registered() -> Value {
    let text = || json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["group", "member", "address", "ttl_seconds", "draining", "in_flight"],
        "properties": {
            "group": text(), "member": text(), "address": text(), "ttl_seconds": {"type": ["number", "null"]},
            "draining": {"type": "boolean"}, "in_flight": {"type": "integer", "minimum": 0},
        },
    })
}

/// Returns the schema of the recent history of a group and its members.
pub(super) fn recent() -> Value {
    let known = || json!({"type": ["number", "null"]});
    let number = || json!({"type": "number", "minimum": 0});
    let second = json!({
        "type": "object",
        "required": ["age_seconds", "offered", "completed", "failed", "refused", "p50", "p99"],
        "properties": {
            "age_seconds": {"type": "number"}, "offered": number(), "completed": number(), "failed": number(),
            "refused": number(), "p50": known(), "p99": known(),
        },
    });
    let member = json!({
        "type": "object",
        "required": [
            "name", "requests_per_second", "failures_per_second", "moved", "in_flight", "p50", "p99",
        ],
        "properties": {
            "name": {"type": "string"}, "requests_per_second": number(), "failures_per_second": number(),
            "moved": {"type": "integer", "minimum": 0}, "in_flight": number(), "p50": known(), "p99": known(),
            "alert_above": known(), "reject_above": known(),
        },
    });
    json!({
        "type": "object", "required": ["seconds", "members"],
        "properties": {
            "seconds": {"type": "array", "items": second}, "members": {"type": "array", "items": member},
        },
    })
}

/// Returns the schema of a removed member.
pub(super) fn deregistered() -> Value {
    json!({
        "type": "object",
        "required": ["deregistered"],
        "properties": {"deregistered": {"type": "string"}},
    })
}
