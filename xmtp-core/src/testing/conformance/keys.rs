//! Keys and values of every form that core hands down.

use super::Engine;
use super::fixture::{
    ALL, Batch, Fixture, LARGE, NUMBERED, OTHER_NUMBERED, Row, SMALL, commit, dump_last, from, get,
    page, range, rows, walk,
};
use crate::storage::{Change, KeyRange, Order};

/// The empty key is a key, and the empty value is not a missing row.
pub(super) fn empty(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    for table in [SMALL, LARGE] {
        let batch = Batch::new()
            .put(table, b"", b"at the empty key")
            .put(table, b"\0", b"")
            .put_new(table, b"v", b"");
        fixture.commit(&batch);
    }
    fixture.commit(&Batch::new().put(NUMBERED, &0u64.to_be_bytes(), b""));
    for _ in 0..2 {
        let storage = &**fixture.storage();
        for table in [SMALL, LARGE] {
            let expected = rows(&[("", "at the empty key"), ("\0", ""), ("v", "")]);
            assert_eq!(dump_last(storage, table), expected);
            assert_eq!(get(storage, table, b""), Some(b"at the empty key".to_vec()));
            assert_eq!(get(storage, table, b"v"), Some(Vec::new()));
            assert_eq!(get(storage, table, b"w"), None);
        }
        assert_eq!(
            get(storage, NUMBERED, &0u64.to_be_bytes()),
            Some(Vec::new())
        );
        fixture.reopen();
    }
    fixture.commit(&Batch::new().delete(SMALL, b"").delete(LARGE, b"v"));
    assert_eq!(get(&**fixture.storage(), SMALL, b""), None);
    assert_eq!(get(&**fixture.storage(), LARGE, b"v"), None);
}

/// A key and the keys that it begins stay apart, and sort with the shorter one first.
pub(super) fn prefixes(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let chain: [&[u8]; 6] = [b"", b"a", b"a\0", b"a\0\0", b"aa", b"ab"];
    for table in [SMALL, LARGE] {
        let batch = chain.iter().rev().fold(Batch::new(), |batch, key| {
            batch.put(table, key, &[key.len() as u8])
        });
        fixture.commit(&batch);
        let expected: Vec<Row> = chain
            .iter()
            .map(|key| (key.to_vec(), vec![key.len() as u8]))
            .collect();
        assert_eq!(dump_last(&**fixture.storage(), table), expected);
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        let found = walk(&*snapshot, table, range(b"a", b"aa"), ALL);
        assert_eq!(found, expected[1..4]);
        drop(snapshot);
        fixture.commit(&Batch::new().delete(table, b"a\0"));
        assert_eq!(dump_last(&**fixture.storage(), table).len(), 5);
    }
}

/// Keys sort as unsigned bytes, with every byte value in them.
pub(super) fn unsigned_bytes(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut keys: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    keys.extend((0..=255u8).map(|byte| vec![0xff, byte]));
    keys.extend((0..=255u8).map(|byte| vec![0x00, byte, 0x00]));
    keys.extend([vec![0xff; 3], vec![0xff; 40], vec![0x00; 40]]);
    for table in [SMALL, LARGE] {
        let batch = keys
            .iter()
            .fold(Batch::new(), |batch, key| batch.put(table, key, key));
        fixture.commit(&batch);
        let mut sorted = keys.clone();
        sorted.sort();
        let found = dump_last(&**fixture.storage(), table);
        let found_keys: Vec<&Vec<u8>> = found.iter().map(|(key, _)| key).collect();
        assert_eq!(found_keys, sorted.iter().collect::<Vec<_>>());
        assert!(found.iter().all(|(key, value)| key == value));
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        let top = walk(&*snapshot, table, from(&[0xff, 0xff]), ALL);
        assert_eq!(top.len(), 3, "ff ff, and the two longer ones");
    }
}

/// Values come back byte for byte, at the sizes around which engines change their form.
pub(super) fn values_of_many_sizes(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let sizes = [
        1usize, 127, 128, 255, 256, 4_000, 4_096, 65_535, 65_536, 300_000, 1_048_577,
    ];
    let value = |size: usize| -> Vec<u8> { (0..size).map(|at| (at * 7 + size) as u8).collect() };
    for size in sizes {
        let key = (size as u64).to_be_bytes();
        let batch = Batch::new()
            .put(SMALL, &key, &value(size))
            .put(LARGE, &key, &value(size))
            .put(NUMBERED, &key, &value(size));
        fixture.commit(&batch);
    }
    for _ in 0..2 {
        for size in sizes {
            let key = (size as u64).to_be_bytes();
            for table in [SMALL, LARGE, NUMBERED] {
                let found = get(&**fixture.storage(), table, &key);
                assert!(
                    found == Some(value(size)),
                    "a value of {size} bytes changed"
                );
            }
        }
        fixture.reopen();
    }
}

/// A key of a kilobyte works like a short one.
pub(super) fn long_keys(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let long = |last: u8| -> Vec<u8> {
        let mut key = vec![b'k'; 1_024];
        key.push(last);
        key
    };
    for table in [SMALL, LARGE] {
        let batch = Batch::new()
            .put(table, &long(1), b"1")
            .put(table, &long(2), b"2")
            .put(table, &long(3), b"3");
        fixture.commit(&batch);
        let storage = &**fixture.storage();
        assert_eq!(get(storage, table, &long(2)), Some(b"2".to_vec()));
        assert_eq!(get(storage, table, &long(4)), None);
        fixture.commit(&Batch::new().clear(table, &long(2), Some(&long(3))));
        assert_eq!(dump_last(storage, table).len(), 2);
    }
}

/// Numbered keys work from 0 to 2^63 - 1.
pub(super) fn numbers(engine: &dyn Engine) {
    let mut fixture = Fixture::new(engine);
    let top = i64::MAX as u64;
    let numbers = [0, 1, 255, 256, 65_536, 1 << 32, top - 1, top];
    let batch = numbers.iter().rev().fold(Batch::new(), |batch, number| {
        let key = number.to_be_bytes();
        batch
            .put_new(NUMBERED, &key, &key)
            .put(OTHER_NUMBERED, &key, b"")
    });
    fixture.commit(&batch);
    let expected: Vec<Row> = numbers
        .iter()
        .map(|number| (number.to_be_bytes().to_vec(), number.to_be_bytes().to_vec()))
        .collect();
    for _ in 0..2 {
        let storage = &**fixture.storage();
        assert_eq!(dump_last(storage, NUMBERED), expected);
        assert_eq!(get(storage, NUMBERED, &2u64.to_be_bytes()), None);
        let snapshot = storage.snapshot().expect("snapshot");
        let by = page(3, 1 << 20, Order::Descending);
        let found = walk(&*snapshot, NUMBERED, from(b""), by);
        assert!(found.iter().eq(expected.iter().rev()));
        drop(snapshot);
        fixture.reopen();
    }
    let again = Batch::new().put_new(NUMBERED, &top.to_be_bytes(), b"");
    assert!(commit(&**fixture.storage(), &again).is_err());
    let batch = Batch::new().delete(NUMBERED, &0u64.to_be_bytes());
    fixture.commit(&batch.delete(NUMBERED, &top.to_be_bytes()));
    assert_eq!(dump_last(&**fixture.storage(), NUMBERED).len(), 6);
}

/// The ends of a range over numbered keys may have any length, and sort as bytes.
pub(super) fn number_ranges(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let top = i64::MAX as u64;
    let numbers = [0, 1, 0x01_00, 0x7f00_0000_0000_0000, top];
    let batch = numbers.iter().fold(Batch::new(), |batch, number| {
        batch.put(NUMBERED, &number.to_be_bytes(), b"v")
    });
    fixture.commit(&batch);
    let ends: [&[u8]; 14] = [
        b"",
        b"\0",
        &[0; 7],
        &[0; 8],
        &[0; 9],
        &[0, 0, 0, 0, 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0, 0, 0, 0, 0, 0, 1],
        &[0x7f],
        &[0x7f, 0, 0, 0, 0, 0, 0, 0, 1],
        &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        &[0x80],
        &[0xff; 9],
    ];
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for start in ends {
        for end in ends.map(Some).into_iter().chain([None]) {
            let bounds = KeyRange { start, end };
            let expected = numbers.iter().filter(|number| {
                let key = number.to_be_bytes();
                start <= key.as_slice() && end.is_none_or(|end| key.as_slice() < end)
            });
            let expected: Vec<u64> = expected.copied().collect();
            let found = walk(&*snapshot, NUMBERED, bounds, ALL);
            assert_eq!(as_numbers(&found), expected, "{bounds:?}");
            let by = page(1, 1, Order::Descending);
            let found = walk(&*snapshot, NUMBERED, bounds, by);
            assert!(
                as_numbers(&found).iter().eq(expected.iter().rev()),
                "{bounds:?}"
            );
        }
    }
}

fn as_numbers(rows: &[Row]) -> Vec<u64> {
    rows.iter()
        .map(|(key, _)| u64::from_be_bytes(key.as_slice().try_into().expect("eight bytes")))
        .collect()
}

/// The start and end of a deleted range, and the numbers that are left.
type Cleared = (&'static [u8], Option<&'static [u8]>, &'static [u64]);

/// Deleted ranges over numbered keys take ends of any length too.
pub(super) fn number_clears(engine: &dyn Engine) {
    const TOP: u64 = i64::MAX as u64;
    let numbers = [0, 1, 2, 0x01_00, TOP];
    let cases: [Cleared; 7] = [
        (b"", Some(&[0, 0, 0, 0, 0, 0, 0, 1]), &[1, 2, 0x01_00, TOP]),
        (b"", Some(&[0, 0, 0, 0, 0, 0, 0, 1, 0]), &[2, 0x01_00, TOP]),
        (&[0; 9], Some(&[0, 0, 0, 0, 0, 0, 1]), &[0, 0x01_00, TOP]),
        (&[0, 0, 0, 0, 0, 0, 1], None, &[0, 1, 2]),
        (&[0x7f], Some(&[0x80]), &[0, 1, 2, 0x01_00]),
        (&[0x80], None, &[0, 1, 2, 0x01_00, TOP]),
        (b"", None, &[]),
    ];
    for (start, end, left) in cases {
        let fixture = Fixture::new(engine);
        let batch = numbers.iter().fold(Batch::new(), |batch, number| {
            batch.put(NUMBERED, &number.to_be_bytes(), b"v")
        });
        fixture.commit(&batch);
        fixture.commit(&Batch::new().clear(NUMBERED, start, end));
        let found = dump_last(&**fixture.storage(), NUMBERED);
        assert_eq!(as_numbers(&found), left);
    }
}

/// A batch may change many rows of every table at once.
pub(super) fn many_rows_in_one_batch(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let mut batch = Batch::new();
    for table in [SMALL, LARGE, NUMBERED] {
        let changes = batch.0.tables.entry(table).or_default();
        for number in 0..3_000u64 {
            let change = Change::New(vec![number as u8; 100]);
            changes.rows.insert(number.to_be_bytes().to_vec(), change);
        }
    }
    fixture.commit(&batch);
    for table in [SMALL, LARGE, NUMBERED] {
        assert_eq!(dump_last(&**fixture.storage(), table).len(), 3_000);
    }
    let mut batch = Batch::new();
    for table in [SMALL, LARGE, NUMBERED] {
        let middle = 1_000u64.to_be_bytes();
        batch = batch.clear(table, &middle, None);
        let rows = &mut batch.0.tables.entry(table).or_default().rows;
        for number in (0..1_000u64).step_by(2) {
            rows.insert(number.to_be_bytes().to_vec(), Change::Delete);
        }
    }
    fixture.commit(&batch);
    for table in [SMALL, LARGE, NUMBERED] {
        assert_eq!(dump_last(&**fixture.storage(), table).len(), 500);
    }
}
