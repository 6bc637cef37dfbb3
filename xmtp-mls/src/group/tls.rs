//! Reading and writing the few TLS shapes of ours: QUIC variable-length integers, and vectors
//! with such a length before them.

/// The bytes do not have the shape asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads from the front of a byte string.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// Reads an integer of 1, 2 or 4 bytes, of which the first two bits tell the length; a longer
    /// form than needed is refused, as MLS does.
    pub(super) fn varint(&mut self) -> Result<u32, Malformed> {
        let first = *self.0.first().ok_or(Malformed)?;
        let len = match first >> 6 {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return Err(Malformed),
        };
        let bytes = self.take(len)?;
        let value = bytes[1..]
            .iter()
            .fold(u32::from(first & 0x3f), |value, byte| {
                value << 8 | u32::from(*byte)
            });
        if varint_len(value) != len {
            return Err(Malformed);
        }
        Ok(value)
    }

    /// Reads `opaque<V>`.
    pub(super) fn opaque(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| Malformed)?)
    }
}

fn varint_len(value: u32) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        _ => 4,
    }
}

/// Reads a byte string that is one `opaque<V>` and nothing else.
pub(super) fn only_opaque(bytes: &[u8]) -> Result<&[u8], Malformed> {
    let mut reader = Reader(bytes);
    let inner = reader.opaque()?;
    if reader.is_empty() {
        Ok(inner)
    } else {
        Err(Malformed)
    }
}

/// Writes a variable-length integer.
///
/// # Panics
/// At 2^30 and above, which no length of ours reaches.
pub(super) fn put_varint(out: &mut Vec<u8>, value: u32) {
    assert!(value < 1 << 30, "a length is over the bound of MLS");
    match varint_len(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0x8000_0000).to_be_bytes()),
    }
}

/// Writes `opaque<V>`.
pub(super) fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(bytes);
}
