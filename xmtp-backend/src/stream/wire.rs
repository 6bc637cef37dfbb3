//! Frames as bytes and as messages.
//!
//! Envelopes are encoded already; a frame of messages is a tag, a length, and copies.

use bytes::{BufMut, BytesMut};
use prost::Message;
use tonic::Status;
use xmtp_proto::backend::v1::{
    CatchupTarget, Ping, Pong, SubscribeRequest, SubscribeResponse, SubscribeStaticRequest,
    SubscribeStaticResponse, subscribe_response, subscribe_static_response,
};
use xmtp_proto::id::{SequenceId, Topic};

use crate::services::{Failure, wire_topic};
use crate::session::{Frame, begin_field};

/// One of the two kinds of stream on the wire.
pub(crate) trait Kind: 'static {
    /// What the client sends.
    type Request: Message + Default + 'static;
    /// What the client gets.
    type Response: Message + Default;
    /// The number of the field that holds messages.
    const MESSAGES: u32;

    /// Makes the message of a frame that is not one of messages.
    ///
    /// - A session of the other kind queues what this kind does not have.
    fn control(frame: &Frame) -> Self::Response;
}

/// The stream whose interest changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changing;

impl Kind for Changing {
    type Request = SubscribeRequest;
    type Response = SubscribeResponse;
    const MESSAGES: u32 = 3;

    fn control(frame: &Frame) -> SubscribeResponse {
        use subscribe_response::{Applied, Response, Started};
        let response = match frame {
            Frame::Started {
                keepalive_interval_ms,
                ..
            } => Some(Response::Started(Started {
                keepalive_interval_ms: *keepalive_interval_ms,
            })),
            Frame::Applied { id, added } => Some(Response::Applied(Applied {
                id: *id,
                added_targets: targets(added),
            })),
            Frame::Ping { nonce } => Some(Response::Ping(Ping { nonce: *nonce })),
            Frame::Pong { nonce } => Some(Response::Pong(Pong { nonce: *nonce })),
            Frame::Messages(_) | Frame::Keepalive => None,
        };
        SubscribeResponse { response }
    }
}

/// The stream whose topics are fixed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed;

impl Kind for Fixed {
    type Request = SubscribeStaticRequest;
    type Response = SubscribeStaticResponse;
    const MESSAGES: u32 = 2;

    fn control(frame: &Frame) -> SubscribeStaticResponse {
        use subscribe_static_response::{Keepalive, Response, Started};
        let response = match frame {
            Frame::Started {
                keepalive_interval_ms,
                targets: heads,
            } => Some(Response::Started(Started {
                keepalive_interval_ms: *keepalive_interval_ms,
                targets: targets(heads),
            })),
            Frame::Keepalive => Some(Response::Keepalive(Keepalive {})),
            _ => None,
        };
        SubscribeStaticResponse { response }
    }
}

fn targets(heads: &[(Topic, SequenceId)]) -> Vec<CatchupTarget> {
    let target = |(topic, head): &(Topic, SequenceId)| CatchupTarget {
        topic: Some(wire_topic(topic)),
        through_sequence_id: head.get(),
    };
    heads.iter().map(target).collect()
}

/// Writes a frame to `out`, which grows; `reserve` is told how much is coming.
pub(crate) fn encode<K: Kind, B: BufMut>(frame: &Frame, out: &mut B, reserve: fn(&mut B, usize)) {
    let Frame::Messages(rows) = frame else {
        let message = K::control(frame);
        reserve(out, message.encoded_len());
        return message.encode_raw(out);
    };
    let bytes = rows.iter().map(|row| row.element().len()).sum();
    reserve(out, bytes + FIELD_BYTES);
    begin_field(K::MESSAGES, bytes, out);
    rows.iter().for_each(|row| out.put_slice(row.element()));
}

/// What a tag and a length take at most, in bytes.
const FIELD_BYTES: usize = 16;

/// Makes the message of a frame, for callers without a socket.
pub(super) fn message<K: Kind>(frame: Frame) -> Result<K::Response, Status> {
    if !matches!(frame, Frame::Messages(_)) {
        return Ok(K::control(&frame));
    }
    let mut bytes = BytesMut::new();
    encode::<K, _>(&frame, &mut bytes, BytesMut::reserve);
    K::Response::decode(bytes.freeze()).map_err(|_| {
        tracing::error!("a stored envelope can not be read");
        Failure::ServerFault.status("the server is at fault")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::fixture::{group, stored_text};
    use crate::session::{Held, Row};

    fn bytes<K: Kind>(frame: &Frame) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        encode::<K, _>(frame, &mut bytes, BytesMut::reserve);
        bytes.to_vec()
    }

    /// covers: STR-011
    #[test]
    fn copied_rows_are_the_message_that_prost_would_write() {
        let stored = [
            stored_text(group(1), 7, "a"),
            stored_text(group(2), 300, ""),
        ];
        let rows = stored.iter().map(|row| Row::encode(row, Held::Shared));
        let frame = Frame::Messages(rows.collect());
        let envelopes = stored.iter().map(crate::services::server_envelope);
        let envelopes: Vec<_> = envelopes.map(|found| found.expect("it is read")).collect();

        let changing = SubscribeResponse {
            response: Some(subscribe_response::Response::Messages(
                subscribe_response::Messages {
                    envelopes: envelopes.clone(),
                },
            )),
        };
        assert_eq!(bytes::<Changing>(&frame), changing.encode_to_vec());
        assert_eq!(
            message::<Changing>(frame.clone()).expect("it is read"),
            changing
        );

        let fixed = SubscribeStaticResponse {
            response: Some(subscribe_static_response::Response::Messages(
                subscribe_static_response::Messages { envelopes },
            )),
        };
        assert_eq!(bytes::<Fixed>(&frame), fixed.encode_to_vec());
        assert_eq!(message::<Fixed>(frame).expect("it is read"), fixed);
    }
}
