//! The parser of sections `P` and `T`: processors, tasks, and their multiplicities.

use super::super::draft::{Draft, Fan, Name, Processor, Task, Which};
use super::super::scan::{Kind, Token};
use super::super::{Trouble, limits};
use super::Parser;
use crate::model::{Copies, Scheduling};

impl Parser<'_, '_> {
    pub(super) fn processors(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
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
                    // The quantum of round robin is taken to be infinitely short.
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
            let mut processor = Processor { name, scheduling, copies, speed: 1.0, replicas: 1 };
            while let Kind::Word(option) = self.peek().clone() {
                let at = self.at();
                match option.as_str() {
                    "m" => {
                        self.next += 1;
                        self.several(&mut processor.copies)?;
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
    fn several(&mut self, copies: &mut Copies) -> Result<(), Trouble> {
        if *copies == Copies::Infinite {
            self.number("how many there are")?;
        } else {
            *copies = self.copies()?;
        }
        Ok(())
    }

    /// Parses a number of replicas.
    fn replicas(&mut self, what: &str) -> Result<u32, Trouble> {
        let at = self.at();
        let count = self.number(what)?;
        limits::replicas(count, at)
    }

    fn keyword(&mut self, word: &str, why: &str) -> Result<(), Trouble> {
        if self.is_word(word) {
            self.next += 1;
            return Ok(());
        }
        Err(self.at().says(format!("{why}; a list ends with -1")))
    }

    pub(super) fn tasks(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        self.count();
        while !self.ends() {
            if self.is_word("I") || self.is_word("O") {
                self.fan(draft)?;
                continue;
            }
            self.keyword("t", "a task begins with `t`")?;
            let name = self.name("a task")?;
            let Token { kind, at } = self.take();
            let letter = if let Kind::Word(letter) = kind { letter } else { String::new() };
            let mut task = Task::new(name, Name::default());
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

    /// Parses `O from to 2`, by which each replica of `from` calls two of `to`, or `I from to 2`, by which
    /// two call each of `to`.
    fn fan(&mut self, draft: &mut Draft) -> Result<(), Trouble> {
        let which = if self.is_word("I") { Which::In } else { Which::Out };
        self.next += 1;
        let (from, to) = (self.name("a task")?, self.name("a task")?);
        let what = if which == Which::In { "a fan-in" } else { "a fan-out" };
        let count = self.replicas(what)?;
        draft.fans.push(Fan { from, to, which, count });
        Ok(())
    }

    /// Parses the part after the entries of a task: the processor, and options with a value each.
    fn task_options(&mut self, task: &mut Task) -> Result<(), Trouble> {
        if self.is_word("q") {
            return Err(self.at().says(
                "`q`, which every tool understands otherwise, is not supported; write \
                `#pragma queue.TASK=NUMBER`",
            ));
        }
        task.processor = self.name("the processor of the task")?;
        if self.is_number() {
            let at = self.at();
            task.priority = limits::priority(self.number("a priority")?, at)?;
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
                    self.several(&mut task.copies)?;
                }
                "i" => {
                    self.next += 1;
                    task.copies = Copies::Infinite;
                }
                "r" => {
                    self.next += 1;
                    task.replicas = self.replicas("how many replicas there are")?;
                }
                "g" => return Err(at.says("groups that share a processor (`g`) are not supported")),
                "T" => return Err(at.says("tokens (`T`) belong to semaphores, which are not supported")),
                _ => break,
            }
        }
        self.skip_observations();
        Ok(())
    }
}
