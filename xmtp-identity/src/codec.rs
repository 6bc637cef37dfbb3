//! The stored form of a state.
//!
//! Invariant: what is read back equals what was written, and equal states have equal bytes, for
//! members and replay keys are written in order.

use xmtp_proto::id::InboxId;
use xmtp_proto::identity as proto;

use crate::identifier::{Identifier, IdentifierError, IdentifierKind};
use crate::state::{AssociationState, Member, Recovery};

/// Reports why a stored state can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateDecodeError {
    /// The inbox id is not 64 lowercase hex digits.
    #[error("the stored state has no inbox id")]
    InboxId,
    /// An identifier is malformed.
    #[error("the stored state has a malformed identifier")]
    Identifier(#[from] IdentifierError),
    /// A member's record is incomplete or stands under another identifier.
    #[error("the stored record of member {position} is incomplete or misplaced")]
    Member {
        /// Position of the record.
        position: usize,
    },
}

impl StateDecodeError {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InboxId => "identity.state.inbox_id",
            Self::Identifier(_) => "identity.state.identifier",
            Self::Member { .. } => "identity.state.member",
        }
    }
}

impl AssociationState {
    /// Writes the state as a message.
    pub fn to_proto(&self) -> proto::AssociationState {
        let recovery = &self.recovery.identifier;
        let kind = recovery
            .identifier_kind()
            .map_or(0, IdentifierKind::to_proto);
        proto::AssociationState {
            inbox_id: self.inbox_id.to_hex(),
            members: self.members.values().map(Member::to_proto).collect(),
            recovery_identifier: recovery.text(),
            seen_signatures: self.seen.iter().cloned().collect(),
            recovery_identifier_kind: kind,
            relying_party: recovery.relying_party().map(str::to_owned),
            recovery_chain_id: self.recovery.chain_id,
        }
    }

    /// Reads a state that [`AssociationState::to_proto`] wrote.
    pub fn from_proto(message: &proto::AssociationState) -> Result<Self, StateDecodeError> {
        let kind = IdentifierKind::from_proto(message.recovery_identifier_kind)?;
        let relying_party = message.relying_party.clone();
        let recovery = Identifier::from_text(kind, &message.recovery_identifier, relying_party)?;
        let members = message.members.iter().enumerate().map(|(position, entry)| {
            let member = Member::from_proto(position, entry)?;
            Ok((member.identifier.clone(), member))
        });
        Ok(Self {
            inbox_id: InboxId::parse_hex(&message.inbox_id)
                .map_err(|_| StateDecodeError::InboxId)?,
            members: members.collect::<Result<_, StateDecodeError>>()?,
            recovery: Recovery {
                identifier: recovery,
                chain_id: message.recovery_chain_id,
            },
            seen: message.seen_signatures.iter().cloned().collect(),
        })
    }
}

impl Member {
    fn to_proto(&self) -> proto::MemberMap {
        let identifier = self.identifier.to_proto();
        proto::MemberMap {
            key: Some(identifier.clone()),
            value: Some(proto::Member {
                identifier: Some(identifier),
                added_by_entity: self.added_by.as_ref().map(Identifier::to_proto),
                client_timestamp_ns: Some(self.added_at_ns),
                added_on_chain_id: self.chain_id,
            }),
        }
    }

    fn from_proto(position: usize, entry: &proto::MemberMap) -> Result<Self, StateDecodeError> {
        let incomplete = StateDecodeError::Member { position };
        let key = Identifier::from_proto(entry.key.as_ref().ok_or(incomplete)?)?;
        let value = entry.value.as_ref().ok_or(incomplete)?;
        let identifier = Identifier::from_proto(value.identifier.as_ref().ok_or(incomplete)?)?;
        if identifier != key {
            return Err(incomplete);
        }
        Ok(Self {
            identifier,
            added_by: value
                .added_by_entity
                .as_ref()
                .map(Identifier::from_proto)
                .transpose()?,
            added_at_ns: value.client_timestamp_ns.ok_or(incomplete)?,
            chain_id: value.added_on_chain_id,
        })
    }
}
