//! Admission: what may be stored, decided per kind of envelope.
//!
//! It has two steps, because a stored envelope is accepted again whatever has changed since.
//! [`parse`] reads an envelope and finds its topic and its canonical bytes; what fails here fails
//! for ever. [`Check`] is the part that depends on time or on what else is stored, and runs only
//! for envelopes that are not stored yet.

mod commit_log;
mod group_message;
mod identity;
mod key_package;
mod welcome;

use xmtp_proto::backend::v1::ClientEnvelope;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::envelope::{canonical_bytes, message_hash};
use xmtp_proto::id::{Topic, TopicKind};

use crate::store::{EnvelopeKey, Hash, Reason, Refusal};

pub(crate) use identity::{IdentityVerdict, check_update};
pub(crate) use key_package::check_key_package;

/// The bounds that parsing applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The largest envelope, in bytes.
    pub(crate) max_envelope_bytes: u64,
    /// The most contract signatures of one identity update, in signatures.
    pub(crate) max_scw_signatures: u32,
}

/// An envelope that can be read.
#[derive(Debug)]
pub(crate) struct Parsed {
    /// The topic and the hash of `payload`.
    pub(crate) key: EnvelopeKey,
    /// The canonical bytes.
    pub(crate) payload: bytes::Bytes,
    /// Whether it is framed as a commit or a proposal.
    pub(crate) is_commit_or_proposal: bool,
    /// What is left to check before it may be stored.
    pub(crate) check: Check,
}

/// What is left to check before an envelope may be stored.
#[derive(Debug)]
pub(crate) enum Check {
    /// Nothing.
    None,
    /// The key package against the clock and its own signatures.
    KeyPackage(Box<openmls::prelude::KeyPackageIn>),
    /// The identity update against the log of its inbox.
    IdentityUpdate(Box<xmtp_proto::identity::IdentityUpdate>),
}

/// What one kind of payload says about itself.
#[derive(Debug)]
struct Read {
    topic: Topic,
    is_commit_or_proposal: bool,
    check: Check,
}

impl Read {
    fn plain(topic: Topic) -> Self {
        Self {
            topic,
            is_commit_or_proposal: false,
            check: Check::None,
        }
    }
}

/// Reads one envelope.
pub(crate) fn parse(envelope: &ClientEnvelope, bounds: &Bounds) -> Result<Parsed, Refusal> {
    let payload = canonical_bytes(envelope);
    if payload.len() as u64 > bounds.max_envelope_bytes {
        return Err(too_large(
            "the envelope is larger than limits.max_envelope_bytes",
        ));
    }
    let read = match envelope.payload.as_ref() {
        None => return Err(malformed("the envelope has no payload")),
        Some(Payload::GroupMessage(message)) => group_message::read(message)?,
        Some(Payload::WelcomeMessage(message)) => welcome::read(message)?,
        Some(Payload::KeyPackage(message)) => key_package::read(message)?,
        Some(Payload::IdentityUpdate(update)) => identity::read(update, bounds)?,
        Some(Payload::CommitLogEntry(entry)) => commit_log::read(entry)?,
    };
    Ok(Parsed {
        key: EnvelopeKey {
            topic: read.topic,
            hash: Hash(message_hash(&payload)),
        },
        payload: payload.into(),
        is_commit_or_proposal: read.is_commit_or_proposal,
        check: read.check,
    })
}

/// Tells whether an envelope is kept for ever: what groups and inboxes are rebuilt from.
pub(crate) fn never_expires(kind: TopicKind, is_commit_or_proposal: bool) -> bool {
    match kind {
        TopicKind::Group => is_commit_or_proposal,
        TopicKind::Identity | TopicKind::CommitLog => true,
        TopicKind::Welcome | TopicKind::KeyPackage => false,
    }
}

fn malformed(message: &'static str) -> Refusal {
    Refusal {
        reason: Reason::MalformedPayload,
        message,
    }
}

fn too_large(message: &'static str) -> Refusal {
    Refusal {
        reason: Reason::TooLarge,
        message,
    }
}

/// Builds a topic from an identifier of the wire.
fn topic(kind: TopicKind, identifier: &[u8], message: &'static str) -> Result<Topic, Refusal> {
    let bytes = [&[kind.byte()], identifier].concat();
    Topic::parse(&bytes).map_err(|_| malformed(message))
}
