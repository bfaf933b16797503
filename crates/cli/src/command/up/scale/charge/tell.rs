//! The output of a charge: events, and the state of its group.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::scale::crew::{News, Stage};
use plimsoll_brain::scale::{Decision, Reason};
use plimsoll_brain::status::{ScaledMember, ScalerStatus};
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::scaler::Hands;

use super::Charge;
use crate::config::count;
use crate::running::scaled::written;

impl Charge {
    pub(super) fn say(&mut self, news: News) {
        let seconds = |time: Duration| time.as_secs_f64();
        match news {
            News::Serves(_, took) => self.scaler.started(took),
            News::Ended(member, why) => self.tell(EventKind::MemberEnded, Some(member), why, Vec::new()),
            News::Failed(why, pause) => {
                let why = format!(
                    "{}: {why}; nobody is started for {:.1} s",
                    self.scaling.kind.name(),
                    seconds(pause)
                );
                let failures = f64::from(self.crew.failures().0);
                let inputs =
                    vec![("failures".to_owned(), failures), ("pause_seconds".to_owned(), seconds(pause))];
                self.tell(EventKind::ScalerFailed, None, why, inputs);
            }
            News::Recovered(failures) => {
                let why = format!("{} works again, after {failures} failures", self.scaling.kind.name());
                self.tell(
                    EventKind::ScalerRecovered,
                    None,
                    why,
                    vec![("failures".to_owned(), f64::from(failures))],
                );
            }
        }
    }

    pub(super) fn tell(
        &self,
        kind: EventKind,
        member: Option<Arc<str>>,
        why: String,
        inputs: Vec<(String, f64)>,
    ) {
        self.running.engine().tell(Event {
            kind,
            group: Arc::clone(&self.scaling.group),
            member,
            why,
            inputs,
        });
    }

    /// Publishes its state.
    pub(super) fn show(&self) {
        // A reader of advice takes an unknown value for the least.
        if self.decided.is_none() && matches!(self.hands, Hands::None) {
            return;
        }
        let rules = self.scaler.rules();
        let now = self.now();
        let (failures, failure) = self.crew.failures();
        let failure = failure.or(self.count.trouble.as_deref());
        let started = self.crew.hands().iter().map(|hand| ScaledMember {
            index: hand.index,
            id: hand.id.clone(),
            member: hand.member.as_deref().map(str::to_owned),
            stage: hand.stage,
            since_seconds: now.since(hand.since).as_secs_f64(),
        });
        let coming =
            self.crew.hands().iter().filter(|hand| matches!(hand.stage, Stage::Asked | Stage::Coming));
        let mut status = ScalerStatus {
            provider: self.scaling.kind.name().to_owned(),
            target: written(rules.target),
            desired: rules.min,
            coming: coming.count() as u32,
            min: rules.min,
            max: rules.max,
            dry_run: self.scaling.dry_run,
            paused: self.scaler.paused(),
            start_seconds: self.scaler.start_seconds(),
            failures,
            failure: failure.map(str::to_owned),
            pause_seconds: self.crew.pause(now).as_secs_f64(),
            started: started.collect(),
            ..ScalerStatus::default()
        };
        if let Some((decision, at)) = &self.decided {
            (status.desired, status.members) = (decision.desired, decision.have);
            status.why = decision.why.clone();
            status.reason = decision.reason;
            status.inputs = decision.inputs.iter().cloned().collect();
            status.age_seconds = Some(at.elapsed().as_secs_f64());
            status.actions = actions(decision);
        }
        if let Some(other) = &self.office.other {
            status.reason = Reason::Elsewhere;
            status.why = format!("{other} decides; seen from here: {}", status.why);
            status.decides = Some(other.clone());
            status.actions.clear();
        } else if failures > 0 && status.desired != status.members {
            status.reason = Reason::Failing;
        }
        self.running.scaled().say(&self.scaling.group, Some(status));
    }
}

/// Returns the actions of a decision, one line each.
fn actions(decision: &Decision) -> Vec<String> {
    let start = (decision.add > 0).then(|| format!("start {}", members(decision.add)));
    let remove = decision.remove.iter().filter(|name| !name.is_empty());
    start.into_iter().chain(remove.map(|name| format!("drain {name}, then stop it"))).collect()
}

pub(super) fn members(number: u32) -> String {
    count(number as usize, "member")
}
