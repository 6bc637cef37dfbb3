//! Groups that begin in a way no client of ours begins one.

use xmtp_core::processor::Joined;
use xmtp_core::storage::WriteTxn;
use xmtp_core::welcome::{CREATED_DURABILITY, install_created};
use xmtp_mls::Provider;
use xmtp_mls::group::{
    GroupContext, NewConversation, NewGroup, Preset, create_group, merge_pending,
};
use xmtp_mls::key_package::FetchedPackage;
use xmtp_proto::content::ConversationType;
use xmtp_proto::storage::v1::GroupRecord;
use xmtp_proto::{GroupId, InboxId, SequenceId};

use super::commits::immutable;
use super::{Commit, Draft, Rogue, RogueError, Trial, dictionary, mls};

/// What a group is founded as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A two-party conversation with this inbox.
    Dm(InboxId),
    /// A group of the installations of one inbox.
    Sync,
    /// An ordinary group in the dictionary form.
    Dictionary,
    /// An ordinary group.
    Plain,
}

/// A founded group.
#[derive(Clone, Debug)]
pub struct Founded {
    /// The group.
    pub group: GroupId,
    /// The commit that adds its first members, which is not published yet.
    pub adding: Commit,
}

impl Rogue {
    /// Founds a group and keeps it: it is the one thing of a rogue that stays.
    ///
    /// `members` are on the member list with the identity update they are taken from; `added` get
    /// leaves. `own` is the rogue's own identity update.
    ///
    /// # Errors
    /// When the database or openmls fails.
    pub fn found(
        &self,
        form: Form,
        own: SequenceId,
        members: &[(InboxId, SequenceId)],
        added: &[FetchedPackage],
    ) -> Result<Founded, RogueError> {
        let ended = self
            .database
            .write(CREATED_DURABILITY, |txn: &mut WriteTxn<'_>| {
                self.founded(txn, form, own, members, added)
                    .map_err(Trial::Failed)
            });
        ended.map_err(|trial| match trial {
            Trial::Failed(error) => error,
            Trial::Over => mls("nothing was founded"),
        })
    }

    fn founded(
        &self,
        txn: &mut WriteTxn<'_>,
        form: Form,
        own: SequenceId,
        members: &[(InboxId, SequenceId)],
        added: &[FetchedPackage],
    ) -> Result<Founded, RogueError> {
        let new = NewGroup {
            conversation: match form {
                Form::Dm(with) => NewConversation::Dm(with),
                _ => NewConversation::Group(Preset::AllMembers),
            },
            creator_sequence: own,
            name: String::new(),
            description: String::new(),
            image_url: String::new(),
            app_data: String::new(),
            disappearing: None,
        };
        let (id, mut group) = create_group(txn, &self.installation, &new).map_err(mls)?;
        let context = GroupContext::of(&group).map_err(mls)?;
        let mut next = context.clone();
        next.members.extend(members.iter().copied());
        let mut first = Draft {
            membership: Some(next.to_membership()),
            ..Draft::default()
        };
        match form {
            Form::Dm(_) | Form::Plain => {}
            Form::Sync => {
                let fixed = immutable(&group, |metadata| {
                    metadata.conversation_type = ConversationType::Sync.into();
                })?;
                let mut extensions = group.extensions().clone();
                extensions.add_or_replace(fixed).map_err(mls)?;
                first.extensions = Some(extensions);
            }
            Form::Dictionary => first.extensions = Some(dictionary::extensions(&next)?),
        }
        // A list and leaves in two steps: nobody but the rogue sees the first.
        self.staged(txn, &mut group, &first)?;
        merge_pending(&mut group, &Provider::new(txn)).map_err(mls)?;
        let mut second = Draft {
            adds: added.to_vec(),
            ..Draft::default()
        };
        if form == Form::Sync {
            second.membership = Some(next.to_membership());
        }
        let adding = self.staged(txn, &mut group, &second)?;
        merge_pending(&mut group, &Provider::new(txn)).map_err(mls)?;
        let record = GroupRecord {
            conversation_type: context.conversation_type as u32,
            added_by_inbox: self.installation.inbox().to_hex(),
            created_ns: txn.now_ns(),
            epoch: group.epoch().as_u64(),
            epoch_authenticator: group.epoch_authenticator().as_slice().to_vec().into(),
            ..GroupRecord::default()
        };
        let joined = Joined {
            record,
            messages: Vec::new(),
        };
        install_created(txn, id, joined)?;
        Ok(Founded { group: id, adding })
    }
}
