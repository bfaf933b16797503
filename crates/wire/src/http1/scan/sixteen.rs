//! Finding a byte sixteen at a time: a loop without branches over an array, of which the compiler makes vector
//! instructions, and one more that gathers what they found.

use wide::i8x16;

/// Where the first byte of a kind stands at or after `from`; the length if there is none. `from` is at most the length.
#[inline(always)]
pub(super) fn first(input: &[u8], from: usize, kind: impl Fn(u8) -> bool) -> usize {
    let mut at = from;
    while let Some(bytes) = input[at..].first_chunk::<16>() {
        let found = marked(bytes, &kind);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 16;
    }
    rest(input, at, kind)
}

/// The same where fewer than sixteen are left. Out of line: it needs as many registers again, and few come to it.
#[inline(never)]
fn rest(input: &[u8], at: usize, kind: impl Fn(u8) -> bool) -> usize {
    let left = input.len() - at;
    match input.last_chunk::<16>() {
        // The last sixteen, without those before.
        Some(bytes) => match marked(bytes, &kind) >> (16 - left) {
            0 => input.len(),
            found => at + found.trailing_zeros() as usize,
        },
        None => at + input[at..].iter().position(|byte| kind(*byte)).unwrap_or(left),
    }
}

/// A bit for each of a kind, the lowest for the first byte.
#[inline(always)]
fn marked(bytes: &[u8; 16], kind: &impl Fn(u8) -> bool) -> u32 {
    let mut kinds = [0; 16];
    for (found, byte) in kinds.iter_mut().zip(bytes) {
        *found = if kind(*byte) { -1 } else { 0 };
    }
    i8x16::new(kinds).to_bitmask()
}
