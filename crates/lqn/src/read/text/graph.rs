//! The parser of section `A`: the activities of a task and their order.

use super::super::draft::{Activity, After, Before, Call, Draft, Link, Name};
use super::super::scan::{Kind, Token};
use super::super::{Trouble, limits};
use super::Parser;
use crate::model::Order;

/// The replies of a graph: an activity, and the entries whose callers it replies to.
type Replies = Vec<(Name, Vec<Name>)>;

impl Parser<'_, '_> {
    /// Parses a section after its letter: the task, its activities, and after a colon their order, up to
    /// `-1`.
    pub(super) fn activities(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        let task = self.name("a task")?;
        let Some(place) = draft.tasks.iter().position(|own| own.name.text == task.text) else {
            return Err(task.at.says(format!("no task `{}`; section T comes before this one", task.text)));
        };
        let mut activities = Vec::new();
        while !self.is_mark(":") && !self.ends_next() {
            self.property(&mut activities, draft)?;
        }
        let (mut links, mut replies) = (Vec::new(), Vec::new());
        if self.takes(":") {
            loop {
                links.push(self.link(&mut replies)?);
                if !self.takes(";") || self.ends_next() {
                    break;
                }
            }
        }
        if !self.ends() {
            return Err(self.at().says("expected `;` and what follows another activity, or -1"));
        }
        let task = &mut draft.tasks[place];
        task.activities.extend(activities);
        task.links.extend(links);
        task.replies.extend(replies);
        Ok(())
    }

    /// Returns `true` if a `-1` or the end of the text is next.
    fn ends_next(&self) -> bool {
        match self.peek() {
            Kind::Number(_, spelling) => spelling == "-1",
            kind => *kind == Kind::End,
        }
    }

    fn property(&mut self, activities: &mut Vec<Activity>, draft: &mut Draft) -> Result<(), Trouble> {
        let Token { kind, at } = self.take();
        let letter = if let Kind::Word(letter) = kind { letter } else { String::new() };
        if !matches!(letter.as_str(), "s" | "c" | "f" | "Z" | "y" | "z" | "M" | "H") {
            return Err(at.says("expected what is said of an activity (s, c, f, Z, y or z), `:` or -1"));
        }
        let name = self.name("an activity")?;
        let known = activities.iter().position(|activity| activity.name.text == name.text);
        let place = known.unwrap_or_else(|| {
            activities.push(Activity { name, ..Activity::default() });
            activities.len() - 1
        });
        match letter.as_str() {
            "s" => activities[place].demand = self.number("a demand")?,
            "c" => activities[place].variation = self.number("a variation")?,
            "Z" => activities[place].think = self.number("a time to think")?,
            "f" => {
                let exact = self.number("0 or 1")? != 0.0;
                activities[place].order = if exact { Order::Deterministic } else { Order::Stochastic };
            }
            "y" | "z" => {
                let to = self.name("an entry")?;
                let count = self.number("a number of calls")?;
                activities[place].calls.push(Call::new(to, count, letter == "y"));
            }
            _ => {
                self.number("a time")?;
                while self.is_number() || self.is_mark(":") {
                    self.next += 1;
                }
                if ["log", "linear", "sqrt"].iter().any(|kind| self.is_word(kind)) {
                    self.next += 1;
                }
                draft.notes.push(format!("line {}: `{letter}` of an activity is left aside", at.line));
            }
        }
        self.skip_observations();
        // Some texts end the properties of an activity with -1, too; then a property or the colon follows.
        let ended = self.ends_next()
            && matches!(
                self.tokens.get(self.next + 1).map(|token| &token.kind),
                Some(Kind::Mark(":")) | Some(Kind::Word(_))
            );
        let section = matches!(
            self.tokens.get(self.next + 1).map(|token| &token.kind),
            Some(Kind::Word(word)) if matches!(word.as_str(), "G" | "P" | "T" | "E" | "A" | "R" | "C" | "U")
        );
        if ended && !section {
            self.next += 1;
        }
        Ok(())
    }

    /// Parses a connection such as `a & b -> (0.5) c + (0.5) d`.
    fn link(&mut self, replies: &mut Replies) -> Result<Link, Trouble> {
        let mut names = vec![self.joined(replies)?];
        let before = if self.is_mark("&") {
            while self.takes("&") {
                names.push(self.joined(replies)?);
            }
            let at = self.at();
            let mut quorum = None;
            if self.takes("(") {
                let own = self.at();
                quorum = Some((limits::quorum(self.number("how many of them go on")?, own)?, at));
                self.expect(")")?;
            }
            Before::All(names, quorum)
        } else if self.is_mark("+") {
            while self.takes("+") {
                names.push(self.joined(replies)?);
            }
            Before::Any(names)
        } else {
            Before::One(names.remove(0))
        };
        let after = if self.takes("->") { self.after()? } else { After::Nothing };
        Ok(Link { before, after })
    }

    /// Parses an activity, and in brackets the entries whose callers it replies to.
    fn joined(&mut self, replies: &mut Replies) -> Result<Name, Trouble> {
        let name = self.name("an activity")?;
        if self.takes("[") {
            let mut answered = vec![self.name("an entry")?];
            while self.takes(",") {
                answered.push(self.name("an entry")?);
            }
            self.expect("]")?;
            replies.push((name.clone(), answered));
        }
        Ok(name)
    }

    fn after(&mut self) -> Result<After, Trouble> {
        if self.takes("(") {
            let mut ways = Vec::new();
            loop {
                let share = self.number("a probability")?;
                self.expect(")")?;
                ways.push((share, self.name("an activity")?));
                if !self.takes("+") {
                    return Ok(After::Any(ways));
                }
                self.expect("(")?;
            }
        }
        if self.counts_turns() {
            let mut bodies = Vec::new();
            while self.counts_turns() {
                let count = self.number("how often it is done")?;
                self.expect("*")?;
                bodies.push((count, self.name("an activity")?));
                if !self.takes(",") {
                    return Ok(After::Loop(bodies, None));
                }
            }
            return Ok(After::Loop(bodies, Some(self.name("an activity")?)));
        }
        let mut names = vec![self.name("an activity")?];
        while self.takes("&") {
            names.push(self.name("an activity")?);
        }
        Ok(if names.len() == 1 { After::One(names.remove(0)) } else { After::All(names) })
    }

    /// Returns `true` if `2 *` is next; a number without a star may be a name.
    fn counts_turns(&self) -> bool {
        self.tokens.get(self.next + 1).is_some_and(|token| token.kind == Kind::Mark("*"))
    }
}
