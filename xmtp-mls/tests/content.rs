//! Payloads: what goes out comes back, and what this build cannot read is kept.

use prost::Message;
use xmtp_mls::content::{
    ContentError, Payload, decode_payload, decode_text, encode_payload, encode_text,
    idempotency_key, is_transcript,
};
use xmtp_proto::content::{ContentTypeId, EncodedContent};
use xmtp_proto::id::GroupId;

const GROUP: GroupId = GroupId::from_bytes([7; 16]);

#[test]
fn text_comes_back_with_its_id() {
    let (id, plaintext) = encode_payload(&GROUP, &encode_text("hello"), &idempotency_key(12));
    let Payload::Message {
        id: found,
        idempotency_key,
        content,
        ..
    } = decode_payload(&GROUP, &plaintext)
    else {
        panic!("no message");
    };
    assert_eq!((found, idempotency_key.as_str()), (id, "12"));
    assert_eq!(decode_text(&content.unwrap()), Ok("hello"));
}

#[test]
fn text_is_utf_8_or_an_error() {
    let mut content = encode_text("x");
    content.parameters.clear();
    assert_eq!(decode_text(&content), Ok("x"));
    content
        .parameters
        .insert("encoding".to_owned(), "latin1".to_owned());
    assert_eq!(decode_text(&content), Err(ContentError::Encoding));
    let mut content = encode_text("x");
    content.content = vec![0xff].into();
    assert_eq!(decode_text(&content), Err(ContentError::Encoding));
    content.r#type = None;
    assert_eq!(decode_text(&content), Err(ContentError::Type));
}

#[test]
fn a_minor_version_matches_and_a_major_one_does_not() {
    let mut content = encode_text("x");
    content.r#type.as_mut().unwrap().version_minor = 9;
    assert!(decode_text(&content).is_ok());
    content.r#type.as_mut().unwrap().version_major = 2;
    assert_eq!(decode_text(&content), Err(ContentError::Type));
}

#[test]
fn unknown_content_keeps_its_bytes_and_id() {
    let raw = b"\xff\xff not a message".to_vec();
    let mut plaintext = Vec::new();
    prost::encoding::bytes::encode(1, &raw, &mut plaintext);
    let mut envelope = Vec::new();
    prost::encoding::bytes::encode(1, &plaintext, &mut envelope);
    let Payload::Message { bytes, content, .. } = decode_payload(&GROUP, &envelope) else {
        panic!("no message");
    };
    assert_eq!((bytes.to_vec(), content), (raw, None));
    assert_eq!(decode_payload(&GROUP, b"\xff"), Payload::Unknown);
    assert_eq!(decode_payload(&GROUP, b""), Payload::Unknown);
}

#[test]
fn received_transcript_types_are_known_as_such() {
    let named = |name: &str| EncodedContent {
        r#type: Some(ContentTypeId {
            authority_id: "xmtp.org".to_owned(),
            type_id: name.to_owned(),
            version_major: 9,
            version_minor: 0,
        }),
        ..EncodedContent::default()
    };
    assert!(is_transcript(&named("group_updated")));
    assert!(is_transcript(&named("group_membership_change")));
    assert!(!is_transcript(&named("text")));
    assert_eq!(
        EncodedContent::decode(named("text").encode_to_vec().as_slice()),
        Ok(named("text"))
    );
}
