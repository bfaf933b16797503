//! Sections and the lines in force in each: its own on top of its defaults.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::super::From;
use super::super::draft::Draft;
use super::super::fit::YEAR;
use super::super::loss::Rule;
use super::super::value;
use super::UNIT;
use super::why;
use super::words::words;

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

/// A line that is kept for later. The code that carries it over marks it; the rest is noted in the end.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: usize,
    /// The text of the line.
    pub(super) said: String,
    words: Vec<String>,
    taken: Cell<bool>,
}

impl Statement {
    /// Returns its words, of which the first is the keyword, for a caller that handles all of them.
    pub(super) fn take(&self) -> &[String] {
        self.settle();
        &self.words
    }

    /// Marks the line as handled.
    pub(super) fn settle(&self) {
        self.taken.set(true);
    }

    /// Returns its words, for a caller that only reads them.
    pub(super) fn look(&self) -> &[String] {
        &self.words
    }
}

/// A line, which sections on top of the same defaults share.
pub(super) type Line = Rc<Statement>;

/// A section, or defaults on top of which one begins.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) line: usize,
    /// The lines that count once, by their words: `mode`, `balance`, `timeout client`, `option httpchk` …
    set: BTreeMap<String, Line>,
    /// The lines that may occur several times.
    pub(super) binds: Vec<Line>,
    pub(super) servers: Vec<Line>,
    pub(super) default_server: Vec<Line>,
    pub(super) uses: Vec<Line>,
    /// The acls; several of one name are alternatives.
    pub(super) acls: BTreeMap<String, Vec<Line>>,
    pub(super) checks: Vec<Line>,
    pub(super) sticks: Vec<Line>,
    /// Access rules, none of which is carried over.
    pub(super) barred: Vec<Rule>,
    /// All of its own lines.
    own: Vec<Line>,
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
            sticks: Vec::new(),
            barred: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Returns the words behind a key, for a caller that handles all of them.
    pub(super) fn get(&self, key: &str) -> Option<&[String]> {
        self.set.get(key).map(|line| &line.take()[words_of(key)..])
    }

    fn look(&self, key: &str) -> Option<&str> {
        self.set.get(key)?.look().get(words_of(key)).map(String::as_str)
    }

    pub(super) fn line_of(&self, key: &str) -> usize {
        self.set.get(key).map_or(self.line, |line| line.line)
    }

    pub(super) fn first(&self, key: &str) -> Option<&str> {
        self.get(key)?.first().map(String::as_str)
    }

    /// Returns a number, and marks its line if it is one.
    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        let number = self.look(key)?.parse().ok()?;
        self.set[key].settle();
        Some(number)
    }

    pub(super) fn http(&self) -> bool {
        match self.look("mode") {
            Some(mode @ ("http" | "tcp")) => {
                self.set["mode"].settle();
                mode == "http"
            }
            _ => false,
        }
    }

    /// Returns the first of these timeouts that is set; a time of 0 is none. If all are 0 it is [`YEAR`].
    pub(super) fn timeout(&self, which: &[&str]) -> Option<Duration> {
        let mut none = None;
        for which in which {
            let key = format!("timeout {which}");
            let Some(time) = self.look(&key).and_then(|word| value::time(word, UNIT)) else { continue };
            self.set[&key].settle();
            if !time.is_zero() {
                return Some(time);
            }
            none = Some(YEAR);
        }
        none
    }

    /// Returns a timeout, for a caller that only reads it; a time of 0 is none.
    pub(super) fn look_timeout(&self, which: &str) -> Option<Duration> {
        let time = value::time(self.look(&format!("timeout {which}"))?, UNIT)?;
        Some(time).filter(|time| !time.is_zero())
    }

    pub(super) fn option(&self, name: &str) -> bool {
        self.set.get(&format!("option {name}")).inspect(|line| line.settle()).is_some()
    }

    pub(super) fn disabled(&self) -> bool {
        self.get("disabled").is_some()
    }

    /// Marks the lines of a section that is left out, which is noted.
    pub(super) fn leave(&self) {
        self.own.iter().for_each(|line| line.settle());
    }
}

/// Returns the number of words of a key.
fn words_of(key: &str) -> usize {
    key.split(' ').count()
}

/// All sections, in their order.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) list: Vec<Section>,
    /// Whether members need no certificate, unless they set it otherwise.
    pub(super) unproved: bool,
    /// The folders of certificates and authorities without a whole path.
    pub(super) crt_base: Option<String>,
    pub(super) ca_base: Option<String>,
    /// The lines of defaults.
    of_defaults: Vec<Line>,
}

impl Sections {
    /// Notes the lines without a mark.
    pub(super) fn rest(&self, draft: &mut Draft) {
        for line in self.of_defaults.iter().chain(self.list.iter().flat_map(|section| &section.own)) {
            if !line.taken.get() && !draft.has_note(line.line) {
                let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
                draft.note(line.line, &line.said, why::unused(&words));
            }
        }
    }
}

/// Gathers sections; lines outside of them, or of no use, are noted.
pub(super) fn read(text: &str, draft: &mut Draft) -> Sections {
    let mut sections = Sections::default();
    // The defaults in force for the following sections, and those with a name.
    let mut defaults = Section::new(Kind::Defaults, "", 0);
    let mut named: BTreeMap<String, Section> = BTreeMap::new();
    let mut now: Option<Section> = None;
    let mut foreign = false;
    // Whether the lines of the section are indented more than its name.
    let mut indented = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let (words, closed) = words(line);
        let Some(first) = words.first() else { continue };
        if !closed {
            draft.breaks(number, line.trim(), "a quote is not closed");
        }
        let outside = !line.starts_with([' ', '\t']);
        let kind = match &**first {
            "global" => Some(Kind::Global),
            "defaults" => Some(Kind::Defaults),
            "frontend" => Some(Kind::Frontend),
            "backend" => Some(Kind::Backend),
            "listen" => Some(Kind::Listen),
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
            other if outside && indented && !why::is_known(other) => {
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
            Some(section) if section.kind == Kind::Global => {
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
        (_, Some(from)) => Section { kind, line, own: Vec::new(), ..from.clone() },
        (_, None) => Section { kind, line, own: Vec::new(), ..defaults.clone() },
    };
    name.clone_into(&mut section.name);
    // `listen name :80` is the old form.
    if kind.accepts() && from.is_none() && words.len() > 2 {
        let mut bind = vec!["bind".to_owned()];
        bind.extend_from_slice(&words[2..]);
        let said = bind.join(" ");
        let bind = Rc::new(Statement { line, said, words: bind, taken: Cell::new(false) });
        section.own.push(bind.clone());
        section.binds.push(bind);
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
            sections.of_defaults.extend(section.own.iter().cloned());
            *defaults = section;
        }
        Some(section) if section.kind == Kind::Global => {}
        Some(section) => sections.list.push(section),
    }
}

fn global(sections: &mut Sections, number: usize, words: &[String], said: &str, draft: &mut Draft) {
    let (first, value) = (&*words[0], words.get(1).and_then(|word| word.parse::<u64>().ok()));
    match (first, value) {
        ("maxconn", Some(most @ 16..=10_000_000)) => draft.max_connections = Some(most),
        ("nbthread", Some(threads @ 1..=1024)) => draft.threads = Some(threads),
        ("maxconn" | "nbthread", _) => draft.note(number, said, "there is no such number here"),
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "none") => {
            sections.unproved = true
        }
        ("ssl-server-verify", _) if words.get(1).is_some_and(|word| word == "required") => {
            sections.unproved = false
        }
        ("crt-base", _) => sections.crt_base = words.get(1).cloned(),
        ("ca-base", _) => sections.ca_base = words.get(1).cloned(),
        _ if why::HARMLESS_OF_PROCESS.contains(&first) => {}
        _ => draft.note(number, said, why::of_process(first)),
    }
}

fn proxy(section: &mut Section, number: usize, words: &[String], said: &str, draft: &mut Draft) {
    let keep = |section: &mut Section| {
        let line =
            Statement { line: number, said: said.to_owned(), words: words.to_vec(), taken: Cell::new(false) };
        let line = Rc::new(line);
        section.own.push(line.clone());
        line
    };
    let set = |section: &mut Section, key: &str| {
        let line = keep(section);
        // A repeated line replaces the first one.
        if let Some(before) = section.set.insert(key.to_owned(), line) {
            before.settle();
        }
    };
    // The last kind of check counts; defaults may have another.
    let other_check = |section: &mut Section, name: &str| {
        for before in why::CHECKS.iter().filter(|one| **one != name) {
            if let Some(before) = section.set.remove(&format!("option {before}")) {
                before.settle();
            }
        }
    };
    let first = &*words[0];
    section.barred.extend(Rule::of(From::Haproxy, number, said));
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
            section.uses.push(line);
        }
        ("http-check" | "tcp-check", _) => {
            let line = keep(section);
            section.checks.push(line);
        }
        ("stick", _) => {
            let line = keep(section);
            section.sticks.push(line);
        }
        ("acl", Some(name)) => {
            let line = keep(section);
            section.acls.entry(name.to_owned()).or_default().push(line);
        }
        ("timeout", Some(which)) if words.len() > 2 => set(section, &format!("timeout {which}")),
        ("option", Some(name)) => {
            if why::CHECKS.contains(&name) {
                other_check(section, name);
            }
            if why::OPTIONS.contains(&name) {
                set(section, &format!("option {name}"));
                if name == "forwardfor" && words.len() > 2 {
                    draft.note(
                        number,
                        said,
                        "the addresses are added (X-Forwarded-For) for all, under this name",
                    );
                }
            } else if !why::HARMLESS_OPTIONS.contains(&name) {
                draft.note(number, said, why::of_option(name));
            }
        }
        // The line takes back one of the defaults.
        ("no", Some("option")) if words.len() == 3 => {
            match section.set.remove(&format!("option {}", words[2])) {
                Some(before) => before.settle(),
                None if why::ABSENT.contains(&&*words[2]) => {}
                None => draft.note(number, said, why::of_option(&words[2])),
            }
        }
        ("enabled", _) => {
            if let Some(before) = section.set.remove("disabled") {
                before.settle();
            }
        }
        _ if why::SET.contains(&first) => set(section, first),
        _ if why::HARMLESS.contains(&first) => {}
        _ => draft.note(number, said, why::of_proxy(first)),
    }
}
