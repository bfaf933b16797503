//! `plimsoll member`: a test server with adjustable speed and failures.

mod object_references;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_bench::member::{
    self, Antagonist, FailureResponse, MemberProtocol, MemberSpec, ServiceSteps, ServiceTime, Slowdown,
};
use plimsoll_bench::units;
use tokio::signal::unix::{SignalKind, signal};

use self::object_references::MemberReferences;
use super::{CliError, GlobalArgs};

/// Run a test server
///
/// Each request waits in FIFO order until one of the workers is free, and occupies it for its service time;
/// or, with --cores, all requests share the cores. Responses name the member in the header x-member. Exits on
/// SIGTERM or Ctrl-C, after the requests in flight.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Listening address; port 0 selects a free port
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,

    /// Additional listening address of the same server, as for members of several groups on one host;
    /// repeatable
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["count", "iiop"])]
    also: Vec<SocketAddr>,

    /// Name in x-member [default: the address]
    #[arg(long)]
    name: Option<String>,

    /// Number of servers to run, on consecutive ports (port 0: any free ports); the last number of the name
    /// is incremented
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = members)]
    count: usize,

    /// Service time, for which a request occupies a worker: none, const:1ms, exp:2ms (mean), uniform:1ms:3ms,
    /// pareto:1.5:1ms (tail index and minimum) or lognormal:10ms:1.2:300ms (mean, standard deviation of the
    /// logarithm, and upper bound)
    #[arg(short, long, value_name = "TIME", default_value = "none")]
    service: ServiceTime,

    /// Service time of dynamic content (http): a path with a query, with cgi-bin, or with the name of a
    /// script [default: the service time]
    #[arg(long, value_name = "TIME")]
    dynamic: Option<ServiceTime>,

    /// Number of workers, which is the number of requests served at a time
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    workers: usize,

    /// Number of emulated processors that all requests share: with R > N requests, each gets N/R of the speed
    #[arg(long, value_name = "N", conflicts_with_all = ["workers", "burn", "swaps"],
          value_parser = above_zero)]
    cores: Option<f64>,

    /// Speed factor of the cores: 2 does twice the work per second
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "cores", value_parser = above_zero)]
    speed: f64,

    /// Interfering load on the cores, present and absent for exponential times with these means, that leaves
    /// a share of the speed between low and high: on:3s,off:10s,low:0.3,high:0.8
    #[arg(long, value_name = "TIMES", requires = "cores")]
    antagonist: Option<Antagonist>,

    /// Continue the work for clients that have closed their connection
    #[arg(long, requires = "cores")]
    ignore_cancel: bool,

    /// Maximum number of requests that wait for a worker, or share the cores; further requests get 503, or
    /// TRANSIENT (iiop)
    #[arg(long, value_name = "N", default_value_t = 1024)]
    queue: usize,

    /// Use the processor for the service time, instead of waiting
    #[arg(long)]
    burn: bool,

    /// Extra service time of the first request of a connection (http, iiop), such as 2ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::parse_duration)]
    session: Duration,

    /// Steps of a worker for each request, instead of the service time (http, iiop): work at the member's
    /// emulated processor, which serves in FIFO order, and waits, such as
    /// cpu:exp:5ms,wait:exp:10ms,cpu:exp:5ms. LocateRequest (iiop) is answered at once
    #[arg(long, value_name = "STEPS",
          conflicts_with_all = ["service", "burn", "swaps", "cores", "session", "echo"])]
    steps: Option<ServiceSteps>,

    /// Steps without a worker for a request to the path /receive (http) or to the object Receive (iiop)
    #[arg(long, value_name = "STEPS", requires = "steps")]
    receive: Option<ServiceSteps>,

    /// Number of swaps of two integers of the request's body, which is then the response (http): real work
    /// instead of a service time
    #[arg(long, value_name = "N", conflicts_with_all = ["service", "burn", "echo", "session"])]
    swaps: Option<u32>,

    /// Protocol to echo: bytes, datagrams, or requests as they arrived [default: an http server that responds
    /// with its name]
    #[arg(long, value_name = "PROTOCOL")]
    echo: Option<EchoMode>,

    /// Begin each connection (tcp) or datagram (udp) with the name
    #[arg(long, requires = "echo")]
    greet: bool,

    /// Serve CORBA clients instead: the object Test::Latency, which tests whether a number is prime, under
    /// any key; GIOP 1.0 to 1.2
    #[arg(long, conflicts_with_all = ["echo", "swaps", "meter", "admin"])]
    iiop: bool,

    /// File for the object's reference (IOR), written once the server listens, a line for each member
    /// [default: standard output]
    #[arg(long, value_name = "FILE", requires = "iiop")]
    ior_file: Option<PathBuf>,

    /// Size of the response body, such as 1KiB [default: the name]; for CORBA, the number of bytes in
    /// addition to the result
    #[arg(long, value_name = "SIZE", value_parser = body)]
    body: Option<usize>,

    /// Share of the requests that fail, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    fail_rate: f64,

    /// Time after which they fail, without being served [default: after service]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    fail_after: Option<Duration>,

    /// Failure response: a status from 400 to 599, or close
    #[arg(long, value_name = "HOW", default_value = "500")]
    fail_with: FailureResponse,

    /// Time after which the server becomes slower, and the factor: 10s for 10 times, 10s:4 for 4 times
    #[arg(long, value_name = "TIME[:FACTOR]")]
    slow_after: Option<Slowdown>,

    /// Report the load of the member in each response, and refuse requests beyond its capacity with 503
    /// (http), as a server with an agent does
    #[arg(long)]
    meter: bool,

    /// Accept POST /_plimsoll/slow?factor=N and /_plimsoll/fail?rate=R (after=TIME, with=HOW); GET
    /// /_plimsoll/count returns the number of requests so far, GET /_plimsoll/load the share of cores or
    /// workers in use
    #[arg(long)]
    admin: bool,

    /// Additional HTTP address for the requests of --admin, whatever protocol is served
    #[arg(long, value_name = "ADDRESS")]
    orders: Option<SocketAddr>,

    /// Address of the agent or the lottery daemon (its --status or --listen), or of a balancer (its
    /// admin.reports), to which the number of requests is reported four times a second as in_flight (http)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["iiop", "echo"])]
    tell: Option<SocketAddr>,

    /// Name of the member in these reports, repeatable: a balancer requires it
    #[arg(long, value_name = "MEMBER", requires = "tell", value_parser = visible)]
    tell_as: Vec<String>,

    /// Also report the share of the emulated cores or workers in use as cpu, and their number as cpus
    #[arg(long, requires = "tell")]
    tell_busy: bool,

    /// Seed of service times and failures; the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The protocol of an echo server.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EchoMode {
    Tcp,
    Udp,
    Http,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let spec = MemberSpec {
        protocol: match args.echo {
            None if args.iiop => MemberProtocol::Iiop,
            None => MemberProtocol::Http,
            Some(EchoMode::Http) => MemberProtocol::HttpEcho,
            Some(EchoMode::Tcp) => MemberProtocol::Tcp,
            Some(EchoMode::Udp) => MemberProtocol::Udp,
        },
        more_addresses: args.also.clone(),
        name: args.name.clone(),
        count: args.count,
        service: args.service,
        dynamic: args.dynamic,
        workers: args.workers,
        cores: args.cores,
        speed: args.speed,
        antagonist: args.antagonist,
        ignore_cancel: args.ignore_cancel,
        queue_limit: args.queue,
        burn: args.burn,
        session_cost: args.session,
        steps: args.steps.clone(),
        receive_steps: args.receive.clone(),
        admin_address: args.orders,
        swaps: args.swaps,
        body_length: args.body,
        fail_rate: args.fail_rate,
        fail_after: args.fail_after,
        refusal: args.fail_with,
        slowdown: args.slow_after,
        meter: args.meter,
        admin: args.admin,
        report_to: args.tell,
        report_as: args.tell_as.clone(),
        report_utilization: args.tell_busy,
        greet: args.greet,
        seed: args.seed,
        ..MemberSpec::new(args.listen)
    };
    let kind = spec.protocol.name();
    let references = MemberReferences::new(if args.iiop { args.count } else { 0 }, args.ior_file.as_deref());
    let listening = |address| {
        globals.print_message(&format!("listening {kind} {address}\n"));
        references.add(address);
    };
    let stop = async {
        tokio::select! {
            () = wait_for_stop() => {}
            () = references.wait_for_failure() => {}
        }
    };
    member::serve(spec, listening, stop).map_err(|error| {
        CliError::failed(format_args!("cannot serve on {}: {error}; {}", args.listen, hint(&error)))
    })?;
    references.result()?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the first SIGTERM or SIGINT.
async fn wait_for_stop() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without a handler the signals keep their default: they end the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "stop what listens there, or choose another port (0 takes a free one)"
        }
        std::io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        std::io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
        std::io::ErrorKind::InvalidInput => "choose another --name",
        _ => "choose another address",
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number from 1 on".to_owned())
}

/// The maximum number of members in a process.
const MAX_MEMBERS: usize = 1000;

fn members(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_MEMBERS).contains(count));
    count.ok_or_else(|| format!("expected a whole number from 1 to {MAX_MEMBERS}"))
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number >= 1e-3 && *number <= 1e6);
    number.ok_or_else(|| "expected a number from 0.001 to 1000000".to_owned())
}

/// Parses a text that may be used in a form as it is.
fn visible(text: &str) -> Result<String, String> {
    let is_allowed_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    let is_valid = !text.is_empty() && text.bytes().all(is_allowed_byte);
    is_valid
        .then(|| text.to_owned())
        .ok_or_else(|| "expected an address or a name, such as 10.0.0.1:80".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn body(text: &str) -> Result<usize, String> {
    let size = units::parse_bytes(text)?;
    // The body is kept in memory.
    if size > 1 << 30 { Err("at most 1GiB".to_owned()) } else { Ok(size) }
}
