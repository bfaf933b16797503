//! Finding a byte sixteen at a time: loops without branches over arrays, of which the compiler makes the vector
//! instructions that every processor of its kind has.

use std::hint::black_box;

/// Where the first byte of a kind stands at or after `from`; the length if there is none. `from` is at most the length.
#[inline(always)]
pub(super) fn first(input: &[u8], from: usize, kind: impl Fn(u8) -> bool) -> usize {
    let mut at = from;
    while let Some(bytes) = input[at..].first_chunk::<16>() {
        // The compiler is to write them to memory and to read the halves from there: it knows no way to take a vector apart
        // that is not longer than this.
        let found = u128::from_le_bytes(black_box(marked(bytes, &kind)));
        let (low, high) = (found as u64, (found >> 64) as u64);
        if low != 0 {
            return at + place(low);
        }
        if high != 0 {
            return at + 8 + place(high);
        }
        at += 16;
    }
    rest(input, at, kind)
}

/// The same where fewer than sixteen are left. Out of line: it needs as many registers again, and few come to it.
#[inline(never)]
fn rest(input: &[u8], from: usize, kind: impl Fn(u8) -> bool) -> usize {
    let mut at = from;
    if let Some(bytes) = input[at..].first_chunk::<8>() {
        let found = u64::from_le_bytes(marked(bytes, &kind));
        if found != 0 {
            return at + place(found);
        }
        at += 8;
    }
    let left = input.len() - at;
    match input.last_chunk::<8>() {
        _ if left == 0 => at,
        // Fewer than eight: the last eight, without those before.
        Some(bytes) => match u64::from_le_bytes(marked(bytes, &kind)) >> (8 * (8 - left)) {
            0 => input.len(),
            found => at + place(found),
        },
        None => at + input[at..].iter().position(|byte| kind(*byte)).unwrap_or(left),
    }
}

/// All bits of those of a kind, none of the others.
#[inline(always)]
fn marked<const N: usize>(bytes: &[u8; N], kind: &impl Fn(u8) -> bool) -> [u8; N] {
    let mut found = [0; N];
    for (found, byte) in found.iter_mut().zip(bytes) {
        *found = if kind(*byte) { u8::MAX } else { 0 };
    }
    found
}

/// Which is the first of those that are marked, of which there is one.
#[inline(always)]
fn place(found: u64) -> usize {
    found.trailing_zeros() as usize / 8
}
