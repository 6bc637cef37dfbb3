//! Composes the rooms: starts, closes, and reports its stack.

pub mod context;
mod depend;
pub mod fetch;
mod process;
pub mod receive;
mod welcomes;
