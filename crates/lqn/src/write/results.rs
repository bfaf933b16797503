//! What results of a model look like in LQNX: the numbers of [`Findings`] under the names of the schema.

use crate::model::{ActivityId, Body, EntryId, Model, TaskId};
use crate::{Estimate, Findings};

/// A model's results.
pub(super) struct Results<'m> {
    model: &'m Model,
    found: &'m Findings,
    /// Calls and forwards that lead to each entry.
    asked: Vec<u32>,
}

/// Attributes: means, and halves of intervals where there are any.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) means: Vec<(&'static str, String)>,
    pub(super) halves: Vec<(&'static str, String)>,
}

impl Shown {
    fn with(mut self, name: &'static str, estimate: Estimate) -> Self {
        self.means.push((name, estimate.mean.to_string()));
        // What never varies has an interval of rounding errors.
        if estimate.half_width > 1e-9 * estimate.mean.abs() {
            self.halves.push((name, estimate.half_width.to_string()));
        }
        self
    }

    fn and(self, name: &'static str, estimate: Option<Estimate>) -> Self {
        match estimate {
            Some(estimate) => self.with(name, estimate),
            None => self,
        }
    }
}

impl<'m> Results<'m> {
    pub(super) fn of(model: &'m Model, found: &'m Findings) -> Self {
        let mut asked = vec![0; model.entries.len()];
        for call in model.activities.iter().flat_map(|activity| &activity.calls) {
            asked[call.entry.0] += 1;
        }
        for (to, _) in model.entries.iter().flat_map(|entry| &entry.forwards) {
            asked[to.0] += 1;
        }
        Self { model, found, asked }
    }

    /// Cores in use; not divided by how many there are.
    pub(super) fn processor(&self, place: usize) -> Shown {
        Shown::default().with("utilization", self.found.processors[place].busy)
    }

    /// Of clients, "utilization" is how many of them do not think.
    pub(super) fn task(&self, id: TaskId) -> Shown {
        let own = &self.found.tasks[id.0];
        let work = self.model.activities.iter().enumerate().filter(|(_, activity)| activity.task == id);
        let work = work.map(|(place, _)| self.work(ActivityId(place))).collect::<Option<Vec<_>>>();
        Shown::default()
            .with("throughput", own.throughput)
            .with("utilization", own.busy)
            .and("proc-utilization", work.map(sum))
    }

    /// Service times of phases stand with the phases; of a graph, that until the answer stands here.
    pub(super) fn entry(&self, id: EntryId) -> Shown {
        let own = &self.found.entries[id.0];
        let entry = &self.model.entries[id.0];
        let task = &self.model.tasks[entry.task.0];
        let throughput = if task.is_client() { self.rounds(id) } else { Some(own.throughput) };
        let mut shown = Shown::default().and("throughput", throughput);
        match &entry.body {
            Body::Phases(phases) => {
                let time = phases.iter().map(|phase| self.time(*phase)).collect::<Option<Vec<_>>>();
                let work = phases.iter().map(|phase| self.work(*phase)).collect::<Option<Vec<_>>>();
                shown = shown.and("utilization", time.map(sum)).and("proc-utilization", work.map(sum));
            }
            Body::Graph(_) => {
                let only = task.entries.len() == 1;
                let response = self.found.tasks[entry.task.0].response.filter(|_| only);
                let service = if task.is_client() { response } else { Some(own.service) };
                shown = shown.and("phase1-service-time", service);
            }
        }
        // By its name a time to wait, in all tools the whole time until the answer.
        shown.and("open-wait-time", own.response)
    }

    /// How often a client begins with an entry.
    fn rounds(&self, id: EntryId) -> Option<Estimate> {
        let entry = &self.model.entries[id.0];
        let start = match &entry.body {
            Body::Phases(phases) => phases.first()?,
            Body::Graph(start) => start,
        };
        let known = self.found.activities.get(start.0).map(|activity| activity.throughput);
        known.or_else(|| Some(self.found.tasks[entry.task.0].throughput))
    }

    /// Of a phase its whole time, with that at the processor and in calls.
    pub(super) fn activity(&self, id: ActivityId) -> Shown {
        let own = self.found.activities.get(id.0);
        Shown::default()
            .and("service-time", own.map(|own| own.service).or_else(|| self.first_phase(id)))
            .and("throughput", own.map(|own| own.throughput))
            .and("utilization", self.time(id))
            .and("proc-utilization", self.work(id))
    }

    /// Where activities were not counted each: a first phase takes as long as its entry until it answers.
    fn first_phase(&self, id: ActivityId) -> Option<Estimate> {
        let begins = |body: &Body| matches!(body, Body::Phases(phases) if phases.first() == Some(&id));
        let place = self.model.entries.iter().position(|entry| begins(&entry.body))?;
        let task = &self.model.tasks[self.model.entries[place].task.0];
        if task.is_client() {
            let only = task.entries.len() == 1;
            return self.found.tasks[self.model.entries[place].task.0].response.filter(|_| only);
        }
        Some(self.found.entries[place].service)
    }

    /// Threads that are at it, in the mean.
    fn time(&self, id: ActivityId) -> Option<Estimate> {
        let own = self.found.activities.get(id.0)?;
        Some(Estimate { mean: own.throughput.mean * own.service.mean, half_width: 0.0 })
    }

    /// Cores that are at it, in the mean.
    fn work(&self, id: ActivityId) -> Option<Estimate> {
        let own = self.found.activities.get(id.0)?;
        let activity = &self.model.activities[id.0];
        let speed = self.model.processors[self.model.tasks[activity.task.0].processor.0].speed;
        Some(Estimate { mean: own.throughput.mean * activity.demand / speed, half_width: 0.0 })
    }

    /// Is it known how long a call of this entry waits? The time is known for the entry, over all who ask for it.
    pub(super) fn has_call(&self, to: EntryId) -> bool {
        self.asked[to.0] == 1 && self.model.entries[to.0].arrivals == 0.0
    }

    pub(super) fn call(&self, to: EntryId) -> Shown {
        Shown::default().with("waiting", self.found.entries[to.0].waiting)
    }
}

/// Without an interval: those of parts do not add up.
fn sum(parts: Vec<Estimate>) -> Estimate {
    Estimate { mean: parts.iter().map(|part| part.mean).sum(), half_width: 0.0 }
}
