//! Sections and the lines in force in each: its own on top of its defaults.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::super::ImportSource;
use super::super::intermediate::ImportDraft;
use super::super::loss::AccessRule;
use super::super::normalize::UNBOUNDED;
use super::super::value;
use super::UNIT;
use super::tokenizer::words;
use super::unsupported;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    Global,
    Defaults,
    Frontend,
    Backend,
    Listen,
}

impl SectionKind {
    pub(super) fn has_binds(self) -> bool {
        matches!(self, Self::Frontend | Self::Listen)
    }

    pub(super) fn has_servers(self) -> bool {
        matches!(self, Self::Backend | Self::Listen)
    }
}

/// A line that is kept for later. The code that carries it over marks it; the rest is noted in the end.
#[derive(Debug)]
pub(super) struct ConfigStatement {
    pub(super) line: usize,
    /// The text of the line.
    pub(super) text: String,
    words: Vec<String>,
    is_used: Cell<bool>,
}

impl ConfigStatement {
    /// Returns its words, of which the first is the keyword, for a caller that handles all of them.
    pub(super) fn consume(&self) -> &[String] {
        self.mark_used();
        &self.words
    }

    /// Marks the line as handled.
    pub(super) fn mark_used(&self) {
        self.is_used.set(true);
    }

    /// Returns its words, for a caller that only reads them.
    pub(super) fn peek(&self) -> &[String] {
        &self.words
    }
}

/// A line, which sections on top of the same defaults share.
pub(super) type SharedStatement = Rc<ConfigStatement>;

/// A section, or defaults on top of which one begins.
#[derive(Clone, Debug)]
pub(super) struct HaproxySection {
    pub(super) kind: SectionKind,
    pub(super) name: String,
    pub(super) line: usize,
    /// The lines that count once, by their words: `mode`, `balance`, `timeout client`, `option httpchk` …
    settings: BTreeMap<String, SharedStatement>,
    /// The lines that may occur several times.
    pub(super) binds: Vec<SharedStatement>,
    pub(super) servers: Vec<SharedStatement>,
    pub(super) default_server: Vec<SharedStatement>,
    pub(super) use_backends: Vec<SharedStatement>,
    /// The acls; several of one name are alternatives.
    pub(super) acls: BTreeMap<String, Vec<SharedStatement>>,
    pub(super) checks: Vec<SharedStatement>,
    pub(super) stick_rules: Vec<SharedStatement>,
    /// Access rules, none of which is carried over.
    pub(super) access_rules: Vec<AccessRule>,
    /// All of its own lines.
    own_lines: Vec<SharedStatement>,
}

impl HaproxySection {
    fn new(kind: SectionKind, name: &str, line: usize) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            line,
            settings: BTreeMap::new(),
            binds: Vec::new(),
            servers: Vec::new(),
            default_server: Vec::new(),
            use_backends: Vec::new(),
            acls: BTreeMap::new(),
            checks: Vec::new(),
            stick_rules: Vec::new(),
            access_rules: Vec::new(),
            own_lines: Vec::new(),
        }
    }

    /// Returns the words behind a key, for a caller that handles all of them.
    pub(super) fn get(&self, key: &str) -> Option<&[String]> {
        self.settings.get(key).map(|line| &line.consume()[words_of(key)..])
    }

    fn peek(&self, key: &str) -> Option<&str> {
        self.settings.get(key)?.peek().get(words_of(key)).map(String::as_str)
    }

    pub(super) fn line_of(&self, key: &str) -> usize {
        self.settings.get(key).map_or(self.line, |line| line.line)
    }

    pub(super) fn first(&self, key: &str) -> Option<&str> {
        self.get(key)?.first().map(String::as_str)
    }

    /// Returns a number, and marks its line if it is one.
    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        let number = self.peek(key)?.parse().ok()?;
        self.settings[key].mark_used();
        Some(number)
    }

    pub(super) fn http(&self) -> bool {
        match self.peek("mode") {
            Some(mode @ ("http" | "tcp")) => {
                self.settings["mode"].mark_used();
                mode == "http"
            }
            _ => false,
        }
    }

    /// Returns the first of these timeouts that is set; a time of 0 is none. If all are 0 it is
    /// [`UNBOUNDED`].
    pub(super) fn timeout(&self, which: &[&str]) -> Option<Duration> {
        let mut none = None;
        for which in which {
            let key = format!("timeout {which}");
            let Some(time) = self.peek(&key).and_then(|word| value::time(word, UNIT)) else { continue };
            self.settings[&key].mark_used();
            if !time.is_zero() {
                return Some(time);
            }
            none = Some(UNBOUNDED);
        }
        none
    }

    /// Returns a timeout, for a caller that only reads it; a time of 0 is none.
    pub(super) fn peek_timeout(&self, which: &str) -> Option<Duration> {
        let time = value::time(self.peek(&format!("timeout {which}"))?, UNIT)?;
        Some(time).filter(|time| !time.is_zero())
    }

    pub(super) fn option(&self, name: &str) -> bool {
        self.settings.get(&format!("option {name}")).inspect(|line| line.mark_used()).is_some()
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.get("disabled").is_some()
    }

    /// Marks the lines of a section that is left out, which is noted.
    pub(super) fn mark_all_used(&self) {
        self.own_lines.iter().for_each(|line| line.mark_used());
    }
}

/// Returns the number of words of a key.
fn words_of(key: &str) -> usize {
    key.split(' ').count()
}

/// All sections, in their order.
#[derive(Debug, Default)]
pub(super) struct HaproxySections {
    pub(super) list: Vec<HaproxySection>,
    /// Whether members need no certificate, unless they set it otherwise.
    pub(super) skips_verification: bool,
    /// The folders of certificates and authorities without a whole path.
    pub(super) crt_base: Option<String>,
    pub(super) ca_base: Option<String>,
    /// The lines of defaults.
    defaults_lines: Vec<SharedStatement>,
}

impl HaproxySections {
    /// Notes the lines without a mark.
    pub(super) fn note_unused(&self, draft: &mut ImportDraft) {
        for line in self.defaults_lines.iter().chain(self.list.iter().flat_map(|section| &section.own_lines))
        {
            if !line.is_used.get() && !draft.has_note(line.line) {
                let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
                draft.note(line.line, &line.text, unsupported::unused_reason(&words));
            }
        }
    }
}

/// Gathers sections; lines outside of them, or of no use, are noted.
pub(super) fn read(text: &str, draft: &mut ImportDraft) -> HaproxySections {
    let mut sections = HaproxySections::default();
    // The defaults in force for the following sections, and those with a name.
    let mut defaults = HaproxySection::new(SectionKind::Defaults, "", 0);
    let mut named: BTreeMap<String, HaproxySection> = BTreeMap::new();
    let mut now: Option<HaproxySection> = None;
    let mut foreign = false;
    // Whether the lines of the section are indented more than its name.
    let mut indented = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let (words, closed) = words(line);
        let Some(first) = words.first() else { continue };
        if !closed {
            draft.mark_incomplete(number, line.trim(), "a quote is not closed");
        }
        let outside = !line.starts_with([' ', '\t']);
        let kind = match &**first {
            "global" => Some(SectionKind::Global),
            "defaults" => Some(SectionKind::Defaults),
            "frontend" => Some(SectionKind::Frontend),
            "backend" => Some(SectionKind::Backend),
            "listen" => Some(SectionKind::Listen),
            "resolvers" | "peers" | "userlist" | "mailers" | "cache" | "program" | "ring" | "log-forward"
            | "http-errors" | "fcgi-app" | "crt-store" | "traces" | "log-profile" | "acme"
                if outside =>
            {
                end(now.take(), &mut sections, &mut defaults, &mut named);
                foreign = true;
                draft.note(number, line.trim(), format!("there is nothing like a section `{first}` here"));
                continue;
            }
            // The name is mistyped: the lines below it are not of the section before.
            other if outside && indented && !unsupported::is_known(other) => {
                end(now.take(), &mut sections, &mut defaults, &mut named);
                (foreign, indented) = (true, false);
                draft.note(
                    number,
                    line.trim(),
                    format!("there is no section `{other}`: its lines are left out"),
                );
                continue;
            }
            _ => None,
        };
        if let Some(kind) = kind {
            indented = false;
            end(now.take(), &mut sections, &mut defaults, &mut named);
            foreign = false;
            now = Some(begin(kind, &words, number, &defaults, &named));
            continue;
        }
        if foreign {
            continue;
        }
        indented = !outside;
        let said = line.trim();
        match &mut now {
            Some(section) if section.kind == SectionKind::Global => {
                global(&mut sections, number, &words, said, draft);
            }
            Some(section) => proxy(section, number, &words, said, draft),
            None => draft.note(number, said, "it stands before any section"),
        }
    }
    end(now.take(), &mut sections, &mut defaults, &mut named);
    sections
}

fn begin(
    kind: SectionKind,
    words: &[String],
    line: usize,
    defaults: &HaproxySection,
    named: &BTreeMap<String, HaproxySection>,
) -> HaproxySection {
    let name = words.get(1).map_or("", String::as_str);
    let from = words.iter().position(|word| word == "from").and_then(|at| named.get(words.get(at + 1)?));
    let mut section = match (kind, from) {
        (SectionKind::Global, _) | (SectionKind::Defaults, None) => HaproxySection::new(kind, name, line),
        (_, Some(from)) => HaproxySection { kind, line, own_lines: Vec::new(), ..from.clone() },
        (_, None) => HaproxySection { kind, line, own_lines: Vec::new(), ..defaults.clone() },
    };
    name.clone_into(&mut section.name);
    // `listen name :80` is the old form.
    if kind.has_binds() && from.is_none() && words.len() > 2 {
        let mut bind = vec!["bind".to_owned()];
        bind.extend_from_slice(&words[2..]);
        let said = bind.join(" ");
        let bind = Rc::new(ConfigStatement { line, text: said, words: bind, is_used: Cell::new(false) });
        section.own_lines.push(bind.clone());
        section.binds.push(bind);
    }
    section
}

fn end(
    section: Option<HaproxySection>,
    sections: &mut HaproxySections,
    defaults: &mut HaproxySection,
    named: &mut BTreeMap<String, HaproxySection>,
) {
    match section {
        None => {}
        Some(section) if section.kind == SectionKind::Defaults => {
            if !section.name.is_empty() {
                named.insert(section.name.clone(), section.clone());
            }
            sections.defaults_lines.extend(section.own_lines.iter().cloned());
            *defaults = section;
        }
        Some(section) if section.kind == SectionKind::Global => {}
        Some(section) => sections.list.push(section),
    }
}

fn global(
    sections: &mut HaproxySections,
    number: usize,
    words: &[String],
    said: &str,
    draft: &mut ImportDraft,
) {
    let (first, value) = (&*words[0], words.get(1).and_then(|word| word.parse::<u64>().ok()));
    match (first, value) {
        ("maxconn", Some(most @ 16..=10_000_000)) => draft.max_connections = Some(most),
        ("nbthread", Some(threads @ 1..=1024)) => draft.threads = Some(threads),
        ("maxconn" | "nbthread", _) => draft.note(number, said, "there is no such number here"),
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "none") => {
            sections.skips_verification = true
        }
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "required") => {
            sections.skips_verification = false
        }
        ("crt-base", _) => sections.crt_base = words.get(1).cloned(),
        ("ca-base", _) => sections.ca_base = words.get(1).cloned(),
        _ if unsupported::HARMLESS_GLOBALS.contains(&first) => {}
        _ => draft.note(number, said, unsupported::process_reason(first)),
    }
}

fn proxy(section: &mut HaproxySection, number: usize, words: &[String], said: &str, draft: &mut ImportDraft) {
    let keep = |section: &mut HaproxySection| {
        let line = ConfigStatement {
            line: number,
            text: said.to_owned(),
            words: words.to_vec(),
            is_used: Cell::new(false),
        };
        let line = Rc::new(line);
        section.own_lines.push(line.clone());
        line
    };
    let set = |section: &mut HaproxySection, key: &str| {
        let line = keep(section);
        // A repeated line replaces the first one.
        if let Some(before) = section.settings.insert(key.to_owned(), line) {
            before.mark_used();
        }
    };
    // The last kind of check counts; defaults may have another.
    let other_check = |section: &mut HaproxySection, name: &str| {
        for before in unsupported::CHECKS.iter().filter(|one| **one != name) {
            if let Some(before) = section.settings.remove(&format!("option {before}")) {
                before.mark_used();
            }
        }
    };
    let first = &*words[0];
    section.access_rules.extend(AccessRule::of(ImportSource::Haproxy, number, said));
    match (first, words.get(1).map(String::as_str)) {
        ("bind", _) => {
            let line = keep(section);
            section.binds.push(line);
        }
        ("server" | "server-template", _) => {
            let line = keep(section);
            section.servers.push(line);
        }
        ("default-server", _) => {
            let line = keep(section);
            section.default_server.push(line);
        }
        ("use_backend", _) => {
            let line = keep(section);
            section.use_backends.push(line);
        }
        ("http-check" | "tcp-check", _) => {
            let line = keep(section);
            section.checks.push(line);
        }
        ("stick", _) => {
            let line = keep(section);
            section.stick_rules.push(line);
        }
        ("acl", Some(name)) => {
            let line = keep(section);
            section.acls.entry(name.to_owned()).or_default().push(line);
        }
        ("timeout", Some(which)) if words.len() > 2 => set(section, &format!("timeout {which}")),
        ("option", Some(name)) => {
            if unsupported::CHECKS.contains(&name) {
                other_check(section, name);
            }
            if unsupported::OPTIONS.contains(&name) {
                set(section, &format!("option {name}"));
                if name == "forwardfor" && words.len() > 2 {
                    draft.note(
                        number,
                        said,
                        "the addresses are added (X-Forwarded-For) for all, under this name",
                    );
                }
            } else if !unsupported::HARMLESS_OPTIONS.contains(&name) {
                draft.note(number, said, unsupported::option_reason(name));
            }
        }
        // The line takes back one of the defaults.
        ("no", Some("option")) if words.len() == 3 => {
            match section.settings.remove(&format!("option {}", words[2])) {
                Some(before) => before.mark_used(),
                None if unsupported::ABSENT_OPTIONS.contains(&&*words[2]) => {}
                None => draft.note(number, said, unsupported::option_reason(&words[2])),
            }
        }
        ("enabled", _) => {
            if let Some(before) = section.settings.remove("disabled") {
                before.mark_used();
            }
        }
        _ if unsupported::SINGLE_KEYS.contains(&first) => set(section, first),
        _ if unsupported::HARMLESS.contains(&first) => {}
        _ => draft.note(number, said, unsupported::proxy_reason(first)),
    }
}
