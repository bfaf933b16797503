//! Runs the committed corpus of the fuzz targets against the laws of the parsers.
//!
//! In `fuzz/corpus/TARGET/NAME` the name's prefix gives the expected result. `ok-` is accepted, `bad-` is
//! rejected, and `part-` is incomplete. Files with other names (found by fuzzing) need only obey the law.

mod laws;

use std::fs;
use std::path::{Path, PathBuf};

use laws::{ALL, Law, Verdict};
use proptest::prelude::*;

/// The laws of formats that never arrive in pieces: their corpora have no incomplete files.
const COMES_WHOLE: [&str; 9] =
    ["orca", "ior", "rfs", "rfs_sealed", "fleet", "affinity", "etcd", "urgency", "path"];

/// The folders of laws that are beside the parsers of other crates. Each has a `law.rs`, whose test runs its
/// corpus.
const ELSEWHERE: [&str; 12] = [
    "dns",
    "etcd_keys",
    "gossip",
    "http2",
    "http2_frames",
    "http2_heads",
    "jwt",
    "kubernetes",
    "members",
    "monitor",
    "report",
    "resolver",
];

/// Returns the files of one law, in order.
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
            if COMES_WHOLE.contains(&law.name) { &["ok-", "bad-"] } else { &["ok-", "bad-", "part-"] };
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
        let here = ALL.iter().any(|law| *law.name == *name);
        assert!(here || ELSEWHERE.iter().any(|law| **law == *name), "{} belongs to no law", name.display());
    }
}

/// Fuzzes each law briefly in every run. It changes a few bytes of a file, joins two files, and inserts,
/// repeats or varies lines.
#[test]
fn what_is_nearly_in_the_corpus_obeys_the_law_too() {
    for law in ALL {
        let files = corpus(law);
        let mut chance = Chance(1);
        for _ in 0..10_000 {
            let mut bytes = files[chance.below(files.len())].1.clone();
            for _ in 0..=chance.below(3) {
                mutate(&mut bytes, &files, &mut chance);
            }
            let _shown = Shown(law.name, &bytes);
            (law.check)(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn paths_of_tricky_pieces_obey_their_law(pieces in proptest::collection::vec(path_piece(), 0..12)) {
        laws::path::check(&[b"/".to_vec(), pieces.concat()].concat());
    }

    #[test]
    fn arbitrary_bytes_obey_the_law_of_paths(target in proptest::collection::vec(any::<u8>(), 0..40)) {
        laws::path::check(&target);
        laws::path::check(&[b"/", &target[..]].concat());
    }
}

/// Generates a piece of a target that matters to its normal form or its query.
fn path_piece() -> impl Strategy<Value = Vec<u8>> {
    const TRICKS: &[&str] = &[
        "/", "//", ".", "..", "/.", "/..", "/../", "%2e", "%2E", "%2f", "%2F", "%5c", "%5C", "\\", ";",
        "..;", ".;x", "%252e", "%25", "%41", "%c3%a9", "?", "&", "=", "+", "a", "B", "seg",
    ];
    prop_oneof![
        20 => proptest::sample::select(TRICKS).prop_map(|text| text.as_bytes().to_vec()),
        2 => any::<u8>().prop_map(|byte| format!("%{byte:02x}").into_bytes()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

fn mutate(bytes: &mut Vec<u8>, files: &[(String, Vec<u8>)], chance: &mut Chance) {
    let at = chance.below(bytes.len() + 1);
    let other = &files[chance.below(files.len())].1;
    let from = chance.below(other.len() + 1);
    let piece = &other[from..(from + chance.below(24)).min(other.len())];
    match chance.below(9) {
        0 if at < bytes.len() => bytes[at] = b"\r\n\0\t :;,0a\x7f\xff"[chance.below(12)],
        1 if at < bytes.len() => drop(bytes.remove(at)),
        2 => bytes.truncate(at),
        3 => {
            let end = (at + piece.len()).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        // Repeats a line with a variation.
        4 | 5 => {
            let mut line = line(bytes, at).to_vec();
            reword(&mut line, chance);
            let to = boundary(bytes, chance.below(bytes.len() + 1));
            bytes.splice(to..to, line);
        }
        // Inserts a line of another file.
        6 => {
            let line = line(other, from).to_vec();
            let to = boundary(bytes, at);
            bytes.splice(to..to, line);
        }
        // Varies a line.
        7 => {
            let begin = boundary(bytes, at);
            let mut words = line(bytes, at).to_vec();
            let end = begin + words.len();
            reword(&mut words, chance);
            bytes.splice(begin..end, words);
        }
        _ => drop(bytes.splice(at..at, piece.iter().copied())),
    }
}

/// Returns the beginning of the line that contains `at`.
fn boundary(bytes: &[u8], at: usize) -> usize {
    bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

/// Returns the line that contains `at`, with its end.
fn line(bytes: &[u8], at: usize) -> &[u8] {
    let begin = boundary(bytes, at);
    let len =
        bytes[begin..].iter().position(|byte| *byte == b'\n').map_or(bytes.len() - begin, |end| end + 1);
    &bytes[begin..begin + len]
}

/// Writes the line in an equivalent way, or nearly: numbers with leading zeros or one more digit, other
/// letters, other white space.
fn reword(line: &mut Vec<u8>, chance: &mut Chance) {
    let digit = line.iter().position(u8::is_ascii_digit);
    let colon = line.iter().position(|byte| *byte == b':').map(|colon| colon + 1);
    match (chance.below(7), digit, colon) {
        (0, Some(digit), _) => line.insert(digit, b'0'),
        (1, Some(digit), _) => line.insert(digit, b"123456789+- x"[chance.below(13)]),
        (2, _, Some(colon)) => line.insert(colon, b" \t\x0b\x0c"[chance.below(4)]),
        (3, _, Some(colon)) if line.get(colon) == Some(&b' ') => drop(line.remove(colon)),
        (4, _, Some(colon)) => line[..colon].make_ascii_uppercase(),
        (5, ..) => line.make_ascii_lowercase(),
        _ => {
            let end = line.len().saturating_sub(2);
            line.insert(end, b" \t,;"[chance.below(4)]);
        }
    }
}

/// Prints the bytes that broke a law.
struct Shown<'b>(&'b str, &'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.0, self.1.escape_ascii());
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014), with the same sequence in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound.max(1) as u64) as usize
    }
}
