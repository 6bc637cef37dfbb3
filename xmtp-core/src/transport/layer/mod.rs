//! Layers around a transport: one struct, one reason each.

mod retry;
mod trace;

pub use retry::Retry;
pub use trace::Trace;
