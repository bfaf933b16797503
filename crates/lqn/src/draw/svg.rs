//! Renders a diagram as SVG.

use std::fmt::Write as _;

use super::layout::{LayoutEdge, LayoutNode, arrange};
use super::{CallArrow, CallKind, Diagram, DiagramEntry, DiagramTask, format_multiplicity, format_number};
use crate::markup::escaped;

/// The mean width of a letter.
const LETTER: f64 = 6.6;
const HEIGHT: f64 = 46.0;
/// The slant of a parallelogram.
const SKEW: f64 = 14.0;
/// The space between layers, for arrows and their numbers.
const BETWEEN: f64 = 84.0;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 34.0;
/// The radius of a processor.
const RADIUS: f64 = 23.0;
/// The space between a task and the processor beside it.
const BESIDE: f64 = 16.0;
/// The positions of a number along its arrow, as fractions of the first segment, the best first.
const PLACES: [f64; 7] = [0.4, 0.55, 0.3, 0.65, 0.22, 0.75, 0.48];
/// The offset of the second outline that stands for several copies.
const STACK: f64 = 4.0;

/// A task with the positions of its slices.
struct TaskShape<'p> {
    task: &'p DiagramTask,
    node: usize,
    /// The left edge of each entry's slice, relative to the task's, and its width.
    slices: Vec<(f64, f64)>,
    /// The width of all slices and of the task's own name.
    width: f64,
    /// Whether the processor is drawn beside the task, as it is if no other task uses it.
    alone: bool,
}

pub(super) fn render(picture: &Diagram) -> String {
    let mut users = vec![0; picture.processors.len()];
    picture.layers.iter().flatten().for_each(|task| users[task.processor] += 1);
    let mut nodes = Vec::new();
    let mut boxes = Vec::new();
    for (layer, tasks) in picture.layers.iter().enumerate() {
        for task in tasks {
            let own = TaskShape::new(task, nodes.len(), users[task.processor] == 1);
            let beside = if own.alone { BESIDE + 2.0 * RADIUS } else { 0.0 };
            nodes.push(LayoutNode { layer, width: own.width + beside, left: 0.0 });
            boxes.push(own);
        }
    }
    // Processors of several tasks are below all of them.
    let mut shared: Vec<Option<usize>> = vec![None; picture.processors.len()];
    let mut edges = Vec::new();
    for own in &boxes {
        if own.alone {
            continue;
        }
        let processor = own.task.processor;
        let below = nodes[own.node].layer + 1;
        let node = *shared[processor].get_or_insert_with(|| {
            nodes.push(LayoutNode { layer: below, width: 2.0 * RADIUS, left: 0.0 });
            nodes.len() - 1
        });
        nodes[node].layer = nodes[node].layer.max(below);
        edges.push(LayoutEdge { from: (own.node, own.width - 20.0), to: (node, RADIUS), bends: Vec::new() });
    }
    let hosts = edges.len();
    let mut arrows: Vec<&CallArrow> = Vec::new();
    // The slice that each arrow leaves.
    let mut slices = Vec::new();
    for own in &boxes {
        for (entry, slice) in own.task.entries.iter().zip(&own.slices) {
            for (turn, arrow) in entry.arrows.iter().enumerate() {
                let target = boxes.iter().find_map(|other| {
                    let place = other.task.entries.iter().position(|entry| entry.name == arrow.to)?;
                    Some((other.node, other.slices[place].0 + other.slices[place].1 / 2.0 + SKEW / 2.0))
                });
                let Some(to) = target else { continue };
                // The arrows of one entry leave side by side.
                let part = (turn + 1) as f64 / (entry.arrows.len() + 1) as f64;
                let from = (own.node, slice.0 - SKEW / 2.0 + slice.1 * (0.15 + 0.7 * part));
                edges.push(LayoutEdge { from, to, bends: Vec::new() });
                arrows.push(arrow);
                slices.push((own.node, slice.0));
            }
        }
    }
    let width = arrange(&mut nodes, &mut edges).max(320.0) + 2.0 * MARGIN;
    reorder_arrows(&mut edges[hosts..], &slices, &nodes);
    let depth = nodes.iter().map(|node| node.layer + 1).max().unwrap_or(1);
    let height = TITLE + 2.0 * MARGIN + depth as f64 * (HEIGHT + BETWEEN) - BETWEEN + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" \
         role=\"img\" class=\"lqn\" aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"11\">\
         <style>{STYLE}</style><title>{title}</title><rect class=\"paper\" width=\"100%\" height=\"100%\"/>\
         <text class=\"ink\" x=\"{MARGIN}\" y=\"26\" font-size=\"14\" font-weight=\"600\">{title}</text>",
        title = escaped(if picture.title.trim().is_empty() {
            "Layered queueing model"
        } else {
            picture.title.trim()
        }),
    );
    let point = |(node, at): (usize, f64), bottom: bool| {
        let node = &nodes[node];
        (MARGIN + node.left + at, top(node.layer) + if bottom { HEIGHT } else { 0.0 })
    };
    for edge in &edges[..hosts] {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        let _ = write!(out, "<path class=\"host\" d=\"{}\"/>", line.path());
    }
    for (edge, arrow) in edges[hosts..].iter().zip(&arrows) {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        self::arrow(&mut out, &line, arrow);
    }
    for own in &boxes {
        own.draw(&mut out, MARGIN + nodes[own.node].left, top(nodes[own.node].layer), picture);
    }
    for (place, node) in shared.iter().enumerate() {
        if let Some(node) = node.map(|node| &nodes[node]) {
            processor(&mut out, picture, place, MARGIN + node.left + RADIUS, top(node.layer) + RADIUS);
        }
    }
    // Numbers are drawn last, so that nothing covers them.
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for (edge, arrow) in edges[hosts..].iter().zip(&arrows) {
        let line = ArrowCurve::of(edge, point(edge.from, true), point(edge.to, false), &nodes);
        let half = text_width(&arrow.label) / 2.0 + 6.0;
        let free = |(x, y): &(f64, f64)| {
            taken.iter().all(|(other, row, room)| (x - other).abs() > half + room || (y - row).abs() > 11.0)
        };
        let (x, y) =
            PLACES.iter().map(|part| line.at(*part)).find(free).unwrap_or_else(|| line.at(PLACES[0]));
        taken.push((x, y, half));
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
    for own in slices.chunk_by(|one, other| one == other) {
        let to = from + own.len();
        let first =
            |edge: &LayoutEdge| edge.bends.first().copied().unwrap_or(nodes[edge.to.0].left + edge.to.1);
        let mut leads: Vec<f64> = edges[from..to].iter().map(first).collect();
        let ports: Vec<f64> = edges[from..to].iter().map(|edge| edge.from.1).collect();
        leads.sort_by(f64::total_cmp);
        for edge in &mut edges[from..to] {
            let place = leads.iter().position(|lead| *lead == first(edge)).unwrap_or(0);
            // Two arrows may have equal positions: the second one gets the next.
            leads[place] = f64::NAN;
            edge.from.1 = ports[place];
        }
        from = to;
    }
}

fn top(layer: usize) -> f64 {
    TITLE + MARGIN + layer as f64 * (HEIGHT + BETWEEN)
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

impl<'p> TaskShape<'p> {
    fn new(task: &'p DiagramTask, node: usize, alone: bool) -> Self {
        let mut left = SKEW;
        let mut slices = Vec::new();
        for entry in &task.entries {
            let width = text_width(&entry.name).max(text_width(&entry_label(entry))).max(34.0) + 14.0;
            slices.push((left, width));
            left += width;
        }
        let own = text_width(&task.name).max(text_width(&note(task))) + 18.0;
        Self { task, node, slices, width: left + own + SKEW / 2.0, alone }
    }

    fn draw(&self, out: &mut String, x: f64, y: f64, picture: &Diagram) {
        if self.alone {
            let (center, middle) = (x + self.width + BESIDE + RADIUS, y + HEIGHT / 2.0);
            let _ = write!(
                out,
                "<path class=\"host\" d=\"M{:.1} {middle:.1}H{:.1}\"/>",
                x + self.width - SKEW / 2.0,
                center - RADIUS
            );
            processor(out, picture, self.task.processor, center, middle);
        }
        if self.task.threads != Some(1) || self.task.replicas > 1 {
            let _ = write!(out, "<path class=\"task\" d=\"{}\"/>", self.outline(x + STACK, y - STACK));
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
                let at = middle + SKEW / 2.0;
                let _ = write!(
                    out,
                    "<path class=\"arrow\" d=\"M{at:.1} {:.1}V{y:.1}\"/><path class=\"head\" d=\"M{at:.1} \
                     {y:.1}l-4 -9h8z\"/>\
                     <text class=\"mean\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    y - 22.0,
                    at + 7.0,
                    y - 12.0,
                    format_number(entry.arrivals)
                );
            }
        }
        let left = self.slices.last().map_or(SKEW, |(left, width)| left + width);
        label(out, x + (left + self.width - SKEW / 2.0) / 2.0, y, &self.task.name, &note(self.task));
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
fn label(out: &mut String, x: f64, y: f64, name: &str, below: &str) {
    let _ = write!(
        out,
        "<text class=\"ink\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        y + 20.0,
        escaped(name),
        y + 35.0,
        escaped(below)
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

fn demands(all: &[f64]) -> String {
    let shown = all.iter().take(3).map(|one| format_number(*one)).collect::<Vec<_>>().join(", ");
    if all.len() > 3 { format!("[{shown}, …]") } else { format!("[{shown}]") }
}

fn processor(out: &mut String, picture: &Diagram, place: usize, x: f64, y: f64) {
    let own = &picture.processors[place];
    if own.cores != Some(1) || own.replicas > 1 {
        let _ = write!(
            out,
            "<circle class=\"processor\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{RADIUS}\"/>",
            x + STACK,
            y - STACK
        );
    }
    let size = (2.0 * RADIUS / text_width(&own.name).max(1.0) * 10.5).clamp(6.0, 10.5);
    let _ = write!(
        out,
        "<circle class=\"processor\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\"/>\
         <text class=\"ink\" x=\"{x:.1}\" y=\"{:.1}\" font-size=\"{size:.1}\" \
         text-anchor=\"middle\">{}</text>\
         <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\">{}</text>",
        y + 1.0,
        escaped(&own.name),
        y + 14.0,
        escaped(&format_multiplicity(own.cores, own.replicas))
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
        for (turn, x) in edge.bends.iter().enumerate() {
            let y = top(first + turn);
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
            let (out, into) = if to_y > y { (middle, middle) } else { (y + 40.0, to_y - 40.0) };
            let _ = write!(path, "C{x:.1} {out:.1} {to_x:.1} {into:.1} {to_x:.1} {to_y:.1}");
        }
        path
    }

    fn end(&self) -> (f64, f64) {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns a point of the first segment.
    fn at(&self, part: f64) -> (f64, f64) {
        let ((x, y), (to_x, to_y)) = (self.0[0], self.0[1]);
        // The Bézier formula, with control points at half the height.
        let rest = 1.0 - part;
        let [first, second, third, last] =
            [rest.powi(3), 3.0 * rest * rest * part, 3.0 * rest * part * part, part.powi(3)];
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
