//! The draft that both readers fill: listeners, groups and members as far as they were given.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::ImportSource;
use super::loss::{self, AccessRule, LossClass};

/// A part that was not carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportNote {
    /// The line, counted from 1.
    pub line: usize,
    /// The text there, in short.
    pub subject: String,
    /// The reason, in a few words.
    pub reason: String,
    /// The kind of loss.
    pub class: LossClass,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ImportDraft {
    /// The balancer whose text it is.
    pub(super) source: ImportSource,
    pub(super) threads: Option<u64>,
    pub(super) max_connections: Option<u64>,
    pub(super) listeners: Vec<DraftListener>,
    pub(super) groups: Vec<DraftGroup>,
    pub(super) notes: Vec<ImportNote>,
    /// The reason why the text is incomplete, if it is: its meaning is not that of the readable part.
    pub(super) incomplete: Option<ImportNote>,
    /// Places where clients needed a certificate, and that could not be carried over unchanged.
    pub(super) restricted: Vec<DraftListener>,
    /// Listeners that are left out because of these rules, and groups that only those send to: comments of
    /// the result.
    pub(super) omitted_listeners: Vec<(DraftListener, Vec<AccessRule>)>,
    pub(super) omitted_groups: Vec<DraftGroup>,
    noted_subjects: BTreeSet<(usize, String, String)>,
}

impl ImportDraft {
    pub(super) fn new(source: ImportSource) -> Self {
        Self { source, ..Self::default() }
    }

    /// Adds a note, once, with its class in the table of losses.
    pub(super) fn note(&mut self, line: usize, subject: impl Into<String>, reason: impl Into<String>) {
        let subject = subject.into();
        self.note_as(loss::class(self.source, &subject), line, subject, reason);
    }

    /// Adds a note, once, with a class that the caller knows.
    pub(super) fn note_as(
        &mut self,
        class: LossClass,
        line: usize,
        subject: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let note = ImportNote { line, subject: short(&subject.into()), reason: reason.into(), class };
        if self.noted_subjects.insert((line, note.subject.clone(), note.reason.clone())) {
            self.notes.push(note);
        }
    }

    /// Notes why the text is not whole.
    pub(super) fn mark_incomplete(
        &mut self,
        line: usize,
        subject: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let note = ImportNote {
            line,
            subject: short(&subject.into()),
            reason: reason.into(),
            class: LossClass::Changed,
        };
        self.incomplete.get_or_insert(note);
    }

    /// Returns whether there is a note on this, with any reason.
    pub(super) fn has_note_on(&self, line: usize, subject: &str) -> bool {
        let key = (line, short(subject), String::new());
        self.noted_subjects.range(&key..).next().is_some_and(|noted| (noted.0, &noted.1) == (key.0, &key.1))
    }

    /// Returns `true` if there is a note on this line.
    pub(super) fn has_note(&self, line: usize) -> bool {
        self.noted_subjects
            .range((line, String::new(), String::new())..)
            .next()
            .is_some_and(|noted| noted.0 == line)
    }
}

/// The longest text that is quoted.
const MAX_QUOTED: usize = 80;

fn short(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => text[..end].chars().map(printable).chain(['…']).collect(),
        None => text.chars().map(printable).collect(),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DraftProtocol {
    #[default]
    Http,
    Tcp,
    Udp,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DraftListener {
    pub(super) line: usize,
    pub(super) address: SocketAddr,
    pub(super) protocol: DraftProtocol,
    pub(super) group: String,
    pub(super) tls: Option<DraftTls>,
    pub(super) accept_proxy: bool,
    pub(super) backlog: Option<u64>,
    /// Whether members get the client's address.
    pub(super) forwarded: bool,
    pub(super) cookie: Option<String>,
    pub(super) head: Option<Duration>,
    pub(super) idle: Option<Duration>,
    pub(super) body: Option<Duration>,
    pub(super) tunnel: Option<Duration>,
    /// Access rules at its place that could not be carried over.
    pub(super) access_rules: Vec<AccessRule>,
}

impl DraftListener {
    pub(super) fn new(line: usize, address: SocketAddr, protocol: DraftProtocol, group: &str) -> Self {
        Self {
            line,
            address,
            protocol,
            group: group.to_owned(),
            tls: None,
            accept_proxy: false,
            backlog: None,
            forwarded: false,
            cookie: None,
            head: None,
            idle: None,
            body: None,
            tunnel: None,
            access_rules: Vec::new(),
        }
    }

    /// Returns its transport: a place can have only one listener of each.
    pub(super) fn transport(&self) -> &'static str {
        if self.protocol == DraftProtocol::Udp { "udp" } else { "tcp" }
    }

    /// Returns `true` if they differ by their place alone.
    pub(super) fn is_same_except_address(&self, other: &Self) -> bool {
        *self == Self { line: self.line, address: self.address, ..other.clone() }
    }

    /// Returns the groups that it sends clients to.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        let tls_groups = self.tls.iter().flat_map(|tls| tls.names.iter().map(|(_, group)| group.as_str()));
        tls_groups.chain([self.group.as_str()])
    }

    /// Returns the authority of client certificates, and whether clients may come without one.
    pub(super) fn client_ca(&self) -> Option<(&str, bool)> {
        let tls = self.tls.as_ref()?;
        Some((tls.client_ca.as_deref()?, tls.is_optional))
    }
}

/// The certificates for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftTls {
    /// The certificate and the key.
    pub(super) certificates: Vec<(String, String)>,
    pub(super) client_ca: Option<String>,
    pub(super) is_optional: bool,
    pub(super) tls13_only: bool,
    /// The name and the group.
    pub(super) names: Vec<(String, String)>,
}

/// The authorities for members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftMemberTls {
    pub(super) verify: bool,
    pub(super) ca: Option<String>,
    pub(super) server_name: Option<String>,
    pub(super) client_certificate: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DraftProbe {
    Http(String),
    Tcp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DraftHealth {
    pub(super) kind: DraftProbe,
    pub(super) interval: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) rise: Option<u64>,
    pub(super) fall: Option<u64>,
    pub(super) host: Option<String>,
    pub(super) expect: Option<u64>,
}

/// The strategy by which members are chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum DraftStrategy {
    /// In turns, by weights.
    #[default]
    RoundRobin,
    LeastConnections,
    Random,
    /// The best of so many.
    LeastRequest(u64),
    FirstAvailable,
    /// By a key: the factor by which a member may exceed its share, 0 for no bound.
    Rendezvous(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DraftMember {
    pub(super) address: String,
    pub(super) capacity: f64,
    pub(super) limit: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DraftGroup {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) strategy: DraftStrategy,
    pub(super) key: Option<String>,
    pub(super) members: Vec<DraftMember>,
    /// The names, `host:port`, of which each address is a member.
    pub(super) dns: Vec<String>,
    /// The limit of members that have none of their own.
    pub(super) limit: Option<u64>,
    pub(super) queue_timeout: Option<Duration>,
    pub(super) max_idle_connections: Option<u64>,
    pub(super) slow_start: Option<Duration>,
    /// The version of the protocol, 1 or 2.
    pub(super) send_proxy: Option<u8>,
    pub(super) h2: bool,
    pub(super) tls: Option<DraftMemberTls>,
    pub(super) health: Option<DraftHealth>,
    pub(super) connect: Option<Duration>,
    pub(super) idle: Option<Duration>,
    pub(super) attempts: Option<u64>,
    /// The number of failures in a row that eject, and the time.
    pub(super) ejection: Option<(u64, Option<Duration>)>,
    /// Access rules that stood before its members and could not be carried over.
    pub(super) access_rules: Vec<AccessRule>,
}
