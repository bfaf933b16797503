//! A server that starts and stops members. It receives the JSON of an `exec` program as the body of a POST.
//! It responds with the same JSON, with status 200 for a start and any 2xx for a stop.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;

use super::http::{HttpRequest, ServerEndpoint, error_message};
use super::{
    Instance, InstanceProvider, InstanceSpec, ProviderFuture, StopRequest, parse_started, start_request,
    stop_request,
};

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
    async fn send(&self, body: Value) -> Result<Bytes, String> {
        let endpoint = ServerEndpoint::Tcp { host: self.host.clone(), port: self.port };
        let body = Some(("application/json", body));
        let request = HttpRequest { method: Method::POST, path: &self.path, body, fields: &[] };
        let (status, body) = endpoint.request(request, self.timeout).await?;
        if status.is_success() { Ok(body) } else { Err(error_message(status, &body)) }
    }
}

impl InstanceProvider for WebhookSettings {
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance> {
        Box::pin(async move { parse_started(spec.index, &self.send(start_request(&spec)).await?) })
    }

    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()> {
        Box::pin(async move { self.send(stop_request(&request)).await.map(drop) })
    }

    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>> {
        Box::pin(async { Ok(None) })
    }
}
