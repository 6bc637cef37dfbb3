//! Typed content: its type, and the text codec.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use thiserror::Error;
use xmtp_proto::content::{ContentTypeId, EncodedContent, GroupUpdated};

/// A content type as a constant: authority, type, major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentType {
    authority: &'static str,
    name: &'static str,
    major: u32,
    minor: u32,
}

const fn xmtp(name: &'static str) -> ContentType {
    ContentType {
        authority: "xmtp.org",
        name,
        major: 1,
        minor: 0,
    }
}

/// Plain text.
pub const TEXT: ContentType = xmtp("text");
/// What a commit changed; derived locally.
const GROUP_UPDATED: ContentType = xmtp("group_updated");
/// The older form of the same; only read.
const GROUP_MEMBERSHIP_CHANGE: ContentType = xmtp("group_membership_change");

/// The parameter that names the encoding of text.
const ENCODING: &str = "encoding";
/// The one encoding of text.
const UTF_8: &str = "UTF-8";

/// Content that its codec cannot read. The bytes are kept all the same.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ContentError {
    /// The content has another type.
    #[error("the content has another type")]
    Type,
    /// The text is not UTF-8, or says that it is not.
    #[error("the text is not UTF-8")]
    Encoding,
}

/// Tells whether content has a type; the minor version does not matter.
pub fn is_type(content: &EncodedContent, expected: ContentType) -> bool {
    content.r#type.as_ref().is_some_and(|found| {
        found.authority_id == expected.authority
            && found.type_id == expected.name
            && found.version_major == expected.major
    })
}

/// Tells whether content has a type that only clients derive: never show it as one when received.
pub fn is_transcript(content: &EncodedContent) -> bool {
    [GROUP_UPDATED, GROUP_MEMBERSHIP_CHANGE]
        .into_iter()
        .any(|derived| {
            let found = content.r#type.as_ref();
            found.is_some_and(|found| {
                found.authority_id == derived.authority && found.type_id == derived.name
            })
        })
}

/// Tells whether content is a transcript of the form this build writes.
pub fn is_group_updated(content: &EncodedContent) -> bool {
    is_type(content, GROUP_UPDATED)
}

/// Encodes text.
pub fn encode_text(text: &str) -> EncodedContent {
    EncodedContent {
        parameters: BTreeMap::from([(ENCODING.to_owned(), UTF_8.to_owned())]),
        ..typed(TEXT, Bytes::copy_from_slice(text.as_bytes()))
    }
}

/// Decodes text. No named encoding is UTF-8; another than UTF-8 is an error.
pub fn decode_text(content: &EncodedContent) -> Result<&str, ContentError> {
    if !is_type(content, TEXT) {
        return Err(ContentError::Type);
    }
    if content
        .parameters
        .get(ENCODING)
        .is_some_and(|encoding| encoding != UTF_8)
    {
        return Err(ContentError::Encoding);
    }
    std::str::from_utf8(&content.content).map_err(|_| ContentError::Encoding)
}

/// Wraps a transcript as content.
pub fn group_updated_content(updated: &GroupUpdated) -> EncodedContent {
    typed(GROUP_UPDATED, updated.encode_to_vec().into())
}

fn typed(content_type: ContentType, content: Bytes) -> EncodedContent {
    EncodedContent {
        r#type: Some(ContentTypeId {
            authority_id: content_type.authority.to_owned(),
            type_id: content_type.name.to_owned(),
            version_major: content_type.major,
            version_minor: content_type.minor,
        }),
        content,
        ..EncodedContent::default()
    }
}
