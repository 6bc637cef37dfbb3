//! The seam through which smart contract wallet signatures are judged.
//!
//! The trait is synchronous because applying an update is a pure function: whoever can reach a
//! chain asks it beforehand, collects the answers in [`CollectedVerdicts`] and applies with them.

use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;

use crate::signature::AccountId;

/// Judges smart contract wallet signatures.
///
/// # Behavior
///
/// - `Ok(true)`: the wallet accepts the signature over the hash at that block.
/// - `Ok(false)`: the wallet was asked and does not accept it.
/// - [`VerifierError::Retryable`]: the wallet could not be asked; never a verdict.
/// - [`VerifierError::Refused`]: this verifier's own admission rules refuse the request for good.
pub trait Verifier {
    /// Judges one smart contract wallet signature.
    fn verify_smart_contract_wallet(&self, request: &ScwRequest) -> Result<bool, VerifierError>;
}

/// Asks whether a smart contract wallet accepts a signature over a hash.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ScwRequest {
    /// The wallet's account.
    pub account_id: AccountId,
    /// The block at which to ask.
    pub block_number: u64,
    /// The EIP-191 hash of the signature text.
    pub hash: [u8; 32],
    /// The signature as carried.
    pub signature: Bytes,
}

/// Reports why a verifier gave no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// No route to the chain, or the chain did not answer; ask again later.
    #[error("chain {chain_id} gave no verdict: {cause}")]
    Retryable {
        /// The chain that was to be asked.
        chain_id: u64,
        /// What went wrong, as fixed text.
        cause: &'static str,
    },
    /// The verifier refuses the request for good, such as for a block that is too old to admit.
    #[error("the request about chain {chain_id} is refused: {cause}")]
    Refused {
        /// The chain that the request names.
        chain_id: u64,
        /// The rule that refuses it, as fixed text.
        cause: &'static str,
    },
}

impl VerifierError {
    /// Returns the stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Retryable { .. } => "identity.verifier.retryable",
            Self::Refused { .. } => "identity.verifier.refused",
        }
    }

    /// Tells whether asking again later may give a verdict.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Retryable { .. })
    }
}

/// A verifier without any chain route: every request is a retryable error.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSmartContractWallets;

impl Verifier for NoSmartContractWallets {
    fn verify_smart_contract_wallet(&self, request: &ScwRequest) -> Result<bool, VerifierError> {
        Err(VerifierError::Retryable {
            chain_id: request.account_id.chain_id(),
            cause: "no route",
        })
    }
}

/// A verifier that answers from verdicts collected beforehand.
///
/// A request without a collected verdict is a retryable error.
#[derive(Clone, Debug, Default)]
pub struct CollectedVerdicts {
    verdicts: HashMap<ScwRequest, Result<bool, VerifierError>>,
}

impl CollectedVerdicts {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the verdict on a request, replacing an earlier one.
    pub fn insert(&mut self, request: ScwRequest, verdict: Result<bool, VerifierError>) {
        self.verdicts.insert(request, verdict);
    }
}

impl FromIterator<(ScwRequest, Result<bool, VerifierError>)> for CollectedVerdicts {
    fn from_iter<I>(verdicts: I) -> Self
    where
        I: IntoIterator<Item = (ScwRequest, Result<bool, VerifierError>)>,
    {
        Self {
            verdicts: verdicts.into_iter().collect(),
        }
    }
}

impl Verifier for CollectedVerdicts {
    fn verify_smart_contract_wallet(&self, request: &ScwRequest) -> Result<bool, VerifierError> {
        let missing = VerifierError::Retryable {
            chain_id: request.account_id.chain_id(),
            cause: "not collected",
        };
        self.verdicts.get(request).copied().unwrap_or(Err(missing))
    }
}

impl<V: Verifier + ?Sized> Verifier for &V {
    fn verify_smart_contract_wallet(&self, request: &ScwRequest) -> Result<bool, VerifierError> {
        (**self).verify_smart_contract_wallet(request)
    }
}

impl fmt::Debug for ScwRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScwRequest")
            .field("account_id", &self.account_id)
            .field("block_number", &self.block_number)
            .finish_non_exhaustive()
    }
}
