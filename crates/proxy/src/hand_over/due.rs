//! Pending drain hook notifications: when they are sent, and their results.
//!
//! A drain's notification is sent in the caller's thread, which waits. An alert's is sent by the control
//! thread. The brain holds a new alert (`Alert::held`), so that no plan asks a session to move. Each report
//! that leaves an alert held leads to one notification, whose end releases the alert. Each member has one
//! notification at a time. If an alert is raised during another notification, its own follows the first
//! report after that.
//!
//! A notification blocks a thread, so at most [`AT_ONCE`] run at a time. If none is free in time, the alert
//! is released as if there were no response: the time for which sessions stay is bounded in every case.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_brain::{Event, EventKind, MemberId, Time};
use tokio::time::{Instant, timeout_at};

use super::{Told, tell};
use crate::HandOverSettings;
use crate::control::{Control, Ruled};
use crate::inner::{Inner, lock};

/// The maximum number of concurrent notifications about alerts, over all groups.
pub(crate) const AT_ONCE: usize = 16;

/// The notifications of a group so far.
#[derive(Default)]
pub(crate) struct HandOvers {
    /// Those with a 2xx response.
    pub(crate) done: u64,
    /// All others that ended.
    pub(crate) failed: u64,
    begun: u64,
    /// The members with a notification about their alert in progress.
    telling: BTreeSet<MemberId>,
}

/// A pending notification.
pub(crate) struct Due {
    group: Arc<str>,
    member: Arc<str>,
    epoch: u64,
    cause: Cause,
    settings: HandOverSettings,
}

enum Cause {
    Drain,
    /// The alert with this number asks for this share of the sessions.
    Alert {
        id: MemberId,
        number: u32,
        share: f32,
    },
}

impl Due {
    /// Sends the notification and waits for the response. To be called where blocking is allowed.
    ///
    /// # Errors
    /// See [`tell`].
    pub(crate) fn tell(&self) -> Result<(), String> {
        let (share, reason) = match self.cause {
            Cause::Drain => (1.0, "drain"),
            Cause::Alert { share, .. } => (share, "alert"),
        };
        let Self { group, member, epoch, settings, .. } = self;
        tell(settings, &Told { group, member, share, epoch: *epoch, reason })
    }
}

impl Ruled {
    /// Returns the notification that sessions will leave a member under alert, if one is due. To be called
    /// after each report.
    pub(crate) fn hand_over_of_alert(&mut self, id: MemberId) -> Option<Due> {
        let settings = self.settings.hand_over.as_ref()?;
        let alert = self.analyzer.alert(id)?;
        let (number, share) = (alert.held?, alert.shed.share);
        let member = Arc::clone(&self.analyzer.members().find(|(known, ..)| *known == id)?.1.name);
        self.hand_overs.telling.insert(id).then(|| Due {
            group: Arc::clone(&self.group.name),
            member,
            epoch: self.hand_overs.next(),
            cause: Cause::Alert { id, number, share },
            settings: settings.clone(),
        })
    }
}

impl HandOvers {
    fn next(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }
}

impl Control {
    /// Returns the notification before a member is drained; `None` if the group has no hook, or the member is
    /// already draining.
    pub(crate) fn hand_over_of_drain(&mut self, group: Option<&str>, member: &str) -> Option<Due> {
        let group = self.group_of(group, member).ok()?;
        let ruled = self.groups.get_mut(&group)?;
        let (id, settings) = (ruled.id(member)?, ruled.settings.hand_over.clone()?);
        if ruled.analyzer.drains(id) {
            return None;
        }
        let (member, epoch) = (member.into(), ruled.hand_overs.next());
        Some(Due { group, member, epoch, cause: Cause::Drain, settings })
    }

    /// Records the result of a notification, and releases the alert if it was about one.
    pub(crate) fn handed_over(&mut self, due: &Due, outcome: Result<(), String>, now: Time) {
        let Some(ruled) = self.groups.get_mut(&due.group) else { return };
        let (well, ill, mut inputs) = match due.cause {
            Cause::Drain => (" before it is drained", "it is drained all the same", Vec::new()),
            Cause::Alert { id, number, share } => {
                ruled.hand_overs.telling.remove(&id);
                let inputs = vec![("share".into(), f64::from(share)), ("decision".into(), f64::from(number))];
                match ruled.analyzer.release(id, number, now) {
                    true => (" before some of them go", "they go all the same", inputs),
                    false => ("; the alert is over by now", "the alert is over by now", inputs),
                }
            }
        };
        inputs.push(("failed".into(), if outcome.is_ok() { 0.0 } else { 1.0 }));
        let why = match outcome {
            Ok(()) => {
                ruled.hand_overs.done += 1;
                format!("its sessions were handed over{well}")
            }
            Err(why) => {
                ruled.hand_overs.failed += 1;
                format!("its sessions were not handed over ({why}); {ill}")
            }
        };
        let (group, member) = (Arc::clone(&due.group), Some(Arc::clone(&due.member)));
        self.journal.write(Event { kind: EventKind::HandedOver, group, member, why, inputs });
        ruled.settle(self.cores, now, &mut self.journal);
    }
}

/// Sends notifications about alerts, each in a task of its own. To be called in the control thread.
pub(crate) fn begin(inner: &Arc<Inner>, due: Vec<Due>) {
    for one in due {
        tokio::spawn(follow(Arc::clone(inner), one));
    }
}

/// Sends one notification, and then releases its sessions.
async fn follow(inner: Arc<Inner>, due: Due) {
    let due = Arc::new(due);
    let outcome = in_time(&inner, &due).await;
    lock(&inner.control).handed_over(&due, outcome, inner.clock.now());
    // The next plan may be due.
    inner.wake.notify_one();
}

async fn in_time(inner: &Inner, due: &Arc<Due>) -> Result<(), String> {
    let timeout = due.settings.timeout;
    let end = Instant::now() + timeout;
    let Ok(Ok(permit)) = timeout_at(end, Arc::clone(&inner.hand_overs).acquire_owned()).await else {
        return Err(format!("{AT_ONCE} others were told of for {timeout:?}"));
    };
    let due = Arc::clone(due);
    let told = tokio::task::spawn_blocking(move || {
        let outcome = due.tell();
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
