//! Rules of receipt, processing, Welcomes and discovery.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use xmtp_proto::storage::v1::{KindBudget, TopicRecord};
use xmtp_proto::{GroupId, Topic, TopicKind};

use super::{Faults, each};
use crate::storage::schema::{
    DISCOVERY, GROUP, HEAD, KIND_BUDGET, PENDING, REJECTION, TOPIC, WELCOME,
};
use crate::storage::{Read, Snapshot, StorageError};

/// What waits, counted row by row.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Waiting {
    rows: u64,
    bytes: u64,
}

impl Waiting {
    fn add(&mut self, bytes: usize) {
        self.rows += 1;
        self.bytes += bytes as u64;
    }
}

pub(super) fn check(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    let by_topic = pending(snapshot, faults)?;
    topics(snapshot, faults, &by_topic)?;
    budgets(snapshot, faults, &by_topic)?;
    heads(snapshot, faults)?;
    rejections(snapshot, faults)?;
    welcomes(snapshot, faults)
}

fn is_ordered(topic: &Topic) -> bool {
    matches!(topic.kind(), TopicKind::Group | TopicKind::Identity)
}

fn pending(
    snapshot: &dyn Snapshot,
    faults: &mut Faults,
) -> Result<BTreeMap<Topic, Waiting>, StorageError> {
    let mut by_topic: BTreeMap<Topic, Waiting> = BTreeMap::new();
    let mut current: Option<(Topic, TopicRecord)> = None;
    each(snapshot, PENDING, |(topic, sequence), envelope| {
        let record = match current.take() {
            Some((known, record)) if known == topic => record,
            _ => snapshot.row(TOPIC, &topic)?.unwrap_or_default(),
        };
        let (f, p, at) = (record.received, record.processed, sequence.get());
        faults.expect(
            at <= f,
            "pending <= F",
            format_args!("{topic:?} at {at}, F {f}"),
        );
        faults.expect(
            at > p || !is_ordered(&topic),
            "pending > P",
            format_args!("{topic:?} at {at}, P {p}"),
        );
        by_topic
            .entry(topic)
            .or_default()
            .add(envelope.encoded_len());
        current = Some((topic, record));
        Ok(())
    })?;
    Ok(by_topic)
}

fn topics(
    snapshot: &dyn Snapshot,
    faults: &mut Faults,
    by_topic: &BTreeMap<Topic, Waiting>,
) -> Result<(), StorageError> {
    let mut counted: BTreeMap<Topic, Waiting> = BTreeMap::new();
    each(snapshot, TOPIC, |topic, record| {
        let (f, p) = (record.received, record.processed);
        faults.expect(p <= f, "P <= F", format_args!("{topic:?} P {p}, F {f}"));
        let said = Waiting {
            rows: record.pending_rows.into(),
            bytes: record.pending_bytes,
        };
        if said != Waiting::default() {
            counted.insert(topic, said);
        }
        Ok(())
    })?;
    let both: BTreeSet<&Topic> = counted.keys().chain(by_topic.keys()).collect();
    for topic in both {
        let said = counted.get(topic).copied().unwrap_or_default();
        let found = by_topic.get(topic).copied().unwrap_or_default();
        faults.expect(
            said == found,
            "topic counts = pending rows",
            format_args!(
                "{topic:?} counts {} rows and {} bytes, holds {} and {}",
                said.rows, said.bytes, found.rows, found.bytes
            ),
        );
    }
    Ok(())
}

fn budgets(
    snapshot: &dyn Snapshot,
    faults: &mut Faults,
    by_topic: &BTreeMap<Topic, Waiting>,
) -> Result<(), StorageError> {
    let mut by_kind: BTreeMap<u8, Waiting> = BTreeMap::new();
    for (topic, waiting) in by_topic {
        let kind = by_kind.entry(topic.kind().byte()).or_default();
        kind.rows += waiting.rows;
        kind.bytes += waiting.bytes;
    }
    let mut said: BTreeMap<u8, KindBudget> = BTreeMap::new();
    each(snapshot, KIND_BUDGET, |kind, budget| {
        let is_known = TopicKind::from_byte(kind).is_some();
        faults.expect(is_known, "budget = pending rows", "the kind is unknown");
        said.insert(kind, budget);
        Ok(())
    })?;
    for kind in TopicKind::ALL {
        let said = said.remove(&kind.byte()).unwrap_or_default();
        let found = by_kind.get(&kind.byte()).copied().unwrap_or_default();
        faults.expect(
            (said.rows, said.bytes) == (found.rows, found.bytes),
            "budget = pending rows",
            format_args!(
                "{kind:?} counts {} rows and {} bytes, holds {} and {}",
                said.rows, said.bytes, found.rows, found.bytes
            ),
        );
    }
    Ok(())
}

fn heads(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    each(snapshot, HEAD, |topic, head| {
        let sequence = head.sequence_id.try_into();
        let is_pending = match sequence {
            Ok(sequence) => snapshot.row(PENDING, &(topic, sequence))?.is_some(),
            Err(_) => false,
        };
        let at = head.sequence_id;
        faults.expect(
            is_pending,
            "head is pending",
            format_args!("{topic:?} at {at}"),
        );
        Ok(())
    })
}

fn rejections(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    each(snapshot, REJECTION, |(topic, sequence), _| {
        let record = snapshot.row(TOPIC, &topic)?.unwrap_or_default();
        let bound = match is_ordered(&topic) {
            true => record.processed,
            false => record.received,
        };
        let at = sequence.get();
        faults.expect(
            at <= bound,
            "rejection is behind",
            format_args!("{topic:?} at {at}, bound {bound}"),
        );
        let is_pending = snapshot.row(PENDING, &(topic, sequence))?.is_some();
        faults.expect(
            !is_pending,
            "rejection is not pending",
            format_args!("{topic:?} at {at}"),
        );
        Ok(())
    })
}

fn welcomes(snapshot: &dyn Snapshot, faults: &mut Faults) -> Result<(), StorageError> {
    let mut retried: BTreeMap<u64, bool> = BTreeMap::new();
    each(snapshot, WELCOME, |sequence, _| {
        retried.insert(sequence.get(), false);
        Ok(())
    })?;
    if !retried.is_empty() {
        each(snapshot, PENDING, |(topic, sequence), _| {
            if topic.kind() == TopicKind::Welcome {
                retried
                    .entry(sequence.get())
                    .and_modify(|found| *found = true);
            }
            Ok(())
        })?;
    }
    for (sequence, found) in retried {
        faults.expect(found, "welcome is pending", format_args!("at {sequence}"));
    }
    each(snapshot, DISCOVERY, |sequence, group| {
        let group = GroupId::try_from(group.0.as_slice());
        let is_known = match group {
            Ok(group) => snapshot.row(GROUP, &group)?.is_some(),
            Err(_) => false,
        };
        faults.expect(
            is_known,
            "discovery has a group",
            format_args!("at {sequence}"),
        );
        Ok(())
    })
}
