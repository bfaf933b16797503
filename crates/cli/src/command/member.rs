//! `plimsoll member`: a test server that can be told how fast and how badly it serves.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_bench::member::{self, Kind, Refusal, Service, Slowdown, Spec};
use plimsoll_bench::units;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, Globals};

/// Run a test server
///
/// Each request waits, first come first served, until one of the workers is free, and holds it for its
/// service time. Answers name the member in the header x-member. Ends with SIGTERM or Ctrl-C, after the
/// requests in flight.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,

    /// Name in x-member [default: the address]
    #[arg(long)]
    name: Option<String>,

    /// How long a worker holds a request: none, const:1ms, exp:2ms (mean), uniform:1ms:3ms or
    /// pareto:1.5:1ms (tail index and least value)
    #[arg(short, long, value_name = "TIME", default_value = "none")]
    service: Service,

    /// Requests served at a time
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    workers: usize,

    /// Requests that may wait for a worker; more get 503
    #[arg(long, value_name = "N", default_value_t = 1024)]
    queue: usize,

    /// Burn the processor for the service time, instead of waiting
    #[arg(long)]
    burn: bool,

    /// How much longer a worker holds the first request of a connection (http), such as 2ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    session: Duration,

    /// Answer with the integers of the request's body after so many swaps of two of them (http): real work
    /// instead of a service time
    #[arg(long, value_name = "N", conflicts_with_all = ["service", "burn", "echo", "session"])]
    swaps: Option<u32>,

    /// Send back what comes in: bytes, datagrams, or requests as they arrived [default: an http server that
    /// answers with its name]
    #[arg(long, value_name = "PROTOCOL")]
    echo: Option<Echo>,

    /// Begin each connection (tcp) or datagram (udp) with the name
    #[arg(long, requires = "echo")]
    greet: bool,

    /// Length of an answer's body, such as 1KiB [default: the name]
    #[arg(long, value_name = "SIZE", value_parser = body)]
    body: Option<usize>,

    /// Share of the requests that fail, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    fail_rate: f64,

    /// How they fail: a status from 400 to 599, or close
    #[arg(long, value_name = "HOW", default_value = "500")]
    fail_with: Refusal,

    /// Become slower after a while: 10s for ten times, 10s:4 for four times
    #[arg(long, value_name = "TIME[:FACTOR]")]
    slow_after: Option<Slowdown>,

    /// Obey POST /_plimsoll/slow?factor=N, and answer GET /_plimsoll/count with the requests so far
    #[arg(long)]
    admin: bool,

    /// Of service times and failures: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What is sent back.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Echo {
    Tcp,
    Udp,
    Http,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let spec = Spec {
        kind: match args.echo {
            None => Kind::Http,
            Some(Echo::Http) => Kind::HttpEcho,
            Some(Echo::Tcp) => Kind::Tcp,
            Some(Echo::Udp) => Kind::Udp,
        },
        name: args.name.clone(),
        service: args.service,
        workers: args.workers,
        queue: args.queue,
        burn: args.burn,
        session: args.session,
        swaps: args.swaps,
        body: args.body,
        fail_rate: args.fail_rate,
        refusal: args.fail_with,
        slow_after: args.slow_after,
        admin: args.admin,
        greet: args.greet,
        seed: args.seed,
        ..Spec::new(args.listen)
    };
    let kind = spec.kind.name();
    member::serve(spec, |address| globals.say(&format!("listening {kind} {address}\n")), told_to_stop())
        .map_err(|error| {
            Failure::failed(format_args!("cannot serve on {}: {error}; {}", args.listen, hint(&error)))
        })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends with the first SIGTERM or SIGINT.
async fn told_to_stop() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Then the signals do what they do by default: end the process.
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

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn body(text: &str) -> Result<usize, String> {
    let size = units::bytes(text)?;
    // It is kept in memory.
    if size > 1 << 30 { Err("at most 1GiB".to_owned()) } else { Ok(size) }
}
