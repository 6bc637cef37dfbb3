//! Holds the requirements and the tests together: every id of `docs/requirements.md` has a test that
//! names it, or stands in `docs/uncovered.md` with the reason, and never both.
//!
//! A test names the ids it proves in its doc comment, on a line that begins with `covers:`, at most four
//! of them. A conformance case does the same, or has them in the published list that runs it. A scenario
//! names an id on the line of the assertion that proves it. All faults are told at once.

#[path = "house/files.rs"]
mod files;

use std::collections::{BTreeMap, BTreeSet};

use files::{TextFile, has_extension, text_files};

/// How many ids each family has.
const FAMILIES: [(&str, usize); 7] = [
    ("STR", 85),
    ("CFG", 73),
    ("SUB", 18),
    ("OBS", 15),
    ("EXT", 8),
    ("CUR", 7),
    ("RVC", 4),
];

/// How many ids there are.
const TOTAL: usize = 210;

/// A test that proves more than this many requirements proves none of them well.
const MAX_IDS_PER_TEST: usize = 4;

/// Folders whose functions are cases: they run from a list, without `#[test]`.
const CASE_FOLDERS: [&str; 3] = ["testing", "conformance", "tests"];

/// How many places a fault names; more would hide the next fault.
const MAX_PLACES_SHOWN: usize = 2;

const REQUIREMENTS: &str = "docs/requirements.md";
const UNCOVERED: &str = "docs/uncovered.md";

/// What was found, and what was wrong with it.
#[derive(Debug, Default)]
struct Found {
    /// Each id with the places that name it, as `path:line`.
    ids: BTreeMap<String, Vec<String>>,
    /// Conformance cases that name an id, each with its place. A published list must hold them.
    cases: Vec<(String, String)>,
    faults: Vec<String>,
}

impl Found {
    fn add(&mut self, id: &str, place: String) {
        self.ids.entry(id.to_owned()).or_default().push(place);
    }
}

/// Tells whether `text` is an id: three capitals, a dash, three digits.
fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 7
        && bytes[..3].iter().all(u8::is_ascii_uppercase)
        && bytes[3] == b'-'
        && bytes[4..].iter().all(u8::is_ascii_digit)
}

/// Reads a list of `- ID: text` lines. Every line that begins with a dash is an entry.
fn entries(file: &TextFile) -> Found {
    let mut found = Found::default();
    for (index, line) in file.text.lines().enumerate() {
        let Some(entry) = line.strip_prefix("- ") else {
            continue;
        };
        let place = format!("{}:{}", file.path, index + 1);
        match entry.split_once(": ") {
            Some((id, text)) if is_id(id) && !text.trim().is_empty() => found.add(id, place),
            _ => found.faults.push(format!("{place}: not `- ID: text`")),
        }
    }
    for (id, places) in found.ids.iter().filter(|(_, places)| places.len() > 1) {
        found
            .faults
            .push(format!("{id} stands more than once: {}", places.join(", ")));
    }
    found
}

/// Checks that the list of requirements is whole.
fn count_faults(ids: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |what: &str, wanted: usize, count: usize| {
        if count != wanted {
            faults.push(format!("{REQUIREMENTS}: {count} {what}, expected {wanted}"));
        }
    };
    expect("ids", TOTAL, ids.len());
    for (family, wanted) in FAMILIES {
        let count = ids.keys().filter(|id| id.starts_with(family)).count();
        expect(&format!("ids of {family}"), wanted, count);
    }
    faults
}

/// Collects the ids that the tests of one Rust file name.
fn covered_by_tests(file: &TextFile, found: &mut Found) {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let mut at = 0;
    while at < lines.len() {
        let is_plain = ["//! covers:", "// covers:"]
            .iter()
            .any(|start| lines[at].starts_with(start));
        if is_plain {
            let fault = "`covers:` belongs in the doc comment of a test";
            found
                .faults
                .push(format!("{}:{}: {fault}", file.path, at + 1));
        }
        if !lines[at].starts_with("///") {
            at += 1;
            continue;
        }
        let end = at
            + lines[at..]
                .iter()
                .take_while(|line| line.starts_with("///"))
                .count();
        covered_by_block(file, &lines, at..end, found);
        at = end;
    }
}

fn covered_by_block(
    file: &TextFile,
    lines: &[&str],
    block: std::ops::Range<usize>,
    found: &mut Found,
) {
    let first = block.start + 1;
    let mut ids = Vec::new();
    let mut named = false;
    for index in block.clone() {
        let Some(list) = lines[index].strip_prefix("/// covers:") else {
            continue;
        };
        named = true;
        for id in list.split(',').map(str::trim) {
            if is_id(id) {
                ids.push((id.to_owned(), format!("{}:{}", file.path, index + 1)));
            } else {
                found
                    .faults
                    .push(format!("{}:{}: not an id: `{id}`", file.path, index + 1));
            }
        }
    }
    if !named {
        return;
    }
    let mut fault = |text: String| found.faults.push(format!("{}:{first}: {text}", file.path));
    let proof = proof_below(&file.path, &lines[block.end..]);
    if proof == Proof::None {
        fault("`covers:` stands above something that is no test".to_owned());
        return;
    }
    let all: Vec<_> = ids.iter().map(|(id, _)| id.as_str()).collect();
    list_faults(&all).into_iter().for_each(&mut fault);
    for (id, place) in ids {
        found.add(&id, place);
    }
    if let Proof::Case(name) = proof {
        found.cases.push((name, format!("{}:{first}", file.path)));
    }
}

/// What a doc comment stands above.
#[derive(Debug, PartialEq, Eq)]
enum Proof {
    Test,
    Case(String),
    None,
}

/// Reads the attributes and the head of the item that the lines begin with.
fn proof_below(path: &str, lines: &[&str]) -> Proof {
    let mut is_test = false;
    let mut open = 0_i32;
    for line in lines {
        if open > 0 || line.starts_with("#[") {
            // An attribute may run over several lines.
            let brackets = |c: char| i32::try_from(line.matches(c).count()).unwrap_or(i32::MAX);
            open += brackets('[') - brackets(']');
            let inside = line.trim_start_matches("#[");
            let name = inside.split(['(', ']']).next().unwrap_or("");
            is_test |= name == "test" || name.ends_with("::test");
        } else {
            let Some((_, rest)) = line.split_once("fn ") else {
                return Proof::None;
            };
            let name = rest.split(['(', '<']).next().unwrap_or("");
            return match (is_test, in_case_folder(path)) {
                (true, _) => Proof::Test,
                (false, true) => Proof::Case(name.trim().to_owned()),
                (false, false) => Proof::None,
            };
        }
    }
    Proof::None
}

fn in_case_folder(path: &str) -> bool {
    path.split('/')
        .any(|part| CASE_FOLDERS.contains(&part.trim_end_matches(".rs")))
}

/// Collects the ids of a published list of cases, which holds them as data: `&["STR-061"]`.
fn covered_by_list(file: &TextFile, found: &mut Found) {
    for (open, _) in file.text.match_indices('[') {
        let rest = &file.text[open + 1..];
        let list = rest.split(']').next().unwrap_or("");
        let literals = list
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let ids: Vec<_> = literals.map(|part| part.trim_matches('"')).collect();
        if !ids.first().is_some_and(|id| is_id(id)) {
            continue;
        }
        let place = format!(
            "{}:{}",
            file.path,
            file.text[..open].matches('\n').count() + 1
        );
        for id in &ids {
            if is_id(id) {
                found.add(id, place.clone());
            } else {
                found.faults.push(format!("{place}: not an id: `{id}`"));
            }
        }
        found.faults.extend(
            list_faults(&ids)
                .into_iter()
                .map(|fault| format!("{place}: {fault}")),
        );
    }
}

/// What is wrong with the ids of one test, taken together.
fn list_faults(ids: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    if ids.len() > MAX_IDS_PER_TEST {
        faults.push(format!(
            "one test covers {} ids, the most is {MAX_IDS_PER_TEST}",
            ids.len()
        ));
    }
    if ids.iter().collect::<BTreeSet<_>>().len() < ids.len() {
        faults.push("one test names an id twice".to_owned());
    }
    faults
}

/// Finds cases that no list names, so that nothing ever runs them.
fn unlisted_cases(files: &[TextFile], cases: &[(String, String)]) -> Vec<String> {
    let suites = files.iter().filter(|file| in_case_folder(&file.path));
    let code: Vec<&str> = suites
        .flat_map(|file| file.text.lines().map(str::trim))
        .filter(|line| !line.starts_with("//"))
        .collect();
    let is_listed = |name: &str| {
        code.iter().any(|line| {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            !line.contains(&format!("fn {name}")) && words.into_iter().any(|word| word == name)
        })
    };
    let unlisted = cases.iter().filter(|(name, _)| !is_listed(name));
    unlisted
        .map(|(name, place)| format!("{place}: no list of cases names `{name}`"))
        .collect()
}

/// Collects the ids that the assertions of one scenario name. A line that is only a comment proves
/// nothing.
fn covered_by_scenario(file: &TextFile, found: &mut Found) {
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with(['#', '/']) {
            continue;
        }
        for word in line
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .filter(|word| is_id(word))
        {
            found.add(word, format!("{}:{}", file.path, index + 1));
        }
    }
}

fn covered(files: &[TextFile]) -> Found {
    let mut found = Found::default();
    for file in files {
        if has_extension(&file.path, &["rs"]) {
            covered_by_tests(file, &mut found);
            if in_case_folder(&file.path) {
                covered_by_list(file, &mut found);
            }
        } else if file.path.starts_with("tests/scenarios/") && has_extension(&file.path, &["txt"]) {
            covered_by_scenario(file, &mut found);
        }
    }
    let unlisted = unlisted_cases(files, &found.cases);
    found.faults.extend(unlisted);
    found
}

/// Compares the three lists.
fn coverage_faults(required: &Found, uncovered: &Found, covered: &Found) -> Vec<String> {
    let mut faults = Vec::new();
    for id in required.ids.keys() {
        match (uncovered.ids.get(id), covered.ids.get(id)) {
            (None, None) => faults.push(format!("{id} has no test and no line in {UNCOVERED}")),
            (Some(_), Some(tests)) => {
                let shown = tests[..tests.len().min(MAX_PLACES_SHOWN)].join(", ");
                faults.push(format!(
                    "{id} is covered by {shown} ({} in all): take it out of {UNCOVERED}",
                    tests.len()
                ));
            }
            _ => {}
        }
    }
    for list in [uncovered, covered] {
        let unknown = list
            .ids
            .iter()
            .filter(|(id, _)| !required.ids.contains_key(*id));
        faults
            .extend(unknown.map(|(id, places)| format!("{}: unknown id {id}", places.join(", "))));
    }
    faults
}

fn all_faults(files: &[TextFile]) -> Vec<String> {
    let list = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        entries(file.unwrap_or_else(|| panic!("{path} is missing")))
    };
    let (required, uncovered, covered) = (list(REQUIREMENTS), list(UNCOVERED), covered(files));
    let mut faults = count_faults(&required.ids);
    faults.extend(coverage_faults(&required, &uncovered, &covered));
    for found in [required, uncovered, covered] {
        faults.extend(found.faults);
    }
    faults
}

#[test]
fn every_requirement_has_a_test_or_a_reason() {
    let faults = all_faults(&text_files());
    assert!(
        faults.is_empty(),
        "{} faults\n  {}\n",
        faults.len(),
        faults.join("\n  ")
    );
}

fn file(path: &str, text: &str) -> TextFile {
    TextFile {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

fn names(found: &Found) -> Vec<&str> {
    found.ids.keys().map(String::as_str).collect()
}

#[test]
fn an_id_is_three_capitals_and_three_digits() {
    assert!(is_id("STR-061"));
    for bad in [
        "",
        "STR-61",
        "STR-0611",
        "str-061",
        "STR_061",
        "STR-06a",
        "ST\u{e9}-061",
    ] {
        assert!(!is_id(bad), "{bad}");
    }
}

#[test]
fn entries_are_read_and_bad_ones_told() {
    let found = entries(&file(
        "d.md",
        "# List\n- STR-001: a\ntext\n- STR-002:\n- x\n- STR-001: b\n",
    ));
    assert_eq!(names(&found), ["STR-001"]);
    let expected = [
        "d.md:4: not `- ID: text`",
        "d.md:5: not `- ID: text`",
        "STR-001 stands more than once: d.md:2, d.md:6",
    ];
    assert_eq!(found.faults, expected);
}

#[test]
fn a_list_that_is_not_whole_is_found() {
    let mut found = Found::default();
    for (family, count) in FAMILIES {
        for number in 1..=count {
            found.add(&format!("{family}-{number:03}"), String::new());
        }
    }
    assert_eq!(count_faults(&found.ids), Vec::<String>::new());
    found.ids.remove("SUB-018");
    let expected = ["209 ids, expected 210", "17 ids of SUB, expected 18"];
    assert_eq!(
        count_faults(&found.ids),
        expected.map(|rest| format!("{REQUIREMENTS}: {rest}"))
    );
}

#[test]
fn tests_name_what_they_cover() {
    let text = [
        "/// Says why.",
        "///",
        "/// covers: STR-001, STR-002",
        "#[test]",
        "fn a() {}",
        "mod m {",
        "    /// covers: STR-003",
        "    #[tokio::test(",
        "        flavor = \"x\",",
        "    )]",
        "    async fn b() {}",
        "}",
        "proptest! {",
        "    /// covers: STR-004",
        "    #[test]",
        "    fn c(x in 0..9) {}",
        "}",
        "/// covers nothing",
        "fn d() {}",
    ];
    let found = covered(&[file("a/src/lib.rs", &text.join("\n"))]);
    assert_eq!(names(&found), ["STR-001", "STR-002", "STR-003", "STR-004"]);
    assert_eq!(found.ids["STR-003"], ["a/src/lib.rs:7"]);
    assert!(found.faults.is_empty(), "{:?}", found.faults);
}

#[test]
fn conformance_cases_name_what_they_cover() {
    let case = "/// covers: STR-001\npub fn a(engine: &dyn Storage) {}\n";
    let listed = format!("{case}const CASES: &[Case] = &[case(a)];\n");
    for path in ["a/src/testing/cases.rs", "a/src/store/conformance.rs"] {
        let found = covered(&[file(path, &listed)]);
        assert_eq!(names(&found), ["STR-001"]);
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        let forgotten = covered(&[file(path, case), file("a/src/lib.rs", "a")]);
        let fault = format!("{path}:1: no list of cases names `a`");
        assert_eq!(forgotten.faults, [fault]);
    }
    let elsewhere = covered(&[file("a/src/store.rs", &listed)]);
    assert!(elsewhere.ids.is_empty());
    let fault = "a/src/store.rs:1: `covers:` stands above something that is no test";
    assert_eq!(elsewhere.faults, [fault]);
}

#[test]
fn a_list_of_cases_names_ids_as_data() {
    let text = "const A: [u8; 2] = [1, 2];\ncase(\"a\", &[\"STR-001\", \"STR-002\"], a),\n\
                Case { covers: &[\n\"STR-003\",\n], run: b },\ncase(\"c\", &[\"STR-004\", \"x\", \"STR-004\"], c)";
    let found = covered(&[
        file("a/src/testing/list.rs", text),
        file("a/src/list.rs", text),
    ]);
    assert_eq!(names(&found), ["STR-001", "STR-002", "STR-003", "STR-004"]);
    assert_eq!(found.ids["STR-003"], ["a/src/testing/list.rs:3"]);
    let expected = ["6: not an id: `x`", "6: one test names an id twice"];
    assert_eq!(
        found.faults,
        expected.map(|rest| format!("a/src/testing/list.rs:{rest}"))
    );
}

#[test]
fn bad_covers_are_told() {
    // Each line begins with a quote, so that this sample covers nothing itself.
    let text = [
        "/// covers: STR-001, 2",
        "#[test]",
        "fn a() {}",
        "/// covers: STR-001, STR-002, STR-003",
        "/// covers: STR-004, STR-001",
        "#[test]",
        "fn b() {}",
        "// covers: STR-005",
        "#[test]",
        "fn c() {}",
        "/// covers: STR-006",
        "",
        "#[test]",
        "fn d() {}",
        "/// covers: STR-007",
        "#[test]",
        "struct E;",
        "/// covers: STR-008",
    ];
    let found = covered(&[file("a.rs", &text.join("\n"))]);
    assert_eq!(names(&found), ["STR-001", "STR-002", "STR-003", "STR-004"]);
    let expected = [
        "a.rs:1: not an id: `2`",
        "a.rs:4: one test covers 5 ids, the most is 4",
        "a.rs:4: one test names an id twice",
        "a.rs:8: `covers:` belongs in the doc comment of a test",
        "a.rs:11: `covers:` stands above something that is no test",
        "a.rs:15: `covers:` stands above something that is no test",
        "a.rs:18: `covers:` stands above something that is no test",
    ];
    assert_eq!(found.faults, expected);
}

#[test]
fn scenarios_name_ids_on_the_line_of_the_assertion() {
    let text = "# STR-001 in words\nexpect bob reads hello  # STR-002 (STR-003)\nsend X-1\n";
    let found = covered(&[
        file("tests/scenarios/a.txt", text),
        file("docs/a.txt", text),
    ]);
    assert_eq!(names(&found), ["STR-002", "STR-003"]);
    assert_eq!(found.ids["STR-002"], ["tests/scenarios/a.txt:2"]);
}

#[test]
fn every_gap_and_every_overlap_is_told_at_once() {
    let requirements = "- STR-001: a\n- STR-002: b\n- STR-003: c\n- STR-004: d\n";
    let required = entries(&file(REQUIREMENTS, requirements));
    let uncovered = entries(&file(
        UNCOVERED,
        "- STR-001: later\n- STR-002: later\n- XYZ-001: later\n",
    ));
    let covered = covered(&[file(
        "a.rs",
        "/// covers: STR-002, STR-003, XYZ-002\n#[test]\nfn a() {}\n",
    )]);
    let expected = [
        "STR-002 is covered by a.rs:1 (1 in all): take it out of docs/uncovered.md",
        "STR-004 has no test and no line in docs/uncovered.md",
        "docs/uncovered.md:3: unknown id XYZ-001",
        "a.rs:1: unknown id XYZ-002",
    ];
    assert_eq!(coverage_faults(&required, &uncovered, &covered), expected);
}
