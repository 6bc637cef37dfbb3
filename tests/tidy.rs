//! Holds the house to its plan: who may depend on whom, what may not stand where, and how a file
//! looks.
//!
//! Each rule is one checker over plain data and one test that runs it over the workspace. Beside it
//! stands a test that shows the checker a bad sample, because a rule that cannot fail proves nothing.
//! The rules are in `house/`; the exceptions are here, each with its reason, and an exception that is
//! no longer needed fails as well.

#[path = "house/crates.rs"]
mod crates;
#[path = "house/files.rs"]
mod files;
#[path = "house/shape.rs"]
mod shape;
#[path = "house/source.rs"]
mod source;
#[path = "house/words.rs"]
mod words;

use files::TextFile;

/// One exception to a rule over words: the file or folder, the word, and why it may stand there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    pub(crate) place: &'static str,
    pub(crate) word: &'static str,
    pub(crate) reason: &'static str,
}

/// Exceptions to `RUNTIME_ONLY`.
const RUNTIME_ALLOWED: &[Allowed] = &[
    Allowed {
        place: "xmtp-core/src/testing/conformance/",
        word: "std::thread",
        reason: "cases about exclusion and snapshots need threads that truly run at the same time",
    },
    Allowed {
        place: "xmtp-core/src/testing/conformance/",
        word: "Instant::now",
        reason: "a writer's patience is real time, and so are the deadlines of threads that wait",
    },
];

/// Exceptions to the rule that only a `store.rs` names a table.
const TABLE_ALLOWED: &[Allowed] = &[];

/// Exceptions to the rule that no test waits for time to pass.
const SLEEP_ALLOWED: &[Allowed] = &[
    Allowed {
        place: "xmtp-core/src/sync/tests.rs",
        word: "sleep(",
        reason: "the simulated runtime's virtual time, which costs none",
    },
    Allowed {
        place: "xmtp-core/src/testing/scripted",
        word: "sleep(",
        reason: "the simulated runtime's virtual time, which costs none",
    },
];

/// Makes a file out of nothing, for the samples.
fn file(path: &str, text: &str) -> TextFile {
    TextFile {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

/// Fails with every fault of a rule at once.
fn report(rule: &str, faults: Vec<String>) {
    assert!(
        faults.is_empty(),
        "{rule}: {} faults\n  {}\n",
        faults.len(),
        faults.join("\n  ")
    );
}
