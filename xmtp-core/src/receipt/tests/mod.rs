//! Admission: what is refused whole, what overlaps, and which bounds hold.

use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{SequenceId, Topic, TopicKind};

use super::{AdmissionError, Batch, Capacity, CapacityScope, Received, check};
use crate::engine::tests::world::{World, batch, group, inbox, served, topic};
use crate::error::{Class, Coded};
use crate::limits::{
    MAX_ADMISSION_ROWS, MAX_PENDING_BYTES_PER_TOPIC, MAX_PENDING_ROWS_PER_TOPIC, max_pending_rows,
};
use crate::processing::Left;
use crate::storage::StorageError;
use crate::testing::faulty::Side;
use crate::testing::scripted::{INSTALLATION, group_envelope, identity_envelope, welcome_envelope};

/// Rows of any topic without decoding anything: receipt needs no more.
fn raw(topic: Topic, after: u64, count: u64, bytes: usize) -> Batch {
    let envelopes = (1..=count).map(|number| Received {
        sequence_id: SequenceId::saturating(after + number),
        envelope: stored::PendingEnvelope {
            payload: vec![0; bytes].into(),
            ..Default::default()
        },
    });
    Batch {
        topic,
        after: SequenceId::saturating(after),
        envelopes: envelopes.collect(),
    }
}

fn capacity(result: Result<super::Admitted, AdmissionError>) -> Option<Capacity> {
    match result {
        Ok(admitted) => admitted.left_out,
        Err(error) => {
            assert_eq!(
                (error.code(), error.class()),
                ("capacity.pending_full", Class::Wait)
            );
            match error {
                AdmissionError::Capacity(capacity) => Some(capacity),
                other => panic!("not a capacity: {other}"),
            }
        }
    }
}

/// One envelope that breaks the shape refuses its batch whole; gaps between ids are no fault.
/// covers: STR-060, CUR-001
#[test]
fn a_broken_shape_refuses_the_batch_whole() {
    let good = || -> Vec<v1::ServerEnvelope> {
        let text = |id: u64| served(&topic(1), id, group_envelope(&group(1), "text"));
        [5, 6, 9].map(text).to_vec()
    };
    let after = SequenceId::saturating(4);
    let checked = check(topic(1), after, good()).expect("gaps are legal");
    assert_eq!(checked.envelopes.len(), 3);
    type Breaks = fn(&mut v1::EnvelopeMeta);
    let id = |meta: &mut v1::EnvelopeMeta, sequence_id| {
        meta.cursor = Some(v1::Cursor { sequence_id });
    };
    let breaks: [(&str, Breaks); 11] = [
        ("another topic", |meta| {
            meta.topic = Some(topic(2).to_proto())
        }),
        ("no topic", |meta| meta.topic = None),
        ("no id", |meta| meta.cursor = None),
        ("zero", |meta| {
            meta.cursor = Some(v1::Cursor { sequence_id: 0 })
        }),
        ("repeated", |meta| {
            meta.cursor = Some(v1::Cursor { sequence_id: 5 })
        }),
        ("at the start", |meta| {
            meta.cursor = Some(v1::Cursor { sequence_id: 4 })
        }),
        ("out of range", |meta| {
            meta.cursor = Some(v1::Cursor {
                sequence_id: 1 << 63,
            });
        }),
        ("a time out of range", |meta| meta.server_ns = 1 << 63),
        ("no hash", |meta| meta.message_hash = None),
        ("an empty hash", |meta| {
            meta.message_hash = Some(v1::MessageHash { hash: None })
        }),
        ("a short hash", |meta| {
            meta.message_hash = Some(v1::MessageHash {
                hash: Some(Hash::Sha256(vec![1; 31].into())),
            });
        }),
    ];
    for (what, change) in breaks {
        let mut envelopes = good();
        change(envelopes[1].meta.as_mut().expect("metadata"));
        let refused = check(topic(1), after, envelopes).expect_err(what);
        assert_eq!(refused.code(), "receipt.shape", "{what}");
    }
    // Report B34: 5, 6, 8, 7.
    let mut falling = good();
    id(falling[1].meta.as_mut().expect("metadata"), 10);
    assert!(check(topic(1), after, falling).is_err());
    let mut bare = good();
    bare[1].meta = None;
    assert!(check(topic(1), after, bare).is_err());
}

/// Overlap keeps one row, the new suffix moves F with it, an empty batch moves nothing, and a
/// commit that fails leaves both as they were.
/// covers: STR-061, STR-020
#[test]
fn overlap_keeps_one_row_and_f_moves_with_its_rows() {
    let world = World::new();
    world.receive(1, &[(1, "a"), (3, "b")]);
    let before = world.rows();
    let again = world
        .admit(&batch(1, 0, &[(1, "a"), (3, "b")]))
        .expect("overlap");
    assert_eq!((again.new, again.overlap, again.received.get()), (0, 2, 3));
    world.admit(&batch(1, 2, &[])).expect("nothing");
    assert_eq!(world.rows(), before);
    for side in [Side::Before, Side::After] {
        let fresh = world.another();
        let next = fresh.faulty.commits() + 1;
        let error = StorageError::Busy { waited_ms: 1 };
        fresh.faulty.fail_commit(next, side, error);
        let rows = batch(1, 0, &[(1, "a"), (3, "b"), (7, "c")]);
        fresh.admit(&rows).expect_err("the commit fails");
        let record = fresh.record(&topic(1));
        let expected = if side == Side::Before { (3, 2) } else { (7, 3) };
        assert_eq!(
            (record.received, record.pending_rows),
            expected,
            "whole or not at all"
        );
        fresh.verify();
    }
    let admitted = world.admit(&batch(1, 0, &[(1, "a"), (3, "b"), (7, "c")]));
    assert_eq!(admitted.expect("again").overlap, 3);
    assert_eq!(
        world.record(&topic(1)).pending_rows,
        3,
        "one row for each id"
    );
}

/// A source that starts beyond F is refused until the prefix between is fetched; absent integers
/// are not fetched for (report B32).
/// covers: STR-062
#[test]
fn a_source_beyond_f_is_refused() {
    let world = World::new();
    world.receive(1, &[(2, "a")]);
    let before = world.rows();
    let refused = world
        .admit(&batch(1, 3, &[(4, "d")]))
        .expect_err("a gap in the source");
    assert_eq!(
        refused,
        AdmissionError::StartsBeyond {
            after: 3,
            received: 2
        }
    );
    assert_eq!(refused.code(), "receipt.starts_beyond");
    assert_eq!(world.rows(), before, "nothing moved");
    let admitted = world
        .admit(&batch(1, 1, &[(2, "a"), (9, "d")]))
        .expect("no gap in the source");
    assert_eq!((admitted.new, admitted.received.get()), (1, 9));
}

/// Rows and bytes are both bounded: of one batch, of one topic, before anything is written.
/// covers: STR-063, STR-066
#[test]
fn a_topic_and_a_batch_are_bounded_in_rows_and_bytes() {
    let world = World::new();
    let bound = |scope| {
        Some(Capacity {
            scope,
            kind: TopicKind::Group,
        })
    };
    let most = MAX_ADMISSION_ROWS as u64;
    let one = world
        .admit(&raw(topic(1), 0, most + 44, 1))
        .expect("a prefix fits");
    assert_eq!(
        (one.new as u64, one.left_out),
        (most, bound(CapacityScope::Batch))
    );
    for start in (most..MAX_PENDING_ROWS_PER_TOPIC).step_by(MAX_ADMISSION_ROWS) {
        world
            .admit(&raw(topic(1), start, most, 1))
            .expect("it fits");
    }
    let before = world.rows();
    let full = world.admit(&raw(topic(1), MAX_PENDING_ROWS_PER_TOPIC, 1, 1));
    assert_eq!(capacity(full), bound(CapacityScope::Topic));
    assert_eq!(world.rows(), before, "F and what waits are kept");
    // Another topic is not paused for it.
    world.admit(&raw(topic(2), 0, 1, 1)).expect("room");
    let large = 1 << 20;
    let fits = MAX_PENDING_BYTES_PER_TOPIC / (large as u64 + 4);
    let bytes = world
        .admit(&raw(topic(3), 0, fits + 5, large))
        .expect("a prefix fits");
    assert_eq!(
        (bytes.new as u64, bytes.left_out),
        (fits, bound(CapacityScope::Topic))
    );
    assert_eq!(bytes.received.get(), fits);
    let full = world.admit(&raw(topic(3), fits, 1, large));
    assert_eq!(capacity(full), bound(CapacityScope::Topic));
    world.verify();
}

/// With a kind's budget full, a legal envelope of an empty topic gets a typed capacity failure and
/// nothing moves; the other kinds are usable; admission goes on when processing makes room.
/// covers: RVC-003, STR-063, STR-066
#[test]
fn a_full_kind_stops_an_empty_topic_and_no_other_kind() {
    let world = World::new();
    let topics = max_pending_rows(TopicKind::Group) / MAX_PENDING_ROWS_PER_TOPIC;
    for name in 1..=topics as u8 {
        world.join(name);
        for start in (0..MAX_PENDING_ROWS_PER_TOPIC).step_by(MAX_ADMISSION_ROWS) {
            let rows = raw(topic(name), start, MAX_ADMISSION_ROWS as u64, 1);
            assert_eq!(world.admit(&rows).expect("it fits").left_out, None);
        }
    }
    let empty = topics as u8 + 1;
    let before = world.rows();
    let refused = world.admit(&batch(empty, 0, &[(1, "hello")]));
    let expected = Capacity {
        scope: CapacityScope::Kind,
        kind: TopicKind::Group,
    };
    assert_eq!(capacity(refused), Some(expected));
    assert_eq!(world.rows(), before);
    let welcomes = world.context.welcome_topic;
    let identity = Topic::identity(&inbox(1));
    for (topic, envelope) in [
        (welcomes, welcome_envelope(&INSTALLATION, "anything")),
        (identity, identity_envelope(&inbox(1), 1)),
    ] {
        let envelopes = vec![served(&topic, 1, envelope)];
        let batch = check(topic, SequenceId::ZERO, envelopes).expect("in order");
        world.admit(&batch).expect("its own budget");
    }
    // One byte does not decode: each is rejected, which makes room.
    assert_eq!(world.turn(&topic(1)).left, Left::More);
    let admitted = world.admit(&batch(empty, 0, &[(1, "hello")]));
    assert_eq!(admitted.expect("room").new, 1);
    world.verify();
}

/// What is received is told about without its payload.
/// covers: STR-064
#[test]
fn no_payload_is_told() {
    let mut secret = batch(1, 0, &[(1, "secret")]);
    let payload = secret.envelopes[0].envelope.payload.clone();
    let told = format!("{secret:?}");
    assert!(
        !told.contains("secret") && !told.contains(&format!("{payload:?}")),
        "{told}"
    );
    secret.after = SequenceId::saturating(7);
    let world = World::new();
    let error = world.admit(&secret).expect_err("beyond F");
    assert!(!format!("{error} {error:?}").contains("secret"));
}

/// The backend's hash is kept as given, though no local encoding gives it.
/// covers: RVC-004, STR-060
#[test]
fn the_given_hash_is_kept() {
    let world = World::new();
    world.receive(1, &[(9, "text")]);
    let row = world.read(|snapshot| super::store::pending(snapshot, &topic(1), id(9)));
    assert_eq!(row.expect("pending").message_hash[..], [9; 32]);
}

fn id(sequence: u64) -> SequenceId {
    SequenceId::saturating(sequence)
}
