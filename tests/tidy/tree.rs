//! The files of the tree, found by walking it, so that a file not yet committed is judged too.
use std::fs;
use std::path::{Path, PathBuf};

/// What a tool made, and captures, at any depth. In a worktree `.git` is a file.
const NOT_OURS: [&str; 7] = [".git", "build", "__pycache__", "corpus", "artifacts", ".venv", "vectors"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the tree").to_owned()
}

/// Paths of all files, relative to the root, sorted.
pub(crate) fn files() -> Vec<String> {
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

/// All files that are text, with their text.
pub(crate) fn texts() -> Vec<(String, String)> {
    files().into_iter().filter_map(|path| Some((path.clone(), read(&path)?))).collect()
}

/// The text of one file; `None` if it is missing or not text.
pub(crate) fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

fn walk(directory: &Path, prefix: &str, found: &mut Vec<String>) {
    let entries = fs::read_dir(directory).expect("a directory of the tree can be read");
    for entry in entries.map(|entry| entry.expect("a directory of the tree can be read")) {
        let name = entry.file_name().into_string().expect("names in the tree are text");
        let kind = entry.file_type().expect("an entry of the tree has a type");
        if NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        if kind.is_file() {
            found.push(format!("{prefix}{name}"));
        } else if kind.is_dir() {
            walk(&entry.path(), &format!("{prefix}{name}/"), found);
        }
    }
}
