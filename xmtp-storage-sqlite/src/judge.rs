//! Decides from what was read whether a database opens, and if not, why (EXT-003).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};
use xmtp_core::storage::schema::SCHEMA_VERSION;
use xmtp_core::storage::{DatabaseKey, OpenError};

use crate::connection::{APPLICATION_ID, PAGE_BYTES};
use crate::fault;
use crate::inspect::Evidence;
use crate::key::{self, SALT_MARK};
use crate::options::{io_error, untouched};
use crate::page::{PageCheck, is_random, is_tree};

/// How every plain SQLite database begins.
const PLAIN_MARK: &[u8; 16] = b"SQLite format 3\0";

/// What the first page says once the key has opened it.
struct Header {
    application: u32,
    schema: u32,
}

/// What opening without touching has shown.
enum Proof {
    /// The key opens the first page.
    Header(Header),
    /// The key opens the first page, and the file ends before the database does.
    Truncated,
    /// The key opens the first page, and the schema is damaged.
    Schema,
    /// The first page does not open.
    Nothing,
}

/// Answers `Ok` when an ordinary open will succeed and so may touch the files.
pub(crate) fn judge(
    path: &Path,
    key: Option<&DatabaseKey>,
    evidence: &Evidence,
) -> Result<(), OpenError> {
    // SQLite takes a file of one byte for an empty one, too.
    if evidence.length <= 1 {
        return Err(OpenError::Truncated);
    }
    let heads = [evidence.first_page(), &evidence.head];
    let plain = heads.iter().any(|head| head.starts_with(PLAIN_MARK));
    match key {
        Some(_) if plain => return Err(OpenError::NotEncrypted),
        None if !plain => return Err(without_key(evidence)),
        _ => {}
    }
    match prove(path, key, evidence)? {
        Proof::Header(header) => check(&header),
        Proof::Truncated => Err(OpenError::Truncated),
        Proof::Schema => Err(damaged("its schema")),
        Proof::Nothing => Err(match key {
            Some(key) => not_proved(key, evidence),
            None => first_page(evidence),
        }),
    }
}

fn check(header: &Header) -> Result<(), OpenError> {
    if header.application != APPLICATION_ID {
        return Err(OpenError::NotADatabase);
    }
    if header.schema > SCHEMA_VERSION {
        return Err(OpenError::NewerSchema {
            found: header.schema,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(())
}

/// Names the cause when there is no key and the file does not begin as a plain database.
fn without_key(evidence: &Evidence) -> OpenError {
    if has_mark(evidence) {
        return OpenError::KeyRequired;
    }
    if has_trees(evidence) {
        return first_page(evidence);
    }
    unmarked(
        evidence,
        "it is encrypted, needs its key and has a damaged first page, or it is not a database",
    )
}

/// Names the cause when the first page does not open with the key.
fn not_proved(key: &DatabaseKey, evidence: &Evidence) -> OpenError {
    let check = PageCheck::new(key);
    let authentic = |(number, page): (u32, &[u8])| check.authenticates(number, page);
    if evidence.head.starts_with(&key::salt(key)) || evidence.other_pages().any(authentic) {
        return first_page(evidence);
    }
    if has_mark(evidence) {
        return OpenError::WrongKey;
    }
    if has_trees(evidence) {
        return first_page(evidence);
    }
    unmarked(
        evidence,
        "the key is wrong and the first page is damaged, or it is not a database",
    )
}

fn unmarked(evidence: &Evidence, candidates: &'static str) -> OpenError {
    let pages = evidence.length.is_multiple_of(PAGE_BYTES as u64);
    let mut others = evidence.other_pages().peekable();
    if pages && others.peek().is_some() && others.all(|(_, page)| is_random(page)) {
        return OpenError::Undecided { candidates };
    }
    OpenError::NotADatabase
}

fn has_mark(evidence: &Evidence) -> bool {
    let heads = [evidence.first_page(), &evidence.head];
    heads.iter().any(|head| head.starts_with(SALT_MARK))
}

fn has_trees(evidence: &Evidence) -> bool {
    evidence
        .other_pages()
        .any(|(number, page)| number > 1 && is_tree(page))
}

/// Types a first page that does not open although the rest shows a database.
fn first_page(evidence: &Evidence) -> OpenError {
    if evidence.length < PAGE_BYTES as u64 {
        return OpenError::Truncated;
    }
    damaged("its first page")
}

fn damaged(what: &str) -> OpenError {
    OpenError::Damaged {
        detail: what.to_owned(),
    }
}

/// Opens the first page, wherever it is, and reads what it says.
fn prove(path: &Path, key: Option<&DatabaseKey>, evidence: &Evidence) -> Result<Proof, OpenError> {
    let proof = match &evidence.log {
        None => prove_file(path, key)?,
        Some(log) => {
            let copy = match &log.first {
                Some(page) => Some(FirstPage::copy(page, log.database_pages)?),
                None => None,
            };
            // The file alone is no consistent version: only its first page counts.
            let path = copy.as_ref().map_or(path, |copy| &copy.0);
            told(untouched(path, key).and_then(|connection| {
                connection.execute_batch("PRAGMA writable_schema = ON")?;
                header(&connection)
            }))?
            .map_or(Proof::Nothing, Proof::Header)
        }
    };
    match proof {
        Proof::Header(_) if evidence.lacks_pages() => Ok(Proof::Truncated),
        proof => Ok(proof),
    }
}

fn prove_file(path: &Path, key: Option<&DatabaseKey>) -> Result<Proof, OpenError> {
    let connection = told(untouched(path, key))?;
    let Some(connection) = connection else {
        return Ok(Proof::Nothing);
    };
    if let Some(header) = told(header(&connection))? {
        let schema = "SELECT count(*) FROM sqlite_schema";
        let read = told(connection.query_row(schema, [], |_| Ok(())))?;
        return Ok(read.map_or(Proof::Schema, |()| Proof::Header(header)));
    }
    // SQLite refuses a file that is shorter than its first page says, unless told not to.
    let lenient = || {
        let connection = untouched(path, key)?;
        connection.execute_batch("PRAGMA writable_schema = ON")?;
        header(&connection)
    };
    Ok(told(lenient())?.map_or(Proof::Nothing, |_| Proof::Truncated))
}

fn header(connection: &Connection) -> rusqlite::Result<Header> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    Ok(Header {
        application: number("PRAGMA application_id")?.cast_unsigned(),
        schema: number("PRAGMA user_version")?.cast_unsigned(),
    })
}

/// Takes an answer about the bytes as `None`, and passes other failures on.
fn told<T>(answer: rusqlite::Result<T>) -> Result<Option<T>, OpenError> {
    match answer {
        Ok(told) => Ok(Some(told)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => {
                Ok(None)
            }
            _ => Err(OpenError::Io {
                action: "read the database",
                detail: fault::detail(&error),
            }),
        },
    }
}

/// A copy of a first page from the log, in a temporary file of the database's size; removed when
/// dropped. It is as encrypted as it was.
struct FirstPage(PathBuf);

impl FirstPage {
    fn copy(page: &[u8], pages: u32) -> Result<Self, OpenError> {
        let number = getrandom::u64().map_err(|error| OpenError::Io {
            action: "draw a random number",
            detail: error.to_string(),
        })?;
        let copy = Self(std::env::temp_dir().join(format!("xmtp-first-page-{number:016x}")));
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&copy.0)?;
            file.write_all(page)?;
            file.set_len(u64::from(pages) * PAGE_BYTES as u64)
        };
        write().map_err(|error| io_error("copy a page to a temporary file", &error))?;
        Ok(copy)
    }
}

impl Drop for FirstPage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
