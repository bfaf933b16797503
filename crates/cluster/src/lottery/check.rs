//! Health checks of the server, as a balancer checks its members: a state changes after several equal results
//! in a row (`plimsoll_brain::Health`). An unchecked server gets no clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_brain::{Health, Verdict};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{Order, Service};
use crate::pull::chance;

/// The results of the checks, by service. They survive changes of the settings, except those of the check
/// itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Found(Arc<Mutex<HashMap<u32, Health>>>);

impl Found {
    /// Returns the state of a service.
    fn of(&self, service: u32) -> Health {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(&service).cloned().unwrap_or_else(Health::unchecked)
    }

    fn keep(&self, service: u32, health: &Health) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(service, health.clone());
    }

    /// Drops the results of changed checks; `services` are the new settings, `before` the previous ones.
    pub(super) fn turn(&self, services: &[Service], before: &[Service]) {
        let same = |id: u32| {
            let find = |all: &[Service]| all.iter().find(|service| service.id == id).map(checked);
            find(services).is_some_and(|now| find(before).is_some_and(|then| then == now))
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| same(*id));
    }
}

/// Returns the settings of a service that its check depends on.
fn checked(service: &Service) -> String {
    format!("{} {:?}", service.server, service.check)
}

/// Checks a server while its daemon runs.
pub(super) async fn watch(service: Service, found: Found, orders: Option<mpsc::Sender<Order>>) {
    let (Some(check), Some(orders)) = (&service.check, orders) else { return };
    let mut health = found.of(service.id);
    loop {
        let begun = Instant::now();
        let outcome = check.by.ask(service.server).await;
        let turned = health.record(outcome.as_ref().copied().map_err(String::as_str), &check.spec);
        found.keep(service.id, &health);
        let ready = health.verdict == Verdict::Up;
        if turned.is_some() {
            let state = if ready { "up" } else { "down" };
            tracing::info!("service {}: server {} is {state}: {}", service.name, service.server, health.why);
        }
        // Sent even if nothing changed: it costs nothing.
        if orders.send(Order::Ready { service: service.id, ready }).await.is_err() {
            return;
        }
        sleep_until(begun + check.interval.mul_f64(0.9 + 0.2 * chance())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use plimsoll_brain::HealthSpec;

    use super::super::{Ask, Check};
    use super::*;

    #[derive(Debug, Default)]
    struct Passes(AtomicBool);

    impl Ask for Passes {
        fn ask(
            &self,
            _: std::net::SocketAddr,
        ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
            let passes = self.0.load(Ordering::Relaxed);
            Box::pin(async move { if passes { Ok(()) } else { Err("refused".into()) } })
        }
    }

    #[tokio::test]
    async fn what_was_found_outlasts_other_settings() {
        let passes = Arc::new(Passes(true.into()));
        let check = |fall| Check {
            by: Arc::clone(&passes) as Arc<dyn Ask>,
            interval: Duration::from_secs(3600),
            spec: HealthSpec { rise: 2, fall },
        };
        let service = |fall| Service {
            name: "web".into(),
            id: 80,
            server: ([127, 0, 0, 1], 80).into(),
            capacity: 1,
            info: [].into(),
            check: Some(check(fall)),
        };
        let found = Found::default();
        let first = async |service: Service| {
            let (orders, mut inbox) = mpsc::channel(1);
            let watching = tokio::spawn(watch(service, found.clone(), Some(orders)));
            let Some(Order::Ready { ready, .. }) = inbox.recv().await else { panic!() };
            watching.abort();
            // The last result is kept.
            drop(watching.await);
            ready
        };
        assert!(first(service(3)).await);
        passes.0.store(false, Ordering::Relaxed);
        found.turn(&[Service { capacity: 2, ..service(3) }], &[service(3)]);
        assert!(first(service(3)).await, "one failure of three");
        assert!(first(service(3)).await, "two");
        assert!(!first(service(3)).await, "three");
        passes.0.store(true, Ordering::Relaxed);
        assert!(!first(service(3)).await, "one pass of two");
        found.turn(&[service(4)], &[service(3)]);
        assert!(first(service(4)).await, "another check begins anew");
    }
}
