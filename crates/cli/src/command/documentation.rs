//! Tests of the documents: links have targets, command lines can be parsed, configurations are valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};
use plimsoll_config as config;

use super::Cli;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns every document of the project, by its path from the root.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut texts = BTreeMap::new();
    let mut folders = vec![
        repository_root().join("docs"),
        repository_root().join("examples"),
        repository_root().join("clients"),
    ];
    let top_level_files = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> = top_level_files.iter().map(|name| repository_root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        texts.insert(file.strip_prefix(repository_root()).unwrap().to_owned(), text);
    }
    texts
}

/// Returns the lines of a document, each with the fence that it is in: `None` outside of code, else its
/// language.
fn numbered_lines(text: &str) -> Vec<(usize, &str, Option<&str>)> {
    let mut fence: Option<&str> = None;
    let mut numbered = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim()) };
            continue;
        }
        let indented = line.starts_with("    ") && fence.is_none();
        numbered.push((number + 1, line, if indented { Some("") } else { fence }));
    }
    numbered
}

/// Returns the anchor of a heading in links: small letters, digits, `_` and `-`; spaces are `-`.
fn anchor(heading: &str) -> String {
    let lowercase = heading.trim().to_lowercase();
    let to_anchor_char = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    lowercase.chars().filter_map(to_anchor_char).collect()
}

fn anchors(text: &str) -> Vec<String> {
    let headings =
        numbered_lines(text).into_iter().filter(|(_, line, code)| code.is_none() && line.starts_with('#'));
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
    let mut errors = Vec::new();
    for (path, text) in &documents {
        for (number, line, code) in numbered_lines(text) {
            if code.is_some() {
                continue;
            }
            for target in
                links(line).iter().filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let page = repository_root().join(path);
                let target_path =
                    if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                let Ok(target_path) = target_path.canonicalize() else {
                    errors.push(format!("{}:{number}: {target}: there is no such file", path.display()));
                    continue;
                };
                let text = documents.get(target_path.strip_prefix(repository_root()).unwrap_or(&target_path));
                if !heading.is_empty()
                    && text.is_some_and(|text| !anchors(text).iter().any(|candidate| candidate == heading))
                {
                    errors.push(format!("{}:{number}: {target}: there is no such heading", path.display()));
                }
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn every_page_of_the_guide_can_be_found() {
    let documents = documents();
    let index = &documents[Path::new("docs/guide/README.md")];
    let index_links: Vec<String> = index.lines().flat_map(links).collect();
    let front_page_links: Vec<String> = documents[Path::new("README.md")].lines().flat_map(links).collect();
    for path in documents.keys().filter(|path| path.starts_with("docs/guide")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let in_front = front_page_links.iter().any(|link| link.split('#').next() == path.to_str());
        assert!(
            name == "README.md" || index_links.contains(&name) || in_front,
            "neither README.md nor docs/guide/README.md names {name}"
        );
    }
}

/// Splits a command line as a shell does, up to a pipe, a redirection, `&` or a comment.
fn shell_words(line: &str) -> Vec<String> {
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
fn command_lines(text: &str) -> Vec<(usize, Vec<String>, bool)> {
    let mut parsed = Vec::new();
    let mut continued: Option<(usize, String)> = None;
    for (number, line, code) in numbered_lines(text) {
        if !matches!(code, Some("" | "sh" | "console" | "shell" | "bash")) {
            continued = None;
            continue;
        }
        let (number, full_line) = match continued.take() {
            Some((number, previous)) => (number, previous + " " + line.trim()),
            None => (number, line.trim().to_owned()),
        };
        if let Some(continuation) = full_line.strip_suffix('\\') {
            continued = Some((number, continuation.to_owned()));
            continue;
        }
        let line = full_line.strip_prefix("$ ").unwrap_or(&full_line);
        for segment in line.split(" | ").flat_map(|segment| segment.split(" && ")) {
            let segment = segment.trim().strip_prefix("sudo ").unwrap_or_else(|| segment.trim());
            // Redirections are the shell's affair.
            let segment = segment.split(" 2>").next().unwrap_or_default();
            let literal = segment.split(['…', '(']).next().unwrap_or_default();
            let words = shell_words(literal);
            let program_index = words
                .iter()
                .position(|word| word.rsplit('/').next() == Some("plimsoll") && !word.contains('='));
            // Variables of the environment may stand before it.
            let Some(start) =
                program_index.filter(|index| words[..*index].iter().all(|word| word.contains('=')))
            else {
                continue;
            };
            // A log line of a Supervisor is not a command.
            let mentions_pid = words.iter().any(|word| word == "pid");
            if !mentions_pid
                && words.get(start + 1).is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            {
                parsed.push((number, words[start..].to_vec(), literal.len() < segment.len()));
            }
        }
    }
    parsed
}

#[test]
fn every_command_line_is_understood() {
    use clap::error::ErrorKind;
    let (mut count, mut errors) = (0, Vec::new());
    for (path, text) in documents() {
        for (number, words, is_cut) in command_lines(&text) {
            count += 1;
            let Err(error) = Cli::try_parse_from(&words) else { continue };
            let is_expected = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
                ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::InvalidValue => is_cut,
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => is_cut,
                _ => false,
            };
            if !is_expected {
                let message = error.to_string();
                errors.push(format!(
                    "{}:{number}: {}: {}",
                    path.display(),
                    words.join(" "),
                    message.lines().next().unwrap_or("")
                ));
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    assert!(count > 100, "{count} command lines in all documents");
}

#[test]
fn every_command_that_is_named_is_there() {
    let tree = Cli::command();
    let names: Vec<&str> = tree.get_subcommands().map(clap::Command::get_name).collect();
    for (path, text) in documents() {
        for (number, line, code) in numbered_lines(&text) {
            if code.is_some() {
                continue;
            }
            for code_span in line.split('`').skip(1).step_by(2) {
                let Some(name) = code_span
                    .strip_prefix("plimsoll ")
                    .and_then(|rest| rest.split([' ', ',', '|', '/']).next())
                else {
                    continue;
                };
                let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
                assert!(!is_word || names.contains(&name), "{}:{number}: plimsoll {name}", path.display());
            }
        }
    }
}

/// Returns the blocks of a language, with the line at which each begins.
fn language_blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut code_blocks: Vec<(usize, String)> = Vec::new();
    let mut last_number = 0;
    for (number, line, code) in numbered_lines(text) {
        if code != Some(language) {
            continue;
        }
        match code_blocks.last_mut().filter(|_| last_number + 1 == number) {
            Some((_, block)) => block.push_str(&format!("{line}\n")),
            None => code_blocks.push((number, format!("{line}\n"))),
        }
        last_number = number;
    }
    code_blocks
}

#[test]
fn every_configuration_is_accepted() {
    let (mut complete_count, mut errors) = (0, Vec::new());
    for (path, text) in documents() {
        for (number, block) in language_blocks(&text, "toml") {
            let location = format!("{}:{number}", path.display());
            if block.contains('…') {
                continue;
            }
            match toml::from_str::<toml::Table>(&block) {
                // A block may show two ways to write one thing.
                Err(error) if !error.message().contains("duplicate key") => {
                    errors.push(format!("{location}: {error}"))
                }
                _ => {}
            }
            let has_line = |header: &str| block.lines().any(|line| line.trim() == header);
            if !has_line("[[listener]]")
                || !has_line("[[group]]")
                || block.contains("[[process]]")
                || block.contains("ior = ")
            {
                continue;
            }
            complete_count += 1;
            if let Err(problems) = config::parse(&location, block.into_bytes()) {
                errors.push(problems.to_string());
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    assert!(complete_count > 5, "{complete_count} whole configurations");
}
