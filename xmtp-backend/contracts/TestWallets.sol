// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

// Wallets for the tests of the server. None of them is meant to hold anything.

/// Accepts what its owner has signed.
contract OwnedWallet {
    address public owner;
    /// A wallet that waits to be prepared accepts nothing.
    bool public waiting;

    constructor(address first, bool waits) {
        owner = first;
        waiting = waits;
    }

    /// Gives the wallet to somebody else; anybody may, this is a test.
    function change(address next) external {
        owner = next;
    }

    function prepare() external {
        waiting = false;
    }

    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        if (waiting || signature.length != 65) return 0xffffffff;
        bytes32 r = bytes32(signature[0:32]);
        bytes32 s = bytes32(signature[32:64]);
        address signer = ecrecover(hash, uint8(signature[64]), r, s);
        return signer != address(0) && signer == owner ? bytes4(0x1626ba7e) : bytes4(0xffffffff);
    }
}

/// Deploys owned wallets at addresses that are known beforehand.
contract WalletFactory {
    function deploy(address owner, bytes32 salt) external returns (address) {
        return address(new OwnedWallet{salt: salt}(owner, false));
    }

    function addressOf(address owner, bytes32 salt) external view returns (address) {
        bytes32 code = keccak256(abi.encodePacked(type(OwnedWallet).creationCode, abi.encode(owner, false)));
        return address(uint160(uint256(keccak256(abi.encodePacked(bytes1(0xff), address(this), salt, code)))));
    }
}

/// Accepts nothing, each in its own way, whatever it is called with.
contract OddWallet {
    enum Way {
        Reverts,
        AnswersAnotherWord,
        AnswersNothing,
        AnswersHalfAWord,
        AnswersWithMore,
        BurnsAllGas,
        ReturnsMegabytes,
        Writes
    }

    Way private immutable way;
    uint256 private written;

    constructor(Way which) {
        way = which;
    }

    fallback() external {
        Way which = way;
        if (which == Way.Writes) written += 1;
        assembly {
            let accepted := shl(224, 0x1626ba7e)
            mstore(0, accepted)
            switch which
            case 0 { revert(0, 32) }
            case 1 { mstore(0, shl(224, 0x1626ba7f)) return(0, 32) }
            case 2 { return(0, 0) }
            case 3 { return(0, 16) }
            case 4 { mstore(0, or(accepted, 1)) return(0, 32) }
            case 5 { for {} 1 {} { } }
            case 6 { mstore(0, 0) return(0, 1000000) }
            default { return(0, 32) }
        }
    }
}
