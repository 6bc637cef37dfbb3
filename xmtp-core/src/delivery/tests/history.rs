//! A snapshot of what is stored, and the reader that follows it.

use futures_util::StreamExt;

use super::*;
use crate::delivery::{DeliveryCursor, History};
use crate::runtime::{NativeRuntime, RuntimeExt};

fn read(world: &World, scope: impl Into<Scope>, filter: Filter, limit: u32) -> History {
    let history = world.messages.history(scope, filter, limit);
    history.now_or_never().unwrap().unwrap()
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(text).collect()
}

/// The newest messages of the snapshot come oldest first; older ones come page by page.
/// covers: STR-099
#[test]
fn a_history_is_the_newest_page_of_its_scope() {
    let world = World::new();
    world.set_type(1, ConversationType::Dm);
    world.set_type(2, ConversationType::Group);
    for n in 0..5 {
        world.put(1, &format!("a{n}"));
        world.put(2, &format!("b{n}"));
    }
    let newest = world.put(3, "c0");
    let history = read(&world, group(1), Filter::all(), 2);
    assert_eq!(
        (texts(&history.messages), history.has_older),
        (vec!["a3".into(), "a4".into()], true)
    );
    assert_eq!(
        history.cursor,
        DeliveryCursor::new(world.database.id(), newest)
    );
    let page = world
        .messages
        .page(history.messages[0].cursor(), group(1), Filter::all(), 9);
    let page = page.now_or_never().unwrap().unwrap();
    assert_eq!(
        (texts(&page.messages), page.has_older),
        (vec!["a0".into(), "a1".into(), "a2".into()], false)
    );
    let all = read(&world, Scope::All, Filter::all(), 3);
    assert_eq!(texts(&all.messages), ["a4", "b4", "c0"]);
    let dms = Filter::conversation_types([ConversationType::Dm]);
    assert_eq!(
        texts(&read(&world, Scope::All, dms, 2).messages),
        ["a3", "a4"]
    );
    let two = read(&world, groups(&[2, 3]), Filter::all(), 2);
    assert_eq!(texts(&two.messages), ["b4", "c0"]);
    assert!(read(&world, group(9), Filter::all(), 2).messages.is_empty());
}

/// What follows a history is exactly what its snapshot did not hold, of the same scope; what its
/// filter, its limit or eligibility kept out does not come back.
/// covers: STR-099, STR-100, STR-102
#[test]
fn a_follow_starts_at_the_snapshot_of_its_history() {
    let world = World::new();
    let [_, deleted, _, _] = world.put_all([(1, "a1"), (1, "a2"), (2, "b1"), (1, "a3")]);
    world.delete(deleted);
    let history = read(&world, group(1), Filter::all(), 1);
    assert_eq!(texts(&history.messages), ["a3"]);
    world.put(1, "a4");
    world.put(2, "b2");
    let mut follow = history.follow().now_or_never().unwrap().unwrap();
    world.put(1, "a5");
    assert_eq!(super::replay::texts(&mut follow), ["a4", "a5"]);
    assert_eq!(world.d(1), 0);
}

/// While another process stores at full speed, history and follow together hold every message
/// once.
/// covers: STR-099, STR-100
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_and_follow_leave_no_gap_and_no_overlap() {
    const MESSAGES: usize = 600;
    let runtime: Arc<dyn Runtime> = NativeRuntime::current();
    let disk = MemoryDisk::new();
    let [database, peer] = [0; 2].map(|_| Database::open(disk.open(), runtime.clone()).unwrap());
    let messages = Messages::new(database);
    let insert = async move {
        for n in 0..MESSAGES {
            let new = NewMessage {
                message: new_message((n % 3) as u8, &n.to_string()),
            };
            let write = move |txn: &mut WriteTxn<'_>| store::insert_message(txn, &new);
            let priority = crate::storage::Priority::Background;
            let number = peer.write_queued::<_, StorageError>(priority, Durability::Ordered, write);
            number.await.unwrap().unwrap();
        }
    };
    let inserting = runtime.spawn("insert", insert);
    for round in 0..8 {
        let history = messages
            .history(group(0), Filter::all(), 128)
            .await
            .unwrap();
        let mut follow = history.follow().await.unwrap();
        let newest = history.cursor.number();
        assert!(
            history
                .messages
                .iter()
                .all(|message| message.number <= newest)
        );
        let is_last = round == 7;
        let wanted = if is_last { MESSAGES / 3 } else { 0 };
        let mut all = texts(&history.messages);
        let skipped = all
            .first()
            .map_or(0, |first| first.parse::<usize>().unwrap() / 3);
        while skipped + all.len()
            < wanted
                .max(skipped + history.messages.len() + 3)
                .min(MESSAGES / 3)
        {
            all.push(text(&follow.next().await.unwrap().unwrap()));
        }
        let expected = (skipped..).map(|n| (3 * n).to_string());
        assert!(
            all.iter().cloned().eq(expected.take(all.len())),
            "round {round}: {all:?}"
        );
    }
    inserting.join().await;
}

/// The default consumer on real threads: every message once, in order, with a writer beside it.
/// covers: STR-091, STR-094
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_reads_everything_on_real_threads() {
    const MESSAGES: usize = 200;
    let runtime: Arc<dyn Runtime> = NativeRuntime::current();
    let disk = MemoryDisk::new();
    let [database, peer] = [0; 2].map(|_| Database::open(disk.open(), runtime.clone()).unwrap());
    let messages = Messages::new(database);
    let inserting = runtime.spawn("insert", async move {
        for n in 0..MESSAGES {
            let new = NewMessage {
                message: new_message((n % 3) as u8, &n.to_string()),
            };
            let write = move |txn: &mut WriteTxn<'_>| store::insert_message(txn, &new);
            let priority = crate::storage::Priority::Background;
            let number = peer.write_queued::<_, StorageError>(priority, Durability::Ordered, write);
            number.await.unwrap().unwrap();
        }
    });
    let mut seen = Vec::new();
    let mut consumer = messages.consume(Scope::All, Filter::all()).await.unwrap();
    while seen.len() < MESSAGES {
        seen.push(text(&consumer.next().await.unwrap().unwrap()));
        // The consumer itself is replaced now and then; the item that was at work repeats.
        if seen.len() % 50 == 0 {
            drop(consumer);
            consumer = messages.consume(Scope::All, Filter::all()).await.unwrap();
            assert_eq!(
                text(&consumer.next().await.unwrap().unwrap()),
                *seen.last().unwrap()
            );
        }
    }
    inserting.join().await;
    assert!(seen.into_iter().eq((0..MESSAGES).map(|n| n.to_string())));
}
