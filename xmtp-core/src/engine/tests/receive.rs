//! The combined receive path: the same state as separate turns, without the detour.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use xmtp_proto::{SequenceId, Topic};

use super::play::Act;
use super::world::{World, batch, inbox, served, topic};
use crate::engine::Context;
use crate::engine::receive::{is_to_go_on, receive, receive_in};
use crate::limits::TURN_TARGET_BYTES;
use crate::receipt::{Batch, check};
use crate::storage::schema::{HEAD, MESSAGE, PENDING};
use crate::storage::{
    Capability, Database, Durability, Snapshot, Storage, StorageError, TableId, TableInfo,
    WriteBatch, Writer,
};
use crate::testing::memory::MemoryStorage;
use crate::testing::scripted::identity_envelope;

fn identities(rows: &[u64]) -> Batch {
    let identity = Topic::identity(&inbox(1));
    let envelopes = rows.iter().map(|sequence| {
        served(
            &identity,
            *sequence,
            identity_envelope(&inbox(1), *sequence),
        )
    });
    check(identity, SequenceId::ZERO, envelopes.collect()).expect("in order")
}

fn batches() -> Vec<Batch> {
    vec![
        batch(1, 0, &[(1, "a"), (4, "commit"), (5, "bad"), (8, "b")]),
        batch(2, 0, &[(2, "c"), (3, "stuck"), (9, "d")]),
        identities(&[6, 7]),
    ]
}

fn script(world: &World) {
    use crate::processor::{Blocked, Rejected, Verdict};
    world.join(1);
    world.join(2);
    world
        .play
        .always("bad", Act::Is(Verdict::Rejected(Rejected::Malformed)));
    world
        .play
        .always("stuck", Act::Is(Verdict::Blocked(Blocked::Unsupported)));
}

fn combined(world: &World, batches: &[Batch]) {
    let processors = &world.context.processors;
    for outcome in world.write(|txn| receive_in(txn, batches, processors)) {
        outcome.expect("admitted");
    }
}

/// Receiving and processing in one transaction gives the very rows that admission and a later turn
/// give, one by one.
/// covers: STR-020, STR-077
#[test]
fn combined_and_separate_receipt_give_the_same_rows() {
    let (one, other) = (World::new(), World::new());
    script(&one);
    script(&other);
    combined(&one, &batches());
    for batch in batches() {
        other.admit(&batch).expect("admitted");
    }
    let all = [topic(1), topic(2), Topic::identity(&inbox(1))];
    for world in [&one, &other] {
        for topic in &all {
            while world.turn(topic).left == crate::processing::Left::More {}
        }
        world.verify();
    }
    let sorted = |world: &World| {
        let mut texts = world.messages();
        texts.sort();
        texts
    };
    assert_eq!(sorted(&one), ["a", "b", "c"]);
    assert_eq!(one.rows(), other.rows());
    assert_eq!(one.positions(1), (8, 8));
    assert_eq!(one.positions(2), (9, 2));
}

/// A turn that fails undoes itself alone: F is committed with what waits, and the next turn
/// applies it.
/// covers: STR-020, STR-061
#[test]
fn a_failed_turn_keeps_the_admission() {
    let world = World::new();
    script(&world);
    world.play.on("commit", [Act::Fails]);
    combined(&world, &[batch(1, 0, &[(1, "a"), (4, "commit")])]);
    assert_eq!(world.positions(1), (4, 0));
    assert_eq!(
        (world.record(&topic(1)).pending_rows, world.messages().len()),
        (2, 0)
    );
    world.verify();
    assert_eq!(world.turn(&topic(1)).handled, 2);
    assert_eq!(world.positions(1), (4, 4));
}

/// A batch that is refused keeps no other out, and a topic with older pending envelopes is only
/// admitted: it has its turn in the ring.
/// covers: STR-072, STR-062
#[test]
fn a_refused_batch_keeps_no_other_out() {
    let world = World::new();
    script(&world);
    world.receive(2, &[(1, "older")]);
    let batches = [
        batch(1, 5, &[(6, "beyond")]),
        batch(2, 1, &[(7, "newer")]),
        identities(&[8]),
    ];
    let processors = &world.context.processors;
    let outcomes = world.write(|txn| receive_in(txn, &batches, processors));
    let admitted: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(admitted, [false, true, true]);
    assert_eq!(world.positions(1), (0, 0));
    assert_eq!(world.positions(2), (7, 0));
    assert_eq!(world.record(&Topic::identity(&inbox(1))).processed, 8);
}

/// Records which tables each commit changes.
#[derive(Debug)]
struct Recorder {
    inner: Arc<MemoryStorage>,
    commits: Mutex<Vec<Vec<TableId>>>,
}

impl Storage for Recorder {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError> {
        self.inner.open_tables(tables)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StorageError> {
        self.inner.snapshot()
    }

    fn writer(
        &self,
        patience: Duration,
        durability: Durability,
    ) -> Result<Box<dyn Writer + '_>, StorageError> {
        let inner = self.inner.writer(patience, durability)?;
        Ok(Box::new(RecorderWriter {
            inner,
            recorder: self,
        }))
    }

    fn version(&self) -> Result<u64, StorageError> {
        self.inner.version()
    }

    fn close(&self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct RecorderWriter<'a> {
    inner: Box<dyn Writer + 'a>,
    recorder: &'a Recorder,
}

impl Snapshot for RecorderWriter<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(table, key)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.inner.get_many(table, keys)
    }

    fn scan(
        &self,
        table: TableId,
        range: crate::storage::KeyRange<'_>,
        page: crate::storage::Page,
    ) -> Result<crate::storage::Rows, StorageError> {
        self.inner.scan(table, range, page)
    }
}

impl Writer for RecorderWriter<'_> {
    fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError> {
        let tables = batch.tables.keys().copied().collect();
        self.recorder.commits.lock().push(tables);
        self.inner.commit(batch)
    }
}

/// Opens the world's disk once more, so that its commits are recorded.
fn recorded(world: &World) -> (Arc<Recorder>, Database) {
    let recorder = Arc::new(Recorder {
        inner: world.disk.open(),
        commits: Mutex::default(),
    });
    let runtime = world.context.runtime.clone();
    let database = Database::open(recorder.clone(), runtime).expect("it opens");
    recorder.commits.lock().clear();
    (recorder, database)
}

/// Envelopes that are handled at once never reach the engine: one commit, with messages and
/// positions, and no pending row in it.
/// covers: STR-020
#[test]
fn what_is_handled_at_once_never_reaches_the_engine() {
    let world = World::new();
    world.join(1);
    let (recorder, database) = recorded(&world);
    let processors = world.context.processors.clone();
    let rows = [batch(1, 0, &[(1, "a"), (4, "commit"), (8, "b")])];
    let received = database.write(Durability::Ordered, |txn| {
        receive_in(txn, &rows, &processors)
    });
    assert!(received.expect("received").iter().all(Result::is_ok));
    let commits = recorder.commits.lock().clone();
    assert_eq!(commits.len(), 1);
    assert!(commits[0].contains(&MESSAGE.info.id));
    let has = |table: TableId| commits[0].contains(&table);
    assert!(!has(PENDING.info.id) && !has(HEAD.info.id), "{commits:?}");
    assert_eq!(world.positions(1), (8, 8));
}

/// What a turn does not come to is not admitted: F stands at what is handled, and the next
/// transaction takes the rest from memory, so nothing of it ever waits in the database.
/// covers: STR-020, STR-061
#[test]
fn what_a_turn_does_not_come_to_is_not_admitted_yet() {
    let world = World::new();
    world.join(1);
    world.join(2);
    let large = "x".repeat(TURN_TARGET_BYTES as usize / 2);
    let batches = [
        batch(1, 0, &[(1, &large), (2, &large), (4, &large), (5, "last")]),
        batch(2, 0, &[(3, "other")]),
    ];
    let (recorder, database) = recorded(&world);
    let processors = world.context.processors.clone();
    let received = database.write(Durability::Ordered, |txn| {
        receive_in(txn, &batches[..1], &processors)
    });
    let received = received.expect("received");
    assert!(is_to_go_on(&received[0]), "{received:?}");
    assert_eq!(world.positions(1), (2, 2));
    world.verify();
    let context = Context {
        database,
        ..world.context.clone()
    };
    let received = world.run(async move { receive(&context, batches.to_vec()).await });
    let received = received.expect("received");
    let admitted: Vec<_> = received
        .iter()
        .map(|outcome| outcome.as_ref().ok())
        .collect();
    let counts = admitted
        .iter()
        .map(|found| found.map(|found| (found.new, found.left_out)));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [Some((2, None)), Some((1, None))]
    );
    assert_eq!((world.positions(1), world.positions(2)), ((5, 5), (3, 3)));
    let commits = recorder.commits.lock().clone();
    let pending = PENDING.info.id;
    assert!(commits.iter().all(|tables| !tables.contains(&pending)));
    world.verify();
}

/// Each message of a turn costs the engine one read, of whether its id is there already. What the
/// turn knows is not read again, and nothing is scanned.
/// covers: STR-020
#[test]
fn a_message_of_a_turn_costs_one_read() {
    // The script looks once at each message itself; debug builds look whether new rows are new.
    const LOOKS: u64 = if cfg!(debug_assertions) { 5 } else { 2 };
    let operations = |count: u64| {
        let world = World::new();
        world.join(1);
        let texts: Vec<String> = (1..=count).map(|sequence| sequence.to_string()).collect();
        let rows: Vec<(u64, &str)> = (1..).zip(texts.iter().map(String::as_str)).collect();
        let before = world.faulty.operations();
        combined(&world, &[batch(1, 0, &rows)]);
        assert_eq!(world.messages(), texts);
        world.faulty.operations() - before
    };
    assert_eq!(operations(20) - operations(10), 10 * LOOKS);
}
