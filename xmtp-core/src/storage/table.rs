//! Typed tables: a name, a key type and a value type are one constant.

use std::marker::PhantomData;

use super::{Key, KeyRange, Order, Page, PrefixOf, Snapshot, StorageError};

/// The number of a table in the file format; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// How an engine lays a table out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Keys are one `u64` below 2^63, big-endian; rows of any size.
    Numbered,
    /// Rows of about a kilobyte and more.
    Large,
    /// Small rows: positions and indexes.
    Small,
}

/// What an engine is told of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// The table's number.
    pub id: TableId,
    /// The table's name: lowercase letters and underscores.
    pub name: &'static str,
    /// How it is laid out.
    pub layout: Layout,
}

/// A typed table.
pub struct Table<K, V> {
    /// What the engine is told.
    pub info: TableInfo,
    /// The domain whose readers a change wakes; a bit number below 64.
    pub domain: Domain,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Table<K, V> {}

impl<K, V> std::fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.info.name)
    }
}

impl<K, V> Table<K, V> {
    /// Declares a table.
    pub const fn new(id: u16, name: &'static str, layout: Layout, domain: Domain) -> Self {
        Self {
            info: TableInfo {
                id: TableId(id),
                name,
                layout,
            },
            domain,
            types: PhantomData,
        }
    }
}

/// A part of the state whose readers are woken together; stamped on each commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Domain {
    /// Bookkeeping of the database itself.
    Database = 0,
    /// Pending envelopes, F, P and head states.
    Progress = 1,
    /// Deliverable messages.
    Messages = 2,
    /// Groups and discovery.
    Groups = 3,
    /// Outgoing intents and attempts.
    Outgoing = 4,
    /// Acknowledgement and the consumer's lease.
    Delivery = 5,
    /// Welcomes and their retry state.
    Welcomes = 6,
    /// Identity states and the own account.
    Identity = 7,
    /// The processors' own state.
    Mls = 8,
    /// Server configuration.
    Configuration = 9,
}

impl Domain {
    /// Answers the domain's bit in a commit's set of changed domains.
    pub const fn bit(self) -> u64 {
        1 << (self as u8)
    }
}

/// A value of a typed table.
pub trait Value: Sized {
    /// Encodes the value.
    fn encode_value(&self) -> Vec<u8>;
    /// Decodes the value; `None` when the bytes are damaged.
    fn decode_value(bytes: &[u8]) -> Option<Self>;
}

/// An uninterpreted value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw(pub Vec<u8>);

impl Value for Raw {
    fn encode_value(&self) -> Vec<u8> {
        self.0.clone()
    }
    fn decode_value(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.to_vec()))
    }
}

impl<M: prost::Message + Default> Value for M {
    fn encode_value(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
    fn decode_value(bytes: &[u8]) -> Option<Self> {
        M::decode(bytes).ok()
    }
}

/// Typed reads, the same over a snapshot and a transaction.
pub trait Read: Snapshot {
    /// Reads one row.
    fn row<K: Key, V: Value>(
        &self,
        table: Table<K, V>,
        key: &K,
    ) -> Result<Option<V>, StorageError> {
        let value = self.get(table.info.id, &key.to_bytes())?;
        value.map(|bytes| decode(table, &bytes)).transpose()
    }

    /// Reads several rows, in the order of `keys`.
    fn rows<K: Key, V: Value>(
        &self,
        table: Table<K, V>,
        keys: &[K],
    ) -> Result<Vec<Option<V>>, StorageError> {
        let encoded: Vec<Vec<u8>> = keys.iter().map(Key::to_bytes).collect();
        let borrowed: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        self.get_many(table.info.id, &borrowed)?
            .into_iter()
            .map(|value| value.map(|bytes| decode(table, &bytes)).transpose())
            .collect()
    }

    /// Reads one page of the rows whose key starts with `prefix`, after `after` when given
    /// (before it, in descending order).
    fn page<K: Key, V: Value, P: PrefixOf<K>>(
        &self,
        table: Table<K, V>,
        prefix: &P,
        after: Option<&K>,
        page: Page,
    ) -> Result<TypedPage<K, V>, StorageError> {
        let mut start = prefix.prefix_bytes();
        let mut end = crate::storage::key::prefix_end(&start);
        if let Some(key) = after {
            match page.order {
                Order::Ascending => {
                    start = key.to_bytes();
                    start.push(0);
                }
                Order::Descending => end = Some(key.to_bytes()),
            }
        }
        let range = KeyRange {
            start: &start,
            end: end.as_deref(),
        };
        let rows = self.scan(table.info.id, range, page)?;
        let mut typed = TypedPage {
            rows: Vec::with_capacity(rows.len()),
            more: rows.more,
        };
        for (key, value) in rows.iter() {
            let key = K::from_bytes(key).map_err(|_| StorageError::Corrupt {
                table: table.info.name,
                what: "key",
            })?;
            typed.rows.push((key, decode(table, value)?));
        }
        Ok(typed)
    }
}

impl<S: Snapshot + ?Sized> Read for S {}

/// A page of typed rows.
#[derive(Clone, Debug)]
pub struct TypedPage<K, V> {
    /// Keys and values in page order.
    pub rows: Vec<(K, V)>,
    /// Whether a further row exists in the range.
    pub more: bool,
}

fn decode<K, V: Value>(table: Table<K, V>, bytes: &[u8]) -> Result<V, StorageError> {
    V::decode_value(bytes).ok_or(StorageError::Corrupt {
        table: table.info.name,
        what: "value",
    })
}
