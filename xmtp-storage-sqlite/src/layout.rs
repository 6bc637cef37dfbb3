//! How a table lies in the file, and the statements that reach it.
//!
//! A table is named by its number, which the file format never reuses; its name is a comment in
//! the schema, for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use xmtp_core::storage::{KeyRange, Layout, Order, StorageError, TableId, TableInfo};

/// The statements of one table.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) info: TableInfo,
    pub(crate) create: String,
    pub(crate) get: String,
    pub(crate) put: String,
    pub(crate) new: String,
    pub(crate) delete: String,
    scan: [String; 4],
    clear: [String; 2],
}

/// The statements of all opened tables.
pub(crate) type Tables = BTreeMap<TableId, Arc<Statements>>;

/// Finds a table that was opened.
pub(crate) fn find(tables: &Tables, id: TableId) -> Result<&Statements, StorageError> {
    tables
        .get(&id)
        .map(|table| &**table)
        .ok_or_else(|| StorageError::Io {
            action: "find a table",
            detail: "the table was not opened".to_owned(),
        })
}

/// A key range in the terms of a layout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Span<'a> {
    /// No key lies in it.
    Empty,
    /// Numbers from the first to the last, both included.
    Numbers(i64, i64),
    /// Keys from the first to before the second.
    Keys(&'a [u8], Option<&'a [u8]>),
}

impl Statements {
    pub(crate) fn new(info: TableInfo) -> Self {
        let name = format!("t{}", info.id.0);
        let (key, columns, suffix) = match info.layout {
            Layout::Numbered => ("id", "id INTEGER PRIMARY KEY, value BLOB NOT NULL", ""),
            Layout::Large => ("key", "key BLOB NOT NULL UNIQUE, value BLOB NOT NULL", ""),
            Layout::Small => (
                "key",
                "key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL",
                " WITHOUT ROWID",
            ),
        };
        let bounded = match info.layout {
            Layout::Numbered => "id BETWEEN ?1 AND ?2",
            Layout::Large | Layout::Small => "key >= ?1 AND key < ?2",
        };
        let scan = |range: &str, order: &str| {
            format!("SELECT {key}, value FROM {name} WHERE {range} ORDER BY {key} {order}")
        };
        let plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
        let comment: String = info.name.chars().filter(plain).collect();
        let insert = format!("INSERT INTO {name} ({key}, value) VALUES (?1, ?2)");
        let open = format!("{key} >= ?1");
        Self {
            create: format!("CREATE TABLE {name} /* {comment} */ ({columns}){suffix}"),
            get: format!("SELECT value FROM {name} WHERE {key} = ?1"),
            put: format!("{insert} ON CONFLICT ({key}) DO UPDATE SET value = excluded.value"),
            delete: format!("DELETE FROM {name} WHERE {key} = ?1"),
            new: insert,
            scan: [
                scan(bounded, "ASC"),
                scan(bounded, "DESC"),
                scan(&open, "ASC"),
                scan(&open, "DESC"),
            ],
            clear: [
                format!("DELETE FROM {name} WHERE {bounded}"),
                format!("DELETE FROM {name} WHERE {open}"),
            ],
            info,
        }
    }

    /// Answers the table's name in the file.
    pub(crate) fn stored_name(&self) -> String {
        format!("t{}", self.info.id.0)
    }

    /// Tells whether a stored definition lays the table out as this one does.
    pub(crate) fn matches(&self, stored: &str) -> bool {
        let columns = |text: &str| text.find('(').map(|start| text[start..].to_owned());
        columns(&self.create) == columns(stored)
    }

    pub(crate) fn scan(&self, span: &Span<'_>, order: Order) -> &str {
        let open = matches!(span, Span::Keys(_, None));
        let down = order == Order::Descending;
        &self.scan[usize::from(open) * 2 + usize::from(down)]
    }

    pub(crate) fn clear(&self, span: &Span<'_>) -> &str {
        &self.clear[usize::from(matches!(span, Span::Keys(_, None)))]
    }

    /// Puts a key range into the terms of the layout.
    pub(crate) fn span<'a>(&self, range: KeyRange<'a>) -> Span<'a> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Span::Empty;
        }
        match self.info.layout {
            Layout::Numbered => numbers(range),
            Layout::Large | Layout::Small => Span::Keys(range.start, range.end),
        }
    }
}

/// Reads a key of a `Numbered` table; `None` for one that no such table can hold.
pub(crate) fn number(key: &[u8]) -> Option<i64> {
    let bytes: [u8; 8] = key.try_into().ok()?;
    i64::try_from(u64::from_be_bytes(bytes)).ok()
}

fn numbers(range: KeyRange<'_>) -> Span<'_> {
    let Some(first) = lowest(range.start) else {
        return Span::Empty;
    };
    let last = match range.end.map(lowest) {
        None | Some(None) => i64::MAX,
        Some(Some(0)) => return Span::Empty,
        Some(Some(end)) => end - 1,
    };
    if first > last {
        return Span::Empty;
    }
    Span::Numbers(first, last)
}

/// Answers the lowest number whose key is not below `bound`; `None` when there is none.
fn lowest(bound: &[u8]) -> Option<i64> {
    let mut head = [0; 8];
    let length = bound.len().min(8);
    head[..length].copy_from_slice(&bound[..length]);
    let number = i64::try_from(u64::from_be_bytes(head)).ok()?;
    // A longer bound comes after the key that is its first eight bytes.
    if bound.len() > 8 {
        return number.checked_add(1);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(layout: Layout) -> Statements {
        Statements::new(TableInfo {
            id: TableId(7),
            name: "seven",
            layout,
        })
    }

    #[test]
    fn a_definition_matches_itself_and_no_other_layout() {
        let layouts = [Layout::Numbered, Layout::Large, Layout::Small];
        for one in layouts {
            for other in layouts {
                let stored = table(other).create;
                assert_eq!(table(one).matches(&stored), one == other);
            }
        }
    }

    fn bound() -> impl Strategy<Value = Vec<u8>> {
        let edge = prop_oneof![
            Just(0u8),
            Just(1),
            Just(0x7f),
            Just(0x80),
            Just(0xff),
            any::<u8>()
        ];
        prop::collection::vec(edge, 0..11)
    }

    proptest! {
        /// Range ends of other lengths than eight bytes fall where byte order puts them.
        #[test]
        fn a_span_holds_the_numbers_whose_keys_lie_in_the_range(
            start in bound(), end in prop::option::of(bound()), number in 0..=i64::MAX, near in -1i64..=1,
        ) {
            let range = KeyRange { start: &start, end: end.as_deref() };
            let span = table(Layout::Numbered).span(range);
            let around = lowest(&start).and_then(|low| low.checked_add(near));
            for number in [Some(number), around, Some(0), Some(i64::MAX)].into_iter().flatten() {
                if number < 0 { continue; }
                let key = number.to_be_bytes();
                let inside = key[..] >= start[..] && end.as_ref().is_none_or(|end| key[..] < end[..]);
                let held = matches!(span, Span::Numbers(first, last) if (first..=last).contains(&number));
                prop_assert_eq!(inside, held, "{} in {:?}", number, span);
            }
        }
    }
}
