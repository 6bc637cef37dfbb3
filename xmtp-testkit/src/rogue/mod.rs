//! A member that breaks the rules: envelopes that no honest client sends, made with real openmls.
//!
//! A rogue works on the database of an honest client. What it makes comes from the state that is
//! there, in a transaction that is rolled back: the client never learns of it, so its own echo is
//! an own envelope without an attempt, and what it sends honestly later uses the same keys again.

mod commits;
mod dictionary;
mod founding;
mod messages;
mod welcomes;

use openmls::group::{MlsGroup, Propose};
use openmls::prelude::ProposalOrRefType;
use thiserror::Error;
use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
use xmtp_mls::group::{GroupContext, load};
use xmtp_mls::welcome::Recipient;
use xmtp_mls::{Client, Installation, Provider};
use xmtp_proto::GroupId;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{ClientEnvelope, GroupMessage, WelcomeMessage};

pub use commits::Draft;
pub use founding::{Form, Founded};
pub use messages::{cut, flipped, longer};
pub use welcomes::{Pointed, Wrapping, wrapped, wrapped_behind_pointer};

/// What a rogue could not make.
#[derive(Debug, Error)]
pub enum RogueError {
    /// The database failed, or its process died.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// openmls does not make it.
    #[error("openmls does not make it: {0}")]
    Mls(String),
}

/// Tells what openmls said.
fn mls(error: impl std::fmt::Debug) -> RogueError {
    RogueError::Mls(format!("{error:?}"))
}

/// The Welcome of a commit, and how to wrap it for whom it adds.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The MLS Welcome.
    pub welcome: Vec<u8>,
    /// Whom the commit adds.
    pub recipients: Vec<Recipient>,
}

/// The bytes of a commit, with its Welcome where it adds somebody.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The MLS bytes.
    pub bytes: Vec<u8>,
    /// The Welcome.
    pub invitation: Option<Invitation>,
}

/// A member that breaks the rules.
#[derive(Debug)]
pub struct Rogue {
    database: Database,
    installation: Installation,
    /// Keys of commits and proposals that earlier forgeries have used up.
    used: u32,
}

/// How a trial ends: never by committing.
enum Trial {
    Over,
    Failed(RogueError),
}

impl From<StorageError> for Trial {
    fn from(error: StorageError) -> Self {
        Self::Failed(error.into())
    }
}

impl Rogue {
    /// Takes the key and the state of a client, of which earlier forgeries have `used` so many keys
    /// of commits and proposals: what comes next is not taken for one of them again.
    ///
    /// # Errors
    /// When the database fails, or has no installation.
    pub fn of(client: &Client, used: u32) -> Result<Self, RogueError> {
        let database = client.engine().context().database.clone();
        let (id, inbox) = (client.installation_id(), client.inbox_id());
        let found = database.read(|snapshot| Installation::load(snapshot, &id, inbox))?;
        let installation = found.ok_or_else(|| mls("the database has no installation"))?;
        Ok(Self {
            database,
            installation,
            used,
        })
    }

    /// Runs `f` over the state of a group, and takes everything back that it wrote.
    fn trial<T>(
        &self,
        group: &GroupId,
        f: impl FnOnce(&mut WriteTxn<'_>, &mut MlsGroup) -> Result<T, RogueError>,
    ) -> Result<T, RogueError> {
        let mut made = None;
        let ended: Result<(), Trial> = self.database.write(Durability::Ordered, |txn| {
            let loaded = load(&Provider::new(txn), group);
            let mut loaded = loaded.map_err(mls).map_err(Trial::Failed)?;
            made = Some(f(txn, &mut loaded).map_err(Trial::Failed)?);
            Err(Trial::Over)
        });
        match (ended, made) {
            (Err(Trial::Over), Some(made)) => Ok(made),
            (Err(Trial::Failed(error)), _) => Err(error),
            (Ok(()) | Err(Trial::Over), _) => Err(mls("the trial made nothing")),
        }
    }

    /// Moves past the keys that earlier forgeries have used up.
    fn skip_used(
        &self,
        provider: &Provider<'_, '_>,
        group: &mut MlsGroup,
    ) -> Result<(), RogueError> {
        for _ in 0..self.used {
            let same = Propose::GroupContextExtensions(group.extensions().clone());
            let by = &self.installation;
            let proposed = group.propose(provider, by, same, ProposalOrRefType::Reference);
            proposed.map_err(mls)?;
        }
        if self.used > 0 {
            let cleared = group.clear_pending_proposals(provider.store());
            cleared.map_err(mls)?;
        }
        Ok(())
    }

    /// Forgets every proposal that the group keeps, as a damaged database does.
    ///
    /// # Errors
    /// When the database fails, or the group is not there.
    pub fn lose_proposals(&self, group: &GroupId) -> Result<(), RogueError> {
        let lost = self.database.write(Durability::Flushed, |txn| {
            let provider = Provider::new(txn);
            let mut group = load(&provider, group).map_err(mls).map_err(Trial::Failed)?;
            let cleared = group.clear_pending_proposals(provider.store());
            cleared.map_err(Trial::from)
        });
        match lost {
            Err(Trial::Failed(error)) => Err(error),
            Ok(()) | Err(Trial::Over) => Ok(()),
        }
    }

    /// Reads what the context of a group says.
    ///
    /// # Errors
    /// When the group is not there or does not read.
    pub fn context(&self, group: &GroupId) -> Result<GroupContext, RogueError> {
        self.trial(group, |_, group| GroupContext::of(group).map_err(mls))
    }
}

/// Puts MLS bytes into an envelope; `variant` makes other envelopes of the same bytes.
pub fn group_envelope(bytes: Vec<u8>, variant: u8) -> ClientEnvelope {
    let message = GroupMessage {
        data: bytes.into(),
        sender_hmac: vec![variant; usize::from(variant)].into(),
        should_push: false,
    };
    ClientEnvelope {
        payload: Some(Payload::GroupMessage(message)),
    }
}

/// Puts a Welcome into an envelope.
pub fn welcome_envelope(message: WelcomeMessage) -> ClientEnvelope {
    ClientEnvelope {
        payload: Some(Payload::WelcomeMessage(message)),
    }
}
