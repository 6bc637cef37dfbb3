//! The commits that a scenario names, each as what it changes.

use xmtp_mls::group::GroupContext;
use xmtp_mls::welcome::Recipient;
use xmtp_proto::content::GroupMembership;
use xmtp_proto::{GroupId, InstallationId, SequenceId};

use super::forge::{identity, number, package};
use super::{PlayError, World};
use crate::rogue::{Draft, Rogue};

/// Drafts a commit of a kind; `None` when there is no such kind.
pub(super) async fn draft(
    world: &mut World,
    rogue: &Rogue,
    group: &GroupId,
    kind: &str,
    rest: &[&str],
) -> Result<Option<Draft>, PlayError> {
    let context = rogue.context(group)?;
    let plain = Draft::default();
    Ok(Some(match (kind, rest) {
        ("update", []) => plain,
        ("update-ahead", []) => Draft { ahead: 1, ..plain },
        ("dangling", []) => Draft {
            refers_to_unseen: true,
            ..plain
        },
        ("public", []) => Draft {
            is_public: true,
            ..plain
        },
        ("shared-key", []) => Draft {
            needs_shared_key: true,
            ..plain
        },
        ("dictionary-name", [name]) => Draft {
            dictionary_name: Some((*name).to_owned()),
            ..plain
        },
        ("rename", [name]) => attribute(&context, "group_name", name),
        ("floor", [version]) => attribute(&context, "minimum_supported_protocol_version", version),
        ("sign-log", [seed]) => attribute(&context, "_commit_log_signer", seed),
        ("crown" | "depose" | "promote", [whom]) => roles(&context, kind, world, whom)?,
        ("recreate", [whom]) => Draft {
            creator: Some(world.inbox(whom)?),
            ..plain
        },
        ("require-less", []) => Draft {
            requires_less: true,
            ..plain
        },
        ("loosen", []) => Draft {
            policies: Some(xmtp_mls::group::preset_policies(
                xmtp_mls::group::Preset::AdminsOnly,
            )),
            ..plain
        },
        ("steal-leaf", [whom]) => Draft {
            names: Some(world.inbox(whom)?),
            ..plain
        },
        _ => return members(world, &context, kind, rest).await,
    }))
}

fn attribute(context: &GroupContext, name: &str, value: &str) -> Draft {
    let mut metadata = context.to_mutable_metadata();
    metadata
        .attributes
        .insert(name.to_owned(), value.to_owned());
    Draft {
        metadata: Some(metadata),
        ..Draft::default()
    }
}

fn roles(
    context: &GroupContext,
    kind: &str,
    world: &World,
    whom: &str,
) -> Result<Draft, PlayError> {
    let mut next = context.clone();
    let inbox = world.inbox(whom)?;
    match kind {
        "crown" => next.super_admins.insert(inbox),
        "promote" => next.admins.insert(inbox),
        _ => next.super_admins.remove(&inbox),
    };
    Ok(Draft {
        metadata: Some(next.to_mutable_metadata()),
        ..Draft::default()
    })
}

/// Drafts what changes the member list, the leaves, or one without the other.
async fn members(
    world: &mut World,
    context: &GroupContext,
    kind: &str,
    rest: &[&str],
) -> Result<Option<Draft>, PlayError> {
    let mut next = context.clone();
    let Some((whom, rest)) = rest.split_first() else {
        return Ok(None);
    };
    world.client(whom).await?;
    let inbox = world.inbox(whom)?;
    let newest = identity(world, &inbox).await?;
    let draft = match (kind, rest) {
        ("member", [at]) => {
            let at = number(world, at)?;
            let mut list: GroupMembership = context.to_membership();
            list.members.insert(inbox.to_hex(), at);
            Draft {
                membership: Some(list),
                ..Draft::default()
            }
        }
        ("add", []) => {
            next.members.insert(inbox, newest);
            let mut draft = leaf(world, whom).await?;
            draft.membership = Some(next.to_membership());
            draft
        }
        ("add-at", [at]) => {
            next.members
                .insert(inbox, SequenceId::saturating(number(world, at)?));
            let mut draft = leaf(world, whom).await?;
            draft.membership = Some(next.to_membership());
            draft
        }
        ("add-leaf", []) => leaf(world, whom).await?,
        ("list", []) => {
            next.members.insert(inbox, newest);
            listed(&next)
        }
        ("list-failed", []) => {
            next.members.insert(inbox, newest);
            next.failed.insert(installation(world, whom).await?);
            listed(&next)
        }
        ("unlist", []) => {
            next.members.remove(&inbox);
            listed(&next)
        }
        ("remove", []) => {
            next.members.remove(&inbox);
            Draft {
                removes: vec![installation(world, whom).await?],
                ..listed(&next)
            }
        }
        ("remove-leaf", []) => Draft {
            removes: vec![installation(world, whom).await?],
            ..Draft::default()
        },
        ("remove-revoked", []) => {
            next.members.insert(inbox, newest);
            Draft {
                removes: vec![installation(world, whom).await?],
                ..listed(&next)
            }
        }
        ("readd", []) => readd(world, whom).await?,
        ("readd-after", [ahead]) => Draft {
            ahead: ahead
                .parse()
                .map_err(|_| PlayError::Told(format!("{ahead} is no number")))?,
            ..readd(world, whom).await?
        },
        _ => return Ok(None),
    };
    Ok(Some(draft))
}

fn listed(next: &GroupContext) -> Draft {
    Draft {
        membership: Some(next.to_membership()),
        ..Draft::default()
    }
}

async fn installation(world: &mut World, whom: &str) -> Result<InstallationId, PlayError> {
    let Recipient { installation, .. } = package(world, whom).await?.recipient;
    Ok(installation)
}

async fn leaf(world: &mut World, whom: &str) -> Result<Draft, PlayError> {
    Ok(Draft {
        adds: vec![package(world, whom).await?],
        ..Draft::default()
    })
}

/// Removes an installation and adds it again, in one commit.
async fn readd(world: &mut World, whom: &str) -> Result<Draft, PlayError> {
    let package = package(world, whom).await?;
    Ok(Draft {
        removes: vec![package.recipient.installation],
        adds: vec![package],
        ..Draft::default()
    })
}
