//! Signatures that a smart contract wallet judges on its chain.

use std::fmt;

use xmtp_proto::identity as proto;

use super::erc191::personal_message_hash;
use super::{CheckedSignature, SignatureError, SignatureScheme, VerifiedSignature};
use crate::identifier::Identifier;
use crate::verifier::ScwRequest;

/// Names an account on an Ethereum chain: `eip155:<decimal chain id>:<address>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId {
    chain_id: u64,
    address: Identifier,
}

/// Reports that a text names no account on an Ethereum chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an account must be eip155:<decimal chain id>:<lowercase address>")]
pub struct AccountIdError;

impl AccountId {
    /// Names an account by its chain and address.
    pub fn new(chain_id: u64, address: Identifier) -> Result<Self, AccountIdError> {
        match address {
            Identifier::Ethereum(_) => Ok(Self { chain_id, address }),
            _ => Err(AccountIdError),
        }
    }

    /// Reads an account in its one accepted form.
    pub fn parse(text: &str) -> Result<Self, AccountIdError> {
        let (chain, address) = text
            .strip_prefix("eip155:")
            .and_then(|rest| rest.split_once(':'))
            .ok_or(AccountIdError)?;
        let chain_id: u64 = chain.parse().map_err(|_| AccountIdError)?;
        if chain_id.to_string() != chain {
            return Err(AccountIdError); // a sign or leading zeros
        }
        let address = Identifier::ethereum(address).map_err(|_| AccountIdError)?;
        Ok(Self { chain_id, address })
    }

    /// Returns the number of the chain.
    pub fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// Returns the wallet's address.
    pub fn address(&self) -> &Identifier {
        &self.address
    }

    /// Returns the text form.
    pub fn text(&self) -> String {
        format!("eip155:{}:{}", self.chain_id, self.address.text())
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountId({}, {:?})", self.chain_id, self.address)
    }
}

pub(super) fn check(
    text: &str,
    message: &proto::SmartContractWalletSignature,
) -> Result<CheckedSignature, SignatureError> {
    let account_id = AccountId::parse(&message.account_id)?;
    let signature = VerifiedSignature {
        scheme: SignatureScheme::Erc6492,
        signer: account_id.address.clone(),
        chain_id: Some(account_id.chain_id),
        replay_key: message.signature.clone(),
    };
    let request = ScwRequest {
        account_id,
        block_number: message.block_number,
        hash: personal_message_hash(text),
        signature: message.signature.clone(),
    };
    Ok(CheckedSignature {
        signature,
        pending: Some(request),
    })
}
