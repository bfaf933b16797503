//! Places the boxes of a diagram: the layers are given; the order within them avoids crossings, and boxes are
//! near those that they are connected to.
//!
//! The method is that of Sugiyama, Tagawa and Toda (Methods for visual understanding of hierarchical system
//! structures, 1981). An edge over several layers has a bend in each. Layers are ordered by the mean position
//! of their neighbours, downwards and upwards in turn. Then each position is the closest to that mean that
//! keeps order and distance: isotonic least squares by pooling adjacent violators (Ayer and others, 1955).

/// A box with a width, in a layer.
#[derive(Clone, Debug)]
pub(super) struct LayoutNode {
    pub(super) layer: usize,
    pub(super) width: f64,
    /// The distance from the left; set by [`arrange`].
    pub(super) left: f64,
}

/// An edge between two nodes. Its ends are given as distances from the nodes' left edges.
#[derive(Clone, Debug)]
pub(super) struct LayoutEdge {
    pub(super) from: (usize, f64),
    pub(super) to: (usize, f64),
    /// The positions of its bends, one for each layer in between.
    pub(super) bends: Vec<f64>,
}

/// The least distance between neighbours.
const GAP: f64 = 26.0;
/// The width reserved for an edge that passes a layer.
const LANE: f64 = 10.0;
const TURNS: usize = 12;

/// Places nodes, bends edges, and returns the total width. Edges that do not lead downwards get no bends and
/// do not affect the order.
pub(super) fn arrange(nodes: &mut [LayoutNode], edges: &mut [LayoutEdge]) -> f64 {
    let count = nodes.len();
    let mut all: Vec<LayoutNode> = nodes.to_vec();
    // The segments from one layer to the next, with the nodes and points of both ends.
    let mut pieces: Vec<[(usize, f64); 2]> = Vec::new();
    let mut bends: Vec<Vec<usize>> = Vec::new();
    for edge in edges.iter() {
        let (from, to) = (nodes[edge.from.0].layer, nodes[edge.to.0].layer);
        let mut own = Vec::new();
        if from < to {
            let mut last = edge.from;
            for layer in from + 1..to {
                all.push(LayoutNode { layer, width: LANE, left: 0.0 });
                own.push(all.len() - 1);
                pieces.push([last, (all.len() - 1, LANE / 2.0)]);
                last = (all.len() - 1, LANE / 2.0);
            }
            pieces.push([last, edge.to]);
        }
        bends.push(own);
    }
    let mut up: Vec<Vec<(usize, f64, f64)>> = vec![Vec::new(); all.len()];
    let mut down = up.clone();
    for [from, to] in &pieces {
        up[to.0].push((from.0, from.1, to.1));
        down[from.0].push((to.0, to.1, from.1));
    }
    let depth = all.iter().map(|node| node.layer + 1).max().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); depth];
    for (place, node) in all.iter().enumerate() {
        layers[node.layer].push(place);
    }
    for layer in &layers {
        pack(&mut all, layer);
    }
    let mut best = (crossings(&all, &pieces), layers.clone());
    for turn in 0..TURNS {
        let order: Vec<usize> =
            if turn % 2 == 0 { (1..depth).collect() } else { (0..depth).rev().skip(1).collect() };
        for layer in order {
            let near = if turn % 2 == 0 { &up } else { &down };
            let wish = |own: usize, all: &[LayoutNode]| desired_left(own, near, all).unwrap_or(all[own].left);
            let mut own: Vec<(f64, usize)> =
                layers[layer].iter().map(|own| (wish(*own, &all) + all[*own].width / 2.0, *own)).collect();
            own.sort_by(|one, other| one.0.total_cmp(&other.0));
            layers[layer] = own.into_iter().map(|(_, own)| own).collect();
            pack(&mut all, &layers[layer]);
        }
        let now = crossings(&all, &pieces);
        if now < best.0 {
            best = (now, layers.clone());
        }
    }
    let layers = best.1;
    layers.iter().for_each(|layer| pack(&mut all, layer));
    for turn in 0..TURNS {
        for layer in 0..depth {
            let layer = if turn % 2 == 0 { layer } else { depth - 1 - layer };
            let own = &layers[layer];
            let wishes: Vec<f64> = own
                .iter()
                .map(|own| {
                    let both = [desired_left(*own, &up, &all), desired_left(*own, &down, &all)];
                    let known: Vec<f64> = both.into_iter().flatten().collect();
                    if known.is_empty() {
                        all[*own].left
                    } else {
                        known.iter().sum::<f64>() / known.len() as f64
                    }
                })
                .collect();
            move_towards(&mut all, own, &wishes);
        }
    }
    let least = all.iter().map(|node| node.left).fold(f64::INFINITY, f64::min);
    let least = if least.is_finite() { least } else { 0.0 };
    all.iter_mut().for_each(|node| node.left -= least);
    for (edge, bends) in edges.iter_mut().zip(&bends) {
        edge.bends = bends.iter().map(|own| all[*own].left + LANE / 2.0).collect();
    }
    let width = all.iter().map(|node| node.left + node.width).fold(0.0, f64::max);
    nodes.iter_mut().zip(&all[..count]).for_each(|(own, placed)| own.left = placed.left);
    width
}

/// Returns the left position with which a node's edges are vertical on average.
fn desired_left(own: usize, near: &[Vec<(usize, f64, f64)>], all: &[LayoutNode]) -> Option<f64> {
    let near = &near[own];
    if near.is_empty() {
        return None;
    }
    let sum: f64 = near.iter().map(|(other, theirs, ours)| all[*other].left + theirs - ours).sum();
    Some(sum / near.len() as f64)
}

/// Places the nodes side by side.
fn pack(all: &mut [LayoutNode], layer: &[usize]) {
    let mut left = 0.0;
    for own in layer {
        all[*own].left = left;
        left += all[*own].width + GAP;
    }
    // Centre the layers, so that they are not all aligned to the left.
    layer.iter().for_each(|own| all[*own].left -= left / 2.0);
}

/// Moves the nodes as near to their desired positions as order and distance allow.
fn move_towards(all: &mut [LayoutNode], layer: &[usize], wishes: &[f64]) {
    // After subtracting the widths to the left, only the desired positions must be non-decreasing.
    let mut before = 0.0;
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    let mut rooms = Vec::new();
    for (own, wish) in layer.iter().zip(wishes) {
        rooms.push(before);
        blocks.push((wish - before, 1));
        before += all[*own].width + GAP;
        while let [.., (first, one), (second, other)] = blocks[..] {
            if first <= second {
                break;
            }
            let count = one + other;
            let mean = (first * one as f64 + second * other as f64) / count as f64;
            blocks.truncate(blocks.len() - 2);
            blocks.push((mean, count));
        }
    }
    let places = blocks.into_iter().flat_map(|(place, count)| std::iter::repeat_n(place, count));
    for ((own, room), place) in layer.iter().zip(rooms).zip(places) {
        all[*own].left = place + room;
    }
}

/// Counts the crossings of segments between the same layers.
fn crossings(all: &[LayoutNode], pieces: &[[(usize, f64); 2]]) -> usize {
    /// The number of segments that are compared: beyond it, the diagram is unreadable anyway.
    const MOST: usize = 2_000;
    let at = |(node, point): (usize, f64)| all[node].left + point;
    let mut lines: Vec<(usize, f64, f64)> =
        pieces.iter().take(MOST).map(|[from, to]| (all[from.0].layer, at(*from), at(*to))).collect();
    lines.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let mut count = 0;
    for (place, one) in lines.iter().enumerate() {
        for other in lines[place + 1..].iter().take_while(|other| other.0 == one.0) {
            count += usize::from(other.1 > one.1 && other.2 < one.2);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(layer: usize) -> LayoutNode {
        LayoutNode { layer, width: 100.0, left: 0.0 }
    }

    fn edge(from: usize, to: usize) -> LayoutEdge {
        LayoutEdge { from: (from, 50.0), to: (to, 50.0), bends: Vec::new() }
    }

    #[test]
    fn lines_do_not_cross_where_they_need_not_and_boxes_keep_their_distance() {
        // Edges 0 to 3 and 1 to 2 cross in the given order; the edge 0 to 4 passes a layer.
        let mut nodes = [node(0), node(0), node(1), node(1), node(2)];
        let mut edges = [edge(0, 3), edge(1, 2), edge(0, 4)];
        let width = arrange(&mut nodes, &mut edges);
        let right_of = |one: usize, other: usize| nodes[one].left >= nodes[other].left + 100.0 + GAP - 1e-9;
        assert!(right_of(1, 0) == right_of(2, 3), "{nodes:?}");
        assert!(right_of(2, 3) || right_of(3, 2), "{nodes:?}");
        assert_eq!(edges[2].bends.len(), 1);
        assert!(nodes.iter().all(|node| node.left >= -1e-9 && node.left + node.width <= width + 1e-9));
    }
}
