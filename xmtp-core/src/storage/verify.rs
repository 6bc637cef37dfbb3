//! Checks the rules that hold across tables; every test runs it at its end.
//!
//! A rule is named, so that a broken one says which promise was broken. Nothing here names a row:
//! a fault carries positions and counts, never keys or payloads.

mod messages;
mod outgoing;
mod progress;

use std::fmt;

use super::{All, Database, Key, Order, Page, Read, Snapshot, StorageError, Table, Value};

/// Most rows read at once.
const PAGE_ROWS: u32 = 256;
/// Most bytes read at once, a single larger row excepted.
const PAGE_BYTES: u32 = 4 * 1024 * 1024;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rule's name.
    pub rule: &'static str,
    /// What was found, free of keys and payloads.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// Checks every rule over one committed version; answers all faults found.
///
/// A row that cannot be read is a fault of the rule `readable`.
pub fn verify(snapshot: &dyn Snapshot) -> Result<(), Vec<Fault>> {
    let mut faults = Faults::default();
    for check in [progress::check, messages::check, outgoing::check] {
        if let Err(error) = check(snapshot, &mut faults) {
            faults.add("readable", error);
        }
    }
    if faults.found.is_empty() {
        Ok(())
    } else {
        Err(faults.found)
    }
}

/// Checks every rule over the last committed version of a database.
pub fn verify_database(database: &Database) -> Result<(), Vec<Fault>> {
    let checked = database.read(|snapshot| Ok::<_, StorageError>(verify(snapshot)));
    checked.unwrap_or_else(|error| {
        let mut faults = Faults::default();
        faults.add("readable", error);
        Err(faults.found)
    })
}

#[derive(Default)]
struct Faults {
    found: Vec<Fault>,
}

impl Faults {
    fn add(&mut self, rule: &'static str, detail: impl fmt::Display) {
        self.found.push(Fault {
            rule,
            detail: detail.to_string(),
        });
    }

    fn expect(&mut self, holds: bool, rule: &'static str, detail: impl fmt::Display) {
        if !holds {
            self.add(rule, detail);
        }
    }
}

/// Runs `f` over every row of a table, page by page.
fn each<K: Key + Clone, V: Value>(
    snapshot: &dyn Snapshot,
    table: Table<K, V>,
    mut f: impl FnMut(K, V) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let page = Page {
        rows: PAGE_ROWS,
        bytes: PAGE_BYTES,
        order: Order::Ascending,
    };
    let mut after = None;
    loop {
        let found = snapshot.page(table, &All, after.as_ref(), page)?;
        after = found.rows.last().map(|(key, _)| key.clone());
        for (key, value) in found.rows {
            f(key, value)?;
        }
        if !found.more {
            return Ok(());
        }
    }
}
