//! Active health checks: one task per member, on the control thread.

use std::collections::BTreeMap;

use plimsoll_brain::MemberId;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::control::Control;

/// The probes that run.
pub(crate) struct Probes {
    #[expect(dead_code, reason = "skeleton")]
    runtime: Handle,
    running: BTreeMap<(std::sync::Arc<str>, MemberId), JoinHandle<()>>,
}

impl Probes {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, running: BTreeMap::new() }
    }

    /// Starts and ends probes so that they are those of the groups in force.
    pub(crate) fn follow(&mut self, _control: &Control) {}

    /// Ends all.
    pub(crate) fn stop(&mut self) {
        std::mem::take(&mut self.running).into_values().for_each(|probe| probe.abort());
    }
}
