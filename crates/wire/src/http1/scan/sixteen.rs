//! Finding a byte sixteen at a time: loops without branches over arrays, of which the compiler makes the vector
//! instructions that every processor of its kind has.

/// Where the first byte of a kind stands at or after `from`, which is at most the length.
#[inline(always)]
pub(super) fn first(input: &[u8], from: usize, kind: impl Fn(u8) -> bool) -> Option<usize> {
    let mut at = from;
    while let Some(bytes) = input[at..].first_chunk::<16>() {
        let found = u128::from_le_bytes(marked(bytes, &kind));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 16;
    }
    if let Some(bytes) = input[at..].first_chunk::<8>() {
        let found = u64::from_le_bytes(marked(bytes, &kind));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let left = input.len() - at;
    match input.last_chunk::<8>() {
        _ if left == 0 => None,
        // Fewer than eight: the last eight, without those before.
        Some(bytes) => {
            let found = u64::from_le_bytes(marked(bytes, &kind)) >> (8 * (8 - left));
            (found != 0).then(|| at + found.trailing_zeros() as usize / 8)
        }
        None => input[at..].iter().position(|byte| kind(*byte)).map(|offset| at + offset),
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
