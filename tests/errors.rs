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

/// What tests may name instead of a code: each error with the variants that have the code, or the
/// error alone where it has one code.
fn names_of_codes(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for implementation in text.split("impl Coded for ").skip(1) {
        let error: String = implementation
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect();
        let Some((_, body)) = implementation.split_once("fn code(&self)") else {
            continue;
        };
        let body = body.split("fn class(&self)").next().unwrap_or(body);
        let arms: Vec<&str> = body.split("=>").collect();
        for (index, arm) in arms.iter().enumerate() {
            let Some(code) = arm.split('"').nth(1).filter(|code| is_code(code)) else {
                continue;
            };
            let pattern = arms[index.saturating_sub(1)];
            let variants = pattern.split("Self::").skip(1).filter(|_| index > 0);
            let of_arm = names.entry(code.to_owned()).or_default();
            of_arm.extend(variants.map(|variant| {
                let name: String = variant
                    .chars()
                    .take_while(|c| c.is_alphanumeric())
                    .collect();
                format!("{error}::{name}")
            }));
            if of_arm.is_empty() {
                of_arm.push(error.clone());
            }
        }
    }
    names
}

/// Every code of a client is named by a test, as itself or by the variant that has it.
#[test]
fn every_code_of_a_client_is_reached_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, text) in sources() {
        names.extend(names_of_codes(&text));
    }
    assert!(names.len() > 90, "{} codes", names.len());
    let tests = tests_in(root);
    let has_word = |text: &str, word: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        text.match_indices(word)
            .any(|(at, _)| !text[at + word.len()..].starts_with(is_part))
    };
    let mut unreached = Vec::new();
    for (code, variants) in &names {
        let literal = format!("\"{code}\"");
        let is_reached = tests.iter().any(|text| {
            text.contains(&literal) || variants.iter().any(|variant| has_word(text, variant))
        });
        if !is_reached {
            unreached.push(code);
        }
    }
    assert!(unreached.is_empty(), "no test reaches {unreached:?}");
}

#[test]
fn names_of_codes_are_read_arm_by_arm() {
    let text = "impl Coded for A {\n fn code(&self) -> &'static str { match self { \
                Self::B { .. } => \"a.b\",\n Self::C | Self::D(_) => \"a.c\",\n \
                Self::E(error) => error.code(), } }\n fn class(&self) {} }\n\
                impl Coded for F { fn code(&self) -> &'static str { \"f.g\" } \
                fn class(&self) {} }";
    let found = names_of_codes(text);
    let names = |code: &str| found[code].join(" ");
    assert_eq!(names("a.b"), "A::B");
    assert_eq!(names("a.c"), "A::C A::D");
    assert_eq!(names("f.g"), "F");
    assert_eq!(found.len(), 3);
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
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let folders = ["tests", "conformance"];
                let is_test = path
                    .components()
                    .any(|part| folders.iter().any(|folder| part.as_os_str() == *folder))
                    || name.ends_with("tests.rs");
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
