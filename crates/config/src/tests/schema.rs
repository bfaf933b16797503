//! The JSON Schema: it is current, describes every key, and every key of it is tested.

use std::fs;

use serde_json::Value;

use super::super::schema;
use super::{ALL, ENDPOINTS, root};

#[test]
fn no_key_of_the_schema_is_missing_in_the_test_of_all() {
    fn keys(schema: &Value, collected: &mut Vec<String>) {
        match schema {
            Value::Object(map) => {
                if let Some(Value::Object(properties)) = map.get("properties") {
                    collected.extend(properties.keys().cloned());
                }
                map.iter()
                    .filter(|(name, _)| *name != "Strategy")
                    .for_each(|(_, value)| keys(value, collected));
            }
            Value::Array(items) => items.iter().for_each(|value| keys(value, collected)),
            _ => {}
        }
    }
    let mut all_keys = Vec::new();
    keys(schema().as_value(), &mut all_keys);
    assert!(all_keys.len() > 40);
    // The exceptions are one of two keys that exclude one another, and keys that not every build supports.
    let tested_elsewhere = ["jwks_file", "kerberos", "keytab"];
    for key in all_keys.into_iter().filter(|key| !tested_elsewhere.contains(&key.as_str())) {
        let has_key = |text: &str| text.contains(&format!("{key} = ")) || text.contains(&format!("{key}]"));
        let is_covered = has_key(ALL) || has_key(ENDPOINTS);
        assert!(is_covered, "`{key}` is not in ALL");
    }
}

#[test]
fn the_committed_schema_is_current() {
    let path = root().join("docs/schema/plimsoll.schema.json");
    let committed_text = fs::read_to_string(path).unwrap();
    assert!(
        committed_text == format!("{:#}\n", schema().as_value()),
        "run: cargo run -p plimsoll -- config schema > docs/schema/plimsoll.schema.json"
    );
}

#[test]
fn the_schema_says_what_each_key_is_and_bounds_each_number() {
    fn walk(name: &str, schema: &Value) {
        match schema {
            Value::Object(map) => {
                if map.get("type").is_some_and(|kind| kind == "integer" || kind == "number") {
                    assert!(
                        map.contains_key("minimum") && map.contains_key("maximum"),
                        "{name} has no bounds"
                    );
                }
                if let Some(Value::Object(properties)) = map.get("properties") {
                    for (name, property) in properties {
                        let strategy = plimsoll_brain::strategy::find(name).is_some();
                        assert!(strategy || property.get("description").is_some(), "{name} is not described");
                    }
                }
                map.iter().for_each(|(name, value)| walk(name, value));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(name, value)),
            _ => {}
        }
    }
    walk("file", schema().as_value());
}
