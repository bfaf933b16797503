//! A server that starts and stops members. It receives the JSON of an `exec` program as the body of a POST.
//! It responds with the same JSON, with status 200 for a start and any 2xx for a stop.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;

use super::http::{Ask, Door, refusal};
use super::{Doing, Instance, Provider, Stop, Wish, read_started, start_order, stop_order};

/// A server that starts and stops members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port; not 0.
    pub port: u16,
    /// The path, which begins with `/`.
    pub path: String,
    /// The time limit of one request as a whole.
    pub timeout: Duration,
}

impl WebhookSettings {
    async fn tell(&self, order: Value) -> Result<Bytes, String> {
        let door = Door::Tcp { host: self.host.clone(), port: self.port };
        let body = Some(("application/json", order));
        let ask = Ask { method: Method::POST, path: &self.path, body, fields: &[] };
        let (status, body) = door.ask(ask, self.timeout).await?;
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }
}

impl Provider for WebhookSettings {
    fn start(&self, wish: Wish) -> Doing<'_, Instance> {
        Box::pin(async move { read_started(wish.index, &self.tell(start_order(&wish)).await?) })
    }

    fn stop(&self, stop: Stop) -> Doing<'_, ()> {
        Box::pin(async move { self.tell(stop_order(&stop)).await.map(drop) })
    }

    fn present(&self) -> Doing<'_, Option<Vec<Instance>>> {
        Box::pin(async { Ok(None) })
    }
}
