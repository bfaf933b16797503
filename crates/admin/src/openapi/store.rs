//! The store in the OpenAPI document.

use serde_json::{Value, json};

/// Returns the schema of the store's status; null without a store.
pub(super) fn status() -> Value {
    let count = || json!({"type": "integer"});
    json!({
        "type": ["object", "null"],
        "required": ["kind", "place", "revision", "entries", "failures", "conflicts", "reads"],
        "properties": {
            "kind": {"type": "string"}, "place": {"type": "string"}, "revision": count(), "entries": count(),
            "failures": count(), "conflicts": count(), "reads": count(),
            "error": {"type": ["string", "null"]}, "failing_seconds": {"type": ["number", "null"]},
            "doubt": {"type": ["string", "null"]}, "doubted_seconds": {"type": ["number", "null"]},
        },
    })
}
