//! Registering an account: an inbox, and this installation in it.
//!
//! Every step repeats itself safely after a crash: the installation's key and the inbox are
//! durable before anything is published, and what the backend has is asked before it is sent.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use xmtp_core::engine::Context;
use xmtp_core::error::Coded;
use xmtp_core::runtime::RuntimeExt;
use xmtp_core::storage::{Durability, Priority, StorageError};
use xmtp_core::transport::{Transport, TransportError};
use xmtp_identity::{Identifier, LocalWallet, UpdateBuilder};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::get_inbox_ids_request::Request;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::{ClientEnvelope, GetInboxIdsRequest};
use xmtp_proto::identity::IdentityUpdate;
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX;
use xmtp_proto::storage::v1::AccountRecord;
use xmtp_proto::{InboxId, InstallationId, SequenceId};

use super::{BuildError, inbox, keys, store};
use crate::Installation;

/// The nonce with which an account's first inbox is made, as released clients do.
const DEFAULT_NONCE: u64 = 1;
/// Tries when the inbox's log moves while the own update is on its way.
const MAX_REGISTRATION_TRIES: usize = 4;

/// Who uses the client: a wallet that signs for an inbox.
#[derive(Clone)]
pub struct Account {
    wallet: Arc<LocalWallet>,
    nonce: u64,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Account")
    }
}

impl Account {
    /// Makes an account of a local Ethereum wallet, from its 32-byte secret.
    ///
    /// # Errors
    /// When the secret is no private key of the curve.
    pub fn from_wallet_secret(secret: &[u8; 32]) -> Result<Self, xmtp_identity::InvalidSecret> {
        Ok(Self::from_wallet(LocalWallet::from_secret(secret)?))
    }

    /// Makes an account of a local Ethereum wallet.
    pub fn from_wallet(wallet: LocalWallet) -> Self {
        Self {
            wallet: Arc::new(wallet),
            nonce: DEFAULT_NONCE,
        }
    }

    /// Answers the inbox that this account creates when it has none.
    pub fn inbox_id(&self) -> InboxId {
        xmtp_identity::inbox_id(self.wallet.identifier(), self.nonce)
    }

    /// Tells whether a database of this record was made with this account.
    pub(super) fn is_of(&self, record: &AccountRecord) -> bool {
        record.identifier == self.identifier().text()
    }

    fn identifier(&self) -> Identifier {
        self.wallet.identifier().clone()
    }

    /// Finds the account's inbox at the backend, or the one that it will create.
    pub(super) async fn find_inbox(
        &self,
        transport: &dyn Transport,
    ) -> Result<InboxId, BuildError> {
        let identifier = self.identifier();
        let request = GetInboxIdsRequest {
            requests: vec![Request {
                identifier: identifier.text(),
                identifier_kind: identifier
                    .identifier_kind()
                    .map(|kind| kind.to_proto())
                    .unwrap_or_default(),
            }],
        };
        let response = transport.inbox_ids(request).await?;
        let found = response.responses.into_iter().next();
        let found = found.and_then(|response| response.inbox_id);
        match found.map(|text| InboxId::parse_hex(&text)) {
            Some(Ok(inbox)) => Ok(inbox),
            Some(Err(_)) => Err(BuildError::Registration {
                reason: "the backend answered a malformed inbox id",
            }),
            None => Ok(self.inbox_id()),
        }
    }

    /// Signs the update that brings an installation into the inbox.
    fn update(
        &self,
        inbox: InboxId,
        exists: bool,
        installation: &Installation,
        now_ns: u64,
    ) -> Result<IdentityUpdate, BuildError> {
        let failed = |reason| BuildError::Registration { reason };
        let builder = if exists {
            UpdateBuilder::update_inbox(inbox, self.identifier())
        } else {
            UpdateBuilder::create_inbox(self.identifier(), self.nonce)
        };
        let unsigned = builder
            .add_installation(installation.id())
            .build(now_ns)
            .map_err(|_| failed("the identity update could not be built"))?;
        let text = unsigned.signature_text().to_owned();
        let unsigned_text = |_| failed("the identity update could not be signed");
        let by_wallet = self.wallet.sign_text(&text).map_err(unsigned_text)?;
        let by_installation = installation.identity_key().sign_text(&text);
        let by_installation = by_installation.map_err(unsigned_text)?;
        unsigned
            .with_signature(by_wallet)
            .and_then(|unsigned| unsigned.with_signature(by_installation))
            .and_then(xmtp_identity::UnsignedUpdate::finish)
            .map_err(|_| failed("the identity update could not be signed"))
    }
}

/// Keeps a new installation and its account in the database before anything is published.
pub(super) fn keep(
    txn: &mut xmtp_core::storage::WriteTxn<'_>,
    installation: &Installation,
    account: &Account,
) -> Result<AccountRecord, StorageError> {
    if let Some(kept) = store::account(txn)? {
        return Ok(kept);
    }
    installation.store(txn)?;
    let record = AccountRecord {
        inbox_id: installation.inbox().to_hex(),
        installation_key: installation.id().as_bytes().to_vec().into(),
        identifier: account.identifier().text(),
        registered_sequence_id: 0,
        created_ns: txn.now_ns(),
    };
    store::put_account(txn, &record)?;
    Ok(record)
}

/// Registers the installation: key package first, then the identity update, then the own log.
pub(super) async fn register(
    context: &Context,
    installation: &Arc<Installation>,
    account: &Account,
) -> Result<(), BuildError> {
    let mut refused: Option<(Option<SequenceId>, TransportError)> = None;
    for _ in 0..MAX_REGISTRATION_TRIES {
        let inbox = installation.inbox();
        let state = inbox::newest_state(context, inbox).await?;
        let newest = state.as_ref().map(|(sequence, _)| *sequence);
        if let Some((sequence, state)) = &state {
            if state.is_installation(installation.id()) {
                return registered(context, sequence.get()).await;
            }
            let count = state.installations().len();
            let max = BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX as usize;
            if count >= max {
                return Err(BuildError::InstallationLimit { count, max });
            }
        }
        if let Some((_, error)) = refused.take_if(|(seen, _)| *seen == newest) {
            return Err(error.into());
        }
        keys::maintain(context, installation)
            .await
            .map_err(|reason| BuildError::Registration { reason })?;
        let now = context.runtime.now_ns();
        let update = account.update(inbox, state.is_some(), installation, now)?;
        let envelope = ClientEnvelope {
            payload: Some(Payload::IdentityUpdate(update)),
        };
        let sent = keys::publish(context, Bytes::from(envelope.encode_to_vec())).await;
        match sent {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                tracing::debug!(code = error.code(), "registration reads the log again");
                context.runtime.sleep(error.asked_pause()).await;
            }
            // Another process may have been faster, with the same installation or with the inbox.
            Err(error) if is_stale_update(&error) => refused = Some((newest, error)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(BuildError::Registration {
        reason: "the inbox log kept changing or the backend did not answer; retry",
    })
}

fn is_stale_update(error: &TransportError) -> bool {
    let reason = Some(Reason::InvalidIdentityUpdate);
    matches!(error, TransportError::InvalidArgument { reason: found, .. } if *found == reason)
}

async fn registered(context: &Context, sequence: u64) -> Result<(), BuildError> {
    context
        .database
        .write_queued(Priority::Foreground, Durability::Flushed, move |txn| {
            let Some(mut record) = store::account(txn)? else {
                return Err(StorageError::Invariant {
                    rule: "a registered installation has an account",
                });
            };
            record.registered_sequence_id = sequence;
            store::put_account(txn, &record)
        })
        .await?;
    Ok(())
}

/// Reads what a record says of its owner.
pub(super) fn owner(record: &AccountRecord) -> Option<(InboxId, InstallationId)> {
    let inbox = InboxId::parse_hex(&record.inbox_id).ok()?;
    let installation = InstallationId::try_from(&record.installation_key[..]).ok()?;
    Some((inbox, installation))
}
