//! Is the server there? Checked as a balancer checks its members, some times in a row before it counts (`plimsoll_brain::Health`). A
//! server that was not checked yet gets nothing.

use plimsoll_brain::{Health, Verdict};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{Order, Service};
use crate::pull::chance;

/// Checks a server for as long as there is a daemon to tell.
pub(super) async fn watch(service: Service, orders: Option<mpsc::Sender<Order>>) {
    let (Some(check), Some(orders)) = (&service.check, orders) else { return };
    let mut health = Health::unchecked();
    loop {
        let begun = Instant::now();
        let outcome = check.by.ask(service.server).await;
        let turned = health.record(outcome.as_ref().copied().map_err(String::as_str), &check.spec);
        let ready = health.verdict == Verdict::Up;
        if turned.is_some() {
            let state = if ready { "up" } else { "down" };
            tracing::info!("service {}: server {} is {state}: {}", service.name, service.server, health.why);
        }
        // Also when nothing changed: it costs nothing.
        if orders.send(Order::Ready { service: service.id, ready }).await.is_err() {
            return;
        }
        sleep_until(begun + check.interval.mul_f64(0.9 + 0.2 * chance())).await;
    }
}
