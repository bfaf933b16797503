//! Pending drain hook notifications: when they are sent, and their results.
//!
//! A drain's notification is sent in the caller's thread, which waits. An alert's is sent by the control
//! thread. The brain holds a new alert (`Alert::held`), so that no plan asks a session to move. Each report
//! that leaves an alert held leads to one notification, whose end releases the alert. Each member has one
//! notification at a time. If an alert is raised during another notification, its own follows the first
//! report after that.
//!
//! A notification blocks a thread, so at most [`MAX_CONCURRENT`] run at a time. If none is free in time, the
//! alert is released as if there were no response: the time for which sessions stay is bounded in every case.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_brain::{Event, EventKind, MemberId, Time};
use tokio::time::{Instant, timeout_at};

use super::{DrainNotice, send};
use crate::DrainHookSettings;
use crate::control::engine_shared::EngineShared;
use crate::control::{ControlPlane, GroupState};
use crate::runtime::sync::lock;

/// The maximum number of concurrent notifications about alerts, over all groups.
pub(crate) const MAX_CONCURRENT: usize = 16;

/// The notifications of a group so far.
#[derive(Default)]
pub(crate) struct HookTracker {
    /// Those with a 2xx response.
    pub(crate) succeeded: u64,
    /// All others that ended.
    pub(crate) failed: u64,
    last_epoch: u64,
    /// The members with a notification about their alert in progress.
    in_progress: BTreeSet<MemberId>,
}

/// A pending notification.
pub(crate) struct PendingHook {
    group: Arc<str>,
    member: Arc<str>,
    epoch: u64,
    cause: HookCause,
    settings: DrainHookSettings,
}

enum HookCause {
    Drain,
    /// The alert with this number asks for this share of the sessions.
    Alert {
        id: MemberId,
        decision: u32,
        share: f32,
    },
}

impl PendingHook {
    /// Sends the notification and waits for the response. To be called where blocking is allowed.
    ///
    /// # Errors
    /// See [`send`].
    pub(crate) fn send(&self) -> Result<(), String> {
        let (share, reason) = match self.cause {
            HookCause::Drain => (1.0, "drain"),
            HookCause::Alert { share, .. } => (share, "alert"),
        };
        let Self { group, member, epoch, settings, .. } = self;
        send(settings, &DrainNotice { group, member, share, epoch: *epoch, reason })
    }
}

impl GroupState {
    /// Returns the notification that sessions will leave a member under alert, if one is due. To be called
    /// after each report.
    pub(crate) fn pending_alert_hook(&mut self, id: MemberId) -> Option<PendingHook> {
        let settings = self.settings.hand_over.as_ref()?;
        let alert = self.analyzer.alert(id)?;
        let (decision, share) = (alert.held?, alert.shed.share);
        let member = Arc::clone(&self.analyzer.members().find(|(candidate, ..)| *candidate == id)?.1.name);
        self.hooks.in_progress.insert(id).then(|| PendingHook {
            group: Arc::clone(&self.group.name),
            member,
            epoch: self.hooks.next_epoch(),
            cause: HookCause::Alert { id, decision, share },
            settings: settings.clone(),
        })
    }
}

impl HookTracker {
    fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }
}

impl ControlPlane {
    /// Returns the notification before a member is drained; `None` if the group has no hook, or the member is
    /// already draining.
    pub(crate) fn pending_drain_hook(&mut self, group: Option<&str>, member: &str) -> Option<PendingHook> {
        let group = self.group_of(group, member).ok()?;
        let group_state = self.groups.get_mut(&group)?;
        let (id, settings) = (group_state.id(member)?, group_state.settings.hand_over.clone()?);
        if group_state.analyzer.is_draining(id) {
            return None;
        }
        let (member, epoch) = (member.into(), group_state.hooks.next_epoch());
        Some(PendingHook { group, member, epoch, cause: HookCause::Drain, settings })
    }

    /// Records the result of a notification, and releases the alert if it was about one.
    pub(crate) fn finish_hook(&mut self, hook: &PendingHook, outcome: Result<(), String>, now: Time) {
        let Some(group_state) = self.groups.get_mut(&hook.group) else { return };
        let (success_suffix, failure_suffix, mut inputs) = match hook.cause {
            HookCause::Drain => (" before it is drained", "it is drained all the same", Vec::new()),
            HookCause::Alert { id, decision, share } => {
                group_state.hooks.in_progress.remove(&id);
                let inputs =
                    vec![("share".into(), f64::from(share)), ("decision".into(), f64::from(decision))];
                match group_state.analyzer.release_alert(id, decision, now) {
                    true => (" before some of them go", "they go all the same", inputs),
                    false => ("; the alert is over by now", "the alert is over by now", inputs),
                }
            }
        };
        inputs.push(("failed".into(), if outcome.is_ok() { 0.0 } else { 1.0 }));
        let message = match outcome {
            Ok(()) => {
                group_state.hooks.succeeded += 1;
                format!("its sessions were handed over{success_suffix}")
            }
            Err(error) => {
                group_state.hooks.failed += 1;
                format!("its sessions were not handed over ({error}); {failure_suffix}")
            }
        };
        let (group, member) = (Arc::clone(&hook.group), Some(Arc::clone(&hook.member)));
        self.event_log.write(Event { kind: EventKind::HandedOver, group, member, why: message, inputs });
        group_state.publish_changes(self.cores, now, &mut self.event_log);
    }
}

/// Sends notifications about alerts, each in a task of its own. To be called in the control thread.
pub(crate) fn start_hooks(inner: &Arc<EngineShared>, hooks: Vec<PendingHook>) {
    for hook in hooks {
        tokio::spawn(run_hook(Arc::clone(inner), hook));
    }
}

/// Sends one notification, and then releases its sessions.
async fn run_hook(inner: Arc<EngineShared>, hook: PendingHook) {
    let hook = Arc::new(hook);
    let outcome = send_in_time(&inner, &hook).await;
    lock(&inner.control).finish_hook(&hook, outcome, inner.clock.now());
    // The next plan may be due.
    inner.wake.notify_one();
}

async fn send_in_time(inner: &EngineShared, hook: &Arc<PendingHook>) -> Result<(), String> {
    let timeout = hook.settings.timeout;
    let deadline = Instant::now() + timeout;
    let Ok(Ok(permit)) = timeout_at(deadline, Arc::clone(&inner.hook_permits).acquire_owned()).await else {
        return Err(format!("{MAX_CONCURRENT} others were told of for {timeout:?}"));
    };
    let hook = Arc::clone(hook);
    let sending = tokio::task::spawn_blocking(move || {
        let outcome = hook.send();
        drop(permit);
        outcome
    });
    match timeout_at(deadline, sending).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(error.to_string()),
        // The lookup of a name has no time limit of its own.
        Err(_) => Err(format!("no answer in {timeout:?}")),
    }
}
