//! What the manifests and Cargo's settings have to say.
use crate::tree;
use crate::{Breach, source::Source};

pub(crate) fn ignore_breaches() -> Vec<Breach> {
    let ignored = tree::read(".gitignore").unwrap_or_default();
    let cargo = tree::read(".cargo/config.toml").unwrap_or_default();
    let mut found = Vec::new();
    if !ignored.lines().any(|line| line == "/build") {
        found.push(Breach::at(".gitignore", 1, "name `/build`, where Cargo's output goes"));
    }
    for (number, line) in ignored.lines().enumerate() {
        if line.trim_matches('/') == "target" {
            found.push(Breach::at(".gitignore", number + 1, "`target` is a crate"));
        }
    }
    if !cargo.lines().any(|line| line == "target-dir = \"build\"") {
        found.push(Breach::at(".cargo/config.toml", 1, "put Cargo's output into `build`"));
    }
    found
}

pub(crate) fn lint_breaches() -> Vec<Breach> {
    let members = ["common", "target", "initiator", "tools", "tests"];
    let manifests = members.map(|member| format!("{member}/Cargo.toml"));
    let takes =
        |path: &String| tree::read(path).is_some_and(|text| text.contains("[lints]\nworkspace = true"));
    let mut found: Vec<_> = manifests
        .iter()
        .filter(|path| !takes(path))
        .map(|path| Breach::at(path, 1, "`[lints] workspace = true`"))
        .collect();
    let toolchain = tree::files().into_iter().find(|path| path.starts_with("rust-toolchain"));
    found.extend(
        toolchain.map(|path| Breach::at(&path, 1, "would make rustup download; `rust-version` says it")),
    );
    found.extend(blanket_allows(&Source::all()));
    found
}

/// A lint is switched off where it is wrong, with a reason, and not for a whole crate.
fn blanket_allows(sources: &[Source]) -> Vec<Breach> {
    let mut found = Vec::new();
    for source in sources {
        for line in source.lines_with("# ! [ allow") {
            found.push(Breach::at(&source.path, line, "`#[expect(lint, reason = \"…\")]` on the one item"));
        }
    }
    found
}
