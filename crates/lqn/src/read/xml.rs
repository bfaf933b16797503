//! The parser of LQNX, the XML format of models. Ignores results in it.

use roxmltree::{Document, Node, ParsingOptions};

use super::draft::{
    DraftActivity, DraftCall, DraftEntry, DraftFan, DraftLink, DraftPredecessors, DraftProcessor,
    DraftSuccessors, DraftTask, FanDirection, ModelDraft, SourceName,
};
use super::expression::ExpressionParser;
use super::text::to_multiplicity;
use super::tokenizer::{TokenKind, tokenize};
use super::{InputError, ParameterScope, SourcePosition, limits, lqnx_schema, routing};
use crate::model::{CallOrder, Multiplicity, RetryPolicy, Scheduling};

/// Parses a whole document.
pub(super) fn draft(source: &str, scope: &mut ParameterScope<'_>) -> Result<ModelDraft, InputError> {
    // The encoding in the declaration is ignored, because the source is text already. DTDs are refused,
    // because an entity could refer to anything.
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document = Document::parse_with_options(source, options).map_err(|error| {
        let text_position = error.pos();
        let position = match error {
            // This error has no position.
            roxmltree::Error::UnclosedRootNode => end_position(source),
            _ => SourcePosition { line: text_position.row as usize, column: text_position.col as usize },
        };
        position.error(format!("no XML: {error}"))
    })?;
    let mut reader = LqnxParser { document: &document, scope, draft: ModelDraft::default() };
    let root = document.root_element();
    if root.tag_name().name() != "lqn-model" {
        return Err(reader
            .position(root)
            .error(format!("expected `lqn-model`, not `{}`", root.tag_name().name())));
    }
    lqnx_schema::check_document(&document, root)?;
    reader.model(root)?;
    Ok(reader.draft)
}

/// Returns the position after the last character.
fn end_position(source: &str) -> SourcePosition {
    let last_line = source.rsplit('\n').next().unwrap_or_default();
    SourcePosition { line: source.matches('\n').count() + 1, column: last_line.chars().count() + 1 }
}

struct LqnxParser<'d, 's, 'g> {
    document: &'d Document<'d>,
    scope: &'s mut ParameterScope<'g>,
    draft: ModelDraft,
}

type XmlElement<'d> = Node<'d, 'd>;

fn elements<'d>(node: XmlElement<'d>) -> impl Iterator<Item = XmlElement<'d>> {
    node.children().filter(Node::is_element)
}

fn elements_named<'d>(node: XmlElement<'d>, name: &'static str) -> impl Iterator<Item = XmlElement<'d>> {
    elements(node).filter(move |child| child.tag_name().name() == name)
}

impl<'d> LqnxParser<'d, '_, '_> {
    fn position(&self, node: XmlElement<'_>) -> SourcePosition {
        let text_position = self.document.text_pos_at(node.range().start);
        SourcePosition { line: text_position.row as usize, column: text_position.col as usize }
    }

    /// Returns the position of an attribute, or of the element that should have it.
    fn attribute_position(&self, node: XmlElement<'_>, name: &str) -> SourcePosition {
        let start =
            node.attribute_node(name).map_or_else(|| node.range().start, |attribute| attribute.range().start);
        let text_position = self.document.text_pos_at(start);
        SourcePosition { line: text_position.row as usize, column: text_position.col as usize }
    }

    fn text(&self, node: XmlElement<'d>, name: &str) -> Result<SourceName, InputError> {
        let position = self.attribute_position(node, name);
        match node.attribute(name) {
            Some(text) if !text.is_empty() => Ok(SourceName { text: text.to_owned(), at: position }),
            _ => Err(position.error(format!("`{}` needs `{name}`", node.tag_name().name()))),
        }
    }

    /// Parses a number or a parameter; returns `otherwise` if there is none.
    fn number(&self, node: XmlElement<'d>, name: &str, default: f64) -> Result<f64, InputError> {
        let Some(text) = node.attribute(name) else { return Ok(default) };
        let position = self.attribute_position(node, name);
        let text = text.trim();
        let value = match text.strip_prefix('$') {
            Some(parameter) => self.scope.value(parameter, position)?,
            None if matches!(text, "inf" | "infinite" | "@infinity" | "INF") => f64::INFINITY,
            None => {
                text.parse().map_err(|_| position.error(format!("`{name}` is a number, not `{text}`")))?
            }
        };
        if value < 0.0 || value.is_nan() {
            return Err(position.error(format!("`{name}` cannot be {value}")));
        }
        Ok(value)
    }

    fn model(&mut self, root: XmlElement<'d>) -> Result<(), InputError> {
        for element in elements(root) {
            if element.tag_name().name() == "parameters" {
                self.parameters(element)?;
            }
        }
        for element in elements(root) {
            let position = self.position(element);
            match element.tag_name().name() {
                "parameters" | "run-control" | "plot-control" => {}
                "solver-params" => {
                    self.draft.comment = element.attribute("comment").unwrap_or_default().to_owned();
                    for pragma in elements_named(element, "pragma") {
                        let entry = pragma.attribute("param").and_then(|param| param.strip_prefix("route."));
                        if let Some(entry) = entry {
                            let name = SourceName {
                                text: entry.to_owned(),
                                at: self.attribute_position(pragma, "param"),
                            };
                            let value = pragma.attribute("value").unwrap_or_default();
                            let routing = routing::parse_routing(
                                value,
                                self.attribute_position(pragma, "value"),
                                self.scope,
                            )?;
                            self.draft.routes.push((name, routing));
                        }
                    }
                }
                "processor" => self.processor(element)?,
                "lqx" => {
                    return Err(position.error("a program (`lqx`) is not supported; give parameters instead"));
                }
                name @ ("results-collection" | "convergence-collection") => {
                    self.draft.notes.push(format!("line {}: `{name}` is left aside", position.line));
                }
                unknown => return Err(position.error(format!("no `{unknown}` in a model"))),
            }
        }
        Ok(())
    }

    /// Parses declarations, which are text in the syntax of the other format.
    fn parameters(&mut self, element: XmlElement<'d>) -> Result<(), InputError> {
        let start = self.position(element);
        let mut source = String::new();
        for child in element.children() {
            if child.is_text() {
                source += child.text().unwrap_or_default();
            } else if child.is_element() {
                return Err(self.position(child).error("expected a parameter: `$x = 1`"));
            } else {
                // Replace a comment by as many spaces, so that positions stay correct.
                let comment = &self.document.input_text()[child.range()];
                source
                    .extend(comment.chars().map(|character| if character == '\n' { character } else { ' ' }));
            }
        }
        let document_position = |position: SourcePosition| SourcePosition {
            line: start.line + position.line - 1,
            column: position.column,
        };
        let with_position = |error: InputError| {
            document_position(SourcePosition { line: error.line, column: error.column }).error(error.message)
        };
        let tokens = tokenize(&source).map_err(with_position)?;
        let mut next = 0;
        while let TokenKind::Variable(name) = &tokens[next].kind {
            if tokens.get(next + 1).is_none_or(|token| token.kind != TokenKind::Punctuation("=")) {
                return Err(document_position(tokens[next].at).error(format!("expected `${name} = …`")));
            }
            if let Some(TokenKind::Text(text)) = tokens.get(next + 2).map(|token| &token.kind) {
                self.draft.set_text(name, text, document_position(tokens[next].at));
                next += 3;
                continue;
            }
            let mut reader = ExpressionParser { tokens: &tokens, next: next + 2, scope: &*self.scope };
            let values = reader.values().map_err(with_position)?;
            next = reader.next;
            self.scope.declare(name, values);
        }
        match &tokens[next].kind {
            TokenKind::End => Ok(()),
            _ => Err(document_position(tokens[next].at).error("expected a parameter: `$x = 1`")),
        }
    }

    fn processor(&mut self, element: XmlElement<'d>) -> Result<(), InputError> {
        let name = self.text(element, "name")?;
        let position = self.attribute_position(element, "scheduling");
        let copies = self.copies(element)?;
        let scheduling = match element.attribute("scheduling").unwrap_or("fcfs") {
            "fcfs" => Scheduling::Fcfs,
            "ps" => Scheduling::ProcessorSharing,
            "hol" => Scheduling::HeadOfLine,
            "pp" | "pri" => Scheduling::Preemptive,
            "rand" => Scheduling::Random,
            "inf" => Scheduling::Fcfs,
            unknown => {
                return Err(position.error(format!(
                    "scheduling `{unknown}` of processors is not supported; there are fcfs, ps, hol, pp, \
                     rand and inf"
                )));
            }
        };
        let replicas = self.replicas(element, "replication")?;
        let speed = self.number(element, "speed-factor", 1.0)?;
        if speed == 0.0 || speed.is_infinite() {
            return Err(self
                .attribute_position(element, "speed-factor")
                .error("a speed is above 0, and a number"));
        }
        self.draft.processors.push(DraftProcessor {
            name: name.clone(),
            scheduling,
            copies,
            speed,
            replicas,
        });
        for child in elements(element) {
            match child.tag_name().name() {
                "task" => self.task(child, &name)?,
                "group" => {
                    return Err(self
                        .position(child)
                        .error("groups that share a processor are not supported"));
                }
                "result-processor" => {}
                unknown => return Err(self.position(child).error(format!("no `{unknown}` in a processor"))),
            }
        }
        Ok(())
    }

    /// Returns the multiplicity; with scheduling `inf` the number is ignored.
    fn copies(&self, element: XmlElement<'d>) -> Result<Multiplicity, InputError> {
        let count = self.number(element, "multiplicity", 1.0)?;
        if element.attribute("scheduling") == Some("inf") {
            return Ok(Multiplicity::Infinite);
        }
        to_multiplicity(count).ok_or_else(|| {
            self.attribute_position(element, "multiplicity")
                .error(format!("there cannot be {count} of it: a whole number from 1 on, or `inf`"))
        })
    }

    fn priority(&self, element: XmlElement<'d>) -> Result<i32, InputError> {
        limits::to_priority(
            self.number(element, "priority", 0.0)?,
            self.attribute_position(element, "priority"),
        )
    }

    fn replicas(&self, element: XmlElement<'d>, name: &str) -> Result<u32, InputError> {
        limits::to_replicas(self.number(element, name, 1.0)?, self.attribute_position(element, name))
    }

    /// Parses a fan-in or fan-out of a task.
    fn fan(&mut self, element: XmlElement<'d>, task: &SourceName) -> Result<(), InputError> {
        let count = self.replicas(element, "value")?;
        self.draft.fans.push(if element.tag_name().name() == "fan-in" {
            DraftFan {
                from: self.text(element, "source")?,
                to: task.clone(),
                direction: FanDirection::In,
                count,
            }
        } else {
            DraftFan {
                from: task.clone(),
                to: self.text(element, "dest")?,
                direction: FanDirection::Out,
                count,
            }
        });
        Ok(())
    }

    /// Notes an element that changes no number of the model.
    fn note_ignored(&mut self, element: XmlElement<'d>, name: &str) {
        let line = self.position(element).line;
        self.draft.notes.push(format!("line {line}: `{name}` is left aside"));
    }

    fn task(&mut self, element: XmlElement<'d>, processor: &SourceName) -> Result<(), InputError> {
        let position = self.attribute_position(element, "scheduling");
        let mut task = DraftTask {
            copies: self.copies(element)?,
            replicas: self.replicas(element, "replication")?,
            think: self.number(element, "think-time", 0.0)?,
            priority: self.priority(element)?,
            queue_limit: self
                .namespaced_number(element, "queue-limit")?
                .map(|(value, position)| Ok((limits::to_queue_limit(value, position)?, position)))
                .transpose()?,
            ..DraftTask::new(self.text(element, "name")?, processor.clone())
        };
        match element.attribute("scheduling").unwrap_or("fcfs") {
            "ref" => task.is_client = true,
            "fcfs" | "n" => {}
            "pri" | "hol" => task.scheduling = Scheduling::HeadOfLine,
            "inf" => {}
            unknown => {
                return Err(position.error(format!(
                    "scheduling `{unknown}` of tasks is not supported; there are ref, fcfs, hol and inf"
                )));
            }
        }
        if self.number(element, "queue-length", 0.0)? != 0.0 {
            return Err(self.attribute_position(element, "queue-length").error(
                "`queue-length`, which every tool understands otherwise, is not supported; write \
                    `plimsoll:queue-limit`",
            ));
        }
        for child in elements(element) {
            match child.tag_name().name() {
                "entry" => self.entry(child, &mut task)?,
                "task-activities" => self.activities(child, &mut task)?,
                "fan-in" | "fan-out" => {
                    let name = task.name.clone();
                    self.fan(child, &name)?;
                }
                "result-task" => {}
                name @ ("service-time-distribution" | "service") => self.note_ignored(child, name),
                unknown => {
                    return Err(self
                        .position(child)
                        .error(format!("`{unknown}` of a task is not supported")));
                }
            }
        }
        self.draft.tasks.push(task);
        Ok(())
    }

    fn entry(&mut self, element: XmlElement<'d>, task: &mut DraftTask) -> Result<(), InputError> {
        let mut entry = DraftEntry { name: self.text(element, "name")?, ..DraftEntry::default() };
        for lock in ["semaphore", "rwlock"] {
            if element.has_attribute(lock) {
                return Err(self
                    .attribute_position(element, lock)
                    .error(format!("`{lock}` is not supported")));
            }
        }
        entry.arrivals = self.number(element, "open-arrival-rate", 0.0)?;
        entry.priority = self.priority(element)?;
        for child in elements_named(element, "service-time-distribution") {
            self.note_ignored(child, "service-time-distribution");
        }
        for child in elements_named(element, "forwarding") {
            entry.forwards.push((self.text(child, "dest")?, self.number(child, "prob", 1.0)?));
        }
        for phase in elements_named(element, "entry-phase-activities")
            .flat_map(|phases| elements_named(phases, "activity"))
        {
            let number = self.number(phase, "phase", 1.0)?;
            if !(number.fract() == 0.0 && (1.0..=3.0).contains(&number)) {
                return Err(self.attribute_position(phase, "phase").error("a phase is 1, 2 or 3"));
            }
            entry.phases[number as usize - 1] = self.activity(phase)?;
        }
        task.entries.push(entry.name.clone());
        self.draft.entries.push(entry);
        Ok(())
    }

    fn activity(&mut self, element: XmlElement<'d>) -> Result<DraftActivity, InputError> {
        let order = match element.attribute("call-order").unwrap_or("STOCHASTIC") {
            order if order.eq_ignore_ascii_case("stochastic") => CallOrder::Stochastic,
            order if order.eq_ignore_ascii_case("deterministic") => CallOrder::Deterministic,
            order if order.eq_ignore_ascii_case("list") => CallOrder::List,
            unknown => {
                let position = self.attribute_position(element, "call-order");
                return Err(position.error(format!(
                    "no call order `{unknown}`; there are STOCHASTIC, DETERMINISTIC and LIST"
                )));
            }
        };
        let mut activity = DraftActivity {
            name: self.text(element, "name")?,
            demand: self.number(element, "host-demand-mean", 0.0)?,
            variation: self.number(element, "host-demand-cvsq", 1.0)?,
            think: self.number(element, "think-time", 0.0)?,
            order,
            calls: Vec::new(),
        };
        if element.attribute("max-service-time").is_some_and(|time| time.trim().parse() != Ok(0.0)) {
            self.note_ignored(element, "max-service-time");
        }
        for child in elements(element) {
            let waits = match child.tag_name().name() {
                "synch-call" => true,
                "asynch-call" => false,
                name @ "service-time-distribution" => {
                    self.note_ignored(child, name);
                    continue;
                }
                _ => continue,
            };
            let count = self.number(child, "calls-mean", 1.0)?;
            let mut call = DraftCall::new(self.text(child, "dest")?, count, waits);
            call.retry_policy = self.parse_retry_policy(child, waits)?;
            activity.calls.push(call);
        }
        Ok(activity)
    }

    /// Returns the number in an attribute of this crate's namespace, with its position.
    fn namespaced_number(
        &self,
        node: XmlElement<'d>,
        name: &str,
    ) -> Result<Option<(f64, SourcePosition)>, InputError> {
        let Some(attribute) = node.attribute_node((limits::NAMESPACE, name)) else { return Ok(None) };
        let text_position = self.document.text_pos_at(attribute.range().start);
        let position =
            SourcePosition { line: text_position.row as usize, column: text_position.col as usize };
        limits::parse_number(attribute.value(), position, self.scope).map(|value| Some((value, position)))
    }

    fn parse_retry_policy(
        &self,
        node: XmlElement<'d>,
        waits: bool,
    ) -> Result<Option<RetryPolicy>, InputError> {
        let mut retry_policy = None;
        for setting_name in limits::RETRY_SETTINGS {
            let Some((value, position)) = self.namespaced_number(node, setting_name)? else { continue };
            if !waits {
                return Err(
                    position.error("nobody waits for the answer of this call, who could lose patience")
                );
            }
            limits::set_retry_setting(
                retry_policy.get_or_insert(RetryPolicy::UNLIMITED),
                setting_name,
                value,
                position,
            )?;
        }
        Ok(retry_policy)
    }

    fn activities(&mut self, element: XmlElement<'d>, task: &mut DraftTask) -> Result<(), InputError> {
        for child in elements(element) {
            match child.tag_name().name() {
                "activity" => {
                    let activity = self.activity(child)?;
                    if child.has_attribute("bound-to-entry") {
                        let entry = self.text(child, "bound-to-entry")?;
                        let matching_entry =
                            self.draft.entries.iter_mut().find(|candidate| candidate.name.text == entry.text);
                        let Some(bound_entry) = matching_entry else {
                            return Err(entry.at.error(format!("no entry `{}`", entry.text)));
                        };
                        bound_entry.start = Some(activity.name.clone());
                    }
                    task.activities.push(activity);
                }
                "precedence" => {
                    let link = self.link(child)?;
                    task.links.push(link);
                }
                "reply-entry" => {
                    let entry = self.text(child, "name")?;
                    for reply in elements_named(child, "reply-activity") {
                        task.replies.push((self.text(reply, "name")?, vec![entry.clone()]));
                    }
                }
                "result-activity" | "result-join-delay" => {}
                name @ "service-time-distribution" => self.note_ignored(child, name),
                unknown => {
                    return Err(self
                        .position(child)
                        .error(format!("`{unknown}` of activities is not supported")));
                }
            }
        }
        Ok(())
    }

    fn link(&self, element: XmlElement<'d>) -> Result<DraftLink, InputError> {
        let position = self.position(element);
        let (mut predecessors, mut successors) = (None, DraftSuccessors::End);
        for child in elements(element) {
            let mut names = Vec::new();
            for activity in elements_named(child, "activity") {
                names.push(self.text(activity, "name")?);
            }
            let first_name = names.first().cloned();
            let required_name =
                first_name.ok_or_else(|| self.position(child).error("expected an `activity` in it"));
            match child.tag_name().name() {
                "pre" | "pre-OR" if names.len() < 2 => {
                    predecessors = Some(DraftPredecessors::One(required_name?))
                }
                "pre" => {
                    return Err(self
                        .position(child)
                        .error("one activity; several stand in pre-OR or pre-AND"));
                }
                "pre-OR" => predecessors = Some(DraftPredecessors::Or(names)),
                "pre-AND" => {
                    let position = self.attribute_position(child, "quorum");
                    let quorum = limits::to_quorum(self.number(child, "quorum", 0.0)?, position)?;
                    let quorum = (quorum > 0).then_some((quorum, position));
                    required_name?;
                    predecessors = Some(DraftPredecessors::And(names, quorum));
                }
                "post" => successors = DraftSuccessors::One(required_name?),
                "post-AND" => {
                    required_name?;
                    successors = DraftSuccessors::And(names);
                }
                "post-OR" => {
                    required_name?;
                    let mut branches = Vec::new();
                    for (activity, name) in elements_named(child, "activity").zip(names) {
                        branches.push((self.number(activity, "prob", 1.0)?, name));
                    }
                    successors = DraftSuccessors::Or(branches);
                }
                "post-LOOP" => {
                    required_name?;
                    let mut bodies = Vec::new();
                    for (activity, name) in elements_named(child, "activity").zip(names) {
                        bodies.push((self.number(activity, "count", 1.0)?, name));
                    }
                    let exit = child.has_attribute("end").then(|| self.text(child, "end")).transpose()?;
                    successors = DraftSuccessors::Loop(bodies, exit);
                }
                "result-join-delay" => {}
                unknown => return Err(self.position(child).error(format!("no `{unknown}` in a precedence"))),
            }
        }
        let linked_predecessors =
            predecessors.ok_or_else(|| position.error("what comes before is missing (`pre`)"))?;
        Ok(DraftLink { predecessors: linked_predecessors, successors })
    }
}
