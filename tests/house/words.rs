//! What may not stand where: rules of absence over the code, comments and literals left out.

use crate::files::{TextFile, has_extension, text_files};
use crate::source::{code_only, has_word, lines_with, test_only, used_paths};
use crate::{Allowed, RUNTIME_ALLOWED, SLEEP_ALLOWED, TABLE_ALLOWED, file, report};

/// Names core's sources never hold, in the same order and meaning.
const NAMES_FOREIGN_TO_CORE: [&str; 9] = [
    "openmls", "openmls_", "rusqlite", "sled::", "tonic", "tonic_", "hyper", "hyper_", "hyper::",
];

/// Time, tasks and randomness that belong to the `Runtime` alone.
const RUNTIME_ONLY: [&str; 12] = [
    "tokio::spawn",
    "tokio::time",
    "tokio::task::spawn",
    "tokio::task::spawn_local",
    "spawn_blocking",
    "std::thread",
    "block_on",
    "Instant::now",
    "SystemTime::now",
    "OsRng",
    "thread_rng",
    "getrandom::",
];

/// The type of what a caught panic leaves, which has no thread in it.
const CAUGHT_PANIC: &str = "std::thread::Result";

/// Where the rule of `RUNTIME_ONLY` holds.
const RUNTIME_FREE: [&str; 2] = ["xmtp-core/src/", "xmtp-mls/src/"];

/// The one folder in which it does not.
const RUNTIME_HOME: &str = "xmtp-core/src/runtime";

/// Finds words in the code of the files that `holds` selects, written out or named by a `use`.
fn word_faults(
    files: &[TextFile],
    holds: impl Fn(&str) -> bool,
    words: &[&str],
    allowed: &[Allowed],
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut needed = vec![false; allowed.len()];
    for file in files
        .iter()
        .filter(|file| has_extension(&file.path, &["rs"]) && holds(&file.path))
    {
        let code = code_only(&file.text).replace(CAUGHT_PANIC, "");
        let paths = used_paths(&code);
        for word in words {
            let mut lines = lines_with(&code, word);
            // A `use` names its last part without what follows it.
            let last = word.trim_end_matches("::");
            lines.extend(
                paths
                    .iter()
                    .filter(|(_, path)| has_word(path, last))
                    .map(|(line, _)| *line),
            );
            lines.sort_unstable();
            lines.dedup();
            let pass = |entry: &Allowed| entry.word == *word && file.path.starts_with(entry.place);
            match allowed.iter().position(pass) {
                Some(index) => needed[index] |= !lines.is_empty(),
                None => faults.extend(
                    lines
                        .iter()
                        .map(|line| format!("{}:{line}: {word}", file.path)),
                ),
            }
        }
    }
    faults.extend(unneeded(allowed, &needed));
    faults
}

fn unneeded(allowed: &[Allowed], needed: &[bool]) -> Vec<String> {
    let idle = allowed
        .iter()
        .zip(needed)
        .filter(|(entry, needed)| !**needed || entry.reason.is_empty());
    idle.map(|(entry, _)| format!("exception not needed, or without a reason: {entry:?}"))
        .collect()
}

fn runtime_free(path: &str) -> bool {
    RUNTIME_FREE.iter().any(|place| path.starts_with(place)) && !path.starts_with(RUNTIME_HOME)
}

#[test]
fn time_tasks_and_randomness_come_from_the_runtime() {
    report(
        "runtime only",
        word_faults(&text_files(), runtime_free, &RUNTIME_ONLY, RUNTIME_ALLOWED),
    );
}

#[test]
fn time_taken_elsewhere_is_found() {
    let text = "//! tokio::time in words is fine\nuse tokio::{sync::mpsc, time};\nuse std::{fmt, thread};\n\
                fn f() -> std::thread::Result<()> { let a = Instant::now(); let s = \"OsRng\"; rt.block_on(x); self.now(); }\n";
    let found = word_faults(
        &[file("xmtp-mls/src/a.rs", text)],
        runtime_free,
        &RUNTIME_ONLY,
        &[],
    );
    let expected = [
        "2: tokio::time",
        "3: std::thread",
        "4: block_on",
        "4: Instant::now",
    ];
    assert_eq!(
        found,
        expected.map(|rest| format!("xmtp-mls/src/a.rs:{rest}"))
    );
    for place in [
        "xmtp-core/src/runtime/native.rs",
        "xmtp-core/src/runtime.rs",
        "xmtp-backend/src/a.rs",
    ] {
        assert!(word_faults(&[file(place, text)], runtime_free, &RUNTIME_ONLY, &[]).is_empty());
    }
}

#[test]
fn an_exception_must_be_needed_and_explained() {
    let entry = Allowed {
        place: "xmtp-core/src/a.rs",
        word: "OsRng",
        reason: "it is shown",
    };
    let check = |text: &str, entry| {
        word_faults(
            &[file("xmtp-core/src/a.rs", text)],
            runtime_free,
            &RUNTIME_ONLY,
            &[entry],
        )
        .len()
    };
    assert_eq!(check("OsRng", entry), 0);
    assert_eq!(check("other", entry), 1);
    assert_eq!(
        check(
            "OsRng",
            Allowed {
                reason: "",
                ..entry
            }
        ),
        1
    );
}

#[test]
fn core_names_no_library_that_it_must_work_without() {
    let core = |path: &str| path.starts_with("xmtp-core/");
    report(
        "names in core",
        word_faults(&text_files(), core, &NAMES_FOREIGN_TO_CORE, &[]),
    );
}

#[test]
fn a_library_named_in_core_is_found() {
    let text =
        "// like tonic\nuse openmls_traits::X;\nlet a = sled::open(); let unsettled = hyperbola;";
    let found = word_faults(
        &[file("xmtp-core/src/a.rs", text)],
        |_| true,
        &NAMES_FOREIGN_TO_CORE,
        &[],
    );
    assert_eq!(
        found,
        [
            "xmtp-core/src/a.rs:2: openmls_",
            "xmtp-core/src/a.rs:3: sled::"
        ]
    );
}

/// Tests look at rows to prove what is stored; everything else asks a room's store.
fn names_no_table(path: &str) -> bool {
    let place = path.strip_prefix("xmtp-core/src/");
    let is_test = ["testing/", "/tests/", "tests.rs"]
        .iter()
        .any(|part| path.contains(part));
    place.is_some_and(|rest| {
        !is_test && !rest.starts_with("storage/") && !rest.ends_with("store.rs")
    })
}

/// The names of the tables that `schema.rs` declares.
fn table_names(schema: &str) -> Vec<String> {
    let code = code_only(schema);
    let declared = code
        .split("pub const ")
        .skip(1)
        .filter_map(|rest| rest.split_once(": Table<"));
    declared
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.contains([' ', ';', '=']))
        .collect()
}

fn table_faults(files: &[TextFile], allowed: &[Allowed]) -> Vec<String> {
    let schema = files
        .iter()
        .find(|file| file.path == "xmtp-core/src/storage/schema.rs");
    let tables = schema
        .map(|file| table_names(&file.text))
        .unwrap_or_default();
    let mut faults = word_faults(files, names_no_table, &["schema::"], allowed);
    for file in files.iter().filter(|file| names_no_table(&file.path)) {
        let code = code_only(&file.text);
        let excused = allowed
            .iter()
            .any(|entry| file.path.starts_with(entry.place));
        for table in &tables {
            // Another constant of that name in the same file is not the table.
            if excused || code.contains(&format!("const {table}:")) {
                continue;
            }
            let lines = lines_with(&code, table).into_iter();
            faults.extend(lines.map(|line| format!("{}:{line}: {table}", file.path)));
        }
    }
    faults
}

#[test]
fn only_a_store_names_a_table() {
    report("tables", table_faults(&text_files(), TABLE_ALLOWED));
}

#[test]
fn a_table_named_outside_a_store_is_found() {
    let schema = "/// Envelopes.\npub const PENDING: Table<K, V> = Table::new(1);\npub const ROWS: usize = 1;\n";
    let files = [
        file("xmtp-core/src/storage/schema.rs", schema),
        file(
            "xmtp-core/src/receipt/store.rs",
            "use crate::storage::schema::PENDING;",
        ),
        file(
            "xmtp-core/src/receipt/mod.rs",
            "use crate::storage::{Txn, schema};\ntxn.get(PENDING); ROWS;",
        ),
        file(
            "xmtp-core/src/send/mod.rs",
            "const PENDING: u8 = 1; f(PENDING);",
        ),
    ];
    let expected = [
        "xmtp-core/src/receipt/mod.rs:1: schema::",
        "xmtp-core/src/receipt/mod.rs:2: PENDING",
    ];
    assert_eq!(table_faults(&files, &[]), expected);
}

/// Whether the file is compiled for tests only: below a `tests` folder, or a module gated elsewhere.
fn is_test_file(path: &str, gated: &[String]) -> bool {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').any(|part| part == "tests")
        || gated
            .iter()
            .any(|stem| path == format!("{stem}.rs") || path.starts_with(&format!("{stem}/")))
}

/// The modules in files of their own that a `cfg(test)` gates, as paths without their extension.
fn gated_modules(files: &[TextFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files
        .iter()
        .filter(|file| has_extension(&file.path, &["rs"]))
    {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let home = match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
        };
        let modules = test_only(&code_only(&file.text)).modules;
        found.extend(modules.iter().map(|module| format!("{home}/{module}")));
    }
    found
}

fn sleep_faults(files: &[TextFile], allowed: &[Allowed]) -> Vec<String> {
    let gated = gated_modules(files);
    let mut faults = Vec::new();
    let mut needed = vec![false; allowed.len()];
    for file in files
        .iter()
        .filter(|file| has_extension(&file.path, &["rs"]))
    {
        let code = code_only(&file.text);
        let whole = is_test_file(&file.path, &gated);
        let ranges = test_only(&code).lines;
        for line in lines_with(&code, "sleep(") {
            if !whole
                && !ranges
                    .iter()
                    .any(|(from, to)| (*from..=*to).contains(&line))
            {
                continue;
            }
            match allowed
                .iter()
                .position(|entry| file.path.starts_with(entry.place))
            {
                Some(index) => needed[index] = true,
                None => faults.push(format!("{}:{line}: waits for time to pass", file.path)),
            }
        }
    }
    faults.extend(unneeded(allowed, &needed));
    faults
}

#[test]
fn no_test_waits_for_time_to_pass() {
    report(
        "waiting in tests",
        sleep_faults(&text_files(), SLEEP_ALLOWED),
    );
}

#[test]
fn a_test_that_sleeps_is_found() {
    let files = [
        file(
            "a/src/lib.rs",
            "fn f() { sleep(1) }\n#[cfg(test)]\nmod far;\n#[cfg(test)]\nmod near {\n sleep(1);\n}",
        ),
        file("a/src/far.rs", "thread::sleep(1); // sleep(2)"),
        file("a/src/far/deep.rs", "x.sleep(1)"),
        file("a/src/farther.rs", "sleep(1)"),
        file("a/tests/b.rs", "no_sleep(1);\nsleep(1);"),
    ];
    let places = [
        "a/src/lib.rs:6",
        "a/src/far.rs:1",
        "a/src/far/deep.rs:1",
        "a/tests/b.rs:2",
    ];
    assert_eq!(
        sleep_faults(&files, &[]),
        places.map(|place| format!("{place}: waits for time to pass"))
    );
    let entry = Allowed {
        place: "a/",
        word: "sleep(",
        reason: "it is shown",
    };
    assert!(sleep_faults(&files, &[entry]).is_empty());
    assert_eq!(sleep_faults(&files[3..4], &[entry]).len(), 1);
}
