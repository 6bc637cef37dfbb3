//! Live receipt: one session keeps the wanted topics registered and feeds what arrives into the
//! one receive path.

mod interest;

pub use interest::{Interest, Interests};
