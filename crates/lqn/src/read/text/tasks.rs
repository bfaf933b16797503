//! The parser of sections `P` and `T`: processors, tasks, and their multiplicities.

use super::super::draft::{DraftFan, DraftProcessor, DraftTask, FanDirection, ModelDraft, SourceName};
use super::super::tokenizer::{Token, TokenKind};
use super::super::{InputError, limits};
use super::LqnParser;
use crate::model::{Multiplicity, Scheduling};

impl LqnParser<'_, '_> {
    pub(super) fn processors(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        self.skip_count();
        while !self.accept_list_end() {
            self.keyword("p", "a processor begins with `p`")?;
            let name = self.name("a processor")?;
            let Token { kind, at: position } = self.next_token();
            let TokenKind::Word(letter) = kind else {
                return Err(position.error("expected how the processor is shared: f, h, p, r, i or s"));
            };
            let mut copies = Multiplicity::Finite(1);
            let scheduling = match letter.as_str() {
                "f" => Scheduling::Fcfs,
                "h" => Scheduling::HeadOfLine,
                "p" => Scheduling::Preemptive,
                "r" => Scheduling::Random,
                "i" => {
                    copies = Multiplicity::Infinite;
                    Scheduling::Fcfs
                }
                "s" => {
                    // The quantum of round robin is taken to be infinitely short.
                    if self.is_number() {
                        self.number("a quantum")?;
                    }
                    Scheduling::ProcessorSharing
                }
                "c" => return Err(position.error("completely fair scheduling (`c`) is not supported")),
                unknown => {
                    return Err(
                        position.error(format!("no scheduling `{unknown}`; there are f, h, p, r, i and s"))
                    );
                }
            };
            let mut processor = DraftProcessor { name, scheduling, copies, speed: 1.0, replicas: 1 };
            while let TokenKind::Word(option) = self.peek().clone() {
                let position = self.position();
                match option.as_str() {
                    "m" => {
                        self.next += 1;
                        self.parse_multiplicity_option(&mut processor.copies)?;
                    }
                    "i" => {
                        self.next += 1;
                        processor.copies = Multiplicity::Infinite;
                    }
                    "R" => {
                        self.next += 1;
                        processor.speed = self.number("a speed")?;
                        if processor.speed == 0.0 || processor.speed.is_infinite() {
                            return Err(position.error("a speed is above 0, and a number"));
                        }
                    }
                    "r" => {
                        self.next += 1;
                        processor.replicas = self.replicas("how many replicas there are")?;
                    }
                    _ => break,
                }
            }
            self.skip_observations();
            draft.processors.push(processor);
        }
        Ok(())
    }

    /// Parses the number after `m`. It is ignored if the multiplicity is infinite.
    fn parse_multiplicity_option(&mut self, copies: &mut Multiplicity) -> Result<(), InputError> {
        if *copies == Multiplicity::Infinite {
            self.number("how many there are")?;
        } else {
            *copies = self.copies()?;
        }
        Ok(())
    }

    /// Parses a number of replicas.
    fn replicas(&mut self, quantity: &str) -> Result<u32, InputError> {
        let position = self.position();
        let count = self.number(quantity)?;
        limits::to_replicas(count, position)
    }

    fn keyword(&mut self, word: &str, message: &str) -> Result<(), InputError> {
        if self.is_word(word) {
            self.next += 1;
            return Ok(());
        }
        Err(self.position().error(format!("{message}; a list ends with -1")))
    }

    pub(super) fn tasks(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        self.skip_count();
        while !self.accept_list_end() {
            if self.is_word("I") || self.is_word("O") {
                self.fan(draft)?;
                continue;
            }
            self.keyword("t", "a task begins with `t`")?;
            let name = self.name("a task")?;
            let Token { kind, at: position } = self.next_token();
            let letter = if let TokenKind::Word(letter) = kind { letter } else { String::new() };
            let mut task = DraftTask::new(name, SourceName::default());
            match letter.as_str() {
                "r" => task.is_client = true,
                "n" | "f" => {}
                "h" => task.scheduling = Scheduling::HeadOfLine,
                "i" => task.copies = Multiplicity::Infinite,
                "b" | "u" | "P" | "p" | "S" | "w" => {
                    return Err(position.error(format!(
                        "tasks of kind `{letter}` are not supported; there are r, n, f, h and i"
                    )));
                }
                _ => return Err(position.error("expected the kind of the task: r (clients), n, f, h or i")),
            }
            while !self.accept_list_end() {
                task.entries.push(self.name("an entry")?);
            }
            self.task_options(&mut task)?;
            draft.tasks.push(task);
        }
        Ok(())
    }

    /// Parses `O from to 2`, by which each replica of `from` calls two of `to`, or `I from to 2`, by which
    /// two call each of `to`.
    fn fan(&mut self, draft: &mut ModelDraft) -> Result<(), InputError> {
        let direction = if self.is_word("I") { FanDirection::In } else { FanDirection::Out };
        self.next += 1;
        let (from, to) = (self.name("a task")?, self.name("a task")?);
        let kind = if direction == FanDirection::In { "a fan-in" } else { "a fan-out" };
        let count = self.replicas(kind)?;
        draft.fans.push(DraftFan { from, to, direction, count });
        Ok(())
    }

    /// Parses the part after the entries of a task: the processor, and options with a value each.
    fn task_options(&mut self, task: &mut DraftTask) -> Result<(), InputError> {
        if self.is_word("q") {
            return Err(self.position().error(
                "`q`, which every tool understands otherwise, is not supported; write \
                `#pragma queue.TASK=NUMBER`",
            ));
        }
        task.processor = self.name("the processor of the task")?;
        if self.is_number() {
            let position = self.position();
            task.priority = limits::to_priority(self.number("a priority")?, position)?;
        }
        while let TokenKind::Word(option) = self.peek().clone() {
            let position = self.position();
            match option.as_str() {
                "z" => {
                    self.next += 1;
                    task.think = self.number("a time to think")?;
                }
                "m" => {
                    self.next += 1;
                    self.parse_multiplicity_option(&mut task.copies)?;
                }
                "i" => {
                    self.next += 1;
                    task.copies = Multiplicity::Infinite;
                }
                "r" => {
                    self.next += 1;
                    task.replicas = self.replicas("how many replicas there are")?;
                }
                "g" => return Err(position.error("groups that share a processor (`g`) are not supported")),
                "T" => {
                    return Err(position.error("tokens (`T`) belong to semaphores, which are not supported"));
                }
                _ => break,
            }
        }
        self.skip_observations();
        Ok(())
    }
}
