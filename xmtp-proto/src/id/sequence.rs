//! Positions in topics.

use std::fmt;

use super::IdError;
use crate::backend::v1::Cursor;

/// A position in the backend's one numbering of envelopes.
///
/// Ids start at 1, are unique over all topics and grow within each; gaps mean
/// nothing. [`SequenceId::ZERO`] is the boundary before the first envelope.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

impl SequenceId {
    /// The boundary before the first envelope.
    pub const ZERO: Self = Self(0);

    /// The greatest sequence id, 2^63 - 1.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Takes a number from the wire, or fails above [`SequenceId::MAX`].
    pub const fn checked(value: u64) -> Result<Self, IdError> {
        if value > Self::MAX.0 {
            return Err(IdError::Sequence { value });
        }
        Ok(Self(value))
    }

    /// Makes an id from a stored number, which was checked when it was written; a greater
    /// number becomes [`SequenceId::MAX`].
    #[must_use]
    pub const fn saturating(value: u64) -> Self {
        if value > Self::MAX.0 {
            Self::MAX
        } else {
            Self(value)
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the id after this one, or nothing after the greatest.
    pub const fn next(self) -> Option<Self> {
        if self.0 == Self::MAX.0 {
            return None;
        }
        Some(Self(self.0 + 1))
    }

    /// Returns the exclusive cursor at this position.
    pub fn to_cursor(self) -> Cursor {
        Cursor {
            sequence_id: self.0,
        }
    }
}

impl From<u32> for SequenceId {
    fn from(value: u32) -> Self {
        Self(value.into())
    }
}

impl TryFrom<u64> for SequenceId {
    type Error = IdError;

    fn try_from(value: u64) -> Result<Self, IdError> {
        Self::checked(value)
    }
}

impl From<SequenceId> for u64 {
    fn from(id: SequenceId) -> Self {
        id.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SequenceId({})", self.0)
    }
}
