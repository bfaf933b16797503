//! The times of the network and the relay, for models that need them.
//!
//! A model of an application has the work and the emulated delays, but no real costs: wake-ups of processes,
//! sockets, the relay. One client therefore performs cycles before the first point, with constant work. The
//! time of its cycles beyond that work is the result. It is a median, which excludes pauses of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::child_process::ProcessLauncher;
use super::super::experiment::{Experiment, LoadDuration, LoadProtocol};
use super::super::load_driver::LoadLoop;
use super::super::plan::{ExperimentPoint, OfferedLoad};
use super::super::testbed::Testbed;
use super::super::{LabError, RunObserver};

/// The times of the relay and the network in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireTimes {
    /// The time from the question to the agent until the client knows its server. With forwarding: until a
    /// server has the message, without the work of receiving it.
    pub relay: f64,
    /// The time of a call to a server and its answer, without the work.
    pub reach: f64,
}

impl WireTimes {
    /// Returns the value of a model's parameter, in milliseconds.
    pub(in crate::lab) fn parameter(&self, name: &str) -> Option<f64> {
        match name {
            "relay" => Some(self.relay * 1e3),
            "reach" => Some(self.reach * 1e3),
            _ => None,
        }
    }
}

/// The time for connections to be established, and the time in which cycles are then counted.
const WARM: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(6);

/// Measures the times for each protocol of these points, with the first point that uses it.
pub(super) fn measure(
    tie: &ProcessLauncher,
    experiment: &Experiment,
    points: &[ExperimentPoint],
    folder: &Path,
    watch: &mut dyn RunObserver,
) -> Result<BTreeMap<String, WireTimes>, LabError> {
    let mut wires = BTreeMap::new();
    for protocol in [LoadProtocol::Http, LoadProtocol::Iiop] {
        let first = points.iter().find(|point| point.protocol == protocol);
        let Some((point, setting)) = first.and_then(|point| Some((point, point.application?))) else {
            continue;
        };
        watch.on_calibration(&format!("measuring what the way takes, {}", protocol.name()));
        let setting = setting.with_constant_work();
        let alone = ExperimentPoint {
            application: Some(setting),
            load: OfferedLoad::Concurrency(1),
            ..point.clone()
        };
        // Addresses are read from logs: each protocol has its own folder.
        let folder = folder.join(protocol.name());
        std::fs::create_dir_all(&folder)
            .map_err(|error| LabError::failed(format!("cannot make {}: {error}", folder.display())))?;
        let stage = Testbed::build(tie, experiment, &alone, Duration::ZERO, &folder)?;
        let lasting = LoadDuration { warmup: WARM, total: WARM + LENGTH };
        let run = stage.start_load(&experiment.load, LoadLoop::Closed(1), alone.load, lasting, point.seed)?;
        let until = |end: Duration| {
            while run.elapsed() < end {
                std::thread::sleep(Duration::from_millis(5));
                if watch.is_interrupted() {
                    return Err(LabError::Interrupted);
                }
            }
            Ok(())
        };
        until(WARM)?;
        drop(run.take_record());
        until(WARM + LENGTH)?;
        let record = run.take_record();
        if record.ok == 0 {
            return Err(LabError::failed("no cycle ended while it was measured what the way takes"));
        }
        let (cycle, pick) = (record.latency.quantile(0.5), record.picks.quantile(0.5));
        wires.insert(protocol.name().to_owned(), setting.wire_times(cycle.as_secs_f64(), pick.as_secs_f64()));
    }
    Ok(wires)
}
