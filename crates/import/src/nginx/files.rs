//! The output of `nginx -T`: all files of the configuration, one behind the other, each once, behind a line
//! `# configuration file NAME:`. The directives of an included file replace each `include` of it.

use std::collections::BTreeMap;

use super::super::intermediate::ImportDraft;
use super::tokenizer::{self, NginxDirective};

/// The largest depth of files within files; more is rejected as a mistake.
const MAX_DEPTH: usize = 16;
/// The maximum number of directives of all files together, each as often as it is included.
const MAX_DIRECTIVES: usize = 200_000;

const MARK: &str = "# configuration file ";

/// A file of the text.
struct IncludedFile {
    line: usize,
    directives: Vec<NginxDirective>,
    included: bool,
}

/// Returns the directives of a text, those of included files in their places. A text without marks is one
/// file, whose includes stay.
pub(super) fn read(text: &str, draft: &mut ImportDraft) -> Vec<NginxDirective> {
    let parts = parts(text);
    let Some(((main, first, body), others)) = parts.split_first() else {
        return tokenizer::read(text, 1, draft);
    };
    read_preamble(text, *first, draft);
    let top = tokenizer::read(body, *first + 1, draft);
    let mut files: BTreeMap<String, IncludedFile> = BTreeMap::new();
    for (name, line, body) in others {
        if name == main || files.contains_key(*name) {
            draft.note(*line, format!("{MARK}{name}:"), "a second file of this name");
            continue;
        }
        let directives = tokenizer::read(body, line + 1, draft);
        files.insert((*name).to_owned(), IncludedFile { line: *line, directives, included: false });
    }
    let folder = main.rfind('/').map_or("", |end| &main[..=end]);
    let mut places = IncludeExpander { files, folder, open_files: Vec::new(), remaining: MAX_DIRECTIVES };
    let top = places.expand(top, draft);
    for (name, file) in places.files {
        if !file.included {
            draft.note(file.line, format!("{MARK}{name}:"), "no other file includes it");
        }
    }
    top
}

/// Returns name, line of the mark, and text of each file.
fn parts(text: &str) -> Vec<(&str, usize, &str)> {
    let mut parts: Vec<(&str, usize, &str)> = Vec::new();
    let (mut begun, mut at) = (0, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let name = line.trim_end().strip_prefix(MARK).and_then(|rest| rest.strip_suffix(':'));
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            if let Some(last) = parts.last_mut() {
                last.2 = &text[begun..at];
            }
            begun = at + line.len();
            parts.push((name, index + 1, ""));
        }
        at += line.len();
    }
    if let Some(last) = parts.last_mut() {
        last.2 = &text[begun..];
    }
    parts
}

/// Reads the lines before the first file: the output of nginx about its test.
fn read_preamble(text: &str, first: usize, draft: &mut ImportDraft) {
    for (index, line) in text.lines().take(first - 1).enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with("nginx: ") {
            draft.note(index + 1, line, "it stands before the first file");
        }
    }
}

struct IncludeExpander<'t> {
    files: BTreeMap<String, IncludedFile>,
    /// The folder of relative names: that of the first file.
    folder: &'t str,
    /// The files that are being read, the innermost last.
    open_files: Vec<String>,
    /// The number of directives that may still come.
    remaining: usize,
}

impl IncludeExpander<'_> {
    /// Returns the directives with included ones in their places.
    fn expand(&mut self, list: Vec<NginxDirective>, draft: &mut ImportDraft) -> Vec<NginxDirective> {
        let mut all = Vec::new();
        for mut one in list {
            if self.remaining == 0 {
                draft.note(
                    one.line,
                    one.text(),
                    format!("more than {MAX_DIRECTIVES} directives with those of included files"),
                );
                break;
            }
            self.remaining -= 1;
            if let Some(block) = one.block.take() {
                one.block = Some(self.expand(block, draft));
            } else if one.name == "include" && one.args.len() == 1 {
                match self.matching_files(one.first()) {
                    Some(names) => {
                        for name in names {
                            all.extend(self.expand_include(&name, &one, draft));
                        }
                    }
                    None => {
                        draft.note(one.line, one.text(), "there is no file of this name in the text");
                        // An included file may have a rule of the block.
                        one.mark_all_used();
                        all.push(one);
                    }
                }
                continue;
            }
            all.push(one);
        }
        all
    }

    /// Returns the files of a pattern, in their order. `None` if it is the name of a file that is not there;
    /// a pattern may fit none.
    fn matching_files(&self, pattern: &str) -> Option<Vec<String>> {
        let pattern =
            if pattern.starts_with('/') { pattern.to_owned() } else { format!("{}{pattern}", self.folder) };
        if self.files.contains_key(&pattern) {
            return Some(vec![pattern]);
        }
        if !pattern.contains(['*', '?', '[']) {
            return None;
        }
        let letters: Vec<char> = pattern.chars().collect();
        Some(self.files.keys().filter(|name| fits(&letters, name)).cloned().collect())
    }

    fn expand_include(
        &mut self,
        name: &str,
        by: &NginxDirective,
        draft: &mut ImportDraft,
    ) -> Vec<NginxDirective> {
        if self.open_files.iter().any(|open| open == name) {
            draft.note(by.line, by.text(), format!("{name} includes itself"));
            return Vec::new();
        }
        if self.open_files.len() >= MAX_DEPTH {
            draft.note(by.line, by.text(), format!("more than {MAX_DEPTH} files within one another"));
            return Vec::new();
        }
        let Some(file) = self.files.get_mut(name) else { return Vec::new() };
        file.included = true;
        // At most so many are copied; those in its blocks are counted as they are filled.
        let list: Vec<NginxDirective> = file.directives.iter().take(self.remaining).cloned().collect();
        self.open_files.push(name.to_owned());
        let list = self.expand(list, draft);
        self.open_files.pop();
        list
    }
}

/// Returns `true` if a name fits a pattern of a shell: `*` and `?` for letters but `/`, `[a-z]` and `[!a-z]`
/// for one of them. It takes one pass over the name with one place to go back to, so that no pattern takes
/// longer than the product of their lengths.
fn fits(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut place) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while place < name.len() {
        // A name that begins with a dot is hidden.
        let hidden = name[place] == '.' && (place == 0 || name[place - 1] == '/');
        let step = match pattern.get(at) {
            Some('*') => {
                back = (!hidden).then_some((at + 1, place));
                at += 1;
                continue;
            }
            Some('?') => (name[place] != '/' && !hidden).then_some(1),
            Some('[') => set(&pattern[at..], name[place]).filter(|_| !hidden),
            Some('\\') => (pattern.get(at + 1) == Some(&name[place])).then_some(2),
            Some(letter) => (*letter == name[place]).then_some(1),
            None => None,
        };
        if let Some(step) = step {
            (at, place) = (at + step, place + 1);
        } else if let Some((after, from)) = back.filter(|(_, from)| name[*from] != '/') {
            back = Some((after, from + 1));
            (at, place) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// Returns the length of a set in brackets that has a letter.
fn set(pattern: &[char], letter: char) -> Option<usize> {
    let not = matches!(pattern.get(1), Some('!' | '^'));
    let from = if not { 2 } else { 1 };
    // A bracket that comes first is a letter of the set.
    let end = from + 1 + pattern.get(from + 1..)?.iter().position(|letter| *letter == ']')?;
    let mut inside = &pattern[from..end];
    let mut found = false;
    while let Some(first) = inside.first() {
        if let [_, '-', last, ..] = inside {
            found |= (*first..=*last).contains(&letter);
            inside = &inside[3..];
        } else {
            found |= *first == letter;
            inside = &inside[1..];
        }
    }
    (found != not && letter != '/').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, is) in [
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/web.conf", true),
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/a/web.conf", false),
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/.web.conf", false),
            ("/etc/*/a?c", "/etc/x/abc", true),
            ("/etc/*/a?c", "/etc/x/a/c", false),
            ("/a/*", "/a/", true),
            ("/a/*b*c", "/a/xbxbxc", true),
            ("/a/*b*c", "/a/xbxbx", false),
            ("/a/[a-c]x[!0-9]", "/a/bxz", true),
            ("/a/[a-c]x[!0-9]", "/a/bx7", false),
            ("/a/[", "/a/[", false),
            ("/*/*/*", "/a/b/c", true),
            ("*/b", "a/b", true),
        ] {
            let letters: Vec<char> = pattern.chars().collect();
            assert_eq!(fits(&letters, name), is, "{pattern} {name}");
        }
    }
}
