//! Scalers in the OpenAPI document.

use serde_json::{Value, json};

/// Returns the schema of a group's scaler.
pub(super) fn group() -> Value {
    let providers = ["process", "systemd", "exec", "webhook", "docker", "kubernetes", "advice"];
    let count = || json!({"type": "integer", "minimum": 0});
    let member = json!({
        "type": "object", "required": ["index", "id", "member", "stage", "since_seconds"],
        "properties": {
            "index": count(), "id": {"type": "string"}, "member": {"type": ["string", "null"]},
            "stage": {"type": "string", "enum": ["asked", "coming", "serving", "draining", "stopping"]},
            "since_seconds": {"type": "number"},
        },
    });
    json!({
        "type": "object",
        "required": [
            "provider", "target", "desired", "members", "coming", "min", "max", "dry_run", "paused", "why",
        ],
        "properties": {
            "provider": {"type": "string", "enum": providers}, "target": {"type": "string"},
            "desired": count(), "members": count(), "coming": count(), "min": count(), "max": count(),
            "dry_run": {"type": "boolean"}, "paused": {"type": "boolean"}, "why": {"type": "string"},
            "actions": {"type": "array", "items": {"type": "string"}},
            "inputs": {"type": "object", "additionalProperties": {"type": "number"}},
            "age_seconds": {"type": ["number", "null"]}, "start_seconds": {"type": "number"},
            "failures": count(), "failure": {"type": ["string", "null"]}, "pause_seconds": {"type": "number"},
            "started": {"type": "array", "items": member},
        },
    })
}
