//! How long things take, from what they do and how long they wait: bottom-up, from those that call nobody.
//!
//! Means add up. Variances are those of random sums: a stochastic activity makes a geometric number of calls, so that
//! its time is one piece of work and a geometric number of calls with a piece each.

use super::State;
use super::forks::kth;
use super::net::{Net, Row, Side, is_graph};
use crate::model::{Model, Next, Order};

/// A time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// Part of the mean that is waiting for others.
    pub(super) waits: f64,
}

/// Of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// From when a thread takes the request until it is answered or forwarded.
    pub(super) first: Span,
    /// From then until the thread is free.
    pub(super) second: Span,
    /// From when the request comes until whoever it is forwarded to has answered.
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

    /// Squared coefficient of variation.
    pub(super) fn variation(self) -> f64 {
        if self.mean > 0.0 { self.variance / (self.mean * self.mean) } else { 0.0 }
    }
}

/// One of several by their probabilities; what is left to 1 takes no time.
fn mixture(ways: impl Iterator<Item = (f64, Span)>) -> Span {
    let (mut mean, mut square, mut waits) = (0.0, 0.0, 0.0);
    for (part, span) in ways {
        mean += part * span.mean;
        square += part * (span.variance + span.mean * span.mean);
        waits += part * span.waits;
    }
    Span { mean, variance: (square - mean * mean).max(0.0), waits }
}

/// Times of all rows by the waiting in `state`.
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

/// How long one piece of work takes, with the waiting for it.
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

/// How long an activity takes on one side of the answer.
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

/// From the beginning of an activity to a join, or to the end.
#[derive(Clone, Copy, Default)]
struct Path<'m> {
    span: Span,
    /// Probability that it answers on the way, and the time until then by that probability.
    answers: f64,
    until: f64,
    waited: f64,
    /// The join at which it stops: how many it wants, and what follows.
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
        // One that leads back to where it began is not there yet, and counts as the end.
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
