//! Keys whose bytes sort as their values do, so that a byte store answers ordered questions.
//!
//! Fixed-length parts are written as they are, numbers big-endian. The one part of free length,
//! `Vec<u8>`, escapes `00` as `00 FF` and ends with `00 00`: no key is a prefix of another, and
//! the parts after it cannot disturb its order. The encodings are part of the file format.

use thiserror::Error;
use xmtp_proto::{
    DatabaseId, GroupId, InboxId, InstallationId, MessageId, SequenceId, Topic, TopicKind,
};

/// The escape of a zero byte inside a `Vec<u8>` is a zero byte and this one.
const ESCAPED_ZERO: u8 = 0xff;
/// The end of a `Vec<u8>` is a zero byte and this one, which sorts before every escape.
const END: u8 = 0x00;

/// Says that bytes are not a key of their table; never carries them.
#[derive(Clone, Copy, Debug, Default, Error, PartialEq, Eq)]
#[error("a key of table {} is damaged; restore the database from a backup", .table.unwrap_or("unknown"))]
pub struct KeyError {
    /// The table, where it is known.
    pub table: Option<&'static str>,
}

/// A key of a typed table.
///
/// # Behavior
/// - Encodings sort as the values do.
/// - Decoding refuses every byte string that encoding does not produce.
pub trait Key: Sized {
    /// Appends the encoding.
    fn encode(&self, out: &mut Vec<u8>);

    /// Takes one key off the front of `bytes`.
    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError>;

    /// Encodes the key alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        self.encode(&mut out);
        out
    }

    /// Decodes a key that fills `bytes`; trailing bytes are refused.
    fn from_bytes(mut bytes: &[u8]) -> Result<Self, KeyError> {
        let key = Self::decode(&mut bytes)?;
        if bytes.is_empty() {
            Ok(key)
        } else {
            Err(KeyError::default())
        }
    }
}

/// The leading parts of a key `K`; names the rows whose keys start with them.
pub trait PrefixOf<K> {
    /// Encodes the leading parts.
    fn prefix_bytes(&self) -> Vec<u8>;
}

/// The prefix of every key: the whole table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct All;

/// The first two parts of a key of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix2<A, B>(pub A, pub B);

impl<K> PrefixOf<K> for All {
    fn prefix_bytes(&self) -> Vec<u8> {
        Vec::new()
    }
}

impl<A: Key, B> PrefixOf<(A, B)> for A {
    fn prefix_bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }
}

impl<A: Key, B: Key, C> PrefixOf<(A, (B, C))> for Prefix2<A, B> {
    fn prefix_bytes(&self) -> Vec<u8> {
        let mut out = self.0.to_bytes();
        self.1.encode(&mut out);
        out
    }
}

/// Answers the first byte string after all that start with `prefix`, if there is one.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], KeyError> {
    let (head, rest) = bytes.split_at_checked(len).ok_or_else(KeyError::default)?;
    *bytes = rest;
    Ok(head)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], KeyError> {
    take(bytes, N)?.try_into().map_err(|_| KeyError::default())
}

impl Key for () {
    fn encode(&self, _out: &mut Vec<u8>) {}

    fn decode(_bytes: &mut &[u8]) -> Result<Self, KeyError> {
        Ok(())
    }
}

macro_rules! number_key {
    ($($number:ty),*) => {$(
        impl Key for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
                take_array(bytes).map(Self::from_be_bytes)
            }
        }
    )*};
}

number_key!(u8, u16, u32, u64);

impl Key for SequenceId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.get().encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
        Self::checked(u64::decode(bytes)?).map_err(|_| KeyError::default())
    }
}

impl<const N: usize> Key for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
        take_array(bytes)
    }
}

macro_rules! id_key {
    ($($id:ty),*) => {$(
        impl Key for $id {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.as_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
                take_array(bytes).map(Self::from_bytes)
            }
        }
    )*};
}

id_key!(GroupId, InboxId, InstallationId, MessageId, DatabaseId);

impl Key for Topic {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    // The kind byte fixes the length.
    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
        let kind = bytes.first().copied().and_then(TopicKind::from_byte);
        let kind = kind.ok_or_else(KeyError::default)?;
        let topic = take(bytes, 1 + kind.identifier_len())?;
        Self::parse(topic).map_err(|_| KeyError::default())
    }
}

impl Key for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        for &byte in self {
            out.push(byte);
            if byte == 0 {
                out.push(ESCAPED_ZERO);
            }
        }
        out.extend_from_slice(&[0, END]);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
        let mut key = Vec::new();
        loop {
            let [byte] = take_array(bytes)?;
            if byte != 0 {
                key.push(byte);
                continue;
            }
            match take_array(bytes)? {
                [ESCAPED_ZERO] => key.push(0),
                [END] => return Ok(key),
                _ => return Err(KeyError::default()),
            }
        }
    }
}

impl<A: Key, B: Key> Key for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, KeyError> {
        Ok((A::decode(bytes)?, B::decode(bytes)?))
    }
}
