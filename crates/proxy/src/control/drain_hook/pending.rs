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
    begun: u64,
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
        number: u32,
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
        let (number, share) = (alert.held?, alert.shed.share);
        let member = Arc::clone(&self.analyzer.members().find(|(known, ..)| *known == id)?.1.name);
        self.hooks.in_progress.insert(id).then(|| PendingHook {
            group: Arc::clone(&self.group.name),
            member,
            epoch: self.hooks.next_epoch(),
            cause: HookCause::Alert { id, number, share },
            settings: settings.clone(),
        })
    }
}

impl HookTracker {
    fn next_epoch(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }
}

impl ControlPlane {
    /// Returns the notification before a member is drained; `None` if the group has no hook, or the member is
    /// already draining.
    pub(crate) fn pending_drain_hook(&mut self, group: Option<&str>, member: &str) -> Option<PendingHook> {
        let group = self.group_of(group, member).ok()?;
        let ruled = self.groups.get_mut(&group)?;
        let (id, settings) = (ruled.id(member)?, ruled.settings.hand_over.clone()?);
        if ruled.analyzer.is_draining(id) {
            return None;
        }
        let (member, epoch) = (member.into(), ruled.hooks.next_epoch());
        Some(PendingHook { group, member, epoch, cause: HookCause::Drain, settings })
    }

    /// Records the result of a notification, and releases the alert if it was about one.
    pub(crate) fn finish_hook(&mut self, due: &PendingHook, outcome: Result<(), String>, now: Time) {
        let Some(ruled) = self.groups.get_mut(&due.group) else { return };
        let (well, ill, mut inputs) = match due.cause {
            HookCause::Drain => (" before it is drained", "it is drained all the same", Vec::new()),
            HookCause::Alert { id, number, share } => {
                ruled.hooks.in_progress.remove(&id);
                let inputs = vec![("share".into(), f64::from(share)), ("decision".into(), f64::from(number))];
                match ruled.analyzer.release_alert(id, number, now) {
                    true => (" before some of them go", "they go all the same", inputs),
                    false => ("; the alert is over by now", "the alert is over by now", inputs),
                }
            }
        };
        inputs.push(("failed".into(), if outcome.is_ok() { 0.0 } else { 1.0 }));
        let why = match outcome {
            Ok(()) => {
                ruled.hooks.succeeded += 1;
                format!("its sessions were handed over{well}")
            }
            Err(why) => {
                ruled.hooks.failed += 1;
                format!("its sessions were not handed over ({why}); {ill}")
            }
        };
        let (group, member) = (Arc::clone(&due.group), Some(Arc::clone(&due.member)));
        self.event_log.write(Event { kind: EventKind::HandedOver, group, member, why, inputs });
        ruled.publish_changes(self.cores, now, &mut self.event_log);
    }
}

/// Sends notifications about alerts, each in a task of its own. To be called in the control thread.
pub(crate) fn start_hooks(inner: &Arc<EngineShared>, due: Vec<PendingHook>) {
    for one in due {
        tokio::spawn(run_hook(Arc::clone(inner), one));
    }
}

/// Sends one notification, and then releases its sessions.
async fn run_hook(inner: Arc<EngineShared>, due: PendingHook) {
    let due = Arc::new(due);
    let outcome = send_in_time(&inner, &due).await;
    lock(&inner.control).finish_hook(&due, outcome, inner.clock.now());
    // The next plan may be due.
    inner.wake.notify_one();
}

async fn send_in_time(inner: &EngineShared, due: &Arc<PendingHook>) -> Result<(), String> {
    let timeout = due.settings.timeout;
    let end = Instant::now() + timeout;
    let Ok(Ok(permit)) = timeout_at(end, Arc::clone(&inner.hook_permits).acquire_owned()).await else {
        return Err(format!("{MAX_CONCURRENT} others were told of for {timeout:?}"));
    };
    let due = Arc::clone(due);
    let told = tokio::task::spawn_blocking(move || {
        let outcome = due.send();
        drop(permit);
        outcome
    });
    match timeout_at(end, told).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(stopped)) => Err(stopped.to_string()),
        // The lookup of a name has no time limit of its own.
        Err(_) => Err(format!("no answer in {timeout:?}")),
    }
}
