//! Sixteen bytes at once: which of them are of a kind. Loops without branches over arrays, of which the compiler makes the
//! vector instructions that every processor of its kind has.

/// Where the first byte of a kind stands among the sixteen at `at`, or as many as there are.
#[inline(always)]
pub(super) fn first(input: &[u8], at: usize, kind: impl Fn(&[u8; 16]) -> u128) -> Option<usize> {
    let rest = &input[at..];
    let found = match (rest.first_chunk(), input.last_chunk()) {
        (Some(bytes), _) => kind(bytes),
        // Near the end: the last sixteen, without those before `at`.
        (None, Some(last)) if !rest.is_empty() => kind(last) >> (8 * (16 - rest.len())),
        _ => short(rest, kind),
    };
    (found != 0).then(|| at + found.trailing_zeros() as usize / 8)
}

/// Of fewer than sixteen bytes in all.
#[cold]
fn short(rest: &[u8], kind: impl Fn(&[u8; 16]) -> u128) -> u128 {
    let mut bytes = [0; 16];
    bytes[..rest.len()].copy_from_slice(rest);
    kind(&bytes) & ((1 << (8 * rest.len())) - 1)
}

/// Bytes below a space, and DEL.
#[inline(always)]
pub(super) fn controls(bytes: &[u8; 16]) -> u128 {
    all(bytes, |byte| byte < b' ' || byte == 0x7f)
}

/// Bytes that are neither letters nor hyphens.
#[inline(always)]
pub(super) fn unlike_names(bytes: &[u8; 16]) -> u128 {
    all(bytes, |byte| !((byte | 0x20).wrapping_sub(b'a') < 26 || byte == b'-'))
}

/// All bits of those of a kind, none of the others; the first byte is the lowest.
#[inline(always)]
fn all(bytes: &[u8; 16], kind: impl Fn(u8) -> bool) -> u128 {
    let mut found = [0; 16];
    for (found, byte) in found.iter_mut().zip(bytes) {
        *found = if kind(*byte) { u8::MAX } else { 0 };
    }
    u128::from_le_bytes(found)
}
