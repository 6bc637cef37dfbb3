//! Reads on one connection inside a transaction.

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, Row, ToSql};
use xmtp_core::storage::{KeyRange, Layout, Page, Rows, StorageError};

use crate::fault;
use crate::layout::{Span, Statements, number};

/// Reads several values, in the order of `keys`.
pub(crate) fn get_many(
    connection: &Connection,
    table: &Statements,
    keys: &[&[u8]],
) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
    let mut statement = prepare(connection, table, &table.get)?;
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        values.push(get_one(&mut statement, table, key)?);
    }
    Ok(values)
}

/// Reads one value.
pub(crate) fn get(
    connection: &Connection,
    table: &Statements,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StorageError> {
    get_one(&mut prepare(connection, table, &table.get)?, table, key)
}

fn get_one(
    statement: &mut CachedStatement<'_>,
    table: &Statements,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StorageError> {
    let number = match table.info.layout {
        Layout::Numbered => match number(key) {
            None => return Ok(None),
            some => some,
        },
        Layout::Large | Layout::Small => None,
    };
    let key: &dyn ToSql = match &number {
        Some(number) => number,
        None => &key,
    };
    let mut rows = statement.query([key]).map_err(failed(table))?;
    match rows.next().map_err(failed(table))? {
        Some(row) => Ok(Some(blob(row, 0, table, "value")?.to_vec())),
        None => Ok(None),
    }
}

/// Reads one page of a range.
pub(crate) fn scan(
    connection: &Connection,
    table: &Statements,
    range: KeyRange<'_>,
    page: Page,
) -> Result<Rows, StorageError> {
    let mut found = Rows::new();
    let span = table.span(range);
    let mut statement = prepare(connection, table, table.scan(&span, page.order))?;
    let mut rows = match &span {
        Span::Empty => return Ok(found),
        Span::Numbers(first, last) => statement.query([first, last]),
        Span::Keys(start, Some(end)) => statement.query([start, end]),
        Span::Keys(start, None) => statement.query([start]),
    }
    .map_err(failed(table))?;
    while let Some(row) = rows.next().map_err(failed(table))? {
        let number;
        let key = match table.info.layout {
            Layout::Numbered => {
                number = integer(row, table)?.to_be_bytes();
                &number[..]
            }
            Layout::Large | Layout::Small => blob(row, 0, table, "key")?,
        };
        let value = blob(row, 1, table, "value")?;
        let passed = found.bytes() + key.len() + value.len() > page.bytes as usize;
        let full = found.len() >= page.rows as usize || passed;
        if full && !found.is_empty() {
            found.more = true;
            break;
        }
        found.push(key, value);
    }
    Ok(found)
}

pub(crate) fn prepare<'c>(
    connection: &'c Connection,
    table: &Statements,
    sql: &str,
) -> Result<CachedStatement<'c>, StorageError> {
    connection.prepare_cached(sql).map_err(failed(table))
}

fn failed(table: &Statements) -> impl Fn(rusqlite::Error) -> StorageError {
    let name = table.info.name;
    move |error| fault::table("read", name, &error)
}

fn blob<'r>(
    row: &'r Row<'_>,
    column: usize,
    table: &Statements,
    what: &'static str,
) -> Result<&'r [u8], StorageError> {
    match row.get_ref(column) {
        Ok(ValueRef::Blob(bytes)) => Ok(bytes),
        _ => Err(corrupt(table, what)),
    }
}

fn integer(row: &Row<'_>, table: &Statements) -> Result<u64, StorageError> {
    match row.get_ref(0) {
        Ok(ValueRef::Integer(number)) => u64::try_from(number).map_err(|_| corrupt(table, "key")),
        _ => Err(corrupt(table, "key")),
    }
}

fn corrupt(table: &Statements, what: &'static str) -> StorageError {
    StorageError::Corrupt {
        table: table.info.name,
        what,
    }
}
