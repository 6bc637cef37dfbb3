//! When the next key package is due, and when the keys of an old one are destroyed.
//!
//! A Welcome may be sealed to any package that a sender fetched, so an old one stays for a while
//! after the backend has a newer one, and as long as a received Welcome is unresolved.

use openmls::prelude::KeyPackageBundle;
use openmls_traits::storage::StorageProvider;
use xmtp_core::storage::{All, Order, Page, Raw, Read, Snapshot, StorageError, WriteTxn, schema};
use xmtp_proto::storage::v1::KeyPackageRecord;
use zeroize::Zeroizing;

use crate::store::{INSTALLATION, Label, MlsStore, VERSION, key};
use crate::welcome::{NamedKey, WrapperAlgorithm};

/// Age at which a package is replaced: 30 days.
pub const ROTATE_AFTER_NS: u64 = 30 * 24 * 60 * 60 * 1_000_000_000;
/// Wait after an accepted Welcome before the package it used is replaced: 5 seconds.
pub const ROTATE_AFTER_WELCOME_NS: u64 = 5 * 1_000_000_000;
/// Wait after a newer package is confirmed before an old one's keys are destroyed: 1 day.
pub const DESTROY_AFTER_NS: u64 = 24 * 60 * 60 * 1_000_000_000;

/// Packages read at once.
const PAGE: Page = Page {
    rows: 64,
    bytes: 1024 * 1024,
    order: Order::Ascending,
};

/// The kept key packages, and what is to be done with them.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    /// Oldest first.
    packages: Vec<KeyPackageRecord>,
    /// When a Welcome was last accepted, in nanoseconds; 0 is never.
    welcome_ns: u64,
}

impl Rotation {
    /// Reads the kept packages.
    pub fn read<S: Snapshot + ?Sized>(snapshot: &S) -> Result<Self, StorageError> {
        let mut packages = Vec::new();
        let mut after = None;
        loop {
            let page = snapshot.page(schema::KEY_PACKAGE, &All, after.as_ref(), PAGE)?;
            for (hash_ref, record) in page.rows {
                packages.push(record);
                after = Some(hash_ref);
            }
            if !page.more {
                break;
            }
        }
        packages.sort_by_key(|record| record.created_ns);
        Ok(Self {
            packages,
            welcome_ns: welcome_ns(snapshot)?,
        })
    }

    /// Answers the package that the backend was last confirmed to hand out.
    pub fn current(&self) -> Option<&KeyPackageRecord> {
        self.packages
            .iter()
            .rev()
            .find(|record| record.confirmed_ns != 0)
    }

    /// Answers the packages that are kept and not yet confirmed; publish the newest.
    pub fn unconfirmed(&self) -> impl DoubleEndedIterator<Item = &KeyPackageRecord> {
        let kept = self.packages.iter();
        kept.filter(|record| record.confirmed_ns == 0 && record.superseded_ns == 0)
    }

    /// Answers the packages that a newer one has replaced.
    pub fn superseded(&self) -> impl DoubleEndedIterator<Item = &KeyPackageRecord> {
        self.packages
            .iter()
            .filter(|record| record.superseded_ns != 0)
    }

    /// Answers when the next package is due, in nanoseconds; 0 when there is none at all.
    pub fn due_ns(&self) -> u64 {
        let Some(newest) = self.packages.last() else {
            return 0;
        };
        let by_age = newest.created_ns.saturating_add(ROTATE_AFTER_NS);
        if self.welcome_ns < newest.created_ns {
            return by_age;
        }
        by_age.min(self.welcome_ns.saturating_add(ROTATE_AFTER_WELCOME_NS))
    }

    /// Tells whether a new package is to be made now: one is due, or the newest was made while the
    /// clock was ahead, by which nothing would be due for as long as it was.
    pub fn needs_rotation(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns() || self.is_made_ahead(now_ns)
    }

    /// Tells whether the newest package was made while the clock was ahead of what it is now.
    pub fn is_made_ahead(&self, now_ns: u64) -> bool {
        let newest = self.packages.last();
        newest.is_some_and(|newest| newest.created_ns > now_ns)
    }

    /// Answers the packages whose keys are to be destroyed now.
    ///
    /// None while a received Welcome is unresolved: it may need any of them.
    pub fn destroyable(
        &self,
        now_ns: u64,
        has_unresolved_welcome: bool,
    ) -> impl Iterator<Item = &KeyPackageRecord> {
        self.superseded().filter(move |record| {
            let since = now_ns.saturating_sub(record.superseded_ns);
            !has_unresolved_welcome && since >= DESTROY_AFTER_NS
        })
    }
}

/// Notes that the backend holds a package, which replaces all older ones.
pub fn confirm(txn: &mut WriteTxn<'_>, hash_ref: &[u8], now_ns: u64) -> Result<(), StorageError> {
    let rotation = Rotation::read(txn)?;
    let Some(confirmed) = rotation
        .packages
        .iter()
        .find(|record| record.hash_ref == hash_ref)
    else {
        return Ok(());
    };
    let created_ns = confirmed.created_ns;
    for record in &rotation.packages {
        let mut changed = record.clone();
        if record.hash_ref == hash_ref {
            if changed.confirmed_ns == 0 {
                changed.confirmed_ns = now_ns.max(1);
            }
        } else if record.created_ns <= created_ns && record.superseded_ns == 0 {
            changed.superseded_ns = now_ns.max(1);
        }
        if changed != *record {
            txn.put(schema::KEY_PACKAGE, &record.hash_ref.to_vec(), &changed)?;
        }
    }
    Ok(())
}

/// Notes that a Welcome was accepted, so that the package it used is replaced soon. Further ones
/// do not put that off: whoever keeps sending them would keep the used package in use.
pub fn note_welcome(txn: &mut WriteTxn<'_>) -> Result<(), StorageError> {
    let rotation = Rotation::read(txn)?;
    let newest_ns = rotation
        .packages
        .last()
        .map_or(0, |newest| newest.created_ns);
    if rotation.welcome_ns != 0 && rotation.welcome_ns >= newest_ns {
        return Ok(());
    }
    let now_ns = txn.now_ns();
    put_welcome_ns(txn, now_ns)
}

fn put_welcome_ns(txn: &mut WriteTxn<'_>, welcome_ns: u64) -> Result<(), StorageError> {
    let key = key(INSTALLATION, Label::WelcomeAccepted, &[]);
    txn.put(schema::MLS, &key, &Raw(welcome_ns.to_be_bytes().to_vec()))
}

/// Brings what was written while the clock was ahead back to now, so that packages are replaced and
/// their keys destroyed in time by the clock as it is. A package made from now on is the newest.
pub fn bring_back(txn: &mut WriteTxn<'_>, now_ns: u64) -> Result<(), StorageError> {
    let rotation = Rotation::read(txn)?;
    for record in rotation.packages {
        let mut changed = record.clone();
        if record.created_ns > now_ns {
            changed.created_ns = now_ns.saturating_sub(1);
        }
        changed.confirmed_ns = record.confirmed_ns.min(now_ns);
        changed.superseded_ns = record.superseded_ns.min(now_ns);
        if changed != record {
            txn.put(schema::KEY_PACKAGE, &record.hash_ref.to_vec(), &changed)?;
        }
    }
    if rotation.welcome_ns > now_ns {
        put_welcome_ns(txn, now_ns.saturating_sub(1))?;
    }
    Ok(())
}

/// Destroys a package: its init, leaf encryption and wrapper keys together.
pub fn destroy(txn: &mut WriteTxn<'_>, hash_ref: &[u8]) -> Result<(), StorageError> {
    txn.delete(schema::KEY_PACKAGE, &hash_ref.to_vec())?;
    let reference = reference(hash_ref)?;
    MlsStore::new(txn).delete_key_package(&reference)
}

/// Answers the private half of a key that a Welcome names, and how its package is wrapped to.
///
/// Use it as the `key_of` of [`crate::welcome::open`].
pub fn named_key(txn: &mut WriteTxn<'_>, public: &[u8]) -> Result<Option<NamedKey>, StorageError> {
    let rotation = Rotation::read(txn)?;
    for record in rotation.packages {
        if !record.wrapper_public_key.is_empty() && record.wrapper_public_key == public {
            return Ok(Some(NamedKey {
                algorithm: match public.len() {
                    32 => WrapperAlgorithm::X25519,
                    _ => WrapperAlgorithm::XWing,
                },
                private: Zeroizing::new(record.wrapper_private_key.to_vec()),
            }));
        }
        // A package without a wrapper key is wrapped to by its init key, and no other is.
        if record.wrapper_public_key.is_empty() && record.init_key == public {
            return init_key(txn, &record.hash_ref);
        }
    }
    Ok(None)
}

fn init_key(txn: &mut WriteTxn<'_>, hash_ref: &[u8]) -> Result<Option<NamedKey>, StorageError> {
    let reference = reference(hash_ref)?;
    let bundle: Option<KeyPackageBundle> =
        StorageProvider::<VERSION>::key_package(&MlsStore::new(txn), &reference)?;
    Ok(bundle.map(|bundle| NamedKey {
        algorithm: WrapperAlgorithm::X25519,
        private: Zeroizing::new(bundle.init_private_key().to_vec()),
    }))
}

/// Makes openmls's reference of its bytes, for which it has no constructor.
fn reference(hash_ref: &[u8]) -> Result<openmls::prelude::KeyPackageRef, StorageError> {
    use tls_codec::{DeserializeBytes, Serialize, VLByteSlice};
    let corrupt = |_| StorageError::Corrupt {
        table: schema::KEY_PACKAGE.info.name,
        what: "reference",
    };
    let encoded = VLByteSlice(hash_ref)
        .tls_serialize_detached()
        .map_err(corrupt)?;
    openmls::prelude::KeyPackageRef::tls_deserialize_exact_bytes(&encoded).map_err(corrupt)
}

fn welcome_ns<S: Snapshot + ?Sized>(snapshot: &S) -> Result<u64, StorageError> {
    let key = key(INSTALLATION, Label::WelcomeAccepted, &[]);
    let Some(Raw(bytes)) = snapshot.row(schema::MLS, &key)? else {
        return Ok(0);
    };
    let bytes = bytes
        .as_slice()
        .try_into()
        .map_err(|_| StorageError::Corrupt {
            table: schema::MLS.info.name,
            what: "time",
        })?;
    Ok(u64::from_be_bytes(bytes))
}
