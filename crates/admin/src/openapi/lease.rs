//! Leases in the OpenAPI document.

use serde_json::{Value, json};

use crate::subject::LEASE_SECONDS;

/// What a client gets.
pub(super) fn given() -> Value {
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

/// What it asks for.
pub(super) fn wish() -> Value {
    let mut wish = renewal();
    wish["properties"]["key"] = json!({"type": ["string", "null"], "maxLength": 256});
    wish
}

/// What it may say when it comes again.
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
