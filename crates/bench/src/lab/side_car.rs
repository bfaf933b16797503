//! Side-cars: `plimsoll agent` as a process before each member. It relays and counts the member's requests,
//! reports to the balancer, and sends sessions away when the balancer's answer asks for that.
//!
//! Agents need the address at which the balancer takes reports, and the balancer needs those of the
//! side-cars. Over iiop the side-cars also need the balancer's own address, to which they send clients back.
//! The ports are therefore chosen before any of them runs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::child_process::{ChildProcess, ProcessLauncher};
use super::experiment::LoadProtocol;
use super::proxy_under_test::{GROUP, OBJECT_KEY, ProxyWiring};
use super::{LabError, ports};

/// An agent that runs before a member.
#[derive(Debug)]
pub(super) struct SideCar {
    /// The address for its clients.
    pub(super) address: SocketAddr,
    /// Its process.
    pub(super) child: ChildProcess,
}

impl SideCar {
    /// Starts the side-car of member `number`, on its host.
    pub(super) fn start(
        launcher: &ProcessLauncher,
        wiring: &ProxyWiring,
        number: usize,
        member: SocketAddr,
        folder: &Path,
    ) -> Result<Self, LabError> {
        let name = format!("a{number}");
        let listener_kind = format!("side-car {}", wiring.protocol.name());
        let address = ports::free_address(member.ip())?;
        let arguments = arguments(wiring, address, member);
        let mut child = ChildProcess::start(launcher, &name, &launcher.program, &arguments, folder)?;
        child.address(&listener_kind)?;
        Ok(Self { address, child })
    }
}

/// Returns the reason why this program has no side-car for the protocol; `None` if it has one.
pub(super) fn missing_reason(launcher: &ProcessLauncher, protocol: LoadProtocol) -> Option<String> {
    let help = Command::new(&launcher.program).args(["agent", "--help"]).output();
    let is_known = help.is_ok_and(|help| {
        protocol == LoadProtocol::Http || String::from_utf8_lossy(&help.stdout).contains("--iiop")
    });
    (!is_known).then(|| format!("this program's agent has no side-car for {}", protocol.name()))
}

fn arguments(wiring: &ProxyWiring, address: SocketAddr, member: SocketAddr) -> Vec<String> {
    let mut arguments = vec!["agent".to_owned()];
    match wiring.protocol {
        LoadProtocol::Http => arguments.push(format!("--side-car=http:{address}={member}")),
        LoadProtocol::Iiop => {
            arguments.push(format!("--iiop={address}"));
            arguments.push(format!("--server-ior=corbaloc:iiop:1.2@{member}/{OBJECT_KEY}"));
            let group_reference =
                wiring.listen.map(|listen| format!("--group-ior=corbaloc:iiop:1.2@{listen}/{GROUP}"));
            arguments.extend(group_reference);
        }
    }
    arguments.extend([format!("--member={address}"), format!("--group={GROUP}")]);
    arguments
        .extend(wiring.report_address.map(|report_address| format!("--report-to=http://{report_address}")));
    arguments.extend(wiring.report_interval.map(|interval| format!("--interval={}us", interval.as_micros())));
    arguments
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn side_cars_know_where_to_report_and_where_to_send_clients() {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let interval = Some(Duration::from_secs(3));
        let (listen, report_address) = (Some(loopback(1)), Some(loopback(2)));
        let wiring = ProxyWiring {
            protocol: LoadProtocol::Iiop,
            listen,
            report_address,
            report_interval: interval,
            ..ProxyWiring::default()
        };
        let joined_arguments = arguments(&wiring, loopback(3), loopback(4)).join(" ");
        assert_eq!(
            joined_arguments,
            "agent --iiop=127.0.0.1:3 --server-ior=corbaloc:iiop:1.2@127.0.0.1:4/Latency \
             --group-ior=corbaloc:iiop:1.2@127.0.0.1:1/lab --member=127.0.0.1:3 --group=lab \
             --report-to=http://127.0.0.1:2 --interval=3000000us"
        );
        let http_arguments =
            arguments(&ProxyWiring { protocol: LoadProtocol::Http, ..wiring }, loopback(3), loopback(4))
                .join(" ");
        assert!(
            http_arguments.contains("--side-car=http:127.0.0.1:3=127.0.0.1:4 ")
                && !http_arguments.contains("group-ior"),
            "{http_arguments}"
        );
    }
}
