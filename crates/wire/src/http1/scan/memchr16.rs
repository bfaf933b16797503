//! A byte search that tests sixteen bytes at a time: one loop without branches, which the compiler
//! vectorises, and one operation that gathers the results.

use wide::i8x16;

/// Returns the offset of the first matching byte at or after `from`; the length if there is none. `from` is
/// at most the length.
#[inline(always)]
pub(super) fn find_first(input: &[u8], from: usize, predicate: impl Fn(u8) -> bool) -> usize {
    let mut position = from;
    while let Some(bytes) = input[position..].first_chunk::<16>() {
        let mask = match_mask(bytes, &predicate);
        if mask != 0 {
            return position + mask.trailing_zeros() as usize;
        }
        position += 16;
    }
    find_in_rest(input, position, predicate)
}

/// Searches the last bytes, fewer than sixteen. Not inlined: it needs as many registers again, and is rarely
/// reached.
#[inline(never)]
fn find_in_rest(input: &[u8], position: usize, predicate: impl Fn(u8) -> bool) -> usize {
    let remaining = input.len() - position;
    match input.last_chunk::<16>() {
        // The last sixteen bytes, without those already searched.
        Some(bytes) => match match_mask(bytes, &predicate) >> (16 - remaining) {
            0 => input.len(),
            mask => position + mask.trailing_zeros() as usize,
        },
        None => position + input[position..].iter().position(|byte| predicate(*byte)).unwrap_or(remaining),
    }
}

/// Returns a bit for each matching byte, the lowest bit for the first byte.
#[inline(always)]
fn match_mask(bytes: &[u8; 16], predicate: &impl Fn(u8) -> bool) -> u32 {
    let mut lanes = [0; 16];
    for (lane, byte) in lanes.iter_mut().zip(bytes) {
        *lane = if predicate(*byte) { -1 } else { 0 };
    }
    i8x16::new(lanes).to_bitmask()
}
