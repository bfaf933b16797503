//! The singular value decomposition of a small matrix by one-sided Jacobi rotations (Hestenes 1958; Golub and
//! Van Loan, Matrix computations, section 8.6). The method is slow for large matrices, and accurate to the
//! last digit also for nearly parallel columns, as a fit requires.
//!
//! The linear algebra is this crate's own: a fit has matrices of a few columns, for which 60 lines replace a
//! library of hundreds of files.

/// The decomposition `A = U S Vᵀ`, with singular values in descending order.
pub(super) struct SingularValueDecomposition {
    /// The columns of `U`, each multiplied by its singular value.
    scaled: Vec<Vec<f64>>,
    /// The singular values, as many as `A` has columns.
    pub(super) values: Vec<f64>,
    /// The columns of `V`: a direction of the parameters for each singular value.
    pub(super) directions: Vec<Vec<f64>>,
}

/// The largest number of sweeps; about ten suffice in practice.
const SWEEPS: usize = 60;

impl SingularValueDecomposition {
    /// Decomposes a matrix given by its columns, which have equal lengths.
    pub(super) fn of(mut columns: Vec<Vec<f64>>) -> Self {
        let count = columns.len();
        let unit = |place| (0..count).map(|own| if own == place { 1.0 } else { 0.0 }).collect();
        let mut directions: Vec<Vec<f64>> = (0..count).map(unit).collect();
        for _ in 0..SWEEPS {
            let mut turned = false;
            for one in 0..count {
                for other in one + 1..count {
                    let (a, b) = (dot(&columns[one], &columns[one]), dot(&columns[other], &columns[other]));
                    let both = dot(&columns[one], &columns[other]);
                    if both.abs() <= 1e-15 * (a * b).sqrt() || both == 0.0 {
                        continue;
                    }
                    turned = true;
                    let zeta = (b - a) / (2.0 * both);
                    let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                    let cosine = 1.0 / tangent.hypot(1.0);
                    for all in [&mut columns, &mut directions] {
                        rotate(all, one, other, cosine, cosine * tangent);
                    }
                }
            }
            if !turned {
                break;
            }
        }
        let mut order: Vec<(f64, usize)> =
            columns.iter().enumerate().map(|(place, own)| (dot(own, own).sqrt(), place)).collect();
        order.sort_by(|one, other| other.0.total_cmp(&one.0));
        Self {
            values: order.iter().map(|(value, _)| *value).collect(),
            scaled: order.iter().map(|(_, place)| columns[*place].clone()).collect(),
            directions: order.iter().map(|(_, place)| directions[*place].clone()).collect(),
        }
    }

    /// Returns the `x` that minimises `|A x - b|² + damping |x|²`.
    pub(super) fn solve(&self, b: &[f64], damping: f64) -> Vec<f64> {
        let mut x = vec![0.0; self.directions.len()];
        for ((own, value), direction) in self.scaled.iter().zip(&self.values).zip(&self.directions) {
            let under = value * value + damping;
            if under > 0.0 {
                let part = dot(own, b) / under;
                x.iter_mut().zip(direction).for_each(|(x, along)| *x += part * along);
            }
        }
        x
    }
}

fn rotate(columns: &mut [Vec<f64>], one: usize, other: usize, cosine: f64, sine: f64) {
    let (left, right) = columns.split_at_mut(other);
    for (a, b) in left[one].iter_mut().zip(&mut right[0]) {
        (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_make_the_whole(
            columns in (1..6_usize).prop_flat_map(|count| {
                prop::collection::vec(prop::collection::vec(-10.0..10.0_f64, 7), count)
            })
        ) {
            let svd = SingularValueDecomposition::of(columns.clone());
            prop_assert!(svd.values.is_sorted_by(|one, other| one >= other));
            for (place, column) in columns.iter().enumerate() {
                for (row, value) in column.iter().enumerate() {
                    let parts = svd.scaled.iter().zip(&svd.directions);
                    let found: f64 = parts.map(|(own, direction)| own[row] * direction[place]).sum();
                    prop_assert!((found - value).abs() < 1e-9, "{found} {value}");
                }
            }
            for one in 0..columns.len() {
                for other in 0..columns.len() {
                    let found = dot(&svd.directions[one], &svd.directions[other]);
                    prop_assert!((found - f64::from(u8::from(one == other))).abs() < 1e-9);
                }
            }
        }
    }

    #[test]
    fn a_system_is_solved_and_what_cannot_be_told_is_left() {
        // The system 2x + y = 5, x - y = 1, 3x = 6.
        let svd = SingularValueDecomposition::of(vec![vec![2.0, 1.0, 3.0], vec![1.0, -1.0, 0.0]]);
        let x = svd.solve(&[5.0, 1.0, 6.0], 0.0);
        assert!((x[0] - 2.0).abs() < 1e-12 && (x[1] - 1.0).abs() < 1e-12, "{x:?}");
        // Only the sum of the unknowns matters.
        let svd = SingularValueDecomposition::of(vec![vec![1.0, 2.0], vec![1.0, 2.0]]);
        assert!(svd.values[1] < 1e-12 * svd.values[0], "{:?}", svd.values);
        assert!((svd.directions[1][0] + svd.directions[1][1]).abs() < 1e-9, "{:?}", svd.directions);
        let x = svd.solve(&[3.0, 6.0], 1e-9);
        assert!((x[0] - 1.5).abs() < 1e-6 && (x[1] - 1.5).abs() < 1e-6, "{x:?}");
    }
}
