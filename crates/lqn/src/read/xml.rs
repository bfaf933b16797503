//! The parser of LQNX, the XML format of models. Ignores results in it.

use roxmltree::{Document, Node, ParsingOptions};

use super::draft::{Activity, After, Before, Call, Draft, Entry, Fan, Link, Name, Processor, Task, Which};
use super::expression::Reader;
use super::scan::{Kind, tokens};
use super::text::copies;
use super::{At, Scope, Trouble, known, limits, route};
use crate::model::{Copies, Order, Patience, Scheduling};

/// Parses a whole document.
pub(super) fn draft(source: &str, scope: &mut Scope<'_>) -> Result<Draft, Trouble> {
    // The encoding in the declaration is ignored, because the source is text already. DTDs are refused,
    // because an entity could refer to anything.
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document = Document::parse_with_options(source, options).map_err(|error| {
        let place = error.pos();
        let at = match error {
            // This error has no position.
            roxmltree::Error::UnclosedRootNode => end(source),
            _ => At { line: place.row as usize, column: place.col as usize },
        };
        at.says(format!("no XML: {error}"))
    })?;
    let mut reader = Xml { document: &document, scope, draft: Draft::default() };
    let root = document.root_element();
    if root.tag_name().name() != "lqn-model" {
        return Err(reader.at(root).says(format!("expected `lqn-model`, not `{}`", root.tag_name().name())));
    }
    known::all(&document, root)?;
    reader.model(root)?;
    Ok(reader.draft)
}

/// Returns the position after the last character.
fn end(source: &str) -> At {
    let last = source.rsplit('\n').next().unwrap_or_default();
    At { line: source.matches('\n').count() + 1, column: last.chars().count() + 1 }
}

struct Xml<'d, 's, 'g> {
    document: &'d Document<'d>,
    scope: &'s mut Scope<'g>,
    draft: Draft,
}

type Element<'d> = Node<'d, 'd>;

fn elements<'d>(node: Element<'d>) -> impl Iterator<Item = Element<'d>> {
    node.children().filter(Node::is_element)
}

fn named<'d>(node: Element<'d>, name: &'static str) -> impl Iterator<Item = Element<'d>> {
    elements(node).filter(move |child| child.tag_name().name() == name)
}

impl<'d> Xml<'d, '_, '_> {
    fn at(&self, node: Element<'_>) -> At {
        let place = self.document.text_pos_at(node.range().start);
        At { line: place.row as usize, column: place.col as usize }
    }

    /// Returns the position of an attribute, or of the element that should have it.
    fn at_attribute(&self, node: Element<'_>, name: &str) -> At {
        let start = node.attribute_node(name).map_or_else(|| node.range().start, |own| own.range().start);
        let place = self.document.text_pos_at(start);
        At { line: place.row as usize, column: place.col as usize }
    }

    fn text(&self, node: Element<'d>, name: &str) -> Result<Name, Trouble> {
        let at = self.at_attribute(node, name);
        match node.attribute(name) {
            Some(text) if !text.is_empty() => Ok(Name { text: text.to_owned(), at }),
            _ => Err(at.says(format!("`{}` needs `{name}`", node.tag_name().name()))),
        }
    }

    /// Parses a number or a parameter; returns `otherwise` if there is none.
    fn number(&self, node: Element<'d>, name: &str, otherwise: f64) -> Result<f64, Trouble> {
        let Some(text) = node.attribute(name) else { return Ok(otherwise) };
        let at = self.at_attribute(node, name);
        let text = text.trim();
        let value = match text.strip_prefix('$') {
            Some(parameter) => self.scope.value(parameter, at)?,
            None if matches!(text, "inf" | "infinite" | "@infinity" | "INF") => f64::INFINITY,
            None => text.parse().map_err(|_| at.says(format!("`{name}` is a number, not `{text}`")))?,
        };
        if value < 0.0 || value.is_nan() {
            return Err(at.says(format!("`{name}` cannot be {value}")));
        }
        Ok(value)
    }

    fn model(&mut self, root: Element<'d>) -> Result<(), Trouble> {
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
                                Name { text: entry.to_owned(), at: self.at_attribute(pragma, "param") };
                            let value = pragma.attribute("value").unwrap_or_default();
                            let routing =
                                route::routing(value, self.at_attribute(pragma, "value"), self.scope)?;
                            self.draft.routes.push((name, routing));
                        }
                    }
                }
                "processor" => self.processor(own)?,
                "lqx" => return Err(at.says("a program (`lqx`) is not supported; give parameters instead")),
                name @ ("results-collection" | "convergence-collection") => {
                    self.draft.notes.push(format!("line {}: `{name}` is left aside", at.line));
                }
                other => return Err(at.says(format!("no `{other}` in a model"))),
            }
        }
        Ok(())
    }

    /// Parses declarations, which are text in the syntax of the other format.
    fn parameters(&mut self, own: Element<'d>) -> Result<(), Trouble> {
        let begin = self.at(own);
        let mut source = String::new();
        for part in own.children() {
            if part.is_text() {
                source += part.text().unwrap_or_default();
            } else if part.is_element() {
                return Err(self.at(part).says("expected a parameter: `$x = 1`"));
            } else {
                // Replace a comment by as many spaces, so that positions stay correct.
                let comment = &self.document.input_text()[part.range()];
                source.extend(comment.chars().map(|own| if own == '\n' { own } else { ' ' }));
            }
        }
        let moved = |at: At| At { line: begin.line + at.line - 1, column: at.column };
        let misplaced =
            |trouble: Trouble| moved(At { line: trouble.line, column: trouble.column }).says(trouble.message);
        let tokens = tokens(&source).map_err(misplaced)?;
        let mut next = 0;
        while let Kind::Variable(name) = &tokens[next].kind {
            if tokens.get(next + 1).is_none_or(|token| token.kind != Kind::Mark("=")) {
                return Err(moved(tokens[next].at).says(format!("expected `${name} = …`")));
            }
            if let Some(Kind::Text(text)) = tokens.get(next + 2).map(|token| &token.kind) {
                self.draft.say(name, text, moved(tokens[next].at));
                next += 3;
                continue;
            }
            let mut reader = Reader { tokens: &tokens, next: next + 2, scope: &*self.scope };
            let values = reader.values().map_err(misplaced)?;
            next = reader.next;
            self.scope.declare(name, values);
        }
        match &tokens[next].kind {
            Kind::End => Ok(()),
            _ => Err(moved(tokens[next].at).says("expected a parameter: `$x = 1`")),
        }
    }

    fn processor(&mut self, own: Element<'d>) -> Result<(), Trouble> {
        let name = self.text(own, "name")?;
        let at = self.at_attribute(own, "scheduling");
        let copies = self.copies(own)?;
        let scheduling = match own.attribute("scheduling").unwrap_or("fcfs") {
            "fcfs" => Scheduling::Fcfs,
            "ps" => Scheduling::Sharing,
            "hol" => Scheduling::HeadOfLine,
            "pp" | "pri" => Scheduling::Preemptive,
            "rand" => Scheduling::Random,
            "inf" => Scheduling::Fcfs,
            other => {
                return Err(at.says(format!(
                    "scheduling `{other}` of processors is not supported; there are fcfs, ps, hol, pp, rand \
                    and inf"
                )));
            }
        };
        let replicas = self.replicas(own, "replication")?;
        let speed = self.number(own, "speed-factor", 1.0)?;
        if speed == 0.0 || speed.is_infinite() {
            return Err(self.at_attribute(own, "speed-factor").says("a speed is above 0, and a number"));
        }
        self.draft.processors.push(Processor { name: name.clone(), scheduling, copies, speed, replicas });
        for child in elements(own) {
            match child.tag_name().name() {
                "task" => self.task(child, &name)?,
                "group" => {
                    return Err(self.at(child).says("groups that share a processor are not supported"));
                }
                "result-processor" => {}
                other => return Err(self.at(child).says(format!("no `{other}` in a processor"))),
            }
        }
        Ok(())
    }

    /// Returns the multiplicity; with scheduling `inf` the number is ignored.
    fn copies(&self, own: Element<'d>) -> Result<Copies, Trouble> {
        let count = self.number(own, "multiplicity", 1.0)?;
        if own.attribute("scheduling") == Some("inf") {
            return Ok(Copies::Infinite);
        }
        copies(count).ok_or_else(|| {
            self.at_attribute(own, "multiplicity")
                .says(format!("there cannot be {count} of it: a whole number from 1 on, or `inf`"))
        })
    }

    fn priority(&self, own: Element<'d>) -> Result<i32, Trouble> {
        limits::priority(self.number(own, "priority", 0.0)?, self.at_attribute(own, "priority"))
    }

    fn replicas(&self, own: Element<'d>, name: &str) -> Result<u32, Trouble> {
        limits::replicas(self.number(own, name, 1.0)?, self.at_attribute(own, name))
    }

    /// Parses a fan-in or fan-out of a task.
    fn fan(&mut self, own: Element<'d>, task: &Name) -> Result<(), Trouble> {
        let count = self.replicas(own, "value")?;
        self.draft.fans.push(if own.tag_name().name() == "fan-in" {
            Fan { from: self.text(own, "source")?, to: task.clone(), which: Which::In, count }
        } else {
            Fan { from: task.clone(), to: self.text(own, "dest")?, which: Which::Out, count }
        });
        Ok(())
    }

    /// Notes an element that changes no number of the model.
    fn aside(&mut self, own: Element<'d>, what: &str) {
        let line = self.at(own).line;
        self.draft.notes.push(format!("line {line}: `{what}` is left aside"));
    }

    fn task(&mut self, own: Element<'d>, processor: &Name) -> Result<(), Trouble> {
        let at = self.at_attribute(own, "scheduling");
        let mut task = Task {
            copies: self.copies(own)?,
            replicas: self.replicas(own, "replication")?,
            think: self.number(own, "think-time", 0.0)?,
            priority: self.priority(own)?,
            queue_limit: self
                .own_number(own, "queue-limit")?
                .map(|(value, at)| Ok((limits::queue(value, at)?, at)))
                .transpose()?,
            ..Task::new(self.text(own, "name")?, processor.clone())
        };
        match own.attribute("scheduling").unwrap_or("fcfs") {
            "ref" => task.client = true,
            "fcfs" | "n" => {}
            "pri" | "hol" => task.queue = Scheduling::HeadOfLine,
            "inf" => {}
            other => {
                return Err(at.says(format!(
                    "scheduling `{other}` of tasks is not supported; there are ref, fcfs, hol and inf"
                )));
            }
        }
        if self.number(own, "queue-length", 0.0)? != 0.0 {
            return Err(self.at_attribute(own, "queue-length").says(
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
                name @ ("service-time-distribution" | "service") => self.aside(child, name),
                other => return Err(self.at(child).says(format!("`{other}` of a task is not supported"))),
            }
        }
        self.draft.tasks.push(task);
        Ok(())
    }

    fn entry(&mut self, own: Element<'d>, task: &mut Task) -> Result<(), Trouble> {
        let mut entry = Entry { name: self.text(own, "name")?, ..Entry::default() };
        for lock in ["semaphore", "rwlock"] {
            if own.has_attribute(lock) {
                return Err(self.at_attribute(own, lock).says(format!("`{lock}` is not supported")));
            }
        }
        entry.arrivals = self.number(own, "open-arrival-rate", 0.0)?;
        entry.priority = self.priority(own)?;
        for child in named(own, "service-time-distribution") {
            self.aside(child, "service-time-distribution");
        }
        for child in named(own, "forwarding") {
            entry.forwards.push((self.text(child, "dest")?, self.number(child, "prob", 1.0)?));
        }
        for phase in named(own, "entry-phase-activities").flat_map(|phases| named(phases, "activity")) {
            let number = self.number(phase, "phase", 1.0)?;
            if !(number.fract() == 0.0 && (1.0..=3.0).contains(&number)) {
                return Err(self.at_attribute(phase, "phase").says("a phase is 1, 2 or 3"));
            }
            entry.phases[number as usize - 1] = self.activity(phase)?;
        }
        task.entries.push(entry.name.clone());
        self.draft.entries.push(entry);
        Ok(())
    }

    fn activity(&mut self, own: Element<'d>) -> Result<Activity, Trouble> {
        let order = match own.attribute("call-order").unwrap_or("STOCHASTIC") {
            order if order.eq_ignore_ascii_case("stochastic") => Order::Stochastic,
            order if order.eq_ignore_ascii_case("deterministic") => Order::Deterministic,
            order if order.eq_ignore_ascii_case("list") => Order::List,
            other => {
                let at = self.at_attribute(own, "call-order");
                return Err(
                    at.says(format!("no call order `{other}`; there are STOCHASTIC, DETERMINISTIC and LIST"))
                );
            }
        };
        let mut activity = Activity {
            name: self.text(own, "name")?,
            demand: self.number(own, "host-demand-mean", 0.0)?,
            variation: self.number(own, "host-demand-cvsq", 1.0)?,
            think: self.number(own, "think-time", 0.0)?,
            order,
            calls: Vec::new(),
        };
        if own.attribute("max-service-time").is_some_and(|time| time.trim().parse() != Ok(0.0)) {
            self.aside(own, "max-service-time");
        }
        for child in elements(own) {
            let waits = match child.tag_name().name() {
                "synch-call" => true,
                "asynch-call" => false,
                name @ "service-time-distribution" => {
                    self.aside(child, name);
                    continue;
                }
                _ => continue,
            };
            let count = self.number(child, "calls-mean", 1.0)?;
            let mut call = Call::new(self.text(child, "dest")?, count, waits);
            call.patience = self.patience(child, waits)?;
            activity.calls.push(call);
        }
        Ok(activity)
    }

    /// Returns the number in an attribute of this crate's namespace, with its position.
    fn own_number(&self, node: Element<'d>, name: &str) -> Result<Option<(f64, At)>, Trouble> {
        let Some(own) = node.attribute_node((limits::NAMESPACE, name)) else { return Ok(None) };
        let place = self.document.text_pos_at(own.range().start);
        let at = At { line: place.row as usize, column: place.col as usize };
        limits::number(own.value(), at, self.scope).map(|value| Some((value, at)))
    }

    fn patience(&self, node: Element<'d>, waits: bool) -> Result<Option<Patience>, Trouble> {
        let mut patience = None;
        for word in limits::WORDS {
            let Some((value, at)) = self.own_number(node, word)? else { continue };
            if !waits {
                return Err(at.says("nobody waits for the answer of this call, who could lose patience"));
            }
            limits::set(patience.get_or_insert(Patience::ENDLESS), word, value, at)?;
        }
        Ok(patience)
    }

    fn activities(&mut self, own: Element<'d>, task: &mut Task) -> Result<(), Trouble> {
        for child in elements(own) {
            match child.tag_name().name() {
                "activity" => {
                    let activity = self.activity(child)?;
                    if child.has_attribute("bound-to-entry") {
                        let entry = self.text(child, "bound-to-entry")?;
                        let bound = self.draft.entries.iter_mut().find(|own| own.name.text == entry.text);
                        let Some(bound) = bound else {
                            return Err(entry.at.says(format!("no entry `{}`", entry.text)));
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
                name @ "service-time-distribution" => self.aside(child, name),
                other => {
                    return Err(self.at(child).says(format!("`{other}` of activities is not supported")));
                }
            }
        }
        Ok(())
    }

    fn link(&self, own: Element<'d>) -> Result<Link, Trouble> {
        let at = self.at(own);
        let (mut before, mut after) = (None, After::Nothing);
        for child in elements(own) {
            let mut names = Vec::new();
            for activity in named(child, "activity") {
                names.push(self.text(activity, "name")?);
            }
            let first = names.first().cloned();
            let first = first.ok_or_else(|| self.at(child).says("expected an `activity` in it"));
            match child.tag_name().name() {
                "pre" | "pre-OR" if names.len() < 2 => before = Some(Before::One(first?)),
                "pre" => return Err(self.at(child).says("one activity; several stand in pre-OR or pre-AND")),
                "pre-OR" => before = Some(Before::Any(names)),
                "pre-AND" => {
                    let at = self.at_attribute(child, "quorum");
                    let quorum = limits::quorum(self.number(child, "quorum", 0.0)?, at)?;
                    let quorum = (quorum > 0).then_some((quorum, at));
                    first?;
                    before = Some(Before::All(names, quorum));
                }
                "post" => after = After::One(first?),
                "post-AND" => {
                    first?;
                    after = After::All(names);
                }
                "post-OR" => {
                    first?;
                    let mut ways = Vec::new();
                    for (activity, name) in named(child, "activity").zip(names) {
                        ways.push((self.number(activity, "prob", 1.0)?, name));
                    }
                    after = After::Any(ways);
                }
                "post-LOOP" => {
                    first?;
                    let mut bodies = Vec::new();
                    for (activity, name) in named(child, "activity").zip(names) {
                        bodies.push((self.number(activity, "count", 1.0)?, name));
                    }
                    let exit = child.has_attribute("end").then(|| self.text(child, "end")).transpose()?;
                    after = After::Loop(bodies, exit);
                }
                "result-join-delay" => {}
                other => return Err(self.at(child).says(format!("no `{other}` in a precedence"))),
            }
        }
        let before = before.ok_or_else(|| at.says("what comes before is missing (`pre`)"))?;
        Ok(Link { before, after })
    }
}
