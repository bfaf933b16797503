//! The parser of section `A`: the activities of a task and their order.

use super::super::draft::{
    DraftActivity, DraftCall, DraftLink, DraftPredecessors, DraftSuccessors, ModelDraft, SourceName,
};
use super::super::tokenizer::{Token, TokenKind};
use super::super::{InputError, limits};
use super::LqnParser;
use crate::model::CallOrder;

/// The replies of a graph: an activity, and the entries whose callers it replies to.
type GraphReplies = Vec<(SourceName, Vec<SourceName>)>;

impl LqnParser<'_, '_> {
    /// Parses a section after its letter: the task, its activities, and after a colon their order, up to
    /// `-1`.
    pub(super) fn activities(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        let task = self.name("a task")?;
        let Some(index) = draft.tasks.iter().position(|candidate| candidate.name.text == task.text) else {
            return Err(task.at.error(format!("no task `{}`; section T comes before this one", task.text)));
        };
        let mut activities = Vec::new();
        while !self.is_mark(":") && !self.is_at_end() {
            self.property(&mut activities, draft)?;
        }
        let (mut links, mut replies) = (Vec::new(), Vec::new());
        if self.accept(":") {
            loop {
                links.push(self.link(&mut replies)?);
                if !self.accept(";") || self.is_at_end() {
                    break;
                }
            }
        }
        if !self.accept_list_end() {
            return Err(self.position().error("expected `;` and what follows another activity, or -1"));
        }
        let task = &mut draft.tasks[index];
        task.activities.extend(activities);
        task.links.extend(links);
        task.replies.extend(replies);
        Ok(())
    }

    /// Returns `true` if a `-1` or the end of the text is next.
    fn is_at_end(&self) -> bool {
        match self.peek() {
            TokenKind::Number(_, spelling) => spelling == "-1",
            kind => *kind == TokenKind::End,
        }
    }

    fn property(
        &mut self,
        activities: &mut Vec<DraftActivity>,
        draft: &mut ModelDraft,
    ) -> Result<(), InputError> {
        let Token { kind, at: position } = self.next_token();
        let letter = if let TokenKind::Word(letter) = kind { letter } else { String::new() };
        if !matches!(letter.as_str(), "s" | "c" | "f" | "Z" | "y" | "z" | "M" | "H") {
            return Err(
                position.error("expected what is said of an activity (s, c, f, Z, y or z), `:` or -1")
            );
        }
        let name = self.name("an activity")?;
        let existing = activities.iter().position(|activity| activity.name.text == name.text);
        let index = existing.unwrap_or_else(|| {
            activities.push(DraftActivity { name, ..DraftActivity::default() });
            activities.len() - 1
        });
        match letter.as_str() {
            "s" => activities[index].demand = self.number("a demand")?,
            "c" => activities[index].variation = self.number("a variation")?,
            "Z" => activities[index].think = self.number("a time to think")?,
            "f" => {
                let is_exact = self.number("0 or 1")? != 0.0;
                activities[index].order =
                    if is_exact { CallOrder::Deterministic } else { CallOrder::Stochastic };
            }
            "y" | "z" => {
                let to = self.name("an entry")?;
                let count = self.number("a number of calls")?;
                activities[index].calls.push(DraftCall::new(to, count, letter == "y"));
            }
            _ => {
                self.number("a time")?;
                while self.is_number() || self.is_mark(":") {
                    self.next += 1;
                }
                if ["log", "linear", "sqrt"].iter().any(|kind| self.is_word(kind)) {
                    self.next += 1;
                }
                draft.notes.push(format!("line {}: `{letter}` of an activity is left aside", position.line));
            }
        }
        self.skip_observations();
        // Some texts end the properties of an activity with -1, too; then a property or the colon follows.
        let ends_list = self.is_at_end()
            && matches!(
                self.tokens.get(self.next + 1).map(|token| &token.kind),
                Some(TokenKind::Punctuation(":")) | Some(TokenKind::Word(_))
            );
        let begins_section = matches!(
            self.tokens.get(self.next + 1).map(|token| &token.kind),
            Some(TokenKind::Word(word)) if ["G", "P", "T", "E", "A", "R", "C", "U"].contains(&word.as_str())
        );
        if ends_list && !begins_section {
            self.next += 1;
        }
        Ok(())
    }

    /// Parses a connection such as `a & b -> (0.5) c + (0.5) d`.
    fn link(&mut self, replies: &mut GraphReplies) -> Result<DraftLink, InputError> {
        let mut names = vec![self.activity_with_replies(replies)?];
        let predecessors = if self.is_mark("&") {
            while self.accept("&") {
                names.push(self.activity_with_replies(replies)?);
            }
            let position = self.position();
            let mut quorum = None;
            if self.accept("(") {
                let quorum_position = self.position();
                quorum = Some((
                    limits::to_quorum(self.number("how many of them go on")?, quorum_position)?,
                    position,
                ));
                self.expect(")")?;
            }
            DraftPredecessors::And(names, quorum)
        } else if self.is_mark("+") {
            while self.accept("+") {
                names.push(self.activity_with_replies(replies)?);
            }
            DraftPredecessors::Or(names)
        } else {
            DraftPredecessors::One(names.remove(0))
        };
        let successors = if self.accept("->") { self.parse_successors()? } else { DraftSuccessors::End };
        Ok(DraftLink { predecessors, successors })
    }

    /// Parses an activity, and in brackets the entries whose callers it replies to.
    fn activity_with_replies(&mut self, replies: &mut GraphReplies) -> Result<SourceName, InputError> {
        let name = self.name("an activity")?;
        if self.accept("[") {
            let mut replied_entries = vec![self.name("an entry")?];
            while self.accept(",") {
                replied_entries.push(self.name("an entry")?);
            }
            self.expect("]")?;
            replies.push((name.clone(), replied_entries));
        }
        Ok(name)
    }

    fn parse_successors(&mut self) -> Result<DraftSuccessors, InputError> {
        if self.accept("(") {
            let mut branches = Vec::new();
            loop {
                let share = self.number("a probability")?;
                self.expect(")")?;
                branches.push((share, self.name("an activity")?));
                if !self.accept("+") {
                    return Ok(DraftSuccessors::Or(branches));
                }
                self.expect("(")?;
            }
        }
        if self.is_loop_count() {
            let mut bodies = Vec::new();
            while self.is_loop_count() {
                let count = self.number("how often it is done")?;
                self.expect("*")?;
                bodies.push((count, self.name("an activity")?));
                if !self.accept(",") {
                    return Ok(DraftSuccessors::Loop(bodies, None));
                }
            }
            return Ok(DraftSuccessors::Loop(bodies, Some(self.name("an activity")?)));
        }
        let mut names = vec![self.name("an activity")?];
        while self.accept("&") {
            names.push(self.name("an activity")?);
        }
        Ok(if names.len() == 1 { DraftSuccessors::One(names.remove(0)) } else { DraftSuccessors::And(names) })
    }

    /// Returns `true` if `2 *` is next; a number without a star may be a name.
    fn is_loop_count(&self) -> bool {
        self.tokens.get(self.next + 1).is_some_and(|token| token.kind == TokenKind::Punctuation("*"))
    }
}
