//! What application messages carry, and what clients derive from commits.

mod encoded;
mod envelope;
mod transcript;

pub use encoded::{
    ContentError, ContentType, TEXT, decode_text, encode_text, group_updated_content,
    is_group_updated, is_transcript, is_type,
};
pub(crate) use envelope::carried;
pub use envelope::{Payload, decode_payload, encode_payload, idempotency_key};
pub use transcript::{Transcript, commit_transcript_id, group_updated, join_transcript_id, joined};
