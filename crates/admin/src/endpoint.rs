//! One endpoint's view of the process behind it, and the permissions of its callers.

use std::sync::Arc;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Request};
use plimsoll_kerberos::ChannelBinding;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use crate::BalancerBackend;
use crate::access::{Caller, CredentialKind, GrantedScope};
use crate::active_rules::ActiveRules;
use crate::api::{ApiRoute, Operation, OperationClass, ProcessKind};
use crate::audit::{AuditLog, AuditedRequest};
use crate::connection_slots::ConnectionSlot;
use crate::host;
use crate::jwt::TokenVerifier;
use crate::kerberos::{KerberosTicket, ServiceProof, TicketVerifier};
use crate::lottery::DaemonBackend;
use crate::operation_lock::OperationLocks;
use crate::supervisor::SupervisorBackend;

/// The process behind the endpoints.
#[derive(Clone)]
pub(crate) enum AdminBackend {
    Balancer(Arc<dyn BalancerBackend>),
    Lottery(Arc<dyn DaemonBackend>),
    Supervisor(Arc<dyn SupervisorBackend>),
}

impl AdminBackend {
    /// Returns the kind of process.
    pub(crate) fn process_kind(&self) -> ProcessKind {
        match self {
            Self::Balancer(_) => ProcessKind::Balancer,
            Self::Lottery(_) => ProcessKind::Lottery,
            Self::Supervisor(_) => ProcessKind::Supervisor,
        }
    }
}

/// The capabilities of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointCapability {
    /// Queries.
    Query,
    /// Queries and commands.
    Command,
    /// Load reports, leases, and the object references of groups, to which a CORBA server's side-car sends
    /// its clients; no more.
    Report,
}

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct PeerConnection {
    /// The identity that the connection proves.
    pub(crate) caller: Caller,
    /// The channel binding of tickets, over TLS.
    pub(crate) channel: Option<ChannelBinding>,
    /// The origin.
    pub(crate) origin: String,
    /// The connection's slot, from which an unauthenticated connection may be evicted.
    pub(crate) slot: Arc<ConnectionSlot>,
}

/// The authentication and access rules of an endpoint.
#[derive(Debug)]
pub(crate) struct EndpointAuthenticator {
    pub(crate) rules: Arc<ActiveRules>,
    pub(crate) tokens: Option<Arc<TokenVerifier>>,
    pub(crate) tickets: Option<TicketVerifier>,
}

impl EndpointAuthenticator {
    /// Returns the alternatives to a certificate, as the end of a message.
    fn other_schemes(&self) -> &'static str {
        match (&self.tokens, &self.tickets) {
            (_, None) => ", or with Authorization: Bearer TOKEN",
            (None, Some(_)) => ", or with Authorization: Negotiate TICKET",
            (Some(_), Some(_)) => ", or with Authorization: Bearer TOKEN or Negotiate TICKET",
        }
    }
}

/// A credential.
pub(crate) enum PresentedCredential {
    /// A known caller.
    Caller(Caller),
    /// A token and its verifier: its key may have to be fetched.
    Token { tokens: Arc<TokenVerifier>, text: String },
    /// A ticket, verified on another thread as that reads files.
    Ticket(KerberosTicket),
}

impl PresentedCredential {
    /// Verifies the credential. Returns the caller, and the proof to send with the response.
    ///
    /// # Errors
    /// The reason why the credential is invalid.
    pub(crate) async fn verify(self) -> Result<(Caller, Option<ServiceProof>), String> {
        match self {
            Self::Caller(caller) => Ok((caller, None)),
            Self::Token { tokens, text } => Ok((tokens.check(&text).await?, None)),
            Self::Ticket(ticket) => ticket.check().await.map(|(caller, proof)| (caller, Some(proof))),
        }
    }
}

/// One endpoint's view of the process behind it.
pub(crate) struct AdminEndpoint {
    pub(crate) backend: AdminBackend,
    pub(crate) capability: EndpointCapability,
    /// The accepted host names without TLS, besides those of every endpoint.
    host_names: Arc<[Box<str>]>,
    /// Whether the reports endpoint grants leases, too.
    grants_leases: bool,
    /// Whether the reports endpoint registers members.
    registers_members: bool,
    /// The authentication; `None` where every peer may use all capabilities of the endpoint.
    authenticator: Option<EndpointAuthenticator>,
    audit: Option<Arc<AuditLog>>,
    /// The locks, shared by all endpoints.
    pub(crate) locks: Arc<OperationLocks>,
    /// The slots for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Becomes true when the admin plane ends.
    ended: watch::Receiver<bool>,
}

impl AdminEndpoint {
    pub(crate) fn new(
        backend: AdminBackend,
        capability: EndpointCapability,
        audit: Option<Arc<AuditLog>>,
        locks: Arc<OperationLocks>,
        streams: usize,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let streams = Arc::new(Semaphore::new(streams));
        let host_names = Arc::default();
        Self {
            backend,
            capability,
            host_names,
            grants_leases: true,
            registers_members: false,
            authenticator: None,
            audit,
            locks,
            streams,
            ended,
        }
    }

    /// Accepts further host names.
    pub(crate) fn with_host_names(self, names: Arc<[Box<str>]>) -> Self {
        Self { host_names: names, ..self }
    }

    /// Checks the host of a request where a foreign web page could have sent it; `verb` is its operation.
    ///
    /// # Errors
    /// The reason for the rejection, and a remedy.
    pub(crate) fn check_host<B>(
        &self,
        request: &Request<B>,
        operation: Option<Operation>,
    ) -> Result<(), String> {
        let is_checked = match self.capability {
            _ if self.is_secured() => false,
            // Health checks may use any name, and learn only that the process is there.
            EndpointCapability::Query => operation != Some(Operation::Health),
            // No browser opens a unix socket by itself; pages are for a proxy in front of it.
            EndpointCapability::Command => operation == Some(Operation::Dashboard),
            // The reports endpoint rejects requests of web pages by their `Origin`.
            EndpointCapability::Report => false,
        };
        if is_checked { host::check(request, &self.host_names) } else { Ok(()) }
    }

    /// Sets whether the reports endpoint grants leases.
    pub(crate) fn with_leases(self, grants_leases: bool) -> Self {
        Self { grants_leases, ..self }
    }

    /// Sets whether the reports endpoint registers members.
    pub(crate) fn with_registration(self, registers_members: bool) -> Self {
        Self { registers_members, ..self }
    }

    /// Requires authentication and access rules.
    pub(crate) fn with_authenticator(self, authenticator: EndpointAuthenticator) -> Self {
        Self { authenticator: Some(authenticator), ..self }
    }

    /// Returns `true` if the reports endpoint grants leases.
    pub(crate) fn grants_leases(&self) -> bool {
        self.grants_leases
    }

    /// Returns `true` if the reports endpoint registers members.
    pub(crate) fn registers_members(&self) -> bool {
        self.registers_members
    }

    /// Returns `true` if the admin plane has ended.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves when the admin plane ends.
    pub(crate) async fn wait_for_end(&self) {
        // An error means that the sender is gone, which is an end, too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Returns the log of changes.
    pub(crate) fn audit(&self) -> Option<&Arc<AuditLog>> {
        self.audit.as_ref()
    }

    /// Returns `true` if the endpoint serves the route.
    pub(crate) fn serves(&self, route: &ApiRoute) -> bool {
        if !route.is_served_by(self.backend.process_kind()) {
            return false;
        }
        match self.capability {
            EndpointCapability::Query => route.class == OperationClass::Query,
            EndpointCapability::Report
                if matches!(route.operation, Operation::Register | Operation::Deregister) =>
            {
                self.registers_members
            }
            EndpointCapability::Report if !self.grants_leases => {
                matches!(route.operation, Operation::Report | Operation::Reference)
            }
            EndpointCapability::Report => {
                route.class == OperationClass::Automate || route.operation == Operation::Reference
            }
            EndpointCapability::Command => true,
        }
    }

    /// Returns `true` if the endpoint accepts tokens.
    pub(crate) fn accepts_tokens(&self) -> bool {
        self.authenticator.as_ref().is_some_and(|authenticator| authenticator.tokens.is_some())
    }

    /// Returns `true` if the endpoint uses TLS and authenticates its callers.
    pub(crate) fn is_secured(&self) -> bool {
        self.authenticator.is_some()
    }

    /// Returns a token with its verifier; `None` where tokens are not accepted.
    pub(crate) fn token_credential(&self, text: String) -> Option<PresentedCredential> {
        let tokens = self.authenticator.as_ref()?.tokens.as_ref()?;
        Some(PresentedCredential::Token { tokens: Arc::clone(tokens), text })
    }

    /// Returns the credential of a request: a token or ticket in it takes precedence over the connection's
    /// certificate. `kept` is a token from the browser's cookie, where that is accepted.
    ///
    /// # Errors
    /// There is no credential, or none that the endpoint accepts.
    pub(crate) fn credential(
        &self,
        peer: &PeerConnection,
        headers: &HeaderMap,
        cookie_token: Option<String>,
    ) -> Result<PresentedCredential, String> {
        let Some(authenticator) = &self.authenticator else {
            return Ok(PresentedCredential::Caller(peer.caller.clone()));
        };
        if peer.caller.is_expired() {
            return Err("the client certificate has expired: come again with another".into());
        }
        if !headers.contains_key(AUTHORIZATION)
            && let Some(token) = cookie_token.and_then(|cookie_token| self.token_credential(cookie_token))
        {
            return Ok(token);
        }
        let mut header_values = headers.get_all(AUTHORIZATION).iter();
        let authorization = match (header_values.next(), header_values.next()) {
            (None, _) if peer.caller.kind == CredentialKind::None => {
                return Err(format!(
                    "no credential: come with a client certificate{}",
                    authenticator.other_schemes()
                ));
            }
            (None, _) => return Ok(PresentedCredential::Caller(peer.caller.clone())),
            (Some(authorization), None) => authorization.to_str().unwrap_or_default(),
            (Some(_), Some(_)) => return Err("more than one Authorization".into()),
        };
        let (scheme, text) = authorization.split_once(' ').unwrap_or_default();
        let is_scheme = |name: &str| scheme.eq_ignore_ascii_case(name);
        match (&authenticator.tokens, &authenticator.tickets) {
            (Some(tokens), _) if is_scheme("bearer") => {
                Ok(PresentedCredential::Token { tokens: Arc::clone(tokens), text: text.trim().to_owned() })
            }
            (_, Some(tickets)) if is_scheme("negotiate") => {
                let channel = peer.channel.ok_or("tickets count over TLS only")?;
                Ok(PresentedCredential::Ticket(tickets.ticket(text.trim(), channel)))
            }
            (None, _) if is_scheme("bearer") => {
                Err("tokens do not count here: there is no [admin.jwt]".into())
            }
            (_, None) if is_scheme("negotiate") => {
                Err("tickets do not count here: there is no [admin.kerberos]".into())
            }
            _ => Err(format!(
                "that Authorization does not count here: give none{}",
                authenticator.other_schemes()
            )),
        }
    }

    /// Returns the available authentication schemes: values of `WWW-Authenticate`.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static str> {
        let tickets =
            self.authenticator.as_ref().is_some_and(|authenticator| authenticator.tickets.is_some());
        ["Bearer"].into_iter().chain(tickets.then_some("Negotiate"))
    }

    /// Returns a caller's permission for an operation under the current rules.
    pub(crate) fn granted_scope(&self, caller: &Caller, operation: Operation) -> GrantedScope {
        let Some(authenticator) = &self.authenticator else { return GrantedScope::All };
        // Only a stream can live that long.
        if caller.is_expired() {
            return GrantedScope::Denied;
        }
        let rules = authenticator.rules.current();
        match &rules.change {
            None => {}
            Some(Ok(())) => {
                tracing::info!("the access rules were read anew: {} grants", rules.value.grant_count());
                self.log_rules_change(Ok(()));
            }
            Some(Err(reason)) => {
                tracing::warn!("the access rules that were read before stay: {reason}");
                self.log_rules_change(Err(reason));
            }
        }
        rules.value.granted_scope(caller, operation)
    }

    fn log_rules_change(&self, outcome: Result<(), &str>) {
        let Some(audit) = &self.audit else { return };
        let (caller, from) = (Caller::unauthenticated(), "file".to_owned());
        let request = AuditedRequest { caller, from, verb: "access", target: None, arguments: Value::Null };
        audit.log_change(&request, outcome);
    }

    /// Logs a rejected connection or request.
    pub(crate) fn log_rejection(&self, request: &AuditedRequest, reason: &str) {
        match &self.audit {
            Some(audit) => audit.log_rejection(request, reason),
            None => tracing::debug!(
                "{} refused to {} {:?}: {reason}",
                request.verb,
                request.from,
                request.caller.name
            ),
        }
    }

    /// Logs a connection that was rejected before any request.
    pub(crate) fn log_rejected_connection(&self, from: &str, reason: &str) {
        let (caller, from) = (Caller::unauthenticated(), from.to_owned());
        let request = AuditedRequest { caller, from, verb: "connect", target: None, arguments: Value::Null };
        self.log_rejection(&request, reason);
    }
}
