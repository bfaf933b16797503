//! The `.lqn` grammar: sections of one letter each, lists that end with `-1`.

use super::draft::{Activity, Call, Draft, Entry, Name, Processor, Task};
use super::expression::Reader;
use super::scan::{Kind, Token, tokens};
use super::{At, Scope, Trouble, limits, route};
use crate::model::{Copies, Order, Scheduling};

mod graph;

/// Reads a whole text.
pub(super) fn draft(source: &str, scope: &mut Scope<'_>) -> Result<Draft, Trouble> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, scope };
    let mut draft = Draft::default();
    route::lines(source, &mut draft)?;
    loop {
        let Token { kind, at } = parser.take();
        match kind {
            Kind::End => {
                limits::lines(source, &mut draft, parser.scope)?;
                return Ok(draft);
            }
            Kind::Variable(name) => parser.parameter(&name)?,
            Kind::Word(section) => match section.as_str() {
                "G" => parser.general(&mut draft)?,
                "P" => parser.processors(&mut draft)?,
                "T" => parser.tasks(&mut draft)?,
                "E" => parser.entries(&mut draft)?,
                "A" => parser.activities(&mut draft)?,
                "R" | "C" => {
                    parser.skip_section();
                    let what =
                        if section == "R" { "results to print" } else { "a loop until results converge" };
                    draft.notes.push(format!("line {}: {what} (section {section}) is left aside", at.line));
                }
                "U" => return Err(at.says("groups that share a processor (section U) are not supported")),
                other => {
                    return Err(at.says(format!("no section `{other}`; there are G, P, T, E, A, R and C")));
                }
            },
            _ => return Err(at.says("expected a section (G, P, T, E or A) or a parameter (`$x = 1`)")),
        }
    }
}

struct Parser<'s, 'g> {
    tokens: Vec<Token>,
    next: usize,
    scope: &'s mut Scope<'g>,
}

impl Parser<'_, '_> {
    fn peek(&self) -> &Kind {
        &self.tokens[self.next.min(self.tokens.len() - 1)].kind
    }

    fn at(&self) -> At {
        self.tokens[self.next.min(self.tokens.len() - 1)].at
    }

    fn take(&mut self) -> Token {
        let token = self.tokens[self.next.min(self.tokens.len() - 1)].clone();
        self.next += 1;
        token
    }

    fn is_mark(&self, mark: &str) -> bool {
        matches!(self.peek(), Kind::Mark(own) if *own == mark)
    }

    fn takes(&mut self, mark: &str) -> bool {
        let found = self.is_mark(mark);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), Trouble> {
        if self.takes(mark) { Ok(()) } else { Err(self.at().says(format!("expected `{mark}`"))) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Kind::Word(own) if own == word)
    }

    /// The `-1` that ends a list.
    fn ends(&mut self) -> bool {
        let found = matches!(self.peek(), Kind::Number(_, spelling) if spelling == "-1");
        self.next += usize::from(found);
        found
    }

    fn name(&mut self, what: &str) -> Result<Name, Trouble> {
        let Token { kind, at } = self.take();
        match kind {
            Kind::Word(text) => Ok(Name { text, at }),
            Kind::Number(value, text) if value >= 0.0 => Ok(Name { text, at }),
            _ => Err(at.says(format!("expected the name of {what}"))),
        }
    }

    fn is_number(&self) -> bool {
        match self.peek() {
            Kind::Number(_, spelling) => spelling != "-1",
            Kind::Variable(_) => true,
            _ => self.is_mark("@"),
        }
    }

    /// A number, a parameter, or `@infinity`.
    fn number(&mut self, what: &str) -> Result<f64, Trouble> {
        let Token { kind, at } = self.take();
        let value = match kind {
            Kind::Number(value, _) => value,
            Kind::Variable(name) => self.scope.value(&name, at)?,
            Kind::Mark("@") if self.is_word("infinity") => {
                self.next += 1;
                f64::INFINITY
            }
            _ => return Err(at.says(format!("expected {what}: a number or a parameter such as `$x`"))),
        };
        if value < 0.0 || value.is_nan() {
            return Err(at.says(format!("{what} cannot be {value}")));
        }
        Ok(value)
    }

    /// So many copies.
    fn copies(&mut self) -> Result<Copies, Trouble> {
        let at = self.at();
        let count = self.number("how many there are")?;
        copies(count).ok_or_else(|| {
            at.says(format!("there cannot be {count} of it: a whole number from 1 on, or @infinity"))
        })
    }

    /// `$name = value`, the name of which has been read.
    fn parameter(&mut self, name: &str) -> Result<(), Trouble> {
        self.expect("=")?;
        let mut reader = Reader { tokens: &self.tokens, next: self.next, scope: &*self.scope };
        let values = reader.values()?;
        self.next = reader.next;
        self.scope.declare(name, values);
        Ok(())
    }

    /// `%u $x`: results that are to be kept under a name, which changes no number.
    fn skip_observations(&mut self) {
        while self.takes("%") {
            while matches!(self.peek(), Kind::Word(_) | Kind::Number(..)) {
                self.next += 1;
            }
            if matches!(self.peek(), Kind::Variable(_)) {
                self.next += 1;
            }
        }
    }

    fn skip_section(&mut self) {
        while !matches!(self.peek(), Kind::End) && !self.ends() {
            self.next += 1;
        }
    }

    /// How many there are to come, which nobody keeps to.
    fn count(&mut self) {
        if matches!(self.peek(), Kind::Number(..) | Kind::Variable(_)) && !self.ends() {
            self.next += 1;
        }
    }

    fn general(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        if let Kind::Text(comment) = self.peek() {
            draft.comment = comment.clone();
            self.next += 1;
        }
        while !self.ends() {
            if self.is_mark("%") {
                self.skip_observations();
            } else {
                self.number("a setting of a solver")?;
            }
        }
        Ok(())
    }

    fn processors(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        self.count();
        while !self.ends() {
            self.keyword("p", "a processor begins with `p`")?;
            let name = self.name("a processor")?;
            let Token { kind, at } = self.take();
            let Kind::Word(letter) = kind else {
                return Err(at.says("expected how the processor is shared: f, h, p, r, i or s"));
            };
            let mut copies = Copies::Some(1);
            let scheduling = match letter.as_str() {
                "f" => Scheduling::Fcfs,
                "h" => Scheduling::HeadOfLine,
                "p" => Scheduling::Preemptive,
                "r" => Scheduling::Random,
                "i" => {
                    copies = Copies::Infinite;
                    Scheduling::Fcfs
                }
                "s" => {
                    // A quantum: what takes turns in it is taken to be infinitely short.
                    if self.is_number() {
                        self.number("a quantum")?;
                    }
                    Scheduling::Sharing
                }
                "c" => return Err(at.says("completely fair scheduling (`c`) is not supported")),
                other => {
                    return Err(at.says(format!("no scheduling `{other}`; there are f, h, p, r, i and s")));
                }
            };
            let mut processor = Processor { name, scheduling, copies, speed: 1.0 };
            while let Kind::Word(option) = self.peek().clone() {
                let at = self.at();
                match option.as_str() {
                    "m" => {
                        self.next += 1;
                        let several = self.copies()?;
                        if processor.copies != Copies::Infinite {
                            processor.copies = several;
                        }
                    }
                    "i" => {
                        self.next += 1;
                        processor.copies = Copies::Infinite;
                    }
                    "R" => {
                        self.next += 1;
                        processor.speed = self.number("a speed")?;
                        if processor.speed == 0.0 || processor.speed.is_infinite() {
                            return Err(at.says("a speed is above 0, and a number"));
                        }
                    }
                    "r" => self.replicas(at)?,
                    _ => break,
                }
            }
            self.skip_observations();
            draft.processors.push(processor);
        }
        Ok(())
    }

    /// `r n`: only 1 is supported.
    fn replicas(&mut self, at: At) -> Result<(), Trouble> {
        self.next += 1;
        if self.number("how many replicas there are")? == 1.0 {
            return Ok(());
        }
        Err(at.says("replicas (`r`) are not supported; write out the copies, or `m` for threads or cores that share a queue"))
    }

    fn keyword(&mut self, word: &str, why: &str) -> Result<(), Trouble> {
        if self.is_word(word) {
            self.next += 1;
            return Ok(());
        }
        Err(self.at().says(format!("{why}; a list ends with -1")))
    }

    fn tasks(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        self.count();
        while !self.ends() {
            if let Kind::Word(fan) = self.peek()
                && (fan == "I" || fan == "O")
            {
                return Err(self.at().says("fan-in and fan-out belong to replicas, which are not supported"));
            }
            self.keyword("t", "a task begins with `t`")?;
            let name = self.name("a task")?;
            let Token { kind, at } = self.take();
            let letter = if let Kind::Word(letter) = kind { letter } else { String::new() };
            let mut task = Task {
                name,
                client: false,
                queue: Scheduling::Fcfs,
                copies: Copies::Some(1),
                think: 0.0,
                priority: 0,
                queue_limit: None,
                processor: Name::default(),
                entries: Vec::new(),
                activities: Vec::new(),
                links: Vec::new(),
                replies: Vec::new(),
            };
            match letter.as_str() {
                "r" => task.client = true,
                "n" | "f" => {}
                "h" => task.queue = Scheduling::HeadOfLine,
                "i" => task.copies = Copies::Infinite,
                "b" | "u" | "P" | "p" | "S" | "w" => {
                    return Err(at.says(format!(
                        "tasks of kind `{letter}` are not supported; there are r, n, f, h and i"
                    )));
                }
                _ => return Err(at.says("expected the kind of the task: r (clients), n, f, h or i")),
            }
            while !self.ends() {
                task.entries.push(self.name("an entry")?);
            }
            self.task_options(&mut task)?;
            draft.tasks.push(task);
        }
        Ok(())
    }

    /// What follows the entries of a task: the processor, and words with a value each.
    fn task_options(&mut self, task: &mut Task) -> Result<(), Trouble> {
        if self.is_word("q") {
            return Err(self.at().says("`q`, which every tool understands otherwise, is not supported; write `#pragma queue.TASK=NUMBER`"));
        }
        task.processor = self.name("the processor of the task")?;
        if self.is_number() {
            task.priority = self.number("a priority")? as i32;
        }
        while let Kind::Word(option) = self.peek().clone() {
            let at = self.at();
            match option.as_str() {
                "z" => {
                    self.next += 1;
                    task.think = self.number("a time to think")?;
                }
                "m" => {
                    self.next += 1;
                    let copies = self.copies()?;
                    if task.copies != Copies::Infinite {
                        task.copies = copies;
                    }
                }
                "i" => {
                    self.next += 1;
                    task.copies = Copies::Infinite;
                }
                "r" => self.replicas(at)?,
                "g" => return Err(at.says("groups that share a processor (`g`) are not supported")),
                "T" => return Err(at.says("tokens (`T`) belong to semaphores, which are not supported")),
                _ => break,
            }
        }
        self.skip_observations();
        Ok(())
    }

    fn entries(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        self.count();
        while !self.ends() {
            let Token { kind, at } = self.take();
            let Kind::Word(letter) = kind else {
                return Err(at.says("expected what is said of an entry: s, c, f, y, z, F, a, A, Z or p"));
            };
            match letter.as_str() {
                "s" => self.phases(draft, "a demand", |phase, value, _| phase.demand = value)?,
                "c" => self.phases(draft, "a variation", |phase, value, _| phase.variation = value)?,
                "Z" => self.phases(draft, "a time to think", |phase, value, _| phase.think = value)?,
                "f" => self.phases(draft, "0 or 1", |phase, value, _| {
                    phase.order = if value == 0.0 { Order::Stochastic } else { Order::Deterministic };
                })?,
                "y" | "z" => {
                    let from = self.entry(draft)?;
                    let to = self.name("an entry")?;
                    for phase in 0..3 {
                        if self.ends_phases() {
                            break;
                        }
                        let count = self.number("a number of calls")?;
                        if count > 0.0 {
                            let call = Call::new(to.clone(), count, letter == "y");
                            draft.entries[from].phases[phase].calls.push(call);
                        }
                    }
                    self.end_phases()?;
                }
                "F" => {
                    let from = self.entry(draft)?;
                    let to = self.name("an entry")?;
                    let share = self.number("a probability")?;
                    draft.entries[from].forwards.push((to, share));
                    self.end_phases()?;
                }
                "a" => {
                    let entry = self.entry(draft)?;
                    draft.entries[entry].arrivals = self.number("a rate")?;
                    self.end_phases()?;
                }
                "A" => {
                    let entry = self.entry(draft)?;
                    draft.entries[entry].start = Some(self.name("an activity")?);
                    self.end_phases()?;
                }
                "p" | "H" | "M" => {
                    self.entry(draft)?;
                    while !self.ends() && self.is_number() || self.is_mark(":") {
                        self.next += 1;
                    }
                    draft.notes.push(format!("line {}: `{letter}` of an entry is left aside", at.line));
                }
                "P" | "V" | "R" | "U" | "W" | "X" => {
                    return Err(at.says("semaphores and locks are not supported"));
                }
                other => {
                    return Err(at.says(format!(
                        "nothing is called `{other}` of an entry; there are s, c, f, y, z, F, a, A, Z and p"
                    )));
                }
            }
        }
        Ok(())
    }

    /// An entry by its name; made when it is first spoken of.
    fn entry(&mut self, draft: &mut Draft) -> Result<usize, Trouble> {
        let name = self.name("an entry")?;
        if let Some(place) = draft.entries.iter().position(|entry| entry.name.text == name.text) {
            return Ok(place);
        }
        draft.entries.push(Entry { name, ..Entry::default() });
        Ok(draft.entries.len() - 1)
    }

    /// One value for each phase.
    fn phases(
        &mut self,
        draft: &mut Draft,
        what: &str,
        set: impl Fn(&mut Activity, f64, At),
    ) -> Result<(), Trouble> {
        let entry = self.entry(draft)?;
        for phase in 0..3 {
            if self.ends_phases() {
                break;
            }
            let at = self.at();
            let value = self.number(what)?;
            set(&mut draft.entries[entry].phases[phase], value, at);
        }
        self.end_phases()
    }

    fn ends_phases(&self) -> bool {
        !self.is_number() && !self.is_mark("%")
    }

    /// After the values: results that are observed, and the `-1`, which some leave out.
    fn end_phases(&mut self) -> Result<(), Trouble> {
        self.skip_observations();
        if !self.ends_section() {
            self.ends();
        }
        Ok(())
    }

    /// Is what is next the `-1` of the section, because another section follows it, or nothing?
    fn ends_section(&self) -> bool {
        let after = |more: usize| self.tokens.get(self.next + more).map(|token| &token.kind);
        match after(1) {
            None | Some(Kind::End | Kind::Variable(_)) => true,
            // `A task s …` begins a section, `A entry activity` does not.
            Some(Kind::Word(word)) if word == "A" => match after(3) {
                Some(Kind::Word(word)) => word.chars().count() == 1,
                other => other == Some(&Kind::Mark(":")),
            },
            Some(Kind::Word(word)) => matches!(word.as_str(), "G" | "P" | "T" | "E" | "U" | "R" | "C"),
            _ => false,
        }
    }
}

/// So many; `None` if there cannot be.
pub(super) fn copies(count: f64) -> Option<Copies> {
    if count == f64::INFINITY {
        return Some(Copies::Infinite);
    }
    let whole = count.fract() == 0.0 && (1.0..=1e6).contains(&count);
    whole.then_some(Copies::Some(count as u32))
}
