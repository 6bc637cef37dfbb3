//! The cursor as text, and against a database.

use futures_util::FutureExt;
use xmtp_proto::DatabaseId;

use super::*;
use crate::delivery::DeliveryCursor;
use crate::error::Coded;

fn parse(text: &str) -> Result<DeliveryCursor, StreamError> {
    text.parse()
}

/// The text is frozen and comes back as it was printed.
/// covers: STR-098
#[test]
fn the_text_of_a_cursor_is_frozen() {
    let cursor = DeliveryCursor::new(DatabaseId::from_bytes([0xa5; 16]), 258);
    let text = cursor.to_string();
    assert_eq!(
        text,
        "xdc1_a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5000000000000010212f375cc"
    );
    assert_eq!(parse(&text), Ok(cursor));
}

/// Nothing but a printed cursor is a cursor: no number, no time, no text with one digit changed.
/// covers: STR-098
#[test]
fn a_number_a_time_or_a_damaged_text_is_no_cursor() {
    let text = DeliveryCursor::new(DatabaseId::from_bytes([1; 16]), 7).to_string();
    let bad = [
        "",
        "7",
        "1796083200000000000",
        "xdc1_",
        "xdc2_00",
        &text[1..],
    ];
    for bad in bad {
        assert_eq!(parse(bad), Err(StreamError::Malformed), "{bad}");
    }
    assert_eq!(parse(&text.to_uppercase()), Err(StreamError::Malformed));
    assert_eq!(parse(&format!("{text}0")), Err(StreamError::Malformed));
    for at in 5..text.len() {
        let mut damaged = text.clone().into_bytes();
        damaged[at] = if damaged[at] == b'0' { b'1' } else { b'0' };
        let damaged = String::from_utf8(damaged).unwrap();
        assert_eq!(parse(&damaged), Err(StreamError::Malformed), "{at}");
    }
    assert_eq!(StreamError::Malformed.code(), "cursor.malformed");
}

/// A cursor of another database, or ahead of this one, is refused with a typed error.
/// covers: STR-098
#[test]
fn a_cursor_of_another_database_is_refused() {
    let (world, other) = (World::new(), World::new_seeded(8));
    let newest = world.put(1, "a1");
    let replay = |cursor| {
        let replay = world.messages.replay(cursor, Scope::All, Filter::all());
        replay.now_or_never().unwrap().map(|_| ())
    };
    let foreign = other.messages.beginning();
    let error = replay(foreign).unwrap_err();
    assert_eq!(
        error,
        StreamError::WrongDatabase {
            expected: world.database.id(),
            found: other.database.id(),
        }
    );
    assert_eq!(error.code(), "cursor.wrong_database");
    let ahead = replay(DeliveryCursor::new(world.database.id(), newest + 1)).unwrap_err();
    assert_eq!(ahead.code(), "cursor.ahead");
    assert_eq!(
        replay(DeliveryCursor::new(world.database.id(), newest)),
        Ok(())
    );
    assert_eq!(replay(world.messages.beginning()), Ok(()));
    assert_eq!(world.messages.beginning().number(), 0);
}

/// Both readers attach the cursor of the item itself, and reading it acknowledges nothing.
/// covers: STR-098
#[test]
fn every_item_carries_its_cursor() {
    let world = World::new();
    let number = world.put(1, "a1");
    let expected = DeliveryCursor::new(world.database.id(), number);
    let mut consumer = world.consume(Scope::All);
    let item = consumer.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(item.cursor(), expected);
    assert_eq!(world.d(1), 0);
    let replayed = super::replay::drain(&mut super::replay::start(
        &world,
        world.messages.beginning(),
    ));
    assert_eq!(replayed[0].cursor(), expected);
}

/// No error text and no debug text holds content.
/// covers: EXT-007
#[test]
fn a_message_hides_its_content() {
    let world = World::new();
    world.put(1, "topsecret");
    let mut consumer = world.consume(Scope::All);
    let item = consumer.next().now_or_never().unwrap().unwrap().unwrap();
    let shown = format!("{item:?} {:?}", *item);
    assert!(
        !shown.contains("topsecret") && !shown.contains("abab"),
        "{shown}"
    );
}
