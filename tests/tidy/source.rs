//! One Rust file as tokens: comments and strings cannot be mistaken for code, and every token has a line.
use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree;

pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    /// Lines of items under `#[cfg(test)]`, and of the whole file if all of it is tests.
    tests: Vec<RangeInclusive<usize>>,
    /// Lines of constants and constant functions.
    constants: Vec<RangeInclusive<usize>>,
}

/// One token, with groups opened out into their delimiters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

impl Source {
    pub(crate) fn all() -> Vec<Self> {
        let rust = tree::texts().into_iter().filter(|(path, _)| path.ends_with(".rs"));
        let mut sources: Vec<Self> = rust.map(|(path, text)| Self::new(path, text)).collect();
        let places: Vec<String> = sources.iter().flat_map(Self::test_modules).collect();
        for source in &mut sources {
            if places.iter().any(|place| {
                source.path == format!("{place}.rs") || source.path.starts_with(&format!("{place}/"))
            }) {
                source.tests.push(0..=usize::MAX);
            }
        }
        sources
    }

    pub(crate) fn new(path: String, text: String) -> Self {
        let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        let mut tests = test_items(&tokens);
        let all = path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/");
        if all {
            tests.push(0..=usize::MAX);
        }
        let constants = constant_items(&tokens);
        Self { path, text, tokens, tests, constants }
    }

    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    /// Where the modules lie which this file declares for tests only, without their ending.
    fn test_modules(&self) -> Vec<String> {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.trim_end_matches(".rs");
        let folder = match stem {
            "mod" | "lib" | "main" => folder.to_owned(),
            _ => format!("{folder}/{stem}"),
        };
        let declared =
            self.tokens.windows(3).filter(|window| window[0].text == "mod" && window[2].text == ";");
        let tests = declared.filter(|window| self.is_test(window[0].line));
        tests.map(|window| format!("{folder}/{}", window[1].text)).collect()
    }

    /// Whether the compiler itself works this line out, or may: there a number widens by `as` or not at all.
    pub(crate) fn is_constant(&self, line: usize) -> bool {
        self.constants.iter().any(|lines| lines.contains(&line))
    }

    /// Lines where the tokens read exactly like `words`, which are separated by spaces.
    pub(crate) fn lines_with(&self, words: &str) -> Vec<usize> {
        let words: Vec<&str> = words.split(' ').collect();
        let reads =
            |window: &&[Token]| window.iter().map(|token| token.text.as_str()).eq(words.iter().copied());
        self.tokens.windows(words.len()).filter(reads).map(|window| window[0].line).collect()
    }
}

/// The index of the delimiter which closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    panic!("Rust delimiters are balanced");
}

fn flatten(stream: TokenStream, into: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let TokenTree::Group(group) = tree else {
            into.push(Token { text: tree.to_string(), line });
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        into.push(Token { text: open.into(), line });
        let last = group.span_close().end().line;
        flatten(group.stream(), into);
        into.push(Token { text: close.into(), line: last });
    }
}

/// Each item under `#[cfg(test)]`: from the attribute to the end of its braces, or its semicolon.
fn test_items(tokens: &[Token]) -> Vec<RangeInclusive<usize>> {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut items = Vec::new();
    for start in 0..tokens.len().saturating_sub(attribute.len()) {
        if !tokens[start..].iter().map(|token| token.text.as_str()).zip(attribute).all(|(a, b)| a == b) {
            continue;
        }
        let body = start + attribute.len();
        let end = (body..tokens.len()).find(|index| matches!(tokens[*index].text.as_str(), "{" | ";"));
        let Some(end) = end else { continue };
        let last = if tokens[end].text == "{" { closing(tokens, end) } else { end };
        items.push(tokens[start].line..=tokens[last].line);
    }
    items
}

/// Each `const` item and `const fn`, but neither pointers nor generic parameters.
fn constant_items(tokens: &[Token]) -> Vec<RangeInclusive<usize>> {
    let mut items = Vec::new();
    for start in (0..tokens.len()).filter(|start| tokens[*start].text == "const") {
        let before = start.checked_sub(1).map(|before| tokens[before].text.as_str());
        if matches!(before, Some("*" | "<" | ",")) {
            continue;
        }
        let mut end = start;
        while end < tokens.len() {
            match tokens[end].text.as_str() {
                ";" => break,
                "{" => {
                    end = closing(tokens, end);
                    break;
                }
                "(" | "[" => end = closing(tokens, end),
                _ => {}
            }
            end += 1;
        }
        items.push(tokens[start].line..=tokens[end.min(tokens.len() - 1)].line);
    }
    items
}

#[test]
fn code_is_told_from_comments_strings_and_tests() {
    let text =
        "//! unwrap(\nfn a() { b(\"unwrap(\"); }\n#[cfg(test)]\nmod tests {\n fn c() { d.unwrap(); }\n}\n";
    let source = Source::new("common/src/a.rs".into(), text.into());
    assert_eq!(source.lines_with("unwrap ("), [5]);
    assert!(source.is_test(5) && !source.is_test(2));
}
