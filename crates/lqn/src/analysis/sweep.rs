//! The points of a sweep: combinations of parameter values.

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepAxis {
    /// A parameter of the text, or of the model as named in [`super::parameter`].
    pub name: String,
    /// The values, at least one.
    pub values: Vec<f64>,
}

/// The largest number of points in a sweep.
pub const MAX_POINTS: usize = 100_000;

/// Returns every combination of values, in the order of layered queueing tools for arrays: the last axis
/// changes fastest. Returns `None` if there are more than [`MAX_POINTS`].
pub fn sweep_points(axes: &[SweepAxis]) -> Option<Vec<Vec<f64>>> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        if points.len().checked_mul(axis.values.len())? > MAX_POINTS {
            return None;
        }
        points = points
            .iter()
            .flat_map(|point| axis.values.iter().map(|value| [point.as_slice(), &[*value]].concat()))
            .collect();
    }
    Some(points)
}

/// Parses values of a command line: `4`, `1,2,4`, `1..50` (steps of 1), `0.1..1:0.1` (steps of 0.1),
/// `1..64*2` (each twice the previous).
///
/// # Errors
/// Returns a description of the expected form.
pub fn parse_values(text: &str) -> Result<Vec<f64>, String> {
    const EXPECTED: &str = "expected numbers: 4, or 1,2,4, or 1..50, or 0.1..1:0.1 (in steps of 0.1), or \
        1..64*2 (each twice the last)";
    let number = |text: &str| {
        text.trim().parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| EXPECTED.to_owned())
    };
    let mut values = Vec::new();
    for item in text.split(',') {
        let Some((from, rest)) = item.split_once("..") else {
            values.push(number(item)?);
            continue;
        };
        let from = number(from)?;
        // Each value is computed from the beginning of the range, so that rounding errors do not accumulate.
        if let Some((to, factor)) = rest.split_once('*') {
            let (to, factor) = (number(to)?, number(factor)?);
            if !(factor > 1.0 && from > 0.0 && from <= to) {
                return Err(format!(
                    "`{item}` leads nowhere: a factor above 1, from a number above 0 to a greater one"
                ));
            }
            let steps = ((to / from).ln() / factor.ln() + 1e-9).floor() as usize;
            check_count(steps)?;
            values.extend((0..=steps).map(|step| from * factor.powi(step as i32)));
        } else {
            let (to, step) = rest.split_once(':').map_or((rest, "1"), |(to, step)| (to, step));
            let (to, step) = (number(to)?, number(step)?);
            let steps = ((to - from) / step + 1e-9).floor();
            if !(step != 0.0 && steps >= 0.0) {
                return Err(format!(
                    "`{item}` leads nowhere: its steps have to lead from the first number to the second"
                ));
            }
            check_count(steps as usize)?;
            values.extend((0..=steps as usize).map(|step_index| rounded(from + step * step_index as f64)));
        }
        check_count(values.len())?;
    }
    Ok(values)
}

fn check_count(count: usize) -> Result<(), String> {
    if count < MAX_POINTS { Ok(()) } else { Err(format!("these are more than {MAX_POINTS} values")) }
}

/// Rounds to 13 digits, so that `0.1 + 0.1 * 2` is 0.3.
fn rounded(value: f64) -> f64 {
    format!("{value:.12e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_listed_or_counted() {
        for (text, expected) in [
            ("4", vec![4.0]),
            ("1,2,4", vec![1.0, 2.0, 4.0]),
            ("1..4", vec![1.0, 2.0, 3.0, 4.0]),
            ("0.1..0.5:0.2", vec![0.1, 0.3, 0.5]),
            ("1..9*2", vec![1.0, 2.0, 4.0, 8.0]),
            ("3..1:-1", vec![3.0, 2.0, 1.0]),
            ("1..3,10", vec![1.0, 2.0, 3.0, 10.0]),
        ] {
            assert_eq!(parse_values(text).unwrap(), expected, "{text}");
        }
        for wrong in
            ["", "a", "1..", "2..1", "1..2:0", "0..8*2", "1..8*1", "1..inf", "0..1:1e-9", "1..1e9*1.0000001"]
        {
            assert!(parse_values(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_combination_is_a_point_and_the_last_axis_changes_first() {
        let axis = |name: &str, values: &[f64]| SweepAxis { name: name.to_owned(), values: values.to_vec() };
        let points = sweep_points(&[axis("a", &[1.0, 2.0]), axis("b", &[5.0, 6.0])]).unwrap();
        assert_eq!(points, [[1.0, 5.0], [1.0, 6.0], [2.0, 5.0], [2.0, 6.0]]);
        let long_axis = axis("c", &vec![0.0; 1000]);
        assert_eq!(sweep_points(&[long_axis.clone(), long_axis]), None);
    }
}
