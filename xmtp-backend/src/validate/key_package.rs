//! Key packages: exact bytes, valid by RFC 9420, current, and of a readable credential.
//!
//! Not refused, because released clients publish them: a credential whose inbox id is no hex,
//! another suite with 32-byte signature keys, missing leaf capabilities, a long lifetime.

use std::time::{Duration, UNIX_EPOCH};

use openmls::prelude::{BasicCredential, KeyPackageIn, ProtocolVersion};
use openmls_rust_crypto::RustCrypto;
use prost::Message;
use tls_codec::Deserialize;
use xmtp_proto::backend::v1::KeyPackage;
use xmtp_proto::content::MlsCredential;
use xmtp_proto::id::TopicKind;

use super::{Check, Read, malformed, topic};
use crate::store::{Reason, Refusal};

/// Reads a key package.
pub(super) fn read(message: &KeyPackage) -> Result<Read, Refusal> {
    let parsed = KeyPackageIn::tls_deserialize_exact(&message.key_package_tls_serialized);
    let parsed = parsed.map_err(|_| malformed("the key package can not be read"))?;
    let key = parsed.unverified_credential().signature_key;
    let problem = "the signature key of the key package does not have 32 bytes";
    Ok(Read {
        topic: topic(TopicKind::KeyPackage, key.as_slice(), problem)?,
        is_commit_or_proposal: false,
        check: Check::KeyPackage(Box::new(parsed)),
    })
}

/// Validates a key package that is to be stored at `now_ns`.
///
/// - The lifetime must hold by the clock of the machine and by the given one.
pub(crate) fn check_key_package(package: KeyPackageIn, now_ns: u64) -> Result<(), Refusal> {
    let crypto = RustCrypto::default();
    let invalid = |message| Refusal {
        reason: Reason::InvalidKeyPackage,
        message,
    };
    let valid = package.validate(&crypto, ProtocolVersion::Mls10);
    let valid = valid.map_err(|_| invalid("the key package is not valid or not current"))?;

    let now = UNIX_EPOCH + Duration::from_nanos(now_ns);
    if valid.life_time().validate_with_time(now).is_err() {
        return Err(invalid("the key package is not current"));
    }
    let credential = BasicCredential::try_from(valid.leaf_node().credential().clone());
    let credential = credential.map_err(|_| invalid("the credential is not a basic one"))?;
    let credential = MlsCredential::decode(credential.identity());
    credential
        .map(|_| ())
        .map_err(|_| invalid("the credential can not be read"))
}
