//! Groups with scalers: each has a task of its own, so that a provider that hangs delays no other group.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_config::GroupScaling;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::runtime::BalancerRuntime;
use crate::runtime::scaler_state::{GroupInstances, ScalerMessage};
use autoscaler::GroupAutoscaler;

mod autoscaler;
mod observe;

/// The time in which members are stopped when the process stops, beside their own time.
const LAST: Duration = Duration::from_secs(30);

/// A message to a task.
#[derive(Debug)]
enum ScalerCommand {
    /// Uses these settings from now on.
    UpdateSettings(Box<GroupScaling>),
    /// Decides nothing any more, and starts no members.
    Halt,
    /// Stops the members that the task started, unless they are to stay, and ends.
    StopMembers,
    /// Stops the members that the task started in any case, and ends: the group has another provider, or
    /// none.
    DismissMembers,
    /// Halts, and replies once no member is being started.
    Settle(oneshot::Sender<()>),
    /// Stops all work, and replies with the members that the task started.
    HandOff(oneshot::Sender<GroupInstances>),
    /// Goes on.
    Resume,
    /// Ends: another process goes on.
    Detach,
}

/// The time for members that are being started when another process is to take over.
const SETTLING: Duration = Duration::from_secs(10);

/// The number of messages that may wait; a sender waits beyond that.
const WORDS: usize = 16;

/// The tasks, held by one that follows the configuration.
pub(super) struct ScalerTasks {
    to: mpsc::Sender<ScalerMessage>,
    handle: JoinHandle<()>,
}

struct TaskGroup {
    running: Arc<BalancerRuntime>,
    tasks: Vec<GroupTask>,
    /// Tasks that are ending.
    leaving: Vec<(mpsc::Sender<ScalerCommand>, JoinHandle<()>)>,
}

struct GroupTask {
    scaling: GroupScaling,
    words: mpsc::Sender<ScalerCommand>,
    handle: JoinHandle<()>,
}

impl ScalerTasks {
    /// Follows the configuration from now on.
    pub(super) fn start(running: Arc<BalancerRuntime>) -> Self {
        let (to, mut said) = mpsc::channel(WORDS);
        running.scalers().set_task_sender(to.clone());
        let handle = tokio::spawn(async move {
            let mut tasks = TaskGroup { running, tasks: Vec::new(), leaving: Vec::new() };
            tasks.update().await;
            loop {
                tokio::select! {
                    () = tasks.running.scalings_changed() => tasks.update().await,
                    told = said.recv() => match told {
                        Some(ScalerMessage::Halt) => tasks.broadcast(|| ScalerCommand::Halt).await,
                        Some(ScalerMessage::Settle(reply)) => drop(reply.send(tasks.settle().await)),
                        Some(ScalerMessage::Yield(reply)) => drop(reply.send(tasks.hand_off().await)),
                        Some(ScalerMessage::Resume) => tasks.broadcast(|| ScalerCommand::Resume).await,
                        Some(ScalerMessage::Leave) => return tasks.detach().await,
                        Some(ScalerMessage::End) | None => return tasks.stop_members().await,
                    },
                }
            }
        });
        Self { to, handle }
    }

    /// Halts: no member is started or taken away from now on.
    pub(super) async fn halt(&self) {
        let _ = self.to.send(ScalerMessage::Halt).await;
    }

    /// Ends the tasks; another process goes on with their members.
    pub(super) async fn detach(self) {
        let _ = self.to.send(ScalerMessage::Leave).await;
        let _ = self.handle.await;
    }

    /// Stops the members that the tasks started.
    pub(super) async fn stop_members(self) {
        let _ = self.to.send(ScalerMessage::End).await;
        // A panic there has been reported by the panic hook.
        let _ = self.handle.await;
    }
}

impl TaskGroup {
    async fn broadcast(&self, word: impl Fn() -> ScalerCommand) {
        for task in &self.tasks {
            let _ = task.words.send(word()).await;
        }
    }

    async fn update(&mut self) {
        self.leaving.retain(|(_, handle)| !handle.is_finished());
        let scalings = self.running.scalings();
        let same = |task: &GroupTask, scaling: &GroupScaling| {
            task.scaling.group == scaling.group && task.scaling.provider == scaling.provider
        };
        let (stay, go): (Vec<GroupTask>, Vec<GroupTask>) = std::mem::take(&mut self.tasks)
            .into_iter()
            .partition(|task| scalings.iter().any(|scaling| same(task, scaling)));
        self.tasks = stay;
        for task in go {
            let _ = task.words.send(ScalerCommand::DismissMembers).await;
            self.leaving.push((task.words, task.handle));
        }
        for scaling in scalings {
            match self.tasks.iter_mut().find(|task| same(task, &scaling)) {
                Some(task) => {
                    let _ = task.words.send(ScalerCommand::UpdateSettings(Box::new(scaling.clone()))).await;
                    task.scaling = scaling;
                }
                None => {
                    let (words, heard) = mpsc::channel(WORDS);
                    let charge = GroupAutoscaler::new(Arc::clone(&self.running), scaling.clone());
                    let handle = tokio::spawn(charge.run(heard));
                    self.tasks.push(GroupTask { scaling, words, handle });
                }
            }
        }
    }

    /// Halts the tasks; returns once no member is being started.
    async fn settle(&self) -> Result<(), String> {
        let mut waits = Vec::new();
        for task in &self.tasks {
            let (reply, settled) = oneshot::channel();
            let _ = task.words.send(ScalerCommand::Settle(reply)).await;
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
    async fn hand_off(&self) -> Vec<GroupInstances> {
        let mut all = Vec::new();
        for task in &self.tasks {
            let (reply, crewed) = oneshot::channel();
            let _ = task.words.send(ScalerCommand::HandOff(reply)).await;
            all.extend(crewed.await);
        }
        all
    }

    /// Ends the tasks; another process goes on with all groups that it has, too. Only members that had to
    /// stop anyway are stopped.
    async fn detach(mut self) {
        self.broadcast(|| ScalerCommand::Detach).await;
        self.finish().await;
    }

    async fn stop_members(mut self) {
        self.broadcast(|| ScalerCommand::StopMembers).await;
        self.finish().await;
    }

    async fn finish(&mut self) {
        for (words, _) in &self.leaving {
            let _ = words.send(ScalerCommand::StopMembers).await;
        }
        let own =
            self.tasks.iter().map(|task| task.scaling.provider.max_duration()).max().unwrap_or_default();
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
