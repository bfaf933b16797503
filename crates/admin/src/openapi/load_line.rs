//! Load lines in the OpenAPI document.

use serde_json::{Value, json};

/// Returns the schema of a number that may be unknown.
fn known() -> Value {
    json!({"type": ["number", "null"]})
}

/// Returns the schema of a group's load line.
pub(super) fn group() -> Value {
    let predicted = json!({
        "type": "object", "required": ["load", "requests_per_second"],
        "properties": {
            "load": {"type": "number"}, "requests_per_second": {"type": "number"},
            "p50": known(), "p99": known(),
        },
    });
    let what_if = json!({
        "type": "object", "required": ["change", "about", "capacity", "headroom", "over"],
        "properties": {
            "change": {"type": "string", "enum": ["minus_one", "plus_one", "double"]},
            "about": {"type": "string"}, "capacity": known(), "headroom": known(),
            "over": {"type": ["boolean", "null"]}, "p99": known(),
        },
    });
    let verdicts = ["good", "fair", "poor", "unproven", "range", "unknown"];
    json!({
        "type": "object",
        "required": [
            "requests_per_second", "capacity", "headroom", "verdict", "why", "error", "predictions_checked",
        ],
        "properties": {
            "requests_per_second": {"type": "number"}, "capacity": known(), "capacity_low": known(),
            "capacity_high": known(), "balancer_capacity": known(),
            "limited_by": {"type": "string", "enum": ["members", "balancer", ""]},
            "headroom": known(), "verdict": {"type": "string", "enum": verdicts},
            "why": {"type": "string"}, "error": known(), "predictions_checked": {"type": "integer"},
            "checked_up_to": {"type": "number"}, "age_seconds": {"type": "number"},
            "predicted": {"type": "array", "items": predicted},
            "what_if": {"type": "array", "items": what_if},
        },
    })
}

/// Returns the schema of a member's load line.
pub(super) fn member() -> Value {
    json!({
        "type": "object",
        "required": ["requests_per_second"],
        "properties": {
            "requests_per_second": {"type": "number"}, "capacity": known(), "capacity_low": known(),
            "capacity_high": known(), "used": known(), "source": {"type": ["string", "null"]},
        },
    })
}
