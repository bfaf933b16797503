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
        let value = self.peek(key)?.parse().ok()?;
        self.settings[key].mark_used();
        Some(value)
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
    pub(super) fn timeout(&self, names: &[&str]) -> Option<Duration> {
        let mut has_zero = None;
        for name in names {
            let key = format!("timeout {name}");
            let Some(time) = self.peek(&key).and_then(|word| value::time(word, UNIT)) else { continue };
            self.settings[&key].mark_used();
            if !time.is_zero() {
                return Some(time);
            }
            has_zero = Some(UNBOUNDED);
        }
        has_zero
    }

    /// Returns a timeout, for a caller that only reads it; a time of 0 is none.
    pub(super) fn peek_timeout(&self, name: &str) -> Option<Duration> {
        let time = value::time(self.peek(&format!("timeout {name}"))?, UNIT)?;
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
    pub(super) sections: Vec<HaproxySection>,
    /// Whether members need no certificate, unless they set it otherwise.
    pub(super) skips_verification: bool,
    /// The folders of certificates and authorities without a whole path.
    pub(super) crt_base: Option<String>,
    pub(super) ca_base: Option<String>,
    /// The lines of defaults.
    default_lines: Vec<SharedStatement>,
}

impl HaproxySections {
    /// Notes the lines without a mark.
    pub(super) fn note_unused(&self, draft: &mut ImportDraft) {
        for line in
            self.default_lines.iter().chain(self.sections.iter().flat_map(|section| &section.own_lines))
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
    let mut named_defaults: BTreeMap<String, HaproxySection> = BTreeMap::new();
    let mut now: Option<HaproxySection> = None;
    let mut is_foreign = false;
    // Whether the lines of the section are indented more than its name.
    let mut is_indented = false;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let (words, is_closed) = words(line);
        let Some(first) = words.first() else { continue };
        if !is_closed {
            draft.mark_incomplete(line_number, line.trim(), "a quote is not closed");
        }
        let is_top_level = !line.starts_with([' ', '\t']);
        let kind = match &**first {
            "global" => Some(SectionKind::Global),
            "defaults" => Some(SectionKind::Defaults),
            "frontend" => Some(SectionKind::Frontend),
            "backend" => Some(SectionKind::Backend),
            "listen" => Some(SectionKind::Listen),
            "resolvers" | "peers" | "userlist" | "mailers" | "cache" | "program" | "ring" | "log-forward"
            | "http-errors" | "fcgi-app" | "crt-store" | "traces" | "log-profile" | "acme"
                if is_top_level =>
            {
                end_section(now.take(), &mut sections, &mut defaults, &mut named_defaults);
                is_foreign = true;
                draft.note(
                    line_number,
                    line.trim(),
                    format!("there is nothing like a section `{first}` here"),
                );
                continue;
            }
            // The name is mistyped: the lines below it are not of the section before.
            keyword if is_top_level && is_indented && !unsupported::is_known(keyword) => {
                end_section(now.take(), &mut sections, &mut defaults, &mut named_defaults);
                (is_foreign, is_indented) = (true, false);
                draft.note(
                    line_number,
                    line.trim(),
                    format!("there is no section `{keyword}`: its lines are left out"),
                );
                continue;
            }
            _ => None,
        };
        if let Some(kind) = kind {
            is_indented = false;
            end_section(now.take(), &mut sections, &mut defaults, &mut named_defaults);
            is_foreign = false;
            now = Some(begin_section(kind, &words, line_number, &defaults, &named_defaults));
            continue;
        }
        if is_foreign {
            continue;
        }
        is_indented = !is_top_level;
        let statement = line.trim();
        match &mut now {
            Some(section) if section.kind == SectionKind::Global => {
                read_global(&mut sections, line_number, &words, statement, draft);
            }
            Some(section) => read_proxy(section, line_number, &words, statement, draft),
            None => draft.note(line_number, statement, "it stands before any section"),
        }
    }
    end_section(now.take(), &mut sections, &mut defaults, &mut named_defaults);
    sections
}

fn begin_section(
    kind: SectionKind,
    words: &[String],
    line: usize,
    defaults: &HaproxySection,
    named_defaults: &BTreeMap<String, HaproxySection>,
) -> HaproxySection {
    let name = words.get(1).map_or("", String::as_str);
    let inherited = words
        .iter()
        .position(|word| word == "from")
        .and_then(|position| named_defaults.get(words.get(position + 1)?));
    let mut section = match (kind, inherited) {
        (SectionKind::Global, _) | (SectionKind::Defaults, None) => HaproxySection::new(kind, name, line),
        (_, Some(inherited)) => HaproxySection { kind, line, own_lines: Vec::new(), ..inherited.clone() },
        (_, None) => HaproxySection { kind, line, own_lines: Vec::new(), ..defaults.clone() },
    };
    name.clone_into(&mut section.name);
    // `listen name :80` is the old form.
    if kind.has_binds() && inherited.is_none() && words.len() > 2 {
        let mut bind_words = vec!["bind".to_owned()];
        bind_words.extend_from_slice(&words[2..]);
        let statement = bind_words.join(" ");
        let bind_statement =
            Rc::new(ConfigStatement { line, text: statement, words: bind_words, is_used: Cell::new(false) });
        section.own_lines.push(bind_statement.clone());
        section.binds.push(bind_statement);
    }
    section
}

fn end_section(
    section: Option<HaproxySection>,
    sections: &mut HaproxySections,
    defaults: &mut HaproxySection,
    named_defaults: &mut BTreeMap<String, HaproxySection>,
) {
    match section {
        None => {}
        Some(section) if section.kind == SectionKind::Defaults => {
            if !section.name.is_empty() {
                named_defaults.insert(section.name.clone(), section.clone());
            }
            sections.default_lines.extend(section.own_lines.iter().cloned());
            *defaults = section;
        }
        Some(section) if section.kind == SectionKind::Global => {}
        Some(section) => sections.sections.push(section),
    }
}

fn read_global(
    sections: &mut HaproxySections,
    line_number: usize,
    words: &[String],
    statement: &str,
    draft: &mut ImportDraft,
) {
    let (keyword, value) = (&*words[0], words.get(1).and_then(|word| word.parse::<u64>().ok()));
    match (keyword, value) {
        ("maxconn", Some(max_connections @ 16..=10_000_000)) => draft.max_connections = Some(max_connections),
        ("nbthread", Some(threads @ 1..=1024)) => draft.threads = Some(threads),
        ("maxconn" | "nbthread", _) => draft.note(line_number, statement, "there is no such number here"),
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "none") => {
            sections.skips_verification = true
        }
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "required") => {
            sections.skips_verification = false
        }
        ("crt-base", _) => sections.crt_base = words.get(1).cloned(),
        ("ca-base", _) => sections.ca_base = words.get(1).cloned(),
        _ if unsupported::HARMLESS_GLOBALS.contains(&keyword) => {}
        _ => draft.note(line_number, statement, unsupported::process_reason(keyword)),
    }
}

fn read_proxy(
    section: &mut HaproxySection,
    line_number: usize,
    words: &[String],
    statement: &str,
    draft: &mut ImportDraft,
) {
    let add_statement = |section: &mut HaproxySection| {
        let line = ConfigStatement {
            line: line_number,
            text: statement.to_owned(),
            words: words.to_vec(),
            is_used: Cell::new(false),
        };
        let line = Rc::new(line);
        section.own_lines.push(line.clone());
        line
    };
    let set_statement = |section: &mut HaproxySection, key: &str| {
        let line = add_statement(section);
        // A repeated line replaces the first one.
        if let Some(previous) = section.settings.insert(key.to_owned(), line) {
            previous.mark_used();
        }
    };
    // The last kind of check counts; defaults may have another.
    let replace_checks = |section: &mut HaproxySection, name: &str| {
        for check_name in unsupported::CHECKS.iter().filter(|check_option| **check_option != name) {
            if let Some(previous) = section.settings.remove(&format!("option {check_name}")) {
                previous.mark_used();
            }
        }
    };
    let keyword = &*words[0];
    section.access_rules.extend(AccessRule::of(ImportSource::Haproxy, line_number, statement));
    match (keyword, words.get(1).map(String::as_str)) {
        ("bind", _) => {
            let line = add_statement(section);
            section.binds.push(line);
        }
        ("server" | "server-template", _) => {
            let line = add_statement(section);
            section.servers.push(line);
        }
        ("default-server", _) => {
            let line = add_statement(section);
            section.default_server.push(line);
        }
        ("use_backend", _) => {
            let line = add_statement(section);
            section.use_backends.push(line);
        }
        ("http-check" | "tcp-check", _) => {
            let line = add_statement(section);
            section.checks.push(line);
        }
        ("stick", _) => {
            let line = add_statement(section);
            section.stick_rules.push(line);
        }
        ("acl", Some(name)) => {
            let line = add_statement(section);
            section.acls.entry(name.to_owned()).or_default().push(line);
        }
        ("timeout", Some(timeout_name)) if words.len() > 2 => {
            set_statement(section, &format!("timeout {timeout_name}"))
        }
        ("option", Some(name)) => {
            if unsupported::CHECKS.contains(&name) {
                replace_checks(section, name);
            }
            if unsupported::OPTIONS.contains(&name) {
                set_statement(section, &format!("option {name}"));
                if name == "forwardfor" && words.len() > 2 {
                    draft.note(
                        line_number,
                        statement,
                        "the addresses are added (X-Forwarded-For) for all, under this name",
                    );
                }
            } else if !unsupported::HARMLESS_OPTIONS.contains(&name) {
                draft.note(line_number, statement, unsupported::option_reason(name));
            }
        }
        // The line takes back one of the defaults.
        ("no", Some("option")) if words.len() == 3 => {
            match section.settings.remove(&format!("option {}", words[2])) {
                Some(previous) => previous.mark_used(),
                None if unsupported::ABSENT_OPTIONS.contains(&&*words[2]) => {}
                None => draft.note(line_number, statement, unsupported::option_reason(&words[2])),
            }
        }
        ("enabled", _) => {
            if let Some(previous) = section.settings.remove("disabled") {
                previous.mark_used();
            }
        }
        _ if unsupported::SINGLE_KEYS.contains(&keyword) => set_statement(section, keyword),
        _ if unsupported::HARMLESS.contains(&keyword) => {}
        _ => draft.note(line_number, statement, unsupported::proxy_reason(keyword)),
    }
}
