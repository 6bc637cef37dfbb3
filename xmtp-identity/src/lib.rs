//! The inbox association log as pure functions.
//!
//! An inbox is a set of accounts and installations that a log of signed updates builds up. This
//! crate says what an update's signers sign, whether their signatures hold, and what state the
//! log leads to. It does no I/O and reads no clock: whoever holds the log passes the updates in,
//! and whoever can reach a chain passes in its verdicts on smart contract wallets. Backend and
//! client use the same functions, so that they can not disagree.
//!
//! When you want another crate: the messages and ids are in `xmtp_proto`; ordering, storage and
//! waiting for a missing part of a log are in `xmtp_core` and `xmtp_backend`; key packages and
//! groups are in `xmtp_mls`.
//!
//! A wallet creates an inbox and lets its first installation in:
//!
//! ```
//! use xmtp_identity::{
//!     InstallationKey, LocalWallet, NoSmartContractWallets, UpdateBuilder, apply,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wallet = LocalWallet::from_secret(&[1; 32])?;
//! let installation = InstallationKey::from_seed(&[2; 32]);
//!
//! let unsigned = UpdateBuilder::create_inbox(wallet.identifier().clone(), 1)
//!     .add_installation(installation.id())
//!     .build(1_700_000_000_000_000_000)?;
//! let text = unsigned.signature_text().to_owned();
//! let update = unsigned
//!     .with_signature(wallet.sign_text(&text)?)?
//!     .with_signature(installation.sign_text(&text)?)?
//!     .finish()?;
//!
//! let state = apply(None, &update, &NoSmartContractWallets)?;
//! assert_eq!(state.installations(), [installation.id()]);
//! # Ok(())
//! # }
//! ```

mod apply;
mod builder;
mod codec;
mod error;
mod identifier;
pub mod projection;
mod signature;
mod state;
mod timestamp;
mod update;
mod verifier;
mod wallet;

pub use apply::{apply, replay, required_verifications};
pub use builder::{BuildError, UnsignedUpdate, UpdateBuilder};
pub use codec::StateDecodeError;
pub use error::{ApplyError, BrokenRule};
pub use identifier::{
    EthereumAddress, Identifier, IdentifierError, IdentifierKind, MemberKind, PasskeyId, inbox_id,
};
pub use signature::{
    AccountId, AccountIdError, PUBLIC_CONTEXT, SignatureError, SignatureScheme, VerifiedSignature,
    personal_message_hash, verify_public_context, verify_signature,
};
pub use state::{AssociationState, AssociationStateDiff, Member, Recovery, diff};
pub use update::{
    Action, MalformedUpdate, ParsedUpdate, SignatureKind, SignatureRole, signature_text,
};
pub use verifier::{
    CollectedVerdicts, NoSmartContractWallets, ScwRequest, Verifier, VerifierError,
};
pub use wallet::{InstallationKey, InvalidSecret, LocalWallet};
