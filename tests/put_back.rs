//! A real backend that is put back to a backup of itself and fenced, under clients that have seen
//! what was lost.

mod shared;

use shared::{account, close, now, texts_of};
use xmtp_core::error::Coded;
use xmtp_core::storage::{Read, StorageError, schema};
use xmtp_core::sync::{Cause, SyncError};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::{Client, Group};
use xmtp_proto::storage::v1::TopicRecord;
use xmtp_proto::{GroupId, Topic};
use xmtp_testkit::TestBackend;

const BO: [u8; 32] = [81; 32];
const CAROL: [u8; 32] = [82; 32];

async fn open(secret: &[u8; 32], disk: &MemoryDisk, backend: &TestBackend) -> Client {
    let wire = shared::grpc(&backend.endpoint());
    shared::open(secret, disk.open(), wire, now()).await
}

fn record(client: &Client, group: GroupId) -> TopicRecord {
    let database = &client.engine().context().database;
    let topic = Topic::group(&group);
    let read = database.read::<_, StorageError>(|snapshot| snapshot.row(schema::TOPIC, &topic));
    read.expect("it is read").unwrap_or_default()
}

async fn say(group: &Group, text: &str) {
    group.send_text(text).await.expect("a text");
}

/// What both clients received after the backup is gone. The conversation it belongs to stops with a
/// typed error for each of them and nothing of it moves; another conversation, and a new one, go on.
///
/// covers: EXT-002
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_lost_its_end_stops_alone() {
    let mut backend = TestBackend::start().await;
    let (bos, carols) = (MemoryDisk::new(), MemoryDisk::new());
    let bo = open(&BO, &bos, &backend).await;
    let carol = open(&CAROL, &carols, &backend).await;
    let conversations = carol.conversations();
    let members = [account(&BO).inbox_id()];
    let lost = conversations.new_group("lost", &members).await;
    let kept = conversations.new_group("kept", &members).await;
    let (lost, kept) = (lost.expect("a group"), kept.expect("a group"));
    say(&lost, "before").await;
    say(&kept, "before").await;
    bo.sync_all().await.expect("bo syncs");
    carol.sync_all().await.expect("carol syncs");

    let copy = backend.back_up().await;
    say(&lost, "behind the backup").await;
    bo.sync_all().await.expect("bo syncs");
    let before = record(&bo, lost.id());
    assert_eq!(
        texts_of(&bo, lost.id()).await,
        ["before", "behind the backup"]
    );
    backend.put_back(&copy).await;

    // Who writes next finds that its echo comes from behind the fence.
    let refused = lost
        .send_text("into the gap")
        .await
        .expect_err("it is lost");
    assert_eq!(refused.code(), "send.went_back", "{refused}");
    say(&kept, "after").await;
    let new = conversations
        .new_group("new", &members)
        .await
        .expect("a group");
    say(&new, "hello").await;

    let told = bo.sync_all().await.expect_err("a conversation is lost");
    let SyncError::Incomplete(told) = told else {
        panic!("{told}");
    };
    let topics: Vec<Topic> = told.obligations.iter().map(|open| open.topic).collect();
    assert_eq!(topics, [Topic::group(&lost.id())]);
    assert_eq!(told.obligations[0].cause, Cause::GoneBack);
    assert_eq!(record(&bo, lost.id()), before);
    assert_eq!(
        texts_of(&bo, lost.id()).await,
        ["before", "behind the backup"]
    );
    assert_eq!(texts_of(&bo, kept.id()).await, ["before", "after"]);
    assert_eq!(texts_of(&bo, new.id()).await, ["hello"]);
    close(&bo).await;
    close(&carol).await;
    backend.stop().await;
}
