//! Why an update was not applied, and what the caller may do about it.

use crate::signature::SignatureError;
use crate::update::{MalformedUpdate, SignatureRole};

/// Reports why an update was not applied.
///
/// Every variant but [`ApplyError::Unverified`] is a verdict: the same update on the same state
/// fails for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The message can not be read as an update.
    #[error("the identity update is malformed")]
    Malformed(#[from] MalformedUpdate),
    /// A signature does not hold.
    #[error("the {role:?} signature of action {action} is not valid")]
    InvalidSignature {
        /// Position of the action.
        action: usize,
        /// The party whose signature it is.
        role: SignatureRole,
        /// What is wrong with the signature.
        source: SignatureError,
    },
    /// The signatures hold, but the rules do not let the action apply to this state.
    #[error("action {action} does not apply")]
    DoesNotApply {
        /// Position of the action.
        action: usize,
        /// The rule that refuses the action.
        #[source]
        rule: BrokenRule,
    },
    /// A smart contract wallet could not be asked; try again later.
    #[error("the {role:?} signature of action {action} could not be judged yet")]
    Unverified {
        /// Position of the action.
        action: usize,
        /// The party whose signature it is.
        role: SignatureRole,
        /// Why there is no verdict.
        source: SignatureError,
    },
}

/// Names the rule that an action breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenRule {
    /// The first action of a log must create the inbox.
    #[error("the inbox is not created yet")]
    NotCreated,
    /// An inbox is created once only.
    #[error("the inbox is created already")]
    AlreadyCreated,
    /// The update names another inbox than it creates or applies to.
    #[error("the update names another inbox")]
    InboxMismatch,
    /// A signature is by another party than the one that the action names.
    #[error("the {role:?} signature is by another party")]
    WrongSigner {
        /// The party that should have signed.
        role: SignatureRole,
    },
    /// A member can not let itself in.
    #[error("a member can not add itself")]
    SelfAdded,
    /// The member to add is a member already.
    #[error("the new member is a member already")]
    AlreadyMember,
    /// An installation can not let an installation in.
    #[error("an installation can not add an installation")]
    InstallationAddsInstallation,
    /// The party that lets a member in is neither a member nor the recovery identifier.
    #[error("the adding party is neither a member nor the recovery identifier")]
    UnknownAdder,
    /// The action needs the recovery identifier.
    #[error("the signer is not the recovery identifier")]
    NotRecovery,
    /// The signer's chain is not the one recorded for it.
    #[error("the signer's chain {signed:?} is not the recorded {recorded:?}")]
    ChainMismatch {
        /// The chain on record.
        recorded: Option<u64>,
        /// The chain that the signature names.
        signed: Option<u64>,
    },
    /// A signature was used by an earlier update.
    #[error("the {role:?} signature was used before")]
    Replayed {
        /// The party whose signature it is.
        role: SignatureRole,
    },
}

impl ApplyError {
    /// Returns the stable code of this error, that of its cause where it has one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed(source) => source.code(),
            Self::InvalidSignature { source, .. } | Self::Unverified { source, .. } => {
                source.code()
            }
            Self::DoesNotApply { rule, .. } => rule.code(),
        }
    }

    /// Tells whether the same update may apply to the same state later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unverified { .. })
    }

    pub(crate) fn signature(action: usize, role: SignatureRole, source: SignatureError) -> Self {
        if source.is_retryable() {
            return Self::Unverified {
                action,
                role,
                source,
            };
        }
        Self::InvalidSignature {
            action,
            role,
            source,
        }
    }
}

impl BrokenRule {
    /// Returns the stable code of this rule.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotCreated => "identity.rule.not_created",
            Self::AlreadyCreated => "identity.rule.already_created",
            Self::InboxMismatch => "identity.rule.inbox_mismatch",
            Self::WrongSigner { .. } => "identity.rule.wrong_signer",
            Self::SelfAdded => "identity.rule.self_added",
            Self::AlreadyMember => "identity.rule.already_member",
            Self::InstallationAddsInstallation => "identity.rule.installation_adds_installation",
            Self::UnknownAdder => "identity.rule.unknown_adder",
            Self::NotRecovery => "identity.rule.not_recovery",
            Self::ChainMismatch { .. } => "identity.rule.chain_mismatch",
            Self::Replayed { .. } => "identity.rule.replayed",
        }
    }
}
