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
        let served = file.config.listeners.iter().any(|listener| listener.leads_to(&group.name));
        if group.members.is_empty() {
            globals.print_message(&format!(
                "group {} is left out: its members are drawn or found\n",
                group.name
            ));
        } else if served {
            groups.push(group);
        } else {
            globals.print_message(&format!("group {} is left out: no listener leads to it\n", group.name));
        }
    }
    if groups.is_empty() {
        return Err(CliError::failed(format_args!("{name}: no group has members and a listener")));
    }
    let groups: Vec<_> = groups.into_iter().map(|group| ModelledGroup::new(group, &file.config)).collect();
    for (group, shared) in groups.iter().map(|own| own.group).zip(capacities(&groups)) {
        for note in notes(group, &file.config).into_iter().chain(shared) {
            globals.print_message(&format!("group {}: {note}\n", group.name));
        }
    }
    let threads = file.config.threads;
    let make = if globals.output == OutputFormat::Toml { toml } else { model };
    let text = make(&name, threads.unwrap_or(1), &groups);
    // Names of groups may become equal as words of the grammar.
    plimsoll_lqn::read(&text, &BTreeMap::new())
        .map_err(|why| CliError::failed(format_args!("{name}: no model can be made of its names: {why}")))?;
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
    fn patience(&self) -> Option<(f64, u32)> {
        if self.is_handle_driven { None } else { patience(self.group) }
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
    let mut known: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let place = |(at, own): (usize, &ModelledGroup<'_>)| {
        let members = own.group.members.iter().enumerate();
        members.map(|(number, member)| *known.entry(address(member)).or_insert((at, number))).collect()
    };
    groups.iter().enumerate().map(place).collect()
}

/// Returns the address of a member, or its name if an object reference has the address.
fn address(member: &MemberEntry) -> String {
    member.table().address.map_or_else(|| member.name().to_string(), |address| address.to_string())
}

/// Returns the notes for each group about members that other groups have with another capacity.
fn capacities(groups: &[ModelledGroup<'_>]) -> Vec<Vec<String>> {
    let note = |own: &MemberEntry, (at, number): (usize, usize)| {
        let first = groups[at].group.members[number].table().capacity;
        let differs = own.table().capacity != first;
        differs.then(|| {
            format!(
                "{} is also a member of group {}; its processor has the capacity {first} that it has there",
                own.name(),
                groups[at].group.name
            )
        })
    };
    let pairs = groups.iter().zip(processors(groups));
    pairs
        .map(|(own, firsts)| {
            own.group.members.iter().zip(firsts).filter_map(|(one, first)| note(one, first)).collect()
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
    let stream = matches!(listener.protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp);
    listener.affinity.is_some() && binding != BindingMode::OnDemand
        || binding == BindingMode::PerSession && !stream
}

/// Returns the differences between the model of a group and the balancer.
fn notes(group: &GroupConfig, config: &Config) -> Vec<String> {
    let strategy = group.strategy.name();
    let mut all = Vec::new();
    let (own, instead) = routing(group, config);
    if let Some(instead) = instead {
        all.push(format!("{strategy} is taken for {instead}"));
    }
    let knobs = group.strategy.find().map(|(_, knobs)| knobs);
    let drawn = knobs.and_then(|knobs| knobs.0.first().copied()).filter(|_| strategy == "least_request");
    if let Some(drawn) = drawn.filter(|drawn| *drawn > 2.0 && group.members.len() > 2) {
        all.push(format!("{strategy} draws {drawn} members, the model's power_of_two draws 2"));
    }
    let mut tables = group.members.iter().map(MemberEntry::table);
    if group.max_connections.is_some() || tables.any(|own| own.max_connections.is_some()) {
        let (queue, time) = (group.queue, group.queue_timeout);
        all.push(match queue {
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
        all.push(
            "max_rate is left out, and what waits for it (queue, queue_timeout): in the model members get as \
             much as comes"
                .to_owned(),
        );
    }
    if group.admission == Some(true) || group.admission.is_none() && strategy == "adaptive" {
        all.push(
            "admission is left out: in the model nothing is refused because members have more than they can \
             work on"
                .to_owned(),
        );
    }
    if group.retry.attempts > 0 && !ModelledGroup::new(group, config).is_handle_driven {
        all.push(match patience(group) {
            Some(_) => "the retry budget (retry.budget, retry.min_per_second) is left out: in the model \
                        every try that retry.attempts \
                        allows is made"
                .to_owned(),
            None => "retry is left out: without per_try nothing fails in the model".to_owned(),
        });
    }
    let told = ModelledGroup::new(group, config).is_handle_driven;
    for listener in group_listeners(group, config) {
        if is_redirecting(listener) && !told {
            all.push(format!(
                "clients of the {} listener at {} go to members by themselves; in the model they pass the \
                 balancer, as those of other \
                 listeners do",
                listener.protocol.name(),
                listener.address
            ));
        }
        let binding = listener.binding.unwrap_or_else(|| listener.protocol.binding());
        let bound = binding != BindingMode::PerRequest || listener.affinity.is_some();
        if bound && own.policy != RoutingPolicy::Sticky {
            all.push(format!(
                "clients of the listener at {} keep their member; the model chooses one for each request",
                listener.address
            ));
        }
    }
    all
}

/// Returns a name of the grammar: letters, digits and `_`, no letter alone.
fn word(name: &str) -> String {
    let mut word: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !word.starts_with(|c: char| c.is_ascii_alphabetic()) || word.len() < 2 {
        word.insert_str(0, "g_");
    }
    word
}

/// Returns a name of the grammar for each group.
fn words(groups: &[ModelledGroup<'_>]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for known in groups {
        let mut own = word(&known.group.name.to_string());
        while words.contains(&own) {
            own.push('_');
        }
        words.push(own);
    }
    words
}

/// Returns the time that the balancer waits for a member, and the number of retries; `None` without a limit.
fn patience(group: &GroupConfig) -> Option<(f64, u32)> {
    let per_try = group.timeouts.per_try.0.as_secs_f64();
    (per_try > 0.0).then(|| (per_try, group.retry.attempts.min(RetryPolicy::MAX_RETRIES)))
}

/// Returns the model in the short TOML of models. Requests that wait at the balancer, because members are at
/// their connection limit, wait at the members there.
fn toml(file: &str, threads: usize, groups: &[ModelledGroup<'_>]) -> String {
    let mut out = format!(
        "# The model of {}. Times are in seconds, or have a unit.\n",
        file.replace(['\n', '\r'], " ")
    );
    out += "# What the file does not say stands here as a guess: give what you measured.\n\n";
    let _ = writeln!(
        out,
        "[balancer]\nworkers = {threads}\ndemand = \"50us\"   # work of one request at the balancer"
    );
    let (words, processors) = (words(groups), processors(groups));
    for (at, (modelled, own)) in groups.iter().zip(&words).enumerate() {
        let ModelledGroup { group, routing, .. } = modelled;
        let _ = writeln!(out, "\n[[clients]]\nname = \"{own}_clients\"\ngroup = \"{own}\"");
        out += "number = 100   # clients; or rate = 100, requests per second\nthink = \"1s\"   # time for \
            which one waits before its next request\n";
        let _ = writeln!(out, "\n[[group]]\nname = \"{own}\"\npolicy = \"{routing}\"");
        out += "demand = \"10ms\"   # work of one request at a member of capacity 1\ncores = 1   # cores of \
            a member\n";
        if modelled.is_handle_driven {
            out += "asks = 0.01   # how often the balancer is asked for a member, for each request\n";
        }
        if let Some((timeout, retries)) = modelled.patience() {
            let _ = writeln!(out, "timeout = {timeout}\nretries = {retries}");
        }
        for (number, known) in group.members.iter().enumerate() {
            let member = known.table();
            let _ = writeln!(out, "\n[[group.member]]   # {}", known.name());
            let _ = writeln!(out, "name = \"{own}_{}\"", number + 1);
            let first = processors[at][number];
            if first == (at, number) {
                let _ = writeln!(out, "speed = {}", member.capacity);
            } else {
                let _ = writeln!(out, "processor = \"{}_{}\"", words[first.0], first.1 + 1);
            }
            let _ = writeln!(out, "weight = {}", member.capacity);
            if let Some(most) = member.max_connections.or(group.max_connections) {
                let _ = writeln!(out, "threads = {most}");
            }
        }
    }
    out
}

/// Returns the same model in the grammar of other tools, with a parameter for each guess.
fn model(file: &str, threads: usize, groups: &[ModelledGroup<'_>]) -> String {
    let (words, shared) = (words(groups), processors(groups));
    let mut head = format!("# The model of {}. Times are in seconds.\n", file.replace(['\n', '\r'], " "));
    head += "# What the file does not say stands here: give what you measured.\n";
    head += "$balancer_demand = 0.00005   # work of one request at the balancer\n";
    let (mut routes, mut processors, mut tasks, mut entries) =
        (String::new(), String::new(), String::new(), String::new());
    let balancer = words.join(" ");
    let mut choices: Vec<String> = Vec::new();
    let _ = writeln!(processors, "  p plimsoll_cores f m {threads}");
    let _ = writeln!(tasks, "  t plimsoll i {balancer} -1 plimsoll_cores");
    for (at, (modelled, own)) in groups.iter().zip(&words).enumerate() {
        let ModelledGroup { group, routing, is_handle_driven: told } = modelled;
        let _ = writeln!(head, "${own}_clients = 100   # clients of group {}", group.name);
        let _ = writeln!(head, "${own}_think = 1   # time for which one waits before its next request");
        let _ = writeln!(head, "${own}_demand = 0.01   # work of one request at a member of capacity 1");
        let _ = writeln!(head, "${own}_cores = 1   # cores of a member");
        // Each retry chooses a member anew. Clients that are redirected choose for themselves.
        let choice = format!("{own}_choice");
        let (from, asked) = match modelled.patience() {
            None if *told => {
                let _ = writeln!(
                    head,
                    "${own}_asks = 0.01   # how often the balancer is asked for a member, for each request"
                );
                let _ = writeln!(entries, "  s {choice} 0 -1\n  y {choice} {own} ${own}_asks -1");
                choices.push(choice.clone());
                (choice.clone(), choice)
            }
            None => (own.clone(), own.clone()),
            Some((timeout, retries)) => {
                let _ = writeln!(routes, "#pragma call.{own}.{choice}=timeout({timeout}) retries({retries})");
                let _ = writeln!(entries, "  f {own} 1 -1\n  y {own} {choice} 1 -1\n  s {choice} 0 -1");
                choices.push(choice.clone());
                (choice, own.clone())
            }
        };
        let _ = writeln!(routes, "#pragma route.{from}={routing}");
        let _ = writeln!(processors, "  p {own}_users f i");
        let _ =
            writeln!(tasks, "  t {own}_client r {own}_client -1 {own}_users z ${own}_think m ${own}_clients");
        // There is exactly one request each time.
        let _ =
            writeln!(entries, "  s {own}_client 0 -1\n  f {own}_client 1 -1\n  y {own}_client {asked} 1 -1");
        let _ = writeln!(entries, "  s {own} $balancer_demand -1");
        let members: Vec<_> = group.members.iter().map(MemberEntry::table).collect();
        let all: f64 = members.iter().map(|member| member.capacity).sum();
        for (number, (member, known)) in members.iter().zip(&group.members).enumerate() {
            let one = format!("{own}_{}", number + 1);
            let first = shared[at][number];
            let cpu = format!("{}_{}_cpu", words[first.0], first.1 + 1);
            if first == (at, number) {
                let _ = writeln!(
                    processors,
                    "  p {cpu} s 0 m ${own}_cores R {}   # {}",
                    member.capacity,
                    known.name()
                );
            }
            let most = member.max_connections.or(group.max_connections);
            let many = most.map_or_else(|| "i".to_owned(), |most| format!("m {most}"));
            let _ = writeln!(tasks, "  t {one} n {one} -1 {cpu} {many}");
            let _ = writeln!(
                entries,
                "  F {from} {one} {} -1\n  s {one} ${own}_demand -1",
                member.capacity / all
            );
        }
    }
    if !choices.is_empty() {
        let _ = writeln!(processors, "  p plimsoll_choice f i");
        let _ = writeln!(tasks, "  t plimsoll_choice i {} -1 plimsoll_choice", choices.join(" "));
    }
    format!(
        "{head}{routes}G \"{}\" 1e-06 50 1 0.9 -1\nP 0\n{processors}-1\nT 0\n{tasks}-1\nE 0\n{entries}-1\n",
        file.replace(['"', '\n', '\r'], "'")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the content of a model, without names and in no order.
    fn meaning(text: &str) -> Vec<String> {
        let model =
            plimsoll_lqn::read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model;
        let tasks = model.tasks.iter().map(|own| {
            let on = &model.processors[own.processor.0];
            let on = (on.scheduling, on.copies, on.speed);
            format!("task {:?}", (own.role, own.copies, own.queue_limit, own.priority, on, own.entries.len()))
        });
        let works = model.activities.iter().map(|own| {
            let calls: Vec<_> =
                own.calls.iter().map(|call| (call.count, call.waits, call.retry_policy)).collect();
            // An order matters only for calls.
            let order = (!calls.is_empty()).then_some(own.order);
            format!("work {:?}", (own.demand, own.variation, own.think, order, calls))
        });
        let routes = model.entries.iter().map(|own| {
            let shares: Vec<f64> = own.forwards.iter().map(|(_, share)| *share).collect();
            format!("route {:?}", (own.arrivals, own.routing, shares))
        });
        let mut all: Vec<String> = tasks.chain(works).chain(routes).collect();
        all.sort();
        all
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
            config::parse("x.toml", text.into_bytes()).unwrap_or_else(|why| panic!("{why}")).config
        };
        for rest in ["", "[group.timeouts]\nper_try = \"250ms\"\n[group.retry]\nattempts = 3\n"] {
            let config = config(rest);
            let groups: Vec<_> =
                config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
            let [lqn, toml] = [model, toml].map(|make| meaning(&make("x.toml", 2, &groups)));
            assert_eq!(lqn, toml, "{rest}");
            assert_eq!(
                lqn.iter().any(|own| own.contains("timeout: 0.25, retries: 3")),
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
        config::parse("x.toml", text.into()).unwrap_or_else(|why| panic!("{why}")).config
    }

    #[test]
    fn clients_that_are_told_where_to_go_do_not_pass_the_balancer() {
        let config = handle_driven();
        let groups: Vec<_> = config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
        let [lqn, toml] = [model, toml].map(|make| make("x.toml", 2, &groups));
        assert_eq!(meaning(&lqn), meaning(&toml), "{lqn}\n{toml}");
        let read =
            plimsoll_lqn::read(&lqn, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{lqn}")).model;
        let (found, end) = plimsoll_lqn::solve(&read);
        assert!(end.converged);
        let through = |name: &str| found.tasks.iter().find(|own| own.name == name).unwrap().throughput.mean;
        // One in a hundred requests of redirected clients asks the balancer; all other requests pass it.
        let expected = through("calls_client") / 100.0 + through("web_client");
        assert!((through("plimsoll") / expected - 1.0).abs() < 0.01, "{} {expected}", through("plimsoll"));
        assert!(!notes(&config.groups[0], &config).join("").contains("retr"), "nothing is tried again here");
    }

    #[test]
    fn an_address_that_several_groups_have_is_one_processor() {
        let config = handle_driven();
        let groups: Vec<_> = config.groups.iter().map(|group| ModelledGroup::new(group, &config)).collect();
        assert_eq!(processors(&groups), [vec![(0, 0), (0, 1)], vec![(0, 1)]]);
        let [lqn, toml] = [model, toml].map(|make| make("x.toml", 2, &groups));
        let on = |text: &str, name: &str| {
            let read =
                plimsoll_lqn::read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}"));
            read.model.tasks.iter().find(|own| own.name == name).unwrap().processor
        };
        for text in [lqn, toml] {
            assert_eq!(on(&text, "web_1"), on(&text, "calls_2"), "{text}");
            assert_ne!(on(&text, "web_1"), on(&text, "calls_1"), "{text}");
        }
        let said = capacities(&groups);
        assert!(said[0].is_empty() && said[1][0].contains("also a member of group calls"), "{said:?}");
    }

    #[test]
    fn what_a_model_leaves_out_is_named() {
        let said = |rest: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8081\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
                 strategy = \"round_robin\"\nmembers = [\"127.0.0.1:1\"]\n{rest}"
            );
            let file = config::parse("x.toml", text.into_bytes()).unwrap_or_else(|why| panic!("{why}"));
            notes(&file.config.groups[0], &file.config).join("\n")
        };
        let none = said("[group.retry]\nattempts = 0\n");
        assert_eq!(none, "");
        for (rest, word) in [
            ("max_rate = 5.0\n", "max_rate is left out"),
            ("admission = true\n", "admission is left out"),
            ("max_connections = 3\nqueue = 7\n", "7 requests wait"),
            ("max_connections = 3\nqueue = 0\n", "queue = 0"),
            ("[group.retry]\nattempts = 2\n", "retry is left out"),
            ("[group.retry]\nattempts = 2\n[group.timeouts]\nper_try = \"1s\"\n", "retry budget"),
        ] {
            assert!(said(rest).contains(word), "{rest}: {}", said(rest));
        }
    }

    #[test]
    fn who_fills_one_before_the_next_and_who_keeps_its_clients() {
        let of = |listener: &str, group: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:8081\"\ngroup = \"web\"\n{listener}[[group]]\nname = \
                 \"web\"\n{group}\
                 members = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n"
            );
            let file = config::parse("x.toml", text.into_bytes()).unwrap_or_else(|why| panic!("{why}"));
            let own = routing(&file.config.groups[0], &file.config).0;
            (own.to_string(), notes(&file.config.groups[0], &file.config).join("\n"))
        };
        let first = "strategy = \"first_available\"\n";
        let (policy, said) = of("", first);
        assert_eq!(policy, "first_available");
        assert!(!said.contains("taken for"), "{said}");
        for listener in ["binding = \"per_session\"\n", "affinity = { cookie = \"member\" }\n"] {
            let (policy, said) = of(listener, first);
            assert!(
                policy == "sticky" && said.contains("clients keep their member"),
                "{listener}: {policy} {said}"
            );
        }
        let (policy, said) = of("binding = \"on_demand\"\n", first);
        assert!(policy == "first_available" && said.contains("keep their member"), "{policy} {said}");
        // A model takes a stream for a request.
        assert_eq!(of("protocol = \"tcp\"\n", first).0, "first_available");
    }

    #[test]
    fn names_are_words_of_the_grammar() {
        for (name, own) in [("web", "web"), ("web-1", "web_1"), ("x", "g_x"), ("1a", "g_1a")] {
            assert_eq!(word(name), own);
        }
    }
}
