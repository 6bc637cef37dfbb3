//! How a Welcome travels: sealed to the wrapper key of a key package, or behind a pointer.
//!
//! An MLS Welcome names the groups and inviter in the clear to whoever can match key package
//! references, so it is wrapped once more. [`wrap`] makes the envelopes for one commit,
//! [`open`] takes one apart. Neither knows groups: joining is in [`crate::group`].

mod error;
mod hpke;
mod pointer;
mod unwrap;
mod wrap;

pub use error::{WelcomeFault, WelcomeMeaning};
pub use hpke::{WrapperAlgorithm, WrapperKeyPair, WrapperPublicKey};
pub use pointer::Pointer;
pub use unwrap::{NamedKey, Opened, UnwrappedWelcome, check_anchor, open};
pub use wrap::{MAX_BATCH, POINTERS_ABOVE, Recipient, wrap};
