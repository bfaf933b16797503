//! All processes of the demo: members, balancer, and the folder they need. Dropping it leaves nothing behind.

use std::fmt::{self, Display, Formatter};
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_bench::units;
use plimsoll_brain::MemberState;

use super::Args;
use super::child_process::DemoProcess;
use crate::control::ControlEndpoint;

/// The time until everything must be up.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that the balancer has to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of workers of each member.
pub(super) const WORKERS: usize = 4;

/// Members, balancer and folder. Fields are dropped in this order.
pub(super) struct DemoCluster {
    balancer: DemoProcess,
    pub(super) members: Vec<DemoMember>,
    /// The address that clients connect to.
    pub(super) address: SocketAddr,
    /// The balancer's control.
    pub(super) control_client: ControlEndpoint,
    /// The address of its dashboard.
    pub(super) dashboard: Option<SocketAddr>,
    service_time: Duration,
    _folder: TemporaryFolder,
}

/// One member.
pub(super) struct DemoMember {
    /// The name: `m1`, …
    pub(super) name: String,
    /// The address at which it listens; the balancer knows it by this.
    pub(super) address: SocketAddr,
    child: DemoProcess,
}

impl DemoMember {
    /// Makes the member so many times slower.
    pub(super) fn slow_down(&self, factor: u32) -> Result<(), String> {
        post(self.address, &format!("/_plimsoll/slow?factor={factor}"))
            .map_err(|error| format!("cannot slow {} down: {error}", self.name))
    }

    /// Kills the member.
    pub(super) fn kill(&mut self) {
        self.child.kill();
    }
}

impl DemoCluster {
    /// Starts everything and waits until the balancer may use every member.
    pub(super) async fn start(args: &Args) -> Result<Self, String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let folder = TemporaryFolder::new()?;
        let mean_service = service_time(args.rate / f64::from(args.members));
        let mut children = Vec::new();
        for n in 1..=args.members {
            children.push(start_member(
                &format!("m{n}"),
                mean_service,
                args.seed.wrapping_add(u64::from(n)),
            )?);
        }
        let mut members = Vec::new();
        for (name, mut child) in children {
            let address = child.address(deadline).await?;
            members.push(DemoMember { name, address, child });
        }
        let control_socket = folder.0.join("control.sock");
        let file = folder.0.join("plimsoll.toml");
        let addresses: Vec<String> = members.iter().map(|member| member.address.to_string()).collect();
        let text = render_config(&args.strategy, &control_socket, &addresses)?;
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let file =
            file.to_str().ok_or("the folder for temporary files has a name that is not text; set TMPDIR")?;
        let mut balancer = DemoProcess::start("the balancer", &["up", "-c", file])?;
        let control_client = ControlEndpoint::Unix(control_socket);
        let address = wait_until_ready(&mut balancer, &control_client, deadline).await?;
        let dashboard = balancer.address_after("listening admin ");
        Ok(Self {
            balancer,
            members,
            address,
            control_client,
            dashboard,
            service_time: mean_service,
            _folder: folder,
        })
    }

    /// Returns how the balancer ended, if it has.
    pub(super) fn balancer_exit_reason(&mut self) -> Option<String> {
        self.balancer.exit_reason()
    }

    /// Returns the members, for the report.
    pub(super) fn member_summary(&self) -> MemberSummary {
        MemberSummary {
            members: self.members.iter().map(|member| member.name.clone()).collect(),
            service_time: self.service_time,
        }
    }
}

/// The members, for the report.
#[derive(Debug)]
pub(super) struct MemberSummary {
    /// The names of the members.
    pub(super) members: Vec<String>,
    /// The mean service time.
    pub(super) service_time: Duration,
}

impl Display for MemberSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} members, {WORKERS} workers each, exp {}",
            self.members.len(),
            units::format_duration(self.service_time)
        )
    }
}

impl Drop for DemoCluster {
    fn drop(&mut self) {
        self.balancer.stop(STOP_TIMEOUT);
    }
}

/// Returns a service time that keeps a member's workers 15 % busy at `rate` requests per second. It is fast
/// enough for all to be well, and slow enough for one that is ten times slower to be too slow for its share.
fn service_time(rate: f64) -> Duration {
    let seconds = 0.15 * WORKERS as f64 / rate;
    Duration::from_micros((seconds * 1e6) as u64).clamp(Duration::from_micros(200), Duration::from_millis(20))
}

fn start_member(name: &str, mean_service: Duration, seed: u64) -> Result<(String, DemoProcess), String> {
    let arguments = [
        "member",
        "--listen=127.0.0.1:0",
        "--admin",
        &format!("--name={name}"),
        &format!("--service=exp:{}us", mean_service.as_micros()),
        &format!("--workers={WORKERS}"),
        &format!("--seed={seed}"),
    ];
    Ok((name.to_owned(), DemoProcess::start(name, &arguments)?))
}

/// Returns the balancer's configuration. Its differences from the defaults make half a minute long enough to
/// see health checks at work.
fn render_config(strategy: &str, control: &Path, members: &[String]) -> Result<String, String> {
    let file = serde_json::json!({
        "admin": { "listen": "127.0.0.1:0", "control": format!("unix:{}", control.display()) },
        "listener": [{ "address": "127.0.0.1:0", "protocol": "http", "group": "demo" }],
        "group": [{
            "name": "demo",
            "strategy": strategy,
            "members": members,
            "slow_start": "0s",
            "health": { "http": "/healthz", "interval": "500ms", "timeout": "400ms" },
        }],
    });
    toml::to_string(&file).map_err(|error| format!("cannot write the configuration: {error}"))
}

/// Waits until every member may be chosen; returns the address of the balancer's listener.
async fn wait_until_ready(
    balancer: &mut DemoProcess,
    control: &ControlEndpoint,
    deadline: Instant,
) -> Result<SocketAddr, String> {
    loop {
        let reason = match control.status() {
            Ok((_, status)) => {
                let all_up = status
                    .groups
                    .iter()
                    .flat_map(|group| &group.members)
                    .all(|member| member.state == MemberState::Up);
                match status.listeners.first().and_then(|listener| listener.address.parse().ok()) {
                    Some(address) if all_up => return Ok(address),
                    _ => status.groups.first().map_or_else(String::new, |group| group.verdict.clone()),
                }
            }
            Err(error) => error.to_string(),
        };
        if let Some(exit_reason) = balancer.exit_reason() {
            return Err(exit_reason);
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the balancer is not ready after {}: {reason}",
                units::format_duration(START_TIMEOUT)
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Posts without a body; fails if the answer is not 200.
fn post(address: SocketAddr, path: &str) -> std::io::Result<()> {
    let timeout = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.take(4096).read_to_string(&mut response)?;
    if response.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(std::io::Error::other("it refused")) }
}

/// A folder of the demo's own, removed with all that is in it.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<Self, String> {
        let name = format!("plimsoll-demo-{}", std::process::id());
        let mut path = std::env::temp_dir().join(&name);
        // The name of a unix socket has room for 107 bytes.
        if path.as_os_str().len() > 90 {
            path = Path::new("/tmp").join(&name);
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| format!("cannot make the folder {}: {error}; set TMPDIR", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_one() {
        for strategy in plimsoll_brain::strategy::ALL {
            let members = ["127.0.0.1:4001".to_owned(), "127.0.0.1:4002".to_owned()];
            let text = render_config(strategy.name, Path::new("/tmp/x y/control.sock"), &members).unwrap();
            let file = plimsoll_config::parse("demo", text.clone().into_bytes())
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(file.config.groups[0].members.len(), 2);
            assert_eq!(file.config.groups[0].strategy.name(), strategy.name);
        }
    }

    #[test]
    fn service_leaves_room_for_one_slow_member() {
        assert_eq!(service_time(100.0), Duration::from_millis(6));
        assert_eq!(service_time(1e6), Duration::from_micros(200));
        assert_eq!(service_time(0.1), Duration::from_millis(20));
    }
}
