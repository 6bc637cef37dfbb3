//! Reading the recordings and replaying them.

mod recorded;
mod replay;

pub use recorded::recorded;
pub use replay::{Counts, Replay};
