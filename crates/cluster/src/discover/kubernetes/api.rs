//! Requests to the Kubernetes API: a list of slices, page by page, and a watch of them, one line of JSON per
//! event.
//!
//! The token of a service account is read for each request, as the cluster renews it in place. A kubeconfig
//! is read when the API is opened, and its programs run then.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, ObjectList, WatchEvent, WatchParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource as _};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::slices::ServiceSlice;
use super::{KubernetesApi, KubernetesSource};
use crate::discover::MAX_MEMBERS;
use crate::discover::resolve_hosts::too_many_message;
use crate::scaler::error_message;
use crate::service_account::ServiceAccount;

/// The label of a service's slices, with the service's name.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The number of slices on a page.
const PAGE_SIZE: u32 = 500;
/// The maximum length of a page, in bytes. A slice has at most a thousand endpoints, which take less than
/// half a MiB.
const MAX_PAGE_LENGTH: usize = 64 << 20;
/// The maximum length of an event, in bytes: one slice.
const MAX_EVENT_LENGTH: usize = 8 << 20;
/// The maximum length of an error response, in bytes.
const MAX_ERROR_LENGTH: usize = 64 << 10;
/// The maximum number of slices of a service; many may hold few endpoints each.
const MAX_SLICES: usize = 4096;
/// The server if the pod's environment does not name one.
const DEFAULT_SERVER: (&str, u16) = ("kubernetes.default.svc", 443);

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    /// The server no longer has that version (410): the slices must be listed again.
    Gone,
    /// The server rejected the credentials (401): they must be read again.
    Unauthorized(String),
    /// The response is unusable, and the watch cannot resume after it.
    Unusable(String),
    /// Any other failure.
    Other(String),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the list is older than what the server remembers"),
            Self::Unauthorized(message) | Self::Unusable(message) | Self::Other(message) => {
                f.write_str(message)
            }
        }
    }
}

/// The API client for the slices of one service.
pub(super) struct ApiClient {
    client: Client,
    /// The folder with the token; `None` if the client authenticates by itself.
    account: Option<PathBuf>,
    slices: kube::core::Request,
    selector: String,
    timeout: Duration,
}

/// All slices, and the version of the list.
pub(super) struct SliceList {
    pub(super) version: String,
    pub(super) slices: BTreeMap<String, ServiceSlice>,
}

/// A stream of events.
pub(super) struct EventStream {
    body: Body,
    /// The received beginning of a line.
    partial_line: Vec<u8>,
    /// The length of its part that has no line end.
    scanned: usize,
}

impl ApiClient {
    /// Reads files, and runs the programs of a kubeconfig; makes no request yet.
    pub(super) async fn open(source: &KubernetesSource) -> Result<Self, ApiError> {
        let (source_clone, runtime) = (source.clone(), Handle::current());
        let connecting = spawn_blocking(move || runtime.block_on(connect(source_clone)));
        let timeout_message =
            |_| Err(format!("its credentials cannot be had within {} s", source.timeout.as_secs_f64()));
        let connecting = timeout(source.timeout, async {
            connecting.await.unwrap_or_else(|error| Err(error.to_string()))
        });
        connecting.await.unwrap_or_else(timeout_message).map_err(ApiError::Other)
    }

    /// Lists the slices.
    pub(super) async fn list(&self) -> Result<SliceList, ApiError> {
        let (mut slices, mut continue_token) = (BTreeMap::new(), None);
        for _ in 0..MAX_SLICES {
            let params = ListParams {
                label_selector: Some(self.selector.clone()),
                limit: Some(PAGE_SIZE),
                continue_token,
                ..ListParams::default()
            };
            let request = self.slices.list(&params).map_err(|error| ApiError::Other(error.to_string()))?;
            let page = timeout(self.timeout, async {
                let response = self.send(request).await?;
                let body = Limited::new(response.into_body(), MAX_PAGE_LENGTH).collect().await;
                body.map_err(|error| ApiError::Other(format!("the list broke off: {}", error_chain(&*error))))
            });
            let page = page.await.map_err(|_| self.timeout_error())??.to_bytes();
            let (version, next_token) = add_page(&page, &mut slices)?;
            continue_token = next_token;
            if continue_token.is_none() {
                return Ok(SliceList { version, slices });
            }
        }
        Err(ApiError::Unusable("its list has no end".into()))
    }

    /// Watches changes after a version, until the server ends the watch after `window`.
    pub(super) async fn watch(&self, version: &str, window: Duration) -> Result<EventStream, ApiError> {
        let params = WatchParams {
            label_selector: Some(self.selector.clone()),
            timeout: Some(u32::try_from(window.as_secs().max(1)).unwrap_or(u32::MAX)),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request =
            self.slices.watch(&params, version).map_err(|error| ApiError::Other(error.to_string()))?;
        let response =
            timeout(self.timeout, self.send(request)).await.map_err(|_| self.timeout_error())??;
        Ok(EventStream::new(response.into_body()))
    }

    /// Sends a request and checks the status of the response.
    async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, ApiError> {
        let mut request = request.map(Body::from);
        if let Some(folder) = &self.account {
            let bearer = ServiceAccount(folder).bearer().map_err(ApiError::Other)?;
            let mut bearer = HeaderValue::try_from(bearer)
                .map_err(|_| ApiError::Other(format!("{} is no token", folder.join("token").display())))?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let response =
            self.client.send(request).await.map_err(|error| ApiError::Other(error_chain(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = Limited::new(response.into_body(), MAX_ERROR_LENGTH).collect().await;
        let message = error_message(status, &body.map(|body| body.to_bytes()).unwrap_or_default());
        Err(match status {
            StatusCode::GONE => ApiError::Gone,
            StatusCode::UNAUTHORIZED => ApiError::Unauthorized(message),
            // The server is overloaded or fails: the known state stays valid.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE => ApiError::Other(message),
            _ => ApiError::Unusable(message),
        })
    }

    fn timeout_error(&self) -> ApiError {
        ApiError::Other(format!("no answer within {} s", self.timeout.as_secs_f64()))
    }
}

impl EventStream {
    pub(super) fn new(body: Body) -> Self {
        Self { body, partial_line: Vec::new(), scanned: 0 }
    }

    /// Returns the next event; `None` when the server has ended the watch. Callers may drop the future at any
    /// moment.
    pub(super) async fn next(&mut self) -> Result<Option<WatchEvent<EndpointSlice>>, ApiError> {
        loop {
            if let Some(end) = self.partial_line[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial_line.drain(..=self.scanned + end).collect();
                self.scanned = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let event = serde_json::from_slice(&line);
                return event.map(Some).map_err(|error| {
                    ApiError::Other(format!("an event of the watch cannot be read: {error}"))
                });
            }
            self.scanned = self.partial_line.len();
            if self.partial_line.len() > MAX_EVENT_LENGTH {
                return Err(ApiError::Other(format!(
                    "an event of the watch is longer than {} MiB",
                    MAX_EVENT_LENGTH >> 20
                )));
            }
            match self.body.frame().await {
                None if self.partial_line.trim_ascii().is_empty() => return Ok(None),
                None => return Err(ApiError::Other("the watch ended within an event".into())),
                Some(Err(error)) => {
                    return Err(ApiError::Other(format!("the watch broke off: {}", error_chain(&error))));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.partial_line.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// Adds the slices of a page to the known ones. Returns the version of the list, and the token of the next
/// page if there is one.
pub(super) fn add_page(
    page: &[u8],
    slices: &mut BTreeMap<String, ServiceSlice>,
) -> Result<(String, Option<String>), ApiError> {
    let page: ObjectList<EndpointSlice> = serde_json::from_slice(page)
        .map_err(|error| ApiError::Other(format!("its list cannot be read: {error}")))?;
    for slice in page.items {
        let Some(name) = slice.metadata.name.clone() else { continue };
        slices.insert(name, ServiceSlice::from(slice));
    }
    check_limits(slices, slices.values().map(ServiceSlice::len).sum()).map_err(ApiError::Other)?;
    let continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
    Ok((page.metadata.resource_version.unwrap_or_default(), continue_token))
}

/// Checks the limits on slices and endpoints.
pub(super) fn check_limits(slices: &BTreeMap<String, ServiceSlice>, endpoints: usize) -> Result<(), String> {
    // A pod may be listed with an address of each family, and in two slices while it moves.
    if endpoints > 4 * MAX_MEMBERS {
        return Err(too_many_message(endpoints));
    }
    match slices.len() > MAX_SLICES {
        true => Err(format!("the service has more than {MAX_SLICES} EndpointSlices")),
        false => Ok(()),
    }
}

async fn connect(source: KubernetesSource) -> Result<ApiClient, String> {
    let timeout = source.timeout;
    let (mut config, account) = match &source.api {
        KubernetesApi::Account { server, tls, folder } => {
            let config = account_config(server.as_ref(), *tls, folder, source.namespace.is_none())?;
            // Without TLS the proxy authenticates the client, and a token would be readable on the network.
            (config, tls.then(|| folder.clone()))
        }
        KubernetesApi::Kubeconfig { path, context } => {
            (kubeconfig_config(path, context.as_ref()).await?, None)
        }
    };
    config.connect_timeout = Some(timeout);
    // The caller decides when to retry.
    config.default_retry = false;
    let namespace = source.namespace.as_ref().unwrap_or(&config.default_namespace);
    let slices = kube::core::Request::new(EndpointSlice::url_path(&(), Some(namespace)));
    let client = Client::try_from(config).map_err(|error| error_chain(&error))?;
    Ok(ApiClient {
        client,
        account,
        slices,
        selector: format!("{SERVICE_LABEL}={}", source.service),
        timeout,
    })
}

/// Builds the configuration from the folder of a service account.
fn account_config(
    server: Option<&(String, u16)>,
    tls: bool,
    folder: &Path,
    needs_namespace: bool,
) -> Result<Config, String> {
    let server_from_environment = || {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
        Some((host, std::env::var("KUBERNETES_SERVICE_PORT").ok()?.parse().ok()?))
    };
    let (host, port) = server
        .cloned()
        .or_else(server_from_environment)
        .unwrap_or_else(|| (DEFAULT_SERVER.0.to_owned(), DEFAULT_SERVER.1));
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let url = format!("http{}://{host}:{port}", if tls { "s" } else { "" });
    let url: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let mut config = Config::new(url);
    if needs_namespace {
        config.default_namespace = ServiceAccount(folder).namespace()?;
    }
    if tls {
        let authorities = ServiceAccount(folder).authorities()?;
        config.root_cert = Some(authorities.iter().map(|authority| authority.to_vec()).collect());
        config.root_cert_file = Some(folder.join("ca.crt"));
    }
    Ok(config)
}

/// Builds the configuration from a file for `kubectl`.
async fn kubeconfig_config(path: &Path, context: Option<&String>) -> Result<Config, String> {
    let kubeconfig_error =
        |error: &(dyn Error + 'static)| format!("{}: {}", path.display(), error_chain(error));
    let file = Kubeconfig::read_from(path).map_err(|error| kubeconfig_error(&error))?;
    let options = KubeConfigOptions { context: context.cloned(), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options).await.map_err(|error| kubeconfig_error(&error))
}

/// Formats an error with its causes on one line, without repetitions.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut messages = Vec::<String>::new();
    // The client's own messages are only the names of its variants.
    let mut next_error = error.downcast_ref::<kube::Error>().and_then(Error::source).or(Some(error));
    while let Some(error) = next_error {
        let message = error.to_string();
        // Some errors include the text of their cause.
        if !messages.iter().any(|earlier| earlier.contains(&message)) {
            messages.push(message);
        }
        next_error = error.source();
    }
    messages.join(": ").replace('\n', " ")
}
