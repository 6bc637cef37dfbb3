//! What every waiting part of the engine holds. It owns no transaction and no processor state.

use std::sync::Arc;

use xmtp_proto::Topic;

use crate::processing::Processors;
use crate::runtime::Runtime;
use crate::storage::Database;
use crate::subscription::Interests;
use crate::transport::Transport;

/// The parts of an engine, cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// The database.
    pub database: Database,
    /// The wire.
    pub transport: Box<dyn Transport>,
    /// What decides envelopes.
    pub processors: Processors,
    /// Time, tasks and randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Which topics are wanted, and by whom.
    pub interests: Interests,
    /// The Welcome topic of this installation.
    pub welcome_topic: Topic,
}
