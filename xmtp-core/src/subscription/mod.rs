//! Live receipt: one session keeps the wanted topics registered and feeds what arrives into the
//! one receive path.
//!
//! A reconnect starts from each topic's durable F and the topics wanted at that moment; nothing
//! of an earlier stream is used again (STR-036). What is received is processed whether or not a
//! stream is open.

mod catchup;
#[cfg(test)]
mod catchup_tests;
mod connection;
mod controller;
mod interest;
mod pause;
#[cfg(test)]
mod pause_tests;
pub mod progress;
mod reconnect;
mod session;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
mod tracker;
mod unproven;

pub use catchup::{
    Cancelled, CatchUp, CatchUpEnded, NotCaughtUp, Processing, Registration, Scope, StatusWatch,
    TopicCatchUp,
};
pub use controller::{ConnectionState, SubscriptionHandle, Subscriptions};
pub use interest::{Interest, Interests};
pub use reconnect::{Backoff, FAILED_FIRST_PAUSE, FAILED_LONGEST_PAUSE};
pub use session::{Event, Plan, Session, SessionLimits};
