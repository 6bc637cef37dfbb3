//! Building an update: list its actions, show the text, collect the signatures.

use std::collections::BTreeMap;
use std::fmt;

use xmtp_proto::id::{InboxId, InstallationId};
use xmtp_proto::identity as proto;

use crate::identifier::{Identifier, IdentifierKind, inbox_id};
use crate::signature::{SignatureError, check_locally};
use crate::update::{
    add_lines, change_recovery_lines, create_lines, revoke_lines, signature_text_of,
};

/// Lists the actions of an update that is to be signed.
///
/// Two updates of one inbox must not have the same text, or the second carries signatures that
/// are used already. The text holds whole seconds only, so repeating an action of an update needs
/// a time in a later second.
#[derive(Clone, Debug)]
pub struct UpdateBuilder {
    inbox_id: InboxId,
    signer: Identifier,
    actions: Vec<Planned>,
}

#[derive(Clone, Debug)]
enum Planned {
    Create {
        initial: Identifier,
        nonce: u64,
    },
    Add {
        signer: Identifier,
        member: Identifier,
    },
    Revoke {
        signer: Identifier,
        target: Identifier,
    },
    ChangeRecovery {
        signer: Identifier,
        recovery: Identifier,
    },
}

/// Reports why an update can not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The update has no actions.
    #[error("the update has no actions")]
    NoActions,
    /// An installation can neither create nor recover an inbox.
    #[error("action {action} gives an installation a role that only an identifier may have")]
    InstallationOwner {
        /// Position of the action.
        action: usize,
    },
    /// The signature carries no kind.
    #[error("the signature has no kind")]
    UnsetSignature,
    /// The signature does not hold for this update's text.
    #[error("the signature is not valid for this update")]
    InvalidSignature(#[from] SignatureError),
    /// The signature holds, but nobody waits for it.
    #[error("the signature is by a party that need not sign")]
    UnexpectedSigner,
    /// Signatures are still missing.
    #[error("{missing} signatures are missing")]
    MissingSignatures {
        /// How many parties have yet to sign.
        missing: usize,
    },
}

impl BuildError {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoActions => "identity.build.no_actions",
            Self::InstallationOwner { .. } => "identity.build.installation_owner",
            Self::UnsetSignature => "identity.build.unset_signature",
            Self::InvalidSignature(source) => source.code(),
            Self::UnexpectedSigner => "identity.build.unexpected_signer",
            Self::MissingSignatures { .. } => "identity.build.missing_signatures",
        }
    }
}

impl UpdateBuilder {
    /// Starts an update that creates the inbox of `initial` and `nonce`.
    pub fn create_inbox(initial: Identifier, nonce: u64) -> Self {
        Self {
            inbox_id: inbox_id(&initial, nonce),
            signer: initial.clone(),
            actions: vec![Planned::Create { initial, nonce }],
        }
    }

    /// Starts an update of an existing inbox, whose actions `signer` signs.
    ///
    /// A member or the recovery identifier may add; only the recovery identifier may revoke or
    /// change the recovery.
    pub fn update_inbox(inbox_id: InboxId, signer: Identifier) -> Self {
        Self {
            inbox_id,
            signer,
            actions: Vec::new(),
        }
    }

    /// Lets `signer` sign for the inbox in the actions that follow.
    pub fn signed_by(mut self, signer: Identifier) -> Self {
        self.signer = signer;
        self
    }

    /// Adds an installation.
    pub fn add_installation(self, id: InstallationId) -> Self {
        self.add_member(Identifier::installation(id))
    }

    /// Adds a member of any kind.
    pub fn add_member(mut self, member: Identifier) -> Self {
        self.actions.push(Planned::Add {
            signer: self.signer.clone(),
            member,
        });
        self
    }

    /// Revokes a member and the installations that it added.
    pub fn revoke(mut self, target: Identifier) -> Self {
        self.actions.push(Planned::Revoke {
            signer: self.signer.clone(),
            target,
        });
        self
    }

    /// Replaces the recovery identifier.
    pub fn change_recovery(mut self, recovery: Identifier) -> Self {
        self.actions.push(Planned::ChangeRecovery {
            signer: self.signer.clone(),
            recovery,
        });
        self
    }

    /// Returns the inbox that the update is about.
    pub fn inbox_id(&self) -> InboxId {
        self.inbox_id
    }

    /// Fixes the time, and with it the text to sign.
    pub fn build(self, client_timestamp_ns: u64) -> Result<UnsignedUpdate, BuildError> {
        if self.actions.is_empty() {
            return Err(BuildError::NoActions);
        }
        for (action, planned) in self.actions.iter().enumerate() {
            planned
                .owner_kind()
                .ok_or(BuildError::InstallationOwner { action })?;
        }
        let lines = self.actions.iter().map(Planned::text_lines);
        let text = signature_text_of(self.inbox_id, client_timestamp_ns, lines);
        let signers = self.actions.iter().flat_map(Planned::signers);
        Ok(UnsignedUpdate {
            inbox_id: self.inbox_id,
            client_timestamp_ns,
            signatures: signers.map(|signer| (signer.clone(), None)).collect(),
            actions: self.actions,
            text,
        })
    }
}

/// Collects the signatures of an update.
///
/// `Debug` leaves the text and the signatures out.
#[derive(Clone)]
pub struct UnsignedUpdate {
    inbox_id: InboxId,
    client_timestamp_ns: u64,
    actions: Vec<Planned>,
    text: String,
    signatures: BTreeMap<Identifier, Option<proto::Signature>>,
}

impl UnsignedUpdate {
    /// Returns the inbox that the update is about.
    pub fn inbox_id(&self) -> InboxId {
        self.inbox_id
    }

    /// Returns the text that every party signs.
    pub fn signature_text(&self) -> &str {
        &self.text
    }

    /// Returns the parties that have yet to sign, ordered.
    pub fn missing_signers(&self) -> Vec<Identifier> {
        let missing = self
            .signatures
            .iter()
            .filter(|(_, signature)| signature.is_none());
        missing.map(|(signer, _)| signer.clone()).collect()
    }

    /// Takes the signature of one party, for all actions that the party signs.
    ///
    /// Everything but a smart contract wallet's own verdict is checked here.
    pub fn with_signature(mut self, signature: proto::Signature) -> Result<Self, BuildError> {
        let kind = signature
            .signature
            .as_ref()
            .ok_or(BuildError::UnsetSignature)?;
        let signer = check_locally(&self.text, kind)?.signature.signer;
        let slot = self
            .signatures
            .get_mut(&signer)
            .ok_or(BuildError::UnexpectedSigner)?;
        *slot = Some(signature);
        Ok(self)
    }

    /// Returns the signed update.
    pub fn finish(self) -> Result<proto::IdentityUpdate, BuildError> {
        let missing = self.missing_signers().len();
        if missing > 0 {
            return Err(BuildError::MissingSignatures { missing });
        }
        let signatures = |signer: &Identifier| self.signatures.get(signer).cloned().flatten();
        let actions = self
            .actions
            .iter()
            .map(|action| action.to_proto(signatures));
        Ok(proto::IdentityUpdate {
            actions: actions.collect(),
            client_timestamp_ns: self.client_timestamp_ns,
            inbox_id: self.inbox_id.to_hex(),
        })
    }
}

impl fmt::Debug for UnsignedUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsignedUpdate")
            .field("inbox_id", &self.inbox_id)
            .field("actions", &self.actions)
            .finish_non_exhaustive()
    }
}

impl Planned {
    fn signers(&self) -> impl Iterator<Item = &Identifier> {
        let (first, second) = match self {
            Self::Create { initial, .. } => (initial, None),
            Self::Add { signer, member } => (signer, Some(member)),
            Self::Revoke { signer, .. } | Self::ChangeRecovery { signer, .. } => (signer, None),
        };
        std::iter::once(first).chain(second)
    }

    /// Returns the kind to write for an owner; `None` if an installation would become one.
    fn owner_kind(&self) -> Option<i32> {
        match self {
            Self::Create { initial: owner, .. }
            | Self::ChangeRecovery {
                recovery: owner, ..
            } => owner.identifier_kind().map(IdentifierKind::to_proto),
            Self::Add { .. } | Self::Revoke { .. } => Some(0),
        }
    }

    fn text_lines(&self) -> [String; 2] {
        match self {
            Self::Create { initial, .. } => create_lines(initial),
            Self::Add { member, .. } => add_lines(member),
            Self::Revoke { target, .. } => revoke_lines(target),
            Self::ChangeRecovery { recovery, .. } => change_recovery_lines(recovery),
        }
    }

    fn to_proto(
        &self,
        signature_of: impl Fn(&Identifier) -> Option<proto::Signature>,
    ) -> proto::IdentityAction {
        use proto::identity_action::Kind;
        let kind = self.owner_kind().unwrap_or_default();
        let relying_party = |owner: &Identifier| owner.relying_party().map(str::to_owned);
        let action = match self {
            Self::Create { initial, nonce } => Kind::CreateInbox(proto::CreateInbox {
                initial_identifier: initial.text(),
                nonce: *nonce,
                initial_identifier_signature: signature_of(initial),
                initial_identifier_kind: kind,
                relying_party: relying_party(initial),
            }),
            Self::Add { signer, member } => Kind::Add(proto::AddAssociation {
                new_member_identifier: Some(member.to_proto()),
                existing_member_signature: signature_of(signer),
                new_member_signature: signature_of(member),
                relying_party: relying_party(member),
            }),
            Self::Revoke { signer, target } => Kind::Revoke(proto::RevokeAssociation {
                member_to_revoke: Some(target.to_proto()),
                recovery_identifier_signature: signature_of(signer),
            }),
            Self::ChangeRecovery { signer, recovery } => {
                Kind::ChangeRecoveryAddress(proto::ChangeRecoveryAddress {
                    new_recovery_identifier: recovery.text(),
                    existing_recovery_identifier_signature: signature_of(signer),
                    new_recovery_identifier_kind: kind,
                    relying_party: relying_party(recovery),
                })
            }
        };
        proto::IdentityAction { kind: Some(action) }
    }
}
