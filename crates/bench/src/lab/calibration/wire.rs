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
const WARMUP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(6);

/// Measures the times for each protocol of these points, with the first point that uses it.
pub(super) fn measure(
    launcher: &ProcessLauncher,
    experiment: &Experiment,
    points: &[ExperimentPoint],
    folder: &Path,
    observer: &mut dyn RunObserver,
) -> Result<BTreeMap<String, WireTimes>, LabError> {
    let mut wire_times = BTreeMap::new();
    for protocol in [LoadProtocol::Http, LoadProtocol::Iiop] {
        let first_point = points.iter().find(|point| point.protocol == protocol);
        let Some((point, application)) = first_point.and_then(|point| Some((point, point.application?)))
        else {
            continue;
        };
        observer.on_calibration(&format!("measuring what the way takes, {}", protocol.name()));
        let application = application.with_constant_work();
        let single_client = ExperimentPoint {
            application: Some(application),
            load: OfferedLoad::Concurrency(1),
            ..point.clone()
        };
        // Addresses are read from logs: each protocol has its own folder.
        let folder = folder.join(protocol.name());
        std::fs::create_dir_all(&folder)
            .map_err(|error| LabError::failed(format!("cannot make {}: {error}", folder.display())))?;
        let testbed = Testbed::build(launcher, experiment, &single_client, Duration::ZERO, &folder)?;
        let load_duration = LoadDuration { warmup: WARMUP, total: WARMUP + LENGTH };
        let load_clients = testbed.start_load(
            &experiment.load,
            LoadLoop::Closed(1),
            single_client.load,
            load_duration,
            point.seed,
        )?;
        let wait_until = |deadline: Duration| {
            while load_clients.elapsed() < deadline {
                std::thread::sleep(Duration::from_millis(5));
                if observer.is_interrupted() {
                    return Err(LabError::Interrupted);
                }
            }
            Ok(())
        };
        wait_until(WARMUP)?;
        drop(load_clients.take_record());
        wait_until(WARMUP + LENGTH)?;
        let record = load_clients.take_record();
        if record.ok == 0 {
            return Err(LabError::failed("no cycle ended while it was measured what the way takes"));
        }
        let (cycle_time, pick_time) = (record.latency.quantile(0.5), record.picks.quantile(0.5));
        wire_times.insert(
            protocol.name().to_owned(),
            application.wire_times(cycle_time.as_secs_f64(), pick_time.as_secs_f64()),
        );
    }
    Ok(wire_times)
}
