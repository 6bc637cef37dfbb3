//! `Debug` for the messages that hold secrets: the name of the message and
//! nothing of its fields, because a debug print reaches logs.

use std::fmt;

use crate::content::welcome_pointer::WelcomeV1Pointer;
use crate::content::{GroupMutableMetadataV1, RemoteAttachmentInfo};
use crate::storage::v1::KeyPackageRecord;

macro_rules! redact {
    ($($message:ident),* $(,)?) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )*};
}

redact!(
    GroupMutableMetadataV1,
    KeyPackageRecord,
    RemoteAttachmentInfo,
    WelcomeV1Pointer,
);
