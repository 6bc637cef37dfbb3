//! What tests need that a server does not: real database servers of their own.

mod postgres;

pub use postgres::{Postgres, find_postgres};
