//! The SQLite engine: SQLCipher, WAL, several processes.

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

pub use key::DatabaseKey;
pub use options::SqliteOptions;
pub use storage::SqliteStorage;
