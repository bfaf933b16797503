//! SVG charts and the page that holds them: one self-contained file, in light and dark.
//!
//! Series differ by mark and dash as well as by colour, so that a chart can be read in grey. Every point has
//! a `<title>`, which browsers show as a tip. Colours are CSS variables with a fallback: the page sets them
//! for light and dark, and an SVG by itself has them too.

use std::fmt::Write as _;

mod page;
mod scale;

pub use page::{escape, page};
use scale::AxisScale;

/// A chart of points over two axes.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The text above the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: ChartAxis,
    /// The vertical axis.
    pub y: ChartAxis,
    /// The series, in the order of the legend.
    pub series: Vec<ChartSeries>,
    /// The lines of text below the chart.
    pub notes: Vec<String>,
}

/// The quantity and scale of one direction.
#[derive(Clone, Debug, Default)]
pub struct ChartAxis {
    /// The quantity and its unit.
    pub label: String,
    /// Whether the scale is logarithmic: points at or below zero are left out.
    pub log: bool,
    /// Whether the scale begins at zero (linear axes only).
    pub zero: bool,
}

/// Points that belong together.
#[derive(Clone, Debug, Default)]
pub struct ChartSeries {
    /// The name in the legend.
    pub name: String,
    /// The points in the order in which they are joined; those that are not finite are left out.
    pub points: Vec<ChartPoint>,
    /// The style of the series.
    pub style: SeriesStyle,
}

/// One value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChartPoint {
    /// The horizontal coordinate.
    pub x: f64,
    /// The vertical coordinate.
    pub y: f64,
    /// The lower and upper end of the confidence interval, drawn as a whisker.
    pub range: Option<(f64, f64)>,
}

impl ChartPoint {
    /// Creates a point without a confidence interval.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, range: None }
    }
}

/// The style of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeriesStyle {
    /// Marks joined by a line.
    #[default]
    Line,
    /// Marks alone.
    Dots,
    /// A broken line without marks, for predicted or ideal values.
    Dashed,
    /// Bars from the bottom, as wide as the distance of the points.
    Bars,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// The height of a line of the legend and of a note.
const ROW_HEIGHT: f64 = 20.0;
/// The maximum number of points that get a mark each.
const MAX_MARKS: usize = 80;

/// Colours that are distinct in both schemes, also to most colour-blind eyes (Okabe and Ito's set, two of
/// them darkened).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a5195", "#666666"];

impl Chart {
    /// Returns one `<svg>` element.
    pub fn svg(&self) -> String {
        let shown_points =
            || self.series.iter().flat_map(|series| &series.points).filter(|point| self.is_drawable(point));
        let extent = |point: &ChartPoint| {
            let (low, high) = point.range.unwrap_or((point.y, point.y));
            [low, point.y, high]
        };
        let x = AxisScale::of(shown_points().map(|point| point.x), &self.x, LEFT, WIDTH - RIGHT);
        let y = AxisScale::of(shown_points().flat_map(extent), &self.y, HEIGHT - BOTTOM, TOP);
        let (swatch_positions, legend) = self.legend();
        let bottom = HEIGHT + legend;
        let height = bottom + self.notes.len() as f64 * ROW_HEIGHT + 4.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             class=\"chart\" aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\
             <style>{STYLE}</style><title>{title}</title>\
             <text class=\"ink\" x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"600\">{title}</text>",
            title = escape(&self.title),
        );
        self.grid(&mut out, &x, &y);
        for (index, series) in self.series.iter().enumerate() {
            self.draw(&mut out, series, index, &x, &y);
        }
        for ((index, series), (left, top)) in self.series.iter().enumerate().zip(swatch_positions) {
            swatch(&mut out, series, index, left, top);
        }
        for (index, note) in self.notes.iter().enumerate() {
            let top = bottom + index as f64 * ROW_HEIGHT + 12.0;
            let _ = write!(out, "<text class=\"dim\" x=\"{LEFT}\" y=\"{top}\">{}</text>", escape(note));
        }
        out + "</svg>"
    }

    fn is_drawable(&self, point: &ChartPoint) -> bool {
        let fits_axis = |value: f64, axis: &ChartAxis| value.is_finite() && (!axis.log || value > 0.0);
        fits_axis(point.x, &self.x) && fits_axis(point.y, &self.y)
    }

    /// Returns the positions of the legend's entries, and its height.
    fn legend(&self) -> (Vec<(f64, f64)>, f64) {
        let (mut left, mut top) = (LEFT, HEIGHT + 10.0);
        let positions = self
            .series
            .iter()
            .map(|series| {
                let width = 40.0 + 6.8 * series.name.chars().count() as f64;
                if left > LEFT && left + width > WIDTH - RIGHT {
                    (left, top) = (LEFT, top + ROW_HEIGHT);
                }
                let position = (left, top);
                left += width;
                position
            })
            .collect::<Vec<_>>();
        let height = if positions.is_empty() { 0.0 } else { top - HEIGHT + ROW_HEIGHT - 4.0 };
        (positions, height)
    }

    fn grid(&self, out: &mut String, x: &AxisScale, y: &AxisScale) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let tick_y = y.position(tick);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {tick_y:.1}H{right}\"/>\
                 <text class=\"dim\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                tick_y + 4.0,
                scale::label(tick)
            );
        }
        for tick in x.ticks() {
            let tick_x = x.position(tick);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{tick_x:.1} {TOP}V{bottom}\"/>\
                 <text class=\"dim\" x=\"{tick_x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 17.0,
                scale::label(tick)
            );
        }
        let middle = (TOP + bottom) / 2.0;
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"dim\" transform=\"translate(16 {middle}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 38.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }

    fn draw(&self, out: &mut String, series: &ChartSeries, index: usize, x: &AxisScale, y: &AxisScale) {
        let points: Vec<&ChartPoint> = series.points.iter().filter(|point| self.is_drawable(point)).collect();
        let _ = write!(out, "<g style=\"color:{}\">", colour(index));
        if matches!(series.style, SeriesStyle::Line | SeriesStyle::Dashed) && points.len() > 1 {
            let path: Vec<String> =
                points.iter().map(|p| format!("{:.1} {:.1}", x.position(p.x), y.position(p.y))).collect();
            let _ = write!(
                out,
                "<path d=\"M{}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.8\" \
                 stroke-linejoin=\"round\"{}/>",
                path.join("L"),
                dash(series.style, index)
            );
        }
        let bar_width = bar_width(&points, x);
        for point in &points {
            let (left, top) = (x.position(point.x), y.position(point.y));
            if let Some((low, high)) = point.range.filter(|(low, high)| low.is_finite() && high.is_finite()) {
                let (low_y, high_y) = (y.position(low), y.position(high));
                let _ = write!(
                    out,
                    "<path class=\"whisker\" d=\"M{left:.1} {low_y:.1}V{high_y:.1}M{:.1} {low_y:.1}h6M{:.1} \
                     {high_y:.1}h6\" \
                     stroke=\"currentColor\" fill=\"none\"/>",
                    left - 3.0,
                    left - 3.0
                );
            }
            let tooltip = tooltip(series, point);
            match series.style {
                SeriesStyle::Bars => {
                    let height = (HEIGHT - BOTTOM - top).max(0.0);
                    let _ = write!(
                        out,
                        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{bar_width:.1}\" height=\"{height:.1}\" \
                         fill=\"currentColor\" opacity=\"0.7\">{tooltip}</rect>",
                        left - bar_width / 2.0
                    );
                }
                SeriesStyle::Dashed => {}
                SeriesStyle::Line if points.len() > MAX_MARKS => {}
                SeriesStyle::Line | SeriesStyle::Dots => mark(out, index, left, top, &tooltip),
            }
        }
        out.push_str("</g>");
    }
}

fn tooltip(series: &ChartSeries, point: &ChartPoint) -> String {
    let mut text = format!("{}: {}, {}", series.name, scale::label(point.x), scale::label(point.y));
    if let Some((low, high)) = point.range {
        let _ = write!(text, " ({} to {})", scale::label(low), scale::label(high));
    }
    format!("<title>{}</title>", escape(&text))
}

/// Returns the width of a bar: most of the minimum distance between two.
fn bar_width(points: &[&ChartPoint], x: &AxisScale) -> f64 {
    let gap = points
        .windows(2)
        .map(|pair| (x.position(pair[1].x) - x.position(pair[0].x)).abs())
        .fold(40.0, f64::min);
    (gap * 0.85).max(1.0)
}

fn colour(index: usize) -> String {
    let palette_index = index % COLOURS.len();
    format!("var(--s{palette_index}, {})", COLOURS[palette_index])
}

/// Returns the dash of a broken line, for that style or where the colours are used for the second time.
fn dash(style: SeriesStyle, index: usize) -> &'static str {
    match (style, index >= COLOURS.len()) {
        (SeriesStyle::Dashed, _) => " stroke-dasharray=\"6 4\"",
        (_, true) => " stroke-dasharray=\"2 3\"",
        _ => "",
    }
}

/// Draws the mark of a series: six shapes in turn.
fn mark(out: &mut String, index: usize, x: f64, y: f64, tooltip: &str) {
    let shape = match index % 6 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\""),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\"", x - 3.0, y - 3.0),
        2 => format!("<path d=\"M{x:.1} {:.1}l3.8 6.6h-7.6z\"", y - 4.2),
        3 => format!("<path d=\"M{x:.1} {:.1}l4 4-4 4-4-4z\"", y - 4.0),
        4 => format!("<path d=\"M{x:.1} {:.1}l3.8-6.6h-7.6z\"", y + 4.2),
        _ => format!(
            "<path d=\"M{:.1} {:.1}l6 6m0-6l-6 6\" stroke=\"currentColor\" stroke-width=\"2\"",
            x - 3.0,
            y - 3.0
        ),
    };
    let _ = write!(
        out,
        "{shape} fill=\"currentColor\">{tooltip}</{}>",
        match index % 6 {
            0 => "circle",
            1 => "rect",
            _ => "path",
        }
    );
}

/// Draws an entry of the legend.
fn swatch(out: &mut String, series: &ChartSeries, index: usize, left: f64, top: f64) {
    let _ = write!(out, "<g style=\"color:{}\">", colour(index));
    if matches!(series.style, SeriesStyle::Line | SeriesStyle::Dashed) {
        let _ = write!(
            out,
            "<path d=\"M{left} {top}h22\" stroke=\"currentColor\" stroke-width=\"1.8\"{}/>",
            dash(series.style, index)
        );
    }
    match series.style {
        SeriesStyle::Bars => {
            let _ = write!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"10\" fill=\"currentColor\" opacity=\"0.7\"/>",
                left + 5.0,
                top - 5.0
            );
        }
        SeriesStyle::Line | SeriesStyle::Dots => mark(out, index, left + 11.0, top, ""),
        SeriesStyle::Dashed => {}
    }
    let _ = write!(
        out,
        "</g><text class=\"ink\" x=\"{}\" y=\"{}\">{}</text>",
        left + 28.0,
        top + 4.0,
        escape(&series.name)
    );
}

/// The style of an SVG by itself; in a page the page's variables take precedence.
const STYLE: &str = ".chart .ink{fill:var(--ink,#1c2733)}.chart .dim{fill:var(--dim,#5a6775)}\
.chart .grid{stroke:var(--grid,#e3e7ec);fill:none}.chart .axis{stroke:var(--dim,#5a6775);fill:none}\
@media (prefers-color-scheme:dark){.chart{--ink:#e6edf3;--dim:#9aa7b4;--grid:#2a333d;--s0:#4aa8e0;\
--s1:#ff8a3d;--s2:#2fc79b;--s3:#e29bc4;--s4:#d9b22e;--s6:#b28bd0;--s7:#a8b0b8}}";

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<ChartPoint>, style: SeriesStyle) -> Chart {
        Chart {
            title: "Load <&> latency".into(),
            x: ChartAxis { label: "rate".into(), ..ChartAxis::default() },
            y: ChartAxis { label: "seconds".into(), log: true, zero: false },
            series: vec![ChartSeries { name: "p99 \"tail\"".into(), points, style }],
            notes: vec!["a note".into()],
        }
    }

    /// Checks that open and closed elements balance and that no given text is taken for markup.
    fn assert_well_formed(svg: &str) {
        let mut open_tags = Vec::new();
        for chunk in svg.split('<').skip(1) {
            let (tag, _) = chunk.split_once('>').expect("a tag ends");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open_tags.pop(), Some(name), "{svg}");
            } else if !tag.ends_with('/') {
                open_tags.push(tag.split(' ').next().unwrap_or(tag));
            }
        }
        assert!(open_tags.is_empty(), "{open_tags:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn every_style_is_well_formed_and_has_a_tip_for_each_point() {
        for style in [SeriesStyle::Line, SeriesStyle::Dots, SeriesStyle::Dashed, SeriesStyle::Bars] {
            let range = Some((0.5, 3.0));
            let svg =
                chart(vec![ChartPoint { x: 1.0, y: 1.0, range }, ChartPoint::at(2.0, 20.0)], style).svg();
            assert_well_formed(&svg);
            assert!(svg.contains("Load &lt;&amp;&gt; latency") && svg.contains("a note"));
            let tooltip_count = svg.matches("<title>").count() - 1;
            assert_eq!(tooltip_count, if style == SeriesStyle::Dashed { 0 } else { 2 }, "{style:?}");
        }
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_as_nothing() {
        assert_well_formed(&Chart::default().svg());
        let unplottable = [f64::NAN, f64::INFINITY, 0.0, -1.0];
        let svg =
            chart(unplottable.iter().map(|y| ChartPoint::at(1.0, *y)).collect(), SeriesStyle::Line).svg();
        assert_well_formed(&svg);
        assert_eq!(svg.matches("<title>").count(), 1);
        let single = chart(vec![ChartPoint::at(3.0, 3.0)], SeriesStyle::Line).svg();
        assert_well_formed(&single);
    }

    #[test]
    fn a_higher_value_is_drawn_higher_within_the_frame() {
        let series = ChartSeries {
            points: vec![ChartPoint::at(0.0, 1.0), ChartPoint::at(1.0, 9.0)],
            ..ChartSeries::default()
        };
        let svg = Chart { series: vec![series], ..Chart::default() }.svg();
        let heights: Vec<f64> = svg
            .split("cy=\"")
            .skip(1)
            .take(2)
            .map(|rest| rest.split('"').next().unwrap_or("").parse().expect("a number"))
            .collect();
        assert!(heights[1] < heights[0], "{heights:?}");
        assert!(heights.iter().all(|height| (TOP..=HEIGHT - BOTTOM).contains(height)), "{heights:?}");
    }
}
