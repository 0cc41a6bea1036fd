//! Papers which would otherwise outlive their truth: links, the map, and the list of unsafe code.
use std::collections::BTreeSet;
use std::path::Path;

use crate::source::Source;
use crate::{Breach, tree};

const UNSAFE: &str = "docs/unsafe.md";
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const CRATES: [&str; 4] = ["common", "target", "initiator", "tools"];

/// Files with `unsafe` are exactly those which the first column of the table in docs/unsafe.md names.
pub(crate) fn unsafe_breaches(sources: &[Source]) -> Vec<Breach> {
    let paper = tree::read(UNSAFE).unwrap_or_default();
    let listed: BTreeSet<&str> =
        paper.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut found = Vec::new();
    for source in sources {
        let line = source.lines_with("unsafe").first().copied();
        if let (Some(line), false) = (line, listed.contains(source.path.as_str())) {
            let advice = format_args!("`unsafe` in a file which {UNSAFE} does not list").to_string();
            found.push(Breach::at(&source.path, line, advice));
        }
        if line.is_none() && listed.contains(source.path.as_str()) {
            found.push(Breach::at(UNSAFE, 1, format_args!("`{}` has no `unsafe` any more", source.path)));
        }
    }
    let gone = listed.iter().filter(|path| !tree::root().join(path).is_file());
    found.extend(gone.map(|path| Breach::at(UNSAFE, 1, format_args!("`{path}` does not exist"))));
    found
}

pub(crate) fn link_breaches() -> Vec<Breach> {
    let papers = tree::texts().into_iter().filter(|(path, _)| path.ends_with(".md"));
    let mut found = Vec::new();
    for (path, text) in papers {
        let folder = tree::root().join(&path).parent().expect("a file lies in a folder").to_owned();
        for (number, line) in text.lines().enumerate() {
            for target in relative_links(line) {
                if !folder.join(target).exists() {
                    found.push(Breach::at(
                        &path,
                        number + 1,
                        format_args!("the link to `{target}` leads nowhere"),
                    ));
                }
            }
        }
    }
    found
}

/// Targets of `[text](target)`, without their fragment, of one line.
fn relative_links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty() && !target.starts_with("http:") && !target.starts_with("https:"))
}

/// Every path in backquotes exists, and every module at the top of a crate is named by its path.
pub(crate) fn architecture_breaches() -> Vec<Breach> {
    let paper = tree::read(ARCHITECTURE).unwrap_or_default();
    let mut found = Vec::new();
    let mut named = BTreeSet::new();
    for (number, line) in paper.lines().enumerate() {
        for path in quoted_paths(line) {
            if !tree::root().join(path).exists() {
                found.push(Breach::at(ARCHITECTURE, number + 1, format_args!("`{path}` does not exist")));
            }
            named.insert(path.trim_end_matches('/').to_owned());
        }
    }
    for module in top_level_modules() {
        if !named.contains(&module) {
            found.push(Breach::at(ARCHITECTURE, 1, format_args!("`{module}` is not on the map")));
        }
    }
    found
}

/// Whatever stands in backquotes and begins like a path of the tree.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let places = ["common/", "target/", "initiator/", "tools/", "tests/", "fuzz/", "demo/", "docs/"];
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(move |text| places.iter().any(|place| text.starts_with(place)) && !text.contains(' '))
}

/// `common/src/nvme` for a folder, `common/src/time.rs` for a file; a file beside a folder of its name is
/// part of it. Roots of crates are not modules.
fn top_level_modules() -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for path in tree::files().into_iter().filter(|path| path.ends_with(".rs")) {
        let parts: Vec<&str> = path.split('/').collect();
        let [krate, "src", name, rest @ ..] = parts.as_slice() else { continue };
        let folder = Path::new(krate).join("src").join(name.trim_end_matches(".rs"));
        if !CRATES.contains(krate) || ["lib.rs", "main.rs", "bin"].contains(name) {
            continue;
        }
        if rest.is_empty() && !tree::root().join(&folder).is_dir() {
            modules.insert(path);
        } else {
            modules.insert(folder.display().to_string());
        }
    }
    modules
}

#[test]
fn links_and_paths_are_read() {
    let links: Vec<_> = relative_links("see [a](docs/a.md#x), [b](https://b) and [c](#d)").collect();
    assert_eq!(links, ["docs/a.md"]);
    let paths: Vec<_> = quoted_paths("`common/src/nvme` and `cargo test` and `tests/run full`").collect();
    assert_eq!(paths, ["common/src/nvme"]);
}
