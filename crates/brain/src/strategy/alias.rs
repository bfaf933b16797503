//! Weighted sampling in constant time: the alias method.
//!
//! A. J. Walker, An efficient method for generating discrete random variables with general distributions (ACM
//! TOMS 1977), built in linear time as M. D. Vose describes (IEEE TSE 1991). Each of n columns has height 1.
//! It is filled with the member of its own number up to a mark and with one other member above it. Over all
//! columns each member fills an area in proportion to its weight. A draw is a column and a height.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Member, Plan, StrategyParams, StrategyTable, mix};

/// Returns the columns for the members' weights.
pub(super) fn prepare(members: &[Member], _: &StrategyParams) -> StrategyTable {
    from_weights(&members.iter().map(|member| member.weight).collect::<Vec<f64>>())
}

/// Returns the columns for weights; one that is 0 is never drawn unless all are.
pub(super) fn from_weights(weights: &[f64]) -> StrategyTable {
    StrategyTable::Alias(columns(weights))
}

/// Returns one member, with a chance equal to its share of the weights. It uses all 64 bits.
pub(super) fn draw(plan: &Plan, bits: u64) -> usize {
    let StrategyTable::Alias(columns) = plan.table() else { return 0 };
    // The upper half scaled to the columns (Lemire 2019, without its rejection: the bias is below n / 2^32).
    let column = (((bits >> 32) * columns.len() as u64) >> 32) as usize;
    match columns.get(column) {
        Some(&(threshold, alias)) if bits as u32 >= threshold => alias as usize,
        _ => column,
    }
}

/// Returns a member other than `taken`, with a chance equal to its share of the weights without `taken`, and
/// the next bits. It returns `taken` itself if a few draws give no other, which means that it has nearly all
/// the weight or is alone.
pub(super) fn draw_other(plan: &Plan, mut bits: u64, excluded: usize) -> (usize, u64) {
    for _ in 0..MAX_DRAWS {
        bits = mix(bits);
        let drawn_index = draw(plan, bits);
        if drawn_index != excluded {
            return (drawn_index, bits);
        }
    }
    (excluded, bits)
}

/// The number of draws. With two equal members, the chance that one is not compared with the other is 1 in
/// 2^DRAWS.
const MAX_DRAWS: usize = 16;

fn columns(weights: &[f64]) -> Vec<(u32, u32)> {
    let count = weights.len();
    let usable_weight = |weight: f64| if weight.is_finite() && weight > 0.0 { weight } else { 0.0 };
    // Scaled by the greatest first, so that no sum overflows.
    let max_weight = weights.iter().copied().map(usable_weight).fold(f64::MIN_POSITIVE, f64::max);
    let sum: f64 = weights.iter().map(|weight| usable_weight(*weight) / max_weight).sum();
    let mut heights: Vec<f64> = match sum > 0.0 {
        true => {
            weights.iter().map(|weight| usable_weight(*weight) / max_weight / sum * count as f64).collect()
        }
        false => vec![1.0; count],
    };
    // A column that is never split leads to itself.
    let mut columns: Vec<(u32, u32)> = (0..count as u32).map(|index| (u32::MAX, index)).collect();
    let (mut underfull, mut overfull): (Vec<usize>, Vec<usize>) =
        (0..count).partition(|index| heights[*index] < 1.0);
    while let (Some(&low_index), Some(&high_index)) = (underfull.last(), overfull.last()) {
        underfull.pop();
        columns[low_index] = ((heights[low_index] * (1_u64 << 32) as f64) as u32, high_index as u32);
        heights[high_index] -= 1.0 - heights[low_index];
        if heights[high_index] < 1.0 {
            overfull.pop();
            underfull.push(high_index);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::members;
    use crate::strategy;

    /// Returns the share of the area that each member fills.
    fn shares_of(weights: &[f64]) -> Vec<f64> {
        let columns = columns(weights);
        let mut shares = vec![0.0; weights.len()];
        for (index, (threshold, alias)) in columns.iter().enumerate() {
            let own_share = f64::from(*threshold) / (1_u64 << 32) as f64;
            shares[index] += own_share / weights.len() as f64;
            shares[*alias as usize] += (1.0 - own_share) / weights.len() as f64;
        }
        shares
    }

    #[test]
    fn areas_are_shares() {
        for weights in
            [&[1.0][..], &[1.0, 1.0, 1.0], &[5.0, 1.0, 1.0], &[0.3, 7.0, 1e-3, 2.5], &[1e300, 1e300]]
        {
            let sum: f64 = weights.iter().map(|weight| weight / 1e300).sum();
            for (share, weight) in shares_of(weights).iter().zip(weights) {
                assert!((share - weight / 1e300 / sum).abs() < 1e-8, "{weights:?}: {:?}", shares_of(weights));
            }
        }
    }

    #[test]
    fn of_two_the_other_one_is_nearly_always_found() {
        let random = strategy::find("random").expect("a strategy of this name");
        let plan = Plan::new(random, StrategyParams::defaults(random), members(&[1.0, 1.0]));
        let is_missed = |bits: &u64| {
            let first_draw = draw(&plan, mix(*bits));
            draw_other(&plan, mix(*bits), first_draw).0 == first_draw
        };
        assert!((0..200_000).filter(is_missed).count() <= 20, "one in 2^16");
    }

    #[test]
    fn nonsense_makes_a_table_all_the_same() {
        for weights in
            [&[][..], &[0.0, 0.0], &[f64::NAN, -1.0, f64::INFINITY], &[f64::MAX, f64::MIN_POSITIVE]]
        {
            assert_eq!(columns(weights).len(), weights.len());
        }
    }
}
