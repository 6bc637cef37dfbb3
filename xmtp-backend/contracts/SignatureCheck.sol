// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

/// Judges one wallet signature by ERC-6492, inside a single call that changes nothing.
///
/// It is never deployed: the server sends its creation code as a call without a recipient, and what the
/// constructor returns is the answer, one word: 1 if the signature holds, 0 if it does not. It comes to
/// its own end whatever a wallet or a factory does, so that a failed call always means that the node is
/// at fault:
///
/// - each call out gets half of the gas that is left, and no more;
/// - of what a call returns, one word is read;
/// - nothing is decoded here that may be malformed.
contract SignatureCheck {
    /// What a wallet answers if it accepts (ERC-1271): the selector of `isValidSignature`, as a full word.
    bytes32 private constant ACCEPTED = bytes32(bytes4(0x1626ba7e));

    /// Half of the order of secp256k1. A greater s is the other form of the same signature (EIP-2).
    uint256 private constant GREATEST_S =
        0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;

    /// - `signature`: the innermost one, without the wrapping of ERC-6492.
    /// - `wrapped`: whether it was wrapped; then `factory` and `preparation` are what it was wrapped with.
    constructor(
        address account,
        bytes32 hash,
        bytes memory signature,
        bool wrapped,
        address factory,
        bytes memory preparation
    ) {
        bool holds = judge(account, hash, signature, wrapped, factory, preparation);
        assembly ("memory-safe") {
            mstore(0, holds)
            return(0, 32)
        }
    }

    /// A wallet that stands answers first. If it does not stand, or does not accept, what the signature was
    /// wrapped with deploys or prepares it. An account without code signs with its own key.
    function judge(
        address account,
        bytes32 hash,
        bytes memory signature,
        bool wrapped,
        address factory,
        bytes memory preparation
    ) private returns (bool) {
        if (account.code.length != 0) {
            if (accepts(account, hash, signature)) return true;
        } else if (!wrapped) {
            return signed(account, hash, signature);
        }
        return wrapped && prepared(factory, preparation) && accepts(account, hash, signature);
    }

    /// Asks the wallet, which must have code: some accounts without code answer a call as well.
    function accepts(address account, bytes32 hash, bytes memory signature) private view returns (bool) {
        if (account.code.length == 0) return false;
        bytes memory question = abi.encodeWithSelector(bytes4(ACCEPTED), hash, signature);
        bool answered;
        bytes32 answer;
        assembly ("memory-safe") {
            mstore(0, 0)
            answered := staticcall(div(gas(), 2), account, add(question, 32), mload(question), 0, 32)
            answered := and(answered, gt(returndatasize(), 31))
            answer := mload(0)
        }
        return answered && answer == ACCEPTED;
    }

    function prepared(address factory, bytes memory preparation) private returns (bool done) {
        assembly ("memory-safe") {
            done := call(div(gas(), 2), factory, 0, add(preparation, 32), mload(preparation), 0, 0)
        }
    }

    /// Checks 65 bytes r, s and v by the key of the account.
    function signed(address account, bytes32 hash, bytes memory signature) private pure returns (bool) {
        if (signature.length != 65) return false;
        bytes32 r;
        uint256 s;
        uint8 v;
        assembly ("memory-safe") {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
            v := byte(0, mload(add(signature, 96)))
        }
        if (s > GREATEST_S || (v != 27 && v != 28)) return false;
        address signer = ecrecover(hash, v, r, bytes32(s));
        return signer != address(0) && signer == account;
    }
}
