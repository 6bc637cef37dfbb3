//! What outlives a process that is killed.

use super::Engine;
use super::child::{Helper, Task};
use super::fixture::{Batch, Fixture, LARGE, NUMBERED, SMALL, dump, increment, number, rounds};
use crate::storage::{OpenError, Storage};

/// The row that holds the number of the last batch.
pub(super) const LAST: &[u8] = b"last";
/// Rows of a numbered batch in each of its tables.
pub(super) const ROWS_EACH: u64 = 20;

/// Makes batch `number`: its rows replace those of the batch before, in three tables.
pub(super) fn torn_free_batch(number: u64, rows: u64) -> Batch {
    let value = number.to_be_bytes();
    let start = Batch::new()
        .put(SMALL, LAST, &value)
        .put_new(NUMBERED, &value, &value);
    (0..rows).fold(start, |batch, row| {
        let large = [&value[..], &[row as u8; 200]].concat();
        batch
            .put(SMALL, &row.to_be_bytes(), &value)
            .put(LARGE, &row.to_be_bytes(), &large)
    })
}

/// Checks that the database holds batches 1 to some number, whole, and answers that number.
fn last_whole_batch(storage: &dyn Storage) -> u64 {
    let snapshot = storage.snapshot().expect("snapshot");
    let last = number(&*snapshot, SMALL, LAST);
    for row in 0..ROWS_EACH {
        let key = row.to_be_bytes();
        assert_eq!(number(&*snapshot, SMALL, &key), last, "a torn batch");
        let large = snapshot.get(LARGE, &key).expect("get");
        let large = large.map_or(0, |value| {
            u64::from_be_bytes(value[..8].try_into().expect("eight bytes"))
        });
        assert_eq!(large, last, "a torn batch");
    }
    let numbers = dump(&*snapshot, NUMBERED);
    let keys = numbers.iter().map(|(key, _)| key.clone());
    assert!(
        keys.eq((1..=last).map(|number| number.to_be_bytes().to_vec())),
        "the batches are a prefix"
    );
    last
}

/// Kills a child in the middle of its commits, over and over, and opens after each time.
fn survive(engine: &dyn Engine, task: Task) {
    let mut fixture = Fixture::new(engine);
    let mut before = 0;
    for round in 0..rounds(6) {
        fixture.close();
        let mut child = Helper::start(engine, fixture.dir(), task);
        let mut said = 0;
        for _ in 0..=(round * 7) % 31 {
            said = child.hear_number();
        }
        child.kill();
        while let Some(line) = child.try_hear() {
            said = line.parse().expect("a number");
        }
        fixture.reopen();
        let last = last_whole_batch(&**fixture.storage());
        assert!(
            last >= said,
            "batch {said} was acknowledged, {last} is there"
        );
        assert!(said > before, "the child went on from what it found");
        before = last;
    }
}

/// A flushed commit that was acknowledged is there after SIGKILL, and none is torn.
pub(super) fn flushed_survive(engine: &dyn Engine) {
    survive(engine, Task::Flushed);
}

/// Ordered commits survive SIGKILL of the process: a prefix, and all that were acknowledged.
pub(super) fn ordered_survive(engine: &dyn Engine) {
    survive(engine, Task::Ordered);
}

/// A database whose process was killed with the writer out opens at once.
pub(super) fn opens_after_kill(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    increment(&**fixture.storage(), b"counter").expect("increment");
    for round in 0..rounds(5) {
        fixture.close();
        let mut child = Helper::start(engine, fixture.dir(), Task::Hold);
        assert_eq!(child.hear(), "held");
        child.kill();
        fixture.reopen();
        let next = increment(&**fixture.storage(), b"counter").expect("increment");
        assert_eq!(next, round + 2);
    }
}

/// While one instance is open, a second open is `InUse`, in this process and in another.
pub(super) fn second_open_is_refused(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let again = engine.open(fixture.dir()).map(drop);
    assert_eq!(again, Err(OpenError::InUse));
    let mut child = Helper::start(engine, fixture.dir(), Task::Open);
    assert_eq!(child.hear(), "ready");
    child.tell();
    assert_eq!(child.hear(), "in use");
    increment(&**fixture.storage(), b"counter").expect("the first instance works on");
    fixture.close();
    let mut child = Helper::start(engine, fixture.dir(), Task::Hold);
    assert_eq!(child.hear(), "held");
    let refused = engine.open(fixture.dir()).map(drop);
    assert_eq!(refused, Err(OpenError::InUse));
    child.kill();
    fixture.reopen();
    let next = increment(&**fixture.storage(), b"counter").expect("increment");
    assert_eq!(next, 2);
}
