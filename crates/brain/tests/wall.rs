//! The wall around the brain is `no_std`. These are the two lines that could take it down.

use std::fs;
use std::path::Path;

#[test]
fn nothing_brings_std_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(fs::read_to_string(root.join("lib.rs")).unwrap().contains("\n#![no_std]\n"));
    let mut folders = vec![root];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                assert!(!line.starts_with("extern crate std"), "{}: {line}", path.display());
            }
        }
    }
    assert!(files > 10);
}
