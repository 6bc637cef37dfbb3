//! The engine: durable receipt, ordered processing, delivery and sync behind four traits.
//!
//! Four positions carry the promise that a message is never lost, never skipped and never
//! acknowledged early:
//!
//! ```text
//! backend --envelopes--> F received --> P processed --> stored messages --> D acknowledged
//!                        (durable)      (applied)       (history, replay)   (your handler returned)
//! ```
//!
//! F is [`receipt`], P is [`processing`], D is [`delivery`], and H, a fixed target, is [`sync`].
//! They meet only in the database and in wake hints.
//!
//! Those who implement a seam read [`storage::Storage`], [`transport::Transport`] or
//! [`processor`]; those who compose a client want `xmtp` instead.

pub mod delivery;
pub mod engine;
pub mod error;
pub mod limits;
pub mod processing;
pub mod processor;
pub mod receipt;
pub mod runtime;
pub mod send;
pub mod storage;
pub mod subscription;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;
pub mod welcome;
