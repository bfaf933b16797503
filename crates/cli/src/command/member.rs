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
/// Each request waits, first come first served, until one of the workers is free, and holds it for its
/// service time; or, with --cores, all requests share the cores. Answers name the member in the header
/// x-member. Ends with SIGTERM or Ctrl-C, after the requests in flight.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,

    /// Listen there, too, as often as needed: the same server by another door, as members of several groups
    /// on one host
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["count", "iiop"])]
    also: Vec<SocketAddr>,

    /// Name in x-member [default: the address]
    #[arg(long)]
    name: Option<String>,

    /// So many members in this process, on ports that follow one another (port 0: any free ones); the last
    /// number of the name counts up
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = members)]
    count: usize,

    /// Service time, for which a worker holds a request: none, const:1ms, exp:2ms (mean), uniform:1ms:3ms,
    /// pareto:1.5:1ms (tail index and least value) or lognormal:10ms:1.2:300ms (mean, standard deviation of
    /// the logarithm, and where it is cut)
    #[arg(short, long, value_name = "TIME", default_value = "none")]
    service: ServiceTime,

    /// Service time of dynamic content (http): a path with a query, with cgi-bin, or with the name of a
    /// script [default: the service time]
    #[arg(long, value_name = "TIME")]
    dynamic: Option<ServiceTime>,

    /// Requests served at a time
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    workers: usize,

    /// Number of emulated processors that all requests share: with R > N requests, each gets N/R of the speed
    #[arg(long, value_name = "N", conflicts_with_all = ["workers", "burn", "swaps"], value_parser = above_zero)]
    cores: Option<f64>,

    /// Speed of the cores: 2 does twice the work in a second
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "cores", value_parser = above_zero)]
    speed: f64,

    /// A neighbour of the cores, there and away for exponential times with these means, that leaves a share
    /// of the speed between low and high: on:3s,off:10s,low:0.3,high:0.8
    #[arg(long, value_name = "TIMES", requires = "cores")]
    antagonist: Option<Antagonist>,

    /// Go on with the work for clients that have closed their connection
    #[arg(long, requires = "cores")]
    ignore_cancel: bool,

    /// Requests that may wait for a worker, or share the cores; more get 503, or TRANSIENT (iiop)
    #[arg(long, value_name = "N", default_value_t = 1024)]
    queue: usize,

    /// Burn the processor for the service time, instead of waiting
    #[arg(long)]
    burn: bool,

    /// Extra service time of the first request of a connection (http, iiop), such as 2ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::parse_duration)]
    session: Duration,

    /// Steps of a worker for each request, in place of the service time (http, iiop): work at the member's
    /// emulated processor, which serves in order, and waits, such as cpu:exp:5ms,wait:exp:10ms,cpu:exp:5ms.
    /// LocateRequest (iiop) is answered at once
    #[arg(long, value_name = "STEPS", conflicts_with_all = ["service", "burn", "swaps", "cores", "session", "echo"])]
    steps: Option<ServiceSteps>,

    /// Steps without a worker for a request to the path /receive (http) or to the object Receive (iiop)
    #[arg(long, value_name = "STEPS", requires = "steps")]
    receive: Option<ServiceSteps>,

    /// Answer with the integers of the request's body after so many swaps of two of them (http): real work
    /// instead of a service time
    #[arg(long, value_name = "N", conflicts_with_all = ["service", "burn", "echo", "session"])]
    swaps: Option<u32>,

    /// Send back what comes in: bytes, datagrams, or requests as they arrived [default: an http server that
    /// answers with its name]
    #[arg(long, value_name = "PROTOCOL")]
    echo: Option<EchoMode>,

    /// Begin each connection (tcp) or datagram (udp) with the name
    #[arg(long, requires = "echo")]
    greet: bool,

    /// Serve CORBA clients instead: the object Test::Latency, which says whether a number is prime, under any
    /// key; GIOP 1.0 to 1.2
    #[arg(long, conflicts_with_all = ["echo", "swaps", "meter", "admin"])]
    iiop: bool,

    /// Write the object's reference (IOR) there once it listens, a line for each member [default: print it]
    #[arg(long, value_name = "FILE", requires = "iiop")]
    ior_file: Option<PathBuf>,

    /// Length of an answer's body, such as 1KiB [default: the name]; of CORBA's answers, so many bytes beside
    /// the result
    #[arg(long, value_name = "SIZE", value_parser = body)]
    body: Option<usize>,

    /// Share of the requests that fail, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    fail_rate: f64,

    /// After what time they fail, without being served [default: when they have been]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    fail_after: Option<Duration>,

    /// How they fail: a status from 400 to 599, or close
    #[arg(long, value_name = "HOW", default_value = "500")]
    fail_with: FailureResponse,

    /// Become slower after a while: 10s for ten times, 10s:4 for four times
    #[arg(long, value_name = "TIME[:FACTOR]")]
    slow_after: Option<Slowdown>,

    /// Say with each answer how loaded the member is, and refuse with 503 what it has no room for (http), as
    /// a server with an agent does
    #[arg(long)]
    meter: bool,

    /// Obey POST /_plimsoll/slow?factor=N and /_plimsoll/fail?rate=R (after=TIME, with=HOW), and answer GET
    /// /_plimsoll/count with the requests so far and GET /_plimsoll/load with the share of cores or workers
    /// in use
    #[arg(long)]
    admin: bool,

    /// Obey the same at this address too, over HTTP, whatever is served
    #[arg(long, value_name = "ADDRESS")]
    orders: Option<SocketAddr>,

    /// Tell the agent or the lottery's daemon at this address (its --status or --listen), or a balancer (its
    /// admin.reports), four times a second how many requests there are, as in_flight (http)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["iiop", "echo"])]
    tell: Option<SocketAddr>,

    /// Tell it as the member of this name, as often as needed: a balancer has to know of whom it is told
    #[arg(long, value_name = "MEMBER", requires = "tell", value_parser = visible)]
    tell_as: Vec<String>,

    /// Tell it also how busy the emulated cores or workers are: what share of them is in use as cpu, how many
    /// there are as cpus
    #[arg(long, requires = "tell")]
    tell_busy: bool,

    /// Of service times and failures: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What is sent back.
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
const MEMBERS: usize = 1000;

fn members(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MEMBERS).contains(count));
    count.ok_or_else(|| format!("expected a whole number from 1 to {MEMBERS}"))
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number >= 1e-3 && *number <= 1e6);
    number.ok_or_else(|| "expected a number from 0.001 to 1000000".to_owned())
}

/// Parses a text that may be used in a form as it is.
fn visible(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    let fine = !text.is_empty() && text.bytes().all(plain);
    fine.then(|| text.to_owned())
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
