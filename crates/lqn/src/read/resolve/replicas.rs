//! Determines the fan-out and fan-in of replicated tasks.
//!
//! Let a task with `r` replicas call a task with `s` replicas, each of the former `o` of the latter, each of
//! which has `i` callers. Then `r * o = s * i`. A missing fan-out follows from the fan-in, or is 1; a missing
//! fan-in follows from the fan-out.

use std::collections::HashMap;

use super::super::draft::{self, DraftFan, FanDirection};
use super::super::{InputError, SourcePosition};
use super::MOST;
use crate::Model;
use crate::model::TaskId;

/// The given fan-out and fan-in of two tasks, with their positions.
#[derive(Clone, Copy, Default)]
struct GivenFans {
    fan_out: Option<(u32, SourcePosition)>,
    fan_in: Option<(u32, SourcePosition)>,
}

/// Determines the fan-outs, and checks the consistency and the total number of replicas.
pub(super) fn set_fan_outs(
    model: &mut Model,
    tasks: &[draft::DraftTask],
    fans: &[DraftFan],
) -> Result<(), InputError> {
    let given = given(model, fans)?;
    for (own, task) in tasks.iter().zip(&model.tasks) {
        let processor = &model.processors[task.processor.0];
        if !task.replicas.is_multiple_of(processor.replicas) {
            return Err(own.name.at.error(format!(
                "there are {} replicas of `{}`, and {} of its processor `{}`, which can have no part of them \
                each",
                task.replicas, task.name, processor.replicas, processor.name
            )));
        }
    }
    let mut fan_outs = vec![Vec::new(); tasks.len()];
    for (from, to) in model.calling_pairs() {
        let at = tasks[from.0].name.at;
        let out = fan_out(model, (from, to), given.get(&(from, to)).copied().unwrap_or_default(), at)?;
        if out != 1 {
            fan_outs[from.0].push((to, out));
        }
    }
    for (task, fan_out) in model.tasks.iter_mut().zip(fan_outs) {
        task.fan_out = fan_out;
    }
    forwards(model, tasks)?;
    size(model, tasks)
}

/// Returns the given fans by the tasks that they concern.
fn given(model: &Model, fans: &[DraftFan]) -> Result<HashMap<(TaskId, TaskId), GivenFans>, InputError> {
    let places: HashMap<&str, TaskId> =
        model.tasks.iter().enumerate().map(|(place, task)| (task.name.as_str(), TaskId(place))).collect();
    let mut given: HashMap<(TaskId, TaskId), GivenFans> = HashMap::new();
    for fan in fans {
        let place = |name: &draft::SourceName| {
            let found = places.get(name.text.as_str()).copied();
            found.ok_or_else(|| name.at.error(format!("no task `{}`", name.text)))
        };
        let pair = (place(&fan.from)?, place(&fan.to)?);
        let (own, at) = match fan.direction {
            FanDirection::In => (&mut given.entry(pair).or_default().fan_in, fan.from.at),
            FanDirection::Out => (&mut given.entry(pair).or_default().fan_out, fan.to.at),
        };
        if own.is_some_and(|(count, _)| count != fan.count) {
            let (from, to) = (&fan.from.text, &fan.to.text);
            return Err(at.error(format!("two fans from `{from}` to `{to}` that are not the same")));
        }
        *own = Some((fan.count, at));
    }
    Ok(given)
}

/// Determines the fan-out from a task to another one that it calls.
fn fan_out(
    model: &Model,
    pair: (TaskId, TaskId),
    given: GivenFans,
    at: SourcePosition,
) -> Result<u32, InputError> {
    let (from, to) = (&model.tasks[pair.0.0], &model.tasks[pair.1.0]);
    let at = given.fan_out.or(given.fan_in).map_or(at, |(_, at)| at);
    let (here, there) = (u64::from(from.replicas), u64::from(to.replicas));
    let mut out = given.fan_out.map(|(count, _)| u64::from(count));
    let mut inwards = given.fan_in.map(|(count, _)| u64::from(count));
    if let (None, Some(count)) = (out, inwards)
        && (there * count).is_multiple_of(here)
    {
        out = Some(there * count / here);
    }
    let out = out.unwrap_or(1);
    if inwards.is_none() && (here * out).is_multiple_of(there) {
        inwards = Some(here * out / there);
    }
    if inwards.is_none_or(|inwards| here * out != there * inwards) {
        let inwards = inwards.unwrap_or(1);
        return Err(at.error(format!(
            "{here} replicas of `{}` that ask {out} each, and {there} of `{}` that are asked by {inwards} \
             each, do not fit: \
             {here} * fan-out is {there} * fan-in",
            from.name, to.name
        )));
    }
    match u32::try_from(out) {
        Ok(count) if out <= there => Ok(count),
        _ => Err(at.error(format!(
            "each of `{}` asks {out} replicas of `{}`, of which there are {there}",
            from.name, to.name
        ))),
    }
}

/// Refuses forwarding with a fan-out: a request is forwarded to one replica.
fn forwards(model: &Model, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
    for entry in &model.entries {
        for (to, _) in &entry.forwards {
            let to = model.entries[to.0].task;
            let out = model.fan_out(entry.task, to);
            if out > 1 {
                return Err(tasks[entry.task.0].name.at.error(format!(
                    "`{}` forwards to `{}`: a request goes to one replica of it, not to {out}",
                    entry.name, model.tasks[to.0].name
                )));
            }
        }
    }
    Ok(())
}

/// Refuses models with more than `MOST` objects after expanding the replicas.
fn size(model: &Model, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
    let of = |task: TaskId| model.tasks[task.0].replicas as usize;
    let processors = model.processors.iter().map(|own| own.replicas as usize).sum::<usize>();
    let entries = model.entries.iter().map(|own| of(own.task)).sum::<usize>();
    let calls = model.activities.iter().map(|own| {
        let fans = own.calls.iter().map(|call| model.fan_out(own.task, model.entries[call.entry.0].task));
        of(own.task) * (1 + fans.map(|fan| fan as usize).sum::<usize>())
    });
    let most = processors.max(entries).max(calls.sum());
    let replicated = tasks.iter().find(|task| task.replicas > 1);
    match replicated {
        Some(task) if most > MOST => {
            Err(task.name.at.error(format!("with all replicas the model has more than {MOST} of something")))
        }
        _ => Ok(()),
    }
}
