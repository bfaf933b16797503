//! A page of the documents, done as a reader does it: its configuration is written, its commands are typed
//! into one shell in their order, and each has to end as the page describes. Addresses of the page become
//! free ones of this machine. Members that the page names and does not start are started.
//!
//! All that is not done is listed with a reason, so that a page cannot gain an example that is never tried.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::shell::Shell;
use super::{Folder, Member, Run, free_port, listens, until};

/// The begin of commands that run until they are stopped.
const DAEMONS: [&str; 4] =
    ["plimsoll member ", "plimsoll agent", "plimsoll lottery -", "plimsoll supervise -"];
/// The options with which these commands end.
const ENDS: [&str; 2] = ["--once", "--help"];
/// The begin of commands that a reader types.
const COMMANDS: [&str; 8] =
    ["plimsoll ", "curl ", "dig ", "kill ", "sed -i ", "wait ", "export ", "openssl "];
/// The ends of names of files that a page has its reader write.
const FILES: [&str; 3] = [".toml", ".lqn", ".csv"];
/// The marks of text that is not a command to type.
const FORMS: [&str; 2] = ["…", "..."];

/// A step of a page.
#[derive(Debug)]
enum Step {
    /// A file: its name and its text.
    File(String, String),
    /// A line for the shell.
    Line(String),
}

/// A page, and the differences of this machine from the page's.
pub(crate) struct Walk {
    page: String,
    text: String,
    config: usize,
    added: String,
    put: Vec<(String, String)>,
    places: Vec<(String, SocketAddr)>,
    skipped: Vec<(String, &'static str)>,
    codes: Vec<(String, i32)>,
    files: Vec<(String, String)>,
    member: Vec<String>,
    traffic: bool,
}

impl Walk {
    /// Reads all of a page, below the top of the repository.
    pub(crate) fn of(page: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
        Self {
            page: page.into(),
            text: std::fs::read_to_string(path).unwrap(),
            config: 0,
            added: String::new(),
            put: Vec::new(),
            places: Vec::new(),
            skipped: Vec::new(),
            codes: Vec::new(),
            files: Vec::new(),
            member: Vec::new(),
            traffic: false,
        }
    }

    /// Reads a page of the guide.
    pub(crate) fn guide(page: &str) -> Self {
        Self::of(&format!("docs/guide/{page}"))
    }

    /// Keeps only the text under a heading.
    pub(crate) fn under(mut self, heading: &str) -> Self {
        let level = heading.split(' ').next().unwrap();
        let begin = self.text.find(&format!("{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
        let rest = &self.text[begin + heading.len()..];
        let end = (1..=level.len()).filter_map(|n| rest.find(&format!("\n{} ", "#".repeat(n)))).min();
        self.text = rest[..end.unwrap_or(rest.len())].to_owned();
        self
    }

    /// Chooses one of its complete configurations by its number; otherwise the first is used, and others
    /// where the page has them written.
    pub(crate) fn config(mut self, number: usize) -> Self {
        self.config = number;
        self
    }

    /// Adds text that this machine needs beside the page: at the end of the configuration, or all of it if
    /// the page has none.
    pub(crate) fn with(mut self, text: &str) -> Self {
        self.added += text;
        self
    }

    /// Adds a part of a configuration of the page, by its place among them, behind the text that was added so
    /// far.
    pub(crate) fn part(mut self, number: usize) -> Self {
        let blocks = self.text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let part = blocks.into_iter().nth(number).unwrap_or_else(|| panic!("no part {number}"));
        self.added += part;
        self
    }

    /// Adds a file that the page presupposes.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.into(), text.into()));
        self
    }

    /// Replaces a name of the page, in files and lines; `FOLDER` in the new name is the folder of the walk.
    pub(crate) fn put(mut self, old: &str, new: &str) -> Self {
        self.put.push((old.into(), new.into()));
        self
    }

    /// Sets the address here for an address of the page, where not any free one would do.
    pub(crate) fn place(mut self, address: &str, here: SocketAddr) -> Self {
        self.places.push((address.into(), here));
        self
    }

    /// Skips lines that begin so, for this reason; with a line feed at its end `begin` is a whole line.
    pub(crate) fn skip(mut self, begin: &str, why: &'static str) -> Self {
        self.skipped.push((begin.into(), why));
        self
    }

    /// Sets the exit code of lines that begin so.
    pub(crate) fn code(mut self, begin: &str, code: i32) -> Self {
        self.codes.push((begin.into(), code));
        self
    }

    /// Sets the arguments of its members.
    pub(crate) fn members(mut self, args: &[&str]) -> Self {
        self.member = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    /// Sends some requests before the first line.
    pub(crate) fn traffic(mut self) -> Self {
        self.traffic = true;
        self
    }

    /// Runs the page; all failures are reported at once.
    #[track_caller]
    pub(crate) fn go(self) {
        self.done();
    }

    /// Runs the page, and returns the output of each line.
    #[track_caller]
    pub(crate) fn done(self) -> Vec<(String, Run)> {
        let steps = self.steps();
        let typed: String = steps
            .iter()
            .filter_map(|step| if let Step::Line(line) = step { Some(line.as_str()) } else { None })
            .collect::<Vec<_>>()
            .join("\n");
        let mut stage = Stage::new(&self, &typed);
        for (name, text) in &self.files {
            stage.file(name, text);
        }
        let (mut ran, mut wrong) = (Vec::new(), String::new());
        for step in steps {
            match step {
                Step::File(name, text) => stage.file(&name, &text),
                Step::Line(line) => {
                    let run = stage.line(&line);
                    let wanted = self
                        .codes
                        .iter()
                        .find(|(begin, _)| line.starts_with(begin))
                        .map_or(0, |(_, code)| *code);
                    if run.code != Some(wanted) {
                        let _ = writeln!(
                            wrong,
                            "$ {line}\n{}{}exit code {:?}, not {wanted}\n",
                            run.out, run.err, run.code
                        );
                    }
                    ran.push((line, run));
                }
            }
        }
        assert!(wrong.is_empty(), "{}:\n{wrong}", self.page);
        assert!(!ran.is_empty(), "{} has nothing to do", self.page);
        ran
    }

    /// Returns the steps in their order.
    #[track_caller]
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut used = vec![false; self.skipped.len()];
        let whole = |text: &str| text.contains("[[listener]]") && text.contains("[[group]]");
        let (mut seen, mut paragraph, mut over) = (0, String::new(), false);
        let mut lines = self.text.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(kind) = line.strip_prefix("```") {
                let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
                let text = block.join("\n") + "\n";
                let prompts = kind == "sh" || text.starts_with("$ ");
                // A paragraph such as "`NAME.toml`:", or "`NAME.lqn`, in seconds:", names the file to write
                // the block into.
                let names = paragraph.split('`').skip(1).step_by(2);
                let last = names.filter(|name| FILES.iter().any(|end| name.ends_with(end))).last();
                let name = last.filter(|_| paragraph.ends_with(": ")).map(str::to_owned);
                paragraph.clear();
                match (kind, name) {
                    (_, Some(name)) if !prompts => steps.push(Step::File(name, text)),
                    ("toml", None) if whole(&text) => {
                        if seen == self.config {
                            steps.push(Step::File("plimsoll.toml".into(), text));
                        }
                        seen += 1;
                    }
                    _ if prompts => self.commands(&block, &mut used, &mut steps),
                    _ => {}
                }
            } else if let Some(first) = line.strip_prefix("    ") {
                let mut block = vec![first];
                while let Some(next) = lines.next_if(|line| line.starts_with("    ")) {
                    block.push(&next[4..]);
                }
                self.commands(&block, &mut used, &mut steps);
            } else if line.is_empty() {
                over = true;
            } else {
                if std::mem::take(&mut over) {
                    paragraph.clear();
                }
                paragraph = paragraph + line + " ";
            }
        }
        for ((begin, why), used) in self.skipped.iter().zip(used) {
            assert!(used, "{} has no line {begin:?} any more that is not done because: {why}", self.page);
        }
        let config = |step: &Step| matches!(step, Step::File(name, _) if name == "plimsoll.toml");
        if !steps.iter().any(config) && !self.added.is_empty() {
            steps.insert(0, Step::File("plimsoll.toml".into(), String::new()));
        }
        // Files that the configuration names are written before it, if both stand together.
        for files in steps.chunk_by_mut(|one, other| matches!((one, other), (Step::File(..), Step::File(..))))
        {
            files.sort_by_key(config);
        }
        steps
    }

    /// Appends the commands of a block that can be typed; a command on several lines is joined. If some lines
    /// begin with a prompt, the other lines are their output.
    fn commands(&self, block: &[&str], used: &mut [bool], steps: &mut Vec<Step>) {
        let prompts = block.iter().any(|line| line.starts_with("$ "));
        let mut lines = block.iter();
        while let Some(line) = lines.next() {
            let Some(line) = (if prompts { line.strip_prefix("$ ") } else { Some(*line) }) else { continue };
            let mut line = line.to_owned();
            while let Some(begun) = line.strip_suffix('\\') {
                line = begun.to_owned() + lines.next().map_or("", |rest| rest.trim_start());
            }
            if let Some(skipped) =
                self.skipped.iter().position(|(begin, _)| format!("{line}\n").starts_with(begin.as_str()))
            {
                used[skipped] = true;
                continue;
            }
            let code = line.split(" #").next().unwrap_or_default();
            let known = COMMANDS.iter().any(|begin| line.starts_with(begin));
            if known && !FORMS.iter().any(|form| code.contains(form)) {
                steps.push(Step::Line(line));
            }
        }
    }
}

/// Returns `true` if a line starts the balancer.
fn serves(line: &str) -> bool {
    line == "plimsoll up" || line.starts_with("plimsoll up ")
}

/// The state of a walk.
struct Stage<'w> {
    walk: &'w Walk,
    /// The commands that the page starts itself.
    typed: String,
    shell: Shell,
    folder: Folder,
    /// Addresses of the page, and those here.
    places: BTreeMap<String, SocketAddr>,
    members: Vec<Member>,
}

impl<'w> Stage<'w> {
    fn new(walk: &'w Walk, typed: &str) -> Self {
        let folder = Folder::new();
        let shell = Shell::start(folder.path());
        let mut stage = Self {
            walk,
            typed: typed.to_owned(),
            shell,
            folder,
            places: walk.places.iter().cloned().collect(),
            members: Vec::new(),
        };
        stage.place("127.0.0.1:9900");
        stage
    }

    /// Returns the address here for an address of the page: the same for all interfaces and for this machine.
    fn place(&mut self, address: &str) -> SocketAddr {
        let key = address
            .replace("0.0.0.0:", "127.0.0.1:")
            .replace("[::]:", "127.0.0.1:")
            .replace("localhost:", "127.0.0.1:");
        *self.places.entry(key).or_insert_with(|| ([127, 0, 0, 1], free_port()).into())
    }

    /// Returns a text of the page with the addresses here.
    fn here(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (old, new) in &self.walk.put {
            text = text.replace(old, new);
        }
        text = text.replace("FOLDER", &self.folder.path().display().to_string());
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, from) = rest.split_at(begin);
            out += before;
            let end =
                from.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            let word_end = word.trim_end_matches([':', '.']);
            let fresh = !before.ends_with(|c: char| c.is_alphanumeric() || c == '.' || c == '-');
            match word_end.parse::<SocketAddr>() {
                Ok(address) if fresh && address.port() != 0 => {
                    out += &self.place(word_end).to_string();
                    out += &word[word_end.len()..];
                }
                _ => out += word,
            }
            rest = after;
        }
        out + rest
    }

    fn file(&mut self, name: &str, text: &str) {
        let text = self.here(text);
        if name != "plimsoll.toml" {
            let name = self.here(name);
            let path = self.folder.join(&name);
            assert!(path.starts_with(self.folder.path()), "{name} is a place of this machine's");
            self.folder.write(&path.display().to_string(), text);
            return;
        }
        let added = self.here(&self.walk.added.clone());
        let mut text = text + &added;
        self.start_members(&text);
        let admin = self.place("127.0.0.1:9900");
        let mut missing = String::new();
        if !text.contains("\nlisten = ") {
            missing += &format!("listen = \"{admin}\"\n");
        }
        let control = format!("control = \"unix:{}\"\n", self.folder.join("control.sock").display());
        match text.lines().find(|line| line.starts_with("control = \"unix:")).map(str::to_owned) {
            Some(line) => text = text.replacen(&(line + "\n"), &control, 1),
            None if !text.contains("\ncontrol = ") => missing += &control,
            None => {}
        }
        match text.find("[admin]\n") {
            Some(at) => text.insert_str(at + "[admin]\n".len(), &missing),
            None => text = format!("{text}\n[admin]\n{missing}"),
        }
        let first = !self.folder.join(name).exists();
        self.folder.write(name, &text);
        if first && !self.typed.lines().any(serves) {
            self.serve();
        }
    }

    /// Starts the members that the page leaves to its reader.
    fn start_members(&mut self, config: &str) {
        let lists = config.split("members = [").skip(1).filter_map(|rest| rest.split(']').next());
        let addresses: Vec<SocketAddr> =
            lists.flat_map(|list| list.split('"')).filter_map(|word| word.parse().ok()).collect();
        let typed = self.here(&self.typed.clone());
        for address in addresses {
            let known = self.members.iter().any(|member| member.address == address);
            let typed = ["--listen", "--side-car"]
                .iter()
                .any(|option| typed.contains(&format!("{option} {address}")));
            if !known && !typed {
                let args: Vec<&str> = self.walk.member.iter().map(String::as_str).collect();
                self.members.push(Member::start_at(address, &args));
            }
        }
    }

    /// Starts the balancer, and waits until it serves.
    fn serve(&mut self) {
        let run = self.line("plimsoll up &");
        assert_eq!(run.code, Some(0), "{}", run.err);
        if self.walk.traffic {
            let config = self.folder.read("plimsoll.toml");
            let listener =
                config.split("[[listener]]\naddress = \"").nth(1).and_then(|rest| rest.split('"').next());
            if let Some(address) = listener.and_then(|address| address.parse().ok()) {
                for _ in 0..20 {
                    super::get(address, "/");
                }
            }
        }
    }

    fn line(&mut self, line: &str) -> Run {
        let code = line.split(" #").next().unwrap_or(line).trim_end();
        let daemon =
            DAEMONS.iter().any(|begin| code.starts_with(begin) && !ENDS.iter().any(|end| code.contains(end)));
        let supervisor = code == "plimsoll supervise";
        let daemon = daemon || supervisor || serves(code);
        let behind = code.ends_with('&');
        let text = self.here(code);
        if !daemon && !behind {
            return self.shell.run(&text);
        }
        if code.starts_with("plimsoll agent") {
            // The command before it may have the same address.
            self.shell.run("[ -z \"$agent\" ] || { kill $agent; wait $agent; }");
        }
        let run = self.shell.run(&if behind { text.clone() } else { format!("{text} &") });
        if code.starts_with("plimsoll agent") {
            self.shell.run("agent=$!");
        }
        let mut wanted: Vec<SocketAddr> = text
            .split([' ', '=', '"'])
            .zip(text.split([' ', '=', '"']).skip(1))
            .filter(|(option, _)| ["--listen", "--side-car"].contains(option))
            .filter_map(|(_, value)| value.parse().ok())
            .collect();
        if serves(code) {
            let config = self.folder.read("plimsoll.toml");
            let tcp = config.split("[[listener]]\n").skip(1).filter(|part| {
                let own = part.split("\n[").next().unwrap_or_default();
                !["\"udp\"", "\"dns\""].iter().any(|kind| own.contains(kind))
            });
            wanted.extend(tcp.filter_map(|part| part.split('"').nth(1)?.parse::<SocketAddr>().ok()));
            wanted.push(self.place("127.0.0.1:9900"));
        }
        for address in wanted {
            // A daemon on datagrams prints that it listens, and whether its server is there; others can be
            // reached.
            let there = || {
                if !code.starts_with("plimsoll lottery") {
                    return listens(address);
                }
                let said = self.shell.said();
                said.contains(&format!("listening lottery {address}"))
                    && said.matches(" is up: ").count() >= said.matches("listening lottery ").count()
            };
            until(&format!("{address} of `{text}` listened at: {}", self.shell.said()), there);
        }
        if supervisor {
            // The Supervisor answers before it has started anything, and reports no fault of processes that
            // are not started.
            until("what the Supervisor started answers", || {
                let status = Run::plimsoll(&["supervise", "status"], self.folder.path());
                status.code == Some(0) && status.out.contains(" running ")
            });
        }
        if serves(code) {
            until(&format!("all groups serve: {}", self.shell.said()), || {
                let status = Run::plimsoll(&["status"], self.folder.path());
                status.code == Some(0)
            });
        }
        run
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // A process that took over from another, or outlives its parent, is not a child of the shell.
        if self.folder.join("supervise.toml").exists() {
            Run::plimsoll(&["supervise", "shutdown"], self.folder.path());
        }
        if self.folder.join("control.sock").exists() {
            Run::plimsoll(&["stop"], self.folder.path());
        }
    }
}
