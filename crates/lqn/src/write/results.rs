//! The results of a model in LQNX: the numbers of [`ModelResults`] under the names of the schema.

use crate::model::{ActivityId, Call, EntryBody, EntryId, Model, Successors, TaskId};
use crate::{Estimate, ModelResults};

/// The results of a model.
pub(super) struct LqnxResults<'m> {
    model: &'m Model,
    found: &'m ModelResults,
    /// The number of calls and forwards to each entry.
    call_counts: Vec<u32>,
    /// The index of each activity's calls, and of each entry's forwards, in [`ModelResults::calls`].
    called: Vec<usize>,
    first_forwards: Vec<usize>,
    /// The number of entries that lead to each activity of a graph.
    shared: Vec<u32>,
}

/// The attributes of an element: means, and half-widths where there are intervals.
#[derive(Default)]
pub(super) struct ResultAttributes {
    pub(super) means: Vec<(&'static str, String)>,
    pub(super) half_widths: Vec<(&'static str, String)>,
}

impl ResultAttributes {
    fn with(mut self, name: &'static str, estimate: Estimate) -> Self {
        self.means.push((name, estimate.mean.to_string()));
        // A constant has an interval of rounding errors.
        if estimate.half_width > 1e-9 * estimate.mean.abs() {
            self.half_widths.push((name, estimate.half_width.to_string()));
        }
        self
    }

    fn with_optional(self, name: &'static str, estimate: Option<Estimate>) -> Self {
        match estimate {
            Some(estimate) => self.with(name, estimate),
            None => self,
        }
    }
}

impl<'m> LqnxResults<'m> {
    pub(super) fn of(model: &'m Model, found: &'m ModelResults) -> Self {
        let mut call_counts = vec![0; model.entries.len()];
        for call in model.activities.iter().flat_map(|activity| &activity.calls) {
            call_counts[call.entry.0] += 1;
        }
        for (to, _) in model.entries.iter().flat_map(|entry| &entry.forwards) {
            call_counts[to.0] += 1;
        }
        let mut shared = vec![0; model.activities.len()];
        for entry in &model.entries {
            if let EntryBody::Graph(start) = entry.body {
                reached(model, start).into_iter().for_each(|own| shared[own.0] += 1);
            }
        }
        let mut count = 0;
        let mut places = |own: usize| {
            count += own;
            count - own
        };
        let called = model.activities.iter().map(|own| places(own.calls.len())).collect();
        let first_forwards = model.entries.iter().map(|own| places(own.forwards.len())).collect();
        Self { model, found, call_counts, called, first_forwards, shared }
    }

    /// Returns the number of busy cores, not divided by their total.
    pub(super) fn processor(&self, place: usize) -> ResultAttributes {
        ResultAttributes::default().with("utilization", self.found.processors[place].busy)
    }

    /// Returns the results of a task. For clients, "utilization" is the number that do not think.
    pub(super) fn task(&self, id: TaskId) -> ResultAttributes {
        let own = &self.found.tasks[id.0];
        let work = self.model.activities.iter().enumerate().filter(|(_, activity)| activity.task == id);
        let work = work.map(|(place, _)| self.work(ActivityId(place))).collect::<Option<Vec<_>>>();
        let shown =
            ResultAttributes::default().with("throughput", own.throughput).with("utilization", own.busy);
        let phases = ["phase1-utilization", "phase2-utilization", "phase3-utilization"];
        let shown = phases.into_iter().enumerate().fold(shown, |shown, (number, name)| {
            // With a single phase its utilization is that of the task.
            shown.with_optional(name, self.phase(id, number).filter(|_| self.phase(id, 1).is_some()))
        });
        shown.with_optional("proc-utilization", work.map(sum))
    }

    /// Returns the mean number of threads in the phase with this index, from 0; `None` if no entry has it or
    /// if one has a graph.
    fn phase(&self, id: TaskId, number: usize) -> Option<Estimate> {
        let mut parts = Vec::new();
        for entry in &self.model.tasks[id.0].entries {
            let EntryBody::Phases(phases) = &self.model.entries[entry.0].body else { return None };
            if let Some(phase) = phases.get(number) {
                parts.push(self.time(*phase)?);
            }
        }
        (!parts.is_empty()).then(|| sum(parts))
    }

    /// Returns the results of an entry. Service times of phases are with the phases; those of a graph are
    /// here, before and after the reply.
    pub(super) fn entry(&self, id: EntryId) -> ResultAttributes {
        let own = &self.found.entries[id.0];
        let entry = &self.model.entries[id.0];
        let task = &self.model.tasks[entry.task.0];
        let throughput = if task.is_client() { self.cycle_rate(id) } else { Some(own.throughput) };
        let mut shown = ResultAttributes::default().with_optional("throughput", throughput);
        match &entry.body {
            EntryBody::Phases(phases) => {
                let time = phases.iter().map(|phase| self.time(*phase)).collect::<Option<Vec<_>>>();
                let work = phases.iter().map(|phase| self.work(*phase)).collect::<Option<Vec<_>>>();
                shown = shown
                    .with_optional("utilization", time.map(sum))
                    .with_optional("proc-utilization", work.map(sum));
            }
            EntryBody::Graph(start) => {
                let found = &self.found.tasks[entry.task.0];
                let only = task.entries.len() == 1;
                let work = reached(self.model, *start).into_iter();
                let work = work.map(|own| self.work(own).filter(|_| self.shared[own.0] == 1));
                shown = shown
                    .with_optional("utilization", Some(found.busy).filter(|_| only))
                    .with_optional("proc-utilization", work.collect::<Option<Vec<_>>>().map(sum));
                let response = found.response.filter(|_| only);
                let service = if task.is_client() { response } else { Some(own.service) };
                shown = shown.with_optional("phase1-service-time", service);
                // The time for which a thread is held after the reply.
                let rate = own.throughput.mean;
                if only && !task.is_client() && rate > 0.0 {
                    let after = found.busy.mean / rate - own.service.mean;
                    let after = Estimate { mean: after, half_width: 0.0 };
                    let room =
                        1e-6 * own.service.mean + found.busy.half_width / rate + own.service.half_width;
                    shown =
                        shown.with_optional("phase2-service-time", Some(after).filter(|own| own.mean > room));
                }
            }
        }
        // The name means a waiting time; in all tools it is the whole time until the reply.
        shown.with_optional("open-wait-time", own.response)
    }

    /// Returns the rate at which clients start with an entry.
    fn cycle_rate(&self, id: EntryId) -> Option<Estimate> {
        let entry = &self.model.entries[id.0];
        let start = match &entry.body {
            EntryBody::Phases(phases) => phases.first()?,
            EntryBody::Graph(start) => start,
        };
        self.found.activities.get(start.0).map(|activity| activity.throughput)
    }

    /// Returns the results of an activity. The time includes waiting for the processor and calls.
    pub(super) fn activity(&self, id: ActivityId) -> ResultAttributes {
        let own = self.found.activities.get(id.0);
        ResultAttributes::default()
            .with_optional("service-time", own.map(|own| own.service))
            .with_optional("throughput", own.map(|own| own.throughput))
            .with_optional("utilization", self.time(id))
            .with_optional("proc-utilization", self.work(id))
    }

    /// Returns the mean number of threads in an activity.
    fn time(&self, id: ActivityId) -> Option<Estimate> {
        let own = self.found.activities.get(id.0)?;
        Some(Estimate { mean: own.throughput.mean * own.service.mean, half_width: 0.0 })
    }

    /// Returns the mean number of cores used by an activity.
    fn work(&self, id: ActivityId) -> Option<Estimate> {
        let own = self.found.activities.get(id.0)?;
        let activity = &self.model.activities[id.0];
        let speed = self.model.processors[self.model.tasks[activity.task.0].processor.0].speed;
        Some(Estimate { mean: own.throughput.mean * activity.demand / speed, half_width: 0.0 })
    }

    /// Returns the waiting time of a call. For a call without a reply it is the whole time until the end of
    /// service, like the `open-wait-time` of requests from outside.
    pub(super) fn call(&self, from: ActivityId, number: usize) -> Option<ResultAttributes> {
        let Call { entry: to, waits, .. } = *self.model.activities[from.0].calls.get(number)?;
        let known = self.found.calls.get(self.called[from.0] + number);
        let waiting = if waits {
            self.waiting(to).or_else(|| known.map(|own| own.waiting))
        } else {
            self.time_to_service_end(to).or_else(|| known.map(|own| own.response))
        };
        Some(ResultAttributes::default().with("waiting", waiting?))
    }

    /// Returns the waiting time of a forwarded request.
    pub(super) fn forward(&self, from: EntryId, number: usize) -> Option<ResultAttributes> {
        let (to, _) = *self.model.entries[from.0].forwards.get(number)?;
        let known = self.found.calls.get(self.first_forwards[from.0] + number);
        let waiting = self.waiting(to).or_else(|| known.map(|own| own.waiting));
        Some(ResultAttributes::default().with("waiting", waiting?))
    }

    /// Returns the waiting time of an entry with a single source, which is that of the source.
    fn waiting(&self, to: EntryId) -> Option<Estimate> {
        let only = self.call_counts[to.0] == 1 && self.model.entries[to.0].arrivals == 0.0;
        only.then(|| self.found.entries[to.0].waiting)
    }

    /// Returns the time until the end of service of an entry with a single source; `None` if it forwards.
    fn time_to_service_end(&self, to: EntryId) -> Option<Estimate> {
        let (waiting, service) = (self.waiting(to)?, self.found.entries[to.0].service);
        let whole = Estimate {
            mean: waiting.mean + service.mean,
            half_width: waiting.half_width + service.half_width,
        };
        self.model.entries[to.0].forwards.is_empty().then_some(whole)
    }
}

/// Returns the activities of a graph that begins with this one, each once.
fn reached(model: &Model, start: ActivityId) -> Vec<ActivityId> {
    let mut all = Vec::new();
    let mut seen = vec![false; model.activities.len()];
    let mut open = vec![start];
    while let Some(own) = open.pop() {
        if std::mem::replace(&mut seen[own.0], true) {
            continue;
        }
        all.push(own);
        let mut next = &model.activities[own.0].successors;
        while let Successors::Join { then, .. } = next {
            next = then;
        }
        match next {
            Successors::End | Successors::Join { .. } => {}
            Successors::Or(ways) => open.extend(ways.iter().map(|(_, to)| *to)),
            Successors::And(ways) => open.extend(ways),
            Successors::Loop { bodies, exit } => {
                open.extend(bodies.iter().map(|(_, to)| *to));
                open.extend(exit);
            }
        }
    }
    all
}

/// Adds estimates, without an interval, because those of the parts are not additive.
fn sum(parts: Vec<Estimate>) -> Estimate {
    Estimate { mean: parts.iter().map(|part| part.mean).sum(), half_width: 0.0 }
}
