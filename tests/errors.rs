//! The catalogue of errors: every code in the sources stands in `docs/errors.md`, and none besides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const CATALOGUE: &str = "docs/errors.md";

/// Where the backend gives each failure its code and its reason.
const REASONS: &str = "xmtp-backend/src/services/status.rs";

/// Reasons that tests reach and know by the code alone, each with the place of those tests.
const KNOWN_BY_CODE: [(&str, &str); 4] = [
    ("PUBLISH_TIMED_OUT", "the tests of the stores"),
    ("PONG_MISSED", "xmtp-backend/src/session"),
    ("SLOW_CONSUMER", "xmtp-backend/src/session"),
    ("FRAME_TOO_LARGE", "xmtp-backend/src/session"),
];

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

/// The reasons of the backend's table: each row is a code of gRPC and a reason in capitals.
fn reasons_in(table: &str) -> BTreeSet<String> {
    let rows = table
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::"));
    let row = |row: &str| {
        Some(
            row.split_once("=> (Code::")?
                .1
                .split('"')
                .nth(1)?
                .to_owned(),
        )
    };
    rows.filter_map(row).collect()
}

/// The sources below the folders of tests, and the tests inside the others.
fn tests_in(root: &Path) -> Vec<String> {
    let crates = fs::read_dir(root).expect("the workspace");
    let crates = crates.map(|entry| entry.expect("an entry").path());
    let mut folders: Vec<PathBuf> = crates
        .filter(|path| path.join("Cargo.toml").is_file())
        .flat_map(|path| [path.join("tests"), path.join("src")])
        .chain([root.join("tests")])
        .filter(|path| path.is_dir())
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs")
                && !path.ends_with("errors.rs")
            {
                let text = fs::read_to_string(&path).expect("a source");
                let is_test = path.components().any(|part| part.as_os_str() == "tests")
                    || path.ends_with("tests.rs");
                let inside = text
                    .split_once("#[cfg(test)]\nmod ")
                    .map_or("", |(_, tests)| tests);
                found.push(if is_test {
                    text.clone()
                } else {
                    inside.to_owned()
                });
            }
        }
    }
    found
}

#[test]
fn every_reason_of_the_backend_is_reached_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join(REASONS)).expect("the table");
    let reasons = reasons_in(&table);
    assert!(reasons.len() > 20, "{reasons:?}");
    let tests = tests_in(root);
    let is_named = |reason: &str| {
        tests
            .iter()
            .any(|text| text.contains(&format!("\"{reason}\"")))
    };
    let by_code: BTreeSet<&str> = KNOWN_BY_CODE.iter().map(|(reason, _)| *reason).collect();
    for reason in &reasons {
        let is_excused = by_code.contains(reason.as_str());
        assert_ne!(
            is_named(reason),
            is_excused,
            "{reason}: named by a test, or listed, not both"
        );
    }
    assert!(
        by_code.iter().all(|reason| reasons.contains(*reason)),
        "{by_code:?}"
    );
}
