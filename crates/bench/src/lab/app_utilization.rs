//! The busy times of an application's servers and its agent, and the precision of its response time.

use std::time::Instant;

use super::experiment::{AgentArchitecture, COPIES, PointApplication};
use super::load_driver::LoadClients;
use super::metric::Metric;
use super::point::PointOutcome;
use super::statistics::Estimate;
use super::testbed::Testbed;

/// Returns `true` if the response time has the wanted precision, by the batches from number `first` on.
pub(super) fn is_precise(outcome: &PointOutcome, first_sample: usize, precision: Option<f64>) -> bool {
    let samples = outcome.samples.get(&Metric::Response).and_then(|samples| samples.get(first_sample..));
    let spread = samples.and_then(Estimate::of).map(|estimate| estimate.half_width / estimate.mean);
    precision.is_none_or(|target| spread.is_some_and(|spread| spread <= target))
}

/// The busy times of an application's servers and its agent until a time: threads and processors, in seconds.
#[derive(Debug)]
pub(super) struct BusyTimes {
    read_at: Instant,
    servers: Vec<(f64, f64)>,
    agent: (f64, f64),
}

impl BusyTimes {
    /// Reads the busy times; `None` if there is no application, or a server does not answer.
    pub(super) fn read(testbed: &Testbed, load_clients: &LoadClients) -> Option<Self> {
        let agent = load_clients.agent_busy_times()?;
        // The servers are asked in turn, which takes a millisecond for all.
        let servers = testbed.server_busy_times()?;
        Some(Self { read_at: Instant::now(), servers, agent })
    }

    /// Adds samples of the shares of the time until `then`.
    pub(super) fn add_samples(
        &self,
        later: &Self,
        application: &PointApplication,
        outcome: &mut PointOutcome,
    ) {
        let seconds = (later.read_at - self.read_at).as_secs_f64();
        let mut push_share = |metric, busy: f64, count: usize| {
            let share = busy / (seconds * count as f64);
            if share.is_finite() {
                outcome.samples.entry(metric).or_default().push(share);
            }
        };
        let sums = self
            .servers
            .iter()
            .zip(&later.servers)
            .map(|(before, after)| (after.0 - before.0, after.1 - before.1));
        let sums: Vec<(f64, f64)> = sums.collect();
        let services = [(Metric::ServerA, Metric::CpuA), (Metric::ServerB, Metric::CpuB)];
        for (copies, (threads_metric, processor_metric)) in sums.chunks(COPIES).zip(services) {
            push_share(threads_metric, copies.iter().map(|busy| busy.0).sum(), copies.len());
            push_share(processor_metric, copies.iter().map(|busy| busy.1).sum(), copies.len());
        }
        let clones = match application.architecture {
            AgentArchitecture::Handle => 1,
            AgentArchitecture::Forward => application.clones,
        };
        // The agent of the handle-driven architecture has one thread, and clients that wait for it count,
        // too.
        if application.architecture == AgentArchitecture::Forward {
            push_share(Metric::Agent, later.agent.0 - self.agent.0, clones);
        }
        push_share(Metric::CpuAgent, later.agent.1 - self.agent.1, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lab::experiment::ApplicationSettings;
    use crate::lab::table::PointLevels;

    #[test]
    fn shares_are_of_all_copies_and_of_all_clones() {
        let text = "architecture = \"forward\"\nagent = \"1ms\"\nclones = 4";
        let application: ApplicationSettings = toml::from_str(text).unwrap();
        let point_application = application.at_levels(&PointLevels::new());
        let at = Instant::now();
        let before = BusyTimes { read_at: at, servers: vec![(1.0, 0.5); 4], agent: (3.0, 1.0) };
        let later_servers = vec![(2.0, 0.5), (2.0, 1.5), (5.0, 2.5), (5.0, 2.5)];
        let after =
            BusyTimes { read_at: at + Duration::from_secs(4), servers: later_servers, agent: (11.0, 5.0) };
        let mut outcome = PointOutcome::new();
        before.add_samples(&after, &point_application, &mut outcome);
        let sample = |metric| outcome.samples[&metric][0];
        assert_eq!((sample(Metric::ServerA), sample(Metric::CpuA)), (0.25, 0.125));
        assert_eq!((sample(Metric::ServerB), sample(Metric::CpuB)), (1.0, 0.5));
        assert_eq!((sample(Metric::Agent), sample(Metric::CpuAgent)), (0.5, 1.0));
    }

    #[test]
    fn a_point_is_precise_by_its_own_samples() {
        let mut outcome = PointOutcome::new();
        let samples = [9.0, 1.0, 10.0, 10.1, 9.9, 10.0, 10.0];
        outcome.samples.insert(Metric::Response, samples.to_vec());
        assert!(is_precise(&outcome, 2, Some(0.02)) && !is_precise(&outcome, 0, Some(0.02)));
        assert!(!is_precise(&outcome, 2, Some(0.001)) && is_precise(&outcome, 0, None));
        assert!(!is_precise(&outcome, 7, Some(0.5)), "there are none");
    }
}
