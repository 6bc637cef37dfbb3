//! How a file looks: its length, its characters, its lints, and what must not be left in it.

use crate::files::{TextFile, has_extension, text_files};
use crate::source::code_only;
use crate::{file, report};

/// The longest Rust file: about six screens of a tall window.
const MAX_LINES: usize = 600;

fn length_faults(files: &[TextFile]) -> Vec<String> {
    let rust = files
        .iter()
        .filter(|file| has_extension(&file.path, &["rs"]));
    let lengths = rust.map(|file| (&file.path, file.text.lines().count()));
    let long = lengths.filter(|(_, lines)| *lines > MAX_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines, the most is {MAX_LINES}"))
        .collect()
}

#[test]
fn no_file_is_too_long() {
    report("file length", length_faults(&text_files()));
}

#[test]
fn a_long_file_is_found() {
    let files = [
        file("a.rs", &"x\n".repeat(601)),
        file("b.rs", &"x\n".repeat(600)),
        file("c.md", &"x\n".repeat(601)),
    ];
    assert_eq!(length_faults(&files), ["a.rs: 601 lines, the most is 600"]);
}

fn ascii_faults(files: &[TextFile]) -> Vec<String> {
    let bound =
        |path: &str| has_extension(path, &["rs", "toml", "proto", "sh"]) || path == ".ci/run";
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| bound(&file.path)) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(bad) = line.chars().find(|c| !c.is_ascii()) {
                faults.push(format!(
                    "{}:{}: {}",
                    file.path,
                    index + 1,
                    bad.escape_unicode()
                ));
            }
        }
    }
    faults
}

#[test]
fn sources_are_ascii() {
    report("ASCII sources", ascii_faults(&text_files()));
}

#[test]
fn a_character_beyond_ascii_is_found() {
    let files = [
        file("a.proto", "fine\nna\u{ef}ve"),
        file("a.md", "na\u{ef}ve"),
        file(".ci/run", "\u{2026}"),
    ];
    assert_eq!(
        ascii_faults(&files),
        ["a.proto:2: \\u{ef}", ".ci/run:1: \\u{2026}"]
    );
}

/// Crates that let unsafe code in. Bindings have to; nothing else does.
fn unsafe_faults(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.path.ends_with("Cargo.toml"))
    {
        let folder = file.path.trim_end_matches("Cargo.toml");
        let section = |name: &str| file.text.split_once(name).map_or("", |(_, rest)| rest);
        let until_next = |rest: &str| rest.split("\n[").next().unwrap_or("").to_owned();
        let root = files
            .iter()
            .find(|other| other.path == format!("{folder}src/lib.rs"));
        let forbids =
            root.is_some_and(|root| code_only(&root.text).contains("#![forbid(unsafe_code)]"));
        let inherits = until_next(section("\n[lints]")).contains("workspace = true");
        if !inherits && !forbids && folder != "xmtp-bindings/" && file.text.contains("[package]") {
            faults.push(format!("{}: unsafe code is not forbidden", file.path));
        }
        let workspace = until_next(section("\n[workspace.lints.rust]"));
        if folder.is_empty() && !workspace.contains("unsafe_code = \"forbid\"") {
            faults.push("Cargo.toml: the workspace lints do not forbid unsafe code".to_owned());
        }
    }
    faults
}

#[test]
fn every_crate_forbids_unsafe_code() {
    report("unsafe code", unsafe_faults(&text_files()));
}

#[test]
fn a_crate_that_lets_unsafe_code_in_is_found() {
    let top = "[workspace]\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n";
    let files = [
        file("Cargo.toml", top),
        file("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
        file(
            "b/Cargo.toml",
            "[package]\n\n[lints]\n[dependencies]\nx.workspace = true\n",
        ),
        file("c/Cargo.toml", "[package]\n"),
        file("c/src/lib.rs", "#![forbid(unsafe_code)]"),
        file("xmtp-bindings/Cargo.toml", "[package]\n"),
    ];
    assert_eq!(
        unsafe_faults(&files),
        ["b/Cargo.toml: unsafe code is not forbidden"]
    );
    let loose = [file(
        "Cargo.toml",
        "[workspace.lints.rust]\nunsafe_code = \"deny\"\n",
    )];
    assert_eq!(unsafe_faults(&loose).len(), 1);
}

/// Finds the paths of one machine in any text, and unfinished work in Rust code.
fn leftover_faults(files: &[TextFile]) -> Vec<String> {
    // Written in two parts, so that this file does not hold what it looks for.
    let anywhere = [
        ["/", "work/"].concat(),
        ["/", "root/"].concat(),
        ["FIX", "ME"].concat(),
    ];
    let in_code = ["todo!(", "unimplemented!(", "#[ignore"];
    let mut faults = Vec::new();
    for file in files {
        let code = if has_extension(&file.path, &["rs"]) {
            code_only(&file.text)
        } else {
            String::new()
        };
        let lines = file
            .text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line));
        let code_lines = code
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line));
        for (line, text) in lines {
            let bad = anywhere.iter().filter(|bad| text.contains(bad.as_str()));
            faults.extend(bad.map(|bad| format!("{}:{line}: {bad}", file.path)));
        }
        for (line, text) in code_lines {
            let bad = in_code.iter().filter(|bad| text.contains(**bad));
            faults.extend(bad.map(|bad| format!("{}:{line}: {bad}", file.path)));
        }
    }
    faults
}

#[test]
fn nothing_is_left_over() {
    report("leftovers", leftover_faults(&text_files()));
}

#[test]
fn a_leftover_is_found() {
    let path = ["/", "root/", "x"].concat();
    let files = [
        file("a.md", &format!("see {path}")),
        file(
            "a.rs",
            "// todo!(later)\nfn a() { todo!() }\n#[ignore = \"slow\"]\nfn b() {}\n",
        ),
    ];
    let expected = [
        format!("a.md:1: {}", ["/", "root/"].concat()),
        "a.rs:2: todo!(".into(),
        "a.rs:3: #[ignore".into(),
    ];
    assert_eq!(leftover_faults(&files), expected);
}
