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
    is_included: bool,
}

/// Returns the directives of a text, those of included files in their places. A text without marks is one
/// file, whose includes stay.
pub(super) fn read(text: &str, draft: &mut ImportDraft) -> Vec<NginxDirective> {
    let file_parts = split_files(text);
    let Some(((main_name, first_line, body), other_parts)) = file_parts.split_first() else {
        return tokenizer::read(text, 1, draft);
    };
    read_preamble(text, *first_line, draft);
    let main_directives = tokenizer::read(body, *first_line + 1, draft);
    let mut files: BTreeMap<String, IncludedFile> = BTreeMap::new();
    for (name, line, body) in other_parts {
        if name == main_name || files.contains_key(*name) {
            draft.note(*line, format!("{MARK}{name}:"), "a second file of this name");
            continue;
        }
        let directives = tokenizer::read(body, line + 1, draft);
        files.insert((*name).to_owned(), IncludedFile { line: *line, directives, is_included: false });
    }
    let folder = main_name.rfind('/').map_or("", |end| &main_name[..=end]);
    let mut expander = IncludeExpander { files, folder, open_files: Vec::new(), remaining: MAX_DIRECTIVES };
    let main_directives = expander.expand(main_directives, draft);
    for (name, file) in expander.files {
        if !file.is_included {
            draft.note(file.line, format!("{MARK}{name}:"), "no other file includes it");
        }
    }
    main_directives
}

/// Returns name, line of the mark, and text of each file.
fn split_files(text: &str) -> Vec<(&str, usize, &str)> {
    let mut file_parts: Vec<(&str, usize, &str)> = Vec::new();
    let (mut body_start, mut offset) = (0, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let name = line.trim_end().strip_prefix(MARK).and_then(|rest| rest.strip_suffix(':'));
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            if let Some(last_part) = file_parts.last_mut() {
                last_part.2 = &text[body_start..offset];
            }
            body_start = offset + line.len();
            file_parts.push((name, index + 1, ""));
        }
        offset += line.len();
    }
    if let Some(last_part) = file_parts.last_mut() {
        last_part.2 = &text[body_start..];
    }
    file_parts
}

/// Reads the lines before the first file: the output of nginx about its test.
fn read_preamble(text: &str, first_line: usize, draft: &mut ImportDraft) {
    for (index, line) in text.lines().take(first_line - 1).enumerate() {
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
    fn expand(&mut self, directives: Vec<NginxDirective>, draft: &mut ImportDraft) -> Vec<NginxDirective> {
        let mut expanded = Vec::new();
        for mut directive in directives {
            if self.remaining == 0 {
                draft.note(
                    directive.line,
                    directive.text(),
                    format!("more than {MAX_DIRECTIVES} directives with those of included files"),
                );
                break;
            }
            self.remaining -= 1;
            if let Some(block) = directive.block.take() {
                directive.block = Some(self.expand(block, draft));
            } else if directive.name == "include" && directive.args.len() == 1 {
                match self.matching_files(directive.first()) {
                    Some(names) => {
                        for name in names {
                            expanded.extend(self.expand_include(&name, &directive, draft));
                        }
                    }
                    None => {
                        draft.note(
                            directive.line,
                            directive.text(),
                            "there is no file of this name in the text",
                        );
                        // An included file may have a rule of the block.
                        directive.mark_all_used();
                        expanded.push(directive);
                    }
                }
                continue;
            }
            expanded.push(directive);
        }
        expanded
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
        let pattern_chars: Vec<char> = pattern.chars().collect();
        Some(self.files.keys().filter(|name| matches_pattern(&pattern_chars, name)).cloned().collect())
    }

    fn expand_include(
        &mut self,
        name: &str,
        include: &NginxDirective,
        draft: &mut ImportDraft,
    ) -> Vec<NginxDirective> {
        if self.open_files.iter().any(|open_file| open_file == name) {
            draft.note(include.line, include.text(), format!("{name} includes itself"));
            return Vec::new();
        }
        if self.open_files.len() >= MAX_DEPTH {
            draft.note(
                include.line,
                include.text(),
                format!("more than {MAX_DEPTH} files within one another"),
            );
            return Vec::new();
        }
        let Some(file) = self.files.get_mut(name) else { return Vec::new() };
        file.is_included = true;
        // At most so many are copied; those in its blocks are counted as they are filled.
        let file_directives: Vec<NginxDirective> =
            file.directives.iter().take(self.remaining).cloned().collect();
        self.open_files.push(name.to_owned());
        let expanded_directives = self.expand(file_directives, draft);
        self.open_files.pop();
        expanded_directives
    }
}

/// Returns `true` if a name fits a pattern of a shell: `*` and `?` for letters but `/`, `[a-z]` and `[!a-z]`
/// for one of them. It takes one pass over the name with one place to go back to, so that no pattern takes
/// longer than the product of their lengths.
fn matches_pattern(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut pattern_index, mut name_index) = (0, 0);
    let mut wildcard: Option<(usize, usize)> = None;
    while name_index < name.len() {
        // A name that begins with a dot is hidden.
        let is_hidden = name[name_index] == '.' && (name_index == 0 || name[name_index - 1] == '/');
        let step = match pattern.get(pattern_index) {
            Some('*') => {
                wildcard = (!is_hidden).then_some((pattern_index + 1, name_index));
                pattern_index += 1;
                continue;
            }
            Some('?') => (name[name_index] != '/' && !is_hidden).then_some(1),
            Some('[') => matches_char_set(&pattern[pattern_index..], name[name_index]).filter(|_| !is_hidden),
            Some('\\') => (pattern.get(pattern_index + 1) == Some(&name[name_index])).then_some(2),
            Some(character) => (*character == name[name_index]).then_some(1),
            None => None,
        };
        if let Some(step) = step {
            (pattern_index, name_index) = (pattern_index + step, name_index + 1);
        } else if let Some((after_wildcard, name_start)) =
            wildcard.filter(|(_, name_start)| name[*name_start] != '/')
        {
            wildcard = Some((after_wildcard, name_start + 1));
            (pattern_index, name_index) = (after_wildcard, name_start + 1);
        } else {
            return false;
        }
    }
    pattern[pattern_index..].iter().all(|character| *character == '*')
}

/// Returns the length of a set in brackets that has a letter.
fn matches_char_set(pattern: &[char], character: char) -> Option<usize> {
    let is_negated = matches!(pattern.get(1), Some('!' | '^'));
    let set_start = if is_negated { 2 } else { 1 };
    // A bracket that comes first is a letter of the set.
    let set_end =
        set_start + 1 + pattern.get(set_start + 1..)?.iter().position(|character| *character == ']')?;
    let mut members = &pattern[set_start..set_end];
    let mut is_match = false;
    while let Some(range_start) = members.first() {
        if let [_, '-', range_end, ..] = members {
            is_match |= (*range_start..=*range_end).contains(&character);
            members = &members[3..];
        } else {
            is_match |= *range_start == character;
            members = &members[1..];
        }
    }
    (is_match != is_negated && character != '/').then_some(set_end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
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
            let pattern_chars: Vec<char> = pattern.chars().collect();
            assert_eq!(matches_pattern(&pattern_chars, name), expected, "{pattern} {name}");
        }
    }
}
