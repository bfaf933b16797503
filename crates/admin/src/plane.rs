//! One endpoint's view of the process behind it, and the permissions of its callers.

use std::sync::Arc;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Request};
use plimsoll_kerberos::Channel;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use crate::Subject;
use crate::access::{Caller, Kind, Permit};
use crate::audit::{Audit, Deed};
use crate::host;
use crate::jwt::Tokens;
use crate::lobby::Guest;
use crate::lottery::Daemon;
use crate::rules::Rules;
use crate::supervisor::Supervisor;
use crate::ticket::{Proof, Ticket, Tickets};
use crate::turn::Turns;
use crate::verb::{By, Nature, Route, Verb};

/// The process behind the endpoints.
#[derive(Clone)]
pub(crate) enum Behind {
    Balancer(Arc<dyn Subject>),
    Lottery(Arc<dyn Daemon>),
    Supervisor(Arc<dyn Supervisor>),
}

impl Behind {
    /// Returns the kind of process.
    pub(crate) fn by(&self) -> By {
        match self {
            Self::Balancer(_) => By::Balancer,
            Self::Lottery(_) => By::Lottery,
            Self::Supervisor(_) => By::Supervisor,
        }
    }
}

/// The capabilities of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Powers {
    /// Queries.
    Show,
    /// Queries and commands.
    Act,
    /// Load reports, leases, and the object references of groups, to which a CORBA server's side-car sends
    /// its clients; no more.
    Report,
}

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The identity that the connection proves.
    pub(crate) caller: Caller,
    /// The channel binding of tickets, over TLS.
    pub(crate) channel: Option<Channel>,
    /// The origin.
    pub(crate) from: String,
    /// The connection's slot, from which an unauthenticated connection may be evicted.
    pub(crate) guest: Arc<Guest>,
}

/// The authentication and access rules of an endpoint.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) rules: Arc<Rules>,
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) tickets: Option<Tickets>,
}

impl Guard {
    /// Returns the alternatives to a certificate, as the end of a message.
    fn or_else(&self) -> &'static str {
        match (&self.tokens, &self.tickets) {
            (_, None) => ", or with Authorization: Bearer TOKEN",
            (None, Some(_)) => ", or with Authorization: Negotiate TICKET",
            (Some(_), Some(_)) => ", or with Authorization: Bearer TOKEN or Negotiate TICKET",
        }
    }
}

/// A credential.
pub(crate) enum Shown {
    /// A known caller.
    Caller(Caller),
    /// A token and its verifier: its key may have to be fetched.
    Token { tokens: Arc<Tokens>, text: String },
    /// A ticket, verified on another thread as that reads files.
    Ticket(Ticket),
}

impl Shown {
    /// Verifies the credential. Returns the caller, and the proof to send with the response.
    ///
    /// # Errors
    /// The reason why the credential is invalid.
    pub(crate) async fn judge(self) -> Result<(Caller, Option<Proof>), String> {
        match self {
            Self::Caller(caller) => Ok((caller, None)),
            Self::Token { tokens, text } => Ok((tokens.check(&text).await?, None)),
            Self::Ticket(ticket) => ticket.check().await.map(|(caller, proof)| (caller, Some(proof))),
        }
    }
}

/// One endpoint's view of the process behind it.
pub(crate) struct Plane {
    pub(crate) behind: Behind,
    pub(crate) powers: Powers,
    /// The accepted host names without TLS, besides those of every endpoint.
    names: Arc<[Box<str>]>,
    /// Whether the reports endpoint grants leases, too.
    lends: bool,
    /// Whether the reports endpoint registers members.
    registers: bool,
    /// The authentication; `None` where every peer may use all capabilities of the endpoint.
    guard: Option<Guard>,
    audit: Option<Arc<Audit>>,
    /// The locks, shared by all endpoints.
    pub(crate) turns: Arc<Turns>,
    /// The slots for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Becomes true when the admin plane ends.
    ended: watch::Receiver<bool>,
}

impl Plane {
    pub(crate) fn new(
        behind: Behind,
        powers: Powers,
        audit: Option<Arc<Audit>>,
        turns: Arc<Turns>,
        streams: usize,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let streams = Arc::new(Semaphore::new(streams));
        let names = Arc::default();
        Self {
            behind,
            powers,
            names,
            lends: true,
            registers: false,
            guard: None,
            audit,
            turns,
            streams,
            ended,
        }
    }

    /// Accepts further host names.
    pub(crate) fn named(self, names: Arc<[Box<str>]>) -> Self {
        Self { names, ..self }
    }

    /// Checks the host of a request where a foreign web page could have sent it; `verb` is its operation.
    ///
    /// # Errors
    /// The reason for the rejection, and a remedy.
    pub(crate) fn check_host<B>(&self, request: &Request<B>, verb: Option<Verb>) -> Result<(), String> {
        let checked = match self.powers {
            _ if self.secure() => false,
            // Health checks may use any name, and learn only that the process is there.
            Powers::Show => verb != Some(Verb::Health),
            // No browser opens a unix socket by itself; pages are for a proxy in front of it.
            Powers::Act => verb == Some(Verb::Dashboard),
            // The reports endpoint rejects requests of web pages by their `Origin`.
            Powers::Report => false,
        };
        if checked { host::check(request, &self.names) } else { Ok(()) }
    }

    /// Sets whether the reports endpoint grants leases.
    pub(crate) fn lending(self, lends: bool) -> Self {
        Self { lends, ..self }
    }

    /// Sets whether the reports endpoint registers members.
    pub(crate) fn registering(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// Requires authentication and access rules.
    pub(crate) fn guarded(self, guard: Guard) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Returns `true` if the reports endpoint grants leases.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Returns `true` if the reports endpoint registers members.
    pub(crate) fn registers(&self) -> bool {
        self.registers
    }

    /// Returns `true` if the admin plane has ended.
    pub(crate) fn ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves when the admin plane ends.
    pub(crate) async fn end(&self) {
        // An error means that the sender is gone, which is an end, too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Returns the log of changes.
    pub(crate) fn audit(&self) -> Option<&Arc<Audit>> {
        self.audit.as_ref()
    }

    /// Returns `true` if the endpoint serves the route.
    pub(crate) fn has(&self, route: &Route) -> bool {
        if !route.served(self.behind.by()) {
            return false;
        }
        match self.powers {
            Powers::Show => route.nature == Nature::Look,
            Powers::Report if matches!(route.verb, Verb::Register | Verb::Deregister) => self.registers,
            Powers::Report if !self.lends => matches!(route.verb, Verb::Report | Verb::Reference),
            Powers::Report => route.nature == Nature::Tell || route.verb == Verb::Reference,
            Powers::Act => true,
        }
    }

    /// Returns `true` if the endpoint accepts tokens.
    pub(crate) fn takes_tokens(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.tokens.is_some())
    }

    /// Returns `true` if the endpoint uses TLS and authenticates its callers.
    pub(crate) fn secure(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns a token with its verifier; `None` where tokens are not accepted.
    pub(crate) fn token(&self, text: String) -> Option<Shown> {
        let tokens = self.guard.as_ref()?.tokens.as_ref()?;
        Some(Shown::Token { tokens: Arc::clone(tokens), text })
    }

    /// Returns the credential of a request: a token or ticket in it takes precedence over the connection's
    /// certificate. `kept` is a token from the browser's cookie, where that is accepted.
    ///
    /// # Errors
    /// There is no credential, or none that the endpoint accepts.
    pub(crate) fn shown(
        &self,
        arrival: &Arrival,
        headers: &HeaderMap,
        kept: Option<String>,
    ) -> Result<Shown, String> {
        let Some(guard) = &self.guard else { return Ok(Shown::Caller(arrival.caller.clone())) };
        if arrival.caller.ended() {
            return Err("the client certificate has expired: come again with another".into());
        }
        if !headers.contains_key(AUTHORIZATION)
            && let Some(token) = kept.and_then(|kept| self.token(kept))
        {
            return Ok(token);
        }
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let sent = match (sent.next(), sent.next()) {
            (None, _) if arrival.caller.kind == Kind::None => {
                return Err(format!("no credential: come with a client certificate{}", guard.or_else()));
            }
            (None, _) => return Ok(Shown::Caller(arrival.caller.clone())),
            (Some(sent), None) => sent.to_str().unwrap_or_default(),
            (Some(_), Some(_)) => return Err("more than one Authorization".into()),
        };
        let (scheme, text) = sent.split_once(' ').unwrap_or_default();
        let is = |name: &str| scheme.eq_ignore_ascii_case(name);
        match (&guard.tokens, &guard.tickets) {
            (Some(tokens), _) if is("bearer") => {
                Ok(Shown::Token { tokens: Arc::clone(tokens), text: text.trim().to_owned() })
            }
            (_, Some(tickets)) if is("negotiate") => {
                let channel = arrival.channel.ok_or("tickets count over TLS only")?;
                Ok(Shown::Ticket(tickets.ticket(text.trim(), channel)))
            }
            (None, _) if is("bearer") => Err("tokens do not count here: there is no [admin.jwt]".into()),
            (_, None) if is("negotiate") => {
                Err("tickets do not count here: there is no [admin.kerberos]".into())
            }
            _ => Err(format!("that Authorization does not count here: give none{}", guard.or_else())),
        }
    }

    /// Returns the available authentication schemes: values of `WWW-Authenticate`.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static str> {
        let tickets = self.guard.as_ref().is_some_and(|guard| guard.tickets.is_some());
        ["Bearer"].into_iter().chain(tickets.then_some("Negotiate"))
    }

    /// Returns a caller's permission for an operation under the current rules.
    pub(crate) fn permit(&self, caller: &Caller, verb: Verb) -> Permit {
        let Some(guard) = &self.guard else { return Permit::All };
        // Only a stream can live that long.
        if caller.ended() {
            return Permit::Nothing;
        }
        let look = guard.rules.look();
        match &look.news {
            None => {}
            Some(Ok(())) => {
                tracing::info!("the access rules were read anew: {} grants", look.value.grants());
                self.note(Ok(()));
            }
            Some(Err(why)) => {
                tracing::warn!("the access rules that were read before stay: {why}");
                self.note(Err(why));
            }
        }
        look.value.permit(caller, verb)
    }

    fn note(&self, outcome: Result<(), &str>) {
        let Some(audit) = &self.audit else { return };
        let (caller, from) = (Caller::nobody(), "file".to_owned());
        let deed = Deed { caller, from, verb: "access", target: None, arguments: Value::Null };
        audit.note(&deed, outcome);
    }

    /// Logs a rejected connection or request.
    pub(crate) fn refused(&self, deed: &Deed, why: &str) {
        match &self.audit {
            Some(audit) => audit.refuse(deed, why),
            None => tracing::debug!("{} refused to {} {:?}: {why}", deed.verb, deed.from, deed.caller.name),
        }
    }

    /// Logs a connection that was rejected before any request.
    pub(crate) fn turned_away(&self, from: &str, why: &str) {
        let (caller, from) = (Caller::nobody(), from.to_owned());
        let deed = Deed { caller, from, verb: "connect", target: None, arguments: Value::Null };
        self.refused(&deed, why);
    }
}
