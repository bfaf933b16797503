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
const MAX_ROUNDS: usize = 12;

/// Places nodes, bends edges, and returns the total width. Edges that do not lead downwards get no bends and
/// do not affect the order.
pub(super) fn arrange(nodes: &mut [LayoutNode], edges: &mut [LayoutEdge]) -> f64 {
    let count = nodes.len();
    let mut all_nodes: Vec<LayoutNode> = nodes.to_vec();
    // The segments from one layer to the next, with the nodes and points of both ends.
    let mut segments: Vec<[(usize, f64); 2]> = Vec::new();
    let mut bends: Vec<Vec<usize>> = Vec::new();
    for edge in edges.iter() {
        let (from, to) = (nodes[edge.from.0].layer, nodes[edge.to.0].layer);
        let mut edge_bends = Vec::new();
        if from < to {
            let mut last_point = edge.from;
            for layer in from + 1..to {
                all_nodes.push(LayoutNode { layer, width: LANE, left: 0.0 });
                edge_bends.push(all_nodes.len() - 1);
                segments.push([last_point, (all_nodes.len() - 1, LANE / 2.0)]);
                last_point = (all_nodes.len() - 1, LANE / 2.0);
            }
            segments.push([last_point, edge.to]);
        }
        bends.push(edge_bends);
    }
    let mut upper_neighbors: Vec<Vec<(usize, f64, f64)>> = vec![Vec::new(); all_nodes.len()];
    let mut lower_neighbors = upper_neighbors.clone();
    for [from, to] in &segments {
        upper_neighbors[to.0].push((from.0, from.1, to.1));
        lower_neighbors[from.0].push((to.0, to.1, from.1));
    }
    let depth = all_nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); depth];
    for (index, node) in all_nodes.iter().enumerate() {
        layers[node.layer].push(index);
    }
    for layer in &layers {
        pack(&mut all_nodes, layer);
    }
    let mut best = (crossings(&all_nodes, &segments), layers.clone());
    for round in 0..MAX_ROUNDS {
        let order: Vec<usize> =
            if round % 2 == 0 { (1..depth).collect() } else { (0..depth).rev().skip(1).collect() };
        for layer in order {
            let neighbors = if round % 2 == 0 { &upper_neighbors } else { &lower_neighbors };
            let desired_position = |node: usize, current_nodes: &[LayoutNode]| {
                desired_left(node, neighbors, current_nodes).unwrap_or(current_nodes[node].left)
            };
            let mut order_keys: Vec<(f64, usize)> = layers[layer]
                .iter()
                .map(|node| (desired_position(*node, &all_nodes) + all_nodes[*node].width / 2.0, *node))
                .collect();
            order_keys.sort_by(|left, right| left.0.total_cmp(&right.0));
            layers[layer] = order_keys.into_iter().map(|(_, node)| node).collect();
            pack(&mut all_nodes, &layers[layer]);
        }
        let crossing_count = crossings(&all_nodes, &segments);
        if crossing_count < best.0 {
            best = (crossing_count, layers.clone());
        }
    }
    let layers = best.1;
    layers.iter().for_each(|layer| pack(&mut all_nodes, layer));
    for round in 0..MAX_ROUNDS {
        for layer in 0..depth {
            let layer = if round % 2 == 0 { layer } else { depth - 1 - layer };
            let layer_nodes = &layers[layer];
            let desired_positions: Vec<f64> = layer_nodes
                .iter()
                .map(|node| {
                    let desired = [
                        desired_left(*node, &upper_neighbors, &all_nodes),
                        desired_left(*node, &lower_neighbors, &all_nodes),
                    ];
                    let known_positions: Vec<f64> = desired.into_iter().flatten().collect();
                    if known_positions.is_empty() {
                        all_nodes[*node].left
                    } else {
                        known_positions.iter().sum::<f64>() / known_positions.len() as f64
                    }
                })
                .collect();
            move_towards(&mut all_nodes, layer_nodes, &desired_positions);
        }
    }
    let leftmost = all_nodes.iter().map(|node| node.left).fold(f64::INFINITY, f64::min);
    let offset = if leftmost.is_finite() { leftmost } else { 0.0 };
    all_nodes.iter_mut().for_each(|node| node.left -= offset);
    for (edge, bends) in edges.iter_mut().zip(&bends) {
        edge.bends = bends.iter().map(|bend| all_nodes[*bend].left + LANE / 2.0).collect();
    }
    let width = all_nodes.iter().map(|node| node.left + node.width).fold(0.0, f64::max);
    nodes.iter_mut().zip(&all_nodes[..count]).for_each(|(node, placed)| node.left = placed.left);
    width
}

/// Returns the left position with which a node's edges are vertical on average.
fn desired_left(node: usize, neighbors: &[Vec<(usize, f64, f64)>], all_nodes: &[LayoutNode]) -> Option<f64> {
    let node_neighbors = &neighbors[node];
    if node_neighbors.is_empty() {
        return None;
    }
    let sum: f64 = node_neighbors
        .iter()
        .map(|(neighbor, neighbor_port, own_port)| all_nodes[*neighbor].left + neighbor_port - own_port)
        .sum();
    Some(sum / node_neighbors.len() as f64)
}

/// Places the nodes side by side.
fn pack(nodes: &mut [LayoutNode], layer: &[usize]) {
    let mut next_left = 0.0;
    for node in layer {
        nodes[*node].left = next_left;
        next_left += nodes[*node].width + GAP;
    }
    // Centre the layers, so that they are not all aligned to the left.
    layer.iter().for_each(|node| nodes[*node].left -= next_left / 2.0);
}

/// Moves the nodes as near to their desired positions as order and distance allow.
fn move_towards(nodes: &mut [LayoutNode], layer: &[usize], desired_positions: &[f64]) {
    // After subtracting the widths to the left, only the desired positions must be non-decreasing.
    let mut offset = 0.0;
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    let mut offsets = Vec::new();
    for (node, desired) in layer.iter().zip(desired_positions) {
        offsets.push(offset);
        blocks.push((desired - offset, 1));
        offset += nodes[*node].width + GAP;
        while let [.., (previous_position, previous_count), (last_position, last_count)] = blocks[..] {
            if previous_position <= last_position {
                break;
            }
            let count = previous_count + last_count;
            let mean = (previous_position * previous_count as f64 + last_position * last_count as f64)
                / count as f64;
            blocks.truncate(blocks.len() - 2);
            blocks.push((mean, count));
        }
    }
    let positions = blocks.into_iter().flat_map(|(position, count)| std::iter::repeat_n(position, count));
    for ((node, offset), position) in layer.iter().zip(offsets).zip(positions) {
        nodes[*node].left = position + offset;
    }
}

/// Counts the crossings of segments between the same layers.
fn crossings(all_nodes: &[LayoutNode], segments: &[[(usize, f64); 2]]) -> usize {
    /// The number of segments that are compared: beyond it, the diagram is unreadable anyway.
    const MAX_PIECES: usize = 2_000;
    let x_of = |(node, port): (usize, f64)| all_nodes[node].left + port;
    let mut lines: Vec<(usize, f64, f64)> = segments
        .iter()
        .take(MAX_PIECES)
        .map(|[from, to]| (all_nodes[from.0].layer, x_of(*from), x_of(*to)))
        .collect();
    lines.sort_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
    let mut count = 0;
    for (index, line) in lines.iter().enumerate() {
        for other_line in lines[index + 1..].iter().take_while(|candidate| candidate.0 == line.0) {
            count += usize::from(other_line.1 > line.1 && other_line.2 < line.2);
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
        let right_of = |right: usize, left: usize| nodes[right].left >= nodes[left].left + 100.0 + GAP - 1e-9;
        assert!(right_of(1, 0) == right_of(2, 3), "{nodes:?}");
        assert!(right_of(2, 3) || right_of(3, 2), "{nodes:?}");
        assert_eq!(edges[2].bends.len(), 1);
        assert!(nodes.iter().all(|node| node.left >= -1e-9 && node.left + node.width <= width + 1e-9));
    }
}
