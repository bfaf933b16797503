//! Upgrades in the OpenAPI document.

use serde_json::{Value, json};

use crate::UPGRADE_SECONDS;

/// Returns the schema of the request.
pub(super) fn request() -> Value {
    let seconds = json!({
        "type": ["number", "null"], "minimum": UPGRADE_SECONDS.start(), "maximum": UPGRADE_SECONDS.end(),
    });
    json!({
        "type": "object", "required": [], "additionalProperties": false,
        "properties": {
            "binary": {"type": ["string", "null"], "description": "by the control socket only"},
            "timeout_seconds": seconds,
        },
    })
}

/// Returns the schema of the result.
pub(super) fn result() -> Value {
    json!({
        "type": "object", "required": ["pid", "version", "connections"],
        "properties": {
            "pid": {"type": "integer"}, "version": {"type": "string"}, "connections": {"type": "integer"},
        },
    })
}
