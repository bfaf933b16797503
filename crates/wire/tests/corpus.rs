//! The committed corpus of the fuzz targets, held against the laws of the parsers on every run of the tests.
//!
//! `fuzz/corpus/TARGET/NAME`: what a file's name begins with says what its bytes must meet with. `ok-` is accepted,
//! `bad-` is refused, `part-` is a beginning; anything else (what fuzzing found) need only obey the law.

mod laws;

use std::fs;
use std::path::{Path, PathBuf};

use laws::{ALL, Law, Verdict};

/// A law of what never comes in pieces: its corpus has no beginnings.
const COMES_WHOLE: &str = "orca";

/// The files of one law, in order.
fn corpus(law: &Law) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join(law.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.expect("a readable folder"))
        .map(|entry| (entry.file_name().into_string().expect("a name of text"), entry.path()))
        .map(|(name, path)| (name, fs::read(path).expect("a readable file")))
        .collect();
    files.sort();
    files
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_file_obeys_its_law() {
    for law in ALL {
        let files = corpus(law);
        let kinds: &[&str] =
            if law.name != COMES_WHOLE { &["ok-", "bad-", "part-"] } else { &["ok-", "bad-"] };
        for kind in kinds {
            assert!(files.iter().any(|(name, _)| name.starts_with(*kind)), "{} has no {kind} file", law.name);
        }
        for (name, bytes) in files {
            let _shown = Shown(&name, &bytes);
            let verdict = (law.check)(&bytes);
            let expected = match name.split('-').next() {
                Some("ok") => Verdict::Accepted,
                Some("bad") => Verdict::Refused,
                Some("part") => Verdict::Partial,
                _ => verdict,
            };
            assert_eq!(verdict, expected, "{}/{name}: {}", law.name, bytes.escape_ascii());
        }
    }
}

#[test]
fn every_folder_has_a_law() {
    for entry in fs::read_dir(folder()).expect("the corpus") {
        let name = entry.expect("a readable folder").file_name();
        assert!(ALL.iter().any(|law| *law.name == *name), "{} belongs to no law", name.display());
    }
}

/// A little fuzzing in every run: each file with a few bytes changed, two files joined, lines swapped in.
#[test]
fn what_is_nearly_in_the_corpus_obeys_the_law_too() {
    for law in ALL {
        let files = corpus(law);
        let mut chance = Chance(1);
        for _ in 0..4000 {
            let mut bytes = files[chance.below(files.len())].1.clone();
            for _ in 0..=chance.below(3) {
                mutate(&mut bytes, &files, &mut chance);
            }
            let _shown = Shown(law.name, &bytes);
            (law.check)(&bytes);
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, files: &[(String, Vec<u8>)], chance: &mut Chance) {
    let at = chance.below(bytes.len() + 1);
    let other = &files[chance.below(files.len())].1;
    let from = chance.below(other.len() + 1);
    let piece = &other[from..(from + chance.below(24)).min(other.len())];
    match chance.below(5) {
        0 if at < bytes.len() => bytes[at] = b"\r\n\0\t :;,0a\x7f\xff"[chance.below(12)],
        1 if at < bytes.len() => drop(bytes.remove(at)),
        2 => bytes.truncate(at),
        3 => {
            let end = (at + piece.len()).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        _ => drop(bytes.splice(at..at, piece.iter().copied())),
    }
}

/// Says on which bytes a law was broken.
struct Shown<'b>(&'b str, &'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.0, self.1.escape_ascii());
        }
    }
}

/// Splitmix64 (Steele, Lea and Flood 2014): the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound.max(1) as u64) as usize
    }
}
