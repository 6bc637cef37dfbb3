//! D: hands stored messages to the application, once or more, in local order.
//!
//! A message is deliverable once ordered processing gave it a delivery number. The default
//! consumer reads above each group's D and moves D only when the application asks for the next
//! item. Nothing that arrives, is stored or is queued moves D, so nothing is acknowledged early
//! and nothing is skipped; a crash can only repeat the last item, under the same message id.
//!
//! | reader | starts | moves | owner |
//! | --- | --- | --- | --- |
//! | [`MessageConsumer`], [`Boundary`] | above D of each group | D, on the next request | one lease per database |
//! | [`Replay`] | after a [`DeliveryCursor`] | nothing | none |
//! | [`History`] | one snapshot | nothing | none |
//!
//! Every read starts from fresh local state; nothing here waits for the network.

mod boundary;
mod consumer;
mod cursor;
mod error;
mod filter;
mod history;
mod lease;
mod message;
mod messages;
mod replay;
mod scan;
mod scope;
mod step;
pub(crate) mod store;
#[cfg(test)]
mod tests;

pub use boundary::{Boundary, Handoff, Next, Token};
pub use consumer::{Delivery, Flow, ForEachError, MessageConsumer};
pub use cursor::DeliveryCursor;
pub use error::StreamError;
pub use filter::{Filter, Scope};
pub use history::{History, HistoryPage};
pub use lease::clear_if_single;
pub use message::Message;
pub use messages::Messages;
pub use replay::Replay;
pub use scope::{EndHandle, ScopeHandle};
