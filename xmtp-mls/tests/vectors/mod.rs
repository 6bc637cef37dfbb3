//! Reading the recordings and replaying them.

mod recorded;
mod replay;

pub(crate) use recorded::recorded;
pub(crate) use replay::{Counts, Replay};
