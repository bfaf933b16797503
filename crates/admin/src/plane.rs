//! One door's view of who is behind it, and what its callers may do.

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

/// Who is behind the doors.
#[derive(Clone)]
pub(crate) enum Behind {
    Balancer(Arc<dyn Subject>),
    Lottery(Arc<dyn Daemon>),
    Supervisor(Arc<dyn Supervisor>),
}

impl Behind {
    /// What kind of process it is.
    pub(crate) fn by(&self) -> By {
        match self {
            Self::Balancer(_) => By::Balancer,
            Self::Lottery(_) => By::Lottery,
            Self::Supervisor(_) => By::Supervisor,
        }
    }
}

/// What can be done through a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Powers {
    /// Look.
    Show,
    /// Look and act.
    Act,
    /// Hand in reports, ask for members, see the object references of groups (a side-car of a CORBA server sends its
    /// clients there), and no more.
    Report,
}

/// Who came through a door.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// As the connection proves it.
    pub(crate) caller: Caller,
    /// What a ticket must be bound to, over TLS.
    pub(crate) channel: Option<Channel>,
    /// From where.
    pub(crate) from: String,
    /// Its place, which a stranger may have to give up for others.
    pub(crate) guest: Arc<Guest>,
}

/// What a door asks of those who come.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) rules: Arc<Rules>,
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) tickets: Option<Tickets>,
}

impl Guard {
    /// What else there is than a certificate, to be read after it.
    fn or_else(&self) -> &'static str {
        match (&self.tokens, &self.tickets) {
            (_, None) => ", or with Authorization: Bearer TOKEN",
            (None, Some(_)) => ", or with Authorization: Negotiate TICKET",
            (Some(_), Some(_)) => ", or with Authorization: Bearer TOKEN or Negotiate TICKET",
        }
    }
}

/// What somebody shows.
pub(crate) enum Shown {
    /// Enough to know who it is.
    Caller(Caller),
    /// A token, and who judges it: its key may have to be fetched.
    Token { tokens: Arc<Tokens>, text: String },
    /// A ticket, which is to be judged elsewhere: that looks into files.
    Ticket(Ticket),
}

impl Shown {
    /// Who it is, and what is to go with the answer.
    ///
    /// # Errors
    /// Why that does not count.
    pub(crate) async fn judge(self) -> Result<(Caller, Option<Proof>), String> {
        match self {
            Self::Caller(caller) => Ok((caller, None)),
            Self::Token { tokens, text } => Ok((tokens.check(&text).await?, None)),
            Self::Ticket(ticket) => ticket.check().await.map(|(caller, proof)| (caller, Some(proof))),
        }
    }
}

/// One door's view of who is behind it.
pub(crate) struct Plane {
    pub(crate) behind: Behind,
    pub(crate) powers: Powers,
    /// Names by which it may be asked without TLS, beside those that every door has.
    names: Arc<[Box<str>]>,
    /// Does the door for reports lend members, too?
    lends: bool,
    /// Does it register members?
    registers: bool,
    /// None where whoever can come may do all that the door has.
    guard: Option<Guard>,
    audit: Option<Arc<Audit>>,
    /// Of all doors together.
    pub(crate) turns: Arc<Turns>,
    /// Slots for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// True once the admin plane ends.
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

    /// Answers to these names, too.
    pub(crate) fn named(self, names: Arc<[Box<str>]>) -> Self {
        Self { names, ..self }
    }

    /// Checks that a request is for us, where a page of somebody else could have sent it. `verb` is what it asks for.
    ///
    /// # Errors
    /// The reason for which the request is refused, and what to do.
    pub(crate) fn check_host<B>(&self, request: &Request<B>, verb: Option<Verb>) -> Result<(), String> {
        let checked = match self.powers {
            _ if self.secure() => false,
            // Checks of health come by any name, and learn that somebody is there.
            Powers::Show => verb != Some(Verb::Health),
            // No browser opens a unix socket by itself; pages are for what somebody put before it.
            Powers::Act => verb == Some(Verb::Dashboard),
            // The listener for reports refuses requests that a web page makes by their `Origin`.
            Powers::Report => false,
        };
        if checked { host::check(request, &self.names) } else { Ok(()) }
    }

    /// Lends members, where it takes reports, or does not.
    pub(crate) fn lending(self, lends: bool) -> Self {
        Self { lends, ..self }
    }

    /// Registers members, where it takes reports, or does not.
    pub(crate) fn registering(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// Lets in only those whom the rules know.
    pub(crate) fn guarded(self, guard: Guard) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Does the door for reports lend members?
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Does that door register members?
    pub(crate) fn registers(&self) -> bool {
        self.registers
    }

    /// Has the admin plane ended?
    pub(crate) fn ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves when it ends.
    pub(crate) async fn end(&self) {
        // An error says that the sender is gone, which is an end too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// The changes made here are written there.
    pub(crate) fn audit(&self) -> Option<&Arc<Audit>> {
        self.audit.as_ref()
    }

    /// Does this door have that path at all?
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

    /// Do tokens count here?
    pub(crate) fn takes_tokens(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.tokens.is_some())
    }

    /// Is TLS spoken here, and everybody asked who he is?
    pub(crate) fn secure(&self) -> bool {
        self.guard.is_some()
    }

    /// What a token that somebody gives is to be judged by; `None` where tokens do not count.
    pub(crate) fn token(&self, text: String) -> Option<Shown> {
        let tokens = self.guard.as_ref()?.tokens.as_ref()?;
        Some(Shown::Token { tokens: Arc::clone(tokens), text })
    }

    /// What somebody shows: a token or ticket that is sent counts for more than the certificate it is sent under. `kept`: a token that
    /// the browser kept, where that counts.
    ///
    /// # Errors
    /// There is no credential, or it is none that counts here.
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

    /// How a stranger may say who it is: values of `WWW-Authenticate`.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static str> {
        let tickets = self.guard.as_ref().is_some_and(|guard| guard.tickets.is_some());
        ["Bearer"].into_iter().chain(tickets.then_some("Negotiate"))
    }

    /// What somebody may do by a verb, by the rules as they are now.
    pub(crate) fn permit(&self, caller: &Caller, verb: Verb) -> Permit {
        let Some(guard) = &self.guard else { return Permit::All };
        // Only a stream can live so long.
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

    /// Somebody was not let in, or not let do something.
    pub(crate) fn refused(&self, deed: &Deed, why: &str) {
        match &self.audit {
            Some(audit) => audit.refuse(deed, why),
            None => tracing::debug!("{} refused to {} {:?}: {why}", deed.verb, deed.from, deed.caller.name),
        }
    }

    /// Somebody did not get as far as to ask for something.
    pub(crate) fn turned_away(&self, from: &str, why: &str) {
        let (caller, from) = (Caller::nobody(), from.to_owned());
        let deed = Deed { caller, from, verb: "connect", target: None, arguments: Value::Null };
        self.refused(&deed, why);
    }
}
