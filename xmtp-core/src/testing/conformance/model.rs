//! Random work against ordered maps, from a fixed seed so that a failure repeats.

use std::collections::BTreeMap;

use super::Engine;
use super::fixture::{
    Batch, Fixture, LARGE, NUMBERED, Row, SMALL, Seeded, commit, dump_last, page, walk,
};
use super::overlay::{LARGE_PAIRS, PAIRS, facade};
use crate::storage::{
    All, Durability, KeyRange, Order, Raw, Snapshot, StorageError, TableId, WriteTxn,
};

const OPERATIONS: u64 = 300;
const TABLES: [TableId; 3] = [SMALL, LARGE, NUMBERED];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Random batches, each followed by a random scan; reopened now and then.
pub(super) fn batches(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let mut random = Seeded(1);
    let mut models: BTreeMap<TableId, Model> =
        TABLES.iter().map(|table| (*table, Model::new())).collect();
    for operation in 0..OPERATIONS {
        let mut next = models.clone();
        let batch = random_batch(&mut random, &mut next);
        match commit(&**fixture.storage(), &batch) {
            Ok(()) => models = next,
            Err(error) => panic!("operation {operation}: {error}"),
        }
        let table = TABLES[random.below(3) as usize];
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        check_scan(&*snapshot, table, &models[&table], &mut random);
        drop(snapshot);
        if operation % 60 == 59 {
            fixture.reopen();
            for table in TABLES {
                let expected: Vec<Row> = models[&table].clone().into_iter().collect();
                assert_eq!(dump_last(&**fixture.storage(), table), expected);
            }
        }
    }
}

fn random_key(random: &mut Seeded, table: TableId) -> Vec<u8> {
    if table == NUMBERED {
        return random.below(40).to_be_bytes().to_vec();
    }
    let letters = [0x00, 0x01, b'a', 0xfe, 0xff];
    let len = random.below(4);
    (0..len)
        .map(|_| letters[random.below(5) as usize])
        .collect()
}

fn random_value(random: &mut Seeded) -> Vec<u8> {
    let len = [0, 1, 9, 300][random.below(4) as usize];
    vec![random.next() as u8; len]
}

fn random_batch(random: &mut Seeded, models: &mut BTreeMap<TableId, Model>) -> Batch {
    let mut batch = Batch::new();
    for (table, model) in models {
        if random.below(3) == 0 {
            let mut ends = [random_key(random, *table), random_key(random, *table)];
            ends.sort();
            let end = (random.below(8) > 0).then_some(&ends[1]);
            if end.is_none_or(|end| *end > ends[0]) {
                model.retain(|key, _| *key < ends[0] || end.is_some_and(|end| key >= end));
                batch = batch.clear(*table, &ends[0], end.map(Vec::as_slice));
            }
        }
        let mut changed = Model::new();
        for _ in 0..random.below(5) {
            let key = random_key(random, *table);
            if changed.insert(key.clone(), Vec::new()).is_some() {
                continue;
            }
            let value = random_value(random);
            batch = match (random.below(3), model.contains_key(&key)) {
                (0, _) => batch.delete(*table, &key),
                (1, false) => batch.put_new(*table, &key, &value),
                _ => batch.put(*table, &key, &value),
            };
            let change = batch.0.tables[table].rows[&key].clone();
            apply(model, key, change);
        }
    }
    batch
}

fn apply(model: &mut Model, key: Vec<u8>, change: crate::storage::Change) {
    use crate::storage::Change;
    match change {
        Change::Put(value) | Change::New(value) => drop(model.insert(key, value)),
        Change::Delete => drop(model.remove(&key)),
    }
}

/// Compares one random range, walked by random pages, with the model.
fn check_scan(snapshot: &dyn Snapshot, table: TableId, model: &Model, random: &mut Seeded) {
    let start = random_key(random, table);
    let end = (random.below(3) > 0).then(|| random_key(random, table));
    let order = [Order::Ascending, Order::Descending][random.below(2) as usize];
    let by = page(
        1 + random.below(6) as u32,
        1 + random.below(700) as u32,
        order,
    );
    let bounds = KeyRange {
        start: &start,
        end: end.as_deref(),
    };
    let mut expected: Vec<Row> = model
        .iter()
        .filter(|(key, _)| **key >= start && end.as_ref().is_none_or(|end| *key < end))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if order == Order::Descending {
        expected.reverse();
    }
    assert_eq!(walk(snapshot, table, bounds, by), expected);
    let keys: Vec<Vec<u8>> = (0..4).map(|_| random_key(random, table)).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = snapshot.get_many(table, &asked).expect("get_many");
    let known: Vec<Option<Vec<u8>>> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(found, known);
}

/// Random transactions with nested savepoints, read inside and after; some are rolled back.
pub(super) fn transactions(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let database = facade(&fixture);
    let mut random = Seeded(2);
    let mut pairs = [Model::new(), Model::new()];
    for _ in 0..OPERATIONS {
        let mut trial = pairs.clone();
        let commits = random.below(5) > 0;
        let outcome = database.write(Durability::Ordered, |txn| {
            change(txn, &mut trial, &mut random, 2)?;
            if commits {
                Ok(())
            } else {
                Err(StorageError::HeldBack)
            }
        });
        assert_eq!(outcome.is_ok(), commits);
        if commits {
            pairs = trial;
        }
        let at = random.below(2) as usize;
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        check_pairs(&*snapshot, at, &pairs[at], &mut random);
    }
}

fn change(
    txn: &mut WriteTxn<'_>,
    models: &mut [Model; 2],
    random: &mut Seeded,
    depth: u32,
) -> Result<(), StorageError> {
    for _ in 0..random.below(7) {
        let at = random.below(2) as usize;
        let table = [PAIRS, LARGE_PAIRS][at];
        let key = (random.below(4) as u8, random.below(6) as u8);
        let bytes = vec![key.0, key.1];
        match random.below(10) {
            0..=3 => {
                let value = random_value(random);
                match models[at].insert(bytes, value.clone()) {
                    None => txn.put_new(table, &key, &Raw(value))?,
                    Some(_) => txn.put(table, &key, &Raw(value))?,
                }
            }
            4 | 5 => {
                models[at].remove(&bytes);
                txn.delete(table, &key)?;
            }
            6 => {
                models[at].retain(|bytes, _| bytes[0] != key.0);
                txn.clear(table, &key.0)?;
            }
            7 if key == (0, 0) => {
                models[at].clear();
                txn.clear(table, &All)?;
            }
            8 if depth > 0 => {
                let mut trial = models.clone();
                let keeps = random.below(2) == 0;
                let outcome = txn.savepoint(|txn| {
                    change(txn, &mut trial, random, depth - 1)?;
                    if keeps {
                        Ok(())
                    } else {
                        Err(StorageError::HeldBack)
                    }
                });
                assert_eq!(outcome.is_ok(), keeps);
                if keeps {
                    *models = trial;
                }
            }
            _ => check_pairs(txn, at, &models[at], random),
        }
    }
    Ok(())
}

fn check_pairs(snapshot: &dyn Snapshot, at: usize, model: &Model, random: &mut Seeded) {
    let table = [SMALL, LARGE][at];
    let mut end = vec![random.below(5) as u8, random.below(7) as u8];
    end.truncate(1 + random.below(2) as usize);
    let start = vec![random.below(4) as u8, random.below(6) as u8];
    let order = [Order::Ascending, Order::Descending][random.below(2) as usize];
    let by = page(
        1 + random.below(6) as u32,
        1 + random.below(700) as u32,
        order,
    );
    let bounds = KeyRange {
        start: &start,
        end: (random.below(3) > 0).then_some(end.as_slice()),
    };
    let mut expected: Vec<Row> = model
        .iter()
        .filter(|(key, _)| **key >= start && bounds.end.is_none_or(|end| key.as_slice() < end))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if order == Order::Descending {
        expected.reverse();
    }
    assert_eq!(walk(snapshot, table, bounds, by), expected);
}
