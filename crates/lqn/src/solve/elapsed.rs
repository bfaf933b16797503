//! Computes service times from demands and waiting times, bottom-up from the entries without calls.
//!
//! Means are added. Variances are those of random sums: a stochastic activity makes a geometric number of
//! calls. So its time is one slice of work, and a geometric number of calls with one slice each.

use super::State;
use super::forks::kth;
use super::net::{Net, Row, Side, is_graph};
use crate::model::{Model, Next, Order};

/// A random time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// The part of the mean that is waiting for others.
    pub(super) waits: f64,
}

/// The times of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// The time from the start on a thread until the reply or the forwarding.
    pub(super) first: Span,
    /// The time from then until the thread is free.
    pub(super) second: Span,
    /// The time from the arrival until the reply, including forwarding.
    pub(super) response: Span,
}

impl Span {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            mean: self.mean + other.mean,
            variance: self.variance + other.variance,
            waits: self.waits + other.waits,
        }
    }

    /// Returns the squared coefficient of variation.
    pub(super) fn variation(self) -> f64 {
        if self.mean > 0.0 { self.variance / (self.mean * self.mean) } else { 0.0 }
    }
}

/// Returns the mixture of several times by their probabilities; the rest of the probability takes no time.
fn mixture(ways: impl Iterator<Item = (f64, Span)>) -> Span {
    let (mut mean, mut square, mut waits) = (0.0, 0.0, 0.0);
    for (part, span) in ways {
        mean += part * span.mean;
        square += part * (span.variance + span.mean * span.mean);
        waits += part * span.waits;
    }
    Span { mean, variance: (square - mean * mean).max(0.0), waits }
}

/// Computes the times of all rows from the waiting times in `state`.
pub(super) fn work_out(net: &Net<'_>, state: &mut State) {
    for place in net.order.iter().rev() {
        let row = &net.rows[*place];
        let (first, second) =
            if is_graph(net.model, row.entry) { graph(net, state, row) } else { phases(net, state, row) };
        let slot = &state.slots[row.queue];
        let queue = Span { mean: slot.wait, variance: slot.wait_variance, waits: slot.wait };
        let mut response = queue.and(first);
        if !row.forwards.is_empty() {
            response = response
                .and(mixture(row.forwards.iter().map(|(to, part)| (*part, state.times[*to].response))));
        }
        state.times[*place] = Times { first, second, response };
    }
}

fn phases(net: &Net<'_>, state: &State, row: &Row) -> (Span, Span) {
    let mut both = [Span::default(); 2];
    for step in &row.steps {
        for (side, span) in step.sides.iter().zip(&mut both) {
            if side.times > 0.0 {
                *span = span.and(activity(net, state, step.activity, side));
            }
        }
    }
    (both[0], both[1])
}

/// Returns the time of one slice of work, including its waiting.
pub(super) fn piece(net: &Net<'_>, state: &State, place: usize, slot: usize) -> Span {
    let own = &net.model.activities[place];
    let processor = &net.model.processors[net.model.tasks[own.task.0].processor.0];
    let calls: f64 = own.calls.iter().map(|call| call.count).sum();
    let slice = own.demand / processor.speed / (calls + 1.0);
    if slice <= 0.0 {
        return Span::default();
    }
    let slot = &state.slots[slot];
    let waits = slot.wait + slice * slot.stretch;
    let long = slice * (1.0 + slot.stretch);
    Span {
        mean: slice + waits,
        variance: own.variation * long * long + slice * slice * slot.stretch + slot.wait_variance,
        waits,
    }
}

/// Returns the time of an activity before or after the reply.
pub(super) fn activity(net: &Net<'_>, state: &State, place: usize, side: &Side) -> Span {
    let own = &net.model.activities[place];
    let piece = piece(net, state, place, side.work);
    let all: f64 = side.calls.iter().map(|(_, count, _)| count).sum();
    let answer = |row: &usize, waits: bool| if waits { state.times[*row].response } else { Span::default() };
    let think = Span { mean: own.think, variance: own.think * own.think, waits: 0.0 };
    let (mut mean, mut variance, mut waits) =
        (piece.mean * (1.0 + all), piece.variance * (1.0 + all), piece.waits * (1.0 + all));
    for (row, count, waited) in &side.calls {
        let span = answer(row, *waited);
        mean += count * span.mean;
        waits += count * span.waits;
        if own.order != Order::Stochastic {
            variance += count * span.variance;
        }
    }
    if own.order == Order::Stochastic && all > 0.0 {
        let one = mixture(side.calls.iter().map(|(row, count, waited)| (count / all, answer(row, *waited))));
        variance += all * one.variance + all * (all + 1.0) * (piece.mean + one.mean).powi(2);
    }
    think.and(Span { mean, variance, waits })
}

/// The path from the start of an activity to a join or to the end.
#[derive(Clone, Copy, Default)]
struct Path<'m> {
    span: Span,
    /// The probability of a reply on the path, and the time until then multiplied by it.
    answers: f64,
    until: f64,
    waited: f64,
    /// The join at the end of the path: its quorum and its successor.
    stop: Option<(u32, &'m Next)>,
}

impl<'m> Path<'m> {
    fn and(self, other: Self) -> Self {
        let span = self.span.and(other.span);
        if self.answers >= 1.0 {
            return Self { span, stop: other.stop, ..self };
        }
        Self {
            span,
            answers: self.answers + other.answers,
            until: self.until + other.until + other.answers * self.span.mean,
            waited: self.waited + other.waited + other.answers * self.span.waits,
            stop: other.stop,
        }
    }
}

struct Paths<'a, 'm> {
    model: &'m Model,
    places: &'a std::collections::HashMap<usize, usize>,
    known: Vec<Path<'m>>,
}

impl<'m> Paths<'_, 'm> {
    fn of(&self, activity: usize) -> Path<'m> {
        // An activity that leads back is not known yet, and counts as the end.
        self.places.get(&activity).and_then(|place| self.known.get(*place)).copied().unwrap_or_default()
    }

    fn follow(&self, next: &'m Next) -> Path<'m> {
        match next {
            Next::End => Path::default(),
            Next::Or(ways) => {
                let paths: Vec<(f64, Path<'m>)> =
                    ways.iter().map(|(part, to)| (*part, self.of(to.0))).collect();
                let sum = |what: &dyn Fn(&Path<'m>) -> f64| {
                    paths.iter().map(|(part, path)| part * what(path)).sum::<f64>()
                };
                Path {
                    span: mixture(paths.iter().map(|(part, path)| (*part, path.span))),
                    answers: sum(&|path| path.answers),
                    until: sum(&|path| path.until),
                    waited: sum(&|path| path.waited),
                    stop: paths.iter().find_map(|(_, path)| path.stop),
                }
            }
            Next::And(ways) => {
                let paths: Vec<Path<'m>> = ways.iter().map(|to| self.of(to.0)).collect();
                let stop = paths.iter().find_map(|path| path.stop);
                let wanted = stop.map_or(paths.len(), |(wanted, _)| wanted as usize);
                let spans: Vec<Span> = paths.iter().map(|path| path.span).collect();
                let answers = paths.iter().find(|path| path.answers > 0.0);
                let fork = Path {
                    span: kth(&spans, wanted),
                    answers: answers.map_or(0.0, |path| path.answers),
                    until: answers.map_or(0.0, |path| path.until),
                    waited: answers.map_or(0.0, |path| path.waited),
                    stop: None,
                };
                match stop {
                    Some((_, then)) => fork.and(self.follow(then)),
                    None => fork,
                }
            }
            Next::Join { wanted, then, .. } => Path { stop: Some((*wanted, &**then)), ..Path::default() },
            Next::Loop { bodies, exit } => {
                let turns: f64 = bodies.iter().map(|(count, _)| count).sum();
                let mut span = Span::default();
                if turns > 0.0 {
                    let one = mixture(bodies.iter().map(|(count, to)| (count / turns, self.of(to.0).span)));
                    span = Span {
                        mean: turns * one.mean,
                        variance: turns * one.variance + turns * (turns + 1.0) * one.mean * one.mean,
                        waits: turns * one.waits,
                    };
                }
                let all = Path { span, ..Path::default() };
                exit.map_or(all, |exit| all.and(self.of(exit.0)))
            }
        }
    }
}

fn graph(net: &Net<'_>, state: &State, row: &Row) -> (Span, Span) {
    let model = net.model;
    let client = model.tasks[row.task].is_client();
    let mut paths =
        Paths { model, places: &net.places[row.entry], known: Vec::with_capacity(row.steps.len()) };
    for step in &row.steps {
        let side = if step.sides[0].times > 0.0 { &step.sides[0] } else { &step.sides[1] };
        let span = if side.times > 0.0 { activity(net, state, step.activity, side) } else { Span::default() };
        let own = &paths.model.activities[step.activity];
        let mut path = Path { span, ..Path::default() };
        if !client && own.replies.iter().any(|entry| entry.0 == row.entry) {
            (path.answers, path.until, path.waited) = (1.0, span.mean, span.waits);
        }
        let path = path.and(paths.follow(&own.next));
        paths.known.push(path);
    }
    let whole = paths.known.last().copied().unwrap_or_default();
    if whole.answers <= 1e-9 || whole.span.mean <= 0.0 {
        return (whole.span, Span::default());
    }
    let mean = (whole.until / whole.answers).min(whole.span.mean);
    let waits = (whole.waited / whole.answers).min(whole.span.waits).min(mean);
    let part = mean / whole.span.mean;
    let first = Span { mean, variance: whole.span.variance * part, waits };
    let second = Span {
        mean: whole.span.mean - mean,
        variance: whole.span.variance * (1.0 - part),
        waits: (whole.span.waits - waits).max(0.0),
    };
    (first, second)
}
