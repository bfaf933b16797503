//! Members and balancer of one point, and the faults while it runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::LabError;
use super::app_clients::{self, ClientEnvironment};
use super::arrivals::ArrivalCount;
use super::child_process::{ChildProcess, ProcessLauncher};
use super::cpu_time;
use super::experiment::{
    AgentArchitecture, BalancerKind, BalancerSettings, COPIES, Experiment, FaultAction, FaultInjection,
    LoadDuration, LoadProtocol, LoadSettings, MemberGroup, PointApplication, PointScaler,
};
use super::fleet::{self, FleetPeer};
use super::load_driver::{self, LoadClients, LoadDestination, LoadLoop};
use super::lottery::{self, DaemonCounters, LotteryCluster};
use super::network::{PointHost, PointNetwork};
use super::plan::{ExperimentPoint, OfferedLoad};
use super::proxy_under_test::{ProxyUnderTest, ProxyWiring, http_request, http_request_within};
use super::scaling::{LabScaler, MemberCounts, ScaledMembers as Crowd, ScalerSetup};
use super::shared_servers::SharedServers;
use super::side_car::SideCar;
use crate::member::{FailureResponse, RECEIVE};

/// All processes of a point but the load generator. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Testbed {
    proxies: Vec<ProxyUnderTest>,
    /// The daemons of a lottery beside the members.
    lottery: Option<LotteryCluster>,
    /// The number of clients that ask these, if there is no balancer.
    clients: usize,
    side_cars: Vec<SideCar>,
    members: Vec<TestbedMember>,
    launcher: ProcessLauncher,
    folder: PathBuf,
    /// The arguments of each member, without its name, address and seed.
    member_arguments: Vec<Vec<String>>,
    seed: u64,
    /// The application, and the addresses at which its servers report their busy times.
    application: Option<(PointApplication, Vec<SocketAddr>)>,
    protocol: LoadProtocol,
    commands: Vec<String>,
    /// The scaler, and the last numbers of members.
    scaler: Option<(LabScaler, Crowd)>,
    /// The last field, so that it is dropped after its users.
    network: PointNetwork,
}

#[derive(Debug)]
struct TestbedMember {
    name: String,
    address: SocketAddr,
    /// `None` while it is dead.
    child: Option<ChildProcess>,
    /// The number of its starts.
    starts: u32,
    stopped: bool,
}

impl TestbedMember {
    fn new(name: String, address: SocketAddr, child: ChildProcess) -> Self {
        Self { name, address, child: Some(child), starts: 1, stopped: false }
    }
}

/// The time-out for a member's counters: a slow member must not delay the ticks.
const COUNT_TIMEOUT: Duration = Duration::from_millis(50);

impl Testbed {
    /// Starts everything in `folder` and waits until the balancer may use every member.
    pub(super) fn build(
        launcher: &ProcessLauncher,
        experiment: &Experiment,
        point: &ExperimentPoint,
        session_time: Duration,
        folder: &Path,
    ) -> Result<Self, LabError> {
        let mut member_arguments: Vec<Vec<String>> = (1..=point.members)
            .map(|number| arguments_for(experiment.members.group_of(number), session_time, point))
            .collect();
        let mut scaler_setup = None;
        if let (Some(scaler), Some(first)) = (&point.scaler, member_arguments.first()) {
            scaler_setup = Some(ScalerSetup::new(launcher, scaler, first, point.seed));
            member_arguments.clear();
        }
        let mut network = PointNetwork::build(&experiment.network)?;
        let shared_servers =
            point.groups.map(|groups| SharedServers::new(&network, groups, point.balancer.hides_hosts));
        let mut shared_servers = shared_servers.transpose()?;
        let (mut started, mut statuses, mut admin_addresses) = (Vec::new(), Vec::new(), Vec::new());
        for (number, arguments) in (1..).zip(&mut member_arguments) {
            network.add()?;
            if point.balancer.lottery_query().is_some() {
                let status = lottery::choose_status_address(&network, number)?;
                arguments.push(format!("--tell={status}"));
                statuses.push(status);
            }
            let listen = network.free_address(PointHost::Member(number))?;
            if let Some(shared_servers) = &mut shared_servers {
                arguments.extend(shared_servers.add_server(&network, listen)?);
            }
            if let Some(application) = &point.application {
                let admin_address = network.free_address(PointHost::Member(number))?;
                arguments.extend(server_arguments(application, number, admin_address));
                admin_addresses.push(admin_address);
            }
            started.push(start_member(launcher, &network, arguments, number, listen, point.seed, folder)?);
        }
        let mut members = Vec::new();
        let mut commands = Vec::new();
        for (name, mut process) in started {
            let address = process.address(point.protocol.name())?;
            commands.push(process.command().to_owned());
            members.push(TestbedMember::new(name, address, process));
        }
        let mut addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
        let settings = BalancerSettings { retries: point.retries, ..experiment.balancer.clone() };
        let host = network.host(PointHost::Balancer)?;
        let report_address = shared_servers.as_ref().map(SharedServers::report_address);
        let mut wiring = ProxyWiring {
            protocol: point.protocol,
            scaler: scaler_setup,
            report_address,
            shared_servers,
            ..ProxyWiring::default()
        };
        if let Some(application) = &point.application {
            wiring.poll_interval = application.age.map(Duration::from_secs_f64);
            wiring.object_key = (application.architecture == AgentArchitecture::Forward).then_some(RECEIVE);
        }
        let mut side_cars = Vec::new();
        if point.side_cars {
            let free_address = || network.free_address(PointHost::Balancer);
            (wiring.listen, wiring.report_address) = (Some(free_address()?), Some(free_address()?));
            wiring.report_interval = settings.plimsoll.report_interval();
            for (number, address) in (1..).zip(&mut addresses) {
                let start_side_car = || SideCar::start(launcher, &wiring, number, *address, folder);
                let side_car = network.run_on(PointHost::Member(number), start_side_car)?;
                commands.push(side_car.child.command().to_owned());
                *address = side_car.address;
                side_cars.push(side_car);
            }
        }
        let mut lottery = None;
        if let Some(query_mode) = point.balancer.lottery_query() {
            let new_cluster = LotteryCluster::start(
                launcher, &network, experiment, query_mode, &addresses, &statuses, folder,
            )?;
            let running_cluster = lottery.insert(new_cluster);
            running_cluster.wait_until_ready(launcher, &network, &addresses)?;
            commands.extend(running_cluster.commands());
            wiring.lottery = Some(running_cluster.picker_settings(host));
        }
        let instances = point.instances.unwrap_or(1);
        let is_lottery = point.balancer.kind == BalancerKind::Lottery;
        let (proxy_count, client_count) = if is_lottery { (0, instances) } else { (instances, 0) };
        // An application has a balancer for each service, which knows only the servers of that service.
        let has_application = point.application.is_some();
        let proxy_count = if has_application { addresses.len().div_ceil(COPIES) } else { proxy_count };
        let members_behind = |number: usize| match has_application {
            true => addresses.chunks(COPIES).nth(number - 1).unwrap_or_default(),
            false => &addresses[..],
        };
        let fleet_peers = match point.balancer.fleet_interval {
            Some(interval) => FleetPeer::create_all(proxy_count, host, interval, folder)?,
            None => Vec::new(),
        };
        let mut proxies = Vec::new();
        for number in 1..=proxy_count {
            let folder =
                if number == 1 { folder.to_owned() } else { folder.join(format!("balancer-{number}")) };
            std::fs::create_dir_all(&folder)
                .map_err(|error| LabError::failed(format!("cannot make {}: {error}", folder.display())))?;
            proxies.push(network.run_on(PointHost::Balancer, || {
                let wiring =
                    ProxyWiring { fleet_peer: fleet_peers.get(number - 1).cloned(), ..wiring.clone() };
                ProxyUnderTest::start(
                    launcher,
                    &point.balancer,
                    &settings,
                    wiring,
                    members_behind(number),
                    host,
                    &folder,
                )
            })?);
        }
        for (number, proxy) in (1..).zip(&mut proxies) {
            network.run_on(PointHost::Balancer, || proxy.wait_until_ready(members_behind(number).len()))?;
        }
        if !fleet_peers.is_empty() {
            network.run_on(PointHost::Balancer, || fleet::wait_for_reports(&mut proxies))?;
        }
        commands.extend(proxies.iter().filter_map(|proxy| Some(proxy.child()?.command().to_owned())));
        Ok(Self {
            proxies,
            lottery,
            clients: client_count,
            side_cars,
            members,
            launcher: launcher.clone(),
            folder: folder.to_owned(),
            member_arguments,
            seed: point.seed,
            application: point.application.map(|application| (application, admin_addresses)),
            protocol: point.protocol,
            commands,
            scaler: point.scaler.as_ref().map(|scaler| (LabScaler::new(scaler), Crowd::default())),
            network,
        })
    }

    /// Lets the scaler decide, if it is time to.
    pub(super) fn run_scaler(&mut self, now: Duration) -> Result<(), LabError> {
        let (Some((lab_scaler, _)), Some(proxy)) = (&mut self.scaler, self.proxies.first_mut()) else {
            return Ok(());
        };
        lab_scaler.run_if_due(proxy, now.as_secs_f64())
    }

    /// Returns the numbers of members since the last call; `rate` is the load in the middle of that time.
    pub(super) fn member_counts(
        &mut self,
        scaler: &PointScaler,
        rate: f64,
    ) -> Result<MemberCounts, LabError> {
        let current_members = self.proxies.first().and_then(ProxyUnderTest::scaled_members);
        let current_members = current_members
            .ok_or_else(|| LabError::failed("plimsoll does not say how many members there are"))?;
        let previous_members = self
            .scaler
            .as_mut()
            .map_or(current_members, |(_, previous)| std::mem::replace(previous, current_members));
        Ok(MemberCounts {
            there: f64::from(previous_members.existing + current_members.existing) / 2.0,
            serving: previous_members.serving.min(current_members.serving),
            needed: scaler.needed_members(rate),
        })
    }

    /// Starts the load on the clients' host.
    pub(super) fn start_load(
        &self,
        load: &LoadSettings,
        load_loop: LoadLoop,
        offered_load: OfferedLoad,
        load_duration: LoadDuration,
        seed: u64,
    ) -> Result<LoadClients, LabError> {
        let mut destinations: Vec<LoadDestination> =
            self.proxies.iter().flat_map(ProxyUnderTest::destinations).collect();
        if let Some(cluster) = self.lottery.as_ref().filter(|_| self.clients > 0) {
            let picker_settings = cluster.picker_settings(self.network.host(PointHost::Client)?);
            destinations.resize(self.clients, LoadDestination::Lottery(picker_settings));
        }
        let clients = if let OfferedLoad::Concurrency(clients) = offered_load { clients } else { 0 };
        if let Some((application, _)) = &self.application {
            let members = self.members.iter().map(|member| (member.name.clone(), member.address)).collect();
            let environment = ClientEnvironment {
                application: *application,
                protocol: self.protocol,
                destinations,
                members,
                timeout: load.timeout.0,
            };
            let app_clients =
                self.network.run_on(PointHost::Client, || app_clients::start(environment, clients, seed));
            return app_clients.map(LoadClients::AppClients);
        }
        let picker = self.launcher.open_picker;
        self.network.run_on(PointHost::Client, || {
            load_driver::start_load(load, load_loop, clients, &destinations, load_duration, seed, picker)
        })
    }

    /// Returns the command lines of all processes.
    pub(super) fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Returns plimsoll's status, of the first of several; without a balancer that of the lottery's daemons.
    pub(super) fn status(&self) -> Option<String> {
        let Some(proxy) = self.proxies.first() else {
            return Some(self.lottery.as_ref()?.statuses(&self.network));
        };
        self.network.run_on(PointHost::Balancer, || Ok(proxy.status())).ok().flatten()
    }

    /// Returns the counters of the lottery's daemons, if there are any and all of them answer.
    pub(super) fn daemon_counters(&self) -> Option<DaemonCounters> {
        self.lottery.as_ref()?.counters(&self.network)
    }

    /// Returns the number of sessions that the balancers have moved so far; `None` if one does not report it.
    pub(super) fn moved_sessions(&self) -> Option<u64> {
        let moved_by = |proxy: &ProxyUnderTest| {
            self.network.run_on(PointHost::Balancer, || Ok(proxy.moved_sessions())).ok().flatten()
        };
        self.proxies.iter().map(moved_by).sum()
    }

    /// Fails if a balancer, a side-car, or a member that no fault killed has ended.
    pub(super) fn check_alive(&mut self) -> Result<(), LabError> {
        self.proxies.iter_mut().try_for_each(ProxyUnderTest::check_alive)?;
        self.side_cars.iter_mut().try_for_each(|side_car| side_car.child.check_alive())?;
        self.lottery.as_mut().map_or(Ok(()), LotteryCluster::check_alive)?;
        self.members
            .iter_mut()
            .filter_map(|member| member.child.as_mut())
            .try_for_each(ChildProcess::check_alive)
    }

    /// Returns the processor time in seconds: that of the balancers and a lottery's daemons, and that of all
    /// living members.
    pub(super) fn cpu_times(&self) -> (f64, f64) {
        let child_cpu_time = |child: Option<&ChildProcess>| {
            child.and_then(|child| cpu_time::of_process(child.pid())).unwrap_or(0.0)
        };
        let balancers: f64 = self.proxies.iter().map(|proxy| child_cpu_time(proxy.child())).sum();
        let daemons = self.lottery.as_ref().map_or(0.0, LotteryCluster::cpu_time);
        (balancers + daemons, self.members.iter().map(|member| child_cpu_time(member.child.as_ref())).sum())
    }

    /// Returns the names of the members, those that have joined included.
    pub(super) fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.name.clone()).collect()
    }

    /// Returns the requests that arrived at each member since its start.
    pub(super) fn arrival_counts(&self) -> Vec<ArrivalCount> {
        // The query runs on the member's own host, which works even while that is cut off.
        let request_count = |number: usize, member: &TestbedMember| {
            let fetch_count =
                || Ok(http_request_within(COUNT_TIMEOUT, member.address, "GET", "/_plimsoll/count").ok());
            let text = self.network.run_on(PointHost::Member(number), fetch_count).ok()??;
            serde_json::from_str::<serde_json::Value>(&text).ok()?["requests"].as_u64()
        };
        let arrival_count = |(number, member): (usize, &TestbedMember)| {
            if member.child.is_none() || member.stopped {
                return ArrivalCount::NotRunning;
            }
            let reported = |requests| ArrivalCount::Reported { incarnation: member.starts, requests };
            request_count(number, member).map_or(ArrivalCount::NoAnswer, reported)
        };
        (1..).zip(&self.members).map(arrival_count).collect()
    }

    /// Returns the busy seconds of threads and processor of each server of the application; `None` if one
    /// does not answer.
    pub(super) fn server_busy_times(&self) -> Option<Vec<(f64, f64)>> {
        let (_, admin_addresses) = self.application.as_ref()?;
        let busy_times = |(number, admin_address): (usize, &SocketAddr)| {
            let fetch_count =
                || Ok(http_request_within(COUNT_TIMEOUT, *admin_address, "GET", "/_plimsoll/count").ok());
            let text = self.network.run_on(PointHost::Member(number), fetch_count).ok()??;
            let counts: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some((counts["threads"].as_f64()?, counts["processor"].as_f64()?))
        };
        (1..).zip(admin_addresses).map(busy_times).collect()
    }

    /// Performs a fault.
    pub(super) fn inject_fault(&mut self, fault: &FaultInjection) -> Result<(), LabError> {
        if fault.act == FaultAction::Add {
            return self.add_member();
        }
        let number = fault.member;
        let Some(member) = self.members.get_mut(number.wrapping_sub(1)) else {
            return Err(LabError::failed(format!("there is no member {number} to harm")));
        };
        let network = &self.network;
        let point_host = PointHost::Member(number);
        match (fault.act, &mut member.child) {
            (FaultAction::CutOff, _) => network.disconnect(number),
            (FaultAction::Join, _) => network.reconnect(number),
            (FaultAction::Kill, child) => {
                if let Some(mut child) = child.take() {
                    child.kill();
                }
                if let Some(cluster) = &mut self.lottery {
                    cluster.kill(network, number);
                }
                Ok(())
            }
            (FaultAction::Start, None) => {
                let address = member.address;
                let arguments = arguments_of(&self.member_arguments, number);
                let (_, mut child) = start_member(
                    &self.launcher,
                    network,
                    arguments,
                    number,
                    address,
                    self.seed,
                    &self.folder,
                )?;
                // The log still holds the address of the first process: the port itself is polled.
                let deadline = std::time::Instant::now() + super::child_process::STARTUP_TIMEOUT;
                while !network
                    .run_on(point_host, || Ok(http_request(member.address, "GET", "/healthz").is_ok()))?
                {
                    child.check_alive()?;
                    if std::time::Instant::now() > deadline {
                        return Err(LabError::failed(format!("{} does not come back", member.name)));
                    }
                    std::thread::sleep(super::child_process::POLL_INTERVAL);
                }
                member.child = Some(child);
                member.starts += 1;
                member.stopped = false;
                let cluster = self.lottery.as_mut();
                cluster.map_or(Ok(()), |cluster| cluster.restart(&self.launcher, network, number))
            }
            (FaultAction::Stop, Some(child)) => {
                member.stopped = true;
                child.signal(Signal::STOP)
            }
            (FaultAction::Continue, Some(child)) => {
                member.stopped = false;
                child.signal(Signal::CONT)
            }
            (FaultAction::Slow | FaultAction::Fail, Some(_)) => {
                let fault_error = |error| LabError::failed(format!("cannot harm {}: {error}", member.name));
                network.run_on(point_host, || {
                    http_request(member.address, "POST", &admin_query(fault)).map(drop).map_err(fault_error)
                })
            }
            (FaultAction::Start, Some(_)) => Err(LabError::failed(format!("{} runs already", member.name))),
            (_, None) => Err(LabError::failed(format!("{} does not run", member.name))),
            (FaultAction::Add, _) => Ok(()),
        }
    }

    /// Starts another member and makes the balancer use it.
    fn add_member(&mut self) -> Result<(), LabError> {
        let number = self.members.len() + 1;
        self.network.add()?;
        let listen = self.network.free_address(PointHost::Member(number))?;
        let arguments = arguments_of(&self.member_arguments, number);
        let (name, mut process) =
            start_member(&self.launcher, &self.network, arguments, number, listen, self.seed, &self.folder)?;
        let address = process.address("http")?;
        self.members.push(TestbedMember::new(name, address, process));
        let addresses: Vec<SocketAddr> = self.members.iter().map(|member| member.address).collect();
        self.proxies.iter_mut().try_for_each(|proxy| proxy.set_members(&addresses))
    }
}

/// Returns the arguments of the member with this number; one that joins has those of the last.
fn arguments_of(arguments_by_member: &[Vec<String>], number: usize) -> &[String] {
    arguments_by_member
        .get(number.wrapping_sub(1))
        .or_else(|| arguments_by_member.last())
        .map_or(&[], Vec::as_slice)
}

/// Returns the order that makes a member slow or fail.
fn admin_query(fault: &FaultInjection) -> String {
    if fault.act == FaultAction::Slow {
        return format!("/_plimsoll/slow?factor={}", fault.factor.unwrap_or(1.0));
    }
    let after = fault.after.map_or(Duration::ZERO, |duration| duration.0).as_micros();
    let response = match fault.with {
        Some(FailureResponse::Close) => "close".to_owned(),
        Some(FailureResponse::Status(status)) => status.to_string(),
        None => "500".to_owned(),
    };
    format!("/_plimsoll/fail?rate={}&after={after}us&with={response}", fault.rate.unwrap_or(1.0))
}

/// Returns the arguments of a member.
fn arguments_for(members: &MemberGroup, session_time: Duration, point: &ExperimentPoint) -> Vec<String> {
    let is_iiop = point.protocol == LoadProtocol::Iiop;
    let protocol_flag = if is_iiop { "--iiop" } else { "--admin" };
    let mut arguments = vec![protocol_flag.to_owned(), format!("--queue={}", members.queue)];
    match members.cores {
        Some(cores) => {
            arguments.push(format!("--cores={cores}"));
            arguments.extend(members.speed.map(|speed| format!("--speed={speed}")));
            arguments.extend(members.antagonist.map(|antagonist| format!("--antagonist={antagonist}")));
            arguments.extend(members.ignore_cancel.then(|| "--ignore-cancel".to_owned()));
        }
        None => arguments.push(format!("--workers={}", members.workers)),
    }
    if let Some(service) = members.service.as_ref().filter(|_| point.application.is_none()) {
        arguments.push(format!("--service={service}"));
    }
    if let Some(dynamic) = &members.dynamic {
        arguments.push(format!("--dynamic={dynamic}"));
    }
    if let Some(swaps) = members.swaps {
        arguments.push(format!("--swaps={swaps}"));
    }
    if members.meter || point.balancer.has_agents && !is_iiop {
        arguments.push("--meter".to_owned());
    }
    if members.burn {
        arguments.push("--burn".to_owned());
    }
    if !session_time.is_zero() {
        arguments.push(format!("--session={}us", session_time.as_micros()));
    }
    if let Some(body) = members.body {
        arguments.push(format!("--body={}", body.0));
    }
    arguments
}

/// Returns the further arguments of a server of the application; it reports its busy times at `orders`.
fn server_arguments(application: &PointApplication, number: usize, admin_address: SocketAddr) -> Vec<String> {
    let (steps, receive) = application.steps(number);
    let mut arguments = vec![
        format!("--steps={steps}"),
        format!("--orders={admin_address}"),
        format!("--body={}", application.length),
    ];
    arguments.extend(receive.map(|receive| format!("--receive={receive}")));
    arguments
}

/// Starts member `number` on its host.
fn start_member(
    launcher: &ProcessLauncher,
    network: &PointNetwork,
    member_arguments: &[String],
    number: usize,
    listen: SocketAddr,
    seed: u64,
    folder: &Path,
) -> Result<(String, ChildProcess), LabError> {
    let name = format!("m{number}");
    let mut arguments = vec![
        "member".to_owned(),
        format!("--listen={listen}"),
        format!("--name={name}"),
        format!("--seed={}", seed.wrapping_mul(1000).wrapping_add(number as u64)),
    ];
    arguments.extend_from_slice(member_arguments);
    let child = network.run_on(PointHost::Member(number), || {
        ChildProcess::start(launcher, &name, &launcher.program, &arguments, folder)
    })?;
    Ok((name, child))
}

#[cfg(test)]
mod tests;
