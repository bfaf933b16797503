//! Renders a diagram as SVG.

use std::fmt::Write as _;

use super::layout::{LayoutEdge, LayoutNode, arrange};
use super::{CallArrow, CallKind, Diagram, DiagramEntry, DiagramTask, format_multiplicity, format_number};
use crate::markup::escaped;

/// The mean width of a letter.
const LETTER_WIDTH: f64 = 6.6;
const HEIGHT: f64 = 46.0;
/// The slant of a parallelogram.
const SKEW: f64 = 14.0;
/// The space between layers, for arrows and their numbers.
const LAYER_GAP: f64 = 84.0;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 34.0;
/// The radius of a processor.
const RADIUS: f64 = 23.0;
/// The space between a task and the processor beside it.
const PROCESSOR_GAP: f64 = 16.0;
/// The positions of a number along its arrow, as fractions of the first segment, the best first.
const LABEL_POSITIONS: [f64; 7] = [0.4, 0.55, 0.3, 0.65, 0.22, 0.75, 0.48];
/// The offset of the second outline that stands for several copies.
const STACK_OFFSET: f64 = 4.0;

/// A task with the positions of its slices.
struct TaskShape<'p> {
    task: &'p DiagramTask,
    node: usize,
    /// The left edge of each entry's slice, relative to the task's, and its width.
    slices: Vec<(f64, f64)>,
    /// The width of all slices and of the task's own name.
    width: f64,
    /// Whether the processor is drawn beside the task, as it is if no other task uses it.
    has_own_processor: bool,
}

pub(super) fn render(diagram: &Diagram) -> String {
    let mut task_counts = vec![0; diagram.processors.len()];
    diagram.layers.iter().flatten().for_each(|task| task_counts[task.processor] += 1);
    let mut nodes = Vec::new();
    let mut boxes = Vec::new();
    for (layer, tasks) in diagram.layers.iter().enumerate() {
        for task in tasks {
            let shape = TaskShape::new(task, nodes.len(), task_counts[task.processor] == 1);
            let processor_width = if shape.has_own_processor { PROCESSOR_GAP + 2.0 * RADIUS } else { 0.0 };
            nodes.push(LayoutNode { layer, width: shape.width + processor_width, left: 0.0 });
            boxes.push(shape);
        }
    }
    // Processors of several tasks are below all of them.
    let mut shared: Vec<Option<usize>> = vec![None; diagram.processors.len()];
    let mut edges = Vec::new();
    for shape in &boxes {
        if shape.has_own_processor {
            continue;
        }
        let processor = shape.task.processor;
        let next_layer = nodes[shape.node].layer + 1;
        let node = *shared[processor].get_or_insert_with(|| {
            nodes.push(LayoutNode { layer: next_layer, width: 2.0 * RADIUS, left: 0.0 });
            nodes.len() - 1
        });
        nodes[node].layer = nodes[node].layer.max(next_layer);
        edges.push(LayoutEdge {
            from: (shape.node, shape.width - 20.0),
            to: (node, RADIUS),
            bends: Vec::new(),
        });
    }
    let host_count = edges.len();
    let mut arrows: Vec<&CallArrow> = Vec::new();
    // The slice that each arrow leaves.
    let mut slices = Vec::new();
    for shape in &boxes {
        for (entry, slice) in shape.task.entries.iter().zip(&shape.slices) {
            for (arrow_index, arrow) in entry.arrows.iter().enumerate() {
                let target = boxes.iter().find_map(|target_shape| {
                    let index = target_shape.task.entries.iter().position(|entry| entry.name == arrow.to)?;
                    Some((
                        target_shape.node,
                        target_shape.slices[index].0 + target_shape.slices[index].1 / 2.0 + SKEW / 2.0,
                    ))
                });
                let Some(to) = target else { continue };
                // The arrows of one entry leave side by side.
                let fraction = (arrow_index + 1) as f64 / (entry.arrows.len() + 1) as f64;
                let from = (shape.node, slice.0 - SKEW / 2.0 + slice.1 * (0.15 + 0.7 * fraction));
                edges.push(LayoutEdge { from, to, bends: Vec::new() });
                arrows.push(arrow);
                slices.push((shape.node, slice.0));
            }
        }
    }
    let width = arrange(&mut nodes, &mut edges).max(320.0) + 2.0 * MARGIN;
    reorder_arrows(&mut edges[host_count..], &slices, &nodes);
    let depth = nodes.iter().map(|node| node.layer + 1).max().unwrap_or(1);
    let height = TITLE + 2.0 * MARGIN + depth as f64 * (HEIGHT + LAYER_GAP) - LAYER_GAP + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" \
         role=\"img\" class=\"lqn\" aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"11\">\
         <style>{STYLE}</style><title>{title}</title><rect class=\"paper\" width=\"100%\" height=\"100%\"/>\
         <text class=\"ink\" x=\"{MARGIN}\" y=\"26\" font-size=\"14\" font-weight=\"600\">{title}</text>",
        title = escaped(if diagram.title.trim().is_empty() {
            "Layered queueing model"
        } else {
            diagram.title.trim()
        }),
    );
    let point = |(node, offset): (usize, f64), at_bottom: bool| {
        let node = &nodes[node];
        (MARGIN + node.left + offset, top(node.layer) + if at_bottom { HEIGHT } else { 0.0 })
    };
    for edge in &edges[..host_count] {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        let _ = write!(out, "<path class=\"host\" d=\"{}\"/>", line.path());
    }
    for (edge, arrow) in edges[host_count..].iter().zip(&arrows) {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        self::arrow(&mut out, &line, arrow);
    }
    for shape in &boxes {
        shape.draw(&mut out, MARGIN + nodes[shape.node].left, top(nodes[shape.node].layer), diagram);
    }
    for (index, node) in shared.iter().enumerate() {
        if let Some(node) = node.map(|node| &nodes[node]) {
            processor(&mut out, diagram, index, MARGIN + node.left + RADIUS, top(node.layer) + RADIUS);
        }
    }
    // Numbers are drawn last, so that nothing covers them.
    let mut labels: Vec<(f64, f64, f64)> = Vec::new();
    for (edge, arrow) in edges[host_count..].iter().zip(&arrows) {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        let half_width = text_width(&arrow.label) / 2.0 + 6.0;
        let is_free = |(x, y): &(f64, f64)| {
            labels.iter().all(|(label_x, label_y, label_half)| {
                (x - label_x).abs() > half_width + label_half || (y - label_y).abs() > 11.0
            })
        };
        let (x, y) = LABEL_POSITIONS
            .iter()
            .map(|fraction| line.at(*fraction))
            .find(is_free)
            .unwrap_or_else(|| line.at(LABEL_POSITIONS[0]));
        labels.push((x, y, half_width));
        let _ = write!(
            out,
            "<text class=\"mean\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">({})</text>",
            y + 4.0,
            escaped(&arrow.label)
        );
    }
    let _ = write!(
        out,
        "<text class=\"dim\" x=\"{MARGIN}\" y=\"{:.0}\">▱ task {{threads}} with its entries [work of each \
         phase] · ○ processor \
         {{cores}} · ▶ waits for the answer · ▷ goes on · dashed: is answered by the other \
         instead</text></svg>",
        height - 14.0
    );
    out + "\n"
}

/// Reorders the arrows that leave a slice by the position of their targets. Arrows of one slice are
/// consecutive.
fn reorder_arrows(edges: &mut [LayoutEdge], slices: &[(usize, f64)], nodes: &[LayoutNode]) {
    let mut from = 0;
    for entry_slices in slices.chunk_by(|left, right| left == right) {
        let to = from + entry_slices.len();
        let first_target_x =
            |edge: &LayoutEdge| edge.bends.first().copied().unwrap_or(nodes[edge.to.0].left + edge.to.1);
        let mut target_xs: Vec<f64> = edges[from..to].iter().map(first_target_x).collect();
        let ports: Vec<f64> = edges[from..to].iter().map(|edge| edge.from.1).collect();
        target_xs.sort_by(f64::total_cmp);
        for edge in &mut edges[from..to] {
            let index = target_xs.iter().position(|target_x| *target_x == first_target_x(edge)).unwrap_or(0);
            // Two arrows may have equal positions: the second one gets the next.
            target_xs[index] = f64::NAN;
            edge.from.1 = ports[index];
        }
        from = to;
    }
}

fn top(layer: usize) -> f64 {
    TITLE + MARGIN + layer as f64 * (HEIGHT + LAYER_GAP)
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH
}

impl<'p> TaskShape<'p> {
    fn new(task: &'p DiagramTask, node: usize, has_own_processor: bool) -> Self {
        let mut next_left = SKEW;
        let mut slices = Vec::new();
        for entry in &task.entries {
            let width = text_width(&entry.name).max(text_width(&entry_label(entry))).max(34.0) + 14.0;
            slices.push((next_left, width));
            next_left += width;
        }
        let name_width = text_width(&task.name).max(text_width(&note(task))) + 18.0;
        Self { task, node, slices, width: next_left + name_width + SKEW / 2.0, has_own_processor }
    }

    fn draw(&self, out: &mut String, x: f64, y: f64, diagram: &Diagram) {
        if self.has_own_processor {
            let (center, middle) = (x + self.width + PROCESSOR_GAP + RADIUS, y + HEIGHT / 2.0);
            let _ = write!(
                out,
                "<path class=\"host\" d=\"M{:.1} {middle:.1}H{:.1}\"/>",
                x + self.width - SKEW / 2.0,
                center - RADIUS
            );
            processor(out, diagram, self.task.processor, center, middle);
        }
        if self.task.threads != Some(1) || self.task.replicas > 1 {
            let _ = write!(
                out,
                "<path class=\"task\" d=\"{}\"/>",
                self.outline(x + STACK_OFFSET, y - STACK_OFFSET)
            );
        }
        let class = if self.task.client { "task client" } else { "task" };
        let _ = write!(out, "<path class=\"{class}\" d=\"{}\"/>", self.outline(x, y));
        for (entry, (left, width)) in self.task.entries.iter().zip(&self.slices) {
            let right = x + left + width;
            let _ = write!(
                out,
                "<path class=\"slice\" d=\"M{:.1} {y:.1}L{:.1} {:.1}\"/>",
                right + SKEW / 2.0,
                right - SKEW / 2.0,
                y + HEIGHT
            );
            let middle = x + left + width / 2.0;
            label(out, middle, y, &entry.name, &entry_label(entry));
            if entry.arrivals > 0.0 {
                let arrival_x = middle + SKEW / 2.0;
                let _ = write!(
                    out,
                    "<path class=\"arrow\" d=\"M{arrival_x:.1} {:.1}V{y:.1}\"/><path class=\"head\" \
                     d=\"M{arrival_x:.1} {y:.1}l-4 -9h8z\"/>\
                     <text class=\"mean\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    y - 22.0,
                    arrival_x + 7.0,
                    y - 12.0,
                    format_number(entry.arrivals)
                );
            }
        }
        let entries_end = self.slices.last().map_or(SKEW, |(left, width)| left + width);
        label(out, x + (entries_end + self.width - SKEW / 2.0) / 2.0, y, &self.task.name, &note(self.task));
    }

    fn outline(&self, x: f64, y: f64) -> String {
        format!(
            "M{:.1} {y:.1}H{:.1}L{:.1} {:.1}H{:.1}Z",
            x + SKEW + SKEW / 2.0,
            x + self.width,
            x + self.width - SKEW,
            y + HEIGHT,
            x + SKEW / 2.0
        )
    }
}

/// Draws two lines centred in a slice.
fn label(out: &mut String, x: f64, y: f64, name: &str, detail: &str) {
    let _ = write!(
        out,
        "<text class=\"ink\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        y + 20.0,
        escaped(name),
        y + 35.0,
        escaped(detail)
    );
}

/// Returns the multiplicity, and the think time of clients.
fn note(task: &DiagramTask) -> String {
    match task.think {
        Some(think) => {
            format!("{} Z={}", format_multiplicity(task.threads, task.replicas), format_number(think))
        }
        None => format_multiplicity(task.threads, task.replicas),
    }
}

/// Returns the demands and the policy of an entry.
fn entry_label(entry: &DiagramEntry) -> String {
    let demands = demands(&entry.demands);
    match &entry.policy {
        Some(policy) => format!("{demands} {policy}"),
        None => demands,
    }
}

fn demands(values: &[f64]) -> String {
    let listed = values.iter().take(3).map(|demand| format_number(*demand)).collect::<Vec<_>>().join(", ");
    if values.len() > 3 { format!("[{listed}, …]") } else { format!("[{listed}]") }
}

fn processor(out: &mut String, diagram: &Diagram, index: usize, x: f64, y: f64) {
    let processor_data = &diagram.processors[index];
    if processor_data.cores != Some(1) || processor_data.replicas > 1 {
        let _ = write!(
            out,
            "<circle class=\"processor\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{RADIUS}\"/>",
            x + STACK_OFFSET,
            y - STACK_OFFSET
        );
    }
    let size = (2.0 * RADIUS / text_width(&processor_data.name).max(1.0) * 10.5).clamp(6.0, 10.5);
    let _ = write!(
        out,
        "<circle class=\"processor\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\"/>\
         <text class=\"ink\" x=\"{x:.1}\" y=\"{:.1}\" font-size=\"{size:.1}\" \
         text-anchor=\"middle\">{}</text>\
         <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\">{}</text>",
        y + 1.0,
        escaped(&processor_data.name),
        y + 14.0,
        escaped(&format_multiplicity(processor_data.cores, processor_data.replicas))
    );
}

fn arrow(out: &mut String, line: &ArrowCurve, arrow: &CallArrow) {
    let class = if arrow.kind == CallKind::Forwards { "arrow forward" } else { "arrow" };
    let _ = write!(out, "<path class=\"{class}\" d=\"{}\"/>", line.path());
    let (x, y) = line.end();
    let class = if arrow.kind == CallKind::Sends { "head open" } else { "head" };
    let _ = write!(out, "<path class=\"{class}\" d=\"M{x:.1} {y:.1}l-4 -9h8z\"/>");
}

/// The points of a curve, which is vertical at each.
struct ArrowCurve(Vec<(f64, f64)>);

impl ArrowCurve {
    fn of(edge: &LayoutEdge, from: (f64, f64), to: (f64, f64), nodes: &[LayoutNode]) -> Self {
        let mut points = vec![from];
        let first = nodes[edge.from.0].layer + 1;
        for (bend_index, x) in edge.bends.iter().enumerate() {
            let y = top(first + bend_index);
            points.extend([(MARGIN + x, y - 6.0), (MARGIN + x, y + HEIGHT + 6.0)]);
        }
        points.push(to);
        Self(points)
    }

    fn path(&self) -> String {
        let mut path = format!("M{:.1} {:.1}", self.0[0].0, self.0[0].1);
        for pair in self.0.windows(2) {
            let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
            if x == to_x {
                let _ = write!(path, "V{to_y:.1}");
                continue;
            }
            let middle = (y + to_y) / 2.0;
            let (control_y, target_control_y) =
                if to_y > y { (middle, middle) } else { (y + 40.0, to_y - 40.0) };
            let _ =
                write!(path, "C{x:.1} {control_y:.1} {to_x:.1} {target_control_y:.1} {to_x:.1} {to_y:.1}");
        }
        path
    }

    fn end(&self) -> (f64, f64) {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns a point of the first segment.
    fn at(&self, fraction: f64) -> (f64, f64) {
        let ((x, y), (to_x, to_y)) = (self.0[0], self.0[1]);
        // The Bézier formula, with control points at half the height.
        let rest = 1.0 - fraction;
        let [first, second, third, last] =
            [rest.powi(3), 3.0 * rest * rest * fraction, 3.0 * rest * fraction * fraction, fraction.powi(3)];
        let middle = (y + to_y) / 2.0;
        (x * (first + second) + to_x * (third + last), y * first + middle * (second + third) + to_y * last)
    }
}

/// The colours, as constants and as variables for viewers that support them: a page's variables take
/// precedence, then the dark scheme's.
const STYLE: &str = "\
.lqn .paper{fill:#fff;fill:var(--paper,#fff)}\
.lqn .ink{fill:#1c2733;fill:var(--ink,#1c2733)}\
.lqn .dim{fill:#5a6775;fill:var(--dim,#5a6775)}\
.lqn .task{fill:#eef3f8;fill:var(--task,#eef3f8);stroke:#1c2733;stroke:var(--ink,#1c2733)}\
.lqn .client{fill:#fdf3e3;fill:var(--client,#fdf3e3)}\
.lqn .slice{stroke:#1c2733;stroke:var(--ink,#1c2733);stroke-width:.7;fill:none}\
.lqn .processor{fill:#fff;fill:var(--paper,#fff);stroke:#1c2733;stroke:var(--ink,#1c2733)}\
.lqn .host{stroke:#5a6775;stroke:var(--dim,#5a6775);fill:none;stroke-width:.8}\
.lqn .arrow{stroke:#0072b2;stroke:var(--line,#0072b2);fill:none;stroke-width:1.2}\
.lqn .forward{stroke-dasharray:5 3}\
.lqn .head{fill:#0072b2;fill:var(--line,#0072b2);stroke:#0072b2;stroke:var(--line,#0072b2)}\
.lqn .open{fill:#fff;fill:var(--paper,#fff)}\
.lqn .mean{fill:#1c2733;fill:var(--ink,#1c2733);stroke:#fff;stroke:var(--paper,#fff);\
stroke-width:3px;paint-order:stroke;font-size:10px}\
@media (prefers-color-scheme:dark){.lqn{--paper:#0f1419;--ink:#e6edf3;--dim:#9aa7b4;--task:#182029;\
--client:#2a2418;--line:#4aa8e0}}";
