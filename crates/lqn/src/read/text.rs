//! The parser of the `.lqn` grammar: sections that begin with a letter, lists that end with `-1`.

use super::draft::{Activity, Call, Draft, Entry, Name};
use super::expression::Reader;
use super::scan::{Kind, Token, tokens};
use super::{At, Scope, Trouble, limits, route};
use crate::model::{Copies, Order};

mod graph;
mod tasks;

/// Parses a whole text.
pub(super) fn draft(source: &str, scope: &mut Scope<'_>) -> Result<Draft, Trouble> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, scope };
    let mut draft = Draft::default();
    loop {
        let Token { kind, at } = parser.take();
        match kind {
            Kind::End => {
                route::lines(source, &mut draft, parser.scope)?;
                limits::lines(source, &mut draft, parser.scope)?;
                return Ok(draft);
            }
            Kind::Variable(name) => parser.parameter(&name, &mut draft)?,
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

    /// Consumes the `-1` that ends a list, if it is next.
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

    /// Parses a number, a parameter, or `@infinity`.
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

    /// Parses a multiplicity.
    fn copies(&mut self) -> Result<Copies, Trouble> {
        let at = self.at();
        let count = self.number("how many there are")?;
        copies(count).ok_or_else(|| {
            at.says(format!("there cannot be {count} of it: a whole number from 1 on, or @infinity"))
        })
    }

    /// Parses the rest of `$name = value` after the name. A string, such as that of `$model_comment`, is no
    /// parameter.
    fn parameter(&mut self, name: &str, draft: &mut Draft) -> Result<(), Trouble> {
        self.expect("=")?;
        if let Kind::Text(text) = self.peek() {
            draft.say(name, text, self.at());
            self.next += 1;
            return Ok(());
        }
        let mut reader = Reader { tokens: &self.tokens, next: self.next, scope: &*self.scope };
        let values = reader.values()?;
        self.next = reader.next;
        self.scope.declare(name, values);
        Ok(())
    }

    /// Skips `%u $x`, a result to be stored under a name, which changes no number.
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

    /// Skips the announced number of items, which is not binding.
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
                "p" => {
                    let entry = self.entry(draft)?;
                    let at = self.at();
                    draft.entries[entry].priority = limits::priority(self.number("a priority")?, at)?;
                    self.end_phases()?;
                }
                "M" => {
                    self.phases(draft, "a longest time", |_, _, _| ())?;
                    draft.notes.push(format!("line {}: `M` of an entry is left aside", at.line));
                }
                "H" => {
                    self.entry(draft)?;
                    self.number("a phase")?;
                    self.histogram()?;
                    draft.notes.push(format!("line {}: `H` of an entry is left aside", at.line));
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

    /// Parses `0 : 10 20 log`, the range, the number of bins and the kind of a histogram, which changes no
    /// result.
    fn histogram(&mut self) -> Result<(), Trouble> {
        self.number("where the counting begins")?;
        self.expect(":")?;
        self.number("where the counting ends")?;
        if self.is_number() {
            self.number("how many bins there are")?;
        }
        if ["log", "linear", "sqrt"].iter().any(|kind| self.is_word(kind)) {
            self.next += 1;
        }
        self.end_phases()
    }

    /// Returns the index of the entry with this name, which is created when it is first mentioned.
    fn entry(&mut self, draft: &mut Draft) -> Result<usize, Trouble> {
        let name = self.name("an entry")?;
        if let Some(place) = draft.entries.iter().position(|entry| entry.name.text == name.text) {
            return Ok(place);
        }
        draft.entries.push(Entry { name, ..Entry::default() });
        Ok(draft.entries.len() - 1)
    }

    /// Parses one value for each phase.
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

    /// Parses the end of the values: results to be stored, and the `-1`, which is optional.
    fn end_phases(&mut self) -> Result<(), Trouble> {
        self.skip_observations();
        if !self.ends_section() {
            self.ends();
        }
        Ok(())
    }

    /// Returns `true` if the next `-1` ends the section, because another section or the end follows it.
    fn ends_section(&self) -> bool {
        let after = |more: usize| self.tokens.get(self.next + more).map(|token| &token.kind);
        match after(1) {
            None | Some(Kind::End | Kind::Variable(_)) => true,
            // A section begins with `A task s …`, a property with `A entry activity`.
            Some(Kind::Word(word)) if word == "A" => match after(3) {
                Some(Kind::Word(word)) => word.chars().count() == 1,
                other => other == Some(&Kind::Mark(":")),
            },
            Some(Kind::Word(word)) => matches!(word.as_str(), "G" | "P" | "T" | "E" | "U" | "R" | "C"),
            _ => false,
        }
    }
}

/// Converts a multiplicity; `None` if the number is invalid.
pub(super) fn copies(count: f64) -> Option<Copies> {
    if count == f64::INFINITY {
        return Some(Copies::Infinite);
    }
    let whole = count.fract() == 0.0 && (1.0..=1e6).contains(&count);
    whole.then_some(Copies::Some(count as u32))
}
