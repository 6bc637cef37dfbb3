//! What rogues make in a scenario, by the words of its line.

use xmtp_core::transport::Transport as _;
use xmtp_identity::{Identifier, LocalWallet, UpdateBuilder};
use xmtp_mls::key_package::{FetchedPackage, check};
use xmtp_mls::welcome::WrapperAlgorithm;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::query_newest_response::Result as Newest;
use xmtp_proto::backend::v1::welcome_message::{Version, WelcomePointer};
use xmtp_proto::backend::v1::{ClientEnvelope, PublishRequest, QueryNewestRequest, WelcomeMessage};
use xmtp_proto::{GroupId, InboxId, SequenceId, Topic};

use super::{PlayError, World, draft};
use crate::ShiftedRuntime;
use crate::mls_bytes;
use crate::rogue::{
    Form, Invitation, Rogue, Wrapping, cut, flipped, group_envelope, longer, welcome_envelope,
    wrapped, wrapped_behind_pointer,
};

/// Bytes of an envelope that is larger than the backend takes.
const TOO_LARGE: usize = 1024 * 1024 + 1;
/// The lowest number that is no sequence id.
const BEYOND_RANGE: u64 = 1 << 63;
/// The highest sequence id.
const LATE: u64 = BEYOND_RANGE - 1;

/// Keys that one commit or proposal uses at most.
const KEYS_OF_ONE: u32 = 2;

/// An envelope that was made for a scenario, or found at the backend.
#[derive(Clone, Debug)]
pub(super) struct Forged {
    pub(super) envelope: ClientEnvelope,
    pub(super) invitation: Option<Invitation>,
    /// Where it is stored, once it is.
    pub(super) stored: Option<(Topic, SequenceId)>,
}

impl Forged {
    fn new(envelope: ClientEnvelope) -> Self {
        Self {
            envelope,
            invitation: None,
            stored: None,
        }
    }
}

/// Makes an envelope and keeps it under a label; one that is kept already stays as it is.
pub(super) async fn forge(
    world: &mut World,
    who: &str,
    what: &[String],
    label: &str,
) -> Result<(), PlayError> {
    if world.forged.contains_key(label) {
        return Ok(());
    }
    let words: Vec<&str> = what.iter().map(String::as_str).collect();
    let made = match words.as_slice() {
        ["newest", group] => {
            let topic = Topic::group(&world.group(group)?);
            found(newest(world, topic, true).await?, topic)?
        }
        ["newest-identity", whom] => {
            let topic = Topic::identity(&world.inbox(whom)?);
            found(newest(world, topic, true).await?, topic)?
        }
        ["newest-welcome", whom] => {
            let topic = Topic::welcome(&world.client(whom).await?.installation_id());
            found(newest(world, topic, true).await?, topic)?
        }
        ["nothing"] => Forged::new(ClientEnvelope::default()),
        ["large", group] => {
            let group = *world.group(group)?.as_bytes();
            Forged::new(mls_bytes::group_message_of(group, TOO_LARGE))
        }
        [
            "again" | "cut" | "flipped" | "longer" | "not-symmetric" | "pointer-again",
            other,
        ] => Forged::new(changed(&world.kept(other)?.envelope, words[0])?),
        ["welcome" | "pointer", ..] => welcome(world, &words, label).await?,
        _ => by_member(world, who, &words).await?,
    };
    world.forged.insert(label.to_owned(), made);
    Ok(())
}

/// Changes an envelope that is kept.
fn changed(envelope: &ClientEnvelope, how: &str) -> Result<ClientEnvelope, PlayError> {
    let unfit = || PlayError::Told(format!("{how} does not fit that envelope"));
    match envelope.payload.as_ref() {
        Some(Payload::GroupMessage(message)) => Ok(match how {
            // The same MLS bytes in an envelope that the backend has not seen.
            "again" => group_envelope(message.data.to_vec(), 1 + message.sender_hmac.len() as u8),
            "cut" => group_envelope(cut(&message.data), 0),
            "flipped" => group_envelope(flipped(&message.data), 0),
            "longer" => group_envelope(longer(&message.data), 0),
            _ => return Err(unfit()),
        }),
        Some(Payload::WelcomeMessage(message)) => {
            let Some(Version::V1(mut inline)) = message.version.clone() else {
                return Err(unfit());
            };
            let version = match how {
                "flipped" => {
                    inline.data = flipped(&inline.data).into();
                    Version::V1(inline)
                }
                "not-symmetric" => {
                    inline.wrapper_algorithm = WrapperAlgorithm::XWing.to_wire().into();
                    Version::V1(inline)
                }
                "pointer-again" => Version::WelcomePointer(WelcomePointer {
                    installation_key: inline.installation_key,
                    wrapper_algorithm: WrapperAlgorithm::XWing.to_wire().into(),
                    ..WelcomePointer::default()
                }),
                _ => return Err(unfit()),
            };
            let version = Some(version);
            Ok(welcome_envelope(WelcomeMessage { version }))
        }
        _ => Err(unfit()),
    }
}

/// Makes what needs the state of a member: messages, proposals and commits.
async fn by_member(world: &mut World, who: &str, words: &[&str]) -> Result<Forged, PlayError> {
    let rogue = Rogue::of(&world.client(who).await?, world.used)?;
    let unknown = || PlayError::Told(format!("nobody makes {words:?}"));
    let [kind, group, rest @ ..] = words else {
        return Err(unknown());
    };
    let group = world.group(group)?;
    let plain = |bytes| Ok(Forged::new(group_envelope(bytes, 0)));
    match (*kind, rest) {
        ("text", [text]) => plain(rogue.text(&group, text, 0)?),
        ("text-ahead", [text]) => plain(rogue.text(&group, text, 1)?),
        ("text-forged", [text]) => plain(rogue.forged_text(&group, text)?),
        ("text-after", [unsent]) => {
            let unsent = unsent.parse().map_err(|_| unknown())?;
            plain(rogue.text_after(&group, unsent)?)
        }
        ("proposal", [place]) => {
            world.used += KEYS_OF_ONE;
            let place = place.parse().map_err(|_| unknown())?;
            plain(rogue.proposal(&group, place)?)
        }
        _ => {
            let draft = draft::draft(world, &rogue, &group, kind, rest).await?;
            world.used += KEYS_OF_ONE;
            let commit = rogue.commit(&group, &draft.ok_or_else(unknown)?)?;
            Ok(Forged {
                invitation: commit.invitation,
                ..Forged::new(group_envelope(commit.bytes, 0))
            })
        }
    }
}

/// Wraps the Welcome of a commit: `welcome COMMIT WHOM ANCHOR [WRAPPING]`, or the same behind a
/// pointer, whose pointee is kept under the label and `-pointee`.
async fn welcome(world: &mut World, words: &[&str], label: &str) -> Result<Forged, PlayError> {
    let unknown = || PlayError::Told(format!("nobody wraps {words:?}"));
    let [form, commit, whom, anchor, rest @ ..] = words else {
        return Err(unknown());
    };
    let invitation = world.kept(commit)?.invitation;
    let invitation = invitation.ok_or_else(|| PlayError::Told(format!("{commit} adds nobody")))?;
    let anchor = SequenceId::checked(number(world, anchor)?)
        .map_err(|_| PlayError::Told("the anchor is no sequence id".to_owned()))?;
    let recipient = package(world, whom).await?.recipient;
    let runtime = ShiftedRuntime::ahead(std::time::Duration::ZERO);
    if *form == "pointer" {
        let pointed = wrapped_behind_pointer(&*runtime, &invitation, &recipient, anchor)?;
        let pointee = Forged::new(welcome_envelope(pointed.pointee));
        world.forged.insert(format!("{label}-pointee"), pointee);
        return Ok(Forged::new(welcome_envelope(pointed.pointer)));
    }
    let wrapping = match rest {
        [] => Wrapping::Sound,
        ["without-metadata"] => Wrapping::NoMetadata,
        ["unknown-algorithm"] => Wrapping::UnknownAlgorithm,
        ["downgraded"] => Wrapping::Downgraded,
        ["to-a-stranger"] => Wrapping::Stranger,
        ["flipped"] => Wrapping::Flipped,
        ["other-version"] => Wrapping::OtherVersion,
        ["no-welcome"] => Wrapping::NoWelcome,
        _ => return Err(unknown()),
    };
    let message = wrapped(&*runtime, &invitation, &recipient, anchor, wrapping)?;
    Ok(Forged::new(welcome_envelope(message)))
}

/// Reads a number: `zero`, `huge`, `late`, or where the envelope of a label is stored.
pub(super) fn number(world: &World, word: &str) -> Result<u64, PlayError> {
    match word {
        "zero" => Ok(0),
        "huge" => Ok(BEYOND_RANGE),
        "late" => Ok(LATE),
        label => Ok(world.posted(label)?.1.get()),
    }
}

/// Founds a group with people who get leaves; the commit that adds them is kept under the group's
/// name and `-adding`.
///
/// `dm`, `dm-of-three` and `sync` name everybody who is added; `plain` and `dictionary` too.
pub(super) async fn found_group(
    world: &mut World,
    who: &str,
    form: &str,
    group: &str,
    whom: &[String],
) -> Result<(), PlayError> {
    if world.groups.contains_key(group) {
        return Ok(());
    }
    let rogue = Rogue::of(&world.client(who).await?, 0)?;
    let (mut members, mut added) = (Vec::new(), Vec::new());
    for name in whom {
        let inbox = world.inbox(name)?;
        added.push(package(world, name).await?);
        members.push((inbox, identity(world, &inbox).await?));
    }
    let with = members.first().map(|(inbox, _)| *inbox);
    let form = match (form, with) {
        ("dm", Some(with)) => Form::Dm(with),
        ("sync", _) => Form::Sync,
        ("dictionary", _) => Form::Dictionary,
        ("plain", _) => Form::Plain,
        _ => return Err(PlayError::Told(format!("nobody founds {form}"))),
    };
    let inbox = world.inbox(who)?;
    let own = identity(world, &inbox).await?;
    let founded = rogue.found(form, own, &members, &added)?;
    let adding = Forged {
        invitation: founded.adding.invitation,
        ..Forged::new(group_envelope(founded.adding.bytes, 0))
    };
    world.forged.insert(format!("{group}-adding"), adding);
    world.groups.insert(group.to_owned(), founded.group);
    Ok(())
}

/// Takes an installation out of its inbox, by the wallet that both belong to.
pub(super) async fn revoke(world: &mut World, who: &str, whom: &str) -> Result<(), PlayError> {
    let label = format!("{whom}-revoked");
    if !world.forged.contains_key(&label) {
        let client = world.client(whom).await?;
        let (inbox, target) = (client.inbox_id(), client.installation_id());
        let wallet = LocalWallet::from_secret(&world.secret(who)?)?;
        let refused = |error: xmtp_identity::BuildError| PlayError::Told(error.to_string());
        let unsigned = UpdateBuilder::update_inbox(inbox, wallet.identifier().clone())
            .revoke(Identifier::Installation(target))
            .build(client.engine().context().runtime.now_ns())
            .map_err(refused)?;
        let signature = wallet.sign_text(unsigned.signature_text());
        let signature = signature.map_err(|error| PlayError::Told(error.to_string()))?;
        let signed = unsigned.with_signature(signature).map_err(refused)?;
        let payload = Payload::IdentityUpdate(signed.finish().map_err(refused)?);
        let envelope = ClientEnvelope {
            payload: Some(payload),
        };
        world.forged.insert(label.clone(), Forged::new(envelope));
    }
    post(world, &label).await
}

/// Publishes an envelope, once, and remembers where it is stored.
pub(super) async fn post(world: &mut World, label: &str) -> Result<(), PlayError> {
    let kept = world.kept(label)?;
    if kept.stored.is_some() {
        return Ok(());
    }
    let request = PublishRequest {
        envelopes: vec![kept.envelope],
    };
    let response = world.backend().publish(request).await;
    let response = response.map_err(|error| PlayError::Told(format!("refused: {error}")))?;
    let meta = response.envelope_metas.into_iter().next();
    let stored = meta.and_then(|meta| {
        let topic = Topic::parse(&meta.topic?.topic).ok()?;
        Some((topic, SequenceId::checked(meta.cursor?.sequence_id).ok()?))
    });
    let stored = stored.ok_or_else(|| PlayError::Told("the backend told no place".to_owned()))?;
    if let Some(kept) = world.forged.get_mut(label) {
        kept.stored = Some(stored);
    }
    Ok(())
}

/// Tries to publish an envelope that the backend must refuse.
pub(super) async fn cannot_post(world: &mut World, label: &str) -> Result<(), PlayError> {
    let request = PublishRequest {
        envelopes: vec![world.kept(label)?.envelope],
    };
    match world.backend().publish(request).await {
        Err(error) if !error.is_retryable() => Ok(()),
        Err(error) => Err(PlayError::Told(format!("no refusal but {error}"))),
        Ok(_) => Err(PlayError::Told("the backend took it".to_owned())),
    }
}

/// Lets somebody see an identity log whose newest update nobody signed.
pub(super) async fn break_inbox(world: &mut World, who: &str, whom: &str) -> Result<(), PlayError> {
    let topic = Topic::identity(&world.inbox(whom)?);
    let mut broken = found(newest(world, topic, true).await?, topic)?;
    if let Some(Payload::IdentityUpdate(update)) = &mut broken.envelope.payload {
        // The signed text has whole seconds.
        update.client_timestamp_ns += 1_000_000_000;
    }
    if let Some((_, sequence)) = broken.stored {
        world.shown(who)?.show(sequence.get(), broken.envelope);
    }
    Ok(())
}

/// Reads the newest key package of somebody's installation.
pub(super) async fn package(world: &mut World, whom: &str) -> Result<FetchedPackage, PlayError> {
    let client = world.client(whom).await?;
    let (id, inbox) = (client.installation_id(), client.inbox_id());
    let newest = newest(world, Topic::key_package(&id), true).await?;
    let Some(Payload::KeyPackage(package)) = newest.envelope.and_then(|envelope| envelope.payload)
    else {
        return Err(PlayError::Told(format!("{whom} has no key package")));
    };
    let now = client.engine().context().runtime.now_ns();
    let checked = check(&package.key_package_tls_serialized, &id, &inbox, now);
    checked.map_err(|fault| PlayError::Told(fault.to_string()))
}

/// Reads the sequence id of an inbox's newest update.
pub(super) async fn identity(world: &World, inbox: &InboxId) -> Result<SequenceId, PlayError> {
    let newest = newest(world, Topic::identity(inbox), false).await?;
    let cursor = newest.meta.and_then(|meta| meta.cursor);
    Ok(SequenceId::saturating(
        cursor.map_or(0, |cursor| cursor.sequence_id),
    ))
}

async fn newest(world: &World, topic: Topic, full: bool) -> Result<Newest, PlayError> {
    let request = QueryNewestRequest {
        topics: vec![topic.to_proto()],
        include_full_envelope: full,
    };
    let response = world.backend().query_newest(request).await;
    let response = response.map_err(|error| PlayError::Told(error.to_string()))?;
    let result = response.results.into_iter().next();
    result.ok_or_else(|| PlayError::Told("nothing is stored there".to_owned()))
}

/// Takes a stored envelope as if it had been posted.
fn found(newest: Newest, topic: Topic) -> Result<Forged, PlayError> {
    let missing = || PlayError::Told("nothing is stored there".to_owned());
    let cursor = newest.meta.and_then(|meta| meta.cursor);
    let sequence = SequenceId::saturating(cursor.ok_or_else(missing)?.sequence_id);
    Ok(Forged {
        stored: Some((topic, sequence)),
        ..Forged::new(newest.envelope.ok_or_else(missing)?)
    })
}

impl World {
    /// Answers what is kept under a label.
    pub(super) fn kept(&self, label: &str) -> Result<Forged, PlayError> {
        let kept = self.forged.get(label).cloned();
        kept.ok_or_else(|| PlayError::Told(format!("{label} was never made")))
    }

    /// Answers where the envelope of a label is stored.
    pub(super) fn posted(&self, label: &str) -> Result<(Topic, SequenceId), PlayError> {
        let stored = self.kept(label)?.stored;
        stored.ok_or_else(|| PlayError::Told(format!("{label} was never posted")))
    }

    /// Answers a group by its name in the scenario.
    pub(super) fn group(&self, name: &str) -> Result<GroupId, PlayError> {
        let id = self.groups.get(name).copied();
        id.ok_or_else(|| PlayError::Told(format!("{name} was never created")))
    }
}
