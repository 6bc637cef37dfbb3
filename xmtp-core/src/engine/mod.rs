//! Composes the rooms: starts, closes, and reports its stack.

pub mod context;
pub mod fetch;
pub mod receive;
