//! `plimsoll scale`: the wanted number of members of groups, and the reason.

use std::process::ExitCode;

use plimsoll_brain::autoscale::instances::InstanceState;
use plimsoll_brain::status::{GroupStatus, ScalerStatus};
use plimsoll_config::pluralize;
use serde_json::{Value, json};

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, short_duration, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// Show the wanted and the actual number of members of groups, with the reason
///
/// With --dry-run: the action of the latest decision, whether or not it is carried out.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this group
    group: Option<String>,

    /// Show the action that would be taken, and its reason
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        let (_, status) = balancer.status()?;
        let groups = select_groups(&status.groups, args.group.as_deref())?;
        let to_json =
            |(group, scaler): &(&GroupStatus, &ScalerStatus)| json!({"group": group.name, "scaler": scaler});
        let groups_json: Vec<Value> = groups.iter().map(to_json).collect();
        let text = match args.dry_run {
            true => groups.iter().map(|(group, scaler)| planned_actions(group, scaler)).collect(),
            false => render(&groups, globals.stdout_has_color()),
        };
        Ok(CommandOutput::from_view(json!({"schema": 1, "groups": groups_json}), text))
    })
}

/// Returns the groups that have a scaler, or the one that is named.
fn select_groups<'s>(
    groups: &'s [GroupStatus],
    group_name: Option<&str>,
) -> Result<Vec<(&'s GroupStatus, &'s ScalerStatus)>, CliError> {
    let with_scalers = groups.iter().filter_map(|group| Some((group, group.scaler.as_ref()?)));
    let Some(group_name) = group_name else {
        let selected: Vec<_> = with_scalers.collect();
        return match selected.is_empty() {
            true => Err(CliError::new(
                CliExitCode::Failed,
                "no group has a scaler: add [group.scaler] to the configuration",
            )),
            false => Ok(selected),
        };
    };
    let mut names = groups.iter().map(|group| group.name.as_str());
    if !names.any(|name| name == group_name) {
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        return Err(CliError::new(
            CliExitCode::Failed,
            format_args!("there is no group {group_name}; there are: {}", names.join(", ")),
        ));
    }
    let selected: Vec<_> = with_scalers.filter(|(group, _)| group.name == group_name).collect();
    match selected.is_empty() {
        true => Err(CliError::new(CliExitCode::Failed, format_args!("group {group_name} has no scaler"))),
        false => Ok(selected),
    }
}

fn render(groups: &[(&GroupStatus, &ScalerStatus)], color: bool) -> String {
    let mut out = String::new();
    let headings = ["GROUP", "WANTED", "THERE", "COMING", "BOUNDS", "TARGET", "BY"];
    let mut rows = vec![
        headings.iter().map(|heading| TableCell::text(heading).style(TextStyle::Faint)).collect::<Vec<_>>(),
    ];
    for (group, scaler) in groups {
        let is_settled = scaler.desired == scaler.members;
        let provider = match (scaler.dry_run, scaler.paused) {
            (true, _) => format!("{}, dry run", scaler.provider),
            (false, true) => format!("{}, paused", scaler.provider),
            (false, false) => scaler.provider.clone(),
        };
        let provider_text = scaler
            .decides
            .as_ref()
            .map_or_else(|| provider.clone(), |name| format!("{provider}, {name} decides"));
        rows.push(vec![
            TableCell::text(&group.name).style(TextStyle::Strong),
            TableCell::number(scaler.desired).style(if is_settled {
                TextStyle::Good
            } else {
                TextStyle::Fair
            }),
            TableCell::number(scaler.members.saturating_sub(scaler.coming)),
            TableCell::number(scaler.coming),
            TableCell::text(&format!("{} to {}", scaler.min, scaler.max)),
            TableCell::text(&scaler.target),
            TableCell::text(&provider_text),
        ]);
    }
    out.push_str(&table(&rows, color));
    for (group, scaler) in groups {
        out.push_str(&format!(
            "\n{}  {}\n",
            TextStyle::Strong.paint(&sanitize(&group.name), color),
            sanitize(&scaler.why)
        ));
        if let Some(failure) = &scaler.failure {
            let line = format!(
                "‼ {} failed {}: {failure}; the next try in {}",
                scaler.provider,
                pluralize(scaler.failures as usize, "time"),
                short_duration(scaler.pause_seconds)
            );
            out.push_str(&TextStyle::Bad.paint(&sanitize(&line), color));
            out.push('\n');
        }
        let started = scaler.started.iter().map(|instance| {
            let (label, style) = match instance.stage {
                InstanceState::Asked => ("asked for", TextStyle::Fair),
                InstanceState::Coming => ("coming", TextStyle::Fair),
                InstanceState::Serving => ("serving", TextStyle::Good),
                InstanceState::Draining => ("draining", TextStyle::Fair),
                InstanceState::Stopping => ("stopping", TextStyle::Fair),
            };
            vec![
                TableCell::number(instance.index),
                TableCell::text(instance.member.as_deref().unwrap_or("-")),
                TableCell::text(label).style(style),
                TableCell::text(&short_duration(instance.since_seconds)).style(TextStyle::Faint),
                TableCell::text(&instance.id).style(TextStyle::Faint),
            ]
        });
        out.push_str(&table(&started.collect::<Vec<_>>(), color));
    }
    out
}

/// Returns the actions that the scaler would take now.
fn planned_actions(group: &GroupStatus, scaler: &ScalerStatus) -> String {
    let summary = match (scaler.actions.as_slice(), scaler.desired == scaler.members) {
        ([], true) => "nothing".to_owned(),
        ([], false) => {
            format!("nothing yet, though it wants {}", pluralize(scaler.desired as usize, "member"))
        }
        (actions, _) => actions.join("; "),
    };
    format!("{}: {}\n  {}\n", sanitize(&group.name), sanitize(&summary), sanitize(&scaler.why))
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::status::ScaledMember;

    use super::*;

    fn group() -> GroupStatus {
        let member = |index: u32, stage, since_seconds| ScaledMember {
            index,
            id: format!("{}-7", 4000 + index),
            member: (stage != InstanceState::Asked).then(|| format!("127.0.0.1:{}", 20_000 + index)),
            stage,
            since_seconds,
        };
        let scaler = ScalerStatus {
            provider: "process".into(),
            target: "headroom 0.3".into(),
            desired: 3,
            members: 2,
            coming: 1,
            min: 1,
            max: 10,
            why: "1 more: 120.0 requests a second take 1.20 of capacity (load line)".into(),
            actions: vec!["start 1 member".into()],
            failures: 2,
            failure: Some("it ended with exit code 7".into()),
            pause_seconds: 4.0,
            started: vec![member(0, InstanceState::Serving, 75.0), member(1, InstanceState::Asked, 0.5)],
            ..ScalerStatus::default()
        };
        GroupStatus { name: "web".into(), scaler: Some(scaler), ..GroupStatus::default() }
    }

    #[test]
    fn what_is_wanted_what_there_is_and_why() {
        let groups = [group(), GroupStatus { name: "mail".into(), ..GroupStatus::default() }];
        let selected = select_groups(&groups, None).unwrap();
        insta::assert_snapshot!(render(&selected, false), @"
        GROUP  WANTED  THERE  COMING  BOUNDS   TARGET        BY
        web         3      1       1  1 to 10  headroom 0.3  process

        web  1 more: 120.0 requests a second take 1.20 of capacity (load line)
        ‼ process failed 2 times: it ended with exit code 7; the next try in 4s
        0  127.0.0.1:20000  serving    1m 15s  4000-7
        1  -                asked for  0s      4001-7
        ");
        assert_eq!(
            planned_actions(selected[0].0, selected[0].1),
            "web: start 1 member\n  1 more: 120.0 requests a second take 1.20 of capacity (load line)\n"
        );
    }

    #[test]
    fn what_is_wanted_and_not_done_yet_is_counted_in_words() {
        let mut group = group();
        let plan = |scaler: &ScalerStatus| planned_actions(&GroupStatus::default(), scaler);
        let scaler = group.scaler.as_mut().unwrap();
        (scaler.actions, scaler.desired) = (Vec::new(), 1);
        assert!(plan(scaler).contains("nothing yet, though it wants 1 member\n"), "{}", plan(scaler));
        scaler.desired = 3;
        assert!(plan(scaler).contains("though it wants 3 members\n"), "{}", plan(scaler));
    }

    #[test]
    fn groups_without_a_scaler_say_so() {
        let groups = [GroupStatus { name: "mail".into(), ..GroupStatus::default() }];
        let error_of = |group_name| format!("{:?}", select_groups(&groups, group_name).unwrap_err());
        assert!(error_of(None).contains("no group has a scaler"));
        assert!(error_of(Some("mail")).contains("group mail has no scaler"));
        assert!(error_of(Some("web")).contains("there are: mail"));
    }
}
