//! The key of this installation, which signs its leaves, commits and messages.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};
use openmls_traits::signatures::{Signer, SignerError};
use openmls_traits::types::SignatureScheme;
use xmtp_core::runtime::{Runtime, RuntimeExt};
use xmtp_core::storage::{Raw, Read, Snapshot, StorageError, WriteTxn, schema};
use xmtp_identity::InstallationKey;
use xmtp_proto::id::{InboxId, InstallationId};
use zeroize::Zeroizing;

use crate::store::{INSTALLATION, Label, key};

/// This installation: its key, and the inbox it belongs to.
///
/// The seed is wiped from memory on drop.
pub struct Installation {
    seed: Zeroizing<[u8; 32]>,
    key: SigningKey,
    inbox: InboxId,
}

impl fmt::Debug for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installation")
            .field("id", &self.id())
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}

impl Installation {
    /// Makes a new installation key from the runtime's randomness.
    pub fn generate(runtime: &dyn Runtime, inbox: InboxId) -> Self {
        Self::from_seed(&Zeroizing::new(runtime.random()), inbox)
    }

    /// Takes an Ed25519 seed.
    pub fn from_seed(seed: &[u8; 32], inbox: InboxId) -> Self {
        Self {
            seed: Zeroizing::new(*seed),
            key: SigningKey::from_bytes(seed),
            inbox,
        }
    }

    /// Reads the installation of this database, when there is one.
    pub fn load<S: Snapshot + ?Sized>(
        snapshot: &S,
        id: &InstallationId,
        inbox: InboxId,
    ) -> Result<Option<Self>, StorageError> {
        let key = key(INSTALLATION, Label::InstallationSeed, id.as_bytes());
        let Some(Raw(seed)) = snapshot.row(schema::MLS, &key)? else {
            return Ok(None);
        };
        let seed = Zeroizing::new(seed);
        let seed = seed
            .as_slice()
            .try_into()
            .map_err(|_| StorageError::Corrupt {
                table: schema::MLS.info.name,
                what: "seed",
            })?;
        Ok(Some(Self::from_seed(seed, inbox)))
    }

    /// Keeps the key in the database. Commit it `Flushed`, before anything signed leaves.
    pub fn store(&self, txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
        let key = key(INSTALLATION, Label::InstallationSeed, self.id().as_bytes());
        txn.put(schema::MLS, &key, &Raw(self.seed.to_vec()))
    }

    /// Answers the installation's id, its public key.
    pub fn id(&self) -> InstallationId {
        InstallationId::from_bytes(self.key.verifying_key().to_bytes())
    }

    /// Answers the inbox it belongs to.
    pub fn inbox(&self) -> InboxId {
        self.inbox
    }

    /// Answers the key in the form that signs identity updates.
    pub fn identity_key(&self) -> InstallationKey {
        InstallationKey::from_seed(&self.seed)
    }
}

impl Signer for Installation {
    fn sign(&self, payload: &[u8]) -> Result<Vec<u8>, SignerError> {
        Ok(self.key.sign(payload).to_vec())
    }

    fn signature_scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}
