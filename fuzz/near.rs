//! Checks a corpus against a law in every run of the tests, for laws beside their parsers.
//! `crates/wire/tests/corpus.rs` does so for the laws of the crate wire.

use std::path::Path;

/// Checks each file of `fuzz/corpus/NAME` against the law, then `rounds` mutations of them: files with some
/// bytes changed, removed or taken from another, the same in every run. The law returns whether the bytes
/// were valid; files that begin with `ok-` must be and those with `bad-` must not. `words` are bytes with a
/// meaning.
pub(crate) fn holds(name: &str, words: &[u8], rounds: u32, law: fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    for (name, bytes) in &files {
        let _shown = Shown(bytes);
        let of_use = law(bytes);
        assert!(!name.starts_with("ok-") || of_use, "{name} is of no use");
        assert!(!name.starts_with("bad-") || !of_use, "{name} is of use");
    }
    let mut chance = Chance(1);
    for _ in 0..rounds {
        let mut bytes = files[chance.below(files.len())].1.clone();
        for _ in 0..=chance.below(3) {
            let other = &files[chance.below(files.len())].1;
            let (at, from) = (chance.below(bytes.len() + 1), chance.below(other.len() + 1));
            let piece = &other[from..(from + chance.below(40)).min(other.len())];
            match chance.below(5) {
                0 if at < bytes.len() => bytes[at] = words[chance.below(words.len())],
                1 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
                2 => bytes.truncate(at),
                3 => drop(bytes.splice(at..(at + piece.len()).min(bytes.len()), piece.iter().copied())),
                _ => drop(bytes.splice(at..at, piece.iter().copied())),
            }
        }
        let _shown = Shown(&bytes);
        law(&bytes);
    }
}

/// Prints the bytes that broke the law.
struct Shown<'b>(&'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.escape_ascii());
        }
    }
}

/// Splitmix64 (Steele, Lea and Flood 2014).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound.max(1) as u64) as usize
    }
}
