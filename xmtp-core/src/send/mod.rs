//! Sends: a durable intent, an attempt with exact bytes before anything is published, and
//! confirmation by ordered processing alone.

pub(crate) mod confirm;
pub(crate) mod store;
