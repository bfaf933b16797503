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
const MAX_SWEEPS: usize = 60;

impl SingularValueDecomposition {
    /// Decomposes a matrix given by its columns, which have equal lengths.
    pub(super) fn of(mut columns: Vec<Vec<f64>>) -> Self {
        let count = columns.len();
        let unit_vector = |index| (0..count).map(|column| if column == index { 1.0 } else { 0.0 }).collect();
        let mut directions: Vec<Vec<f64>> = (0..count).map(unit_vector).collect();
        for _ in 0..MAX_SWEEPS {
            let mut rotated = false;
            for first in 0..count {
                for second in first + 1..count {
                    let (first_square, second_square) =
                        (dot(&columns[first], &columns[first]), dot(&columns[second], &columns[second]));
                    let product = dot(&columns[first], &columns[second]);
                    if product.abs() <= 1e-15 * (first_square * second_square).sqrt() || product == 0.0 {
                        continue;
                    }
                    rotated = true;
                    let zeta = (second_square - first_square) / (2.0 * product);
                    let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                    let cosine = 1.0 / tangent.hypot(1.0);
                    for vectors in [&mut columns, &mut directions] {
                        rotate(vectors, first, second, cosine, cosine * tangent);
                    }
                }
            }
            if !rotated {
                break;
            }
        }
        let mut order: Vec<(f64, usize)> =
            columns.iter().enumerate().map(|(index, column)| (dot(column, column).sqrt(), index)).collect();
        order.sort_by(|left, right| right.0.total_cmp(&left.0));
        Self {
            values: order.iter().map(|(value, _)| *value).collect(),
            scaled: order.iter().map(|(_, index)| columns[*index].clone()).collect(),
            directions: order.iter().map(|(_, index)| directions[*index].clone()).collect(),
        }
    }

    /// Returns the `x` that minimises `|A x - b|² + damping |x|²`.
    pub(super) fn solve(&self, target: &[f64], damping: f64) -> Vec<f64> {
        let mut solution = vec![0.0; self.directions.len()];
        for ((scaled_column, value), direction) in self.scaled.iter().zip(&self.values).zip(&self.directions)
        {
            let divisor = value * value + damping;
            if divisor > 0.0 {
                let coefficient = dot(scaled_column, target) / divisor;
                solution.iter_mut().zip(direction).for_each(|(component, direction_component)| {
                    *component += coefficient * direction_component
                });
            }
        }
        solution
    }
}

fn rotate(columns: &mut [Vec<f64>], first: usize, second: usize, cosine: f64, sine: f64) {
    let (left, right) = columns.split_at_mut(second);
    for (first_value, second_value) in left[first].iter_mut().zip(&mut right[0]) {
        (*first_value, *second_value) =
            (cosine * *first_value - sine * *second_value, sine * *first_value + cosine * *second_value);
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
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
            prop_assert!(svd.values.is_sorted_by(|left, right| left >= right));
            for (index, column) in columns.iter().enumerate() {
                for (row, value) in column.iter().enumerate() {
                    let scaled_directions = svd.scaled.iter().zip(&svd.directions);
                    let restored: f64 = scaled_directions
                        .map(|(column_values, direction)| column_values[row] * direction[index])
                        .sum();
                    prop_assert!((restored - value).abs() < 1e-9, "{restored} {value}");
                }
            }
            for first in 0..columns.len() {
                for second in 0..columns.len() {
                    let product = dot(&svd.directions[first], &svd.directions[second]);
                    prop_assert!((product - f64::from(u8::from(first == second))).abs() < 1e-9);
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
