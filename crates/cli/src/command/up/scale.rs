//! Groups with scalers: each has a task of its own, so that a provider that hangs delays no other group.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::Scaling;
use crate::running::Running;
use crate::running::scaled::{Crewed, Tell};
use charge::Charge;

mod charge;
mod look;

/// The time in which members are stopped when the process stops, beside their own time.
const LAST: Duration = Duration::from_secs(30);

/// A message to a task.
#[derive(Debug)]
enum Word {
    /// Uses these settings from now on.
    Rules(Box<Scaling>),
    /// Decides nothing any more, and starts no members.
    Halt,
    /// Stops the members that the task started, unless they are to stay, and ends.
    End,
    /// Stops the members that the task started in any case, and ends: the group has another provider, or
    /// none.
    Dismiss,
    /// Halts, and replies once no member is being started.
    Settle(oneshot::Sender<()>),
    /// Stops all work, and replies with the members that the task started.
    Yield(oneshot::Sender<Crewed>),
    /// Goes on.
    Resume,
    /// Ends: another process goes on.
    Leave,
}

/// The time for members that are being started when another process is to take over.
const SETTLING: Duration = Duration::from_secs(10);

/// The number of messages that may wait; a sender waits beyond that.
const WORDS: usize = 16;

/// The tasks, held by one that follows the configuration.
pub(super) struct Scalers {
    to: mpsc::Sender<Tell>,
    handle: JoinHandle<()>,
}

struct Tasks {
    running: Arc<Running>,
    tasks: Vec<Task>,
    /// Tasks that are ending.
    leaving: Vec<(mpsc::Sender<Word>, JoinHandle<()>)>,
}

struct Task {
    scaling: Scaling,
    words: mpsc::Sender<Word>,
    handle: JoinHandle<()>,
}

impl Scalers {
    /// Follows the configuration from now on.
    pub(super) fn start(running: Arc<Running>) -> Self {
        let (to, mut said) = mpsc::channel(WORDS);
        running.scaled().attend(to.clone());
        let handle = tokio::spawn(async move {
            let mut tasks = Tasks { running, tasks: Vec::new(), leaving: Vec::new() };
            tasks.update().await;
            loop {
                tokio::select! {
                    () = tasks.running.scalings_changed() => tasks.update().await,
                    told = said.recv() => match told {
                        Some(Tell::Halt) => tasks.tell_all(|| Word::Halt).await,
                        Some(Tell::Settle(reply)) => drop(reply.send(tasks.settle().await)),
                        Some(Tell::Yield(reply)) => drop(reply.send(tasks.give_way().await)),
                        Some(Tell::Resume) => tasks.tell_all(|| Word::Resume).await,
                        Some(Tell::Leave) => return tasks.leave().await,
                        Some(Tell::End) | None => return tasks.end().await,
                    },
                }
            }
        });
        Self { to, handle }
    }

    /// Halts: no member is started or taken away from now on.
    pub(super) async fn halt(&self) {
        let _ = self.to.send(Tell::Halt).await;
    }

    /// Ends the tasks; another process goes on with their members.
    pub(super) async fn leave(self) {
        let _ = self.to.send(Tell::Leave).await;
        let _ = self.handle.await;
    }

    /// Stops the members that the tasks started.
    pub(super) async fn end(self) {
        let _ = self.to.send(Tell::End).await;
        // A panic there has been reported by the panic hook.
        let _ = self.handle.await;
    }
}

impl Tasks {
    async fn tell_all(&self, word: impl Fn() -> Word) {
        for task in &self.tasks {
            let _ = task.words.send(word()).await;
        }
    }

    async fn update(&mut self) {
        self.leaving.retain(|(_, handle)| !handle.is_finished());
        let scalings = self.running.scalings();
        let same = |task: &Task, scaling: &Scaling| {
            task.scaling.group == scaling.group && task.scaling.kind == scaling.kind
        };
        let (stay, go): (Vec<Task>, Vec<Task>) = std::mem::take(&mut self.tasks)
            .into_iter()
            .partition(|task| scalings.iter().any(|scaling| same(task, scaling)));
        self.tasks = stay;
        for task in go {
            let _ = task.words.send(Word::Dismiss).await;
            self.leaving.push((task.words, task.handle));
        }
        for scaling in scalings {
            match self.tasks.iter_mut().find(|task| same(task, &scaling)) {
                Some(task) => {
                    let _ = task.words.send(Word::Rules(Box::new(scaling.clone()))).await;
                    task.scaling = scaling;
                }
                None => {
                    let (words, heard) = mpsc::channel(WORDS);
                    let charge = Charge::new(Arc::clone(&self.running), scaling.clone());
                    let handle = tokio::spawn(charge.run(heard));
                    self.tasks.push(Task { scaling, words, handle });
                }
            }
        }
    }

    /// Halts the tasks; returns once no member is being started.
    async fn settle(&self) -> Result<(), String> {
        let mut waits = Vec::new();
        for task in &self.tasks {
            let (reply, settled) = oneshot::channel();
            let _ = task.words.send(Word::Settle(reply)).await;
            waits.push((&task.scaling.group, settled));
        }
        let end = Instant::now() + SETTLING;
        for (group, settled) in waits {
            // A task that has ended starts no member.
            if timeout_at(end, settled).await.is_err() {
                return Err(format!("group {group}: a member is being started; try again when it is there"));
            }
        }
        Ok(())
    }

    /// Stops all work; returns the members that the tasks started.
    async fn give_way(&self) -> Vec<Crewed> {
        let mut all = Vec::new();
        for task in &self.tasks {
            let (reply, crewed) = oneshot::channel();
            let _ = task.words.send(Word::Yield(reply)).await;
            all.extend(crewed.await);
        }
        all
    }

    /// Ends the tasks; another process goes on with all groups that it has, too. Only members that had to
    /// stop anyway are stopped.
    async fn leave(mut self) {
        self.tell_all(|| Word::Leave).await;
        self.finish().await;
    }

    async fn end(mut self) {
        self.tell_all(|| Word::End).await;
        self.finish().await;
    }

    async fn finish(&mut self) {
        for (words, _) in &self.leaving {
            let _ = words.send(Word::End).await;
        }
        let own = self.tasks.iter().map(|task| task.scaling.kind.longest()).max().unwrap_or_default();
        let patience = LAST + own;
        let leaving = self.leaving.drain(..).map(|(_, handle)| handle);
        let handles: Vec<JoinHandle<()>> =
            self.tasks.drain(..).map(|task| task.handle).chain(leaving).collect();
        let all = async {
            for handle in handles {
                let _ = handle.await;
            }
        };
        if timeout(patience, all).await.is_err() {
            tracing::warn!(
                "some members that were started have not been stopped within {} s",
                patience.as_secs()
            );
        }
    }
}
