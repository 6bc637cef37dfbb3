//! Making a key package of our own.

use std::fmt;

use bytes::Bytes;
use openmls::prelude::{Extension, Extensions, KeyPackage, KeyPackageBundle, UnknownExtension};
use prost::Message;
use thiserror::Error;
use tls_codec::Serialize;
use xmtp_core::storage::{StorageError, WriteTxn, schema};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{self, ClientEnvelope};
use xmtp_proto::content::{
    WelcomePointeeEncryptionAeadType, WelcomePointeeEncryptionAeadTypesExtension,
    WelcomeWrapperEncryption,
};
use xmtp_proto::envelope::canonical_bytes;
use xmtp_proto::storage::v1::KeyPackageRecord;

use crate::group::{GroupFault, extension_type};
use crate::leaf::{self, CIPHERSUITE};
use crate::welcome::{WrapperAlgorithm, WrapperKeyPair};
use crate::{Installation, Provider};

/// Why a key package could not be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MakeFault {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The MLS library failed.
    #[error("the MLS library could not make a key package; retry, and report it when it stays")]
    Library,
}

/// A key package that is kept and not yet published.
#[derive(Clone, PartialEq)]
pub struct Made {
    /// Its MLS reference, under which it is kept.
    pub hash_ref: Vec<u8>,
    /// The exact envelope to publish.
    pub envelope: ClientEnvelope,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").finish_non_exhaustive()
    }
}

/// Makes a key package with fresh keys and keeps it.
///
/// Commit it `Flushed` before it is published: whoever fetches it may use it at once. It counts
/// as current once [`super::confirm`] notes that the backend has it.
pub fn make(txn: &mut WriteTxn<'_>, installation: &Installation) -> Result<Made, MakeFault> {
    let runtime = txn.runtime().clone();
    let now_ns = txn.now_ns();
    let wrapper = WrapperKeyPair::generate(WrapperAlgorithm::XWing, runtime.as_ref())
        .map_err(|_| MakeFault::Library)?;
    let provider = Provider::new(txn);
    let built = KeyPackage::builder()
        .key_package_lifetime(leaf::lifetime(now_ns))
        .key_package_extensions(extensions(&wrapper)?)
        .leaf_node_capabilities(leaf::capabilities())
        .leaf_node_extensions(leaf::extensions(&installation.inbox()))
        .mark_as_last_resort()
        .build(
            CIPHERSUITE,
            &provider,
            installation,
            leaf::credential(installation),
        );
    let bundle = match provider.settle(built.map_err(|_| GroupFault::Library)) {
        Err(GroupFault::Storage(fault)) => return Err(fault.into()),
        bundle => bundle.map_err(|_| MakeFault::Library)?,
    };
    drop(provider);

    let record = record(&bundle, &wrapper, now_ns)?;
    let made = Made {
        hash_ref: record.hash_ref.to_vec(),
        envelope: envelope(&bundle)?,
    };
    txn.put(schema::KEY_PACKAGE, &made.hash_ref, &record)?;
    Ok(made)
}

fn extensions(wrapper: &WrapperKeyPair) -> Result<Extensions<KeyPackage>, MakeFault> {
    let encryption = WelcomeWrapperEncryption {
        pub_key: Bytes::copy_from_slice(wrapper.public.as_bytes()),
        algorithm: wrapper.public.algorithm().to_wire().into(),
    };
    let aead_types = WelcomePointeeEncryptionAeadTypesExtension {
        supported_aead_types: vec![WelcomePointeeEncryptionAeadType::Chacha20Poly1305.into()],
    };
    let raw = |kind, bytes| Extension::Unknown(kind, UnknownExtension(bytes));
    Extensions::from_vec(vec![
        raw(
            extension_type::POINTEE_AEAD_TYPES,
            aead_types.encode_to_vec(),
        ),
        raw(
            extension_type::WRAPPER_ENCRYPTION,
            encryption.encode_to_vec(),
        ),
    ])
    .map_err(|_| MakeFault::Library)
}

fn envelope(bundle: &KeyPackageBundle) -> Result<ClientEnvelope, MakeFault> {
    let encoded = bundle.key_package().tls_serialize_detached();
    let package = v1::KeyPackage {
        key_package_tls_serialized: encoded.map_err(|_| MakeFault::Library)?.into(),
    };
    Ok(ClientEnvelope {
        payload: Some(Payload::KeyPackage(package)),
    })
}

fn record(
    bundle: &KeyPackageBundle,
    wrapper: &WrapperKeyPair,
    now_ns: u64,
) -> Result<KeyPackageRecord, MakeFault> {
    let package = bundle.key_package();
    let hash_ref = package.hash_ref(crate::provider::crypto());
    let hash_ref = hash_ref.map_err(|_| MakeFault::Library)?;
    Ok(KeyPackageRecord {
        hash_ref: Bytes::copy_from_slice(hash_ref.as_slice()),
        created_ns: now_ns,
        confirmed_ns: 0,
        superseded_ns: 0,
        wrapper_public_key: Bytes::copy_from_slice(wrapper.public.as_bytes()),
        wrapper_private_key: Bytes::copy_from_slice(&wrapper.private),
        envelope: canonical_bytes(&envelope(bundle)?).into(),
        init_key: Bytes::copy_from_slice(package.hpke_init_key().as_slice()),
        last_resort: package.last_resort(),
    })
}
