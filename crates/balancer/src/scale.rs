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
const STOP_GRACE: Duration = Duration::from_secs(30);

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
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of messages that may wait; a sender waits beyond that.
const COMMAND_QUEUE_LEN: usize = 16;

/// The tasks, held by one that follows the configuration.
pub(super) struct ScalerTasks {
    sender: mpsc::Sender<ScalerMessage>,
    handle: JoinHandle<()>,
}

struct TaskGroup {
    balancer: Arc<BalancerRuntime>,
    tasks: Vec<GroupTask>,
    /// Tasks that are ending.
    leaving: Vec<(mpsc::Sender<ScalerCommand>, JoinHandle<()>)>,
}

struct GroupTask {
    scaling: GroupScaling,
    commands: mpsc::Sender<ScalerCommand>,
    handle: JoinHandle<()>,
}

impl ScalerTasks {
    /// Follows the configuration from now on.
    pub(super) fn start(balancer: Arc<BalancerRuntime>) -> Self {
        let (sender, mut messages) = mpsc::channel(COMMAND_QUEUE_LEN);
        balancer.scalers().set_task_sender(sender.clone());
        let handle = tokio::spawn(async move {
            let mut tasks = TaskGroup { balancer, tasks: Vec::new(), leaving: Vec::new() };
            tasks.update().await;
            loop {
                tokio::select! {
                    () = tasks.balancer.scalings_changed() => tasks.update().await,
                    message = messages.recv() => match message {
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
        Self { sender, handle }
    }

    /// Halts: no member is started or taken away from now on.
    pub(super) async fn halt(&self) {
        let _ = self.sender.send(ScalerMessage::Halt).await;
    }

    /// Ends the tasks; another process goes on with their members.
    pub(super) async fn detach(self) {
        let _ = self.sender.send(ScalerMessage::Leave).await;
        let _ = self.handle.await;
    }

    /// Stops the members that the tasks started.
    pub(super) async fn stop_members(self) {
        let _ = self.sender.send(ScalerMessage::End).await;
        // A panic there has been reported by the panic hook.
        let _ = self.handle.await;
    }
}

impl TaskGroup {
    async fn broadcast(&self, command: impl Fn() -> ScalerCommand) {
        for task in &self.tasks {
            let _ = task.commands.send(command()).await;
        }
    }

    async fn update(&mut self) {
        self.leaving.retain(|(_, handle)| !handle.is_finished());
        let scalings = self.balancer.scalings();
        let is_same = |task: &GroupTask, scaling: &GroupScaling| {
            task.scaling.group == scaling.group && task.scaling.provider == scaling.provider
        };
        let (remaining, removed): (Vec<GroupTask>, Vec<GroupTask>) = std::mem::take(&mut self.tasks)
            .into_iter()
            .partition(|task| scalings.iter().any(|scaling| is_same(task, scaling)));
        self.tasks = remaining;
        for task in removed {
            let _ = task.commands.send(ScalerCommand::DismissMembers).await;
            self.leaving.push((task.commands, task.handle));
        }
        for scaling in scalings {
            match self.tasks.iter_mut().find(|task| is_same(task, &scaling)) {
                Some(task) => {
                    let _ =
                        task.commands.send(ScalerCommand::UpdateSettings(Box::new(scaling.clone()))).await;
                    task.scaling = scaling;
                }
                None => {
                    let (commands, receiver) = mpsc::channel(COMMAND_QUEUE_LEN);
                    let autoscaler = GroupAutoscaler::new(Arc::clone(&self.balancer), scaling.clone());
                    let handle = tokio::spawn(autoscaler.run(receiver));
                    self.tasks.push(GroupTask { scaling, commands, handle });
                }
            }
        }
    }

    /// Halts the tasks; returns once no member is being started.
    async fn settle(&self) -> Result<(), String> {
        let mut pending = Vec::new();
        for task in &self.tasks {
            let (reply, confirmation) = oneshot::channel();
            let _ = task.commands.send(ScalerCommand::Settle(reply)).await;
            pending.push((&task.scaling.group, confirmation));
        }
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        for (group, confirmation) in pending {
            // A task that has ended starts no member.
            if timeout_at(deadline, confirmation).await.is_err() {
                return Err(format!("group {group}: a member is being started; try again when it is there"));
            }
        }
        Ok(())
    }

    /// Stops all work; returns the members that the tasks started.
    async fn hand_off(&self) -> Vec<GroupInstances> {
        let mut instances = Vec::new();
        for task in &self.tasks {
            let (reply, response) = oneshot::channel();
            let _ = task.commands.send(ScalerCommand::HandOff(reply)).await;
            instances.extend(response.await);
        }
        instances
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
        for (commands, _) in &self.leaving {
            let _ = commands.send(ScalerCommand::StopMembers).await;
        }
        let provider_duration =
            self.tasks.iter().map(|task| task.scaling.provider.max_duration()).max().unwrap_or_default();
        let grace = STOP_GRACE + provider_duration;
        let leaving = self.leaving.drain(..).map(|(_, handle)| handle);
        let handles: Vec<JoinHandle<()>> =
            self.tasks.drain(..).map(|task| task.handle).chain(leaving).collect();
        let completion = async {
            for handle in handles {
                let _ = handle.await;
            }
        };
        if timeout(grace, completion).await.is_err() {
            tracing::warn!(
                "some members that were started have not been stopped within {} s",
                grace.as_secs()
            );
        }
    }
}
