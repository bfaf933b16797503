//! Members that are containers of one image, by the API of Docker's Engine over its unix socket. The provider
//! creates, starts, stops and removes them (`POST /containers/create`, `/containers/ID/start`,
//! `/containers/ID/stop`, `DELETE /containers/ID`). The API version is 1.41, that of Docker 20.10 and of
//! Podman's service. The container's port is published at a free port of this machine. Labels identify the
//! owner of a container, so that a restarted balancer finds its containers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::http::{HttpRequest, ServerEndpoint, error_message};
use super::ports::{AddressRange, ReservedAddresses, fill_placeholders};
use super::{Instance, InstanceProvider, InstanceSpec, ProviderFuture, StopRequest};

/// Containers of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct DockerSettings {
    /// The Engine's socket.
    pub socket: PathBuf,
    /// The image, which must be present: it is not pulled.
    pub image: String,
    /// The command, with `{index}` and `{group}`; the image's own if empty.
    pub command: Vec<String>,
    /// The environment as `NAME=value`, with the same placeholders.
    pub environment: Vec<String>,
    /// The server's port in the container.
    pub port: u16,
    /// The published addresses.
    pub publish: AddressRange,
    /// The time limit of a graceful shutdown.
    pub stop_timeout: Duration,
    /// The additional time limit of one request as a whole.
    pub timeout: Duration,
}

/// The containers of one group.
pub(super) struct DockerContainers {
    settings: DockerSettings,
    group: String,
    reserved: ReservedAddresses,
}

impl DockerContainers {
    pub(super) fn open(settings: &DockerSettings, group: &str) -> Self {
        Self { settings: settings.clone(), group: group.to_owned(), reserved: ReservedAddresses::default() }
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), String> {
        let endpoint = ServerEndpoint::Unix(self.settings.socket.clone());
        let path = format!("/{API_VERSION}{path}");
        let body = body.map(|body| ("application/json", body));
        let request_timeout = self.settings.timeout + self.settings.stop_timeout;
        let (status, body) =
            endpoint.request(HttpRequest { method, path: &path, body, fields: &[] }, request_timeout).await?;
        // 304: the container is already in that state.
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)));
        }
        Err(error_message(status, &body))
    }

    /// Builds the request to create a container.
    fn creation_request(&self, spec: &InstanceSpec, address: SocketAddr) -> Value {
        let DockerSettings { image, command, environment, port, .. } = &self.settings;
        let fill_all = |templates: &[String]| -> Vec<String> {
            templates
                .iter()
                .map(|template| fill_placeholders(template, address, spec.index, &self.group))
                .collect()
        };
        let port = format!("{port}/tcp");
        let port_bindings =
            json!([{"HostIp": address.ip().to_string(), "HostPort": address.port().to_string()}]);
        let mut body = json!({
            "Image": image,
            "Env": fill_all(environment),
            "Labels": {
                "plimsoll.group": self.group,
                "plimsoll.index": spec.index.to_string(),
                "plimsoll.address": address.to_string(),
            },
            "ExposedPorts": {&port: {}},
            "HostConfig": {"PortBindings": {&port: port_bindings}},
        });
        if !command.is_empty() {
            body["Cmd"] = json!(fill_all(command));
        }
        body
    }

    async fn create_and_start(&self, spec: &InstanceSpec, address: SocketAddr) -> Result<Instance, String> {
        let (_, container) = self
            .request(Method::POST, "/containers/create", Some(self.creation_request(spec, address)))
            .await?;
        let id = container["Id"]
            .as_str()
            .filter(|id| is_id(id))
            .ok_or("it says no `Id` of the container that it made")?;
        if let Err(error) = self.request(Method::POST, &format!("/containers/{id}/start"), None).await {
            // The failed container is removed if possible.
            let _ = self.remove(id).await;
            return Err(error);
        }
        Ok(Instance { index: spec.index, id: id.to_owned(), address })
    }

    async fn remove(&self, id: &str) -> Result<(), String> {
        self.request(Method::DELETE, &format!("/containers/{id}?force=true"), None).await.map(drop)
    }
}

impl InstanceProvider for DockerContainers {
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance> {
        Box::pin(async move {
            let address = self.reserved.reserve(&self.settings.publish)?;
            self.create_and_start(&spec, address).await.inspect_err(|_| self.reserved.release(&address))
        })
    }

    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()> {
        Box::pin(async move {
            let (id, seconds) = (&request.instance.id, self.settings.stop_timeout.as_secs());
            let ignore_missing =
                |error: String| if error.starts_with("it answered 404") { Ok(()) } else { Err(error) };
            let result =
                self.request(Method::POST, &format!("/containers/{id}/stop?t={seconds}"), None).await;
            result.map(drop).or_else(ignore_missing)?;
            self.remove(id).await.or_else(ignore_missing)?;
            self.reserved.release(&request.instance.address);
            Ok(())
        })
    }

    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>> {
        Box::pin(async move {
            // Containers that have ended by themselves are removed here, as no other process does so.
            let statuses = ["running", "exited", "dead"];
            let filter = json!({"label": [format!("plimsoll.group={}", self.group)], "status": statuses});
            let path = format!("/containers/json?filters={}", escaped(&filter.to_string()));
            let (_, list) = self.request(Method::GET, &path, None).await?;
            let list = list.as_array().ok_or("its list of containers is none")?;
            let has_ended =
                |container: &&Value| matches!(container["State"].as_str(), Some("exited" | "dead"));
            for container in list.iter().filter(has_ended) {
                if let Some(id) = container["Id"].as_str().filter(|id| is_id(id))
                    && let Err(error) = self.remove(id).await
                {
                    // The next poll tries again; a container that is being stopped may be gone.
                    tracing::debug!("container {id}: {error}");
                }
            }
            let to_instance = |container: &Value| {
                let (id, labels) = (container["Id"].as_str().filter(|id| is_id(id))?, &container["Labels"]);
                let label = |name: &str| labels[name].as_str();
                let address = label("plimsoll.address")?.parse().ok()?;
                let index = label("plimsoll.index")?.parse().ok()?;
                self.reserved.mark_used(address);
                Some(Instance { index, id: id.to_owned(), address })
            };
            Ok(Some(list.iter().filter(|container| !has_ended(container)).filter_map(to_instance).collect()))
        })
    }

    fn record_exit(&self, instance: &Instance) {
        self.reserved.release(&instance.address);
    }

    fn exit_reason(&self, _: &str) -> Option<String> {
        Some("its container does not run any more".into())
    }
}

/// Returns `true` if the ID is valid in a path.
fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Escapes a text for a query (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

const API_VERSION: &str = "v1.41";
