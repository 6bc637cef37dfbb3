//! What an applied update means for the lookup from an identifier to its inboxes.
//!
//! An identifier may belong to several inboxes; a lookup answers with the live association whose
//! update has the highest sequence id. Installations are never looked up.

use xmtp_proto::id::InboxId;

use crate::identifier::{Identifier, IdentifierKind};
use crate::state::AssociationState;

/// Tells that an identifier joined or left an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifierChange {
    /// The kind of the identifier.
    pub kind: IdentifierKind,
    /// The text under which the identifier is looked up.
    pub text: String,
    /// The inbox that it joined or left.
    pub inbox_id: InboxId,
    /// Which of the two.
    pub change: Association,
}

/// Tells whether an association begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Association {
    /// The identifier belongs to the inbox from this update on.
    Associated,
    /// The identifier no longer belongs to the inbox.
    Revoked,
}

/// Lists how one update changed the lookup, revocations first, then ordered by identifier.
///
/// A member that one update revokes and adds again has a new association, seen by its record.
pub fn identifier_changes(
    before: Option<&AssociationState>,
    after: &AssociationState,
) -> Vec<IdentifierChange> {
    let former = before
        .map(AssociationState::identifiers)
        .unwrap_or_default();
    let revoked = former
        .iter()
        .filter(|identifier| !after.is_member(identifier))
        .filter_map(|identifier| change(identifier, after.inbox_id, Association::Revoked));
    let current = after.identifiers();
    let associated = current
        .iter()
        .filter(|identifier| {
            before.and_then(|before| before.member(identifier)) != after.member(identifier)
        })
        .filter_map(|identifier| change(identifier, after.inbox_id, Association::Associated));
    revoked.chain(associated).collect()
}

fn change(
    identifier: &Identifier,
    inbox_id: InboxId,
    change: Association,
) -> Option<IdentifierChange> {
    let (kind, text) = (identifier.identifier_kind()?, identifier.text());
    Some(IdentifierChange {
        kind,
        text,
        inbox_id,
        change,
    })
}
