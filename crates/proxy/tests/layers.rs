//! The layers of this crate. A file names only items of its own layer and of lower ones, so that a layer can
//! be read, changed and tested without those above it. Tests and test utilities are exempt.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest to the highest. Each is a folder of `src`, with a file of the same name.
const LAYERS: [&str; 9] =
    ["runtime", "net", "settings", "upstream", "listener", "protocol", "worker", "control", "engine"];

/// The uses of higher layers that are left: a file, and the layer that it names. A new one is a failure, and
/// so is one that does not exist any more.
const LEFT: [(&str, &str); 4] = [
    // The state of one protocol that every listener, pool and connection has a field for (issue 39).
    ("listener.rs", "protocol"),
    ("net/byte_stream.rs", "protocol"),
    ("net/connection.rs", "protocol"),
    ("upstream/pool.rs", "protocol"),
];

/// Returns the Rust files below `folder`, without those of tests.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        if path.is_dir() {
            if name != "tests" {
                files(&path, found);
            }
        } else if !["tests", "test_util", "invariants", "lib"].contains(&name.as_str()) {
            found.push(path);
        }
    }
}

/// Returns the code of a file without comments and without its test modules, which stand at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the crate's items that `lib.rs` re-exports, with the layer of each.
fn exports(lib: &str) -> BTreeMap<String, &'static str> {
    let mut exports = BTreeMap::new();
    for part in code(lib).split("pub use ").skip(1) {
        let path = part.split(';').next().unwrap_or_default();
        let Some(layer) = LAYERS.into_iter().find(|layer| path.starts_with(&format!("{layer}::"))) else {
            continue;
        };
        let names = path.split(|c: char| !c.is_alphanumeric() && c != '_');
        exports.extend(names.map(|name| (name.to_owned(), layer)));
    }
    exports
}

#[test]
fn no_layer_names_a_higher_one() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let exports = exports(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let rank = |layer: &str| LAYERS.iter().position(|name| *name == layer);
    let mut found = Vec::new();
    files(&src, &mut found);
    assert!(found.len() > 100, "{} files", found.len());
    let mut uses = BTreeSet::new();
    for path in found {
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let own = name.split(['/', '.']).next().unwrap();
        let own = rank(own).unwrap_or_else(|| panic!("{name} is in no layer"));
        for part in code(&fs::read_to_string(&path).unwrap()).split("crate::").skip(1) {
            let group = part.strip_prefix('{').map(|rest| rest.split('}').next().unwrap());
            let word = |text: &str| {
                text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
            };
            let words: Vec<String> = match group {
                Some(group) => group.split(',').map(word).collect(),
                None => vec![word(part)],
            };
            for word in words {
                let layer = rank(&word).or_else(|| exports.get(&word).and_then(|layer| rank(layer)));
                if let Some(layer) = layer.filter(|layer| *layer > own) {
                    uses.insert((name.clone(), LAYERS[layer]));
                }
            }
        }
    }
    let left: BTreeSet<(String, &str)> =
        LEFT.into_iter().map(|(file, layer)| (file.to_owned(), layer)).collect();
    let new: Vec<_> = uses.difference(&left).collect();
    let gone: Vec<_> = left.difference(&uses).collect();
    assert!(new.is_empty(), "these files name a layer above their own: {new:?}");
    assert!(gone.is_empty(), "take these out of the list: {gone:?}");
}
