//! The sensors of single services: an agent for each that has a page, a control group or a port of its own,
//! which reports only to this process.

use std::future::pending;

use plimsoll_agent::{Agent, ValueReporter};
use tokio::task::JoinSet;

use plimsoll_config::LotteryFile;

/// Agents of services, which end when this is dropped.
#[derive(Debug)]
pub(super) struct ServiceSensors {
    reporters: Vec<(u32, ValueReporter)>,
    _running: JoinSet<()>,
}

impl ServiceSensors {
    /// Starts the agents of the file.
    ///
    /// # Errors
    /// Fails with the service and the error if a control group does not exist.
    pub(super) async fn start(file: &LotteryFile) -> Result<Self, String> {
        let (mut reporters, mut running) = (Vec::new(), JoinSet::new());
        for service in &file.lottery.services {
            let Some(config) = service.sensor_config() else { continue };
            let agent =
                Agent::open(config).await.map_err(|error| format!("service {}: {error}", service.name))?;
            reporters.push((service.number(), agent.reporter()));
            running.spawn(agent.run(pending()));
        }
        Ok(Self { reporters, _running: running })
    }

    /// Returns the values that are read of a service alone, if there are any.
    pub(super) fn for_service(&self, service: u32) -> Option<&ValueReporter> {
        self.reporters.iter().find(|(id, _)| *id == service).map(|(_, reporter)| reporter)
    }
}
