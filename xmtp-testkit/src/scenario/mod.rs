//! Scenarios: short text files that real clients play over a real backend.
//!
//! One line a step, `#` begins a comment. A requirement id stands in the comment of the line that
//! asserts it.
//!
//! ```text
//! people alice bo          who takes part; each has a database of their own
//! alice creates ops        a group with only its creator
//! alice adds bo to ops
//! alice removes bo from ops
//! alice renames ops to crew
//! alice sends ops hello    waits for confirmation by ordered processing
//! bo syncs                 to fixed heads, Welcomes and discovered groups included
//! bo consumes 2            takes two texts from the default consumer and acknowledges them
//! bo restarts              closes the client and opens it again
//! bo has ops hello hi      the stored texts of the group, in delivery order
//! bo is in ops             or: bo is out of ops
//! alice agrees with bo on ops   same epoch, same authenticator
//! alice names ops crew     the group's name as alice sees it
//! ```
//!
//! Every step can be repeated after a crash in the middle of it: a message has its step's number as
//! idempotency key, and a change that is already in effect is superseded.

mod parse;
mod play;
mod power;
mod world;

pub use parse::{ParseError, Scenario, Step, parse};
pub use play::{Outcome, PlayError, play};
pub use world::{CrashAt, Engine, PersonState, PowerLoss, World};
