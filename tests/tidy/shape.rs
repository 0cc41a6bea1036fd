//! How long a file and a function may be, and how a file begins.
use crate::Breach;
use crate::source::{Source, closing};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn breaches(source: &Source) -> Vec<Breach> {
    let mut found = long_functions(source);
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        let advice = format!("{lines} lines, {FILE_LINES_MAX} at most: split by phase of life");
        found.push(Breach::at(&source.path, lines, advice));
    }
    if !source.text.starts_with("//! ") {
        found.push(Breach::at(&source.path, 1, "begin with a `//!` comment which says why the file exists"));
    }
    found
}

fn long_functions(source: &Source) -> Vec<Breach> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        // A pointer type `fn(u8)` has no name and no body.
        if token.text != "fn" || tokens.get(index + 1).is_none_or(|next| next.text == "(") {
            continue;
        }
        let Some(open) = body(tokens, index) else { continue };
        let lines = tokens[closing(tokens, open)].line - token.line + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = &tokens[index + 1].text;
            let advice = format!("`{name}` has {lines} lines, {FUNCTION_LINES_MAX} at most: name its parts");
            found.push(Breach::at(&source.path, token.line, advice));
        }
    }
    found
}

/// Where the braces of a function's body open; `None` for a declaration without one.
fn body(tokens: &[crate::source::Token], function: usize) -> Option<usize> {
    let mut index = function;
    while let Some(token) = tokens.get(index) {
        match token.text.as_str() {
            "{" => return Some(index),
            ";" | "}" => return None,
            "(" | "[" => index = closing(tokens, index),
            _ => {}
        }
        index += 1;
    }
    None
}

#[test]
fn a_long_function_and_a_headless_file_are_found() {
    let body = "    call([1; 2]);\n".repeat(FUNCTION_LINES_MAX - 1);
    let text = format!("fn short() {{}}\nfn long(a: [u8; 2]) -> [u8; 2] {{\n{body}}}\n");
    let found = breaches(&Source::new("common/src/a.rs".into(), text));
    assert_eq!(found.len(), 2);
    assert!(found[0].0.starts_with("common/src/a.rs:2: `long` has 71 lines"), "{}", found[0].0);
}
