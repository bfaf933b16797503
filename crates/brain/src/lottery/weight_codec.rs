//! Weights on the wire: a logarithmic scale in sixteenths of an octave (4.4 %), the same number on every
//! machine.
//!
//! The code c stands for 2^((c - 128) / 16); 0 stands for no weight. The decoded value is a whole number in
//! units of 2^-14. The scale goes from 2^-7.9 (a twentieth of a quarter of the least capacity is 2^-6.4) to
//! 2^18.9 (four times the greatest is 2^18).

/// The greatest code; any above it is read as this one.
pub const MAX_CODE: u16 = 431;

/// The code of the weight 1.
pub const UNIT_CODE: u16 = 128;

/// Returns the weight of a code, in units of 2^-14: below 2^33.
pub fn decode(code: u16) -> u64 {
    let code = usize::from(code.min(MAX_CODE));
    if code == 0 { 0 } else { OCTAVE[code % 16] << (code / 16) >> 10 }
}

/// Returns the code nearest to a weight; 0 for a weight that is not above 0.
pub fn encode(weight: f64) -> u16 {
    let units = weight * f64::from(1 << 14);
    if units.is_nan() || units <= 0.0 {
        return 0;
    }
    // The first code that is as great, or the one before it if that is nearer on the scale.
    let (mut low, mut high) = (1, MAX_CODE);
    while low < high {
        let midpoint = (low + high) / 2;
        if (decode(midpoint) as f64) < units { low = midpoint + 1 } else { high = midpoint }
    }
    let is_lower_nearer = low > 1 && units * units < decode(low) as f64 * decode(low - 1) as f64;
    if is_lower_nearer { low - 1 } else { low }
}

/// 2^(i / 16) in units of 2^-16.
static OCTAVE: [u64; 16] = [
    65_536, 68_438, 71_468, 74_632, 77_936, 81_386, 84_990, 88_752, 92_682, 96_785, 101_070, 105_545,
    110_218, 115_098, 120_194, 125_515,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_for_what_they_say() {
        for code in 1..=MAX_CODE {
            let exact = libm::exp2((f64::from(code) - 128.0) / 16.0) * 16_384.0;
            let error = (decode(code) as f64 - exact).abs();
            assert!(error <= 1.0 + exact * 1e-5, "{code}: {} for {exact}", decode(code));
            assert_eq!(encode(exact / 16_384.0), code);
        }
        assert_eq!((decode(0), decode(UNIT_CODE), decode(u16::MAX)), (0, 1 << 14, decode(MAX_CODE)));
    }

    #[test]
    fn whatever_a_weight_is_it_has_a_code() {
        assert_eq!(
            [encode(0.0), encode(-1.0), encode(f64::NAN), encode(1e-9), encode(f64::INFINITY)],
            [0, 0, 0, 1, MAX_CODE]
        );
        assert_eq!([encode(1.0), encode(1.02), encode(1.03)], [128, 128, 129]);
    }
}
