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
        let place = error.pos();
        let at = match error {
            // This error has no position.
            roxmltree::Error::UnclosedRootNode => end(source),
            _ => SourcePosition { line: place.row as usize, column: place.col as usize },
        };
        at.error(format!("no XML: {error}"))
    })?;
    let mut reader = LqnxParser { document: &document, scope, draft: ModelDraft::default() };
    let root = document.root_element();
    if root.tag_name().name() != "lqn-model" {
        return Err(reader.at(root).error(format!("expected `lqn-model`, not `{}`", root.tag_name().name())));
    }
    lqnx_schema::check_document(&document, root)?;
    reader.model(root)?;
    Ok(reader.draft)
}

/// Returns the position after the last character.
fn end(source: &str) -> SourcePosition {
    let last = source.rsplit('\n').next().unwrap_or_default();
    SourcePosition { line: source.matches('\n').count() + 1, column: last.chars().count() + 1 }
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

fn named<'d>(node: XmlElement<'d>, name: &'static str) -> impl Iterator<Item = XmlElement<'d>> {
    elements(node).filter(move |child| child.tag_name().name() == name)
}

impl<'d> LqnxParser<'d, '_, '_> {
    fn at(&self, node: XmlElement<'_>) -> SourcePosition {
        let place = self.document.text_pos_at(node.range().start);
        SourcePosition { line: place.row as usize, column: place.col as usize }
    }

    /// Returns the position of an attribute, or of the element that should have it.
    fn at_attribute(&self, node: XmlElement<'_>, name: &str) -> SourcePosition {
        let start = node.attribute_node(name).map_or_else(|| node.range().start, |own| own.range().start);
        let place = self.document.text_pos_at(start);
        SourcePosition { line: place.row as usize, column: place.col as usize }
    }

    fn text(&self, node: XmlElement<'d>, name: &str) -> Result<SourceName, InputError> {
        let at = self.at_attribute(node, name);
        match node.attribute(name) {
            Some(text) if !text.is_empty() => Ok(SourceName { text: text.to_owned(), at }),
            _ => Err(at.error(format!("`{}` needs `{name}`", node.tag_name().name()))),
        }
    }

    /// Parses a number or a parameter; returns `otherwise` if there is none.
    fn number(&self, node: XmlElement<'d>, name: &str, otherwise: f64) -> Result<f64, InputError> {
        let Some(text) = node.attribute(name) else { return Ok(otherwise) };
        let at = self.at_attribute(node, name);
        let text = text.trim();
        let value = match text.strip_prefix('$') {
            Some(parameter) => self.scope.value(parameter, at)?,
            None if matches!(text, "inf" | "infinite" | "@infinity" | "INF") => f64::INFINITY,
            None => text.parse().map_err(|_| at.error(format!("`{name}` is a number, not `{text}`")))?,
        };
        if value < 0.0 || value.is_nan() {
            return Err(at.error(format!("`{name}` cannot be {value}")));
        }
        Ok(value)
    }

    fn model(&mut self, root: XmlElement<'d>) -> Result<(), InputError> {
        for own in elements(root) {
            if own.tag_name().name() == "parameters" {
                self.parameters(own)?;
            }
        }
        for own in elements(root) {
            let at = self.at(own);
            match own.tag_name().name() {
                "parameters" | "run-control" | "plot-control" => {}
                "solver-params" => {
                    self.draft.comment = own.attribute("comment").unwrap_or_default().to_owned();
                    for pragma in named(own, "pragma") {
                        let entry = pragma.attribute("param").and_then(|param| param.strip_prefix("route."));
                        if let Some(entry) = entry {
                            let name =
                                SourceName { text: entry.to_owned(), at: self.at_attribute(pragma, "param") };
                            let value = pragma.attribute("value").unwrap_or_default();
                            let routing = routing::parse_routing(
                                value,
                                self.at_attribute(pragma, "value"),
                                self.scope,
                            )?;
                            self.draft.routes.push((name, routing));
                        }
                    }
                }
                "processor" => self.processor(own)?,
                "lqx" => return Err(at.error("a program (`lqx`) is not supported; give parameters instead")),
                name @ ("results-collection" | "convergence-collection") => {
                    self.draft.notes.push(format!("line {}: `{name}` is left aside", at.line));
                }
                other => return Err(at.error(format!("no `{other}` in a model"))),
            }
        }
        Ok(())
    }

    /// Parses declarations, which are text in the syntax of the other format.
    fn parameters(&mut self, own: XmlElement<'d>) -> Result<(), InputError> {
        let begin = self.at(own);
        let mut source = String::new();
        for part in own.children() {
            if part.is_text() {
                source += part.text().unwrap_or_default();
            } else if part.is_element() {
                return Err(self.at(part).error("expected a parameter: `$x = 1`"));
            } else {
                // Replace a comment by as many spaces, so that positions stay correct.
                let comment = &self.document.input_text()[part.range()];
                source.extend(comment.chars().map(|own| if own == '\n' { own } else { ' ' }));
            }
        }
        let moved = |at: SourcePosition| SourcePosition { line: begin.line + at.line - 1, column: at.column };
        let misplaced = |trouble: InputError| {
            moved(SourcePosition { line: trouble.line, column: trouble.column }).error(trouble.message)
        };
        let tokens = tokenize(&source).map_err(misplaced)?;
        let mut next = 0;
        while let TokenKind::Variable(name) = &tokens[next].kind {
            if tokens.get(next + 1).is_none_or(|token| token.kind != TokenKind::Punctuation("=")) {
                return Err(moved(tokens[next].at).error(format!("expected `${name} = …`")));
            }
            if let Some(TokenKind::Text(text)) = tokens.get(next + 2).map(|token| &token.kind) {
                self.draft.set_text(name, text, moved(tokens[next].at));
                next += 3;
                continue;
            }
            let mut reader = ExpressionParser { tokens: &tokens, next: next + 2, scope: &*self.scope };
            let values = reader.values().map_err(misplaced)?;
            next = reader.next;
            self.scope.declare(name, values);
        }
        match &tokens[next].kind {
            TokenKind::End => Ok(()),
            _ => Err(moved(tokens[next].at).error("expected a parameter: `$x = 1`")),
        }
    }

    fn processor(&mut self, own: XmlElement<'d>) -> Result<(), InputError> {
        let name = self.text(own, "name")?;
        let at = self.at_attribute(own, "scheduling");
        let copies = self.copies(own)?;
        let scheduling = match own.attribute("scheduling").unwrap_or("fcfs") {
            "fcfs" => Scheduling::Fcfs,
            "ps" => Scheduling::ProcessorSharing,
            "hol" => Scheduling::HeadOfLine,
            "pp" | "pri" => Scheduling::Preemptive,
            "rand" => Scheduling::Random,
            "inf" => Scheduling::Fcfs,
            other => {
                return Err(at.error(format!(
                    "scheduling `{other}` of processors is not supported; there are fcfs, ps, hol, pp, rand \
                    and inf"
                )));
            }
        };
        let replicas = self.replicas(own, "replication")?;
        let speed = self.number(own, "speed-factor", 1.0)?;
        if speed == 0.0 || speed.is_infinite() {
            return Err(self.at_attribute(own, "speed-factor").error("a speed is above 0, and a number"));
        }
        self.draft.processors.push(DraftProcessor {
            name: name.clone(),
            scheduling,
            copies,
            speed,
            replicas,
        });
        for child in elements(own) {
            match child.tag_name().name() {
                "task" => self.task(child, &name)?,
                "group" => {
                    return Err(self.at(child).error("groups that share a processor are not supported"));
                }
                "result-processor" => {}
                other => return Err(self.at(child).error(format!("no `{other}` in a processor"))),
            }
        }
        Ok(())
    }

    /// Returns the multiplicity; with scheduling `inf` the number is ignored.
    fn copies(&self, own: XmlElement<'d>) -> Result<Multiplicity, InputError> {
        let count = self.number(own, "multiplicity", 1.0)?;
        if own.attribute("scheduling") == Some("inf") {
            return Ok(Multiplicity::Infinite);
        }
        to_multiplicity(count).ok_or_else(|| {
            self.at_attribute(own, "multiplicity")
                .error(format!("there cannot be {count} of it: a whole number from 1 on, or `inf`"))
        })
    }

    fn priority(&self, own: XmlElement<'d>) -> Result<i32, InputError> {
        limits::to_priority(self.number(own, "priority", 0.0)?, self.at_attribute(own, "priority"))
    }

    fn replicas(&self, own: XmlElement<'d>, name: &str) -> Result<u32, InputError> {
        limits::to_replicas(self.number(own, name, 1.0)?, self.at_attribute(own, name))
    }

    /// Parses a fan-in or fan-out of a task.
    fn fan(&mut self, own: XmlElement<'d>, task: &SourceName) -> Result<(), InputError> {
        let count = self.replicas(own, "value")?;
        self.draft.fans.push(if own.tag_name().name() == "fan-in" {
            DraftFan { from: self.text(own, "source")?, to: task.clone(), direction: FanDirection::In, count }
        } else {
            DraftFan { from: task.clone(), to: self.text(own, "dest")?, direction: FanDirection::Out, count }
        });
        Ok(())
    }

    /// Notes an element that changes no number of the model.
    fn note_ignored(&mut self, own: XmlElement<'d>, what: &str) {
        let line = self.at(own).line;
        self.draft.notes.push(format!("line {line}: `{what}` is left aside"));
    }

    fn task(&mut self, own: XmlElement<'d>, processor: &SourceName) -> Result<(), InputError> {
        let at = self.at_attribute(own, "scheduling");
        let mut task = DraftTask {
            copies: self.copies(own)?,
            replicas: self.replicas(own, "replication")?,
            think: self.number(own, "think-time", 0.0)?,
            priority: self.priority(own)?,
            queue_limit: self
                .own_number(own, "queue-limit")?
                .map(|(value, at)| Ok((limits::to_queue_limit(value, at)?, at)))
                .transpose()?,
            ..DraftTask::new(self.text(own, "name")?, processor.clone())
        };
        match own.attribute("scheduling").unwrap_or("fcfs") {
            "ref" => task.is_client = true,
            "fcfs" | "n" => {}
            "pri" | "hol" => task.scheduling = Scheduling::HeadOfLine,
            "inf" => {}
            other => {
                return Err(at.error(format!(
                    "scheduling `{other}` of tasks is not supported; there are ref, fcfs, hol and inf"
                )));
            }
        }
        if self.number(own, "queue-length", 0.0)? != 0.0 {
            return Err(self.at_attribute(own, "queue-length").error(
                "`queue-length`, which every tool understands otherwise, is not supported; write \
                    `plimsoll:queue-limit`",
            ));
        }
        for child in elements(own) {
            match child.tag_name().name() {
                "entry" => self.entry(child, &mut task)?,
                "task-activities" => self.activities(child, &mut task)?,
                "fan-in" | "fan-out" => {
                    let name = task.name.clone();
                    self.fan(child, &name)?;
                }
                "result-task" => {}
                name @ ("service-time-distribution" | "service") => self.note_ignored(child, name),
                other => return Err(self.at(child).error(format!("`{other}` of a task is not supported"))),
            }
        }
        self.draft.tasks.push(task);
        Ok(())
    }

    fn entry(&mut self, own: XmlElement<'d>, task: &mut DraftTask) -> Result<(), InputError> {
        let mut entry = DraftEntry { name: self.text(own, "name")?, ..DraftEntry::default() };
        for lock in ["semaphore", "rwlock"] {
            if own.has_attribute(lock) {
                return Err(self.at_attribute(own, lock).error(format!("`{lock}` is not supported")));
            }
        }
        entry.arrivals = self.number(own, "open-arrival-rate", 0.0)?;
        entry.priority = self.priority(own)?;
        for child in named(own, "service-time-distribution") {
            self.note_ignored(child, "service-time-distribution");
        }
        for child in named(own, "forwarding") {
            entry.forwards.push((self.text(child, "dest")?, self.number(child, "prob", 1.0)?));
        }
        for phase in named(own, "entry-phase-activities").flat_map(|phases| named(phases, "activity")) {
            let number = self.number(phase, "phase", 1.0)?;
            if !(number.fract() == 0.0 && (1.0..=3.0).contains(&number)) {
                return Err(self.at_attribute(phase, "phase").error("a phase is 1, 2 or 3"));
            }
            entry.phases[number as usize - 1] = self.activity(phase)?;
        }
        task.entries.push(entry.name.clone());
        self.draft.entries.push(entry);
        Ok(())
    }

    fn activity(&mut self, own: XmlElement<'d>) -> Result<DraftActivity, InputError> {
        let order = match own.attribute("call-order").unwrap_or("STOCHASTIC") {
            order if order.eq_ignore_ascii_case("stochastic") => CallOrder::Stochastic,
            order if order.eq_ignore_ascii_case("deterministic") => CallOrder::Deterministic,
            order if order.eq_ignore_ascii_case("list") => CallOrder::List,
            other => {
                let at = self.at_attribute(own, "call-order");
                return Err(at.error(format!(
                    "no call order `{other}`; there are STOCHASTIC, DETERMINISTIC and LIST"
                )));
            }
        };
        let mut activity = DraftActivity {
            name: self.text(own, "name")?,
            demand: self.number(own, "host-demand-mean", 0.0)?,
            variation: self.number(own, "host-demand-cvsq", 1.0)?,
            think: self.number(own, "think-time", 0.0)?,
            order,
            calls: Vec::new(),
        };
        if own.attribute("max-service-time").is_some_and(|time| time.trim().parse() != Ok(0.0)) {
            self.note_ignored(own, "max-service-time");
        }
        for child in elements(own) {
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
    fn own_number(
        &self,
        node: XmlElement<'d>,
        name: &str,
    ) -> Result<Option<(f64, SourcePosition)>, InputError> {
        let Some(own) = node.attribute_node((limits::NAMESPACE, name)) else { return Ok(None) };
        let place = self.document.text_pos_at(own.range().start);
        let at = SourcePosition { line: place.row as usize, column: place.col as usize };
        limits::parse_number(own.value(), at, self.scope).map(|value| Some((value, at)))
    }

    fn parse_retry_policy(
        &self,
        node: XmlElement<'d>,
        waits: bool,
    ) -> Result<Option<RetryPolicy>, InputError> {
        let mut patience = None;
        for word in limits::RETRY_SETTINGS {
            let Some((value, at)) = self.own_number(node, word)? else { continue };
            if !waits {
                return Err(at.error("nobody waits for the answer of this call, who could lose patience"));
            }
            limits::set_retry_setting(patience.get_or_insert(RetryPolicy::UNLIMITED), word, value, at)?;
        }
        Ok(patience)
    }

    fn activities(&mut self, own: XmlElement<'d>, task: &mut DraftTask) -> Result<(), InputError> {
        for child in elements(own) {
            match child.tag_name().name() {
                "activity" => {
                    let activity = self.activity(child)?;
                    if child.has_attribute("bound-to-entry") {
                        let entry = self.text(child, "bound-to-entry")?;
                        let bound = self.draft.entries.iter_mut().find(|own| own.name.text == entry.text);
                        let Some(bound) = bound else {
                            return Err(entry.at.error(format!("no entry `{}`", entry.text)));
                        };
                        bound.start = Some(activity.name.clone());
                    }
                    task.activities.push(activity);
                }
                "precedence" => {
                    let link = self.link(child)?;
                    task.links.push(link);
                }
                "reply-entry" => {
                    let entry = self.text(child, "name")?;
                    for reply in named(child, "reply-activity") {
                        task.replies.push((self.text(reply, "name")?, vec![entry.clone()]));
                    }
                }
                "result-activity" | "result-join-delay" => {}
                name @ "service-time-distribution" => self.note_ignored(child, name),
                other => {
                    return Err(self.at(child).error(format!("`{other}` of activities is not supported")));
                }
            }
        }
        Ok(())
    }

    fn link(&self, own: XmlElement<'d>) -> Result<DraftLink, InputError> {
        let at = self.at(own);
        let (mut before, mut after) = (None, DraftSuccessors::End);
        for child in elements(own) {
            let mut names = Vec::new();
            for activity in named(child, "activity") {
                names.push(self.text(activity, "name")?);
            }
            let first = names.first().cloned();
            let first = first.ok_or_else(|| self.at(child).error("expected an `activity` in it"));
            match child.tag_name().name() {
                "pre" | "pre-OR" if names.len() < 2 => before = Some(DraftPredecessors::One(first?)),
                "pre" => {
                    return Err(self.at(child).error("one activity; several stand in pre-OR or pre-AND"));
                }
                "pre-OR" => before = Some(DraftPredecessors::Or(names)),
                "pre-AND" => {
                    let at = self.at_attribute(child, "quorum");
                    let quorum = limits::to_quorum(self.number(child, "quorum", 0.0)?, at)?;
                    let quorum = (quorum > 0).then_some((quorum, at));
                    first?;
                    before = Some(DraftPredecessors::And(names, quorum));
                }
                "post" => after = DraftSuccessors::One(first?),
                "post-AND" => {
                    first?;
                    after = DraftSuccessors::And(names);
                }
                "post-OR" => {
                    first?;
                    let mut ways = Vec::new();
                    for (activity, name) in named(child, "activity").zip(names) {
                        ways.push((self.number(activity, "prob", 1.0)?, name));
                    }
                    after = DraftSuccessors::Or(ways);
                }
                "post-LOOP" => {
                    first?;
                    let mut bodies = Vec::new();
                    for (activity, name) in named(child, "activity").zip(names) {
                        bodies.push((self.number(activity, "count", 1.0)?, name));
                    }
                    let exit = child.has_attribute("end").then(|| self.text(child, "end")).transpose()?;
                    after = DraftSuccessors::Loop(bodies, exit);
                }
                "result-join-delay" => {}
                other => return Err(self.at(child).error(format!("no `{other}` in a precedence"))),
            }
        }
        let before = before.ok_or_else(|| at.error("what comes before is missing (`pre`)"))?;
        Ok(DraftLink { predecessors: before, successors: after })
    }
}
