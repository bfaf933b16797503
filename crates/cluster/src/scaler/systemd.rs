//! Members that are systemd units of a template (`web@.service`): number 3 is `web@3.service`, at the third
//! port after the first. The provider runs `systemctl`, and needs the rights for that.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::exec::run;
use super::{Instance, InstanceProvider, InstanceSpec, ProviderFuture, StopRequest};

/// Units of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemdSettings {
    /// The program to run: `systemctl`, or another one for tests.
    pub systemctl: String,
    /// The template's name before the `@`.
    pub template: String,
    /// Whether to use the user's manager (`--user`) rather than the machine's.
    pub user: bool,
    /// The IP address to listen on.
    pub ip: IpAddr,
    /// The port of number 0; number 1 has the next one.
    pub first_port: u16,
    /// The time limit of one call of `systemctl` as a whole.
    pub timeout: Duration,
}

impl SystemdSettings {
    fn unit(&self, index: u32) -> String {
        format!("{}@{index}.service", self.template)
    }

    fn address(&self, index: u32) -> Option<SocketAddr> {
        let port = u32::from(self.first_port).checked_add(index)?;
        Some(SocketAddr::new(self.ip, u16::try_from(port).ok()?))
    }

    async fn run_systemctl(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let user = self.user.then_some("--user");
        let command = [self.systemctl.as_str()].into_iter().chain(user).chain(arguments.iter().copied());
        run(&command.map(str::to_owned).collect::<Vec<_>>(), String::new(), self.timeout).await
    }

    /// Parses the number in a unit's name.
    fn parse_index(&self, unit: &str) -> Option<u32> {
        unit.strip_prefix(self.template.as_str())?.strip_prefix('@')?.strip_suffix(".service")?.parse().ok()
    }
}

impl InstanceProvider for SystemdSettings {
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance> {
        Box::pin(async move {
            let unit = self.unit(spec.index);
            let address = self.address(spec.index).ok_or_else(|| format!("there is no port for {unit}"))?;
            self.run_systemctl(&["start", "--no-ask-password", &unit]).await?;
            Ok(Instance { index: spec.index, id: unit, address })
        })
    }

    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()> {
        Box::pin(async move {
            self.run_systemctl(&["stop", "--no-ask-password", &request.instance.id]).await.map(drop)
        })
    }

    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>> {
        Box::pin(async move {
            let pattern = format!("{}@*.service", self.template);
            let arguments = [
                "list-units",
                "--plain",
                "--no-legend",
                "--full",
                "--state=active,activating,reloading",
                &pattern,
            ];
            let output = self.run_systemctl(&arguments).await?;
            let output = String::from_utf8_lossy(&output);
            let units = output.lines().filter_map(|line| line.split_whitespace().next());
            let to_instance = |unit: &str| {
                let index = self.parse_index(unit)?;
                Some(Instance { index, id: unit.to_owned(), address: self.address(index)? })
            };
            Ok(Some(units.filter_map(to_instance).collect()))
        })
    }
}
