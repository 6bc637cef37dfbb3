//! The SQLite engine behind [`Storage`](xmtp_core::storage::Storage): one file, whole-file
//! encrypted by SQLCipher or plain, in WAL mode, shared by threads and processes.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("messages.db");
//! # const NAMES: TableId = TableId(900);
//! use std::time::Duration;
//!
//! use xmtp_core::storage::{Change, Durability, Layout, Storage, TableId, TableInfo, WriteBatch};
//! use xmtp_storage_sqlite::{DatabaseKey, SqliteStorage};
//!
//! // In an application the key is random and lives in the platform's key store.
//! let key = DatabaseKey::new([0x2a; 32]);
//! let storage = SqliteStorage::options(path).key(key).open()?;
//! storage.open_tables(&[TableInfo { id: NAMES, name: "names", layout: Layout::Small }])?;
//!
//! let mut batch = WriteBatch::default();
//! let rows = &mut batch.tables.entry(NAMES).or_default().rows;
//! rows.insert(b"alix".to_vec(), Change::Put(b"Alix".to_vec()));
//! storage.writer(Duration::from_secs(5), Durability::Flushed)?.commit(&batch)?;
//!
//! assert_eq!(storage.snapshot()?.get(NAMES, b"alix")?, Some(b"Alix".to_vec()));
//! storage.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! | file | what it is |
//! | --- | --- |
//! | `messages.db` | the database |
//! | `messages.db-wal`, `messages.db-shm` | SQLite's log and its index, while the database is open or after a crash; they belong to it |
//! | `messages.db.turn` | an empty lock file that keeps turns between processes fair; it stays |
//! | `messages.db.new` | a database that is being created, or was when its process died |
//!
//! # Opening
//!
//! A file is opened for writing only after it was read and found whole, and after the key was
//! proved on a read-only connection that takes no lock and knows no log: an ordinary open with a
//! wrong key rewrites files. Every refusal names its cause
//! ([`OpenError`](xmtp_core::storage::OpenError)) and has touched nothing.
//!
//! An encrypted file is an ordinary SQLCipher 4 database under a raw key. Its salt is not random
//! but a public mark and a key check, which is how a wrong key, a missing key and a damaged first
//! page are told apart.
//!
//! A process must not open the file by other means than this crate or SQLite while it has it open
//! here: closing such a descriptor drops SQLite's locks.

mod connection;
mod create;
mod fault;
mod inspect;
mod judge;
mod key;
mod layout;
mod log;
mod options;
mod page;
mod read;
mod registry;
mod slot;
mod snapshot;
mod storage;
mod turn;
mod wait;
mod writer;

pub use options::SqliteOptions;
pub use storage::SqliteStorage;
pub use xmtp_core::storage::DatabaseKey;
