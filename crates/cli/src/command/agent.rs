//! `plimsoll agent`: run beside a server, measure its load and report it to the balancers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use object_references::{IiopAddresses, ReferenceOptions, ReferenceSource, SideCarReferences};
use plimsoll_agent::{
    Agent, AgentConfig, AgentError, Cgroup, Registrar, Registration, ScrapeConfig, ScrapeMetric, ServerUrl,
    ValueSnapshot,
};
use plimsoll_balancer::notify_systemd;
use plimsoll_bench::units;
use plimsoll_config::PublicUrl;
use sd_notify::NotifyState;
use side_car::{SideCar, SideCarAddresses, with_group_urls};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::add::capacity;
use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::log;

mod object_references;
pub(super) mod self_status;
mod server_names;
mod side_car;

/// Measure the load of this machine and its server and report it to the balancers
///
/// Reads processors, run queue, pressure (PSI), memory and sockets, a page in the Prometheus text format, and
/// values that programs of this machine report with curl -d 'name=NAME&value=NUMBER' http://LISTEN/v1/report.
/// Needs no privileges; names each unreadable source once. Exits on SIGTERM or Ctrl-C, a side-car after the
/// requests in flight.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address of the server as in the configuration of the balancer; without a port, all servers of that
    /// host, as with several --side-car [default with --iiop and several --side-car: their listening
    /// addresses]
    #[arg(short, long, value_name = "HOST:PORT", required_unless_present_any = ["listen", "once", "stand"])]
    member: Option<String>,

    /// Group of the server, if its address is in several groups
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,

    /// Balancers to push reports to: http://HOST:PORT of `admin.reports`, or unix:/PATH of the control
    /// socket; an unreachable balancer does not delay the others
    #[arg(short, long, value_name = "URL", value_delimiter = ',',
          required_unless_present_any = ["listen", "once", "stand"])]
    report_to: Vec<ServerUrl>,

    /// Register as a member of the group at these balancers while the agent runs; the group must allow
    /// registered members. Balancers accept the registration at `admin.reports` with `register = true`, or at
    /// the control socket. On exit the member is drained
    #[arg(long, requires = "group", requires = "report_to", conflicts_with_all = ["once", "iiop"])]
    register: bool,

    /// Capacity relative to the other members
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, requires = "register", value_parser = capacity,
          allow_negative_numbers = true)]
    capacity: f64,

    /// Maximum number of concurrent requests, connections or flows [default: the group's]
    #[arg(long, value_name = "NUMBER", requires = "register",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,

    /// Time without a message from the agent after which balancers remove the member
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "register", value_parser = ttl)]
    ttl: Duration,

    /// Maximum time for the member's work in flight to end on exit
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "register",
          value_parser = units::parse_duration)]
    drain: Duration,

    /// Interval between reports, with a jitter of 10 %; a change greater than the noise is reported at once
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// Listening address: /load for balancers, /metrics for Prometheus, /v1/report for programs of this
    /// machine; port 0 selects a free port
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Proxy the server's requests (http) or connections (tcp:): count them, add the load of the server to
    /// each response, refuse requests beyond its capacity, and release connections when a balancer alerts.
    /// Repeatable, once for each server on this host: the side-cars then promise and refuse by the capacity
    /// of the host that is left for all of them
    #[arg(long, value_name = "[http:|tcp:]ADDRESS=SERVER", conflicts_with = "once", group = "stand")]
    side_car: Vec<SideCarAddresses>,

    /// The same for the requests of a CORBA server: clients return to the group when a balancer alerts, or
    /// when the server is gone. SERVER is optional with --server-ior
    #[arg(long, value_name = "ADDRESS[=SERVER]", conflicts_with = "once", group = "stand")]
    iiop: Option<IiopAddresses>,

    /// Reference of the server's object: IOR:..., corbaloc:... or a file, which is read again when it changes
    #[arg(long, value_name = "REFERENCE", requires = "iiop")]
    server_ior: Option<ReferenceSource>,

    /// File for that reference with the address of the side-car; use it as the `ior` of the balancer's
    /// configuration
    #[arg(long, value_name = "FILE", requires = "server_ior")]
    ior_file: Option<PathBuf>,

    /// Reference of the group, to which clients return [default: requested from the balancers for --group]
    #[arg(long, value_name = "REFERENCE", requires = "iiop")]
    group_ior: Option<ReferenceSource>,

    /// Also refuse plain connections (tcp:) and CORBA requests at a side-car when the server has as many as
    /// it can process
    #[arg(long, requires = "stand")]
    refuse: bool,

    /// HTTP URL of the group for clients, such as http://balancer:8080: on an alert, clients that send
    /// requests to this server directly are redirected there (307) instead of having their connections
    /// closed. Once for all http --side-car, or once for each
    #[arg(long, value_name = "URL", requires = "side_car")]
    group_url: Vec<PublicUrl>,

    /// Idle time after which plain connections (tcp:) are closed on an alert [default: none]
    #[arg(long, value_name = "TIME", requires = "side_car", value_parser = quiet)]
    shed_idle: Option<Duration>,

    /// URL of a page in the Prometheus text format, such as http://127.0.0.1:9100/metrics
    #[arg(long, value_name = "URL", requires = "metric")]
    scrape: Option<ServerUrl>,

    /// Metric to read from that page: SERIES, NAME=SERIES{label="value"} or, for a counter,
    /// requests_per_second=rate(SERIES); repeatable
    #[arg(long, value_name = "[NAME=]SERIES", requires = "scrape")]
    metric: Vec<ScrapeMetric>,

    /// Control group of the server (version 2), such as system.slice/nginx.service; auto detects that of a
    /// container, off reads none
    #[arg(long, value_name = "PATH|auto|off", default_value = "auto")]
    cgroup: Cgroup,

    /// Local port whose established connections are counted too; slow if there are many
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Path of procfs; another path in a container with the procfs of the host mounted
    #[arg(long, value_name = "PATH", default_value = "/proc")]
    proc: PathBuf,

    /// Measure once, print the measurements and the unreadable sources, and exit; exit code 1 if nothing can
    /// be measured
    #[arg(long)]
    once: bool,

    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = log::LogFormat::Text)]
    log: log::LogFormat,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|error| CliError::failed(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(async {
        if args.once { measure_once(args, globals).await } else { run_until_stopped(args, globals).await }
    });
    // A running look-up of a name must not keep the process from ending.
    runtime.shutdown_background();
    result
}

/// Prints the current numbers.
async fn measure_once(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let config = AgentConfig { report_to: Vec::new(), listen: None, ..config(args) };
    let snapshot = Agent::open(config).await.map_err(startup_failure)?.measure_once().await;
    globals.print_result(&snapshot.full_json(), || render(&snapshot, globals.stdout_has_color()))?;
    Ok(if snapshot.values.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reports until it is stopped.
async fn run_until_stopped(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    log::start(args.log, globals);
    // The signals are taken before anything listens, so that none finds the process unprepared.
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut int)) = signals else {
        return Err(CliError::failed("cannot take signals"));
    };
    let start = |addresses| SideCar::start(addresses, args.refuse, args.shed_idle);
    let mut config = config(args);
    let mut references = None;
    let side_car = match &args.iiop {
        Some(iiop_addresses) => {
            let options = reference_options(args, iiop_addresses);
            let side_car =
                start(vec![SideCarAddresses::iiop(iiop_addresses.listen, options.server_address()?)])?;
            let listen = side_car.bound_addresses().first().copied().unwrap_or(iiop_addresses.listen);
            let inserted = references.insert(SideCarReferences::new(options, listen));
            config.member = Some(inserted.member_name());
            Some(side_car)
        }
        None if args.side_car.is_empty() => None,
        None => Some(start(with_group_urls(args.side_car.clone(), &args.group_url)?)?),
    };
    if let Some(side_car) = side_car.as_ref().filter(|side_car| side_car.bound_addresses().len() > 1) {
        let names = server_names::name_servers(
            args.member.as_deref(),
            side_car.bound_addresses(),
            !args.report_to.is_empty(),
        )?;
        (config.member, config.servers) = (names.host, names.servers);
    }
    let servers = config.servers.clone();
    let member = config.member.clone().unwrap_or_default();
    let agent = Agent::open(config).await.map_err(startup_failure)?;
    if let Some(address) = agent.addr() {
        tracing::info!("listening agent {address}: /load, /metrics, /v1/report");
    }
    for url in &args.report_to {
        let every = units::format_duration(args.interval);
        match servers.as_slice() {
            [] => tracing::info!("reporting to {url} as {member} every {every}"),
            servers => tracing::info!("reporting to {url} as {} every {every}", servers.join(", ")),
        }
    }
    for line in side_car.iter().flat_map(SideCar::lines) {
        tracing::info!("listening {line}");
    }
    if let (Some(references), Some(side_car)) = (&mut references, &side_car) {
        // The server's reference is read before any balancer learns of this side-car.
        let _ = references.refresh(side_car);
    }
    notify_systemd(&[NotifyState::Ready]);
    let registrar = agent.registrar();
    let Some(side_car) = side_car else {
        let shutdown = async {
            wait_for_stop(&mut term, &mut int).await;
            leave_groups(registrar.as_ref(), &mut term, &mut int).await;
        };
        agent.run(shutdown).await;
        notify_systemd(&[NotifyState::Stopping]);
        return Ok(ExitCode::SUCCESS);
    };
    let load_reports = side_car.report_load(&agent);
    let shutdown = async {
        tokio::select! {
            never = load_reports => match never {},
            never = follow_references(references, &side_car) => match never {},
            () = wait_for_stop(&mut term, &mut int) => {}
        }
        notify_systemd(&[NotifyState::Stopping]);
        leave_groups(registrar.as_ref(), &mut term, &mut int).await;
        // The reports go on meanwhile; a second signal ends the agent at once.
        tokio::select! {
            aborted = side_car.stop() => aborted,
            () = wait_for_stop(&mut term, &mut int) => 1,
        }
    };
    let mut aborted_connections = 0;
    agent.run(async { aborted_connections = shutdown.await }).await;
    if aborted_connections > 0 {
        tracing::warn!("not all connections had ended");
    }
    Ok(ExitCode::SUCCESS)
}

/// Leaves the groups, unless a second signal comes.
async fn leave_groups(registrar: Option<&Registrar>, term: &mut Signal, int: &mut Signal) {
    let Some(registrar) = registrar else { return };
    tracing::info!("leaving: draining first");
    tokio::select! {
        () = registrar.leave() => {}
        () = wait_for_stop(term, int) => {}
    }
}

/// Follows the changes of the references of a CORBA server's side-car.
async fn follow_references(references: Option<SideCarReferences>, side_car: &SideCar) -> Infallible {
    match references {
        Some(mut references) => references.poll_changes(side_car).await,
        None => std::future::pending().await,
    }
}

fn reference_options(args: &Args, iiop_addresses: &IiopAddresses) -> ReferenceOptions {
    ReferenceOptions {
        addresses: iiop_addresses.clone(),
        server_reference: args.server_ior.clone(),
        output_file: args.ior_file.clone(),
        group_reference: args.group_ior.clone(),
        group_name: args.group.clone(),
        balancers: args.report_to.clone(),
        member_name: args.member.clone(),
    }
}

fn config(args: &Args) -> AgentConfig {
    let scrape =
        args.scrape.as_ref().map(|url| ScrapeConfig { url: url.clone(), metrics: args.metric.clone() });
    AgentConfig {
        group: args.group.clone(),
        member: args.member.clone(),
        servers: Vec::new(),
        report_to: args.report_to.clone(),
        register: registration(args),
        interval: args.interval,
        listen: args.listen,
        scrape,
        cgroup: args.cgroup.clone(),
        port: args.port,
        proc: args.proc.clone(),
    }
}

fn registration(args: &Args) -> Option<Registration> {
    let group = args.group.clone().filter(|_| args.register)?;
    let Args { capacity, max_connections, ttl, drain, .. } = *args;
    Some(Registration { group, capacity, max_connections, ttl, drain })
}

/// Returns the failure of an error: an address in use is a failure at run time, all others are usage errors.
fn startup_failure(error: AgentError) -> CliError {
    let exit_code =
        if matches!(error, AgentError::Listen { .. }) { CliExitCode::Failed } else { CliExitCode::Usage };
    CliError::new(exit_code, error)
}

async fn wait_for_stop(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    let is_in_range = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    if is_in_range { Ok(interval) } else { Err("expected 100ms to 1h".to_owned()) }
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = units::parse_duration(text)?;
    let is_in_range = (Duration::from_secs(2)..=Duration::from_secs(3600)).contains(&ttl);
    if is_in_range { Ok(ttl) } else { Err("expected 2s to 1h".to_owned()) }
}

fn quiet(text: &str) -> Result<Duration, String> {
    let idle = units::parse_duration(text)?;
    if idle >= Duration::from_millis(10) { Ok(idle) } else { Err("expected 10ms or more".to_owned()) }
}

fn render(snapshot: &ValueSnapshot, color: bool) -> String {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("NAME"),
        TableCell::number("VALUE").style(TextStyle::Strong),
        heading("SOURCE"),
        heading("AGE"),
    ]];
    rows.extend(snapshot.values.iter().map(|value| {
        vec![
            TableCell::text(&value.name),
            TableCell::number(format_number(value.value)),
            TableCell::text(value.source.name()).style(TextStyle::Faint),
            TableCell::text(&format!("{:.1}s", value.age.as_secs_f64())).style(TextStyle::Faint),
        ]
    }));
    let mut out = table(&rows, color);
    if !snapshot.unread.is_empty() {
        let mut rows = vec![vec![heading("NOT READ"), heading("WHAT"), heading("WHY")]];
        rows.extend(snapshot.unread.iter().map(|source| {
            vec![
                TableCell::text(source.sensor),
                TableCell::text(&source.what),
                TableCell::text(&source.why).style(TextStyle::Fair),
            ]
        }));
        out.push('\n');
        out.push_str(&table(&rows, color));
    }
    out
}

/// Returns a number with three decimals at most.
fn format_number(value: f64) -> String {
    let text = format!("{value:.3}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use plimsoll_agent::{MetricValue, UnreadSource, ValueSource};

    use super::*;

    #[test]
    fn the_table() {
        let value = |name: &str, value, source, ms| MetricValue {
            name: name.into(),
            value,
            age: Duration::from_millis(ms),
            source,
        };
        let snapshot = ValueSnapshot {
            group: None,
            member: None,
            servers: Vec::new(),
            values: vec![
                value("cpu", 0.43, ValueSource::Sensor, 0),
                value("requests_per_second", 1234.5, ValueSource::Scraped, 1000),
                value("tcp_sockets", 10.0, ValueSource::Sensor, 0),
            ],
            unread: vec![UnreadSource {
                sensor: "pressure",
                what: "/proc/pressure/cpu".into(),
                why: "No such file or directory (os error 2)".into(),
            }],
        };
        insta::assert_snapshot!(render(&snapshot, false), @"
        NAME                  VALUE  SOURCE   AGE
        cpu                    0.43  sensed   0.0s
        requests_per_second  1234.5  scraped  1.0s
        tcp_sockets              10  sensed   0.0s

        NOT READ  WHAT                WHY
        pressure  /proc/pressure/cpu  No such file or directory (os error 2)
        ");
    }

    #[test]
    fn numbers_are_short() {
        let formatted = [0.0, 1.0, 0.12345, 100.0, 1234.5, 1e9].map(format_number);
        assert_eq!(formatted, ["0", "1", "0.123", "100", "1234.5", "1000000000"]);
    }
}
