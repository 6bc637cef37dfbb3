//! Groups: their contexts, how they begin, how they are joined, and the bytes of their messages.
//!
//! A group has one of two forms (trust 5.1). In the extension form its context holds four
//! extensions of ours; released clients create it, and so do we. In the dictionary form one
//! dictionary of components holds the same; a super admin of a released client can migrate a group
//! to it. [`GroupContext`] reads both, so that nothing above asks which it is.
//!
//! Nothing here judges: whether a change is allowed is for the processors.

mod collection;
mod commit;
mod context;
mod create;
mod dictionary;
mod fault;
mod join;
mod message;
mod policy;
mod settings;
mod tls;
mod updates;

pub use commit::{BuiltCommit, CommitPlan, build_commit, clear_pending, merge_pending};
pub use context::{Attribute, ContextError, ContextForm, GroupContext, Policies, extension_type};
pub use create::{Disappearing, NewConversation, NewGroup, create_group};
pub use dictionary::component;
pub use fault::{GroupFault, LifetimeFault, Meaning};
pub use join::{JoinFault, StagedJoin, stage_join};
pub use message::{Frame, FrameKind, encrypt, load, process};
pub use policy::{Preset, is_closed, preset_of, preset_policies};
pub use settings::{MAX_PAST_EPOCHS, join_config};
pub use updates::{DeltaFault, resolve_updates};
