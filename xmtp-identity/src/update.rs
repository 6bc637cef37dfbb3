//! An identity update in typed form, and the text that its signers sign.
//!
//! Invariant: a [`ParsedUpdate`] only exists for a message whose every action, identifier and
//! signature is present and well formed. Whether the signatures hold and whether the actions may
//! apply is decided later.

use std::fmt;

use xmtp_proto::id::InboxId;
use xmtp_proto::identity as proto;

use crate::identifier::{Identifier, IdentifierError, IdentifierKind, MemberKind};
use crate::timestamp::rfc3339_seconds;

/// Holds one identity update in typed form.
#[derive(Clone, Debug)]
pub struct ParsedUpdate {
    /// The inbox that the update names.
    pub inbox_id: InboxId,
    /// The signed time, which becomes the add time of new members.
    pub client_timestamp_ns: u64,
    /// The actions in order, at least one.
    pub actions: Vec<Action>,
}

/// Holds one action of an update with its signatures, unchecked unless `S` says otherwise.
///
/// `Debug` leaves the signatures out.
#[derive(Clone)]
pub enum Action<S = SignatureKind> {
    /// Creates the inbox.
    Create {
        /// The first member, who is also the first recovery identifier.
        initial: Identifier,
        /// The number that tells inboxes of one identifier apart.
        nonce: u64,
        /// The signature of `initial`.
        signature: S,
    },
    /// Adds a member.
    Add {
        /// The member to add.
        member: Identifier,
        /// The signature of a current member or of the recovery identifier.
        existing_signature: S,
        /// The signature of `member`.
        member_signature: S,
    },
    /// Revokes a member and the installations that it added.
    Revoke {
        /// The member to revoke.
        target: Identifier,
        /// The signature of the recovery identifier.
        signature: S,
    },
    /// Replaces the recovery identifier.
    ChangeRecovery {
        /// The new recovery identifier.
        recovery: Identifier,
        /// The signature of the old recovery identifier.
        signature: S,
    },
}

/// Holds a signature that is present but not yet checked.
pub type SignatureKind = proto::signature::Signature;

/// Names a signature's role in its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignatureRole {
    /// The identifier that creates the inbox.
    Initial,
    /// The current member or recovery identifier that lets a member in.
    ExistingMember,
    /// The member that is added.
    NewMember,
    /// The recovery identifier.
    Recovery,
}

/// Reports why an update message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedUpdate {
    /// The update has no actions.
    #[error("the update has no actions")]
    NoActions,
    /// The inbox id is not 64 lowercase hex digits.
    #[error("the inbox id must be 64 lowercase hex digits ({length} bytes given)")]
    InboxId {
        /// Bytes in the refused text.
        length: usize,
    },
    /// An action has no kind.
    #[error("action {action} has no kind")]
    UnsetAction {
        /// Position of the action.
        action: usize,
    },
    /// An action lacks its member identifier.
    #[error("action {action} has no member identifier")]
    MissingMember {
        /// Position of the action.
        action: usize,
    },
    /// An action's identifier is malformed.
    #[error("action {action} has a malformed identifier")]
    Identifier {
        /// Position of the action.
        action: usize,
        /// What is wrong with the identifier.
        source: IdentifierError,
    },
    /// An action lacks a signature, or carries it in a form that is no longer read.
    #[error("action {action} lacks the {role:?} signature")]
    MissingSignature {
        /// Position of the action.
        action: usize,
        /// The party whose signature is missing.
        role: SignatureRole,
    },
}

impl MalformedUpdate {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoActions => "identity.malformed.no_actions",
            Self::InboxId { .. } => "identity.malformed.inbox_id",
            Self::UnsetAction { .. } => "identity.malformed.unset_action",
            Self::MissingMember { .. } => "identity.malformed.missing_member",
            Self::Identifier { .. } => "identity.malformed.identifier",
            Self::MissingSignature { .. } => "identity.malformed.missing_signature",
        }
    }
}

/// Returns the text that every signer of `update` signs.
pub fn signature_text(update: &proto::IdentityUpdate) -> Result<String, MalformedUpdate> {
    ParsedUpdate::parse(update).map(|parsed| parsed.signature_text())
}

impl ParsedUpdate {
    /// Reads an update message.
    pub fn parse(update: &proto::IdentityUpdate) -> Result<Self, MalformedUpdate> {
        if update.actions.is_empty() {
            return Err(MalformedUpdate::NoActions);
        }
        let actions = update.actions.iter().enumerate();
        Ok(Self {
            inbox_id: InboxId::parse_hex(&update.inbox_id).map_err(|_| {
                MalformedUpdate::InboxId {
                    length: update.inbox_id.len(),
                }
            })?,
            client_timestamp_ns: update.client_timestamp_ns,
            actions: actions
                .map(|(position, action)| Action::parse(position, action))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the text that every signer signs.
    pub fn signature_text(&self) -> String {
        let lines = self.actions.iter().map(Action::text_lines);
        signature_text_of(self.inbox_id, self.client_timestamp_ns, lines)
    }
}

impl Action {
    fn parse(action: usize, message: &proto::IdentityAction) -> Result<Self, MalformedUpdate> {
        use proto::identity_action::Kind;
        let at = Position(action);
        match message
            .kind
            .as_ref()
            .ok_or(MalformedUpdate::UnsetAction { action })?
        {
            Kind::CreateInbox(create) => Ok(Self::Create {
                initial: at.owner(
                    create.initial_identifier_kind,
                    &create.initial_identifier,
                    create.relying_party.as_ref(),
                )?,
                nonce: create.nonce,
                signature: at
                    .signature(SignatureRole::Initial, &create.initial_identifier_signature)?,
            }),
            Kind::Add(add) => Ok(Self::Add {
                member: at.member(&add.new_member_identifier)?,
                existing_signature: at.signature(
                    SignatureRole::ExistingMember,
                    &add.existing_member_signature,
                )?,
                member_signature: at
                    .signature(SignatureRole::NewMember, &add.new_member_signature)?,
            }),
            Kind::Revoke(revoke) => Ok(Self::Revoke {
                target: at.member(&revoke.member_to_revoke)?,
                signature: at.signature(
                    SignatureRole::Recovery,
                    &revoke.recovery_identifier_signature,
                )?,
            }),
            Kind::ChangeRecoveryAddress(change) => Ok(Self::ChangeRecovery {
                recovery: at.owner(
                    change.new_recovery_identifier_kind,
                    &change.new_recovery_identifier,
                    change.relying_party.as_ref(),
                )?,
                signature: at.signature(
                    SignatureRole::Recovery,
                    &change.existing_recovery_identifier_signature,
                )?,
            }),
        }
    }
}

impl<S> Action<S> {
    /// Returns the signatures with their roles, in the order they are checked.
    pub fn signatures(&self) -> impl Iterator<Item = (SignatureRole, &S)> {
        let (first, second) = match self {
            Self::Create { signature, .. } => ((SignatureRole::Initial, signature), None),
            Self::Add {
                existing_signature,
                member_signature,
                ..
            } => (
                (SignatureRole::ExistingMember, existing_signature),
                Some((SignatureRole::NewMember, member_signature)),
            ),
            Self::Revoke { signature, .. } | Self::ChangeRecovery { signature, .. } => {
                ((SignatureRole::Recovery, signature), None)
            }
        };
        std::iter::once(first).chain(second)
    }

    /// Replaces each signature by what `check` makes of it.
    pub(crate) fn try_map<T, E>(
        &self,
        mut check: impl FnMut(SignatureRole, &S) -> Result<T, E>,
    ) -> Result<Action<T>, E> {
        Ok(match self {
            Self::Create {
                initial,
                nonce,
                signature,
            } => Action::Create {
                initial: initial.clone(),
                nonce: *nonce,
                signature: check(SignatureRole::Initial, signature)?,
            },
            Self::Add {
                member,
                existing_signature,
                member_signature,
            } => Action::Add {
                member: member.clone(),
                existing_signature: check(SignatureRole::ExistingMember, existing_signature)?,
                member_signature: check(SignatureRole::NewMember, member_signature)?,
            },
            Self::Revoke { target, signature } => Action::Revoke {
                target: target.clone(),
                signature: check(SignatureRole::Recovery, signature)?,
            },
            Self::ChangeRecovery {
                recovery,
                signature,
            } => Action::ChangeRecovery {
                recovery: recovery.clone(),
                signature: check(SignatureRole::Recovery, signature)?,
            },
        })
    }

    fn text_lines(&self) -> [String; 2] {
        match self {
            Self::Create { initial, .. } => create_lines(initial),
            Self::Add { member, .. } => add_lines(member),
            Self::Revoke { target, .. } => revoke_lines(target),
            Self::ChangeRecovery { recovery, .. } => change_recovery_lines(recovery),
        }
    }
}

impl<S> fmt::Debug for Action<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, identifier) = match self {
            Self::Create { initial, .. } => ("Create", initial),
            Self::Add { member, .. } => ("Add", member),
            Self::Revoke { target, .. } => ("Revoke", target),
            Self::ChangeRecovery { recovery, .. } => ("ChangeRecovery", recovery),
        };
        f.debug_tuple(name).field(identifier).finish()
    }
}

/// Reads the fields of the action at one position.
struct Position(usize);

impl Position {
    fn owner(
        &self,
        kind: i32,
        text: &str,
        relying_party: Option<&String>,
    ) -> Result<Identifier, MalformedUpdate> {
        IdentifierKind::from_proto(kind)
            .and_then(|kind| Identifier::from_text(kind, text, relying_party.cloned()))
            .map_err(|source| MalformedUpdate::Identifier {
                action: self.0,
                source,
            })
    }

    fn member(
        &self,
        message: &Option<proto::MemberIdentifier>,
    ) -> Result<Identifier, MalformedUpdate> {
        let message = message.as_ref();
        let message = message.ok_or(MalformedUpdate::MissingMember { action: self.0 })?;
        Identifier::from_proto(message).map_err(|source| MalformedUpdate::Identifier {
            action: self.0,
            source,
        })
    }

    fn signature(
        &self,
        role: SignatureRole,
        message: &Option<proto::Signature>,
    ) -> Result<SignatureKind, MalformedUpdate> {
        let kind = message
            .as_ref()
            .and_then(|message| message.signature.clone());
        kind.ok_or(MalformedUpdate::MissingSignature {
            action: self.0,
            role,
        })
    }
}

/// Assembles a signature text from the lines of its actions.
pub(crate) fn signature_text_of(
    inbox_id: InboxId,
    client_timestamp_ns: u64,
    actions: impl Iterator<Item = [String; 2]>,
) -> String {
    let mut lines = vec![
        "XMTP : Authenticate to inbox".to_owned(),
        String::new(),
        format!("Inbox ID: {}", inbox_id.to_hex()),
        format!("Current time: {}", rfc3339_seconds(client_timestamp_ns)),
        String::new(),
    ];
    lines.extend(actions.flatten());
    lines.push(String::new());
    lines.push("For more info: https://xmtp.org/signatures".to_owned());
    lines.join("\n")
}

pub(crate) fn create_lines(initial: &Identifier) -> [String; 2] {
    action_lines("Create inbox", "Owner", initial)
}

pub(crate) fn add_lines(member: &Identifier) -> [String; 2] {
    let (title, label) = match member.kind() {
        MemberKind::Installation => ("Grant messaging access to app", "ID"),
        MemberKind::Ethereum => ("Link address to inbox", "Address"),
        MemberKind::Passkey => ("Link passkey to inbox", "Passkey"),
    };
    action_lines(title, label, member)
}

pub(crate) fn revoke_lines(target: &Identifier) -> [String; 2] {
    let (title, label) = match target.kind() {
        MemberKind::Installation => ("Revoke messaging access from app", "ID"),
        MemberKind::Ethereum => ("Unlink address from inbox", "Address"),
        MemberKind::Passkey => ("Unlink passkey from inbox", "Passkey"),
    };
    action_lines(title, label, target)
}

pub(crate) fn change_recovery_lines(recovery: &Identifier) -> [String; 2] {
    action_lines("Change inbox recovery address", "Address", recovery)
}

fn action_lines(title: &str, label: &str, identifier: &Identifier) -> [String; 2] {
    [
        format!("- {title}"),
        format!("  ({label}: {})", identifier.text()),
    ]
}
