//! The sled engine of the storage seam: one process, values sealed, keys readable.
//!
//! A database is a directory. One process has it open at a time; SQLite is the engine to choose
//! when several have to (an app and its extension, say).
//!
//! ```
//! use std::time::Duration;
//! use xmtp_core::storage::{Durability, Layout, Storage, TableId, TableInfo, WriteBatch};
//! use xmtp_core::storage::Change;
//! use xmtp_storage_sled::{DatabaseKey, SledStorage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let dir = home.path().join("bo");
//! let key = DatabaseKey::from_slice(&[7; 32])?; // 32 random bytes, kept by the system
//! let storage = SledStorage::options(&dir).key(key).open()?;
//!
//! let notes = TableId(900);
//! storage.open_tables(&[TableInfo { id: notes, name: "notes", layout: Layout::Small }])?;
//! let mut batch = WriteBatch::default();
//! let rows = &mut batch.tables.entry(notes).or_default().rows;
//! rows.insert(b"greeting".to_vec(), Change::Put(b"hello".to_vec()));
//! storage.writer(Duration::from_secs(5), Durability::Flushed)?.commit(&batch)?;
//!
//! assert_eq!(storage.snapshot()?.get(notes, b"greeting")?, Some(b"hello".to_vec()));
//! storage.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What to know before choosing it
//!
//! - **Keys stay readable.** Each value is sealed with XChaCha20-Poly1305; table numbers, keys,
//!   sizes and the number of commits are not.
//! - **Deleted values linger.** sled writes segments and reuses them later: a deleted or replaced
//!   value stays in the files for a while, sealed. [`Capability::erases_deleted`] says so.
//! - **Every commit flushes**, whatever its [`Durability`]: sled writes from a buffer in memory,
//!   and without a flush a killed process would lose commits.
//! - **A commit waits for open snapshots**, and a snapshot for a commit in progress: sled has no
//!   snapshots, so both share one lock. A commit that waits too long answers
//!   [`StorageError::Busy`]; so does one beside a snapshot of its own thread, after two seconds.
//! - **Opening proves the log on a copy** in the system's directory for temporary files, up to
//!   64 MiB: sled repairs what it opens, and a failed open must not change a byte.
//!
//! [`Capability::erases_deleted`]: xmtp_core::storage::Capability::erases_deleted
//! [`Durability`]: xmtp_core::storage::Durability
//! [`StorageError::Busy`]: xmtp_core::storage::StorageError::Busy

mod check;
mod header;
mod home;
mod log;
mod options;
mod seal;
mod storage;
mod turn;

pub use options::Options;
pub use storage::SledStorage;
pub use xmtp_core::storage::DatabaseKey;
