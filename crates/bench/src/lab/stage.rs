//! Members and balancer of one point, and what is done to them while it runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::Trouble;
use super::arrivals::Count;
use super::child::{Child, Tie};
use super::drive::{self, Drive};
use super::experiment::{Act, Experiment, Fault, Load};
use super::front::{Front, ask, ask_within};
use super::network::{Network, Seat};
use super::plan::Point;
use super::usage;
use crate::run::Run;

/// Everything that runs for a point but the load. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Stage {
    front: Front,
    members: Vec<Member>,
    tie: Tie,
    folder: PathBuf,
    /// What every member is told, but its name, address and seed.
    told: Vec<String>,
    seed: u64,
    commands: Vec<String>,
    /// Last, so that it goes after those who use it.
    network: Network,
}

#[derive(Debug)]
struct Member {
    name: String,
    address: SocketAddr,
    /// `None` while it is dead.
    child: Option<Child>,
    /// How often it was started.
    life: u32,
    stopped: bool,
}

impl Member {
    fn new(name: String, address: SocketAddr, child: Child) -> Self {
        Self { name, address, child: Some(child), life: 1, stopped: false }
    }
}

/// For a member to say how many requests it has had: a member that is slow must not hold up the clock.
const PATIENCE: Duration = Duration::from_millis(50);

impl Stage {
    /// Starts everything in `folder` and waits until the balancer may use every member.
    pub(super) fn build(
        tie: &Tie,
        experiment: &Experiment,
        point: &Point,
        session: Duration,
        folder: &Path,
    ) -> Result<Self, Trouble> {
        let told = told(experiment, session);
        let mut network = Network::build(&experiment.network)?;
        let mut started = Vec::new();
        for number in 1..=point.members {
            network.add()?;
            let listen = network.listen(Seat::Member(number))?;
            started.push(start(tie, &network, &told, number, listen, point.seed, folder)?);
        }
        let mut members = Vec::new();
        let mut commands = Vec::new();
        for (name, mut child) in started {
            let address = child.address("http")?;
            commands.push(child.command().to_owned());
            members.push(Member::new(name, address, child));
        }
        let addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
        let host = network.listen(Seat::Balancer)?.ip();
        let front = network.at(Seat::Balancer, || {
            Front::start(tie, &point.balancer, &experiment.balancer, &addresses, host, folder)
        })?;
        commands.extend(front.child().map(|child| child.command().to_owned()));
        Ok(Self {
            front,
            members,
            tie: tie.clone(),
            folder: folder.to_owned(),
            told,
            seed: point.seed,
            commands,
            network,
        })
    }

    /// Starts the load, from where the clients are.
    pub(super) fn load(
        &self,
        load: &Load,
        drive: Drive,
        length: Duration,
        seed: u64,
    ) -> Result<Run, Trouble> {
        self.network.at(Seat::Client, || drive::start(load, drive, self.front.address, length, seed))
    }

    /// The command lines of all processes, as they were started.
    pub(super) fn commands(&self) -> &[String] {
        &self.commands
    }

    /// What plimsoll says of itself.
    pub(super) fn status(&self) -> Option<String> {
        self.network.at(Seat::Balancer, || Ok(self.front.status())).ok().flatten()
    }

    /// An error if the balancer has ended, or a member that nobody killed.
    pub(super) fn alive(&mut self) -> Result<(), Trouble> {
        self.front.alive()?;
        self.members.iter_mut().filter_map(|member| member.child.as_mut()).try_for_each(Child::alive)
    }

    /// Seconds of processor time of the balancer, and of all members that live.
    pub(super) fn used(&self) -> (f64, f64) {
        let of =
            |child: Option<&Child>| child.and_then(|child| usage::of_process(child.pid())).unwrap_or(0.0);
        (of(self.front.child()), self.members.iter().map(|member| of(member.child.as_ref())).sum())
    }

    /// Names of the members, those that have joined included.
    pub(super) fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.name.clone()).collect()
    }

    /// How many requests have come to each member since it was started.
    pub(super) fn counts(&self) -> Vec<Count> {
        // Asked from its own host, where it hears even when it is cut off.
        let requests = |number: usize, member: &Member| {
            let ask = || Ok(ask_within(PATIENCE, member.address, "GET", "/_plimsoll/count").ok());
            let text = self.network.at(Seat::Member(number), ask).ok()??;
            serde_json::from_str::<serde_json::Value>(&text).ok()?["requests"].as_u64()
        };
        let count = |(number, member): (usize, &Member)| {
            if member.child.is_none() || member.stopped {
                return Count::Still;
            }
            let said = |requests| Count::Said { life: member.life, requests };
            requests(number, member).map_or(Count::Silent, said)
        };
        (1..).zip(&self.members).map(count).collect()
    }

    /// Does what a fault says.
    pub(super) fn act(&mut self, fault: &Fault) -> Result<(), Trouble> {
        if fault.act == Act::Add {
            return self.grow();
        }
        let number = fault.member;
        let Some(member) = self.members.get_mut(number.wrapping_sub(1)) else {
            return Err(Trouble::failed(format!("there is no member {number} to harm")));
        };
        let network = &self.network;
        let seat = Seat::Member(number);
        match (fault.act, &mut member.child) {
            (Act::CutOff, _) => network.cut(number),
            (Act::Join, _) => network.join(number),
            (Act::Kill, child) => {
                if let Some(mut child) = child.take() {
                    child.kill();
                }
                Ok(())
            }
            (Act::Start, None) => {
                let address = member.address;
                let (_, mut child) =
                    start(&self.tie, network, &self.told, number, address, self.seed, &self.folder)?;
                // Its first words are from its first life: ask the port itself.
                let end = std::time::Instant::now() + Duration::from_secs(5);
                while !network.at(seat, || Ok(ask(member.address, "GET", "/healthz").is_ok()))? {
                    child.alive()?;
                    if std::time::Instant::now() > end {
                        return Err(Trouble::failed(format!("{} does not come back", member.name)));
                    }
                    std::thread::sleep(super::child::LOOK);
                }
                member.child = Some(child);
                member.life += 1;
                member.stopped = false;
                Ok(())
            }
            (Act::Stop, Some(child)) => {
                member.stopped = true;
                child.signal(Signal::STOP)
            }
            (Act::Continue, Some(child)) => {
                member.stopped = false;
                child.signal(Signal::CONT)
            }
            (Act::Slow, Some(_)) => {
                let path = format!("/_plimsoll/slow?factor={}", fault.factor.unwrap_or(1.0));
                let fail = |error| Trouble::failed(format!("cannot slow {} down: {error}", member.name));
                network.at(seat, || ask(member.address, "POST", &path).map(drop).map_err(fail))
            }
            (Act::Start, Some(_)) => Err(Trouble::failed(format!("{} runs already", member.name))),
            (_, None) => Err(Trouble::failed(format!("{} does not run", member.name))),
            (Act::Add, _) => Ok(()),
        }
    }

    /// Starts another member and makes the balancer use it.
    fn grow(&mut self) -> Result<(), Trouble> {
        let number = self.members.len() + 1;
        self.network.add()?;
        let listen = self.network.listen(Seat::Member(number))?;
        let (name, mut child) =
            start(&self.tie, &self.network, &self.told, number, listen, self.seed, &self.folder)?;
        let address = child.address("http")?;
        self.members.push(Member::new(name, address, child));
        let addresses: Vec<SocketAddr> = self.members.iter().map(|member| member.address).collect();
        self.front.members(&addresses)
    }
}

/// The flags of every member.
fn told(experiment: &Experiment, session: Duration) -> Vec<String> {
    let members = &experiment.members;
    let mut told = vec![
        "--admin".to_owned(),
        format!("--workers={}", members.workers),
        format!("--queue={}", members.queue),
    ];
    if let Some(service) = &members.service {
        told.push(format!("--service={service}"));
    }
    if let Some(swaps) = members.swaps {
        told.push(format!("--swaps={swaps}"));
    }
    if members.burn {
        told.push("--burn".to_owned());
    }
    if !session.is_zero() {
        told.push(format!("--session={}us", session.as_micros()));
    }
    if let Some(body) = members.body {
        told.push(format!("--body={}", body.0));
    }
    told
}

/// Starts member `number` on its host.
fn start(
    tie: &Tie,
    network: &Network,
    told: &[String],
    number: usize,
    listen: SocketAddr,
    seed: u64,
    folder: &Path,
) -> Result<(String, Child), Trouble> {
    let name = format!("m{number}");
    let mut arguments = vec![
        "member".to_owned(),
        format!("--listen={listen}"),
        format!("--name={name}"),
        format!("--seed={}", seed.wrapping_mul(1000).wrapping_add(number as u64)),
    ];
    arguments.extend_from_slice(told);
    let child =
        network.at(Seat::Member(number), || Child::start(tie, &name, &tie.program, &arguments, folder))?;
    Ok((name, child))
}
