//! The times of the network and the relay, for models that need them.
//!
//! A model of an application has the work and the emulated delays, but no real costs: wake-ups of processes,
//! sockets, the relay. One client therefore performs cycles before the first point, with constant work. The
//! time of its cycles beyond that work is the result. It is a median, which excludes pauses of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::child::Tie;
use super::super::drive::Drive;
use super::super::experiment::{Experiment, Lasting, Protocol};
use super::super::plan::{Offer, Point};
use super::super::stage::Stage;
use super::super::{Trouble, Watch};

/// The times of the relay and the network in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// The time from the question to the agent until the client knows its server. With forwarding: until a
    /// server has the message, without the work of receiving it.
    pub relay: f64,
    /// The time of a call to a server and its answer, without the work.
    pub reach: f64,
}

impl Wire {
    /// Returns the value of a model's parameter, in milliseconds.
    pub(in crate::lab) fn named(&self, name: &str) -> Option<f64> {
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
    tie: &Tie,
    experiment: &Experiment,
    points: &[Point],
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<BTreeMap<String, Wire>, Trouble> {
    let mut wires = BTreeMap::new();
    for protocol in [Protocol::Http, Protocol::Iiop] {
        let first = points.iter().find(|point| point.protocol == protocol);
        let Some((point, setting)) = first.and_then(|point| Some((point, point.application?))) else {
            continue;
        };
        watch.before(&format!("measuring what the way takes, {}", protocol.name()));
        let setting = setting.constant();
        let alone = Point { application: Some(setting), offer: Offer::Concurrency(1), ..point.clone() };
        // Addresses are read from logs: each protocol has its own folder.
        let folder = folder.join(protocol.name());
        std::fs::create_dir_all(&folder)
            .map_err(|error| Trouble::failed(format!("cannot make {}: {error}", folder.display())))?;
        let stage = Stage::build(tie, experiment, &alone, Duration::ZERO, &folder)?;
        let lasting = Lasting { warmup: WARM, whole: WARM + LENGTH };
        let run = stage.load(&experiment.load, Drive::Closed(1), alone.offer, lasting, point.seed)?;
        let until = |end: Duration| {
            while run.elapsed() < end {
                std::thread::sleep(Duration::from_millis(5));
                if watch.interrupted() {
                    return Err(Trouble::Interrupted);
                }
            }
            Ok(())
        };
        until(WARM)?;
        drop(run.take());
        until(WARM + LENGTH)?;
        let record = run.take();
        if record.ok == 0 {
            return Err(Trouble::failed("no cycle ended while it was measured what the way takes"));
        }
        let (cycle, pick) = (record.latency.quantile(0.5), record.picks.quantile(0.5));
        wires.insert(protocol.name().to_owned(), setting.wire(cycle.as_secs_f64(), pick.as_secs_f64()));
    }
    Ok(wires)
}
