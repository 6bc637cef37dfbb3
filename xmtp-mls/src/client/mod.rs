//! What users hold: a client over one database, composed from a storage engine, a wire and an
//! account.

mod account;
mod builder;
mod compose;
mod error;
pub(crate) mod inbox;
mod keys;
mod store;

use std::sync::Arc;
use std::time::Duration;

use xmtp_core::delivery::Messages;
use xmtp_core::engine::Engine;
use xmtp_core::limits::DEFAULT_BARRIER_TIMEOUT;
use xmtp_core::storage::StorageError;
use xmtp_core::subscription::StatusWatch;
use xmtp_core::sync::{SyncError, SyncReport, SyncRequest};
use xmtp_proto::{InboxId, InstallationId, Topic};

use crate::Installation;
use crate::conversation::Conversations;

pub use account::Account;
pub use builder::ClientBuilder;
pub use error::{BuildError, ClientError};

/// A client over one database; cheap to clone, without type parameters.
///
/// # Behavior
/// - Dropping every clone leaves the database as it is; [`Client::close`] ends its tasks first.
#[derive(Clone, Debug)]
pub struct Client {
    engine: Engine,
    installation: Arc<Installation>,
}

impl Client {
    pub(crate) fn new(engine: Engine, installation: Arc<Installation>) -> Self {
        Self {
            engine,
            installation,
        }
    }

    /// Starts composing a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Answers the inbox of this client's account.
    pub fn inbox_id(&self) -> InboxId {
        self.installation.inbox()
    }

    /// Answers this installation's id.
    pub fn installation_id(&self) -> InstallationId {
        self.installation.id()
    }

    /// Answers the conversations.
    pub fn conversations(&self) -> Conversations {
        Conversations::new(self.engine.clone(), self.installation.clone())
    }

    /// Answers the stored messages: the default consumer, replay and history. It starts live
    /// receipt.
    pub fn messages(&self) -> Messages {
        self.go_live();
        self.engine.messages()
    }

    /// Keeps every conversation subscribed from now on.
    pub fn go_live(&self) {
        self.engine
            .go_live(vec![Topic::identity(&self.installation.inbox())]);
    }

    /// Keeps every conversation subscribed, and follows how far all of it has caught up.
    pub fn catch_up(&self) -> StatusWatch {
        self.go_live();
        self.engine.catch_up()
    }

    /// Processes Welcomes and every conversation through the heads that the backend has now.
    ///
    /// # Errors
    /// A typed incomplete result; calling it again resumes.
    pub async fn sync_all(&self) -> Result<SyncReport, SyncError> {
        self.sync_all_within(DEFAULT_BARRIER_TIMEOUT).await
    }

    /// Does the same within a time.
    ///
    /// # Errors
    /// A typed incomplete result; calling it again resumes.
    pub async fn sync_all_within(&self, timeout: Duration) -> Result<SyncReport, SyncError> {
        self.engine.sync(self.sync_request(timeout).await?).await
    }

    /// Makes the request of a sync over Welcomes and every active conversation.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sync_request(&self, timeout: Duration) -> Result<SyncRequest, StorageError> {
        let mut topics = vec![Topic::welcome(&self.installation.id())];
        let mut after = None;
        loop {
            let (groups, more) = self.engine.groups(after).await?;
            after = groups.last().map(|(group, _)| *group);
            let active = groups.iter().filter(|(_, record)| record.active);
            topics.extend(active.map(|(group, _)| Topic::group(group)));
            if !more {
                break;
            }
        }
        Ok(SyncRequest {
            topics,
            include_discovered: true,
            timeout,
        })
    }

    /// Answers the engine, for those who build on it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Describes the composition in one line.
    pub fn stack(&self) -> String {
        self.engine.stack()
    }

    /// Ends every task and closes the database; idempotent.
    ///
    /// # Errors
    /// When the storage engine fails to close.
    pub async fn close(&self) -> Result<(), StorageError> {
        self.engine.close().await
    }
}
