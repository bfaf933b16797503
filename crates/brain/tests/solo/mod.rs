//! One server with its meter in virtual time. Requests beyond the limit are rejected, as a balancer and the
//! member itself would do.

use plimsoll_brain::meter::{Meter, MeteredRequest};
use plimsoll_brain::{Time, mix};

/// A server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    /// Processors, threads or places in a batch.
    pub(crate) cores: usize,
}

/// The way in which it works on several requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    /// All at once, slowed down in proportion to their excess.
    Sharing,
    /// A thread for each processor, the others wait in order.
    Fifo,
    /// Ample processors, but the last part of each request is serial: a `cores`th of it.
    Lock,
    /// Up to `cores` at once, in the time of one; later ones wait.
    Batch,
}

/// The distribution of work; 10 ms in the mean.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Constant,
    Exponential,
    Lognormal,
}

/// The arrivals.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// Random ones, with this multiple of the server's capacity.
    Open(f64),
    /// Clients that ask again a millisecond after each answer or rejection.
    Closed(usize),
}

/// The results.
#[derive(Default)]
pub(crate) struct Learned {
    /// The knee, mean of the second half.
    pub(crate) knee: f64,
    /// The requests answered, as a share of the server's capacity, over the second half.
    pub(crate) goodput: f64,
}

struct Request {
    job: MeteredRequest,
    /// The seconds left before the lock, and under it.
    apart: f64,
    alone: f64,
    running: bool,
}

/// The mean work, seconds.
const WORK: f64 = 0.010;

/// The virtual seconds of a run.
const LASTS: f64 = 60.0;

struct Dice(u64);

impl Dice {
    /// Returns a number strictly between 0 and 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((mix(self.0) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    fn exp(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    fn work(&mut self, work: Work) -> f64 {
        match work {
            Work::Constant => WORK,
            Work::Exponential => self.exp(WORK),
            Work::Lognormal => {
                let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
                ((WORK.ln() - 0.72 + 1.2 * normal).exp()).min(0.3)
            }
        }
    }
}

/// Runs it for a minute.
pub(crate) fn learn(member: &Member, arrivals: Arrivals, seed: u64) -> Learned {
    let mut dice = Dice(mix(seed));
    let mut meter = Meter::new(Time(0));
    let mut server: Vec<Request> = Vec::new();
    // The times of the clients' next requests.
    let capacity = member.cores as f64 / WORK;
    let mut asks: Vec<f64> = match arrivals {
        Arrivals::Open(_) => vec![0.0],
        Arrivals::Closed(clients) => (0..clients).map(|_| dice.exp(WORK)).collect(),
    };
    let mut now = 0.0_f64;
    let (mut learned, mut answered) = (Learned::default(), 0_u64);
    while now < LASTS {
        let rates = rates(member, &mut server);
        let (turn, ask) =
            asks.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY));
        let next = server
            .iter()
            .zip(&rates)
            .map(
                |(request, rate)| {
                    if request.apart > 0.0 { request.apart / rate } else { request.alone / rate }
                },
            )
            .fold(f64::INFINITY, f64::min);
        let then = ask.min(now + next);
        let step = then - now;
        let half = then > LASTS / 2.0;
        if half {
            let knee = f64::from(meter.reading().knee);
            learned.knee += knee * step / (LASTS / 2.0);
        }
        now = then;
        for (request, rate) in server.iter_mut().zip(&rates) {
            let done = rate * step;
            if request.apart > 0.0 {
                request.apart -= done;
                if request.apart < 1e-12 {
                    request.apart = 0.0;
                }
            } else {
                request.alone -= done;
            }
        }
        while let Some(index) =
            server.iter().position(|request| request.apart <= 0.0 && request.alone < 1e-12)
        {
            let request = server.remove(index);
            meter.end(request.job, true, time(now));
            answered += u64::from(half);
            if let Arrivals::Closed(_) = arrivals {
                asks.push(now + dice.exp(0.001));
            }
        }
        if then < ask {
            continue;
        }
        match arrivals {
            Arrivals::Open(load) => asks[turn] = now + dice.exp(1.0 / (load * capacity)),
            Arrivals::Closed(_) => {
                asks.swap_remove(turn);
            }
        }
        let knee = f64::from(meter.reading().knee);
        if server.len() as f64 >= (knee + 2.0 * knee.sqrt()).ceil() || meter.is_full() {
            if let Arrivals::Closed(_) = arrivals {
                asks.push(now + dice.exp(0.001));
            }
            continue;
        }
        let work = dice.work(member.work);
        let alone = if member.kind == Kind::Lock { work / member.cores as f64 } else { work };
        let job = meter.begin(time(now));
        server.push(Request { job, apart: work - alone, alone, running: false });
    }
    learned.goodput = answered as f64 / (LASTS / 2.0) / capacity;
    learned
}

/// Returns the speed of each request; starts those that may start.
fn rates(member: &Member, server: &mut [Request]) -> Vec<f64> {
    let cores = member.cores as f64;
    match member.kind {
        Kind::Sharing => vec![(cores / server.len() as f64).min(1.0); server.len()],
        Kind::Fifo => (0..server.len()).map(|rank| if rank < member.cores { 1.0 } else { 0.0 }).collect(),
        Kind::Lock => {
            // The first that has come to the lock holds it.
            let mut held = false;
            server
                .iter()
                .map(|request| {
                    let waits = request.apart <= 0.0 && held;
                    held |= request.apart <= 0.0;
                    if waits { 0.0 } else { 1.0 }
                })
                .collect()
        }
        Kind::Batch => {
            if server.iter().all(|request| !request.running) {
                let longest =
                    server.iter().take(member.cores).map(|request| request.alone).fold(0.0, f64::max);
                for request in server.iter_mut().take(member.cores) {
                    (request.running, request.alone) = (true, longest);
                }
            }
            server.iter().map(|request| if request.running { 1.0 } else { 0.0 }).collect()
        }
    }
}

fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}
