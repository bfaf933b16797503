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
    pub(super) fn of(model: &'m Model, results: &'m ModelResults) -> Self {
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
                reached_activities(model, start).into_iter().for_each(|activity| shared[activity.0] += 1);
            }
        }
        let mut count = 0;
        let mut reserve = |length: usize| {
            count += length;
            count - length
        };
        let first_calls = model.activities.iter().map(|activity| reserve(activity.calls.len())).collect();
        let first_forwards = model.entries.iter().map(|entry| reserve(entry.forwards.len())).collect();
        Self { model, found: results, call_counts, called: first_calls, first_forwards, shared }
    }

    /// Returns the number of busy cores, not divided by their total.
    pub(super) fn processor(&self, index: usize) -> ResultAttributes {
        ResultAttributes::default().with("utilization", self.found.processors[index].busy)
    }

    /// Returns the results of a task. For clients, "utilization" is the number that do not think.
    pub(super) fn task(&self, id: TaskId) -> ResultAttributes {
        let task_results = &self.found.tasks[id.0];
        let activities = self.model.activities.iter().enumerate().filter(|(_, activity)| activity.task == id);
        let activity_work =
            activities.map(|(index, _)| self.work(ActivityId(index))).collect::<Option<Vec<_>>>();
        let totals = ResultAttributes::default()
            .with("throughput", task_results.throughput)
            .with("utilization", task_results.busy);
        let phases = ["phase1-utilization", "phase2-utilization", "phase3-utilization"];
        let with_phases = phases.into_iter().enumerate().fold(totals, |accumulated, (number, name)| {
            // With a single phase its utilization is that of the task.
            accumulated.with_optional(name, self.phase(id, number).filter(|_| self.phase(id, 1).is_some()))
        });
        with_phases.with_optional("proc-utilization", activity_work.map(sum_estimates))
    }

    /// Returns the mean number of threads in the phase with this index, from 0; `None` if no entry has it or
    /// if one has a graph.
    fn phase(&self, id: TaskId, number: usize) -> Option<Estimate> {
        let mut phase_times = Vec::new();
        for entry in &self.model.tasks[id.0].entries {
            let EntryBody::Phases(phases) = &self.model.entries[entry.0].body else { return None };
            if let Some(phase) = phases.get(number) {
                phase_times.push(self.time(*phase)?);
            }
        }
        (!phase_times.is_empty()).then(|| sum_estimates(phase_times))
    }

    /// Returns the results of an entry. Service times of phases are with the phases; those of a graph are
    /// here, before and after the reply.
    pub(super) fn entry(&self, id: EntryId) -> ResultAttributes {
        let entry_results = &self.found.entries[id.0];
        let entry = &self.model.entries[id.0];
        let task = &self.model.tasks[entry.task.0];
        let throughput = if task.is_client() { self.cycle_rate(id) } else { Some(entry_results.throughput) };
        let mut attributes = ResultAttributes::default().with_optional("throughput", throughput);
        match &entry.body {
            EntryBody::Phases(phases) => {
                let time = phases.iter().map(|phase| self.time(*phase)).collect::<Option<Vec<_>>>();
                let work = phases.iter().map(|phase| self.work(*phase)).collect::<Option<Vec<_>>>();
                attributes = attributes
                    .with_optional("utilization", time.map(sum_estimates))
                    .with_optional("proc-utilization", work.map(sum_estimates));
            }
            EntryBody::Graph(start) => {
                let task_results = &self.found.tasks[entry.task.0];
                let is_only_entry = task.entries.len() == 1;
                let graph_activities = reached_activities(self.model, *start).into_iter();
                let activity_work = graph_activities
                    .map(|activity| self.work(activity).filter(|_| self.shared[activity.0] == 1));
                attributes = attributes
                    .with_optional("utilization", Some(task_results.busy).filter(|_| is_only_entry))
                    .with_optional(
                        "proc-utilization",
                        activity_work.collect::<Option<Vec<_>>>().map(sum_estimates),
                    );
                let response = task_results.response.filter(|_| is_only_entry);
                let service = if task.is_client() { response } else { Some(entry_results.service) };
                attributes = attributes.with_optional("phase1-service-time", service);
                // The time for which a thread is held after the reply.
                let rate = entry_results.throughput.mean;
                if is_only_entry && !task.is_client() && rate > 0.0 {
                    let second_phase_mean = task_results.busy.mean / rate - entry_results.service.mean;
                    let second_phase = Estimate { mean: second_phase_mean, half_width: 0.0 };
                    let tolerance = 1e-6 * entry_results.service.mean
                        + task_results.busy.half_width / rate
                        + entry_results.service.half_width;
                    attributes = attributes.with_optional(
                        "phase2-service-time",
                        Some(second_phase).filter(|estimate| estimate.mean > tolerance),
                    );
                }
            }
        }
        // The name means a waiting time; in all tools it is the whole time until the reply.
        attributes.with_optional("open-wait-time", entry_results.response)
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
        let activity_results = self.found.activities.get(id.0);
        ResultAttributes::default()
            .with_optional("service-time", activity_results.map(|results| results.service))
            .with_optional("throughput", activity_results.map(|results| results.throughput))
            .with_optional("utilization", self.time(id))
            .with_optional("proc-utilization", self.work(id))
    }

    /// Returns the mean number of threads in an activity.
    fn time(&self, id: ActivityId) -> Option<Estimate> {
        let results = self.found.activities.get(id.0)?;
        Some(Estimate { mean: results.throughput.mean * results.service.mean, half_width: 0.0 })
    }

    /// Returns the mean number of cores used by an activity.
    fn work(&self, id: ActivityId) -> Option<Estimate> {
        let results = self.found.activities.get(id.0)?;
        let activity = &self.model.activities[id.0];
        let speed = self.model.processors[self.model.tasks[activity.task.0].processor.0].speed;
        Some(Estimate { mean: results.throughput.mean * activity.demand / speed, half_width: 0.0 })
    }

    /// Returns the waiting time of a call. For a call without a reply it is the whole time until the end of
    /// service, like the `open-wait-time` of requests from outside.
    pub(super) fn call(&self, from: ActivityId, number: usize) -> Option<ResultAttributes> {
        let Call { entry: to, waits, .. } = *self.model.activities[from.0].calls.get(number)?;
        let call_results = self.found.calls.get(self.called[from.0] + number);
        let waiting = if waits {
            self.waiting(to).or_else(|| call_results.map(|results| results.waiting))
        } else {
            self.time_to_service_end(to).or_else(|| call_results.map(|results| results.response))
        };
        Some(ResultAttributes::default().with("waiting", waiting?))
    }

    /// Returns the waiting time of a forwarded request.
    pub(super) fn forward(&self, from: EntryId, number: usize) -> Option<ResultAttributes> {
        let (to, _) = *self.model.entries[from.0].forwards.get(number)?;
        let call_results = self.found.calls.get(self.first_forwards[from.0] + number);
        let waiting = self.waiting(to).or_else(|| call_results.map(|results| results.waiting));
        Some(ResultAttributes::default().with("waiting", waiting?))
    }

    /// Returns the waiting time of an entry with a single source, which is that of the source.
    fn waiting(&self, to: EntryId) -> Option<Estimate> {
        let is_only_call = self.call_counts[to.0] == 1 && self.model.entries[to.0].arrivals == 0.0;
        is_only_call.then(|| self.found.entries[to.0].waiting)
    }

    /// Returns the time until the end of service of an entry with a single source; `None` if it forwards.
    fn time_to_service_end(&self, to: EntryId) -> Option<Estimate> {
        let (waiting, service) = (self.waiting(to)?, self.found.entries[to.0].service);
        let total = Estimate {
            mean: waiting.mean + service.mean,
            half_width: waiting.half_width + service.half_width,
        };
        self.model.entries[to.0].forwards.is_empty().then_some(total)
    }
}

/// Returns the activities of a graph that begins with this one, each once.
fn reached_activities(model: &Model, start: ActivityId) -> Vec<ActivityId> {
    let mut reached = Vec::new();
    let mut seen = vec![false; model.activities.len()];
    let mut pending = vec![start];
    while let Some(activity) = pending.pop() {
        if std::mem::replace(&mut seen[activity.0], true) {
            continue;
        }
        reached.push(activity);
        let mut successors = &model.activities[activity.0].successors;
        while let Successors::Join { then, .. } = successors {
            successors = then;
        }
        match successors {
            Successors::End | Successors::Join { .. } => {}
            Successors::Or(branches) => pending.extend(branches.iter().map(|(_, to)| *to)),
            Successors::And(branches) => pending.extend(branches),
            Successors::Loop { bodies, exit } => {
                pending.extend(bodies.iter().map(|(_, to)| *to));
                pending.extend(exit);
            }
        }
    }
    reached
}

/// Adds estimates, without an interval, because those of the parts are not additive.
fn sum_estimates(estimates: Vec<Estimate>) -> Estimate {
    Estimate { mean: estimates.iter().map(|estimate| estimate.mean).sum(), half_width: 0.0 }
}
