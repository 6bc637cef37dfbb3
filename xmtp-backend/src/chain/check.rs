//! The call by which a node judges a signature (ERC-1271 and ERC-6492).
//!
//! The call carries its own code, [`SignatureCheck`](../../contracts/README.md), so it works on a
//! chain where nobody has deployed anything. What can be malformed is decoded here, where that is
//! a verdict; the code on the chain decodes nothing.

use alloy_primitives::{Address, B256, Bytes};
use alloy_sol_types::SolValue;

use crate::limits::WALLET_SIGNATURE_BYTES;

/// Creation code of the contract, in hex.
const CODE: &str = include_str!("../../contracts/SignatureCheck.hex");

/// What ends a signature that is wrapped with a factory (ERC-6492).
const WRAPPED: [u8; 32] = [
    0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92,
    0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92, 0x64, 0x92,
];

/// Writes calls.
pub(super) struct Check {
    code: Vec<u8>,
}

impl Check {
    pub(super) fn new() -> Self {
        let code = hex::decode(CODE.trim());
        debug_assert!(code.is_ok(), "the contract is compiled");
        Self {
            code: code.unwrap_or_default(),
        }
    }

    /// Writes the call about one signature.
    ///
    /// - `None` if no wallet can accept it: it is longer than any node takes, or what it says to
    ///   be wrapped in is not there.
    pub(super) fn call(
        &self,
        account: [u8; 20],
        hash: &[u8; 32],
        signature: &[u8],
    ) -> Option<Vec<u8>> {
        if signature.len() > WALLET_SIGNATURE_BYTES {
            return None;
        }
        let (is_wrapped, (factory, preparation, signature)) = match signature.strip_suffix(&WRAPPED)
        {
            Some(wrapping) => (true, unwrap(wrapping)?),
            None => {
                let plain = Bytes::copy_from_slice(signature);
                (false, (Address::ZERO, Bytes::new(), plain))
            }
        };
        let (account, hash) = (Address::from(account), B256::from(*hash));
        let arguments = (account, hash, signature, is_wrapped, factory, preparation);
        Some([&self.code[..], &arguments.abi_encode_params()].concat())
    }
}

/// Reads the factory, what it is to be called with, and the signature inside.
fn unwrap(wrapping: &[u8]) -> Option<(Address, Bytes, Bytes)> {
    <(Address, Bytes, Bytes)>::abi_decode_params(wrapping).ok()
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Check")
    }
}
