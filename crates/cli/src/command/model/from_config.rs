//! `plimsoll model from-config`: the model of a balancer, from its configuration.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_balancer::model_routing;
use plimsoll_config::{
    self as config, BindingMode, Config, GroupConfig, ListenerConfig, ListenerProtocol, MemberEntry,
};
use plimsoll_lqn::model::{RetryPolicy, Routing, RoutingPolicy};

use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::output::{OutputFormat, write_stdout};

/// Write the model of a configuration: clients, balancer and members of each group, with its policy (-o lqn
/// or toml)
///
/// Values that a configuration does not contain are parameters at the beginning: the number of clients, their
/// think time, the work of a request. Times are in seconds. Set measured values: --set web_demand=0.004.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Configuration file; - for standard input
    #[arg(value_name = "FILE", default_value = config::DEFAULT_FILE)]
    file: PathBuf,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Lqn, OutputFormat::Toml];

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let file = config::read(&args.file).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    globals.print_message(&file.warnings.to_string());
    let name = config::name_of(&args.file);
    let mut groups: Vec<&GroupConfig> = Vec::new();
    for group in &file.config.groups {
        let is_served = file.config.listeners.iter().any(|listener| listener.leads_to(&group.name));
        if group.members.is_empty() {
            globals.print_message(&format!(
                "group {} is left out: its members are drawn or found\n",
                group.name
            ));
        } else if is_served {
            groups.push(group);
        } else {
            globals.print_message(&format!("group {} is left out: no listener leads to it\n", group.name));
        }
    }
    if groups.is_empty() {
        return Err(CliError::failed(format_args!("{name}: no group has members and a listener")));
    }
    let groups: Vec<_> = groups.into_iter().map(|group| ModelledGroup::new(group, &file.config)).collect();
    for (group, shared_notes) in groups.iter().map(|modelled| modelled.group).zip(capacity_notes(&groups)) {
        for note in group_notes(group, &file.config).into_iter().chain(shared_notes) {
            globals.print_message(&format!("group {}: {note}\n", group.name));
        }
    }
    let threads = file.config.threads;
    let render = if globals.output == OutputFormat::Toml { render_toml } else { render_lqn };
    let text = render(&name, threads.unwrap_or(1), &groups);
    // Names of groups may become equal as words of the grammar.
    plimsoll_lqn::read(&text, &BTreeMap::new()).map_err(|error| {
        CliError::failed(format_args!("{name}: no model can be made of its names: {error}"))
    })?;
    write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A group with its part of the model.
struct ModelledGroup<'c> {
    group: &'c GroupConfig,
    routing: Routing,
    /// Whether clients only ask for a member, and go there themselves (handle-driven).
    is_handle_driven: bool,
}

impl<'c> ModelledGroup<'c> {
    fn new(group: &'c GroupConfig, config: &Config) -> Self {
        let mut listeners = group_listeners(group, config).peekable();
        let is_handle_driven = listeners.peek().is_some() && listeners.all(is_redirecting);
        Self { group, routing: routing(group, config).0, is_handle_driven }
    }

    /// Returns how long the balancer waits for a member, and how often it tries again; none if it waits for
    /// as long as it takes, or for none.
    fn timeout_policy(&self) -> Option<(f64, u32)> {
        if self.is_handle_driven { None } else { timeout_policy(self.group) }
    }
}

fn group_listeners<'c>(group: &GroupConfig, config: &'c Config) -> impl Iterator<Item = &'c ListenerConfig> {
    let name = group.name.clone();
    config.listeners.iter().filter(move |listener| listener.leads_to(&name))
}

/// Returns `true` if clients of a listener go to members by themselves, once they have an address.
fn is_redirecting(listener: &ListenerConfig) -> bool {
    let binding = listener.binding.unwrap_or_else(|| listener.protocol.binding());
    match listener.protocol {
        ListenerProtocol::Xds | ListenerProtocol::Dns => true,
        ListenerProtocol::Iiop => binding != BindingMode::PerRequest,
        ListenerProtocol::Http | ListenerProtocol::Https | ListenerProtocol::Tcp | ListenerProtocol::Udp => {
            false
        }
    }
}

/// Returns for each member of each group the first group with a member at its address, and that member's
/// place. One processor does the work of all of them.
fn processors(groups: &[ModelledGroup<'_>]) -> Vec<Vec<(usize, usize)>> {
    let mut first_positions: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let positions = |(group_index, modelled): (usize, &ModelledGroup<'_>)| {
        let members = modelled.group.members.iter().enumerate();
        members
            .map(|(member_index, member)| {
                *first_positions.entry(address(member)).or_insert((group_index, member_index))
            })
            .collect()
    };
    groups.iter().enumerate().map(positions).collect()
}

/// Returns the address of a member, or its name if an object reference has the address.
fn address(member: &MemberEntry) -> String {
    member.table().address.map_or_else(|| member.name().to_string(), |address| address.to_string())
}

/// Returns the notes for each group about members that other groups have with another capacity.
fn capacity_notes(groups: &[ModelledGroup<'_>]) -> Vec<Vec<String>> {
    let note = |member: &MemberEntry, (group_index, member_index): (usize, usize)| {
        let first_capacity = groups[group_index].group.members[member_index].table().capacity;
        let differs = member.table().capacity != first_capacity;
        differs.then(|| {
            format!(
                "{} is also a member of group {}; its processor has the capacity {first_capacity} that it \
                 has there",
                member.name(),
                groups[group_index].group.name
            )
        })
    };
    let pairs = groups.iter().zip(processors(groups));
    pairs
        .map(|(modelled, positions)| {
            modelled
                .group
                .members
                .iter()
                .zip(positions)
                .filter_map(|(member, position)| note(member, position))
                .collect()
        })
        .collect()
}

/// Returns the policy of a model that is nearest to a group's strategy, and its name if it is not the same.
/// If all clients keep their member (`per_session`, `affinity`), the clients of the model do so, too.
fn routing(group: &GroupConfig, config: &Config) -> (Routing, Option<&'static str>) {
    let mut listeners = config.listeners.iter().filter(|listener| listener.leads_to(&group.name)).peekable();
    if listeners.peek().is_some() && listeners.all(is_sticky) {
        let sticky = Routing { policy: RoutingPolicy::Sticky, max_age: 0.0 };
        return (sticky, Some("sticky: clients keep their member, which is drawn for each once"));
    }
    model_routing(
        group.strategy.name(),
        group.monitor.as_ref().map_or(0.0, |monitor| monitor.interval.0.as_secs_f64()),
    )
}

/// Returns `true` if the clients of a listener keep their member for all requests.
fn is_sticky(listener: &ListenerConfig) -> bool {
    let binding = listener.binding.unwrap_or_else(|| listener.protocol.binding());
    // A stream makes no requests: it is one, for any client.
    let is_stream = matches!(listener.protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp);
    listener.affinity.is_some() && binding != BindingMode::OnDemand
        || binding == BindingMode::PerSession && !is_stream
}

/// Returns the differences between the model of a group and the balancer.
fn group_notes(group: &GroupConfig, config: &Config) -> Vec<String> {
    let strategy = group.strategy.name();
    let mut lines = Vec::new();
    let (group_routing, substitute) = routing(group, config);
    if let Some(substitute) = substitute {
        lines.push(format!("{strategy} is taken for {substitute}"));
    }
    let parameters = group.strategy.find().map(|(_, parameters)| parameters);
    let draw_count = parameters
        .and_then(|parameters| parameters.0.first().copied())
        .filter(|_| strategy == "least_request");
    if let Some(draw_count) = draw_count.filter(|draw_count| *draw_count > 2.0 && group.members.len() > 2) {
        lines.push(format!("{strategy} draws {draw_count} members, the model's power_of_two draws 2"));
    }
    let mut member_tables = group.members.iter().map(MemberEntry::table);
    if group.max_connections.is_some() || member_tables.any(|table| table.max_connections.is_some()) {
        let (queue, time) = (group.queue, group.queue_timeout);
        lines.push(match queue {
            0 => "what finds every member at its max_connections is refused (queue = 0); in the model it \
                waits at a member"
                .to_owned(),
            _ => format!(
                "{queue} requests wait for room at the balancer, each for at most {time}; in the model any \
                 number waits at the \
                 members, without end"
            ),
        });
    }
    if group.max_rate.is_some() {
        lines.push(
            "max_rate is left out, and what waits for it (queue, queue_timeout): in the model members get as \
             much as comes"
                .to_owned(),
        );
    }
    if group.admission == Some(true) || group.admission.is_none() && strategy == "adaptive" {
        lines.push(
            "admission is left out: in the model nothing is refused because members have more than they can \
             work on"
                .to_owned(),
        );
    }
    if group.retry.attempts > 0 && !ModelledGroup::new(group, config).is_handle_driven {
        lines.push(match timeout_policy(group) {
            Some(_) => "the retry budget (retry.budget, retry.min_per_second) is left out: in the model \
                        every try that retry.attempts \
                        allows is made"
                .to_owned(),
            None => "retry is left out: without per_try nothing fails in the model".to_owned(),
        });
    }
    let is_handle_driven = ModelledGroup::new(group, config).is_handle_driven;
    for listener in group_listeners(group, config) {
        if is_redirecting(listener) && !is_handle_driven {
            lines.push(format!(
                "clients of the {} listener at {} go to members by themselves; in the model they pass the \
                 balancer, as those of other \
                 listeners do",
                listener.protocol.name(),
                listener.address
            ));
        }
        let binding = listener.binding.unwrap_or_else(|| listener.protocol.binding());
        let is_bound = binding != BindingMode::PerRequest || listener.affinity.is_some();
        if is_bound && group_routing.policy != RoutingPolicy::Sticky {
            lines.push(format!(
                "clients of the listener at {} keep their member; the model chooses one for each request",
                listener.address
            ));
        }
    }
    lines
}

/// Returns a name of the grammar: letters, digits and `_`, no letter alone.
fn to_identifier(name: &str) -> String {
    let mut identifier: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !identifier.starts_with(|c: char| c.is_ascii_alphabetic()) || identifier.len() < 2 {
        identifier.insert_str(0, "g_");
    }
    identifier
}

/// Returns a name of the grammar for each group.
fn group_identifiers(groups: &[ModelledGroup<'_>]) -> Vec<String> {
    let mut identifiers: Vec<String> = Vec::new();
    for modelled in groups {
        let mut identifier = to_identifier(&modelled.group.name.to_string());
        while identifiers.contains(&identifier) {
            identifier.push('_');
        }
        identifiers.push(identifier);
    }
    identifiers
}

/// Returns the time that the balancer waits for a member, and the number of retries; `None` without a limit.
fn timeout_policy(group: &GroupConfig) -> Option<(f64, u32)> {
    let per_try = group.timeouts.per_try.0.as_secs_f64();
    (per_try > 0.0).then(|| (per_try, group.retry.attempts.min(RetryPolicy::MAX_RETRIES)))
}

/// Returns the model in the short TOML of models. Requests that wait at the balancer, because members are at
/// their connection limit, wait at the members there.
fn render_toml(file: &str, threads: usize, groups: &[ModelledGroup<'_>]) -> String {
    let mut out = format!(
        "# The model of {}. Times are in seconds, or have a unit.\n",
        file.replace(['\n', '\r'], " ")
    );
    out += "# What the file does not say stands here as a guess: give what you measured.\n\n";
    let _ = writeln!(
        out,
        "[balancer]\nworkers = {threads}\ndemand = \"50us\"   # work of one request at the balancer"
    );
    let (identifiers, processors) = (group_identifiers(groups), processors(groups));
    for (group_index, (modelled, identifier)) in groups.iter().zip(&identifiers).enumerate() {
        let ModelledGroup { group, routing, .. } = modelled;
        let _ = writeln!(out, "\n[[clients]]\nname = \"{identifier}_clients\"\ngroup = \"{identifier}\"");
        out += "number = 100   # clients; or rate = 100, requests per second\nthink = \"1s\"   # time for \
            which one waits before its next request\n";
        let _ = writeln!(out, "\n[[group]]\nname = \"{identifier}\"\npolicy = \"{routing}\"");
        out += "demand = \"10ms\"   # work of one request at a member of capacity 1\ncores = 1   # cores of \
            a member\n";
        if modelled.is_handle_driven {
            out += "asks = 0.01   # how often the balancer is asked for a member, for each request\n";
        }
        if let Some((timeout, retries)) = modelled.timeout_policy() {
            let _ = writeln!(out, "timeout = {timeout}\nretries = {retries}");
        }
        for (member_index, entry) in group.members.iter().enumerate() {
            let member = entry.table();
            let _ = writeln!(out, "\n[[group.member]]   # {}", entry.name());
            let _ = writeln!(out, "name = \"{identifier}_{}\"", member_index + 1);
            let position = processors[group_index][member_index];
            if position == (group_index, member_index) {
                let _ = writeln!(out, "speed = {}", member.capacity);
            } else {
                let _ = writeln!(out, "processor = \"{}_{}\"", identifiers[position.0], position.1 + 1);
            }
            let _ = writeln!(out, "weight = {}", member.capacity);
            if let Some(max_connections) = member.max_connections.or(group.max_connections) {
                let _ = writeln!(out, "threads = {max_connections}");
            }
        }
    }
    out
}

/// Returns the same model in the grammar of other tools, with a parameter for each guess.
fn render_lqn(file: &str, threads: usize, groups: &[ModelledGroup<'_>]) -> String {
    let (identifiers, positions) = (group_identifiers(groups), processors(groups));
    let mut header = format!("# The model of {}. Times are in seconds.\n", file.replace(['\n', '\r'], " "));
    header += "# What the file does not say stands here: give what you measured.\n";
    header += "$balancer_demand = 0.00005   # work of one request at the balancer\n";
    let (mut routes, mut processors, mut tasks, mut entries) =
        (String::new(), String::new(), String::new(), String::new());
    let balancer = identifiers.join(" ");
    let mut choices: Vec<String> = Vec::new();
    let _ = writeln!(processors, "  p plimsoll_cores f m {threads}");
    let _ = writeln!(tasks, "  t plimsoll i {balancer} -1 plimsoll_cores");
    for (group_index, (modelled, identifier)) in groups.iter().zip(&identifiers).enumerate() {
        let ModelledGroup { group, routing, is_handle_driven } = modelled;
        let _ = writeln!(header, "${identifier}_clients = 100   # clients of group {}", group.name);
        let _ =
            writeln!(header, "${identifier}_think = 1   # time for which one waits before its next request");
        let _ =
            writeln!(header, "${identifier}_demand = 0.01   # work of one request at a member of capacity 1");
        let _ = writeln!(header, "${identifier}_cores = 1   # cores of a member");
        // Each retry chooses a member anew. Clients that are redirected choose for themselves.
        let choice = format!("{identifier}_choice");
        let (source_entry, called_entry) = match modelled.timeout_policy() {
            None if *is_handle_driven => {
                let _ = writeln!(
                    header,
                    "${identifier}_asks = 0.01   # how often the balancer is asked for a member, for each \
                     request"
                );
                let _ =
                    writeln!(entries, "  s {choice} 0 -1\n  y {choice} {identifier} ${identifier}_asks -1");
                choices.push(choice.clone());
                (choice.clone(), choice)
            }
            None => (identifier.clone(), identifier.clone()),
            Some((timeout, retries)) => {
                let _ = writeln!(
                    routes,
                    "#pragma call.{identifier}.{choice}=timeout({timeout}) retries({retries})"
                );
                let _ = writeln!(
                    entries,
                    "  f {identifier} 1 -1\n  y {identifier} {choice} 1 -1\n  s {choice} 0 -1"
                );
                choices.push(choice.clone());
                (choice, identifier.clone())
            }
        };
        let _ = writeln!(routes, "#pragma route.{source_entry}={routing}");
        let _ = writeln!(processors, "  p {identifier}_users f i");
        let _ = writeln!(
            tasks,
            "  t {identifier}_client r {identifier}_client -1 {identifier}_users z ${identifier}_think m \
             ${identifier}_clients"
        );
        // There is exactly one request each time.
        let _ = writeln!(
            entries,
            "  s {identifier}_client 0 -1\n  f {identifier}_client 1 -1\n  y \
             {identifier}_client {called_entry} 1 -1"
        );
        let _ = writeln!(entries, "  s {identifier} $balancer_demand -1");
        let members: Vec<_> = group.members.iter().map(MemberEntry::table).collect();
        let total_capacity: f64 = members.iter().map(|member| member.capacity).sum();
        for (member_index, (member, entry)) in members.iter().zip(&group.members).enumerate() {
            let task = format!("{identifier}_{}", member_index + 1);
            let position = positions[group_index][member_index];
            let cpu = format!("{}_{}_cpu", identifiers[position.0], position.1 + 1);
            if position == (group_index, member_index) {
                let _ = writeln!(
                    processors,
                    "  p {cpu} s 0 m ${identifier}_cores R {}   # {}",
                    member.capacity,
                    entry.name()
                );
            }
            let max_connections = member.max_connections.or(group.max_connections);
            let multiplicity = max_connections.map_or_else(|| "i".to_owned(), |count| format!("m {count}"));
            let _ = writeln!(tasks, "  t {task} n {task} -1 {cpu} {multiplicity}");
            let _ = writeln!(
                entries,
                "  F {source_entry} {task} {} -1\n  s {task} ${identifier}_demand -1",
                member.capacity / total_capacity
            );
        }
    }
    if !choices.is_empty() {
        let _ = writeln!(processors, "  p plimsoll_choice f i");
        let _ = writeln!(tasks, "  t plimsoll_choice i {} -1 plimsoll_choice", choices.join(" "));
    }
    format!(
        "{header}{routes}G \"{}\" 1e-06 50 1 0.9 -1\nP 0\n{processors}-1\nT 0\n{tasks}-1\nE 0\n{entries}-1\n",
        file.replace(['"', '\n', '\r'], "'")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the content of a model, without names and in no order.
    fn model_facts(text: &str) -> Vec<String> {
        let model = plimsoll_lqn::read(text, &BTreeMap::new())
            .unwrap_or_else(|error| panic!("{error}\n{text}"))
            .model;
        let tasks = model.tasks.iter().map(|task| {
            let processor = &model.processors[task.processor.0];
            let processor_facts = (processor.scheduling, processor.copies, processor.speed);
            format!(
                "task {:?}",
                (
                    task.role,
                    task.copies,
                    task.queue_limit,
                    task.priority,
                    processor_facts,
                    task.entries.len()
                )
            )
        });
        let work = model.activities.iter().map(|activity| {
            let calls: Vec<_> =
                activity.calls.iter().map(|call| (call.count, call.waits, call.retry_policy)).collect();
            // An order matters only for calls.
            let order = (!calls.is_empty()).then_some(activity.order);
            format!("work {:?}", (activity.demand, activity.variation, activity.think, order, calls))
        });
        let routes = model.entries.iter().map(|entry| {
            let shares: Vec<f64> = entry.forwards.iter().map(|(_, share)| *share).collect();
            format!("route {:?}", (entry.arrivals, entry.routing, shares))
        });
        let mut facts: Vec<String> = tasks.chain(work).chain(routes).collect();
        facts.sort();
        facts
    }

    #[test]
    fn both_formats_mean_the_same() {
        let config = |rest: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8081\"\ngroup = \"web\"\n[[listener]]\naddress = \
                 \"127.0.0.1:8082\"\n\
                 group = \"api\"\n[[group]]\nname = \"web\"\nstrategy = \"round_robin\"\nmax_connections = \
                 5\n\
                 members = [\"127.0.0.1:1\", {{ address = \"127.0.0.1:2\", capacity = 3 }}]\n{rest}\
                 [[group]]\nname = \"api\"\nmembers = [\"127.0.0.1:3\"]\n"
            );
            config::parse("x.toml", text.into_bytes()).unwrap_or_else(|error| panic!("{error}")).config
        };
        for rest in ["", "[group.timeouts]\nper_try = \"250ms\"\n[group.retry]\nattempts = 3\n"] {
            let config = config(rest);
            let groups: Vec<_> =
                config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
            let [lqn, toml] =
                [render_lqn, render_toml].map(|render| model_facts(&render("x.toml", 2, &groups)));
            assert_eq!(lqn, toml, "{rest}");
            assert_eq!(
                lqn.iter().any(|line| line.contains("timeout: 0.25, retries: 3")),
                !rest.is_empty(),
                "{lqn:?}"
            );
        }
    }

    /// Returns two groups with a member at the same address, of which the first redirects its clients.
    fn handle_driven() -> Config {
        let text = "[[listener]]\naddress = \"127.0.0.1:2809\"\nprotocol = \"xds\"\ngroup = \"calls\"\n\
                    [[listener]]\naddress = \"127.0.0.1:8082\"\ngroup = \"web\"\n\
                    [[group]]\nname = \"calls\"\nstrategy = \"round_robin\"\nmembers = [\"127.0.0.1:1\", \
                    \"127.0.0.1:2\"]\n\
                    [group.timeouts]\nper_try = \"250ms\"\n\
                    [[group]]\nname = \"web\"\nmembers = [{ address = \"127.0.0.1:2\", capacity = 3 }]\n";
        config::parse("x.toml", text.into()).unwrap_or_else(|error| panic!("{error}")).config
    }

    #[test]
    fn clients_that_are_told_where_to_go_do_not_pass_the_balancer() {
        let config = handle_driven();
        let groups: Vec<_> = config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
        let [lqn, toml] = [render_lqn, render_toml].map(|render| render("x.toml", 2, &groups));
        assert_eq!(model_facts(&lqn), model_facts(&toml), "{lqn}\n{toml}");
        let parsed =
            plimsoll_lqn::read(&lqn, &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}\n{lqn}")).model;
        let (results, convergence) = plimsoll_lqn::solve(&parsed);
        assert!(convergence.converged);
        let throughput =
            |name: &str| results.tasks.iter().find(|task| task.name == name).unwrap().throughput.mean;
        // One in a hundred requests of redirected clients asks the balancer; all other requests pass it.
        let expected = throughput("calls_client") / 100.0 + throughput("web_client");
        assert!(
            (throughput("plimsoll") / expected - 1.0).abs() < 0.01,
            "{} {expected}",
            throughput("plimsoll")
        );
        assert!(
            !group_notes(&config.groups[0], &config).join("").contains("retr"),
            "nothing is tried again here"
        );
    }

    #[test]
    fn an_address_that_several_groups_have_is_one_processor() {
        let config = handle_driven();
        let groups: Vec<_> = config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
        assert_eq!(processors(&groups), [vec![(0, 0), (0, 1)], vec![(0, 1)]]);
        let [lqn, toml] = [render_lqn, render_toml].map(|render| render("x.toml", 2, &groups));
        let processor_of = |text: &str, name: &str| {
            let parsed =
                plimsoll_lqn::read(text, &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}\n{text}"));
            parsed.model.tasks.iter().find(|task| task.name == name).unwrap().processor
        };
        for text in [lqn, toml] {
            assert_eq!(processor_of(&text, "web_1"), processor_of(&text, "calls_2"), "{text}");
            assert_ne!(processor_of(&text, "web_1"), processor_of(&text, "calls_1"), "{text}");
        }
        let lines = capacity_notes(&groups);
        assert!(lines[0].is_empty() && lines[1][0].contains("also a member of group calls"), "{lines:?}");
    }

    #[test]
    fn what_a_model_leaves_out_is_named() {
        let notes_of = |rest: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8081\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
                 strategy = \"round_robin\"\nmembers = [\"127.0.0.1:1\"]\n{rest}"
            );
            let file = config::parse("x.toml", text.into_bytes()).unwrap_or_else(|error| panic!("{error}"));
            group_notes(&file.config.groups[0], &file.config).join("\n")
        };
        let without_retries = notes_of("[group.retry]\nattempts = 0\n");
        assert_eq!(without_retries, "");
        for (rest, expected) in [
            ("max_rate = 5.0\n", "max_rate is left out"),
            ("admission = true\n", "admission is left out"),
            ("max_connections = 3\nqueue = 7\n", "7 requests wait"),
            ("max_connections = 3\nqueue = 0\n", "queue = 0"),
            ("[group.retry]\nattempts = 2\n", "retry is left out"),
            ("[group.retry]\nattempts = 2\n[group.timeouts]\nper_try = \"1s\"\n", "retry budget"),
        ] {
            assert!(notes_of(rest).contains(expected), "{rest}: {}", notes_of(rest));
        }
    }

    #[test]
    fn who_fills_one_before_the_next_and_who_keeps_its_clients() {
        let routing_and_notes = |listener: &str, group: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8081\"\ngroup = \"web\"\n{listener}[[group]]\nname = \
                 \"web\"\n{group}\
                 members = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n"
            );
            let file = config::parse("x.toml", text.into_bytes()).unwrap_or_else(|error| panic!("{error}"));
            let group_routing = routing(&file.config.groups[0], &file.config).0;
            (group_routing.to_string(), group_notes(&file.config.groups[0], &file.config).join("\n"))
        };
        let first_available = "strategy = \"first_available\"\n";
        let (policy, text) = routing_and_notes("", first_available);
        assert_eq!(policy, "first_available");
        assert!(!text.contains("taken for"), "{text}");
        for listener in ["binding = \"per_session\"\n", "affinity = { cookie = \"member\" }\n"] {
            let (policy, text) = routing_and_notes(listener, first_available);
            assert!(
                policy == "sticky" && text.contains("clients keep their member"),
                "{listener}: {policy} {text}"
            );
        }
        let (policy, text) = routing_and_notes("binding = \"on_demand\"\n", first_available);
        assert!(policy == "first_available" && text.contains("keep their member"), "{policy} {text}");
        // A model takes a stream for a request.
        assert_eq!(routing_and_notes("protocol = \"tcp\"\n", first_available).0, "first_available");
    }

    #[test]
    fn names_are_words_of_the_grammar() {
        for (name, expected) in [("web", "web"), ("web-1", "web_1"), ("x", "g_x"), ("1a", "g_1a")] {
            assert_eq!(to_identifier(name), expected);
        }
    }
}
