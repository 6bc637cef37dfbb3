//! Between the store's records and the messages of the wire.

use prost::Message;
use tonic::Status;
use xmtp_proto::backend::v1::{
    ClientEnvelope, EnvelopeMeta, MessageHash, ServerEnvelope, Topic as WireTopic, TopicQuery,
    message_hash,
};
use xmtp_proto::id::{SequenceId, Topic};

use super::status::{broken, invalid};
use crate::store::{Envelope, Meta};

/// Reads a topic; a client error says only that it is none.
pub(crate) fn decode_topic(topic: &WireTopic) -> Result<Topic, Status> {
    Topic::parse(&topic.topic).map_err(|_| invalid("a topic is malformed"))
}

/// Reads a topic and its cursor; an absent cursor is zero.
pub(crate) fn decode_topic_query(query: &TopicQuery) -> Result<(Topic, SequenceId), Status> {
    let topic = query
        .topic
        .as_ref()
        .ok_or_else(|| invalid("a topic is missing"))?;
    let cursor = query.cursor.as_ref().map_or(0, |cursor| cursor.sequence_id);
    let cursor = SequenceId::checked(cursor);
    let cursor = cursor.map_err(|_| invalid("a cursor is above the greatest sequence id"))?;
    Ok((decode_topic(topic)?, cursor))
}

pub(crate) fn wire_topic(topic: &Topic) -> WireTopic {
    WireTopic {
        topic: topic.as_bytes().to_vec().into(),
    }
}

pub(crate) fn wire_meta(meta: &Meta) -> EnvelopeMeta {
    let sha256 = meta.key.hash.0.to_vec().into();
    EnvelopeMeta {
        cursor: Some(meta.sequence_id.to_cursor()),
        server_ns: meta.server_ns,
        message_hash: Some(MessageHash {
            hash: Some(message_hash::Hash::Sha256(sha256)),
        }),
        topic: Some(wire_topic(&meta.key.topic)),
        expiry_ns: meta.expiry_ns.unwrap_or(0),
        is_commit_or_proposal: meta.is_commit_or_proposal,
    }
}

pub(crate) fn client_envelope(envelope: &Envelope) -> Result<ClientEnvelope, Status> {
    let decoded = ClientEnvelope::decode(envelope.payload.clone());
    decoded.map_err(|_| broken("a stored envelope can not be read"))
}

pub(crate) fn server_envelope(envelope: &Envelope) -> Result<ServerEnvelope, Status> {
    let client = client_envelope(envelope)?;
    Ok(ServerEnvelope {
        meta: Some(wire_meta(&envelope.meta)),
        envelope: Some(client),
    })
}
