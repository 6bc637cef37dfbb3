//! What tests need that a server does not: real database servers of their own, and what fuzzers
//! reach without a socket.

mod credential;
mod postgres;
mod proxy;

pub use credential::{judge_credential, read_key_set};
pub use postgres::{Postgres, find_postgres};
pub use proxy::{Proxy, Silence};
