//! Notices for the fleet's other balancers about local checks, ejections and loads; applies the notices of
//! others.
//!
//! Notices of other balancers are not forwarded: an ejection that follows another balancer's is marked as
//! such.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::fleet::{Listed, ListedMember, News, What};
use plimsoll_brain::{Event, EventKind, Load, Time};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::control::{Control, Finding};
use crate::inner::{Inner, lock};

/// The number of notices that may wait for the receiver; more are dropped.
pub(crate) const NOTICES: usize = 4096;

/// A notice for the other balancers.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The group.
    pub group: Arc<str>,
    /// The member, as configured.
    pub member: Arc<str>,
    /// The subject of the notice.
    pub what: Did,
}

/// The subject of a notice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Did {
    /// A local health check ended; `true` if it passed.
    Checked(bool),
    /// The member was ejected for this time, because of local observations; zero if it was taken back.
    Ejected(Duration),
    /// This load of the member was reported to this balancer.
    Loaded(Load),
}

/// The channel to the task that notifies the other balancers, if there is one.
#[derive(Default)]
pub(crate) struct Fellows(Option<mpsc::Sender<Notice>>);

impl Fellows {
    /// Returns the receiver of further notices.
    pub(crate) fn listen(&mut self) -> mpsc::Receiver<Notice> {
        let (sender, receiver) = mpsc::channel(NOTICES);
        self.0 = Some(sender);
        receiver
    }

    /// Sends a notice about an event, if it is of interest to others.
    pub(crate) fn happened(&self, event: &Event) {
        let Some(member) = &event.member else { return };
        let input = |name: &str| event.inputs.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        let lasts = match event.kind {
            EventKind::Ejected if input("told").is_none() => input("seconds").unwrap_or_default(),
            EventKind::Readmitted => 0.0,
            _ => return,
        };
        let lasts = Duration::try_from_secs_f64(lasts).unwrap_or_default();
        self.tell(&event.group, member, Did::Ejected(lasts));
    }

    /// Sends a notice that a health check ended.
    pub(crate) fn checked(&self, finding: &Finding) {
        self.tell(&finding.group, &finding.name, Did::Checked(finding.outcome.is_ok()));
    }

    /// Sends a notice that a load was reported.
    pub(crate) fn loaded(&self, group: &str, member: &str, load: Load) {
        if self.0.is_some() {
            self.tell(&group.into(), &member.into(), Did::Loaded(load));
        }
    }

    fn tell(&self, group: &Arc<str>, member: &Arc<str>, what: Did) {
        if let Some(sender) = &self.0 {
            let (group, member) = (Arc::clone(group), Arc::clone(member));
            let _ = sender.try_send(Notice { group, member, what });
        }
    }
}

/// Returns the groups and members.
pub(crate) fn listed(control: &Control) -> Vec<Listed> {
    let group = |(name, ruled): (&Arc<str>, &crate::control::Ruled)| {
        let checked = ruled.settings.probe.is_some();
        let members = ruled.analyzer.members().map(|(_, spec, vitals)| ListedMember {
            name: Arc::clone(&spec.name),
            vitals: Arc::clone(vitals),
            limit: spec.limit,
            checked,
        });
        let company = Arc::clone(ruled.analyzer.company());
        Listed { name: Arc::clone(name), company, members: members.collect() }
    };
    control.groups.iter().map(group).collect()
}

/// Returns the number of requests that wait for a member below its limits, for groups whose members have one.
pub(crate) fn waiting(control: &Control) -> Vec<(Arc<str>, u32)> {
    let limited = control.groups.iter().filter(|(_, ruled)| {
        ruled.settings.max_rate.is_some()
            || ruled.analyzer.members().any(|(_, spec, _)| spec.limit < u32::MAX)
    });
    limited.map(|(name, ruled)| (Arc::clone(name), ruled.group.room.queued())).collect()
}

/// Applies the notice of another balancer (`by`), or a result of all balancers' notices.
pub(crate) fn take(inner: &Inner, news: &News, by: &str, now: Time) {
    let mut control = lock(&inner.control);
    let Some(ruled) = control.groups.get_mut(&news.group) else { return };
    let Some(id) = ruled.id(&news.member) else { return };
    match news.what {
        What::Duty(mine) => {
            if let Some(duty) = lock(&inner.probes).duty(&news.group, id) {
                duty.charge(mine);
            }
        }
        What::Checked { passed, age, .. } => {
            let Some(duty) = lock(&inner.probes).duty(&news.group, id) else { return };
            if duty.mine() && passed {
                // The local checks decide about members that are checked here.
                return;
            }
            if ruled.analyzer.handle_told_check(id, passed, by, now) {
                let now = Instant::now();
                duty.tell(now.checked_sub(age).unwrap_or(now));
            } else {
                duty.call();
            }
            control.with(&news.group, now, |_| {});
        }
        What::Ejected { left, .. } => {
            control.with(&news.group, now, |analyzer| analyzer.handle_told(id, left, by, now));
        }
        What::Loaded { value, of_host, age } => {
            let load = Load { value, at: now - age, of_host };
            control.with(&news.group, now, |analyzer| analyzer.handle_told_load(id, load));
        }
        What::Room => ruled.group.room.ring_all(),
    }
    drop(control);
    inner.wake.notify_one();
}
