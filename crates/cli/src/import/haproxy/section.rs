//! Sections and what is in force in each: its own lines on top of its defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::draft::Draft;
use super::super::value;
use super::words::words;
use super::{NO_RULES, UNIT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Global,
    Defaults,
    Frontend,
    Backend,
    Listen,
}

impl Kind {
    pub(super) fn accepts(self) -> bool {
        matches!(self, Self::Frontend | Self::Listen)
    }

    pub(super) fn serves(self) -> bool {
        matches!(self, Self::Backend | Self::Listen)
    }
}

/// A line that is kept for later, with its number.
pub(super) type Line = (usize, Vec<String>);

/// A section, or defaults on top of which one begins.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) line: usize,
    /// What is set once, by its words: `mode`, `balance`, `timeout client`, `option httpchk` …
    pub(super) set: BTreeMap<String, Line>,
    /// What there may be several of.
    pub(super) binds: Vec<Line>,
    pub(super) servers: Vec<Line>,
    pub(super) default_server: Vec<String>,
    pub(super) uses: Vec<Line>,
    pub(super) acls: BTreeMap<String, Line>,
    pub(super) checks: Vec<Line>,
}

impl Section {
    fn new(kind: Kind, name: &str, line: usize) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            line,
            set: BTreeMap::new(),
            binds: Vec::new(),
            servers: Vec::new(),
            default_server: Vec::new(),
            uses: Vec::new(),
            acls: BTreeMap::new(),
            checks: Vec::new(),
        }
    }

    /// Words behind what is set once.
    pub(super) fn get(&self, key: &str) -> Option<&[String]> {
        self.set.get(key).map(|(_, words)| words.as_slice())
    }

    pub(super) fn line_of(&self, key: &str) -> usize {
        self.set.get(key).map_or(self.line, |(line, _)| *line)
    }

    pub(super) fn first(&self, key: &str) -> Option<&str> {
        self.get(key)?.first().map(String::as_str)
    }

    pub(super) fn http(&self) -> bool {
        self.first("mode") == Some("http")
    }

    pub(super) fn timeout(&self, which: &str) -> Option<Duration> {
        value::time(self.first(&format!("timeout {which}"))?, UNIT)
    }

    pub(super) fn option(&self, name: &str) -> bool {
        self.set.contains_key(&format!("option {name}"))
    }
}

/// All of them, in their order.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) list: Vec<Section>,
}

/// Has no effect on what is carried.
const SILENT: [&str; 12] = [
    "option redispatch",
    "option dontlognull",
    "option http-keep-alive",
    "option prefer-last-server",
    "option clitcpka",
    "option srvtcpka",
    "option tcp-smart-accept",
    "option tcp-smart-connect",
    "option contstats",
    "description",
    "id",
    "enabled",
];

/// Of the process, and done elsewhere here.
const OF_PROCESS: [(&str, &str); 14] = [
    (
        "log",
        "write [access_log] for a line of JSON per request; the log of the process goes to standard error",
    ),
    ("stats", "plimsoll top, status and metrics are always there: [admin] says where"),
    ("user", "the unit of systemd says as whom it runs"),
    ("group", "the unit of systemd says as whom it runs"),
    ("uid", "the unit of systemd says as whom it runs"),
    ("gid", "the unit of systemd says as whom it runs"),
    ("chroot", "the unit of systemd shuts it in"),
    ("daemon", "it stays in the foreground, for systemd"),
    ("master-worker", "it is one process, which reloads without a master"),
    ("pidfile", "systemd knows its number"),
    ("nbproc", "it is one process"),
    ("cpu-map", "threads are pinned to cores"),
    ("ulimit-n", "the limit on open files is raised as far as it goes"),
    ("hard-stop-after", "that is drain_deadline"),
];

const RULES: [&str; 18] = [
    "http-request",
    "http-response",
    "http-after-response",
    "tcp-request",
    "tcp-response",
    "redirect",
    "reqrep",
    "rspadd",
    "errorfile",
    "errorfiles",
    "errorloc",
    "http-error",
    "capture",
    "monitor-uri",
    "compression",
    "filter",
    "force-persist",
    "ignore-persist",
];

/// Gathers sections; what is of none of them, or of no use, is noted.
pub(super) fn read(text: &str, draft: &mut Draft) -> Sections {
    let mut sections = Sections::default();
    // In force for what follows, and those that have a name.
    let mut defaults = Section::new(Kind::Defaults, "", 0);
    let mut named: BTreeMap<String, Section> = BTreeMap::new();
    let mut now: Option<Section> = None;
    let mut foreign = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let words = words(line);
        let Some(first) = words.first() else { continue };
        let kind = match &**first {
            "global" => Some(Kind::Global),
            "defaults" => Some(Kind::Defaults),
            "frontend" => Some(Kind::Frontend),
            "backend" => Some(Kind::Backend),
            "listen" => Some(Kind::Listen),
            "resolvers" | "peers" | "userlist" | "mailers" | "cache" | "program" | "ring" | "log-forward"
            | "http-errors" | "fcgi-app" | "crt-store" | "traces" | "log-profile"
                if !line.starts_with([' ', '\t']) =>
            {
                end(now.take(), &mut sections, &mut defaults, &mut named);
                foreign = true;
                draft.note(number, line.trim(), format!("there is nothing like a section `{first}` here"));
                continue;
            }
            _ => None,
        };
        if let Some(kind) = kind {
            end(now.take(), &mut sections, &mut defaults, &mut named);
            foreign = false;
            now = Some(begin(kind, &words, number, &defaults, &named));
            continue;
        }
        if foreign {
            continue;
        }
        match &mut now {
            Some(section) if section.kind == Kind::Global => global(section, number, &words, line, draft),
            Some(section) => proxy(section, number, &words, line, draft),
            None => draft.note(number, line.trim(), "it stands before any section"),
        }
    }
    end(now.take(), &mut sections, &mut defaults, &mut named);
    sections
}

fn begin(
    kind: Kind,
    words: &[String],
    line: usize,
    defaults: &Section,
    named: &BTreeMap<String, Section>,
) -> Section {
    let name = words.get(1).map_or("", String::as_str);
    let from = words.iter().position(|word| word == "from").and_then(|at| named.get(words.get(at + 1)?));
    let mut section = match (kind, from) {
        (Kind::Global, _) | (Kind::Defaults, None) => Section::new(kind, name, line),
        (_, Some(from)) => Section { kind, line, ..from.clone() },
        (_, None) => Section { kind, line, ..defaults.clone() },
    };
    name.clone_into(&mut section.name);
    // `listen name :80` is of old.
    if kind.accepts() && from.is_none() && words.len() > 2 {
        section.binds.push((line, words[2..].to_vec()));
    }
    section
}

fn end(
    section: Option<Section>,
    sections: &mut Sections,
    defaults: &mut Section,
    named: &mut BTreeMap<String, Section>,
) {
    match section {
        None => {}
        Some(section) if section.kind == Kind::Defaults => {
            if !section.name.is_empty() {
                named.insert(section.name.clone(), section.clone());
            }
            *defaults = section;
        }
        Some(section) if section.kind == Kind::Global => {}
        Some(section) => sections.list.push(section),
    }
}

fn global(_: &mut Section, number: usize, words: &[String], line: &str, draft: &mut Draft) {
    let (first, value) = (&*words[0], words.get(1).and_then(|word| word.parse::<u64>().ok()));
    match (first, value) {
        ("maxconn", Some(most)) => draft.max_connections = Some(most),
        ("nbthread", Some(threads)) => draft.threads = Some(threads),
        ("description" | "node" | "ca-base" | "crt-base", _) if first.starts_with('d') || first == "node" => {
        }
        _ => {
            let why = OF_PROCESS.iter().find(|(word, _)| *word == first).map(|(_, why)| *why);
            let why = why.unwrap_or_else(|| match first {
                "ca-base" | "crt-base" => "paths of certificates are written out whole here",
                word if word.starts_with("ssl-") => "ciphers and options of TLS are not set one by one here",
                word if word.starts_with("tune.") => "there is nothing to tune",
                _ => "there is nothing like it here",
            });
            draft.note(number, line.trim(), why);
        }
    }
}

fn proxy(section: &mut Section, number: usize, words: &[String], line: &str, draft: &mut Draft) {
    let first = &*words[0];
    let rest = words[1..].to_vec();
    let set = |section: &mut Section, key: &str, rest: Vec<String>| {
        section.set.insert(key.to_owned(), (number, rest));
    };
    match first {
        "bind" => section.binds.push((number, rest)),
        "server" | "server-template" => section.servers.push((number, words.to_vec())),
        "default-server" => section.default_server.extend(rest),
        "use_backend" | "use-server" => section.uses.push((number, words.to_vec())),
        "http-check" | "tcp-check" => section.checks.push((number, words.to_vec())),
        "acl" => {
            if let Some(name) = rest.first() {
                section.acls.insert(name.clone(), (number, rest[1..].to_vec()));
            }
        }
        "timeout" if rest.len() >= 2 => set(section, &format!("timeout {}", rest[0]), rest[1..].to_vec()),
        "option" | "no" if !rest.is_empty() => {
            // `no option x` takes back what the defaults say.
            let (off, name) = if first == "no" { (true, rest.get(1)) } else { (false, rest.first()) };
            let Some(name) = name else { return };
            let key = format!("option {name}");
            if off {
                section.set.remove(&key);
            } else if OPTIONS.contains(&&**name) {
                set(section, &key, rest[1..].to_vec());
            } else if !SILENT.contains(&&*key) {
                let why = match &**name {
                    "httplog" | "tcplog" | "httpslog" | "logasap" => {
                        "write [access_log] for a line of JSON per request"
                    }
                    "log-health-checks" => "every change of health is an event: plimsoll events",
                    _ => "there is no such option here",
                };
                draft.note(number, line.trim(), why);
            }
        }
        "mode"
        | "balance"
        | "retries"
        | "maxconn"
        | "default_backend"
        | "cookie"
        | "fullconn"
        | "hash-type"
        | "hash-balance-factor"
        | "backlog"
        | "disabled"
        | "source"
        | "dispatch" => set(section, first, rest),
        "stick-table" | "stick" => {
            // The table alone keeps nothing; `stick on` and `stick store-request` say by what.
            if first == "stick" {
                set(section, "stick", rest);
            }
        }
        "log" | "log-format" | "log-tag" | "log-format-sd" | "unique-id-format" | "unique-id-header"
        | "stats" => {
            let why = if first == "stats" {
                OF_PROCESS[1].1
            } else {
                "write [access_log] for a line of JSON per request"
            };
            draft.note(number, line.trim(), why);
        }
        _ if SILENT.contains(&first) => {}
        _ if RULES.contains(&first) => draft.note(number, line.trim(), NO_RULES),
        _ => draft.note(number, line.trim(), "there is nothing like it here"),
    }
}

/// Options that mean something here.
const OPTIONS: [&str; 8] = [
    "forwardfor",
    "httpchk",
    "tcp-check",
    "httpclose",
    "http-server-close",
    "forceclose",
    "allbackups",
    "abortonclose",
];
