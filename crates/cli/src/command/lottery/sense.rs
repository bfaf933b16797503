//! Numbers of single services: an agent for each that has a page, a control group or a port of its own, which tells nobody but this
//! process.

use std::future::pending;

use plimsoll_agent::{Agent, Told};
use tokio::task::JoinSet;

use crate::config::LotteryFile;

/// Agents of services; they end when this goes.
#[derive(Debug)]
pub(super) struct Senses {
    told: Vec<(u32, Told)>,
    _running: JoinSet<()>,
}

impl Senses {
    /// Begins to read what the file says.
    ///
    /// # Errors
    /// A control group that is not there: of which service, and what is wrong.
    pub(super) async fn open(file: &LotteryFile) -> Result<Self, String> {
        let (mut told, mut running) = (Vec::new(), JoinSet::new());
        for service in &file.lottery.services {
            let Some(config) = service.sense() else { continue };
            let agent =
                Agent::open(config).await.map_err(|why| format!("service {}: {why}", service.name))?;
            told.push((service.number(), agent.told()));
            running.spawn(agent.run(pending()));
        }
        Ok(Self { told, _running: running })
    }

    /// What is read of a service, if anything is read of it alone.
    pub(super) fn of(&self, service: u32) -> Option<&Told> {
        self.told.iter().find(|(id, _)| *id == service).map(|(_, told)| told)
    }
}
