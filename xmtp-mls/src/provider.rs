//! What openmls is handed for one call.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, LazyLock};

use openmls_rust_crypto::RustCrypto;
use openmls_traits::OpenMlsProvider;
use openmls_traits::random::OpenMlsRand;
use xmtp_core::runtime::Runtime;
use xmtp_core::storage::WriteTxn;

use crate::group::GroupFault;
use crate::store::{Deferred, MlsStore};

/// The cryptography of openmls. It keeps no state but a generator that only key generation uses,
/// and keys are derived from our own randomness.
static CRYPTO: LazyLock<RustCrypto> = LazyLock::new(RustCrypto::default);

/// Answers the cryptography that every call uses.
pub(crate) fn crypto() -> &'static RustCrypto {
    &CRYPTO
}

/// The randomness of the runtime, as openmls asks for it.
pub struct RuntimeRand(Arc<dyn Runtime>);

impl fmt::Debug for RuntimeRand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuntimeRand")
    }
}

impl OpenMlsRand for RuntimeRand {
    type Error = Infallible;

    fn random_array<const N: usize>(&self) -> Result<[u8; N], Infallible> {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes);
        Ok(bytes)
    }

    fn random_vec(&self, len: usize) -> Result<Vec<u8>, Infallible> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        Ok(bytes)
    }
}

/// Storage, cryptography and randomness of one openmls call.
///
/// Built per call and dropped after it: it borrows the transaction, which core needs in between.
#[derive(Debug)]
pub struct Provider<'t, 'w> {
    rand: RuntimeRand,
    store: MlsStore<'t, 'w>,
}

impl<'t, 'w> Provider<'t, 'w> {
    /// Writes everything through.
    pub fn new(txn: &'t mut WriteTxn<'w>) -> Self {
        Self {
            rand: RuntimeRand(txn.runtime().clone()),
            store: MlsStore::new(txn),
        }
    }

    /// Holds back the message secrets until [`Deferred::flush`].
    pub fn deferring(txn: &'t mut WriteTxn<'w>, deferred: &'t Deferred) -> Self {
        Self {
            rand: RuntimeRand(txn.runtime().clone()),
            store: MlsStore::deferring(txn, deferred),
        }
    }

    /// Answers the storage.
    pub fn store(&self) -> &MlsStore<'t, 'w> {
        &self.store
    }

    /// Looks at the kept storage fault first and at openmls's result after it.
    ///
    /// Every result of openmls passes through here, `Ok` included: a fault is never a verdict.
    pub fn settle<T, E: Into<GroupFault>>(&self, result: Result<T, E>) -> Result<T, GroupFault> {
        match self.store.take_fault() {
            Some(fault) => Err(GroupFault::Storage(fault)),
            None => result.map_err(Into::into),
        }
    }
}

impl<'t, 'w> OpenMlsProvider for Provider<'t, 'w> {
    type CryptoProvider = RustCrypto;
    type RandProvider = RuntimeRand;
    type StorageProvider = MlsStore<'t, 'w>;

    fn storage(&self) -> &Self::StorageProvider {
        &self.store
    }

    fn crypto(&self) -> &Self::CryptoProvider {
        crypto()
    }

    fn rand(&self) -> &Self::RandProvider {
        &self.rand
    }
}
