//! The parser of the `.lqn` grammar: sections that begin with a letter, lists that end with `-1`.

use super::draft::{DraftActivity, DraftCall, DraftEntry, ModelDraft, SourceName};
use super::expression::ExpressionParser;
use super::tokenizer::{Token, TokenKind, tokenize};
use super::{InputError, ParameterScope, SourcePosition, limits, routing};
use crate::model::{CallOrder, Multiplicity};

mod graph;
mod tasks;

/// Parses a whole text.
pub(super) fn draft(source: &str, scope: &mut ParameterScope<'_>) -> Result<ModelDraft, InputError> {
    let mut parser = LqnParser { tokens: tokenize(source)?, next: 0, scope };
    let mut draft = ModelDraft::default();
    loop {
        let Token { kind, at: position } = parser.next_token();
        match kind {
            TokenKind::End => {
                routing::parse_pragmas(source, &mut draft, parser.scope)?;
                limits::parse_pragmas(source, &mut draft, parser.scope)?;
                return Ok(draft);
            }
            TokenKind::Variable(name) => parser.parameter(&name, &mut draft)?,
            TokenKind::Word(section) => match section.as_str() {
                "G" => parser.general(&mut draft)?,
                "P" => parser.processors(&mut draft)?,
                "T" => parser.tasks(&mut draft)?,
                "E" => parser.entries(&mut draft)?,
                "A" => parser.activities(&mut draft)?,
                "R" | "C" => {
                    parser.skip_section();
                    let section_name =
                        if section == "R" { "results to print" } else { "a loop until results converge" };
                    draft.notes.push(format!(
                        "line {}: {section_name} (section {section}) is left aside",
                        position.line
                    ));
                }
                "U" => {
                    return Err(position.error("groups that share a processor (section U) are not supported"));
                }
                unknown => {
                    return Err(
                        position.error(format!("no section `{unknown}`; there are G, P, T, E, A, R and C"))
                    );
                }
            },
            _ => return Err(position.error("expected a section (G, P, T, E or A) or a parameter (`$x = 1`)")),
        }
    }
}

struct LqnParser<'s, 'g> {
    tokens: Vec<Token>,
    next: usize,
    scope: &'s mut ParameterScope<'g>,
}

impl LqnParser<'_, '_> {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.next.min(self.tokens.len() - 1)].kind
    }

    fn position(&self) -> SourcePosition {
        self.tokens[self.next.min(self.tokens.len() - 1)].at
    }

    fn next_token(&mut self) -> Token {
        let token = self.tokens[self.next.min(self.tokens.len() - 1)].clone();
        self.next += 1;
        token
    }

    fn is_mark(&self, symbol: &str) -> bool {
        matches!(self.peek(), TokenKind::Punctuation(punctuation) if *punctuation == symbol)
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is_next = self.is_mark(symbol);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, symbol: &str) -> Result<(), InputError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.position().error(format!("expected `{symbol}`"))) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word(next_word) if next_word == word)
    }

    /// Consumes the `-1` that ends a list, if it is next.
    fn accept_list_end(&mut self) -> bool {
        let is_end = matches!(self.peek(), TokenKind::Number(_, spelling) if spelling == "-1");
        self.next += usize::from(is_end);
        is_end
    }

    fn name(&mut self, item: &str) -> Result<SourceName, InputError> {
        let Token { kind, at: position } = self.next_token();
        match kind {
            TokenKind::Word(text) => Ok(SourceName { text, at: position }),
            TokenKind::Number(value, text) if value >= 0.0 => Ok(SourceName { text, at: position }),
            _ => Err(position.error(format!("expected the name of {item}"))),
        }
    }

    fn is_number(&self) -> bool {
        match self.peek() {
            TokenKind::Number(_, spelling) => spelling != "-1",
            TokenKind::Variable(_) => true,
            _ => self.is_mark("@"),
        }
    }

    /// Parses a number, a parameter, or `@infinity`.
    fn number(&mut self, quantity: &str) -> Result<f64, InputError> {
        let Token { kind, at: position } = self.next_token();
        let value = match kind {
            TokenKind::Number(value, _) => value,
            TokenKind::Variable(name) => self.scope.value(&name, position)?,
            TokenKind::Punctuation("@") if self.is_word("infinity") => {
                self.next += 1;
                f64::INFINITY
            }
            _ => {
                return Err(
                    position.error(format!("expected {quantity}: a number or a parameter such as `$x`"))
                );
            }
        };
        if value < 0.0 || value.is_nan() {
            return Err(position.error(format!("{quantity} cannot be {value}")));
        }
        Ok(value)
    }

    /// Parses a multiplicity.
    fn copies(&mut self) -> Result<Multiplicity, InputError> {
        let position = self.position();
        let count = self.number("how many there are")?;
        to_multiplicity(count).ok_or_else(|| {
            position.error(format!("there cannot be {count} of it: a whole number from 1 on, or @infinity"))
        })
    }

    /// Parses the rest of `$name = value` after the name. A string, such as that of `$model_comment`, is no
    /// parameter.
    fn parameter(&mut self, name: &str, draft: &mut ModelDraft) -> Result<(), InputError> {
        self.expect("=")?;
        if let TokenKind::Text(text) = self.peek() {
            draft.set_text(name, text, self.position());
            self.next += 1;
            return Ok(());
        }
        let mut reader = ExpressionParser { tokens: &self.tokens, next: self.next, scope: &*self.scope };
        let values = reader.values()?;
        self.next = reader.next;
        self.scope.declare(name, values);
        Ok(())
    }

    /// Skips `%u $x`, a result to be stored under a name, which changes no number.
    fn skip_observations(&mut self) {
        while self.accept("%") {
            while matches!(self.peek(), TokenKind::Word(_) | TokenKind::Number(..)) {
                self.next += 1;
            }
            if matches!(self.peek(), TokenKind::Variable(_)) {
                self.next += 1;
            }
        }
    }

    fn skip_section(&mut self) {
        while !matches!(self.peek(), TokenKind::End) && !self.accept_list_end() {
            self.next += 1;
        }
    }

    /// Skips the announced number of items, which is not binding.
    fn skip_count(&mut self) {
        if matches!(self.peek(), TokenKind::Number(..) | TokenKind::Variable(_)) && !self.accept_list_end() {
            self.next += 1;
        }
    }

    fn general(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        if let TokenKind::Text(comment) = self.peek() {
            draft.comment = comment.clone();
            self.next += 1;
        }
        while !self.accept_list_end() {
            if self.is_mark("%") {
                self.skip_observations();
            } else {
                self.number("a setting of a solver")?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        self.skip_count();
        while !self.accept_list_end() {
            let Token { kind, at: position } = self.next_token();
            let TokenKind::Word(letter) = kind else {
                return Err(
                    position.error("expected what is said of an entry: s, c, f, y, z, F, a, A, Z or p")
                );
            };
            match letter.as_str() {
                "s" => self.phases(draft, "a demand", |phase, value, _| phase.demand = value)?,
                "c" => self.phases(draft, "a variation", |phase, value, _| phase.variation = value)?,
                "Z" => self.phases(draft, "a time to think", |phase, value, _| phase.think = value)?,
                "f" => self.phases(draft, "0 or 1", |phase, value, _| {
                    phase.order = if value == 0.0 { CallOrder::Stochastic } else { CallOrder::Deterministic };
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
                            let call = DraftCall::new(to.clone(), count, letter == "y");
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
                    let position = self.position();
                    draft.entries[entry].priority =
                        limits::to_priority(self.number("a priority")?, position)?;
                    self.end_phases()?;
                }
                "M" => {
                    self.phases(draft, "a longest time", |_, _, _| ())?;
                    draft.notes.push(format!("line {}: `M` of an entry is left aside", position.line));
                }
                "H" => {
                    self.entry(draft)?;
                    self.number("a phase")?;
                    self.histogram()?;
                    draft.notes.push(format!("line {}: `H` of an entry is left aside", position.line));
                }
                "P" | "V" | "R" | "U" | "W" | "X" => {
                    return Err(position.error("semaphores and locks are not supported"));
                }
                unknown => {
                    return Err(position.error(format!(
                        "nothing is called `{unknown}` of an entry; there are s, c, f, y, z, F, a, A, Z and p"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Parses `0 : 10 20 log`, the range, the number of bins and the kind of a histogram, which changes no
    /// result.
    fn histogram(&mut self) -> Result<(), InputError> {
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
    fn entry(&mut self, draft: &mut ModelDraft) -> Result<usize, InputError> {
        let name = self.name("an entry")?;
        if let Some(index) = draft.entries.iter().position(|entry| entry.name.text == name.text) {
            return Ok(index);
        }
        draft.entries.push(DraftEntry { name, ..DraftEntry::default() });
        Ok(draft.entries.len() - 1)
    }

    /// Parses one value for each phase.
    fn phases(
        &mut self,
        draft: &mut ModelDraft,
        quantity: &str,
        set: impl Fn(&mut DraftActivity, f64, SourcePosition),
    ) -> Result<(), InputError> {
        let entry = self.entry(draft)?;
        for phase in 0..3 {
            if self.ends_phases() {
                break;
            }
            let position = self.position();
            let value = self.number(quantity)?;
            set(&mut draft.entries[entry].phases[phase], value, position);
        }
        self.end_phases()
    }

    fn ends_phases(&self) -> bool {
        !self.is_number() && !self.is_mark("%")
    }

    /// Parses the end of the values: results to be stored, and the `-1`, which is optional.
    fn end_phases(&mut self) -> Result<(), InputError> {
        self.skip_observations();
        if !self.ends_section() {
            self.accept_list_end();
        }
        Ok(())
    }

    /// Returns `true` if the next `-1` ends the section, because another section or the end follows it.
    fn ends_section(&self) -> bool {
        let token_after = |offset: usize| self.tokens.get(self.next + offset).map(|token| &token.kind);
        match token_after(1) {
            None | Some(TokenKind::End | TokenKind::Variable(_)) => true,
            // A section begins with `A task s …`, a property with `A entry activity`.
            Some(TokenKind::Word(word)) if word == "A" => match token_after(3) {
                Some(TokenKind::Word(word)) => word.chars().count() == 1,
                token => token == Some(&TokenKind::Punctuation(":")),
            },
            Some(TokenKind::Word(word)) => matches!(word.as_str(), "G" | "P" | "T" | "E" | "U" | "R" | "C"),
            _ => false,
        }
    }
}

/// Converts a multiplicity; `None` if the number is invalid.
pub(super) fn to_multiplicity(count: f64) -> Option<Multiplicity> {
    if count == f64::INFINITY {
        return Some(Multiplicity::Infinite);
    }
    let is_whole = count.fract() == 0.0 && (1.0..=1e6).contains(&count);
    is_whole.then_some(Multiplicity::Finite(count as u32))
}
