//! When somebody is told that sessions are about to go, and what comes of it.
//!
//! Of a drain, in the thread of whoever wants the member drained, which waits. Of an alert, by the control thread: the
//! brain holds the alert when it is raised (`Alert::held`), so that no plan asks a session to go; a report that leaves an
//! alert held is followed by one call, and its end releases the alert. A member is told of once at a time: an alert
//! that is raised while somebody is still told of the one before is told of with the first report after that.
//!
//! A call is a thread that waits, so there are [`AT_ONCE`] at most. Whoever finds no thread in time has its alert
//! released as if nobody had answered: the time that sessions stay for is bounded, whatever happens.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_brain::{Event, EventKind, MemberId, Time};
use tokio::time::{Instant, timeout_at};

use super::{Told, tell};
use crate::HandOverSettings;
use crate::control::{Control, Ruled};
use crate::inner::{Inner, lock};

/// Alerts that are told of at once, over all groups.
pub(crate) const AT_ONCE: usize = 16;

/// What a group has told so far.
#[derive(Default)]
pub(crate) struct HandOvers {
    /// Answered with 2xx.
    pub(crate) done: u64,
    /// All others that ended.
    pub(crate) failed: u64,
    begun: u64,
    /// Members whose alert somebody is told of now.
    telling: BTreeSet<MemberId>,
}

/// Somebody is to be told.
pub(crate) struct Due {
    group: Arc<str>,
    member: Arc<str>,
    epoch: u64,
    cause: Cause,
    settings: HandOverSettings,
}

enum Cause {
    Drain,
    /// The alert of this number asks for this part of the sessions.
    Alert {
        id: MemberId,
        number: u32,
        share: f32,
    },
}

impl Due {
    /// Tells, and waits for the answer: where waiting is allowed.
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
    /// Who is to be told that sessions leave a member under alert, if anybody is: to be asked after each report.
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
    /// Who is to be told before a member is drained; `None` if nobody is, or it is draining already.
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

    /// They have been told, or could not be. An alert is released with it.
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

/// Tells of alerts, each in a task of its own: to be called in the control thread.
pub(crate) fn begin(inner: &Arc<Inner>, due: Vec<Due>) {
    for one in due {
        tokio::spawn(follow(Arc::clone(inner), one));
    }
}

/// Tells of one, and lets sessions go.
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
        // Looking a name up takes as long as it likes.
        Err(_) => Err(format!("no answer in {timeout:?}")),
    }
}
