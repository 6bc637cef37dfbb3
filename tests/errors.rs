//! The catalogue of errors: every code in the sources stands in `docs/errors.md`, and none besides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const CATALOGUE: &str = "docs/errors.md";

/// Reads the Rust sources of the library crates.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = fs::read_dir(root)
        .expect("the workspace")
        .map(|entry| entry.expect("an entry").path().join("src"))
        .filter(|path| path.is_dir())
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                found.push((path, text));
            }
        }
    }
    found
}

/// The bodies of `fn code` in the implementations of `Coded` in one file.
fn code_bodies(text: &str) -> Vec<&str> {
    text.split("impl Coded for ")
        .skip(1)
        .filter_map(|rest| {
            let body = rest.split_once("fn code(&self)")?.1;
            Some(body.split("fn class(&self)").next().unwrap_or(body))
        })
        .collect()
}

/// Whether a literal is a code: two words of lowercase letters, joined by a dot.
fn is_code(literal: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    literal
        .split_once('.')
        .is_some_and(|(area, name)| is_word(area) && is_word(name))
}

fn codes_in(text: &str) -> BTreeSet<String> {
    code_bodies(text)
        .iter()
        .flat_map(|body| body.split('"').skip(1).step_by(2))
        .filter(|literal| is_code(literal))
        .map(str::to_owned)
        .collect()
}

fn catalogue(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(code, _)| code.to_owned())
        .filter(|code| is_code(code))
        .collect()
}

#[test]
fn every_code_stands_in_the_catalogue_and_none_besides() {
    let mut owners: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources() {
        for code in codes_in(&text) {
            owners.entry(code).or_default().push(path.clone());
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(CATALOGUE);
    let listed = catalogue(&fs::read_to_string(path).expect("the catalogue"));
    let found: BTreeSet<String> = owners.keys().cloned().collect();
    let missing: Vec<&String> = found.difference(&listed).collect();
    let stale: Vec<&String> = listed.difference(&found).collect();
    assert!(missing.is_empty(), "not in {CATALOGUE}: {missing:?}");
    assert!(
        stale.is_empty(),
        "in {CATALOGUE} and nowhere else: {stale:?}"
    );
    let shared: Vec<_> = owners.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(shared.is_empty(), "one code, two errors: {shared:?}");
}

#[test]
fn codes_are_read_from_the_implementations_alone() {
    let text = "impl Coded for A {\n fn code(&self) -> &'static str { match self { \
                Self::B => \"a.b\", Self::C => \"not one\" } }\n fn class(&self) -> Class { \
                x(\"c.d\") } }\nfn other() { \"e.f\" }";
    assert_eq!(codes_in(text), BTreeSet::from(["a.b".to_owned()]));
    assert_eq!(
        catalogue("| `a.b` | x |\n| code |\n- `c.d`"),
        BTreeSet::from(["a.b".to_owned()])
    );
}
