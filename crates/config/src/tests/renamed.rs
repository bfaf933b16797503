//! Keys with a new name: each old key is one error, which names the new key.

use super::*;
use crate::renamed::RENAMED_KEYS;

/// Returns [`ALL`] with the old name of a key, and the line and column of that key. The section of the key
/// is the last header above it, or the table in braces that begins on its line.
fn with_old_key(section: &[&str], old: &str, new: &str) -> (String, usize, usize) {
    let text = all();
    let (mut lines, mut header) = (text.lines().map(str::to_owned).collect::<Vec<_>>(), String::new());
    for (number, line) in lines.iter_mut().enumerate() {
        let own = line.trim_matches(['[', ']']).to_owned();
        let column = match line.split_once(" = {").map(|(table, _)| format!("{header}.{table}")) {
            // A table with a header of its own.
            _ if line.starts_with('[') && own == format!("{}.{new}", section.join(".")) => line.find(new),
            _ if line.starts_with('[') => {
                header = own;
                continue;
            }
            Some(table) if table == section.join(".") => line.find(&format!("{new} = ")),
            _ if header == section.join(".") => line.starts_with(&format!("{new} = ")).then_some(0),
            _ => None,
        };
        if let Some(column) = column {
            line.replace_range(column..column + new.len(), old);
            return (lines.join("\n"), number + 1, column + 1);
        }
    }
    panic!("no key `{new}` in {section:?}");
}

#[test]
fn an_old_key_is_one_error_that_names_the_new_one() {
    for key in RENAMED_KEYS {
        let (text, line, column) = with_old_key(key.section, key.old, key.new);
        let problems = read(&text).expect_err(key.old);
        let said = problems.to_string();
        let expected =
            format!("error: plimsoll.toml:{line}:{column}: `{}` is called `{}`\n", key.old, key.new);
        assert!(said.contains(&expected), "{expected}{said}");
        assert!(said.trim_end().lines().last().unwrap().starts_with("1 error"), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
    }
}

#[test]
fn new_keys_are_read_and_old_ones_are_not() {
    let schema = schema().as_value();
    for key in RENAMED_KEYS {
        let mut table = schema;
        for name in key.section {
            table = follow(schema, &table["properties"][name]);
        }
        let properties = table["properties"].as_object().unwrap();
        assert!(properties.contains_key(key.new), "{key:?}");
        assert!(!properties.contains_key(key.old), "{key:?}");
    }
}

/// Returns the table that a property refers to: directly, as an item of a list, or as one of several forms.
fn follow<'s>(root: &'s Value, property: &'s Value) -> &'s Value {
    if let Some(reference) = property["$ref"].as_str() {
        return follow(root, root.pointer(reference.trim_start_matches('#')).unwrap());
    }
    match property["anyOf"].get(0) {
        Some(form) => follow(root, form),
        None if property["items"].is_object() => follow(root, &property["items"]),
        None => property,
    }
}

#[test]
fn an_old_key_is_shown_at_its_place() {
    let text = format!("{MINIMAL}pool_idle = \"2s\"\n[group.hand_over]\nurl = \"http://a:1/\"\n");
    assert_snapshot!(errors(&text), @r#"
    error: plimsoll.toml:7:1: `pool_idle` is called `pool_idle_timeout`
        7 | pool_idle = "2s"
          | ^^^^^^^^^
    error: plimsoll.toml:8:8: `hand_over` is called `drain_hook`
        8 | [group.hand_over]
          |        ^^^^^^^^^
    2 errors
    "#);
    // The name alone is not enough: this section never had such a key.
    let elsewhere = errors(&MINIMAL.replace("group =", "pool = 3\ngroup ="));
    assert!(elsewhere.contains("3:1: unknown key `pool` in [[listener]]"), "{elsewhere}");
}
