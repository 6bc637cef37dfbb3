//! Where a replay goes on: a database and a delivery number, as one opaque text.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use xmtp_proto::DatabaseId;

use super::error::StreamError;
use super::store;
use crate::storage::Read;

/// What every cursor of this version begins with.
const PREFIX: &str = "xdc1_";
const NUMBER_LEN: usize = size_of::<u64>();
const CHECK_LEN: usize = 4;
const BODY_LEN: usize = DatabaseId::LEN + NUMBER_LEN;
const TEXT_LEN: usize = PREFIX.len() + 2 * (BODY_LEN + CHECK_LEN);

/// Resumes a replay strictly after one message (STR-098).
///
/// # Behavior
/// - Prints as `xdc1_` and hex digits, and reads that text only; a number, a sequence id or a
///   time is no cursor.
/// - Reading it off a message acknowledges nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeliveryCursor {
    database: DatabaseId,
    number: u64,
}

impl DeliveryCursor {
    pub(super) const fn new(database: DatabaseId, number: u64) -> Self {
        Self { database, number }
    }

    /// Makes the cursor before every message of a database.
    pub const fn beginning(database: DatabaseId) -> Self {
        Self::new(database, 0)
    }

    /// Answers the database that the cursor is of.
    pub const fn database(&self) -> DatabaseId {
        self.database
    }

    /// Answers the delivery number that it resumes after.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Checks the cursor against a database and answers its number.
    pub(super) fn check(
        &self,
        database: DatabaseId,
        snapshot: &(impl Read + ?Sized),
    ) -> Result<u64, StreamError> {
        if self.database != database {
            return Err(StreamError::WrongDatabase {
                expected: database,
                found: self.database,
            });
        }
        if self.number > store::newest_number(snapshot)? {
            return Err(StreamError::AheadOfDatabase);
        }
        Ok(self.number)
    }

    fn body(&self) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[..DatabaseId::LEN].copy_from_slice(self.database.as_bytes());
        body[DatabaseId::LEN..].copy_from_slice(&self.number.to_be_bytes());
        body
    }
}

impl fmt::Debug for DeliveryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeliveryCursor({}:{})",
            self.database.short(),
            self.number
        )
    }
}

impl fmt::Display for DeliveryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        f.write_str(PREFIX)?;
        f.write_str(&hex::encode(body))?;
        f.write_str(&hex::encode(checksum(&body)))
    }
}

impl FromStr for DeliveryCursor {
    type Err = StreamError;

    fn from_str(text: &str) -> Result<Self, StreamError> {
        let digits = text.strip_prefix(PREFIX).ok_or(StreamError::Malformed)?;
        let is_canonical = digits.bytes().all(|byte| !byte.is_ascii_uppercase());
        if !is_canonical || text.len() != TEXT_LEN {
            return Err(StreamError::Malformed);
        }
        let mut bytes = [0; BODY_LEN + CHECK_LEN];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| StreamError::Malformed)?;
        let (body, check) = bytes.split_at(BODY_LEN);
        if check != checksum(body) {
            return Err(StreamError::Malformed);
        }
        let (database, number) = body.split_at(DatabaseId::LEN);
        let database = DatabaseId::try_from(database).map_err(|_| StreamError::Malformed)?;
        let number = number.try_into().map_err(|_| StreamError::Malformed)?;
        Ok(Self::new(database, u64::from_be_bytes(number)))
    }
}

fn checksum(body: &[u8]) -> [u8; CHECK_LEN] {
    let digest = Sha256::new()
        .chain_update(PREFIX)
        .chain_update(body)
        .finalize();
    let mut check = [0; CHECK_LEN];
    check.copy_from_slice(&digest[..CHECK_LEN]);
    check
}
