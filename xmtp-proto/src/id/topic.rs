//! Topics: what the backend orders and clients follow.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use super::{GroupId, IdError, InboxId, InstallationId, ShortId};
use crate::backend::v1;

/// The kind of payload a topic holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TopicKind {
    /// MLS messages of a group.
    Group = 0,
    /// Welcomes for an installation, or one welcome behind a pointer.
    Welcome = 1,
    /// Identity updates of an inbox.
    Identity = 2,
    /// Key packages of an installation.
    KeyPackage = 3,
    /// The commit log of a group.
    CommitLog = 4,
}

impl TopicKind {
    /// Every kind, by ascending byte.
    pub const ALL: [Self; 5] = [
        Self::Group,
        Self::Welcome,
        Self::Identity,
        Self::KeyPackage,
        Self::CommitLog,
    ];

    /// Returns the kind a byte names, or nothing for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Group),
            1 => Some(Self::Welcome),
            2 => Some(Self::Identity),
            3 => Some(Self::KeyPackage),
            4 => Some(Self::CommitLog),
            _ => None,
        }
    }

    /// Returns the byte that names the kind.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Returns the length of the kind's identifiers, in bytes.
    pub const fn identifier_len(self) -> usize {
        match self {
            Self::Group | Self::CommitLog => GroupId::LEN,
            Self::Welcome | Self::KeyPackage => InstallationId::LEN,
            Self::Identity => InboxId::LEN,
        }
    }
}

/// A topic: a kind and the identifier it is about.
///
/// - Topics order by their bytes: by kind, then by identifier.
#[derive(Clone, Copy)]
pub struct Topic {
    /// The kind byte and the identifier, then zeros.
    bytes: [u8; Self::MAX_LEN],
    /// The length in use, in bytes.
    len: u8,
}

impl Topic {
    /// The length of the longest topic, in bytes.
    pub const MAX_LEN: usize = 33;

    /// Returns the topic of a group's messages.
    pub fn group(group: &GroupId) -> Self {
        Self::new(TopicKind::Group, group.as_bytes())
    }

    /// Returns the topic of an installation's welcomes.
    pub fn welcome(installation: &InstallationId) -> Self {
        Self::new(TopicKind::Welcome, installation.as_bytes())
    }

    /// Returns the topic of the welcome that a pointer names.
    pub fn welcome_destination(destination: [u8; 32]) -> Self {
        Self::new(TopicKind::Welcome, &destination)
    }

    /// Returns the topic of an inbox's identity updates.
    pub fn identity(inbox: &InboxId) -> Self {
        Self::new(TopicKind::Identity, inbox.as_bytes())
    }

    /// Returns the topic of an installation's key packages.
    pub fn key_package(installation: &InstallationId) -> Self {
        Self::new(TopicKind::KeyPackage, installation.as_bytes())
    }

    /// Returns the topic of a group's commit log.
    pub fn commit_log(group: &GroupId) -> Self {
        Self::new(TopicKind::CommitLog, group.as_bytes())
    }

    /// Reads a topic from its bytes.
    ///
    /// - Fails on no bytes, an unknown kind byte, and any other length than
    ///   that of the kind.
    pub fn parse(bytes: &[u8]) -> Result<Self, IdError> {
        let (&byte, identifier) = bytes.split_first().ok_or(IdError::EmptyTopic)?;
        let kind = TopicKind::from_byte(byte).ok_or(IdError::TopicKind { byte })?;
        if identifier.len() != kind.identifier_len() {
            return Err(IdError::Length {
                kind: "topic identifier",
                expected: kind.identifier_len(),
                actual: identifier.len(),
            });
        }
        Ok(Self::new(kind, identifier))
    }

    /// Returns the bytes of the topic.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the kind of the topic.
    pub fn kind(&self) -> TopicKind {
        match self.bytes[0] {
            0 => TopicKind::Group,
            1 => TopicKind::Welcome,
            2 => TopicKind::Identity,
            3 => TopicKind::KeyPackage,
            _ => TopicKind::CommitLog,
        }
    }

    /// Returns what the topic is about, without the kind byte.
    pub fn identifier(&self) -> &[u8] {
        &self.as_bytes()[1..]
    }

    /// Returns the group of a message or commit log topic.
    pub fn group_id(&self) -> Option<GroupId> {
        match self.kind() {
            TopicKind::Group | TopicKind::CommitLog => self.identifier().try_into().ok(),
            TopicKind::Welcome | TopicKind::Identity | TopicKind::KeyPackage => None,
        }
    }

    /// Returns the inbox of an identity topic.
    pub fn inbox_id(&self) -> Option<InboxId> {
        match self.kind() {
            TopicKind::Identity => self.identifier().try_into().ok(),
            TopicKind::Group
            | TopicKind::Welcome
            | TopicKind::KeyPackage
            | TopicKind::CommitLog => None,
        }
    }

    /// Returns the topic as it goes on the wire.
    pub fn to_proto(&self) -> v1::Topic {
        v1::Topic {
            topic: Bytes::copy_from_slice(self.as_bytes()),
        }
    }

    /// Returns the short form of the identifier, for logs.
    pub fn short(&self) -> ShortId {
        ShortId::of(self.identifier())
    }

    fn new(kind: TopicKind, identifier: &[u8]) -> Self {
        debug_assert_eq!(identifier.len(), kind.identifier_len());
        let mut bytes = [0; Self::MAX_LEN];
        bytes[0] = kind.byte();
        bytes[1..=identifier.len()].copy_from_slice(identifier);
        Self {
            bytes,
            len: 1 + kind.identifier_len() as u8,
        }
    }
}

impl PartialEq for Topic {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Topic {}

impl PartialOrd for Topic {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Topic {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Topic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl TryFrom<&v1::Topic> for Topic {
    type Error = IdError;

    fn try_from(topic: &v1::Topic) -> Result<Self, IdError> {
        Self::parse(&topic.topic)
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topic({:?} {})", self.kind(), self.short())
    }
}
