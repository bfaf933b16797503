//! Tests of the documents: links have targets, command lines can be parsed, configurations are valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};
use plimsoll_config as config;

use super::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns every document of the project, by its path from the root.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join("docs"), root().join("examples"), root().join("clients")];
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> = top.iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                files.push(path);
            }
        }
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        found.insert(file.strip_prefix(root()).unwrap().to_owned(), text);
    }
    found
}

/// Returns the lines of a document, each with the fence that it is in: `None` outside of code, else its
/// language.
fn lines(text: &str) -> Vec<(usize, &str, Option<&str>)> {
    let mut fence: Option<&str> = None;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        if let Some(language) = bare.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim()) };
            continue;
        }
        let indented = line.starts_with("    ") && fence.is_none();
        found.push((number + 1, line, if indented { Some("") } else { fence }));
    }
    found
}

/// Returns the anchor of a heading in links: small letters, digits, `_` and `-`; spaces are `-`.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let letter = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    kept.chars().filter_map(letter).collect()
}

fn anchors(text: &str) -> Vec<String> {
    let headings = lines(text).into_iter().filter(|(_, line, code)| code.is_none() && line.starts_with('#'));
    headings.map(|(_, line, _)| anchor(line.trim_start_matches('#'))).collect()
}

/// Returns the targets of links on a line, except those in code.
fn links(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("");
    let parts = prose.split("](").skip(1);
    parts.filter_map(|part| part.split_once(')').map(|(target, _)| target.to_owned())).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    for (path, text) in &documents {
        for (number, line, code) in lines(text) {
            if code.is_some() {
                continue;
            }
            for target in
                links(line).iter().filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let place = root().join(path);
                let aim = if file.is_empty() { place.clone() } else { place.parent().unwrap().join(file) };
                let Ok(aim) = aim.canonicalize() else {
                    wrong.push(format!("{}:{number}: {target}: there is no such file", path.display()));
                    continue;
                };
                let text = documents.get(aim.strip_prefix(root()).unwrap_or(&aim));
                if !heading.is_empty()
                    && text.is_some_and(|text| !anchors(text).iter().any(|one| one == heading))
                {
                    wrong.push(format!("{}:{number}: {target}: there is no such heading", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_of_the_guide_can_be_found() {
    let documents = documents();
    let index = &documents[Path::new("docs/guide/README.md")];
    let linked: Vec<String> = index.lines().flat_map(links).collect();
    let front: Vec<String> = documents[Path::new("README.md")].lines().flat_map(links).collect();
    for path in documents.keys().filter(|path| path.starts_with("docs/guide")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let in_front = front.iter().any(|link| link.split('#').next() == path.to_str());
        assert!(
            name == "README.md" || linked.contains(&name) || in_front,
            "neither README.md nor docs/guide/README.md names {name}"
        );
    }
}

/// Splits a command line as a shell does, up to a pipe, a redirection, `&` or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// Returns Plimsoll's command lines in the code of a document: the line, and its words without `…` and all
/// behind it.
fn commands(text: &str) -> Vec<(usize, Vec<String>, bool)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line, code) in lines(text) {
        if !matches!(code, Some("" | "sh" | "console" | "shell" | "bash")) {
            open = None;
            continue;
        }
        let (number, whole) = match open.take() {
            Some((number, before)) => (number, before + " " + line.trim()),
            None => (number, line.trim().to_owned()),
        };
        if let Some(more) = whole.strip_suffix('\\') {
            open = Some((number, more.to_owned()));
            continue;
        }
        let line = whole.strip_prefix("$ ").unwrap_or(&whole);
        for part in line.split(" | ").flat_map(|part| part.split(" && ")) {
            let part = part.trim().strip_prefix("sudo ").unwrap_or_else(|| part.trim());
            // Redirections are the shell's affair.
            let part = part.split(" 2>").next().unwrap_or_default();
            let cut = part.split(['…', '(']).next().unwrap_or_default();
            let words = words(cut);
            let begin = words
                .iter()
                .position(|word| word.rsplit('/').next() == Some("plimsoll") && !word.contains('='));
            // Variables of the environment may stand before it.
            let Some(at) = begin.filter(|at| words[..*at].iter().all(|word| word.contains('='))) else {
                continue;
            };
            // A log line of a Supervisor is not a command.
            let said = words.iter().any(|word| word == "pid");
            if !said
                && words.get(at + 1).is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            {
                found.push((number, words[at..].to_vec(), cut.len() < part.len()));
            }
        }
    }
    found
}

#[test]
fn every_command_line_is_understood() {
    use clap::error::ErrorKind;
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for (number, words, cut) in commands(&text) {
            seen += 1;
            let Err(error) = Cli::try_parse_from(&words) else { continue };
            let fine = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
                ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::InvalidValue => cut,
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => cut,
                _ => false,
            };
            if !fine {
                let why = error.to_string();
                wrong.push(format!(
                    "{}:{number}: {}: {}",
                    path.display(),
                    words.join(" "),
                    why.lines().next().unwrap_or("")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "{seen} command lines in all documents");
}

#[test]
fn every_command_that_is_named_is_there() {
    let tree = Cli::command();
    let names: Vec<&str> = tree.get_subcommands().map(clap::Command::get_name).collect();
    for (path, text) in documents() {
        for (number, line, code) in lines(&text) {
            if code.is_some() {
                continue;
            }
            for inside in line.split('`').skip(1).step_by(2) {
                let Some(name) =
                    inside.strip_prefix("plimsoll ").and_then(|rest| rest.split([' ', ',', '|', '/']).next())
                else {
                    continue;
                };
                let word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
                assert!(!word || names.contains(&name), "{}:{number}: plimsoll {name}", path.display());
            }
        }
    }
}

/// Returns the blocks of a language, with the line at which each begins.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line, code) in lines(text) {
        if code != Some(language) {
            continue;
        }
        match found.last_mut().filter(|_| last + 1 == number) {
            Some((_, block)) => block.push_str(&format!("{line}\n")),
            None => found.push((number, format!("{line}\n"))),
        }
        last = number;
    }
    found
}

#[test]
fn every_configuration_is_accepted() {
    let (mut whole, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for (number, block) in blocks(&text, "toml") {
            let place = format!("{}:{number}", path.display());
            if block.contains('…') {
                continue;
            }
            match toml::from_str::<toml::Table>(&block) {
                // A block may show two ways to write one thing.
                Err(error) if !error.message().contains("duplicate key") => {
                    wrong.push(format!("{place}: {error}"))
                }
                _ => {}
            }
            let begins = |head: &str| block.lines().any(|line| line.trim() == head);
            if !begins("[[listener]]")
                || !begins("[[group]]")
                || block.contains("[[process]]")
                || block.contains("ior = ")
            {
                continue;
            }
            whole += 1;
            if let Err(problems) = config::parse(&place, block.into_bytes()) {
                wrong.push(problems.to_string());
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(whole > 5, "{whole} whole configurations");
}
