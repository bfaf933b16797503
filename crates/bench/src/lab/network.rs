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

use super::child_process::POLL_INTERVAL;
use super::experiment;
use super::proxy_under_test::find_program;
use super::{LabError, ports};

/// A participant of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointHost {
    Client,
    Balancer,
    /// A member, counted from 1.
    Member(usize),
}

/// The network of a point. After it is dropped, the kernel removes it once its processes have ended.
#[derive(Debug)]
pub(super) struct PointNetwork(Option<NamespaceHosts>);

#[derive(Debug)]
struct NamespaceHosts {
    /// The namespace of the runner.
    original_namespace: File,
    hub_namespace: File,
    client: NamespaceHost,
    balancer: NamespaceHost,
    members: Vec<NamespaceHost>,
    delay: Option<Duration>,
}

#[derive(Debug)]
struct NamespaceHost {
    /// Its port in the hub.
    port: String,
    address: Ipv4Addr,
    namespace: File,
}

/// The time-out for the creation of a namespace.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of packets that a delayed link holds.
const NETEM_QUEUE_PACKETS: u32 = 100_000;

/// Returns the reason why this machine cannot have the experiment's network; `None` if it can.
pub(super) fn missing_reason(settings: &experiment::NetworkSettings) -> Option<String> {
    let build_and_disconnect = || {
        if !settings.namespaces {
            return Ok(());
        }
        let mut network = PointNetwork::build(settings)?;
        network.add()?;
        network.disconnect(1)?;
        network.reconnect(1)
    };
    build_and_disconnect().err().map(|error| error.to_string())
}

impl PointNetwork {
    /// Creates the network with client and balancer, or none if none is configured.
    pub(super) fn build(settings: &experiment::NetworkSettings) -> Result<Self, LabError> {
        if !settings.namespaces {
            return Ok(Self(None));
        }
        let original_namespace = open(Path::new("/proc/thread-self/ns/net"))?;
        let hub_namespace = create_namespace()?;
        run_in_namespace(&original_namespace, &hub_namespace, || {
            run_ip_batch("link add br0 type bridge\nlink set br0 up\n")
        })?;
        let delay = settings.delay.map(|duration| duration.0).filter(|delay| !delay.is_zero());
        let client = NamespaceHost::connect(
            &original_namespace,
            &hub_namespace,
            "client",
            Ipv4Addr::new(198, 18, 0, 1),
            delay,
        )?;
        let balancer = NamespaceHost::connect(
            &original_namespace,
            &hub_namespace,
            "balancer",
            Ipv4Addr::new(198, 18, 0, 2),
            delay,
        )?;
        Ok(Self(Some(NamespaceHosts {
            original_namespace,
            hub_namespace,
            client,
            balancer,
            members: Vec::new(),
            delay,
        })))
    }

    /// Creates the host of the next member.
    pub(super) fn add(&mut self) -> Result<(), LabError> {
        let Some(hosts) = &mut self.0 else { return Ok(()) };
        let number = hosts.members.len() + 1;
        // The block is reserved for tests of networks: 198.18.1.1 is the first.
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 1, 0).to_bits() + number as u32);
        let host = NamespaceHost::connect(
            &hosts.original_namespace,
            &hosts.hub_namespace,
            &format!("m{number}"),
            address,
            hosts.delay,
        )?;
        hosts.members.push(host);
        Ok(())
    }

    /// Returns the address of a participant's host.
    pub(super) fn host(&self, point_host: PointHost) -> Result<IpAddr, LabError> {
        Ok(IpAddr::V4(match &self.0 {
            None => Ipv4Addr::LOCALHOST,
            Some(hosts) => hosts.host(point_host)?.address,
        }))
    }

    /// Chooses a free address on a participant's host; it stays free while a process that listened there is
    /// dead.
    pub(super) fn free_address(&self, point_host: PointHost) -> Result<SocketAddr, LabError> {
        let host = self.host(point_host)?;
        self.run_on(point_host, || ports::free_address(host))
    }

    /// Performs `act` on a participant's host. Processes and threads that it starts stay there.
    pub(super) fn run_on<T>(
        &self,
        point_host: PointHost,
        action: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        match &self.0 {
            None => action(),
            Some(hosts) => {
                run_in_namespace(&hosts.original_namespace, &hosts.host(point_host)?.namespace, action)
            }
        }
    }

    /// Pulls the cable of a member.
    pub(super) fn disconnect(&self, member: usize) -> Result<(), LabError> {
        self.set_port_state(member, "down")
    }

    /// Plugs it in again.
    pub(super) fn reconnect(&self, member: usize) -> Result<(), LabError> {
        self.set_port_state(member, "up")
    }

    fn set_port_state(&self, member: usize, state: &str) -> Result<(), LabError> {
        let Some(hosts) = &self.0 else {
            return Err(LabError::failed("a member on the loopback interface has no cable"));
        };
        let port = &hosts.host(PointHost::Member(member))?.port;
        run_in_namespace(&hosts.original_namespace, &hosts.hub_namespace, || {
            run_ip_batch(&format!("link set {port} {state}\n"))
        })
    }
}

impl NamespaceHosts {
    fn host(&self, point_host: PointHost) -> Result<&NamespaceHost, LabError> {
        let host = match point_host {
            PointHost::Client => Some(&self.client),
            PointHost::Balancer => Some(&self.balancer),
            PointHost::Member(number) => number.checked_sub(1).and_then(|index| self.members.get(index)),
        };
        host.ok_or_else(|| LabError::failed(format!("{point_host:?} has no host")))
    }
}

impl NamespaceHost {
    /// Creates a namespace and joins it to the hub.
    fn connect(
        original_namespace: &File,
        hub_namespace: &File,
        port: &str,
        address: Ipv4Addr,
        delay: Option<Duration>,
    ) -> Result<Self, LabError> {
        let namespace = create_namespace()?;
        let namespace_path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        run_in_namespace(original_namespace, hub_namespace, || {
            let mut commands = String::new();
            let _ = writeln!(commands, "link add {port} type veth peer name eth0 netns {namespace_path}");
            let _ = writeln!(commands, "link set {port} master br0 up");
            run_ip_batch(&commands)
        })?;
        run_in_namespace(original_namespace, &namespace, || {
            run_ip_batch(&format!("address add {address}/16 dev eth0\nlink set lo up\nlink set eth0 up\n"))?;
            // The kernel does this by itself on the loopback interface: it reuses a port within the minute
            // for which it remembers a closed connection. The file belongs to this namespace. If it cannot be
            // written, there are 28,000 ports per minute for each pair of hosts.
            let _ = std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1");
            delay.map_or(Ok(()), add_delay)
        })?;
        Ok(Self { port: port.to_owned(), address, namespace })
    }
}

/// Delays packets that leave by `eth0`.
fn add_delay(delay: Duration) -> Result<(), LabError> {
    let (delay, queue_packets) = (format!("{}us", delay.as_micros()), NETEM_QUEUE_PACKETS.to_string());
    let arguments =
        ["qdisc", "add", "dev", "eth0", "root", "netem", "delay", &delay, "limit", &queue_packets];
    run_tool("tc", &arguments, "")
        .map_err(|error| LabError::failed(format!("a `delay` needs the netem module of the kernel: {error}")))
}

/// Performs `act` in a namespace and returns to the old one.
fn run_in_namespace<T>(
    original_namespace: &File,
    namespace: &File,
    action: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    enter_namespace(namespace)?;
    let result = action();
    enter_namespace(original_namespace)?;
    result
}

fn enter_namespace(namespace: &File) -> Result<(), LabError> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| LabError::failed(format!("cannot enter a network namespace: {error}")))
}

/// Creates a network namespace.
fn create_namespace() -> Result<File, LabError> {
    let failed = |error: io::Error| LabError::failed(format!("cannot make a network namespace: {error}"));
    let program = find_tool("unshare")?;
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
    let own_namespace = std::fs::read_link("/proc/thread-self/ns/net").map_err(failed)?;
    let deadline = Instant::now() + NAMESPACE_TIMEOUT;
    let namespace = loop {
        if std::fs::read_link(&link).is_ok_and(|target| target != own_namespace) {
            break open(Path::new(&link));
        }
        if !matches!(holder.try_wait(), Ok(None)) || Instant::now() > deadline {
            break Err(LabError::failed("cannot make a network namespace"));
        }
        std::thread::sleep(POLL_INTERVAL / 5);
    };
    drop(holder.stdin.take());
    if namespace.is_err() {
        let _ = holder.kill();
    }
    let mut stderr_text = String::new();
    if let Some(stderr) = &mut holder.stderr {
        let _ = stderr.take(4096).read_to_string(&mut stderr_text);
    }
    let _ = holder.wait();
    namespace.map_err(|error| match stderr_text.lines().last() {
        Some(message) => {
            LabError::failed(format!("{error} ({message}); it takes root, or `unshare -Urn plimsoll lab …`"))
        }
        None => error,
    })
}

fn open(path: &Path) -> Result<File, LabError> {
    File::open(path).map_err(|error| LabError::failed(format!("cannot open {}: {error}", path.display())))
}

/// Executes lines of `ip`.
fn run_ip_batch(commands: &str) -> Result<(), LabError> {
    run_tool("ip", &["-batch", "-"], commands)
}

/// Runs a program to its end, with `input`.
fn run_tool(name: &str, arguments: &[&str], input: &str) -> Result<(), LabError> {
    let failed = |error: io::Error| LabError::failed(format!("cannot run {name}: {error}"));
    let mut process = Command::new(find_tool(name)?)
        .args(arguments)
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
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    let message = stderr_text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    Err(LabError::failed(format!("{name} failed: {message}")))
}

fn find_tool(name: &str) -> Result<std::path::PathBuf, LabError> {
    let package = if name == "unshare" { "util-linux" } else { "iproute2" };
    find_program(name)
        .map_err(|_| LabError::failed(format!("`{name}` is not installed; it comes with {package}")))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn without_namespaces_all_is_on_the_loopback_interface() {
        let mut network = PointNetwork::build(&experiment::NetworkSettings::default()).unwrap();
        network.add().unwrap();
        assert_eq!(network.host(PointHost::Member(7)).unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let address = network.free_address(PointHost::Member(7)).unwrap();
        assert!(TcpListener::bind(address).is_ok_and(|listener| listener.local_addr().unwrap() == address));
        assert_eq!(network.run_on(PointHost::Client, || Ok(5)).unwrap(), 5);
        assert!(network.disconnect(1).is_err() && network.reconnect(1).is_err());
        assert_eq!(missing_reason(&experiment::NetworkSettings::default()), None);
    }

    #[test]
    fn hosts_hear_one_another_until_the_cable_is_pulled() {
        let settings = experiment::NetworkSettings { namespaces: true, delay: None };
        // The machine's permissions, tested independently of this module.
        let possible = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
        if !possible.is_ok_and(|status| status.success()) {
            assert!(
                missing_reason(&settings).is_some_and(|reason| reason.contains("namespace")),
                "it was not told"
            );
            return;
        }
        assert_eq!(missing_reason(&settings), None);
        let original_namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let mut network = PointNetwork::build(&settings).unwrap();
        network.add().unwrap();
        network.add().unwrap();
        let listen = network.free_address(PointHost::Member(2)).unwrap();
        let listener =
            network.run_on(PointHost::Member(2), || Ok(TcpListener::bind(listen).unwrap())).unwrap();
        let address = listener.local_addr().unwrap();
        let connect_from = |point_host, millis| {
            let timeout = Duration::from_millis(millis);
            network.run_on(point_host, || {
                Ok(TcpStream::connect_timeout(&address, timeout).map_err(|e| e.kind()))
            })
        };
        for point_host in [PointHost::Client, PointHost::Balancer, PointHost::Member(1), PointHost::Member(2)]
        {
            assert!(connect_from(point_host, 60_000).unwrap().is_ok(), "{point_host:?}");
        }
        // The hosts are not reachable from outside, whatever else answers at that address.
        listener.set_nonblocking(true).unwrap();
        let accepted_count = || std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(accepted_count(), 4);
        let _ = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        assert_eq!(accepted_count(), 0);
        network.disconnect(2).unwrap();
        assert_eq!(connect_from(PointHost::Balancer, 100).unwrap().err(), Some(io::ErrorKind::TimedOut));
        assert!(connect_from(PointHost::Member(2), 60_000).unwrap().is_ok());
        network.reconnect(2).unwrap();
        assert!(connect_from(PointHost::Balancer, 60_000).unwrap().is_ok());
        assert!(network.run_on(PointHost::Member(3), || Ok(())).is_err());
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), original_namespace);
    }
}
