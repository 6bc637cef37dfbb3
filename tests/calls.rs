//! What the calls of a client cover and what they leave alone, over a real backend.

mod shared;

use prost::Message as _;
use shared::{PATIENCE, close, now, open, texts_of};
use xmtp_core::delivery::{DeliveryCursor, Filter, Scope, StreamError};
use xmtp_core::send::{NewIntent, SendError, Sent};
use xmtp_core::storage::{Durability, WriteTxn};
use xmtp_core::testing::memory::MemoryStorage;
use xmtp_core::transport::Transport;
use xmtp_mls::group::{Attribute, GroupFault, load};
use xmtp_mls::{Client, Group, Provider};
use xmtp_proto::backend::v1;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, SequenceId};
use xmtp_testkit::{TestBackend, mls_bytes};

const ALICE: [u8; 32] = [71; 32];
const BO: [u8; 32] = [72; 32];

async fn client(backend: &TestBackend, secret: &[u8; 32]) -> Client {
    open(secret, MemoryStorage::new(), backend.in_process(), now()).await
}

/// Begins a conversation with one text.
async fn begin(from: &Client, to: &Client, text: &str) -> Group {
    let group = from.conversations().new_group(text, &[to.inbox_id()]).await;
    let group = group.expect("a group");
    group.send_text(text).await.expect("a text");
    group
}

async fn listed(client: &Client) -> Vec<GroupId> {
    let groups = client.conversations().list().await.expect("the groups");
    groups.iter().map(Group::id).collect()
}

/// A conversation's sync covers its own topic; that of the conversations covers Welcomes and what
/// they lead to, without messages; that of all covers Welcomes and every conversation. Reading
/// history fetches nothing.
/// covers: CUR-003, CUR-004, CUR-005, CUR-006
#[tokio::test(flavor = "multi_thread")]
async fn each_sync_covers_its_scope() {
    let mut backend = TestBackend::start().await;
    let (alice, bo) = (client(&backend, &ALICE).await, client(&backend, &BO).await);
    let one = begin(&alice, &bo, "one").await;
    let two = begin(&alice, &bo, "two").await;
    assert!(listed(&bo).await.is_empty());
    bo.conversations().sync().await.expect("Welcomes");
    let mut both = vec![one.id(), two.id()];
    both.sort();
    assert_eq!(listed(&bo).await, both);
    for group in [&one, &two] {
        assert!(texts_of(&bo, group.id()).await.is_empty(), "messages came");
    }

    let three = begin(&alice, &bo, "three").await;
    let synced = bo.conversations().group(one.id()).sync().await;
    assert_eq!(synced.expect("one topic").topics, 1);
    assert_eq!(texts_of(&bo, one.id()).await, ["one"]);
    assert!(texts_of(&bo, two.id()).await.is_empty());
    assert_eq!(listed(&bo).await, both, "a Welcome came");

    bo.sync_all().await.expect("everything");
    for (group, text) in [(&one, "one"), (&two, "two"), (&three, "three")] {
        assert_eq!(texts_of(&bo, group.id()).await, [text]);
    }
    one.send_text("later").await.expect("a text");
    assert_eq!(texts_of(&bo, one.id()).await, ["one"], "history fetched");
    backend.stop().await;
    assert_eq!(texts_of(&bo, one.id()).await, ["one"]);
    close(&bo).await;
    close(&alice).await;
}

/// A delivery cursor is of a database and counts deliveries there: another database refuses it,
/// and a sequence id is none.
/// covers: CUR-007
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_cursor_is_no_wire_cursor() {
    let mut backend = TestBackend::start().await;
    let (alice, bo) = (client(&backend, &ALICE).await, client(&backend, &BO).await);
    let group = begin(&alice, &bo, "one").await;
    group.send_text("two").await.expect("a text");
    bo.sync_all().await.expect("everything");
    let messages = bo.engine().messages();
    let history = messages
        .history(Scope::from(group.id()), Filter::all(), 10)
        .await;
    let history = history.expect("a history");
    let last = history.messages.last().expect("a message");
    let database = bo.engine().context().database.id();
    assert_eq!(
        (history.cursor.database(), history.cursor.number()),
        (database, last.number)
    );
    assert_ne!(last.sequence, SequenceId::saturating(last.number));
    let printed = last.sequence.to_string();
    assert_eq!(
        printed.parse::<DeliveryCursor>(),
        Err(StreamError::Malformed)
    );
    assert_eq!(history.cursor.to_string().parse(), Ok(history.cursor));

    let elsewhere = alice.engine().messages();
    let refused = elsewhere
        .replay(history.cursor, Scope::All, Filter::all())
        .await;
    let refused = refused.expect_err("a cursor of another database");
    assert!(
        matches!(refused, StreamError::WrongDatabase { .. }),
        "{refused}"
    );
    close(&bo).await;
    close(&alice).await;
    backend.stop().await;
}

/// A page at the row limit says that there is more only where more rows match.
/// covers: CUR-002
#[tokio::test(flavor = "multi_thread")]
async fn a_full_page_may_be_the_last() {
    const ROWS: usize = 5;
    let mut backend = TestBackend::start().await;
    let wire = backend.in_process();
    // Rows of another topic come after and between, and match no query.
    for row in 0..=ROWS {
        let (mine, other) = ([1; 16], [2; 16]);
        let groups = if row == ROWS {
            vec![other]
        } else {
            vec![mine, other]
        };
        let envelopes = groups
            .iter()
            .map(|group| mls_bytes::group_message(*group, &[row as u8]));
        let envelopes = envelopes.collect();
        let published = wire.publish(v1::PublishRequest { envelopes }).await;
        published.expect("they are stored");
    }
    let page = async |cursor: Option<v1::Cursor>, limit: usize| {
        let request = v1::QueryRequest {
            queries: vec![v1::TopicQuery {
                topic: Some(mls_bytes::group_topic([1; 16]).to_proto()),
                cursor,
            }],
            limit: limit as u32,
        };
        let page = wire.query(request).await.expect("a page");
        let last = page
            .envelopes
            .last()
            .and_then(|last| last.meta.as_ref()?.cursor);
        let has_more = page
            .continuation
            .is_some_and(|continuation| continuation.has_more);
        (page.envelopes.len(), has_more, last)
    };
    let (rows, has_more, last) = page(None, ROWS).await;
    assert_eq!(
        (rows, has_more),
        (ROWS, false),
        "full, and nothing behind it"
    );
    assert_eq!(page(last, ROWS).await, (0, false, None));
    let (rows, has_more, last) = page(None, ROWS - 1).await;
    assert_eq!((rows, has_more), (ROWS - 1, true));
    let (rows, has_more, _) = page(last, 1).await;
    assert_eq!((rows, has_more), (1, false));
    backend.stop().await;
}

/// Asks a group for another version floor.
async fn set_floor(client: &Client, group: GroupId, floor: &str) -> Result<Sent, SendError> {
    let attribute = Attribute::VersionFloor.name().to_owned();
    let body = stored::MetadataIntent {
        attributes: [(attribute, floor.to_owned())].into(),
    };
    let intent = NewIntent {
        group,
        kind: stored::IntentKind::ChangeMetadata,
        body: body.encode_to_vec().into(),
        message_id: None,
    };
    client.engine().sender().send(intent, PATIENCE).await
}

/// An own commit that ordered processing rejects is no longer pending: the group goes on.
/// covers: STR-112
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_own_commit_leaves_nothing_pending() {
    let mut backend = TestBackend::start().await;
    let (alice, bo) = (client(&backend, &ALICE).await, client(&backend, &BO).await);
    let group = begin(&alice, &bo, "before").await;
    let id = group.id();
    set_floor(&alice, id, "1.0.0").await.expect("a floor");
    // A floor never falls: everybody who reads the commit rejects it, alice too.
    let refused = set_floor(&alice, id, "0.9.0").await;
    let reason = "policy_denied".to_owned();
    assert_eq!(refused, Err(SendError::Rejected { reason }));
    let pending = |txn: &mut WriteTxn<'_>| {
        let loaded = load(&Provider::new(txn), &id)?;
        Ok::<_, GroupFault>(loaded.pending_commit().is_some())
    };
    let database = &alice.engine().context().database;
    assert_eq!(database.write(Durability::Ordered, pending), Ok(false));
    group.update_keys().await.expect("the next commit");
    group.send_text("after").await.expect("a text");
    bo.sync_all().await.expect("everything");
    let theirs = bo.conversations().group(id);
    assert_eq!(
        theirs
            .epoch_authenticator()
            .await
            .expect("bo's authenticator"),
        group
            .epoch_authenticator()
            .await
            .expect("alice's authenticator")
    );
    assert_eq!(texts_of(&bo, id).await, ["before", "after"]);
    close(&alice).await;
    close(&bo).await;
    backend.stop().await;
}
