//! A byte search that tests sixteen bytes at a time: one loop without branches, which the compiler
//! vectorises, and one operation that gathers the results.

use wide::i8x16;

/// Returns the offset of the first matching byte at or after `from`; the length if there is none. `from` is
/// at most the length.
#[inline(always)]
pub(super) fn find_first(input: &[u8], from: usize, kind: impl Fn(u8) -> bool) -> usize {
    let mut at = from;
    while let Some(bytes) = input[at..].first_chunk::<16>() {
        let found = match_mask(bytes, &kind);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 16;
    }
    find_in_rest(input, at, kind)
}

/// Searches the last bytes, fewer than sixteen. Not inlined: it needs as many registers again, and is rarely
/// reached.
#[inline(never)]
fn find_in_rest(input: &[u8], at: usize, kind: impl Fn(u8) -> bool) -> usize {
    let left = input.len() - at;
    match input.last_chunk::<16>() {
        // The last sixteen bytes, without those already searched.
        Some(bytes) => match match_mask(bytes, &kind) >> (16 - left) {
            0 => input.len(),
            found => at + found.trailing_zeros() as usize,
        },
        None => at + input[at..].iter().position(|byte| kind(*byte)).unwrap_or(left),
    }
}

/// Returns a bit for each matching byte, the lowest bit for the first byte.
#[inline(always)]
fn match_mask(bytes: &[u8; 16], kind: &impl Fn(u8) -> bool) -> u32 {
    let mut kinds = [0; 16];
    for (found, byte) in kinds.iter_mut().zip(bytes) {
        *found = if kind(*byte) { -1 } else { 0 };
    }
    i8x16::new(kinds).to_bitmask()
}
