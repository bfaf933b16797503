//! Determines the fan-out and fan-in of replicated tasks.
//!
//! Let a task with `r` replicas call a task with `s` replicas, each of the former `o` of the latter, each of
//! which has `i` callers. Then `r * o = s * i`. A missing fan-out follows from the fan-in, or is 1; a missing
//! fan-in follows from the fan-out.

use std::collections::HashMap;

use super::super::draft::{self, DraftFan, FanDirection};
use super::super::{InputError, SourcePosition};
use super::MAX_ITEMS;
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
    let fans_by_pair = given_fans(model, fans)?;
    for (task_draft, task) in tasks.iter().zip(&model.tasks) {
        let processor = &model.processors[task.processor.0];
        if !task.replicas.is_multiple_of(processor.replicas) {
            return Err(task_draft.name.at.error(format!(
                "there are {} replicas of `{}`, and {} of its processor `{}`, which can have no part of them \
                each",
                task.replicas, task.name, processor.replicas, processor.name
            )));
        }
    }
    let mut fan_outs = vec![Vec::new(); tasks.len()];
    for (from, to) in model.calling_pairs() {
        let position = tasks[from.0].name.at;
        let replica_count =
            fan_out(model, (from, to), fans_by_pair.get(&(from, to)).copied().unwrap_or_default(), position)?;
        if replica_count != 1 {
            fan_outs[from.0].push((to, replica_count));
        }
    }
    for (task, fan_out) in model.tasks.iter_mut().zip(fan_outs) {
        task.fan_out = fan_out;
    }
    check_forwards(model, tasks)?;
    check_size(model, tasks)
}

/// Returns the given fans by the tasks that they concern.
fn given_fans(model: &Model, fans: &[DraftFan]) -> Result<HashMap<(TaskId, TaskId), GivenFans>, InputError> {
    let task_ids: HashMap<&str, TaskId> =
        model.tasks.iter().enumerate().map(|(index, task)| (task.name.as_str(), TaskId(index))).collect();
    let mut fans_by_pair: HashMap<(TaskId, TaskId), GivenFans> = HashMap::new();
    for fan in fans {
        let task_id = |name: &draft::SourceName| {
            let id = task_ids.get(name.text.as_str()).copied();
            id.ok_or_else(|| name.at.error(format!("no task `{}`", name.text)))
        };
        let pair = (task_id(&fan.from)?, task_id(&fan.to)?);
        let (given_count, position) = match fan.direction {
            FanDirection::In => (&mut fans_by_pair.entry(pair).or_default().fan_in, fan.from.at),
            FanDirection::Out => (&mut fans_by_pair.entry(pair).or_default().fan_out, fan.to.at),
        };
        if given_count.is_some_and(|(count, _)| count != fan.count) {
            let (from, to) = (&fan.from.text, &fan.to.text);
            return Err(position.error(format!("two fans from `{from}` to `{to}` that are not the same")));
        }
        *given_count = Some((fan.count, position));
    }
    Ok(fans_by_pair)
}

/// Determines the fan-out from a task to another one that it calls.
fn fan_out(
    model: &Model,
    pair: (TaskId, TaskId),
    fans: GivenFans,
    position: SourcePosition,
) -> Result<u32, InputError> {
    let (from, to) = (&model.tasks[pair.0.0], &model.tasks[pair.1.0]);
    let position = fans.fan_out.or(fans.fan_in).map_or(position, |(_, position)| position);
    let (caller_replicas, target_replicas) = (u64::from(from.replicas), u64::from(to.replicas));
    let mut outward = fans.fan_out.map(|(count, _)| u64::from(count));
    let mut inward = fans.fan_in.map(|(count, _)| u64::from(count));
    if let (None, Some(count)) = (outward, inward)
        && (target_replicas * count).is_multiple_of(caller_replicas)
    {
        outward = Some(target_replicas * count / caller_replicas);
    }
    let outward_count = outward.unwrap_or(1);
    if inward.is_none() && (caller_replicas * outward_count).is_multiple_of(target_replicas) {
        inward = Some(caller_replicas * outward_count / target_replicas);
    }
    if inward.is_none_or(|count| caller_replicas * outward_count != target_replicas * count) {
        let inward_count = inward.unwrap_or(1);
        return Err(position.error(format!(
            "{caller_replicas} replicas of `{}` that ask {outward_count} each, and {target_replicas} of \
             `{}` that are asked by {inward_count} each, do not fit: \
             {caller_replicas} * fan-out is {target_replicas} * fan-in",
            from.name, to.name
        )));
    }
    match u32::try_from(outward_count) {
        Ok(count) if outward_count <= target_replicas => Ok(count),
        _ => Err(position.error(format!(
            "each of `{}` asks {outward_count} replicas of `{}`, of which there are {target_replicas}",
            from.name, to.name
        ))),
    }
}

/// Refuses forwarding with a fan-out: a request is forwarded to one replica.
fn check_forwards(model: &Model, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
    for entry in &model.entries {
        for (to, _) in &entry.forwards {
            let to = model.entries[to.0].task;
            let fan_out_count = model.fan_out(entry.task, to);
            if fan_out_count > 1 {
                return Err(tasks[entry.task.0].name.at.error(format!(
                    "`{}` forwards to `{}`: a request goes to one replica of it, not to {fan_out_count}",
                    entry.name, model.tasks[to.0].name
                )));
            }
        }
    }
    Ok(())
}

/// Refuses models with more than `MOST` objects after expanding the replicas.
fn check_size(model: &Model, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
    let replicas = |task: TaskId| model.tasks[task.0].replicas as usize;
    let processors = model.processors.iter().map(|processor| processor.replicas as usize).sum::<usize>();
    let entries = model.entries.iter().map(|entry| replicas(entry.task)).sum::<usize>();
    let calls = model.activities.iter().map(|activity| {
        let fan_outs =
            activity.calls.iter().map(|call| model.fan_out(activity.task, model.entries[call.entry.0].task));
        replicas(activity.task) * (1 + fan_outs.map(|fan| fan as usize).sum::<usize>())
    });
    let max_items = processors.max(entries).max(calls.sum());
    let replicated = tasks.iter().find(|task| task.replicas > 1);
    match replicated {
        Some(task) if max_items > MAX_ITEMS => Err(task
            .name
            .at
            .error(format!("with all replicas the model has more than {MAX_ITEMS} of something"))),
        _ => Ok(()),
    }
}
