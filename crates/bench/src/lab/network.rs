//! Separate hosts for client, balancer and members: network namespaces that are joined by a switch.
//!
//! Every host is a namespace with an interface `eth0`; the peer of that interface is a port of a bridge in
//! one more namespace, the hub. The machine's own network is not affected. A cable can be pulled: with its
//! port down a host receives no packet and sends none, not even a reset.
//!
//! The namespaces have no names. The runner holds them by open files, and processes hold them by running in
//! them. When all of these have ended, in any way, the kernel removes the namespaces and their links.
//! Processes and threads that a thread starts inside a namespace stay there, because they inherit it.
//!
//! Without `[network] namespaces` all are on the loopback interface, and this module does nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::child::LOOK;
use super::experiment;
use super::front::find;
use super::{Trouble, ports};

/// A participant of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    Client,
    Balancer,
    /// A member, counted from 1.
    Member(usize),
}

/// The network of a point. After it is dropped, the kernel removes it once its processes have ended.
#[derive(Debug)]
pub(super) struct Network(Option<Hosts>);

#[derive(Debug)]
struct Hosts {
    /// The namespace of the runner.
    home: File,
    hub: File,
    client: Host,
    balancer: Host,
    members: Vec<Host>,
    delay: Option<Duration>,
}

#[derive(Debug)]
struct Host {
    /// Its port in the hub.
    port: String,
    address: Ipv4Addr,
    namespace: File,
}

/// The time-out for the creation of a namespace.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of packets that a delayed link holds.
const HELD: u32 = 100_000;

/// Returns the reason why this machine cannot have the experiment's network; `None` if it can.
pub(super) fn lacking(wanted: &experiment::Network) -> Option<String> {
    let trial = || {
        if !wanted.namespaces {
            return Ok(());
        }
        let mut network = Network::build(wanted)?;
        network.add()?;
        network.cut(1)?;
        network.join(1)
    };
    trial().err().map(|why| why.to_string())
}

impl Network {
    /// Creates the network with client and balancer, or none if none is configured.
    pub(super) fn build(wanted: &experiment::Network) -> Result<Self, Trouble> {
        if !wanted.namespaces {
            return Ok(Self(None));
        }
        let home = open(Path::new("/proc/thread-self/ns/net"))?;
        let hub = namespace()?;
        within(&home, &hub, || ip("link add br0 type bridge\nlink set br0 up\n"))?;
        let delay = wanted.delay.map(|span| span.0).filter(|delay| !delay.is_zero());
        let client = Host::plug(&home, &hub, "client", Ipv4Addr::new(198, 18, 0, 1), delay)?;
        let balancer = Host::plug(&home, &hub, "balancer", Ipv4Addr::new(198, 18, 0, 2), delay)?;
        Ok(Self(Some(Hosts { home, hub, client, balancer, members: Vec::new(), delay })))
    }

    /// Creates the host of the next member.
    pub(super) fn add(&mut self) -> Result<(), Trouble> {
        let Some(hosts) = &mut self.0 else { return Ok(()) };
        let number = hosts.members.len() + 1;
        // The block is reserved for tests of networks: 198.18.1.1 is the first.
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 1, 0).to_bits() + number as u32);
        let host = Host::plug(&hosts.home, &hosts.hub, &format!("m{number}"), address, hosts.delay)?;
        hosts.members.push(host);
        Ok(())
    }

    /// Returns the address of a participant's host.
    pub(super) fn host(&self, seat: Seat) -> Result<IpAddr, Trouble> {
        Ok(IpAddr::V4(match &self.0 {
            None => Ipv4Addr::LOCALHOST,
            Some(hosts) => hosts.host(seat)?.address,
        }))
    }

    /// Chooses a free address on a participant's host; it stays free while a process that listened there is
    /// dead.
    pub(super) fn listen(&self, seat: Seat) -> Result<SocketAddr, Trouble> {
        let host = self.host(seat)?;
        self.at(seat, || ports::free(host))
    }

    /// Performs `act` on a participant's host. Processes and threads that it starts stay there.
    pub(super) fn at<T>(&self, seat: Seat, act: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        match &self.0 {
            None => act(),
            Some(hosts) => within(&hosts.home, &hosts.host(seat)?.namespace, act),
        }
    }

    /// Pulls the cable of a member.
    pub(super) fn cut(&self, member: usize) -> Result<(), Trouble> {
        self.port(member, "down")
    }

    /// Plugs it in again.
    pub(super) fn join(&self, member: usize) -> Result<(), Trouble> {
        self.port(member, "up")
    }

    fn port(&self, member: usize, state: &str) -> Result<(), Trouble> {
        let Some(hosts) = &self.0 else {
            return Err(Trouble::failed("a member on the loopback interface has no cable"));
        };
        let port = &hosts.host(Seat::Member(member))?.port;
        within(&hosts.home, &hosts.hub, || ip(&format!("link set {port} {state}\n")))
    }
}

impl Hosts {
    fn host(&self, seat: Seat) -> Result<&Host, Trouble> {
        let host = match seat {
            Seat::Client => Some(&self.client),
            Seat::Balancer => Some(&self.balancer),
            Seat::Member(number) => number.checked_sub(1).and_then(|index| self.members.get(index)),
        };
        host.ok_or_else(|| Trouble::failed(format!("{seat:?} has no host")))
    }
}

impl Host {
    /// Creates a namespace and joins it to the hub.
    fn plug(
        home: &File,
        hub: &File,
        port: &str,
        address: Ipv4Addr,
        delay: Option<Duration>,
    ) -> Result<Self, Trouble> {
        let namespace = namespace()?;
        let place = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        within(home, hub, || {
            let mut lines = String::new();
            let _ = writeln!(lines, "link add {port} type veth peer name eth0 netns {place}");
            let _ = writeln!(lines, "link set {port} master br0 up");
            ip(&lines)
        })?;
        within(home, &namespace, || {
            ip(&format!("address add {address}/16 dev eth0\nlink set lo up\nlink set eth0 up\n"))?;
            // The kernel does this by itself on the loopback interface: it reuses a port within the minute
            // for which it remembers a closed connection. The file belongs to this namespace. If it cannot be
            // written, there are 28,000 ports per minute for each pair of hosts.
            let _ = std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1");
            delay.map_or(Ok(()), slow)
        })?;
        Ok(Self { port: port.to_owned(), address, namespace })
    }
}

/// Delays packets that leave by `eth0`.
fn slow(delay: Duration) -> Result<(), Trouble> {
    let (delay, held) = (format!("{}us", delay.as_micros()), HELD.to_string());
    let words = ["qdisc", "add", "dev", "eth0", "root", "netem", "delay", &delay, "limit", &held];
    run("tc", &words, "")
        .map_err(|why| Trouble::failed(format!("a `delay` needs the netem module of the kernel: {why}")))
}

/// Performs `act` in a namespace and returns to the old one.
fn within<T>(home: &File, place: &File, act: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    enter(place)?;
    let done = act();
    enter(home)?;
    done
}

fn enter(place: &File) -> Result<(), Trouble> {
    move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| Trouble::failed(format!("cannot enter a network namespace: {error}")))
}

/// Creates a network namespace.
fn namespace() -> Result<File, Trouble> {
    let failed = |error: io::Error| Trouble::failed(format!("cannot make a network namespace: {error}"));
    let program = tool("unshare")?;
    // The process reads until its input ends, at the latest with this process.
    let mut holder = Command::new(program)
        .args(["--net", "--", "cat"])
        // Ctrl-C in the terminal is meant for the runner alone.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let link = format!("/proc/{}/ns/net", holder.id());
    let own = std::fs::read_link("/proc/thread-self/ns/net").map_err(failed)?;
    let end = Instant::now() + PATIENCE;
    let namespace = loop {
        if std::fs::read_link(&link).is_ok_and(|place| place != own) {
            break open(Path::new(&link));
        }
        if !matches!(holder.try_wait(), Ok(None)) || Instant::now() > end {
            break Err(Trouble::failed("cannot make a network namespace"));
        }
        std::thread::sleep(LOOK / 5);
    };
    drop(holder.stdin.take());
    if namespace.is_err() {
        let _ = holder.kill();
    }
    let mut said = String::new();
    if let Some(stderr) = &mut holder.stderr {
        let _ = stderr.take(4096).read_to_string(&mut said);
    }
    let _ = holder.wait();
    namespace.map_err(|why| match said.lines().last() {
        Some(said) => {
            Trouble::failed(format!("{why} ({said}); it takes root, or `unshare -Urn plimsoll lab …`"))
        }
        None => why,
    })
}

fn open(path: &Path) -> Result<File, Trouble> {
    File::open(path).map_err(|error| Trouble::failed(format!("cannot open {}: {error}", path.display())))
}

/// Executes lines of `ip`.
fn ip(lines: &str) -> Result<(), Trouble> {
    run("ip", &["-batch", "-"], lines)
}

/// Runs a program to its end, with `input`.
fn run(name: &str, words: &[&str], input: &str) -> Result<(), Trouble> {
    let failed = |error: io::Error| Trouble::failed(format!("cannot run {name}: {error}"));
    let mut process = Command::new(tool(name)?)
        .args(words)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = process.stdin.take() {
        // A program that stops reading reports the reason itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = process.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    Err(Trouble::failed(format!("{name} failed: {why}")))
}

fn tool(name: &str) -> Result<std::path::PathBuf, Trouble> {
    let package = if name == "unshare" { "util-linux" } else { "iproute2" };
    find(name).map_err(|_| Trouble::failed(format!("`{name}` is not installed; it comes with {package}")))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn without_namespaces_all_is_on_the_loopback_interface() {
        let mut network = Network::build(&experiment::Network::default()).unwrap();
        network.add().unwrap();
        assert_eq!(network.host(Seat::Member(7)).unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let place = network.listen(Seat::Member(7)).unwrap();
        assert!(TcpListener::bind(place).is_ok_and(|listener| listener.local_addr().unwrap() == place));
        assert_eq!(network.at(Seat::Client, || Ok(5)).unwrap(), 5);
        assert!(network.cut(1).is_err() && network.join(1).is_err());
        assert_eq!(lacking(&experiment::Network::default()), None);
    }

    #[test]
    fn hosts_hear_one_another_until_the_cable_is_pulled() {
        let wanted = experiment::Network { namespaces: true, delay: None };
        // The machine's permissions, tested independently of this module.
        let possible = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
        if !possible.is_ok_and(|status| status.success()) {
            assert!(lacking(&wanted).is_some_and(|why| why.contains("namespace")), "it was not told");
            return;
        }
        assert_eq!(lacking(&wanted), None);
        let home = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let mut network = Network::build(&wanted).unwrap();
        network.add().unwrap();
        network.add().unwrap();
        let place = network.listen(Seat::Member(2)).unwrap();
        let listener = network.at(Seat::Member(2), || Ok(TcpListener::bind(place).unwrap())).unwrap();
        let address = listener.local_addr().unwrap();
        let reach = |seat, millis| {
            let patience = Duration::from_millis(millis);
            network.at(seat, || Ok(TcpStream::connect_timeout(&address, patience).map_err(|e| e.kind())))
        };
        for seat in [Seat::Client, Seat::Balancer, Seat::Member(1), Seat::Member(2)] {
            assert!(reach(seat, 60_000).unwrap().is_ok(), "{seat:?}");
        }
        // The hosts are not reachable from outside, whatever else answers at that address.
        listener.set_nonblocking(true).unwrap();
        let arrived = || std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(arrived(), 4);
        let _ = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        assert_eq!(arrived(), 0);
        network.cut(2).unwrap();
        assert_eq!(reach(Seat::Balancer, 100).unwrap().err(), Some(io::ErrorKind::TimedOut));
        assert!(reach(Seat::Member(2), 60_000).unwrap().is_ok());
        network.join(2).unwrap();
        assert!(reach(Seat::Balancer, 60_000).unwrap().is_ok());
        assert!(network.at(Seat::Member(3), || Ok(())).is_err());
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), home);
    }
}
