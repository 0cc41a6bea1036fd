//! A rule that matters is a test: these read the tree and say, by file and line, what to write instead.
mod arrows;
mod manifests;
mod papers;
mod shape;
mod source;
mod tree;
mod words;

use source::Source;

/// One breach of a rule: where, and what to do about it.
struct Breach(String);

impl Breach {
    fn at(path: &str, line: usize, advice: impl std::fmt::Display) -> Self {
        Self(format!("{path}:{line}: {advice}"))
    }
}

#[track_caller]
fn assert_none(breaches: impl IntoIterator<Item = Breach>) {
    let lines: Vec<String> = breaches.into_iter().map(|breach| breach.0).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn the_tree_is_found() {
    let sources = Source::all();
    assert!(sources.iter().any(|source| source.path == "common/src/lib.rs"));
    assert!(sources.iter().any(|source| source.path == "tests/tidy/main.rs"));
    assert!(sources.iter().all(|source| !source.path.starts_with("build/")));
}

#[test]
fn no_banned_word_stands() {
    assert_none(Source::all().iter().flat_map(words::breaches));
}

#[test]
fn nothing_is_put_off_and_no_machine_is_named() {
    assert_none(tree::texts().iter().flat_map(|(path, text)| words::text_breaches(path, text)));
}

#[test]
fn files_and_functions_fit_a_screenful_of_attention() {
    assert_none(Source::all().iter().flat_map(shape::breaches));
}

#[test]
fn unsafe_stands_only_where_the_paper_lists_it() {
    assert_none(papers::unsafe_breaches(&Source::all()));
}

#[test]
fn arrows_of_use_go_one_way() {
    assert_none(Source::all().iter().flat_map(arrows::breaches));
}

#[test]
fn every_relative_link_resolves() {
    assert_none(papers::link_breaches());
}

#[test]
fn the_architecture_names_what_exists_and_all_of_it() {
    assert_none(papers::architecture_breaches());
}

#[test]
fn the_build_directory_is_ignored_and_the_target_crate_is_not() {
    assert_none(manifests::ignore_breaches());
}

#[test]
fn every_member_takes_the_workspace_lints() {
    assert_none(manifests::lint_breaches());
}
