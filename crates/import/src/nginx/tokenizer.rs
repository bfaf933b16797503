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
pub(super) fn read(text: &str, first_line: usize, draft: &mut ImportDraft) -> Vec<NginxDirective> {
    // The open blocks: their content, and the directive that each belongs to.
    let mut open_blocks: Vec<(Vec<NginxDirective>, NginxDirective)> = Vec::new();
    let mut current_block: Vec<NginxDirective> = Vec::new();
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut depth_excess = 0_usize;
    for (line, token) in tokens(text, first_line) {
        match token {
            NginxToken::Word(word) => words.push((line, word)),
            NginxToken::End => current_block.extend(directive(&mut words)),
            NginxToken::Open => {
                if open_blocks.len() >= MAX_DEPTH {
                    if depth_excess == 0 {
                        draft.note(line, "{", format!("more than {MAX_DEPTH} blocks within one another"));
                    }
                    depth_excess += 1;
                    words.clear();
                    continue;
                }
                let owner = directive(&mut words).unwrap_or_else(|| {
                    draft.note(line, "{", "a block without a name");
                    NginxDirective::new(line, String::new(), Vec::new(), None)
                });
                open_blocks.push((std::mem::take(&mut current_block), owner));
            }
            NginxToken::Close => {
                if depth_excess > 0 {
                    depth_excess -= 1;
                    continue;
                }
                // A last directive without its end.
                current_block.extend(directive(&mut words));
                match open_blocks.pop() {
                    Some((outer_block, mut owner)) => {
                        owner.block = Some(std::mem::replace(&mut current_block, outer_block));
                        current_block.push(owner);
                    }
                    None => draft.mark_incomplete(line, "}", "it closes nothing"),
                }
            }
        }
    }
    current_block.extend(directive(&mut words));
    while let Some((outer_block, mut owner)) = open_blocks.pop() {
        draft.mark_incomplete(owner.line, owner.text(), "its block is not closed");
        owner.block = Some(std::mem::replace(&mut current_block, outer_block));
        current_block.push(owner);
    }
    current_block
}

fn directive(words: &mut Vec<(usize, String)>) -> Option<NginxDirective> {
    let mut word_tokens = std::mem::take(words).into_iter();
    let (line, name) = word_tokens.next()?;
    Some(NginxDirective::new(line, name, word_tokens.map(|(_, word)| word).collect(), None))
}

fn tokens(text: &str, first_line: usize) -> Vec<(usize, NginxToken)> {
    let mut tokens = Vec::new();
    let mut line = first_line;
    let mut word: Option<(usize, String)> = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let in_word = word.is_some();
        match character {
            '#' if !in_word => while characters.next_if(|character| *character != '\n').is_some() {},
            '"' | '\'' if !in_word => {
                let mut quoted = String::new();
                let start_line = line;
                while let Some(quoted_char) = characters.next() {
                    match quoted_char {
                        closing if closing == character => break,
                        '\\' => quoted.extend(characters.next()),
                        literal => {
                            line += usize::from(literal == '\n');
                            quoted.push(literal);
                        }
                    }
                }
                word = Some((start_line, quoted));
            }
            '\\' => {
                let word = word.get_or_insert((line, String::new()));
                word.1.push('\\');
                word.1.extend(characters.next());
            }
            // `${name}` is a part of a word.
            '$' if characters.peek() == Some(&'{') => {
                let word = word.get_or_insert((line, String::new()));
                word.1.push('$');
                for variable_char in characters.by_ref() {
                    word.1.push(variable_char);
                    line += usize::from(variable_char == '\n');
                    if variable_char == '}' {
                        break;
                    }
                }
            }
            ';' | '{' | '}' => {
                tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
                let token = match character {
                    ';' => NginxToken::End,
                    '{' => NginxToken::Open,
                    _ => NginxToken::Close,
                };
                tokens.push((line, token));
            }
            whitespace if whitespace.is_whitespace() => {
                tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
                line += usize::from(whitespace == '\n');
            }
            plain_char => word.get_or_insert((line, String::new())).1.push(plain_char),
        }
    }
    tokens.extend(word.take().map(|(line, word)| (line, NginxToken::Word(word))));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_to_text(text: &str) -> (String, usize) {
        fn directive_text(directive: &NginxDirective) -> String {
            let block_text = directive
                .block
                .as_ref()
                .map(|block| block.iter().map(directive_text).collect::<Vec<_>>().join(";"));
            let block_text = block_text.map_or_else(String::new, |block_text| format!("{{{block_text}}}"));
            format!("{}:{}({}){block_text}", directive.line, directive.name, directive.args.join("|"))
        }
        let mut draft = ImportDraft::default();
        let tree = read(text, 1, &mut draft);
        let note_count = draft.notes.len() + usize::from(draft.incomplete.is_some());
        (tree.iter().map(directive_text).collect::<Vec<_>>().join(";"), note_count)
    }

    #[test]
    fn directives_and_blocks() {
        let (tree, notes) = parse_to_text("a 1; # x\nb 'c d' \"e\\\"\" {\n  f ${g}h;\n  k\n}\n");
        assert_eq!((&*tree, notes), ("1:a(1);2:b(c d|e\"){3:f(${g}h);4:k()}", 0));
        assert_eq!(parse_to_text("a { b"), ("1:a(){1:b()}".to_owned(), 1));
        assert_eq!(parse_to_text("} a;"), ("1:a()".to_owned(), 1));
        assert_eq!(parse_to_text("location ~ \\.php$ { x; }").0, "1:location(~|\\.php$){1:x()}");
        let nested_text = "a {".repeat(1000) + &"}".repeat(1000);
        assert_eq!(parse_to_text(&nested_text).1, 1);
    }
}
