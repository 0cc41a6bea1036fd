//! Who may use whom: the layering, read from the paths that code names.
use crate::Breach;
use crate::source::{Source, Token, closing};

/// Each module of `common`, and the modules of `common` it may name.
const COMMON: [(&str, &[&str]); 11] = [
    ("auth", &["nvme"]),
    ("size", &[]),
    ("time", &[]),
    ("unix_socket", &[]),
    ("identity", &["nvme"]),
    ("verbs", &["time"]),
    ("nvme", &["time", "verbs"]),
    ("iwarp", &["time", "verbs"]),
    ("memory", &["verbs"]),
    ("provider", &["iwarp", "memory", "reactor", "time", "unix_socket", "verbs"]),
    ("reactor", &["memory", "time", "verbs"]),
];

/// Each crate, and the crates of ours it may not name.
const CRATES: [(&str, &[&str]); 3] = [
    ("common/", &["ironside_target", "ironside_initiator"]),
    ("target/", &["ironside_initiator"]),
    ("initiator/", &["ironside_target"]),
];

pub(crate) fn breaches(source: &Source) -> Vec<Breach> {
    let mut found = crate_breaches(source);
    if let Some(inside) = source.path.strip_prefix("common/src/").filter(|inside| *inside != "lib.rs") {
        found.extend(module_breaches(source, inside));
    }
    found
}

fn crate_breaches(source: &Source) -> Vec<Breach> {
    let barred =
        CRATES.iter().filter(|(place, _)| source.path.starts_with(place)).flat_map(|(_, barred)| *barred);
    let lines = barred.flat_map(|name| source.lines_with(name).into_iter().map(move |line| (line, name)));
    let advice = "the other end; share through ironside-common what both ends need";
    lines.map(|(line, name)| Breach::at(&source.path, line, format_args!("`{name}`: {advice}"))).collect()
}

fn module_breaches(source: &Source, inside: &str) -> Vec<Breach> {
    let module = inside.split('/').next().expect("a split has a first part").trim_end_matches(".rs");
    let Some((_, allowed)) = COMMON.iter().find(|(name, _)| *name == module) else {
        let advice = format!("say in tests/tidy/arrows.rs what the new module `{module}` may use");
        return vec![Breach::at(&source.path, 1, advice)];
    };
    let mut found = Vec::new();
    for (name, line) in named_from_root(&source.tokens) {
        let known = COMMON.iter().any(|(module, _)| *module == name);
        let test_may = source.is_test(line) && name != "reactor";
        if known && name != module && !allowed.contains(&name.as_str()) && !test_may {
            let advice =
                format!("`{module}` may not use `{name}`: arrows of use go one way (ARCHITECTURE.md)");
            found.push(Breach::at(&source.path, line, advice));
        }
        let over_sockets = ["provider/tcp", "provider/soft", "provider/both"];
        let socket = over_sockets.iter().any(|place| inside.starts_with(place));
        if module == "provider" && name == "reactor" && !socket {
            found.push(Breach::at(&source.path, line, "only a provider over sockets needs the reactor"));
        }
    }
    found
}

/// The first name after each `crate ::`, also inside one group of braces: `crate::{nvme::X, verbs::Y}`.
fn named_from_root(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut named = Vec::new();
    for index in 0..tokens.len().saturating_sub(3) {
        let words = [&tokens[index].text, &tokens[index + 1].text, &tokens[index + 2].text];
        if words != ["crate", ":", ":"] {
            continue;
        }
        let first = index + 3;
        if tokens[first].text != "{" {
            named.push((tokens[first].text.clone(), tokens[first].line));
            continue;
        }
        let mut at = first + 1;
        let end = closing(tokens, first);
        while at < end {
            named.push((tokens[at].text.clone(), tokens[at].line));
            at = next_entry(tokens, at, end);
        }
    }
    named
}

/// The token after the next comma at this depth.
fn next_entry(tokens: &[Token], mut at: usize, end: usize) -> usize {
    while at < end {
        match tokens[at].text.as_str() {
            "," => return at + 1,
            "{" => at = closing(tokens, at),
            _ => {}
        }
        at += 1;
    }
    end
}

#[test]
fn an_arrow_the_wrong_way_is_found() {
    let text = "//! x\nuse crate::verbs::Sge;\nuse crate::{verbs::{Sge, Wc},\n reactor::Ring};\nfn f() { crate::memory::x() }\n";
    let found = breaches(&Source::new("common/src/nvme/a.rs".into(), text.into()));
    let lines: Vec<_> = found.iter().map(|breach| breach.0.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["common/src/nvme/a.rs:4:", "common/src/nvme/a.rs:5:"]);
}
