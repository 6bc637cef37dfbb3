//! The helpers over envelope bytes, the status detail, and redaction.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::backend::v1::{ClientEnvelope, GroupMessage, KeyPackage, PublishError};
use xmtp_proto::content::welcome_pointer::WelcomeV1Pointer;
use xmtp_proto::content::{
    GroupMutableMetadataV1, RemoteAttachmentInfo, WelcomePointer, welcome_pointer,
};
use xmtp_proto::envelope::{canonical_bytes, inner_payload, message_hash, payload_hash};
use xmtp_proto::status::{Details, decode_publish_error};
use xmtp_proto::storage::v1::KeyPackageRecord;

fn group_envelope(data: &[u8]) -> ClientEnvelope {
    ClientEnvelope {
        payload: Some(Payload::GroupMessage(GroupMessage {
            data: Bytes::copy_from_slice(data),
            sender_hmac: Bytes::new(),
            should_push: true,
        })),
    }
}

#[test]
fn canonical_bytes_drop_unknown_fields_and_defaults() {
    let canonical = canonical_bytes(&group_envelope(b"mls"));
    assert_eq!(hex::encode(&canonical), "0a070a036d6c731801");

    // Inside: an empty field 2, fields out of order, a long varint, field 15.
    let loose = hex::decode("0a0d12001881000a036d6c737a0178").expect("hex");
    let decoded = ClientEnvelope::decode(loose.as_slice()).expect("decodes");
    assert_eq!(canonical_bytes(&decoded), canonical);
}

#[test]
fn the_two_hashes_cover_different_bytes() {
    let envelope = group_envelope(b"mls");
    let inner = inner_payload(&envelope).expect("a group message has one");
    assert_eq!(inner, "mls");
    assert_ne!(
        message_hash(&canonical_bytes(&envelope)),
        payload_hash(inner)
    );
    // printf '' | sha256sum
    assert_eq!(
        hex::encode(payload_hash(b"")),
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    );
}

#[test]
fn only_group_messages_have_an_inner_payload() {
    let key_package = ClientEnvelope {
        payload: Some(Payload::KeyPackage(KeyPackage::default())),
    };
    assert_eq!(inner_payload(&key_package), None);
    assert_eq!(inner_payload(&ClientEnvelope::default()), None);
}

/// covers: EXT-007
#[test]
fn debug_of_secret_messages_shows_no_field() {
    let secret = "hunter2";
    let bytes = Bytes::from_static(secret.as_bytes());
    let pointer = WelcomeV1Pointer {
        encryption_key: bytes.clone(),
        ..Default::default()
    };
    let shown = [
        format!(
            "{:?}",
            KeyPackageRecord {
                wrapper_private_key: bytes.clone(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            RemoteAttachmentInfo {
                secret: bytes,
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            GroupMutableMetadataV1 {
                attributes: [("_commit_log_signer".to_owned(), secret.to_owned())].into(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            WelcomePointer {
                version: Some(welcome_pointer::Version::WelcomeV1Pointer(pointer)),
            }
        ),
    ];
    for text in shown {
        assert!(!text.contains(secret), "{text}");
    }
}

proptest! {
    #[test]
    fn details_travel_in_the_status(
        code: i32,
        message: String,
        index: Option<u32>,
        reason: Option<String>,
        retry_after: Option<(u32, u32)>,
        refused: bool,
    ) {
        let error = PublishError {
            index,
            reason: Reason::TooLarge.into(),
            message: message.clone(),
        };
        let retry_after = retry_after
            .map(|(seconds, nanos)| Duration::new(seconds.into(), nanos % 1_000_000_000));
        let publish_error = refused.then_some(error);
        let details = Details { reason, retry_after, publish_error };
        let encoded = details.encode(code, &message);
        prop_assert_eq!(Details::decode(&encoded), details.clone());
        prop_assert_eq!(decode_publish_error(&encoded), details.publish_error);
    }

    #[test]
    fn other_details_are_no_publish_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(Details::decode(&bytes), Details::default());
    }

    #[test]
    fn canonical_bytes_decode_to_the_same_envelope(data: Vec<u8>) {
        let envelope = group_envelope(&data);
        let canonical = canonical_bytes(&envelope);
        let decoded = ClientEnvelope::decode(canonical.as_slice()).expect("decodes");
        prop_assert_eq!(&decoded, &envelope);
        prop_assert_eq!(canonical_bytes(&decoded), canonical);
    }
}
