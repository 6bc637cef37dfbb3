//! Processors over openmls, conversations and accounts.
//!
//! The lower half turns bytes into meaning and back, inside the write transaction it is handed:
//!
//! - [`store`] is openmls's storage over a transaction, [`Provider`] what one openmls call gets;
//! - [`key_package`] makes, checks and retires key packages;
//! - [`welcome`] wraps and unwraps Welcomes;
//! - [`group`] creates and joins groups, reads their contexts and frames their messages;
//! - [`content`] is what application messages carry, and the transcripts derived from commits.
//!
//! When you want another crate: ordering, receipt and delivery are in `xmtp_core`, the inbox log
//! is in `xmtp_identity`, the messages and ids are in `xmtp_proto`.

mod client;
pub mod content;
mod conversation;
pub mod group;
mod installation;
pub mod key_package;
mod leaf;
pub mod processor;
mod provider;
pub mod store;
pub mod welcome;

pub use client::{Account, BuildError, Client, ClientBuilder, ClientError};
pub use conversation::{Conversations, Group};
pub use installation::Installation;
pub use leaf::{CIPHERSUITE, Leaf, LeafFault, LeafPart};
pub use provider::{Provider, RuntimeRand};
