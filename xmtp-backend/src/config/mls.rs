//! The section `[mls]`: what clients are told and the server does not enforce.
//!
//! ```toml
//! [mls]
//! max_group_members = 250
//! max_installations_per_inbox = 10
//! commit_log_enabled = true
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xmtp_proto::backend::v1::MlsConfiguration;
use xmtp_proto::limits;

use super::{ConfigError, refuse};

/// The greatest bound on groups and installations, in members.
const MAX_MLS_MEMBERS: u32 = 65_535;

/// What clients are told about groups; clients hold to it, the server has no groups.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "mls")]
pub(super) struct MlsFile {
    /// The most inboxes of one group.
    #[schemars(range(min = 1, max = 65_535))]
    max_group_members: u32,
    /// The most installations of one inbox.
    #[schemars(range(min = 1, max = 65_535))]
    max_installations_per_inbox: u32,
    /// Whether clients write and read commit logs.
    commit_log_enabled: bool,
}

impl Default for MlsFile {
    fn default() -> Self {
        Self {
            max_group_members: limits::BACKEND_DEFAULT_MAX_GROUP_MEMBERS,
            max_installations_per_inbox: limits::BACKEND_DEFAULT_MAX_INSTALLATIONS_PER_INBOX,
            commit_log_enabled: limits::BACKEND_DEFAULT_COMMIT_LOG_ENABLED,
        }
    }
}

impl MlsFile {
    pub(super) fn read(self) -> MlsConfiguration {
        MlsConfiguration {
            max_group_members: self.max_group_members,
            max_installations_per_inbox: self.max_installations_per_inbox,
            commit_log_enabled: Some(self.commit_log_enabled),
        }
    }
}

pub(super) fn check(mls: &MlsConfiguration) -> Result<(), ConfigError> {
    let values = [
        ("mls.max_group_members", mls.max_group_members),
        (
            "mls.max_installations_per_inbox",
            mls.max_installations_per_inbox,
        ),
    ];
    for (field, value) in values {
        if !(1..=MAX_MLS_MEMBERS).contains(&value) {
            return refuse(field, format!("must be 1 to {MAX_MLS_MEMBERS}"));
        }
    }
    Ok(())
}
