//! The text as directives: words up to `;`, or up to a block in braces.

use std::cell::Cell;

use super::super::intermediate::ImportDraft;

/// The largest depth of blocks within blocks; more is rejected as a mistake.
const MAX_DEPTH: usize = 32;

/// A directive.
#[derive(Clone, Debug)]
pub(super) struct NginxDirective {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
    is_used: Cell<bool>,
}

impl NginxDirective {
    pub(super) fn new(line: usize, name: String, args: Vec<String>, block: Option<Vec<Self>>) -> Self {
        Self { line, name, args, block, is_used: Cell::new(false) }
    }

    /// Marks the directive, but not its block. Directives without a mark are noted in the end.
    pub(super) fn mark_used(&self) -> &Self {
        self.is_used.set(true);
        self
    }

    /// Marks the directive and its block, after it was noted as a whole.
    pub(super) fn mark_all_used(&self) {
        self.mark_used();
        self.block.iter().flatten().for_each(Self::mark_all_used);
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.get()
    }

    /// Returns its text, in short.
    pub(super) fn text(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.name).chain(&self.args).map(String::as_str).collect();
        let end = if self.block.is_some() { " { … }" } else { "" };
        words.join(" ") + end
    }

    pub(super) fn first(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }
}

enum NginxToken {
    Word(String),
    Open,
    Close,
    End,
}

/// Splits a text that begins in a line. Invalid parts are noted.
pub(super) fn read(text: &str, from: usize, draft: &mut ImportDraft) -> Vec<NginxDirective> {
    // The open blocks: their content, and the directive that each belongs to.
    let mut open: Vec<(Vec<NginxDirective>, NginxDirective)> = Vec::new();
    let mut here: Vec<NginxDirective> = Vec::new();
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut too_deep = 0_usize;
    for (line, token) in tokens(text, from) {
        match token {
            NginxToken::Word(word) => words.push((line, word)),
            NginxToken::End => here.extend(directive(&mut words)),
            NginxToken::Open => {
                if open.len() >= MAX_DEPTH {
                    if too_deep == 0 {
                        draft.note(line, "{", format!("more than {MAX_DEPTH} blocks within one another"));
                    }
                    too_deep += 1;
                    words.clear();
                    continue;
                }
                let owner = directive(&mut words).unwrap_or_else(|| {
                    draft.note(line, "{", "a block without a name");
                    NginxDirective::new(line, String::new(), Vec::new(), None)
                });
                open.push((std::mem::take(&mut here), owner));
            }
            NginxToken::Close => {
                if too_deep > 0 {
                    too_deep -= 1;
                    continue;
                }
                // A last directive without its end.
                here.extend(directive(&mut words));
                match open.pop() {
                    Some((outside, mut owner)) => {
                        owner.block = Some(std::mem::replace(&mut here, outside));
                        here.push(owner);
                    }
                    None => draft.mark_incomplete(line, "}", "it closes nothing"),
                }
            }
        }
    }
    here.extend(directive(&mut words));
    while let Some((outside, mut owner)) = open.pop() {
        draft.mark_incomplete(owner.line, owner.text(), "its block is not closed");
        owner.block = Some(std::mem::replace(&mut here, outside));
        here.push(owner);
    }
    here
}

fn directive(words: &mut Vec<(usize, String)>) -> Option<NginxDirective> {
    let mut all = std::mem::take(words).into_iter();
    let (line, name) = all.next()?;
    Some(NginxDirective::new(line, name, all.map(|(_, word)| word).collect(), None))
}

fn tokens(text: &str, from: usize) -> Vec<(usize, NginxToken)> {
    let mut tokens = Vec::new();
    let mut line = from;
    let mut word: Option<(usize, String)> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let begun = word.is_some();
        match letter {
            '#' if !begun => while letters.next_if(|letter| *letter != '\n').is_some() {},
            '"' | '\'' if !begun => {
                let mut quoted = String::new();
                let from = line;
                while let Some(inside) = letters.next() {
                    match inside {
                        end if end == letter => break,
                        '\\' => quoted.extend(letters.next()),
                        other => {
                            line += usize::from(other == '\n');
                            quoted.push(other);
                        }
                    }
                }
                word = Some((from, quoted));
            }
            '\\' => {
                let word = word.get_or_insert((line, String::new()));
                word.1.push('\\');
                word.1.extend(letters.next());
            }
            // `${name}` is a part of a word.
            '$' if letters.peek() == Some(&'{') => {
                let word = word.get_or_insert((line, String::new()));
                word.1.push('$');
                for inside in letters.by_ref() {
                    word.1.push(inside);
                    line += usize::from(inside == '\n');
                    if inside == '}' {
                        break;
                    }
                }
            }
            ';' | '{' | '}' => {
                tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
                let token = match letter {
                    ';' => NginxToken::End,
                    '{' => NginxToken::Open,
                    _ => NginxToken::Close,
                };
                tokens.push((line, token));
            }
            space if space.is_whitespace() => {
                tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
                line += usize::from(space == '\n');
            }
            other => word.get_or_insert((line, String::new())).1.push(other),
        }
    }
    tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> (String, usize) {
        fn one(directive: &NginxDirective) -> String {
            let inside =
                directive.block.as_ref().map(|block| block.iter().map(one).collect::<Vec<_>>().join(";"));
            let inside = inside.map_or_else(String::new, |inside| format!("{{{inside}}}"));
            format!("{}:{}({}){inside}", directive.line, directive.name, directive.args.join("|"))
        }
        let mut draft = ImportDraft::default();
        let tree = read(text, 1, &mut draft);
        let noted = draft.notes.len() + usize::from(draft.incomplete.is_some());
        (tree.iter().map(one).collect::<Vec<_>>().join(";"), noted)
    }

    #[test]
    fn directives_and_blocks() {
        let (tree, notes) = said("a 1; # x\nb 'c d' \"e\\\"\" {\n  f ${g}h;\n  k\n}\n");
        assert_eq!((&*tree, notes), ("1:a(1);2:b(c d|e\"){3:f(${g}h);4:k()}", 0));
        assert_eq!(said("a { b"), ("1:a(){1:b()}".to_owned(), 1));
        assert_eq!(said("} a;"), ("1:a()".to_owned(), 1));
        assert_eq!(said("location ~ \\.php$ { x; }").0, "1:location(~|\\.php$){1:x()}");
        let deep = "a {".repeat(1000) + &"}".repeat(1000);
        assert_eq!(said(&deep).1, 1);
    }
}
