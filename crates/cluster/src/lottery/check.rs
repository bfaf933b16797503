//! Health checks of the server, as a balancer checks its members: a state changes after several equal results
//! in a row (`plimsoll_brain::Health`). An unchecked server gets no clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_brain::{HealthStatus, HealthVerdict};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{DaemonCommand, LotteryService};
use crate::scrape::random_unit;

/// The results of the checks, by service. They survive changes of the settings, except those of the check
/// itself.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckResults(Arc<Mutex<HashMap<u32, HealthStatus>>>);

impl CheckResults {
    /// Returns the state of a service.
    fn health_of(&self, service: u32) -> HealthStatus {
        let results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        results.get(&service).cloned().unwrap_or_else(HealthStatus::unchecked)
    }

    fn store(&self, service: u32, health: &HealthStatus) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(service, health.clone());
    }

    /// Drops the results of changed checks; `services` are the new settings, `before` the previous ones.
    pub(super) fn turn(&self, services: &[LotteryService], previous: &[LotteryService]) {
        let same = |id: u32| {
            let fingerprint =
                |list: &[LotteryService]| list.iter().find(|service| service.id == id).map(check_fingerprint);
            fingerprint(services)
                .is_some_and(|current| fingerprint(previous).is_some_and(|earlier| earlier == current))
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| same(*id));
    }
}

/// Returns the settings of a service that its check depends on.
fn check_fingerprint(service: &LotteryService) -> String {
    format!("{} {:?}", service.server, service.check)
}

/// Checks a server while its daemon runs.
pub(super) async fn watch(
    service: LotteryService,
    results: CheckResults,
    commands: Option<mpsc::Sender<DaemonCommand>>,
) {
    let (Some(check), Some(commands)) = (&service.check, commands) else { return };
    let mut health = results.health_of(service.id);
    loop {
        let started_at = Instant::now();
        let outcome = check.by.check(service.server).await;
        let transition = health.record(outcome.as_ref().copied().map_err(String::as_str), &check.spec);
        results.store(service.id, &health);
        let ready = health.verdict == HealthVerdict::Up;
        if transition.is_some() {
            let state = if ready { "up" } else { "down" };
            tracing::info!("service {}: server {} is {state}: {}", service.name, service.server, health.why);
        }
        // Sent even if nothing changed: it costs nothing.
        if commands.send(DaemonCommand::Ready { service: service.id, ready }).await.is_err() {
            return;
        }
        sleep_until(started_at + check.interval.mul_f64(0.9 + 0.2 * random_unit())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use plimsoll_brain::HealthSpec;

    use super::super::{HealthCheck, HealthChecker};
    use super::*;

    #[derive(Debug, Default)]
    struct ToggledChecker(AtomicBool);

    impl HealthChecker for ToggledChecker {
        fn check(
            &self,
            _: std::net::SocketAddr,
        ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
            let is_passing = self.0.load(Ordering::Relaxed);
            Box::pin(async move { if is_passing { Ok(()) } else { Err("refused".into()) } })
        }
    }

    #[tokio::test]
    async fn what_was_found_outlasts_other_settings() {
        let passes = Arc::new(ToggledChecker(true.into()));
        let check = |fall| HealthCheck {
            by: Arc::clone(&passes) as Arc<dyn HealthChecker>,
            interval: Duration::from_secs(3600),
            spec: HealthSpec { rise: 2, fall },
        };
        let service = |fall| LotteryService {
            name: "web".into(),
            id: 80,
            server: ([127, 0, 0, 1], 80).into(),
            capacity: 1,
            info: [].into(),
            check: Some(check(fall)),
        };
        let found = CheckResults::default();
        let first = async |service: LotteryService| {
            let (orders, mut inbox) = mpsc::channel(1);
            let watching = tokio::spawn(watch(service, found.clone(), Some(orders)));
            let Some(DaemonCommand::Ready { ready, .. }) = inbox.recv().await else { panic!() };
            watching.abort();
            // The last result is kept.
            drop(watching.await);
            ready
        };
        assert!(first(service(3)).await);
        passes.0.store(false, Ordering::Relaxed);
        found.turn(&[LotteryService { capacity: 2, ..service(3) }], &[service(3)]);
        assert!(first(service(3)).await, "one failure of three");
        assert!(first(service(3)).await, "two");
        assert!(!first(service(3)).await, "three");
        passes.0.store(true, Ordering::Relaxed);
        assert!(!first(service(3)).await, "one pass of two");
        found.turn(&[service(4)], &[service(3)]);
        assert!(first(service(4)).await, "another check begins anew");
    }
}
