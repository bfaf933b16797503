//! The results of a history, and the laws that apply to it.

use super::composition::{Composition, Traffic};
use super::world::GONE;

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// It had not ended at the end of the run.
    Open,
    InTime,
    Late,
    Failed,
    Refused,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) came: f64,
    pub(crate) batch: usize,
    pub(crate) fate: Fate,
    pub(crate) latency: f64,
    pub(crate) member: usize,
}

/// A rejection.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) at: f64,
    pub(crate) waited: f64,
    /// The longest recent time that all members together needed for their work.
    pub(crate) debt: f64,
    /// The state of the first one's balancer.
    pub(crate) shown: String,
}

/// An ejection.
#[derive(Clone, Debug)]
pub(crate) struct Ejected {
    pub(crate) at: f64,
    pub(crate) who: usize,
    pub(crate) member: usize,
    /// The seconds that the member needs for its requests.
    pub(crate) backlog: f64,
    pub(crate) why: String,
}

/// The results of one run.
pub(crate) struct Record {
    pub(crate) rows: Vec<Row>,
    pub(crate) refused: Vec<Refused>,
    pub(crate) ejected: Vec<Ejected>,
    /// Whether the balancers were restarted while nothing was in flight.
    pub(crate) restarted: bool,
    /// The start, the end, and the busy seconds before.
    phases: Vec<(f64, f64, f64)>,
    busy: f64,
}

/// A breach of a law.
#[derive(Clone, Debug)]
pub(crate) struct Breach {
    pub(crate) law: &'static str,
    pub(crate) how: String,
}

/// The parts of the busy time from which a standard error is computed.
const BATCHES: usize = 40;

/// The seconds after an idle time in which a running process is compared with a fresh one.
pub(crate) const FRESH: f64 = 4.0;

/// The standard errors beyond which a difference is no chance: once in 30,000 by a normal distribution, once
/// in 5,000 by Student's with 39 degrees of freedom. Two laws are tested so.
const CERTAIN: f64 = 4.0;

/// The minimum part of the clients' patience that all members together need for their work if a request may
/// be rejected. Requests behind a limit wait for 0.7 of it, and unequal members do not work as one.
const CAUSE: f64 = 0.35;

/// The part of the clients' patience after which a waiting request may be rejected: the rest is for its
/// answer.
const WAITED: f64 = 0.7;

/// The seconds of work at a member from which it is useless for the time being: half of those for which it
/// must answer nothing.
const JAMMED: f64 = 0.5;

impl Record {
    pub(crate) fn new(composition: &Composition) -> Self {
        let mut busy = 0.0;
        let mut phases = Vec::new();
        for phase in composition.phases.iter().filter(|phase| phase.traffic != Traffic::Idle) {
            phases.push((phase.begin, phase.end, busy));
            busy += phase.end - phase.begin;
        }
        Self { rows: Vec::new(), refused: Vec::new(), ejected: Vec::new(), restarted: false, phases, busy }
    }

    /// Records the arrival of a request; returns its row.
    pub(crate) fn begin(&mut self, came: f64) -> usize {
        let phase = self.phases.partition_point(|(begin, ..)| *begin <= came).saturating_sub(1);
        let (begin, end, before) = self.phases[phase];
        let busy = before + (came.min(end) - begin).max(0.0);
        let batch = ((busy / self.busy * BATCHES as f64) as usize).min(BATCHES - 1);
        let latency = f64::INFINITY;
        self.rows.push(Row { came, batch, fate: Fate::Open, latency, member: usize::MAX });
        self.rows.len() - 1
    }

    /// Marks the requests still open as not in time.
    pub(crate) fn end(&mut self) {
        self.rows
            .iter_mut()
            .filter(|row| row.fate != Fate::InTime)
            .for_each(|row| row.latency = f64::INFINITY);
    }

    pub(crate) fn share(&self, fate: Fate) -> f64 {
        self.rows.iter().filter(|row| row.fate == fate).count() as f64 / self.rows.len().max(1) as f64
    }

    fn quantile(rows: &[&Row], part: f64) -> f64 {
        let mut latencies: Vec<f64> = rows.iter().map(|row| row.latency).collect();
        if latencies.is_empty() {
            return 0.0;
        }
        let place = ((latencies.len() - 1) as f64 * part) as usize;
        *latencies.select_nth_unstable_by(place, f64::total_cmp).1
    }
}

/// Returns the difference of two means of 0 and 1 over batches, `ours` less `theirs`, and its standard error.
fn differ(
    ours: &[&Row],
    theirs: &[&Row],
    of: impl Fn(&Row) -> usize,
    one: [&dyn Fn(&Row) -> bool; 2],
) -> (f64, f64) {
    let mut batches = [[0.0; 2]; BATCHES];
    for (place, (rows, one)) in [ours, theirs].into_iter().zip(one).enumerate() {
        let each = 1.0 / rows.len().max(1) as f64;
        rows.iter().filter(|row| one(row)).for_each(|row| batches[of(row)][place] += each);
    }
    let parts = batches.map(|[ours, theirs]| ours - theirs);
    let mean = parts.iter().sum::<f64>() / BATCHES as f64;
    let squares: f64 = parts.iter().map(|part| (part - mean).powi(2)).sum();
    let count = BATCHES as f64;
    (mean * count, (squares * count / (count - 1.0)).sqrt())
}

/// Returns the excess of our bad requests, if it is more than `allowed` and chance.
fn worse(
    ours: &[&Row],
    theirs: &[&Row],
    of: impl Fn(&Row) -> usize,
    one: [&dyn Fn(&Row) -> bool; 2],
    allowed: f64,
) -> Option<f64> {
    let (more, error) = differ(ours, theirs, of, one);
    // A handful proves nothing, whatever its error.
    let few = 5.0 / ours.len().max(1) as f64;
    (more > allowed + CERTAIN * error + few).then_some(more)
}

/// Checks law 1: at least as many are answered in time as by `least_request`, less 0.5 %, and the 99th
/// percentile is at most 1.1 times.
pub(crate) fn no_harm(composition: &Composition, ours: &Record, theirs: &Record, breaches: &mut Vec<Breach>) {
    let all: [Vec<&Row>; 2] = [ours.rows.iter().collect(), theirs.rows.iter().collect()];
    let late: &dyn Fn(&Row) -> bool = &|row| row.fate != Fate::InTime;
    if let Some(more) = worse(&all[0], &all[1], |row| row.batch, [late, late], 0.005) {
        let shares = |record: &Record| {
            let share = |fate| 100.0 * record.share(fate);
            let [late, failed, refused] = [Fate::Late, Fate::Failed, Fate::Refused].map(share);
            format!("{late:.2} % late, {failed:.2} % failed, {refused:.2} % refused")
        };
        let how =
            format!("{:.2} % more not in time: {}; theirs {}", 100.0 * more, shares(ours), shares(theirs));
        breaches.push(Breach { law: "1 answered", how });
    }
    let overload = ours.refused.iter().any(|refused| refused.debt >= CAUSE * composition.patience);
    let usual = Record::quantile(&all[1], 0.99);
    if overload || !usual.is_finite() {
        return;
    }
    // Times within the resolution of the brain's clock are equal.
    let most = 1.1 * usual + 1e-3;
    let (slow, theirs_slow) = (|row: &Row| row.latency > most, |row: &Row| row.latency > usual);
    if let Some(more) = worse(&all[0], &all[1], |row| row.batch, [&slow, &theirs_slow], 0.0) {
        let p99 = Record::quantile(&all[0], 0.99);
        let how = format!(
            "p99 {:.2} ms, theirs {:.2} ms; {:.2} % more above",
            1e3 * p99,
            1e3 * usual,
            100.0 * more
        );
        breaches.push(Breach { law: "1 p99", how });
    }
}

/// Checks laws 2 and 4: a request is rejected only after its wait, or if all members together were overloaded
/// within the last two seconds.
pub(crate) fn refusals(composition: &Composition, ours: &Record, breaches: &mut Vec<Breach>) {
    let patience = composition.patience;
    let caused = |refused: &Refused| refused.debt >= CAUSE * patience || refused.waited >= WAITED * patience;
    let wrong: Vec<_> = ours.refused.iter().filter(|refused| !caused(refused)).collect();
    if let Some(first) = wrong.first() {
        let stopped = ours.rows.iter().filter(|row| row.fate == Fate::Refused).count();
        let how = format!(
            "{} of {stopped} refusals of {} without a cause in the last {GONE} s; the first at {:.3} after \
             {:.3} s of {patience:.2}, debt {:.3} s: {}",
            wrong.len(),
            ours.rows.len(),
            first.at,
            first.waited,
            first.debt,
            first.shown
        );
        breaches.push(Breach { law: "2, 4 refusals", how });
    }
}

/// Checks laws 5 and 6: only a member that is faulty, or too full for its answers to be in time, is ejected.
pub(crate) fn ejections(composition: &Composition, ours: &Record, breaches: &mut Vec<Breach>) {
    let faulty = |ejected: &&Ejected| {
        composition.troubles.iter().any(|trouble| {
            trouble.what.faulty() == Some(ejected.member)
                && (trouble.begin..trouble.end + GONE + composition.patience).contains(&ejected.at)
        })
    };
    let jammed = |ejected: &&Ejected| ejected.backlog >= JAMMED;
    let wrong: Vec<_> = ours.ejected.iter().filter(|ejected| !faulty(ejected) && !jammed(ejected)).collect();
    if let Some(Ejected { at, who, member, backlog, why }) = wrong.first() {
        let count = wrong.len();
        let how = format!(
            "{count} healthy members ejected; {member} at {at:.3} by {who}, backlog {backlog:.3} s: {why}"
        );
        breaches.push(Breach { law: "5 ejections", how });
    }
}

/// Checks law 6: a faulty member costs at most its own share for two seconds, its requests in flight, and
/// those needed to detect and to retry it.
pub(crate) fn faults(composition: &Composition, ours: &Record, breaches: &mut Vec<Breach>) {
    for trouble in &composition.troubles {
        let Some(faulty) = trouble.what.faulty() else { continue };
        let (begin, end) = (trouble.begin, trouble.end);
        let there = composition.members.iter().filter(|kind| kind.joins <= begin && begin < kind.leaves);
        let (capacity, count) =
            there.fold((0.0, 0.0), |(sum, count), kind| (sum + kind.capacity(), count + 1.0));
        let share = f64::max(composition.members[faulty].capacity() / capacity, 1.0 / count);
        let rows = || ours.rows.iter();
        let had = rows()
            .filter(|row| {
                row.member == faulty
                    && row.came < begin
                    && row.came + row.latency.min(composition.patience) >= begin
            })
            .count() as f64;
        let came = rows().filter(|row| (begin..begin + GONE).contains(&row.came)).count() as f64;
        let lost = rows()
            .filter(|row| row.member == faulty && row.fate != Fate::InTime && row.fate != Fate::Refused)
            .filter(|row| (begin - composition.patience..end).contains(&row.came))
            .count() as f64;
        // Detection takes three requests of each balancer, and each trial one. Trials come at 2, 4, 8 s.
        let found_out = composition.balancers as f64 * (3.0 + (end - begin).log2().max(0.0));
        let share = came * share;
        if lost > had + share + CERTAIN * share.sqrt() + found_out {
            let how = format!(
                "{lost} lost to {:?} from {begin:.1} to {end:.1} s; it had {had}, its share of 2 s is \
                 {share:.0}, {found_out:.0} to find it out",
                trouble.what
            );
            breaches.push(Breach { law: "6 fault", how });
        }
    }
}

/// Checks law 7: after an idle time the results are as good as with a fresh process.
pub(crate) fn memory(ours: &Record, fresh: &Record, since: f64, breaches: &mut Vec<Breach>) {
    let after = |row: &&Row| (since..since + FRESH).contains(&row.came);
    let all: [Vec<&Row>; 2] =
        [ours.rows.iter().filter(after).collect(), fresh.rows.iter().filter(after).collect()];
    if !fresh.restarted || all.iter().any(|rows| rows.len() < 100) {
        return;
    }
    let of = |row: &Row| (((row.came - since) / FRESH * BATCHES as f64) as usize).min(BATCHES - 1);
    let late: &dyn Fn(&Row) -> bool = &|row| row.fate != Fate::InTime;
    if let Some(more) = worse(&all[0], &all[1], of, [late, late], 0.005) {
        let how = format!("{:.2} % more not in time after the idle time until {since:.1} s", 100.0 * more);
        breaches.push(Breach { law: "7 answered", how });
    }
    let usual = Record::quantile(&all[1], 0.95);
    if !usual.is_finite() {
        return;
    }
    let most = 1.1 * usual + 1e-3;
    let (slow, theirs_slow) = (|row: &Row| row.latency > most, |row: &Row| row.latency > usual);
    if let Some(more) = worse(&all[0], &all[1], of, [&slow, &theirs_slow], 0.0) {
        let how = format!(
            "p95 {:.2} ms, fresh {:.2} ms after the idle time until {since:.1} s; {:.2} % more above",
            1e3 * Record::quantile(&all[0], 0.95),
            1e3 * usual,
            100.0 * more
        );
        breaches.push(Breach { law: "7 p95", how });
    }
}
