//! Members and balancer of one point, and the faults while it runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::Trouble;
use super::arrivals::Count;
use super::child::{Child, Tie};
use super::crew::{Count as Crowd, Hire, Hirer, Roll};
use super::cycle::{self, Scene};
use super::doors::Doors;
use super::drive::{self, Clients, Door, Drive};
use super::experiment::{
    Act, Architecture, BalancerKind, COPIES, Crew, Experiment, Fault, Lasting, Load, Members, Protocol,
    Setting, Settings,
};
use super::fellows::{self, Fellow};
use super::front::{Front, Wiring, ask, ask_within};
use super::lottery::{self, Cluster, Counts};
use super::network::{Network, Seat};
use super::plan::{Offer, Point};
use super::side_car::SideCar;
use super::usage;
use crate::member::{RECEIVE, Refusal};

/// All processes of a point but the load generator. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Stage {
    fronts: Vec<Front>,
    /// The daemons of a lottery beside the members.
    cluster: Option<Cluster>,
    /// The number of clients that ask these, if there is no balancer.
    clients: usize,
    side_cars: Vec<SideCar>,
    members: Vec<Member>,
    tie: Tie,
    folder: PathBuf,
    /// The arguments of each member, without its name, address and seed.
    told: Vec<Vec<String>>,
    seed: u64,
    /// The application, and the addresses at which its servers report their busy times.
    application: Option<(Setting, Vec<SocketAddr>)>,
    protocol: Protocol,
    commands: Vec<String>,
    /// The scaler, and the last numbers of members.
    hirer: Option<(Hirer, Crowd)>,
    /// The last field, so that it is dropped after its users.
    network: Network,
}

#[derive(Debug)]
struct Member {
    name: String,
    address: SocketAddr,
    /// `None` while it is dead.
    child: Option<Child>,
    /// The number of its starts.
    life: u32,
    stopped: bool,
}

impl Member {
    fn new(name: String, address: SocketAddr, child: Child) -> Self {
        Self { name, address, child: Some(child), life: 1, stopped: false }
    }
}

/// The time-out for a member's counters: a slow member must not delay the ticks.
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
        let mut told: Vec<Vec<String>> =
            (1..=point.members).map(|number| told(experiment.members.of(number), session, point)).collect();
        let mut hire = None;
        if let (Some(crew), Some(first)) = (&point.crew, told.first()) {
            hire = Some(Hire::new(tie, crew, first, point.seed));
            told.clear();
        }
        let mut network = Network::build(&experiment.network)?;
        let doors = point.groups.map(|groups| Doors::new(&network, groups, point.balancer.hidden));
        let mut doors = doors.transpose()?;
        let (mut started, mut statuses, mut orders) = (Vec::new(), Vec::new(), Vec::new());
        for (number, told) in (1..).zip(&mut told) {
            network.add()?;
            if point.balancer.draws().is_some() {
                let status = lottery::status(&network, number)?;
                told.push(format!("--tell={status}"));
                statuses.push(status);
            }
            let listen = network.listen(Seat::Member(number))?;
            if let Some(doors) = &mut doors {
                told.extend(doors.open(&network, listen)?);
            }
            if let Some(application) = &point.application {
                let place = network.listen(Seat::Member(number))?;
                told.extend(served(application, number, place));
                orders.push(place);
            }
            started.push(start(tie, &network, told, number, listen, point.seed, folder)?);
        }
        let mut members = Vec::new();
        let mut commands = Vec::new();
        for (name, mut child) in started {
            let address = child.address(point.protocol.name())?;
            commands.push(child.command().to_owned());
            members.push(Member::new(name, address, child));
        }
        let mut addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
        let settings = Settings { retries: point.retries, ..experiment.balancer.clone() };
        let host = network.host(Seat::Balancer)?;
        let reports = doors.as_ref().map(Doors::reports);
        let mut wiring = Wiring { protocol: point.protocol, hire, reports, doors, ..Wiring::default() };
        if let Some(application) = &point.application {
            wiring.asks = application.age.map(Duration::from_secs_f64);
            wiring.key = (application.architecture == Architecture::Forward).then_some(RECEIVE);
        }
        let mut side_cars = Vec::new();
        if point.side_cars {
            let free = || network.listen(Seat::Balancer);
            (wiring.listen, wiring.reports) = (Some(free()?), Some(free()?));
            wiring.interval = settings.plimsoll.interval();
            for (number, address) in (1..).zip(&mut addresses) {
                let start = || SideCar::start(tie, &wiring, number, *address, folder);
                let side_car = network.at(Seat::Member(number), start)?;
                commands.push(side_car.child.command().to_owned());
                *address = side_car.address;
                side_cars.push(side_car);
            }
        }
        let mut cluster = None;
        if let Some(way) = point.balancer.draws() {
            let started = Cluster::start(tie, &network, experiment, way, &addresses, &statuses, folder)?;
            let started = cluster.insert(started);
            started.ready(tie, &network, &addresses)?;
            commands.extend(started.commands());
            wiring.lottery = Some(started.known(host));
        }
        let instances = point.instances.unwrap_or(1);
        let alone = point.balancer.kind == BalancerKind::Lottery;
        let (between, clients) = if alone { (0, instances) } else { (instances, 0) };
        // An application has a balancer for each service, which knows only the servers of that service.
        let apart = point.application.is_some();
        let between = if apart { addresses.len().div_ceil(COPIES) } else { between };
        let behind = |number: usize| match apart {
            true => addresses.chunks(COPIES).nth(number - 1).unwrap_or_default(),
            false => &addresses[..],
        };
        let fellows = match point.balancer.fleet {
            Some(each) => Fellow::all(between, host, each, folder)?,
            None => Vec::new(),
        };
        let mut fronts = Vec::new();
        for number in 1..=between {
            let folder =
                if number == 1 { folder.to_owned() } else { folder.join(format!("balancer-{number}")) };
            std::fs::create_dir_all(&folder)
                .map_err(|error| Trouble::failed(format!("cannot make {}: {error}", folder.display())))?;
            fronts.push(network.at(Seat::Balancer, || {
                let wiring = Wiring { fellow: fellows.get(number - 1).cloned(), ..wiring.clone() };
                Front::start(tie, &point.balancer, &settings, wiring, behind(number), host, &folder)
            })?);
        }
        for (number, front) in (1..).zip(&mut fronts) {
            network.at(Seat::Balancer, || front.ready(behind(number).len()))?;
        }
        if !fellows.is_empty() {
            network.at(Seat::Balancer, || fellows::met(&mut fronts))?;
        }
        commands.extend(fronts.iter().filter_map(|front| Some(front.child()?.command().to_owned())));
        Ok(Self {
            fronts,
            cluster,
            clients,
            side_cars,
            members,
            tie: tie.clone(),
            folder: folder.to_owned(),
            told,
            seed: point.seed,
            application: point.application.map(|application| (application, orders)),
            protocol: point.protocol,
            commands,
            hirer: point.crew.as_ref().map(|crew| (Hirer::new(crew), Crowd::default())),
            network,
        })
    }

    /// Lets the scaler decide, if it is time to.
    pub(super) fn tend(&mut self, now: Duration) -> Result<(), Trouble> {
        let (Some((hirer, _)), Some(front)) = (&mut self.hirer, self.fronts.first_mut()) else {
            return Ok(());
        };
        hirer.tend(front, now.as_secs_f64())
    }

    /// Returns the numbers of members since the last call; `rate` is the load in the middle of that time.
    pub(super) fn roll(&mut self, crew: &Crew, rate: f64) -> Result<Roll, Trouble> {
        let now = self.fronts.first().and_then(Front::crowd);
        let now = now.ok_or_else(|| Trouble::failed("plimsoll does not say how many members there are"))?;
        let before = self.hirer.as_mut().map_or(now, |(_, last)| std::mem::replace(last, now));
        Ok(Roll {
            there: f64::from(before.there + now.there) / 2.0,
            serving: before.serving.min(now.serving),
            needed: crew.needed(rate),
        })
    }

    /// Starts the load on the clients' host.
    pub(super) fn load(
        &self,
        load: &Load,
        drive: Drive,
        offer: Offer,
        lasting: Lasting,
        seed: u64,
    ) -> Result<Clients, Trouble> {
        let mut doors: Vec<Door> = self.fronts.iter().flat_map(Front::doors).collect();
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.clients > 0) {
            let known = cluster.known(self.network.host(Seat::Client)?);
            doors.resize(self.clients, Door::Pick(known));
        }
        let clients = if let Offer::Concurrency(clients) = offer { clients } else { 0 };
        if let Some((setting, _)) = &self.application {
            let members = self.members.iter().map(|member| (member.name.clone(), member.address)).collect();
            let scene =
                Scene { setting: *setting, protocol: self.protocol, doors, members, timeout: load.timeout.0 };
            let started = self.network.at(Seat::Client, || cycle::start(scene, clients, seed));
            return started.map(Clients::Cycles);
        }
        let picker = self.tie.picker;
        self.network.at(Seat::Client, || drive::start(load, drive, clients, &doors, lasting, seed, picker))
    }

    /// Returns the command lines of all processes.
    pub(super) fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Returns plimsoll's status, of the first of several; without a balancer that of the lottery's daemons.
    pub(super) fn status(&self) -> Option<String> {
        let Some(first) = self.fronts.first() else {
            return Some(self.cluster.as_ref()?.said(&self.network));
        };
        self.network.at(Seat::Balancer, || Ok(first.status())).ok().flatten()
    }

    /// Returns the counters of the lottery's daemons, if there are any and all of them answer.
    pub(super) fn drawn(&self) -> Option<Counts> {
        self.cluster.as_ref()?.counts(&self.network)
    }

    /// Returns the number of sessions that the balancers have moved so far; `None` if one does not report it.
    pub(super) fn moved(&self) -> Option<u64> {
        let moved = |front: &Front| self.network.at(Seat::Balancer, || Ok(front.moved())).ok().flatten();
        self.fronts.iter().map(moved).sum()
    }

    /// Fails if a balancer, a side-car, or a member that no fault killed has ended.
    pub(super) fn alive(&mut self) -> Result<(), Trouble> {
        self.fronts.iter_mut().try_for_each(Front::alive)?;
        self.side_cars.iter_mut().try_for_each(|side_car| side_car.child.alive())?;
        self.cluster.as_mut().map_or(Ok(()), Cluster::alive)?;
        self.members.iter_mut().filter_map(|member| member.child.as_mut()).try_for_each(Child::alive)
    }

    /// Returns the processor time in seconds: that of the balancers and a lottery's daemons, and that of all
    /// living members.
    pub(super) fn used(&self) -> (f64, f64) {
        let of =
            |child: Option<&Child>| child.and_then(|child| usage::of_process(child.pid())).unwrap_or(0.0);
        let balancers: f64 = self.fronts.iter().map(|front| of(front.child())).sum();
        let daemons = self.cluster.as_ref().map_or(0.0, Cluster::cpu);
        (balancers + daemons, self.members.iter().map(|member| of(member.child.as_ref())).sum())
    }

    /// Returns the names of the members, those that have joined included.
    pub(super) fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.name.clone()).collect()
    }

    /// Returns the requests that arrived at each member since its start.
    pub(super) fn counts(&self) -> Vec<Count> {
        // The query runs on the member's own host, which works even while that is cut off.
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

    /// Returns the busy seconds of threads and processor of each server of the application; `None` if one
    /// does not answer.
    pub(super) fn served(&self) -> Option<Vec<(f64, f64)>> {
        let (_, orders) = self.application.as_ref()?;
        let used = |(number, place): (usize, &SocketAddr)| {
            let ask = || Ok(ask_within(PATIENCE, *place, "GET", "/_plimsoll/count").ok());
            let text = self.network.at(Seat::Member(number), ask).ok()??;
            let said: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some((said["threads"].as_f64()?, said["processor"].as_f64()?))
        };
        (1..).zip(orders).map(used).collect()
    }

    /// Performs a fault.
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
                if let Some(cluster) = &mut self.cluster {
                    cluster.kill(network, number);
                }
                Ok(())
            }
            (Act::Start, None) => {
                let address = member.address;
                let told = told_to(&self.told, number);
                let (_, mut child) =
                    start(&self.tie, network, told, number, address, self.seed, &self.folder)?;
                // The log still holds the address of the first process: the port itself is polled.
                let end = std::time::Instant::now() + super::child::PATIENCE;
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
                let cluster = self.cluster.as_mut();
                cluster.map_or(Ok(()), |cluster| cluster.again(&self.tie, network, number))
            }
            (Act::Stop, Some(child)) => {
                member.stopped = true;
                child.signal(Signal::STOP)
            }
            (Act::Continue, Some(child)) => {
                member.stopped = false;
                child.signal(Signal::CONT)
            }
            (Act::Slow | Act::Fail, Some(_)) => {
                let fail = |error| Trouble::failed(format!("cannot harm {}: {error}", member.name));
                network.at(seat, || ask(member.address, "POST", &order(fault)).map(drop).map_err(fail))
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
        let told = told_to(&self.told, number);
        let (name, mut child) =
            start(&self.tie, &self.network, told, number, listen, self.seed, &self.folder)?;
        let address = child.address("http")?;
        self.members.push(Member::new(name, address, child));
        let addresses: Vec<SocketAddr> = self.members.iter().map(|member| member.address).collect();
        self.fronts.iter_mut().try_for_each(|front| front.members(&addresses))
    }
}

/// Returns the arguments of the member with this number; one that joins has those of the last.
fn told_to(told: &[Vec<String>], number: usize) -> &[String] {
    told.get(number.wrapping_sub(1)).or_else(|| told.last()).map_or(&[], Vec::as_slice)
}

/// Returns the order that makes a member slow or fail.
fn order(fault: &Fault) -> String {
    if fault.act == Act::Slow {
        return format!("/_plimsoll/slow?factor={}", fault.factor.unwrap_or(1.0));
    }
    let after = fault.after.map_or(Duration::ZERO, |span| span.0).as_micros();
    let with = match fault.with {
        Some(Refusal::Close) => "close".to_owned(),
        Some(Refusal::Status(status)) => status.to_string(),
        None => "500".to_owned(),
    };
    format!("/_plimsoll/fail?rate={}&after={after}us&with={with}", fault.rate.unwrap_or(1.0))
}

/// Returns the arguments of a member.
fn told(members: &Members, session: Duration, point: &Point) -> Vec<String> {
    let iiop = point.protocol == Protocol::Iiop;
    let first = if iiop { "--iiop" } else { "--admin" };
    let mut told = vec![first.to_owned(), format!("--queue={}", members.queue)];
    match members.cores {
        Some(cores) => {
            told.push(format!("--cores={cores}"));
            told.extend(members.speed.map(|speed| format!("--speed={speed}")));
            told.extend(members.antagonist.map(|antagonist| format!("--antagonist={antagonist}")));
            told.extend(members.ignore_cancel.then(|| "--ignore-cancel".to_owned()));
        }
        None => told.push(format!("--workers={}", members.workers)),
    }
    if let Some(service) = members.service.as_ref().filter(|_| point.application.is_none()) {
        told.push(format!("--service={service}"));
    }
    if let Some(dynamic) = &members.dynamic {
        told.push(format!("--dynamic={dynamic}"));
    }
    if let Some(swaps) = members.swaps {
        told.push(format!("--swaps={swaps}"));
    }
    if members.meter || point.balancer.agents && !iiop {
        told.push("--meter".to_owned());
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

/// Returns the further arguments of a server of the application; it reports its busy times at `orders`.
fn served(application: &Setting, number: usize, orders: SocketAddr) -> Vec<String> {
    let (steps, receive) = application.steps(number);
    let mut told = vec![
        format!("--steps={steps}"),
        format!("--orders={orders}"),
        format!("--body={}", application.length),
    ];
    told.extend(receive.map(|receive| format!("--receive={receive}")));
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

#[cfg(test)]
mod tests;
