//! Maps and sets inside components, and the changes that updates make to them.

use sha2::{Digest, Sha256};
use xmtp_proto::id::InboxId;

use super::tls::{self, Malformed, Reader, put_opaque, put_varint};

/// An empty collection.
pub(super) const EMPTY: &[u8] = &[0];

/// How keys of a collection are encoded.
#[derive(Clone, Copy)]
pub(super) enum KeyShape {
    Component,
    Inbox,
    Opaque,
}

impl KeyShape {
    /// Reads one key and answers its encoding.
    fn read<'a>(self, reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
        let before = reader.0;
        match self {
            Self::Component => {
                let id = reader.varint()?;
                u16::try_from(id).map_err(|_| Malformed)?;
            }
            Self::Inbox => {
                inbox(reader)?;
            }
            Self::Opaque => {
                reader.opaque()?;
            }
        }
        Ok(&before[..before.len() - reader.0.len()])
    }

    /// Answers what keys are sorted by: ids numerically, others by their bytes.
    fn order(self, encoded: &[u8]) -> (u32, &[u8]) {
        match self {
            Self::Component => (Reader(encoded).varint().unwrap_or(0), &[]),
            Self::Inbox => (0, encoded),
            Self::Opaque => (0, Reader(encoded).opaque().unwrap_or(encoded)),
        }
    }
}

/// Elements by the encoding of their keys, in order; a set's values are empty.
pub(super) type Elements = Vec<(Vec<u8>, Vec<u8>)>;

/// One change of a collection.
pub(super) enum Mutation<'a> {
    Insert(&'a [u8], &'a [u8]),
    Update(&'a [u8], &'a [u8]),
    Delete(Vec<u8>),
    DeleteHash(&'a [u8]),
}

impl<'a> Mutation<'a> {
    pub(super) fn read(
        keys: KeyShape,
        is_map: bool,
        reader: &mut Reader<'a>,
    ) -> Result<Self, Malformed> {
        match (is_map, reader.byte()?) {
            (true, 0) => Ok(Self::Insert(keys.read(reader)?, reader.opaque()?)),
            (true, 1) => Ok(Self::Update(keys.read(reader)?, reader.opaque()?)),
            (true, 2) | (false, 1) => Ok(Self::Delete(keys.read(reader)?.to_vec())),
            (false, 0) => Ok(Self::Insert(keys.read(reader)?, &[])),
            (false, 2) => Ok(Self::DeleteHash(reader.take(32)?)),
            _ => Err(Malformed),
        }
    }

    /// Puts the key in the place of its hash, when exactly one element has it.
    pub(super) fn named(self, original: &Elements) -> Option<Self> {
        let Self::DeleteHash(hash) = self else {
            return Some(self);
        };
        let mut found = original
            .iter()
            .filter(|(key, _)| Sha256::digest(key).as_slice() == hash);
        let (key, _) = found.next()?;
        found.next().is_none().then(|| Self::Delete(key.clone()))
    }
}

/// Makes one change; `None` when it does not fit what is there.
pub(super) fn mutate(
    keys: KeyShape,
    elements: &mut Elements,
    mutation: Mutation<'_>,
) -> Option<()> {
    let find = |elements: &Elements, key: &[u8]| {
        elements.binary_search_by(|(other, _)| keys.order(other).cmp(&keys.order(key)))
    };
    match mutation {
        Mutation::Insert(key, value) => {
            let at = find(elements, key).err()?;
            elements.insert(at, (key.to_vec(), value.to_vec()));
        }
        Mutation::Update(key, value) => {
            let at = find(elements, key).ok()?;
            elements[at].1 = value.to_vec();
        }
        Mutation::Delete(key) => {
            let at = find(elements, &key).ok()?;
            elements.remove(at);
        }
        Mutation::DeleteHash(_) => return None,
    }
    Some(())
}

/// Reads a collection; keys must be unique and ascend.
pub(super) fn elements(keys: KeyShape, is_map: bool, bytes: &[u8]) -> Result<Elements, Malformed> {
    let mut reader = Reader(tls::only_opaque(bytes)?);
    let mut elements: Elements = Vec::new();
    while !reader.is_empty() {
        let key = keys.read(&mut reader)?;
        let value = reader.opaque()?;
        if !is_map && !value.is_empty() {
            return Err(Malformed);
        }
        let last = elements.last();
        if last.is_some_and(|(last, _)| keys.order(last) >= keys.order(key)) {
            return Err(Malformed);
        }
        elements.push((key.to_vec(), value.to_vec()));
    }
    Ok(elements)
}

/// Writes a collection; its elements are in order.
pub(super) fn encode(elements: &Elements) -> Vec<u8> {
    let mut inner = Vec::new();
    for (key, value) in elements {
        inner.extend_from_slice(key);
        put_opaque(&mut inner, value);
    }
    let mut out = Vec::with_capacity(inner.len() + 4);
    put_varint(&mut out, u32::try_from(inner.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(&inner);
    out
}

/// Reads an inbox: the version 0 and 32 bytes.
fn inbox(reader: &mut Reader<'_>) -> Result<InboxId, Malformed> {
    if reader.varint()? != 0 {
        return Err(Malformed);
    }
    InboxId::try_from(reader.take(InboxId::LEN)?).map_err(|_| Malformed)
}

/// Reads an inbox and nothing else.
pub(super) fn only_inbox(bytes: &[u8]) -> Result<InboxId, Malformed> {
    let mut reader = Reader(bytes);
    let read = inbox(&mut reader)?;
    if reader.is_empty() {
        Ok(read)
    } else {
        Err(Malformed)
    }
}
