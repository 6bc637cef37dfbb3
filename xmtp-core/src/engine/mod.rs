//! Composes the rooms: starts, closes, and reports its stack.

pub mod context;
mod depend;
pub mod fetch;
mod groups;
mod process;
pub mod receive;
mod send;
mod welcomes;
