//! Pages: bounded by rows and bytes, exact about whether more is to come, in both directions.

use super::Engine;
use super::fixture::{
    ALL, Batch, Fixture, LARGE, NUMBERED, Row, SMALL, dump, from, page, range, rows, walk,
};
use crate::storage::{KeyRange, Order, Rows, Snapshot};

const ORDERS: [Order; 2] = [Order::Ascending, Order::Descending];

/// Fills a database with `a` to `e`, whose rows have 11 bytes each.
fn five(engine: &dyn Engine) -> Fixture<'_> {
    let fixture = Fixture::new(engine);
    for table in [SMALL, LARGE] {
        let batch = "abcde".chars().fold(Batch::new(), |batch, key| {
            batch.put(table, key.to_string().as_bytes(), b"0123456789")
        });
        fixture.commit(&batch);
    }
    fixture
}

fn keys(rows: &Rows) -> String {
    rows.iter()
        .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
        .collect()
}

fn scan(snapshot: &dyn Snapshot, bounds: KeyRange<'_>, by: (u32, u32, Order)) -> (String, bool) {
    let [small, large] = [SMALL, LARGE].map(|table| {
        let found = snapshot.scan(table, bounds, page(by.0, by.1, by.2));
        let found = found.expect("scan");
        (keys(&found), found.more)
    });
    assert_eq!(small, large, "two layouts answer the same");
    small
}

fn told(keys: &str, more: bool) -> (String, bool) {
    (keys.to_owned(), more)
}

/// A page has at most its rows, and `more` is exact on either side of the edge.
pub(super) fn row_bound(engine: &dyn Engine) {
    let fixture = five(engine);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    let wide = 1 << 20;
    for (bound, up, down) in [
        (1, told("a", true), told("e", true)),
        (4, told("abcd", true), told("edcb", true)),
        (5, told("abcde", false), told("edcba", false)),
        (6, told("abcde", false), told("edcba", false)),
        (u32::MAX, told("abcde", false), told("edcba", false)),
    ] {
        let found = scan(&*snapshot, from(b""), (bound, wide, Order::Ascending));
        assert_eq!(found, up);
        let found = scan(&*snapshot, from(b""), (bound, wide, Order::Descending));
        assert_eq!(found, down);
    }
}

/// A page ends before the row whose key and value would pass its bytes.
pub(super) fn byte_bound(engine: &dyn Engine) {
    let fixture = five(engine);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for (bytes, up, down) in [
        (21, told("a", true), told("e", true)),
        (22, told("ab", true), told("ed", true)),
        (23, told("ab", true), told("ed", true)),
        (54, told("abcd", true), told("edcb", true)),
        (55, told("abcde", false), told("edcba", false)),
        (u32::MAX, told("abcde", false), told("edcba", false)),
    ] {
        let found = scan(&*snapshot, from(b""), (100, bytes, Order::Ascending));
        assert_eq!(found, up, "{bytes} bytes");
        let found = scan(&*snapshot, from(b""), (100, bytes, Order::Descending));
        assert_eq!(found, down, "{bytes} bytes");
    }
}

/// A row larger than a whole page comes alone, and a page is never empty while rows remain.
pub(super) fn one_larger_row(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    for table in [SMALL, LARGE] {
        let batch = Batch::new()
            .put(table, b"a", b"0")
            .put(table, b"b", &[7; 5_000])
            .put(table, b"c", b"0");
        fixture.commit(&batch);
    }
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for bytes in [0, 1, 100] {
        let found = scan(&*snapshot, from(b"b"), (10, bytes, Order::Ascending));
        assert_eq!(found, told("b", true));
        let found = scan(
            &*snapshot,
            range(b"", b"bb"),
            (10, bytes, Order::Descending),
        );
        assert_eq!(found, told("b", true));
        let found = scan(&*snapshot, range(b"b", b"c"), (10, bytes, Order::Ascending));
        assert_eq!(found, told("b", false));
    }
    for order in ORDERS {
        let found = walk(&*snapshot, LARGE, from(b""), page(10, 1, order));
        assert_eq!(found.len(), 3, "a walk by oversize pages meets every row");
    }
}

/// `more` is true only when a further row exists in the range, not in the table.
pub(super) fn more_is_exact(engine: &dyn Engine) {
    let fixture = five(engine);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    let wide = 1 << 20;
    for (bounds, limit, up, down) in [
        (range(b"b", b"d"), 2, told("bc", false), told("cb", false)),
        (range(b"b", b"d"), 1, told("b", true), told("c", true)),
        (range(b"b", b"dd"), 2, told("bc", true), told("dc", true)),
        (range(b"bb", b"bc"), 1, told("", false), told("", false)),
        (range(b"e", b"z"), 1, told("e", false), told("e", false)),
        (range(b"f", b"z"), 1, told("", false), told("", false)),
    ] {
        let found = scan(&*snapshot, bounds, (limit, wide, Order::Ascending));
        assert_eq!(found, up);
        let found = scan(&*snapshot, bounds, (limit, wide, Order::Descending));
        assert_eq!(found, down);
    }
    let exact = (2, 22, Order::Ascending);
    assert_eq!(
        scan(&*snapshot, range(b"d", b"f"), exact),
        told("de", false)
    );
    let exact = (2, 22, Order::Descending);
    assert_eq!(scan(&*snapshot, range(b"", b"c"), exact), told("ba", false));
}

/// A range holds its start and not its end; one that holds nothing is empty, not an error.
pub(super) fn half_open(engine: &dyn Engine) {
    let fixture = five(engine);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for (bounds, up) in [
        (range(b"b", b"d"), "bc"),
        (range(b"", b"b"), "a"),
        (range(b"b", b"b"), ""),
        (range(b"d", b"b"), ""),
        (range(b"", b""), ""),
        (range(b"a\0", b"c\0"), "bc"),
        (from(b"d"), "de"),
        (from(b"e\0"), ""),
        (from(b"\xff\xff\xff"), ""),
    ] {
        let found = scan(&*snapshot, bounds, (100, 1 << 20, Order::Ascending));
        assert_eq!(found, told(up, false));
        let down: String = up.chars().rev().collect();
        let found = scan(&*snapshot, bounds, (100, 1 << 20, Order::Descending));
        assert_eq!(found, (down, false));
    }
}

/// A table without rows answers an empty page in both directions.
pub(super) fn empty_table(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for table in [SMALL, LARGE, NUMBERED] {
        for order in ORDERS {
            let found = snapshot.scan(table, from(b""), page(1, 1, order));
            assert_eq!(found.expect("scan"), Rows::new());
        }
        assert_eq!(snapshot.get(table, &[0; 8]).expect("get"), None);
    }
}

/// Walking by pages of any size meets every row once, in key order or its reverse.
pub(super) fn walks_meet_every_row(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let batch = (0..700u64).fold(Batch::new(), |batch, at| {
        let key = (at * 3).to_be_bytes();
        let value = vec![at as u8; (at % 40) as usize];
        batch
            .put(NUMBERED, &key, &value)
            .put(LARGE, &key, &value)
            .put(SMALL, &key, &value)
    });
    fixture.commit(&batch);
    let snapshot = fixture.storage().snapshot().expect("snapshot");
    for table in [NUMBERED, LARGE, SMALL] {
        let all = dump(&*snapshot, table);
        assert_eq!(all.len(), 700);
        let back: Vec<Row> = all.iter().rev().cloned().collect();
        for (limit, bytes) in [
            (1, 1),
            (7, 1 << 20),
            (1_000, 100),
            (700, 1 << 20),
            (699, 1 << 20),
        ] {
            let found = walk(&*snapshot, table, from(b""), page(limit, bytes, ORDERS[0]));
            assert!(found == all, "ascending by {limit} rows, {bytes} bytes");
            let found = walk(&*snapshot, table, from(b""), page(limit, bytes, ORDERS[1]));
            assert!(found == back, "descending by {limit} rows, {bytes} bytes");
        }
    }
}

/// Several keys are answered in their order, duplicates and missing ones included.
pub(super) fn get_many_in_order(engine: &dyn Engine) {
    let fixture = Fixture::new(engine);
    let numbers = [1u64, 5, 9].map(u64::to_be_bytes);
    for table in [SMALL, LARGE, NUMBERED] {
        let batch = Batch::new()
            .put(table, &numbers[0], b"one")
            .put(table, &numbers[1], b"")
            .put(table, &numbers[2], b"nine");
        fixture.commit(&batch);
        let snapshot = fixture.storage().snapshot().expect("snapshot");
        let missing = 4u64.to_be_bytes();
        let asked: Vec<&[u8]> = vec![
            &numbers[2],
            &missing,
            &numbers[0],
            &numbers[2],
            &numbers[1],
            &missing,
        ];
        let found = snapshot.get_many(table, &asked).expect("get_many");
        let nine = Some(b"nine".to_vec());
        let one = Some(b"one".to_vec());
        assert_eq!(found, [nine.clone(), None, one, nine, Some(vec![]), None]);
        let single: Vec<_> = asked
            .iter()
            .map(|key| snapshot.get(table, key).expect("get"))
            .collect();
        assert_eq!(found, single);
        assert!(snapshot.get_many(table, &[]).expect("get_many").is_empty());
        let many: Vec<&[u8]> = vec![&numbers[2]; 2_000];
        assert_eq!(
            snapshot.get_many(table, &many).expect("get_many").len(),
            2_000
        );
    }
}

/// A writer reads pages as a snapshot does.
pub(super) fn the_writer_reads_pages(engine: &dyn Engine) {
    let fixture = five(engine);
    let writer = fixture.storage().writer(
        super::fixture::PATIENCE,
        crate::storage::Durability::Ordered,
    );
    let writer = writer.expect("writer");
    let expected = rows(&[("c", "0123456789"), ("b", "0123456789")]);
    let by = page(2, 1 << 20, Order::Descending);
    let found = writer.scan(SMALL, range(b"b", b"d"), by).expect("scan");
    let found: Vec<Row> = found
        .iter()
        .map(|(k, v)| (k.to_vec(), v.to_vec()))
        .collect();
    assert_eq!(found, expected);
    let all = writer.scan(LARGE, from(b""), ALL).expect("scan");
    assert_eq!(keys(&all), "abcde");
    let asked: [&[u8]; 2] = [b"x", b"a"];
    let found = writer.get_many(SMALL, &asked).expect("get_many");
    assert_eq!(found, [None, Some(b"0123456789".to_vec())]);
}
