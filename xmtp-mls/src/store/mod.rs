//! The storage of openmls, over one write transaction of ours.
//!
//! openmls speaks key-value and takes its storage by `&self`; a turn has one `&mut WriteTxn`. So a
//! [`MlsStore`] borrows the transaction in a `RefCell` for one openmls call and is dropped after
//! it. Three rules hold here:
//!
//! - **The first storage fault is kept.** openmls turns some failed reads into what looks like an
//!   invalid commit, so whoever calls openmls asks [`MlsStore::take_fault`] before looking at its
//!   result, `Ok` included.
//! - **Message secrets may be held back.** Each application message rewrites all secrets of a
//!   group. Under a [`Deferred`] the write stays in memory and the transaction refuses to commit
//!   until [`Deferred::flush`], so no message can be accepted twice.
//! - **The entities of a group are neighbours**: keys are (owner, label, sub key), and the owner of
//!   a group's entities is its id.

mod codec;
mod deferred;
mod entities;

use std::cell::{Cell, RefCell};
use std::fmt;

use openmls_traits::storage::Entity;
use xmtp_core::storage::{Order, Page, Prefix2, Raw, Read, StorageError, WriteTxn, schema};

pub use deferred::Deferred;

/// The version of the storage trait this adapter implements.
pub(crate) const VERSION: u16 = openmls_traits::storage::CURRENT_VERSION;

/// Rows read at once when a list is read.
const LIST_PAGE_ROWS: u32 = 256;
/// Bytes read at once when a list is read.
const LIST_PAGE_BYTES: u32 = 4 * 1024 * 1024;

/// What an entity is; part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Label {
    JoinConfig = 1,
    Tree = 2,
    InterimTranscriptHash = 3,
    GroupContext = 4,
    ConfirmationTag = 5,
    GroupState = 6,
    MessageSecrets = 7,
    ResumptionPsks = 8,
    OwnLeafIndex = 9,
    EpochSecrets = 10,
    ApplicationExportTree = 11,
    OwnLeafNode = 12,
    Proposal = 13,
    EpochKeyPairs = 14,
    SignatureKeyPair = 20,
    EncryptionKeyPair = 21,
    KeyPackage = 22,
    Psk = 23,
    /// The Ed25519 seed of the installation; ours, not openmls's.
    InstallationSeed = 30,
    /// When a Welcome was last accepted; ours, not openmls's.
    WelcomeAccepted = 31,
    /// The epoch at which a group was joined; ours, not openmls's.
    JoinEpoch = 32,
}

/// The owner of what belongs to the installation and to no group.
pub(crate) const INSTALLATION: &[u8] = &[];

/// The storage of one openmls call.
pub struct MlsStore<'t, 'w> {
    txn: RefCell<&'t mut WriteTxn<'w>>,
    deferred: Option<&'t Deferred>,
    fault: RefCell<Option<StorageError>>,
    is_flushing: Cell<bool>,
}

impl fmt::Debug for MlsStore<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MlsStore")
            .field("deferred", &self.deferred)
            .finish_non_exhaustive()
    }
}

impl<'t, 'w> MlsStore<'t, 'w> {
    /// Writes everything through.
    pub fn new(txn: &'t mut WriteTxn<'w>) -> Self {
        Self::with(txn, None)
    }

    /// Holds back the message secrets until [`Deferred::flush`].
    pub fn deferring(txn: &'t mut WriteTxn<'w>, deferred: &'t Deferred) -> Self {
        Self::with(txn, Some(deferred))
    }

    fn with(txn: &'t mut WriteTxn<'w>, deferred: Option<&'t Deferred>) -> Self {
        Self {
            txn: RefCell::new(txn),
            deferred,
            fault: RefCell::new(None),
            is_flushing: Cell::new(false),
        }
    }

    /// Takes the first storage fault since the last call, if there was one.
    pub fn take_fault(&self) -> Option<StorageError> {
        self.fault.borrow_mut().take()
    }

    /// Keeps the first fault.
    fn keep<T>(&self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        result.inspect_err(|error| {
            self.fault.borrow_mut().get_or_insert_with(|| error.clone());
        })
    }

    /// Answers the owner of a group's entities.
    fn owner<G: serde::Serialize>(&self, group: &G) -> Result<Vec<u8>, StorageError> {
        self.keep(codec::owner(group))
    }

    /// Answers the sub key of an entity that openmls names by a key.
    fn sub<K: serde::Serialize>(&self, key: &K) -> Result<Vec<u8>, StorageError> {
        self.keep(codec::key(key))
    }

    fn get<E: Entity<VERSION>>(
        &self,
        owner: &[u8],
        label: Label,
        sub: &[u8],
    ) -> Result<Option<E>, StorageError> {
        let row = self.txn.borrow().row(schema::MLS, &key(owner, label, sub));
        let entity = row.and_then(|row| row.map(|Raw(bytes)| codec::decode(&bytes)).transpose());
        self.keep(entity)
    }

    fn put<E: serde::Serialize>(
        &self,
        owner: &[u8],
        label: Label,
        sub: &[u8],
        entity: &E,
    ) -> Result<(), StorageError> {
        let encoded = match label {
            Label::JoinConfig => codec::encode_json(entity),
            _ => codec::encode(entity),
        };
        self.keep(encoded.and_then(|bytes| {
            let mut txn = self.txn.borrow_mut();
            txn.put(schema::MLS, &key(owner, label, sub), &Raw(bytes))
        }))
    }

    fn delete(&self, owner: &[u8], label: Label, sub: &[u8]) -> Result<(), StorageError> {
        let key = key(owner, label, sub);
        let deleted = self.txn.borrow_mut().delete(schema::MLS, &key);
        self.keep(deleted)
    }

    fn clear(&self, owner: &[u8], label: Label) -> Result<(), StorageError> {
        let prefix = Prefix2(owner.to_vec(), label as u8);
        let cleared = self.txn.borrow_mut().clear(schema::MLS, &prefix);
        self.keep(cleared)
    }

    /// Reads all sub keys and entities of a label, in key order.
    fn list<E: serde::de::DeserializeOwned>(
        &self,
        owner: &[u8],
        label: Label,
    ) -> Result<Vec<(Vec<u8>, E)>, StorageError> {
        let listed = list(*self.txn.borrow(), owner, label);
        self.keep(listed.and_then(|rows| {
            rows.into_iter()
                .map(|(sub, bytes)| Ok((sub, codec::decode(&bytes)?)))
                .collect()
        }))
    }

    /// Reads the sub keys of a label, in key order.
    fn sub_keys(&self, owner: &[u8], label: Label) -> Result<Vec<Vec<u8>>, StorageError> {
        let listed = list(*self.txn.borrow(), owner, label);
        let rows = self.keep(listed)?;
        Ok(rows.into_iter().map(|(sub, _)| sub).collect())
    }

    /// Reads an entity that is a list; absent is empty.
    fn get_vec<E: Entity<VERSION>>(
        &self,
        owner: &[u8],
        label: Label,
        sub: &[u8],
    ) -> Result<Vec<E>, StorageError> {
        let row = self.txn.borrow().row(schema::MLS, &key(owner, label, sub));
        let list = row.and_then(|row| match row {
            Some(Raw(bytes)) => codec::decode(&bytes),
            None => Ok(Vec::new()),
        });
        self.keep(list)
    }

    /// Answers the place after the last of an ordered list.
    fn next_place(&self, owner: &[u8], label: Label) -> Result<u32, StorageError> {
        let last = Page {
            rows: 1,
            bytes: LIST_PAGE_BYTES,
            order: Order::Descending,
        };
        let prefix = Prefix2(owner.to_vec(), label as u8);
        let page = self.txn.borrow().page(schema::MLS, &prefix, None, last);
        let page = self.keep(page)?;
        let Some(((_, (_, sub)), _)) = page.rows.first() else {
            return Ok(0);
        };
        let place = sub.first_chunk().map(|place| u32::from_be_bytes(*place));
        let next = place.and_then(|place| place.checked_add(1));
        self.keep(next.ok_or(codec::corrupt("key")))
    }

    /// Tells whether the message secrets are held back already, as they are for every message of
    /// a turn but the first; debug builds look at whose they are each time.
    fn holds_back_again(&self) -> bool {
        let is_dirty = self.deferred.is_some_and(Deferred::is_dirty);
        is_dirty && !self.is_flushing.get() && !cfg!(debug_assertions)
    }

    /// Holds back the message secrets, or writes them through.
    fn put_message_secrets<E: serde::Serialize>(
        &self,
        owner: &[u8],
        entity: &E,
    ) -> Result<(), StorageError> {
        match self.deferred {
            Some(deferred) if !self.is_flushing.get() => {
                deferred.mark(owner);
                self.txn.borrow_mut().hold_back();
                Ok(())
            }
            _ => self.put(owner, Label::MessageSecrets, &[], entity),
        }
    }

    /// Reads the message secrets; a stale read fails, because it would revive used keys.
    fn message_secrets_of<E: Entity<VERSION>>(
        &self,
        owner: &[u8],
    ) -> Result<Option<E>, StorageError> {
        if self.deferred.is_some_and(|deferred| deferred.is_dirty())
            || self.txn.borrow().is_held_back()
        {
            return self.keep(Err(StorageError::HeldBack));
        }
        self.get(owner, Label::MessageSecrets, &[])
    }
}

/// Deletes everything that openmls keeps of a group, whatever its state.
pub fn erase_group(
    txn: &mut WriteTxn<'_>,
    group: &xmtp_proto::id::GroupId,
) -> Result<(), StorageError> {
    txn.clear(schema::MLS, &group.as_bytes().to_vec())
}

/// Keeps the epoch at which a group was joined, until the group is erased.
pub(crate) fn put_join_epoch(
    txn: &mut WriteTxn<'_>,
    group: &xmtp_proto::id::GroupId,
    epoch: u64,
) -> Result<(), StorageError> {
    let key = key(group.as_bytes(), Label::JoinEpoch, &[]);
    txn.put(schema::MLS, &key, &Raw(epoch.to_be_bytes().to_vec()))
}

/// Reads the epoch at which a group was joined; 0 for one that was created here.
pub(crate) fn join_epoch(
    txn: &WriteTxn<'_>,
    group: &xmtp_proto::id::GroupId,
) -> Result<u64, StorageError> {
    let key = key(group.as_bytes(), Label::JoinEpoch, &[]);
    let Some(Raw(epoch)) = txn.row(schema::MLS, &key)? else {
        return Ok(0);
    };
    let epoch = epoch.as_slice().try_into().map(u64::from_be_bytes);
    epoch.map_err(|_| codec::corrupt("join epoch"))
}

pub(crate) fn key(owner: &[u8], label: Label, sub: &[u8]) -> (Vec<u8>, (u8, Vec<u8>)) {
    (owner.to_vec(), (label as u8, sub.to_vec()))
}

/// Sub keys and encoded entities.
type RawRows = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the raw rows of a label.
fn list(txn: &WriteTxn<'_>, owner: &[u8], label: Label) -> Result<RawRows, StorageError> {
    let page = Page {
        rows: LIST_PAGE_ROWS,
        bytes: LIST_PAGE_BYTES,
        order: Order::Ascending,
    };
    let prefix = Prefix2(owner.to_vec(), label as u8);
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let read = txn.page(schema::MLS, &prefix, after.as_ref(), page)?;
        let more = read.more;
        for ((owner, (label, sub)), Raw(bytes)) in read.rows {
            all.push((sub.clone(), bytes));
            after = Some((owner, (label, sub)));
        }
        if !more {
            return Ok(all);
        }
    }
}
