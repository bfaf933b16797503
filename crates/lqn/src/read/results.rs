//! Reads the results in LQNX, of other tools or of measurements.

use roxmltree::{Document, Node, ParsingOptions};

use super::{InputError, SourcePosition};

/// One number of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredResult {
    /// The kind: `task`, `entry` or `processor`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// The metric, as in [`crate::analysis::ResultLine::metric`].
    pub metric: String,
    /// The number.
    pub mean: f64,
}

/// Reads the results in a document: throughputs and utilizations of tasks and processors, throughputs and
/// times of entries. The response time of clients follows by Little's law from their number, throughput and
/// think time.
///
/// # Errors
/// Returns an error with its position for invalid XML, for another kind of document, for an invalid number,
/// and if there are no results.
pub fn read_results(source: &str) -> Result<Vec<MeasuredResult>, InputError> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document = Document::parse_with_options(source, options).map_err(|error| {
        let text_position = error.pos();
        SourcePosition { line: text_position.row as usize, column: text_position.col as usize }
            .error(format!("no XML: {error}"))
    })?;
    let root = document.root_element();
    let mut reader = ResultsReader { document: &document, results: Vec::new() };
    if root.tag_name().name() != "lqn-model" {
        let message = format!("expected `lqn-model`, not `{}`", root.tag_name().name());
        return Err(reader.position(root, "").error(message));
    }
    for element in root.descendants().filter(Node::is_element) {
        reader.element(element)?;
    }
    if reader.results.is_empty() {
        return Err(reader
            .position(root, "")
            .error("there are no results in it (`result-task`, `result-processor` …)"));
    }
    Ok(reader.results)
}

struct ResultsReader<'d> {
    document: &'d Document<'d>,
    results: Vec<MeasuredResult>,
}

impl<'d> ResultsReader<'d> {
    fn position(&self, node: Node<'_, '_>, attribute: &str) -> SourcePosition {
        let start = node
            .attribute_node(attribute)
            .map_or_else(|| node.range().start, |attribute_node| attribute_node.range().start);
        let text_position = self.document.text_pos_at(start);
        SourcePosition { line: text_position.row as usize, column: text_position.col as usize }
    }

    fn number(&self, node: Node<'d, 'd>, name: &str) -> Result<Option<f64>, InputError> {
        let Some(text) = node.attribute(name) else { return Ok(None) };
        let value: Option<f64> = text.trim().parse().ok();
        let value = value.filter(|value| value.is_finite());
        let invalid_number =
            || self.position(node, name).error(format!("`{name}` is a number, not `{text}`"));
        value.map(Some).ok_or_else(invalid_number)
    }

    fn element(&mut self, element: Node<'d, 'd>) -> Result<(), InputError> {
        let Some(parent) = element.parent_element() else { return Ok(()) };
        let is_client = |node: Node<'d, 'd>| {
            node.ancestors().any(|ancestor| ancestor.attribute("scheduling") == Some("ref"))
        };
        match element.tag_name().name() {
            "result-processor" => {
                self.read_attributes(element, parent, "processor", &[("utilization", "busy")])
            }
            "result-task" => {
                self.read_attributes(
                    element,
                    parent,
                    "task",
                    &[("throughput", "throughput"), ("utilization", "busy")],
                )?;
                let throughput = self.number(element, "throughput")?.filter(|rate| *rate > 0.0);
                // An attribute may be a parameter, whose value is unknown here.
                let count: f64 =
                    parent.attribute("multiplicity").map_or(Ok(1.0), str::parse).unwrap_or(f64::NAN);
                let think: f64 =
                    parent.attribute("think-time").map_or(Ok(0.0), str::parse).unwrap_or(f64::NAN);
                if let (true, Some(rate)) = (is_client(parent), throughput) {
                    let response = count / rate - think;
                    if response.is_finite() {
                        self.add_result(parent, "task", "response", response);
                    }
                }
                Ok(())
            }
            "result-entry" if !is_client(parent) => {
                let metrics = [
                    ("throughput", "throughput"),
                    ("open-wait-time", "response"),
                    ("phase1-service-time", "service"),
                ];
                self.read_attributes(element, parent, "entry", &metrics)
            }
            "result-activity" if parent.attribute("phase") == Some("1") && !is_client(parent) => {
                let entry = parent.ancestors().find(|ancestor| ancestor.tag_name().name() == "entry");
                entry.map_or(Ok(()), |entry| {
                    self.read_attributes(element, entry, "entry", &[("service-time", "service")])
                })
            }
            _ => Ok(()),
        }
    }

    fn read_attributes(
        &mut self,
        element: Node<'d, 'd>,
        subject: Node<'d, 'd>,
        kind: &str,
        metrics: &[(&str, &str)],
    ) -> Result<(), InputError> {
        for (attribute, metric) in metrics {
            if let Some(mean) = self.number(element, attribute)? {
                self.add_result(subject, kind, metric, mean);
            }
        }
        Ok(())
    }

    fn add_result(&mut self, subject: Node<'d, 'd>, kind: &str, metric: &str, mean: f64) {
        let name = subject.attribute("name").unwrap_or_default().to_owned();
        self.results.push(MeasuredResult { kind: kind.to_owned(), name, metric: metric.to_owned(), mean });
    }
}
